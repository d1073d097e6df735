# shellcheck shell=bash
# Scaling studies: what describes the study, and the jobs after the first one.

# scale_begin FILE TEXT: describe the study, in a new directory, before its first job is submitted.
scale_begin() {
  local -r directory=${1%/*}
  directory_make "${directory%/*}"
  [[ ! -e $directory ]] ||
    fail "there is a study of this name: $directory" 'choose another one: --name=NAME'
  # not -p: of two at the same moment one fails
  mkdir -m 700 -- "$directory" ||
    fail_writing "${directory%/*}" "cannot create $directory" 'see the line above'
  file_write "$1" "$2"$'\n'
}

# scale_send RUNS NAME ARGUMENT...: submit a further job of the study.
scale_send() {
  submission_send_job "${@:3}"
}
