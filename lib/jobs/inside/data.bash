# shellcheck shell=bash
# The data of stacks: checks of a data step whose text and tokenizer are settings, and the cache of
# Megatron's indices.

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

# data_check ARGUMENT...: fail if there is no text, or if an argument for preprocess_data.py
# contradicts the settings.
data_check() {
  local argument
  [[ -n $TRAINING_TEXT ]] || fail 'training.text is empty' \
    'set text in [training] of configuration.toml to a JSON Lines file'
  for argument; do
    case ${argument%%=*} in
      --input | --name | --data-dir | --tokenizer | --end-of-text)
        fail "the data step does not accept $argument" \
          'set text, validation_text and tokenizer in [training] of configuration.toml'
        ;;
    esac
  done
}

# data_cache STACK PREFIX...: print the directory for Megatron's indices of these .bin and .idx
# files. Megatron finds an index by the paths alone: in data that were made again, it would read
# from where the documents were before.
data_cache() {
  local -r stack=$1
  local version
  shift
  # an entry can be a weight
  version=$({ stat --format='%s %Y' -- "${@/%/.idx}" 2>/dev/null || :; } | cksum)
  printf '%s/cache/%s/%s' "${LONGSHIP_SCRATCH_DIR:?}" "$stack" "${version%% *}"
}
