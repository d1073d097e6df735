# shellcheck shell=bash
# Messages: quiet on success; an error says what is wrong, then what to type.

# print_messages [KIND TEXT]...: print a line for each to standard error, in one write: ranks share
# a log.
print_messages() {
  local REPLY told='' text
  while (($#)); do
    printable "$2"
    if [[ $1 == hint || $1 == next ]]; then offline_modes "$REPLY"; fi
    text=$REPLY
    paint 2 "$1:"
    told+="$REPLY $text"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# COMMAND=OFFLINE_COMMAND for hints, in a script of a clone that was unpacked from a bundle:
# render.py fills it
declare -ga longship_offline_commands=()

# offline_modes TEXT: set REPLY to the text, with the commands that need no network where a bundle
# was unpacked.
offline_modes() {
  local each
  REPLY=$1
  for each in ${longship_offline_commands[@]+"${longship_offline_commands[@]}"}; do
    REPLY=${REPLY//"${each%%=*}"/"${each#*=}"}
  done
}

# printable TEXT: set REPLY to it, with ? for each control character except tab and newline: text of
# files, records and other programs must not move the cursor.
printable() {
  local LC_ALL=C
  REPLY=${1//[$'\x01'-$'\b\v'-$'\x1f\x7f']/?}
  REPLY=${REPLY//$'\xc2'[$'\x80'-$'\x9f']/?} # C1 controls in UTF-8
}

# red, yellow, green and cyan; errors.py reads them here, and other words are bold
declare -gA longship_colours=([error]=31 [problem]=31 [warning]=33 [follows]=33 [ok]=32
  [hint]=36 [next]=36 [follow]=36 [cancel]=36 [status]=36)

# paint FILE WORD: set REPLY to the word, in its colour if file descriptor 1 or 2 is a terminal with
# colours and NO_COLOR is not set: https://no-color.org. No `return`: in a trap it would return the
# status of the interrupted command.
paint() {
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    REPLY=$'\e['${longship_colours[${2%:}]:-1}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: print what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing DIR MESSAGE HINT: fail after a write failed; report a full disk, which programs often
# do not name. Some remove what they could not finish (uv a package per core), so a disk counts as
# full earlier.
fail_writing() {
  local free=16777216 size=1 free_inodes=1 inodes=0
  read -r free size free_inodes inodes < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${inodes:-0} > 0 && ${free_inodes:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'free some space, or set [paths] in configuration.toml; then run the command again'
  fi
  fail "$2" "$3"
}

# note TEXT: print information that is not an error.
note() {
  print_messages note "$1"
}

# warn_of MESSAGE HINT: print what will go wrong later, and what to type.
warn_of() {
  print_messages warning "$1" hint "$2"
}

# step NUMBER/COUNT TEXT: print the current step, and remember it for an interruption.
step() {
  local REPLY
  current_step="step $1, $2"
  paint 2 "[$1] $2"
  printf '%s\n' "$REPLY" >&2
}

# on_interrupt COMMAND: after Ctrl-C, print the step and the command that resumes. SIGHUP too:
# without a trap, bash can end without running its EXIT trap, and leave its locks.
on_interrupt() {
  interrupted_command=$1
  trap 'trap - INT TERM HUP
        printf "\n" >&2
        print_messages error "interrupted ${current_step:+in }${current_step:-before the first step}" \
          hint "no work is lost; resume with: $interrupted_command"
        exit 130' INT TERM HUP
}

# next_step COMMAND: print what to type next, unless quickstart.sh runs it.
next_step() {
  [[ -n ${LONGSHIP_QUICKSTART:-} ]] || print_messages next "$1"
}
