# shellcheck shell=bash
# Templates of a framework's configuration, filled in from the environment: `@TRAINING_TOKENIZER@`,
# as ${...} belongs to hydra and OmegaConf.

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

# fill_template FROM TO: write TO, complete or not at all; a variable that is unknown or not set is
# an error.
fill_template() {
  local line number=0 filled name
  : >"$2.partial"
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1)) filled=
    while [[ $line =~ @([A-Z][A-Z0-9_]*)@ ]]; do
      name=${BASH_REMATCH[1]}
      if [[ -z ${!name+set} ]]; then
        rm -f -- "$2.partial"
        fail "$1, line $number: unknown variable in @$name@: $name" \
          'correct the name; those of the settings begin with TRAINING_, see stack.toml'
      fi
      filled+=${line%%"@$name@"*}${!name} # a value is not expanded again
      line=${line#*"@$name@"}
    done
    printf '%s\n' "$filled$line" >>"$2.partial"
  done <"$1"
  mv -- "$2.partial" "$2"
}
