# shellcheck shell=bash
# Progress of a long step whose program shows none: a line on a terminal, removed at the end.

# progress_run FROM TO PROGRAM...: run a program that reads the file FROM as its standard input or,
# if TO is not empty, writes it to the file TO.
progress_run() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:3}"
    return
  fi
  # file 4 is closed when the program or this script ends; then progress_show ends
  {
    "${@:3}" 3<&- 4>&- || code=$?
  } 3<&0 4> >(progress_show "$1" "$2")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# progress_show FROM TO: show the size of TO, else the position in file 3, until standard input
# ends.
progress_show() {
  local key place bytes of status
  bytes=$(stat -L -c %s -- "$1")
  bytes_format "$bytes"
  of=$REPLY
  while status=0 && { read -r -t 0.5 || status=$?; } && ((status > 128)); do
    place=0
    if [[ -n $2 ]]; then
      place=$(stat -c %s -- "$2" 2>/dev/null) || place=0
    else
      while read -r key REPLY; do if [[ $key == pos: ]]; then place=$REPLY; fi; done </proc/self/fdinfo/3
    fi
    bytes_format "$place"
    printf '\r\e[K      %s of %s, %d %%' "$REPLY" "$of" $((place * 100 / (bytes > 0 ? bytes : 1))) >&2
  done
  printf '\r\e[K' >&2
}

# bytes_format BYTES: set REPLY to the size with a unit, such as 9.4 GB.
bytes_format() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}
