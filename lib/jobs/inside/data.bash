# shellcheck shell=bash
# The data step of stacks whose settings name the text and the tokenizer, for their check_job.sh.

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

# data_check ARGUMENT...: fail if there is no text, or if an argument for preprocess_data.py contradicts the settings.
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
