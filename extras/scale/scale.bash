# shellcheck shell=bash
# Scaling studies: what describes the study, and the jobs after the first one.

# scale_begin FILE TEXT: describe the study, before its first job is submitted.
scale_begin() {
  directory_make "${1%/*}"
  [[ ! -e $1 ]] || fail "there is a study of this name: $1" 'choose another one: --name=NAME'
  file_write "$1" "$2"$'\n'
}

# scale_send RUNS NAME ARGUMENT...: submit a further job of the study.
scale_send() {
  submission_send_job "${@:3}"
}
