#!/usr/bin/env bash
# Longship: build_overlay_list.py, machine jpb (jsc/site.toml)
set -euo pipefail

# checksum FILE: its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the line above'
  printf 'sha256:%s' "${sum%% *}"
}

# record_value RECORD NAME: set REPLY to one of its values, as JSON has it; empty where there is none.
record_value() {
  local -a lines=()
  REPLY=
  [[ -r $1 ]] || return 0
  mapfile -t lines <"$1"
  value_in "$2" ${lines[@]+"${lines[@]}"}
}

# value_in NAME LINE...: the same, of a record's lines.
value_in() {
  local line
  REPLY=
  for line in "${@:2}"; do
    if [[ $line == "  \"$1\": \""* ]]; then
      line=${line#*\": \"}
      REPLY=${line%\"*}
      return
    fi
  done
}

# json_text TEXT: set REPLY to the text as JSON has it between quotes.
json_text() {
  local LC_ALL=C
  local text=${1//\\/\\\\} code character
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
    for code in {1..31}; do
      printf -v code '%02x' "$code"
      printf -v character '%b' "\\x$code"
      text=${text//"$character"/"\\u00$code"}
    done
  fi
  REPLY=$text
}

# print_messages [KIND TEXT]...: a line each, on standard error, at once: jobs share a log.
print_messages() {
  local REPLY told=''
  while (($#)); do
    paint 2 "$1:"
    told+="$REPLY $2"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# paint FILE WORD: set REPLY to the word, in its colour where that file (1 or 2) is a terminal which
# shows colours, unless NO_COLOR says that the user wants none: https://no-color.org. Without `return`: in
# a trap that would have the status of what was interrupted.
paint() {
  local colour
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    case $2 in
      error: | problem) colour=31 ;;                            # red
      warning: | warning) colour=33 ;;                          # yellow
      ok) colour=32 ;;                                          # green
      hint: | next: | follow: | cancel: | status:) colour=36 ;; # cyan
      *) colour=1 ;;                                            # bold
    esac
    REPLY=$'\e['${colour}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# terminal_columns: set REPLY to the width of the terminal that standard output is; in a file nothing
# is cut.
terminal_columns() {
  REPLY=10000
  if [[ ! -t 1 ]]; then return; fi
  { REPLY=$(stty size <&3 2>/dev/null) || REPLY='24 80'; } 3>&1
  REPLY=${COLUMNS:-${REPLY#* }}
  if ((REPLY == 0)); then REPLY=80; fi
}

# next_step COMMAND: say what to type now.
next_step() {
  print_messages next "$1"
}

# is_base IMAGE BASES: whether it is one of those in a record, as JSON has them.
is_base() {
  json_text "$1"
  [[ "\\n$2\\n" == *"\\n$REPLY\\n"* ]]
}

# overlays_there: set `found` to the files of all versions, the oldest first.
overlays_there() {
  local path
  found=()
  while IFS= read -r path; do
    found+=("${path#*/}")
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
}

# list_overlays BASE: each with size, date, last use and requirements, and whether it is for now.
list_overlays() {
  local -a found
  local name form='%s %-47s %8s  %-10s %-10s %s\n'
  local -i asked_columns=60
  terminal_columns
  if ((REPLY < 142)); then
    form='%s %s\n    %8s  %-10s %-10s %s\n'
    asked_columns=$((REPLY - 36))
  fi
  overlays_there
  if ((${#found[@]})); then
    # shellcheck disable=SC2059  # one of the two above
    printf "$form" ' ' OVERLAY SIZE BUILT 'LAST USE' REQUIREMENTS
  fi
  for name in ${found[@]+"${found[@]}"}; do
    describe_overlay "${active%/*}/versions/$name" "$1"
  done
  if [[ ! -e $active ]]; then
    printf 'not built yet for the requirements as they are now: %s\n' "$active"
    next_step 'python3 build_overlay.py'
  fi
}

# describe_overlay FILE BASE: its lines of the list.
describe_overlay() {
  local mark=' ' date asked size used bases
  human "$(stat -L -c %s -- "$1")"
  size=$REPLY
  record_value "$1.json" date
  date=${REPLY%T*}
  record_value "$1.json" requirements
  asked=$REPLY
  if ((${#asked} > asked_columns)); then asked=${asked:0:asked_columns-3}...; fi
  last_use "$1"
  used=$REPLY
  if is_active_overlay "$1"; then mark='*'; fi
  # shellcheck disable=SC2059  # of list_overlays
  printf "$form" "$mark" "$(basename -- "$1" .sqsh)" "$size" "${date:--}" "$used" "${asked:--}"
  record_value "$1.json" wanted
  if [[ $REPLY == "$TAKEN_OVER" ]]; then printf '  not made by Longship: %s\n' "$(readlink -f -- "$1")"; fi
  if [[ $mark == '*' ]]; then
    record_value "$1.json" base
    bases=$REPLY
    if is_base "$2" "$bases"; then
      printf '  in use\n'
    else
      printf '  for these requirements, but for another image: %s\n' "${bases//'\n'/, }"
    fi
  fi
}

# is_active_overlay FILE: whether the link for the requirements as they are now leads to it.
is_active_overlay() {
  [[ -L $active && $(readlink -- "$active") == "versions/${1##*/}" ]]
}

# last_use FILE: set REPLY to the day; a launcher's pin counts too.
last_use() {
  local pin day
  REPLY=never
  if [[ -e $1.used ]]; then REPLY=$(date -r "$1.used" +%Y-%m-%d); fi
  for pin in "${active%/*}"/pins/*; do
    if [[ -f $pin ]] && grep -qF -- "${1##*/}" "$pin"; then
      day=$(date -r "$pin" +%Y-%m-%d)
      if [[ $REPLY == never || $day > $REPLY ]]; then REPLY=$day; fi
    fi
  done
}

readonly TAKEN_OVER='taken over' # in place of the checksum of what an overlay was built from

# with_progress FROM TO PROGRAM...: run what reads the file FROM: as its standard input, or, if TO is not
# empty, to write the file TO.
with_progress() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:3}"
    return
  fi
  # the end of the program, also of this script, is the end of what file 4 leads to
  {
    "${@:3}" 3<&- 4>&- || code=$?
  } 3<&0 4> >(show_position "$1" "$2")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# show_position FROM TO: by the size of TO, else by the place in file 3, until standard input ends.
show_position() {
  local key place bytes of status
  bytes=$(stat -L -c %s -- "$1")
  human "$bytes"
  of=$REPLY
  while status=0 && { read -r -t 0.5 || status=$?; } && ((status > 128)); do
    place=0
    if [[ -n $2 ]]; then
      place=$(stat -c %s -- "$2" 2>/dev/null) || place=0
    else
      while read -r key REPLY; do if [[ $key == pos: ]]; then place=$REPLY; fi; done </proc/self/fdinfo/3
    fi
    human "$place"
    printf '\r\e[K      %s of %s, %d %%' "$REPLY" "$of" $((place * 100 / (bytes > 0 ? bytes : 1))) >&2
  done
  printf '\r\e[K' >&2
}

# human BYTES: set REPLY to them with a unit, such as 9.4 GB.
human() {
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

active=/e/scratch/project_465000000/me/longship/overlays/myenv_998211f8576b_arm64.sqsh
list_overlays /e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
