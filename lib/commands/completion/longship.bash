# shellcheck shell=bash
# Completion of Longship's scripts in bash 4.4 or newer: eval "$(python3 completion.py bash)"
# A Python is completed too, and what it was completed by before is called for all other programs.

# _longship_register NAME...: complete these commands, and remember what completes them now.
_longship_register() {
  local name
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || return 0
  declare -gA _longship_before
  for name; do
    _longship_take "$name"
  done
}

# _longship_take NAME: complete a command; fails where nothing else has completed it.
_longship_take() {
  local spec status=1
  spec=$(complete -p -- "$1" 2>/dev/null) || spec=
  if [[ -n $spec && $spec != *' _longship '* ]]; then
    _longship_before[${1##*/}]=$spec
    status=0
  fi
  complete -F _longship -- "$1"
  return "$status"
}

# _longship COMMAND WORD PREVIOUS: what bash calls on TAB.
_longship() {
  local -a words command
  local kept cut answer
  COMPREPLY=()
  _longship_words
  if _longship_find && answer=$("${command[@]}" 2>/dev/null); then
    _longship_offer
  else
    _longship_others "$@"
  fi
}

# _longship_words: set `words` to what was typed up to the cursor, quotes and all; bash takes them
# apart at = and : too. `kept` is the part of the last one that bash leaves as it is.
_longship_words() {
  local rest=${COMP_LINE:0:COMP_POINT} piece blank
  local -i i
  words=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    blank=${rest%%[![:blank:]]*}
    rest=${rest#"$blank"}
    piece=${COMP_WORDS[i]}
    if ((i == COMP_CWORD)); then piece=$rest; fi
    rest=${rest#"$piece"}
    if ((i == 0)) || [[ -n $blank ]]; then
      kept=
      words+=("$piece")
    else
      kept=${words[-1]}
      words[-1]+=$piece
    fi
  done
  cut=$piece
  if [[ $piece =~ ^[=:]+$ ]]; then
    kept=${words[-1]}
    cut=
  fi
}

# _longship_find: set `command` to what answers; fails unless one of the scripts is on the line.
_longship_find() {
  local path name
  local -i i=0
  command=()
  if [[ ${words[0]##*/} =~ ^python(3(\.[0-9]+)?)?$ ]]; then
    _longship_path "${words[0]}"
    command=("$path")
    for ((i = 1; i < ${#words[@]}; i++)); do
      [[ ${words[i]} =~ ^-[bBdEhiIOPqsSuvx]+$ ]] || break
    done
  fi
  ((i < ${#words[@]} - 1)) || return 1
  _longship_path "${words[i]}"
  name=${path##*/}
  if ((i == 0)) && [[ $path != */* ]]; then path=$(type -P -- "$path") || return 1; fi
  [[ $path == */* ]] || path=./$path
  path=${path%/*}
  [[ $name == *.py && -f $path/completion.py && -f $path/lib/commands/$name ]] || return 1
  command+=("$path/completion.py" answer "$name" "${words[@]:i+1}")
}

# _longship_path WORD: set `path` to what a word names; nothing in it is evaluated but ~/ and $HOME/.
_longship_path() {
  if [[ $1 == [\'\"]*[\'\"] ]]; then
    path=${1:1:-1}
  else
    # shellcheck disable=SC2162  # so it takes the backslashes out
    IFS= read path <<<"$1"
  fi
  # shellcheck disable=SC2088,SC2016  # as they stand on the command line
  case $path in
    '~/'*) path=$HOME/${path#'~/'} ;;
    '$HOME/'*) path=$HOME/${path#'$HOME/'} ;;
  esac
}

# _longship_offer: set COMPREPLY from the answer.
_longship_offer() {
  local kind value _ files=
  while IFS=$'\t' read -r kind value _; do
    case $kind in
      plain) COMPREPLY+=("${value#"$kept"}") ;;
      dir) compopt -o dirnames ;;
      file) files=default ;;
      command)
        files=default
        if [[ $value == 0 ]]; then mapfile -t COMPREPLY < <(compgen -c -- "$cut"); fi
        ;;
    esac
  done <<<"$answer"
  compopt -o nosort
  if [[ -n $files ]]; then
    # with nothing else to offer bash does it, else its quoting is asked for
    if ((${#COMPREPLY[@]})); then mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cut"); fi
    compopt -o filenames -o default
    return
  fi
  _longship_quote
  if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[/=] ]]; then compopt -o nospace; fi
}

# _longship_quote: quote what is offered, unless a quotation was opened.
_longship_quote() {
  local i
  if [[ $cut == [\'\"]* ]]; then return; fi
  for i in "${!COMPREPLY[@]}"; do
    printf -v "COMPREPLY[$i]" %q "${COMPREPLY[i]}"
  done
}

# _longship_others COMMAND WORD PREVIOUS: complete as if this file were not there. The function of
# `complete -D` may say with 124 that it has found what completes the command.
_longship_others() {
  local spec=${_longship_before[${1##*/}]-} option
  [[ -n $spec ]] || spec=$(complete -p -D 2>/dev/null) || spec=
  for option in default bashdefault dirnames filenames noquote nosort nospace plusdirs; do
    if [[ -z $spec && $option == *default || $spec == *" -o $option "* ]]; then compopt -o "$option"; fi
  done
  if [[ $spec =~ \ -F\ ([^[:space:]]+) ]]; then
    "${BASH_REMATCH[1]}" "$@"
    if (($? == 124)) && { _longship_take "${1##*/}" || _longship_take "$1"; }; then
      _longship_others "$@"
    fi
  elif [[ -n $spec ]]; then
    spec=${spec% *}
    # shellcheck disable=SC2294  # what `complete -p` prints is quoted to be read again
    mapfile -t COMPREPLY < <(eval "compgen ${spec#complete} -- \"\$2\"")
  fi
}
