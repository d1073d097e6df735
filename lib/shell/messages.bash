# shellcheck shell=bash
# Messages: quiet on success; what is wrong in one line, what to type in the next.

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# fail_writing FOLDER MESSAGE HINT: the same after something could not be written; a full disk is
# the reason that programs tell least clearly. Some take back what they were writing (uv, a package
# a core), so a disk counts as full before the last byte.
fail_writing() {
  local free=16777216 size=1 files_free=1 files=0
  read -r free size files_free files < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${files:-0} > 0 && ${files_free:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'make room there, or set [paths] in configuration.toml; then run the same command again'
  fi
  fail "$2" "$3"
}

# note TEXT: tell something that is no error.
note() {
  printf 'note: %s\n' "$1" >&2
}

# warn_of MESSAGE HINT: tell what will go wrong sooner or later, and what to type.
warn_of() {
  printf 'warning: %s\nhint: %s\n' "$1" "$2" >&2
}

# step NUMBER/COUNT TEXT: say what is done now, and remember it for an interruption.
step() {
  current_step="step $1, $2"
  printf '[%s] %s\n' "$1" "$2" >&2
}

# on_interrupt COMMAND: after Ctrl-C name the step and the command that goes on.
on_interrupt() {
  interrupted_command=$1
  trap 'trap - INT TERM
        printf "\nerror: interrupted at %s\nhint: nothing is lost; go on with: %s\n" \
          "${current_step:-the start}" "$interrupted_command" >&2
        exit 130' INT TERM
}

# next_step COMMAND: say what to type now.
next_step() {
  printf 'next: %s\n' "$1" >&2
}
