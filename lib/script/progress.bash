# shellcheck shell=bash
# Progress of a long step: a line on a terminal, removed at the end; in a log Apptainer's own steps.

# progress_run PATH PROGRAM...: run a program that prints nothing, and reads or writes PATH.
progress_run() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:2}"
    return
  fi
  # file 4 is closed when the program or this script ends; then progress_show ends
  { "${@:2}" 4>&- || code=$?; } 4> >(progress_show "$1")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# progress_show PATH...: show the last line of standard input, until it ends, the time, and the size
# of PATHs.
progress_show() {
  local line='' message='' shown='' status
  local -r start=$SECONDS
  if [[ ! -t 2 ]]; then
    sed -n -u 's/^INFO: */      /p' >&2 # the steps of Apptainer, in a log
    return
  fi
  while status=0 && { IFS= read -r -t 1 line || status=$?; } && ((status == 0 || status > 128)); do
    if ((status == 0)); then printable "$line"; message=${REPLY:0:54}'  '; fi
    if [[ $SECONDS == "$shown" ]]; then continue; fi
    shown=$SECONDS
    bytes_format "$(du -s -B1 -- "$@" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')"
    printf '\r\e[K      %s%d s, %s' "$message" "$((SECONDS - start))" "$REPLY" >&2
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
