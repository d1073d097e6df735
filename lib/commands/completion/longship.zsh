# Completion of Longship's scripts in zsh: eval "$(python3 completion.py zsh)"
# A Python is completed too, and what it was completed by before is called for all other programs.

# _longship_register NAME...: complete these commands, and remember what completes them now.
_longship_register() {
  local name
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
  typeset -gA _longship_before
  for name; do
    [[ ${_comps[$name]-} == _longship ]] || _longship_before[$name]=${_comps[$name]-}
    compdef _longship $name
  done
}

# _longship: what zsh calls on TAB, with the options of its completion functions (extended_glob).
_longship() {
  local -a asked answer
  if _longship_find && answer=("${(@f)$("${asked[@]}" 2>/dev/null)}"); then
    _longship_offer
  else
    local name=${words[1]:t}
    # compinit knows most Pythons by a pattern
    eval ${_longship_before[$name]:-${_postpatcomps[(K)$name]:-_default}}
  fi
}

# _longship_find: set `asked` to what answers; fails unless one of the scripts is on the line.
_longship_find() {
  local script
  integer i=1
  if [[ ${words[1]:t} == python(|3(|.<->)) ]]; then
    _longship_path $words[1]
    asked=($REPLY)
    for (( i = 2; i < CURRENT; i++ )); do
      [[ $words[i] == -[bBdEhiIOPqsSuvx]## ]] || break
    done
  fi
  (( i < CURRENT )) || return 1
  _longship_path $words[i]
  script=$REPLY
  if [[ $i == 1 && $script != */* ]]; then script=${commands[$script]-}; fi
  [[ $script == */* ]] || script=./$script
  [[ $script == *.py && -f $script:h/completion.py && -f $script:h/lib/commands/$script:t ]] || return 1
  asked+=($script:h/completion.py answer $script:t "${(@)words[i+1,CURRENT-1]}" "$PREFIX")
}

# _longship_path WORD: set REPLY to what a word names; nothing in it is evaluated but ~/ and $HOME/.
_longship_path() {
  REPLY=${(Q)1}
  REPLY=${REPLY/#(\~|\$HOME)\//$HOME/}
}

# _longship_offer: add what was answered.
_longship_offer() {
  local line value
  local -a part begun complete
  integer ret=1
  for line in $answer; do
    part=("${(@ps:\t:)line}")
    case $part[1] in
      (plain)
        value=${part[2]//:/\\:}${part[3]:+:$part[3]}
        if [[ $part[2] == *[/=] ]]; then begun+=($value); else complete+=($value); fi
        ;;
      (file|dir)
        [[ -z $part[2] ]] || compset -P 1 '*='
        if [[ $part[1] == dir ]]; then _files -/; else _files; fi && ret=0
        ;;
      (command)
        words=("${(@)words[CURRENT-part[2],-1]}")
        CURRENT=$(( part[2] + 1 ))
        _normal && ret=0
        ;;
    esac
  done
  if (( $#complete )); then _describe -V 'value' complete && ret=0; fi
  if (( $#begun )); then _describe -V 'more' begun -S '' && ret=0; fi
  return ret
}
