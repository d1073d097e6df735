# shellcheck shell=bash
# The record next to an artefact: JSON with a line for each value.

# file_read FILE [BYTES]: set REPLY to the content of a regular file without NUL, of fewer bytes (64
# MiB); false if it is not one, or cannot be read. Others can put a FIFO, /dev/zero or a hole of a
# terabyte in its place. Starts no process.
file_read() {
  local LC_ALL=C
  REPLY=
  [[ -f $1 && -r $1 ]] || return
  # at the end of a file it fails
  if { IFS= read -r -d '' -n "${2:-67108864}" REPLY <"$1"; } 2>/dev/null; then return 1; fi
}

# record_is_complete FILE: whether it is complete: the brace that ends it is its last line.
record_is_complete() {
  local REPLY
  file_read "$1" && [[ ${REPLY%$'\n'} == *$'\n}' ]]
}

# record_write FILE [NAME VALUE]...: as JSON, a line each, as record_value reads them; complete or
# not at all.
record_write() {
  local text='' comma='{' index
  for ((index = 2; index < $#; index += 2)); do
    json_text "${@:index+1:1}"
    text+="$comma"$'\n'"  \"${!index}\": \"$REPLY\""
    comma=,
  done
  file_write "$1" "$text"$'\n}\n'
}

# record_value RECORD NAME: set REPLY to one of its values, as JSON has it; empty where there is
# none.
record_value() {
  local LC_ALL=C # no byte of a value ends it
  local -r value=$'\n  "'$2$'": "([^\n]*)"'
  if file_read "$1" && [[ $REPLY =~ $value ]]; then REPLY=${BASH_REMATCH[1]}; else REPLY=; fi
}

# record_change FILE NAME TEXT: replace one of its values, not the last one; TEXT is in JSON.
record_change() {
  local REPLY line text=''
  file_read "$1" || fail "cannot read $1" "look at: ls -l $(printf %q "$1")"
  while IFS= read -r line; do
    if [[ $line == "  \"$2\": "* ]]; then line="  \"$2\": \"$3\","; fi
    text+=$line$'\n'
  done <<<"${REPLY%$'\n'}"
  file_write "$1" "$text"
}

# record_find NAME LINE...: set REPLY to the value, of a record's lines.
record_find() {
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

# json_text TEXT: set REPLY to the text, escaped for a JSON string.
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
