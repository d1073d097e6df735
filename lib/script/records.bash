# shellcheck shell=bash
# The record next to an artefact: JSON with a line for each value.

# record_is_complete FILE: whether it is complete: the brace that ends it is its last line.
record_is_complete() {
  local -a lines=()
  { mapfile -t lines <"$1"; } 2>/dev/null || return 1
  ((${#lines[@]} > 1)) && [[ ${lines[-1]} == '}' ]]
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
  local -a lines=()
  REPLY=
  [[ -r $1 ]] || return 0
  mapfile -t lines <"$1"
  record_find "$2" ${lines[@]+"${lines[@]}"}
}

# record_change FILE NAME TEXT: replace one of its values, not the last one; TEXT is in JSON.
record_change() {
  local line text=''
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "  \"$2\": "* ]]; then line="  \"$2\": \"$3\","; fi
    text+=$line$'\n'
  done <"$1" ||
    fail "cannot read $1" 'check the permissions of the directory; the line above has the reason'
  file_write "$1" "$text"
}

# record_find NAME LINE...: the same, of a record's lines.
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
