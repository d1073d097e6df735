# shellcheck shell=bash
# The one EXIT trap of a script: functions that clean up, whatever ends it. The one that was added
# last is called first.

# their words, one function after the other, and how many words each has
declare -ga at_exit_words=()

declare -ga at_exit_counts=()

# the process whose end it is: a child that is killed right after its start would run the trap of
# its parent
declare -g at_exit_process=''

# the exit code with which the process ends
# shellcheck disable=SC2034  # for the functions that are called
declare -g at_exit_code=0

# at_exit FUNCTION [ARGUMENT...]: call a function when this process ends, before those that were
# added earlier.
at_exit() {
  if [[ $at_exit_process != "$BASHPID" ]]; then at_exit_words=() at_exit_counts=() at_exit_process=$BASHPID; fi
  at_exit_words+=("$@") at_exit_counts+=("$#")
  at_exit_arm
}

# at_exit_arm: set the trap; also after a fork of a child that is soon killed, for which it is taken
# away.
at_exit_arm() {
  trap 'at_exit_code=$?; at_exit_run' EXIT
}

# at_exit_run: call them all; none changes the exit code.
at_exit_run() {
  local -a words
  local -i last begin
  if [[ $at_exit_process != "$BASHPID" ]]; then return 0; fi
  while ((${#at_exit_counts[@]})); do
    last=$((${#at_exit_counts[@]} - 1))
    begin=$((${#at_exit_words[@]} - at_exit_counts[last]))
    words=("${at_exit_words[@]:begin}")
    at_exit_words=("${at_exit_words[@]:0:begin}")
    unset "at_exit_counts[last]"
    "${words[@]}" || :
  done
}
