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

# the trap; what follows it has the exit code as $?
declare -g at_exit_trap="at_exit_code=\$?; at_exit_run && :"

# at_exit FUNCTION [ARGUMENT...]: call a function when this process ends, before those that were
# added earlier.
at_exit() {
  if [[ $at_exit_process != "$BASHPID" ]]; then at_exit_words=() at_exit_counts=() at_exit_process=$BASHPID; fi
  at_exit_words+=("$@") at_exit_counts+=("$#")
  at_exit_arm
}

# at_exit_arm: set the trap; also after a fork of a child that is soon killed, for which it is taken
# away. A command that the script itself has as its EXIT trap is kept, and called last: it can exit.
at_exit_arm() {
  local own=''
  if [[ $BASHPID == "$$" ]]; then own=$(builtin trap -p EXIT); fi # a child has only its text
  own=${own#trap -- }
  own=${own% EXIT}
  if [[ $own == "'$at_exit_trap"* ]]; then return; fi
  # shellcheck disable=SC2064  # bash has quoted it
  builtin trap "$at_exit_trap${own:+; eval $own}" EXIT
}

# at_exit_chain: keep the functions when the script sets an EXIT trap of its own, as a job script can.
# What `trap -p` prints has both, and can be used as usual.
at_exit_chain() {
  if [[ -o posix ]]; then return; fi # there it cannot be a function
  # shellcheck disable=SC2064,SC2329  # for the script, with its own arguments
  trap() {
    local code=0
    builtin trap "$@" || code=$?
    if [[ $BASHPID == "$$" ]]; then at_exit_arm; fi
    return "$code"
  }
  declare -ft trap # otherwise bash restores a DEBUG or RETURN trap that it removes, as it does for ERR
}

# at_exit_run: call them all; none changes the exit code, which it returns.
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
  return "$at_exit_code"
}
