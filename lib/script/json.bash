# shellcheck shell=bash
# JSON: for records, and for programs that read the output of a script.

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

# json_string TEXT: set REPLY to the text, escaped for a JSON string, with U+FFFD for bytes that are not UTF-8.
json_string() {
  utf8_replace "$1" $'\xef\xbf\xbd'
  json_text "$REPLY"
}

# The longest UTF-8 prefix of a text, by well-formed byte sequences: the Unicode Standard, table 3-7.
declare -g UTF8=$'^([\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|'\
$'[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|'\
$'[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*'

# utf8_replace TEXT [REPLACEMENT]: set REPLY to the text with the replacement for each byte that is not UTF-8.
# Without a replacement, set it to input for printf %b: such bytes are octal escapes, and backslashes are doubled.
utf8_replace() {
  local LC_ALL=C
  local rest=$1 block valid byte text=''
  while [[ -n $rest ]]; do
    utf8_first_bytes 200 "$rest" # in blocks: bash copies the remaining text for each removed byte
    block=$REPLY rest=${rest:${#REPLY}}
    while [[ -n $block ]]; do
      [[ $block =~ $UTF8 ]]
      valid=${BASH_REMATCH[0]}
      block=${block:${#valid}}
      if (($# == 1)); then valid=${valid//\\/\\\\}; fi
      text+=$valid
      if [[ -n $block ]]; then
        printf -v byte '%d' "'$block"
        printf -v byte '\\0%03o' "$((byte & 255))"
        text+=${2-$byte} block=${block:1}
      fi
    done
  done
  REPLY=$text
}

# utf8_first_bytes NUMBER TEXT: set REPLY to the first bytes, and up to three more that complete the last character.
utf8_first_bytes() {
  local LC_ALL=C
  local -i number=$1
  while ((number < $1 + 3)) && [[ ${2:number:1} == [$'\x80'-$'\xbf'] ]]; do number+=1; done
  REPLY=${2:0:number}
}

# json_list 'NAME...' TEXT...: print a list of objects with these names; the texts are their values, in turn.
json_list() {
  local -a names
  local comma='' name
  read -r -a names <<<"$1"
  shift
  printf '['
  while (($#)); do
    printf '%s\n  {' "$comma"
    comma=
    for name in "${names[@]}"; do
      json_string "$1"
      printf '%s"%s": "%s"' "$comma" "$name" "$REPLY"
      comma=', '
      shift
    done
    printf '}'
    comma=,
  done
  printf '\n]'
}
