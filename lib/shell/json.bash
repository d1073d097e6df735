# shellcheck shell=bash
# JSON, for records and for programs that read what a script prints.

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

# json_string TEXT: set REPLY to it as JSON has it between quotes; what reads it expects UTF-8.
json_string() {
  valid_text "$1"
  json_text "$REPLY"
}

# valid_text TEXT: set REPLY to it, with U+FFFD for bytes that are no UTF-8.
valid_text() {
  local LC_ALL=C
  local rest=$1 valid=''
  if [[ ! $rest =~ $UTF8 ]]; then
    while [[ -n $rest ]]; do
      if [[ ${rest:0:1} =~ $UTF8 ]]; then
        valid+=${rest:0:1} rest=${rest:1}
      elif [[ ${rest:0:2} =~ $UTF8 ]]; then
        valid+=${rest:0:2} rest=${rest:2}
      elif [[ ${rest:0:3} =~ $UTF8 ]]; then
        valid+=${rest:0:3} rest=${rest:3}
      elif [[ ${rest:0:4} =~ $UTF8 ]]; then
        valid+=${rest:0:4} rest=${rest:4}
      else
        valid+=$'\xef\xbf\xbd' rest=${rest:1}
      fi
    done
    rest=$valid
  fi
  REPLY=$rest
}

declare -g ESCAPED='^([^"\[:cntrl:]]|\\(["\/bfnrt]|u[0-9a-fA-F]{4}))*$' # as JSON has it

# json_list 'NAME...' TEXT...: objects of so many values each. NAME# is a number, true or false, and null
# where it is something else; NAME= is a text as a record has it, escaped already, unless it is damaged.
json_list() {
  local -r number='^(-?(0|[1-9][0-9]*)(\.[0-9]+)?|true|false)$'
  local -a names
  local comma='' name
  read -r -a names <<<"$1"
  shift
  printf '['
  while (($#)); do
    printf '%s\n  {' "$comma"
    comma=
    for name in "${names[@]}"; do
      case $name in
        *'#') if [[ $1 =~ $number ]]; then REPLY=$1; else REPLY=null; fi ;;
        *=)
          valid_text "$1"
          if [[ ! $REPLY =~ $ESCAPED ]]; then json_text "$REPLY"; fi
          ;;
        *) json_string "$1" ;;
      esac
      if [[ $name != *'#' ]]; then REPLY="\"$REPLY\""; fi
      printf '%s"%s": %s' "$comma" "${name%[#=]}" "$REPLY"
      comma=', '
      shift
    done
    printf '}'
    comma=,
  done
  printf '\n]'
}
