# shellcheck shell=bash
# Text in JSON, for records, and the bytes of arguments that runtimes pass as JSON.

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

# The longest UTF-8 prefix of a text, by well-formed byte sequences: the Unicode Standard, table 3-7.
declare -g UTF8=$'^([\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|'\
$'[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|'\
$'[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*'

# utf8_escape TEXT: set REPLY to input for printf %b, with an octal escape for each byte that is not UTF-8, and two
# backslashes for each.
utf8_escape() {
  local LC_ALL=C
  local rest=$1 block valid byte text=''
  while [[ -n $rest ]]; do
    utf8_first_bytes 200 "$rest" # in blocks: bash copies the remaining text for each removed byte
    block=$REPLY rest=${rest:${#REPLY}}
    while [[ -n $block ]]; do
      [[ $block =~ $UTF8 ]]
      valid=${BASH_REMATCH[0]}
      block=${block:${#valid}}
      text+=${valid//\\/\\\\}
      if [[ -n $block ]]; then
        printf -v byte '%d' "'$block"
        printf -v byte '\\0%03o' "$((byte & 255))"
        text+=$byte block=${block:1}
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
