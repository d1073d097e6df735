# shellcheck shell=bash
# What doctor.py finds: a line each, with the fix in the next; or all of it as JSON.

# start_report text|json
start_report() {
  report_form=$1
  findings=() # state, topic, text and fix of each
  values=()   # key, value and origin of each
}

# report STATE TOPIC TEXT [FIX]: ok, warning or problem; what is not ok has a fix.
report() {
  local REPLY
  REPLY=${4:-}
  if [[ -n ${longship_unpacked:-} ]]; then offline_modes "$REPLY"; fi
  set -- "$1" "$2" "${3//[[:cntrl:]]/?}" "$REPLY"
  findings+=("$1" "$2" "$3" "$4")
  if [[ $report_form == json ]]; then return; fi
  paint 1 "$1"
  printf '%s%*s  %-13s  ' "$REPLY" $((7 - ${#1})) '' "$2"
  report_words "$3"
  if [[ -n $4 ]]; then printf '%9sfix: %s\n' '' "$4"; fi # whole, to be copied
}

# report_words TEXT: wrapped at the 80th column, behind state and topic.
report_words() {
  local -a words
  local word
  local -i column=24
  read -r -d '' -a words <<<"$1" || :
  for word in ${words[@]+"${words[@]}"}; do
    if ((column > 24 && column + 1 + ${#word} > 80)); then
      printf '\n%24s%s' '' "$word"
      column=24+${#word}
    elif ((column > 24)); then
      printf ' %s' "$word"
      column+=1+${#word}
    else
      printf '%s' "$word"
      column+=${#word}
    fi
  done
  printf '\n'
}

# report_value KEY VALUE ORIGIN: how one key is configured, and where.
report_value() {
  if [[ $report_form == text ]]; then
    if ((${#values[@]} == 0)); then printf '\n%-25s %-22s %s\n' key source value; fi
    printf '%-25s %-22s %s\n' "$1" "$3" "${2//[[:cntrl:]]/?}"
  fi
  values+=("$@")
}

# end_report: say how much is wrong, and what comes next; the exit code is 1 where there is a problem.
end_report() {
  local -i index problems=0 warnings=0
  local problem='' warning=''
  for ((index = 0; index < ${#findings[@]}; index += 4)); do
    case ${findings[index]} in
      problem) problems+=1 problem=${problem:-${findings[index + 3]}} ;;
      warning) warnings+=1 warning=${warning:-${findings[index + 3]}} ;;
    esac
  done
  if [[ $report_form == json ]]; then
    printf '{"problems": %d, "warnings": %d, "findings": ' "$problems" "$warnings"
    json_list 'state topic text fix' ${findings[@]+"${findings[@]}"}
    printf ', "values": '
    json_list 'key value origin' ${values[@]+"${values[@]}"}
    printf '}\n'
  else
    if ((${#values[@]})); then printf '\n'; fi
    if ((problems + warnings)); then
      paint 1 next:
      printf 'problems: %d, warnings: %d\n%s %s\n' "$problems" "$warnings" "$REPLY" "${problem:-$warning}"
      printf 'to share this report: python3 doctor.py --json\n'
    else
      printf 'no problems found\n'
    fi
  fi
  ((problems == 0)) || exit 1
}

# what `heed` has found last, by topic: ok, warning or problem
declare -gA heeded=()

# heed TOPIC TEXT COMMAND...: run a check of other scripts. What it stops with is a problem, what it
# warns of a warning, each with its hint; if it has nothing to say, TEXT is ok.
heed() {
  local said line state='' text=''
  local -i code=0 found=0
  said=$(in_time 60 "${@:3}" 2>&1 >/dev/null </dev/null) || code=$?
  heeded[$1]=ok
  while IFS= read -r line; do
    case $line in
      'error: '*) state=problem text=${line#*: } ;;
      'warning: '*) state=warning text=${line#*: } ;;
      'hint: '*)
        if [[ -n $state ]]; then
          report "$state" "$1" "$text" "${line#*: }"
          heeded[$1]=$state
          found+=1 state=
        fi
        ;;
    esac
  done <<<"$said"
  if ((code == 124 && found == 0)); then
    report problem "$1" 'no response within a minute' 'check the status page of your site: a file system may hang'
    heeded[$1]=problem
  elif ((code != 0 && found == 0)); then
    report problem "$1" "${said##*$'\n'}" 'share the output of: python3 doctor.py --json'
    heeded[$1]=problem
  elif [[ -n $2 && ${heeded[$1]} == ok ]]; then
    report ok "$1" "$2"
  fi
}

# in_time SECONDS COMMAND...: run a function for at most so long; 124 if it took longer.
in_time() {
  (
    code=0
    set -m # each of the two has a process group, so that nothing that it has started is left
    ("${@:2}") &
    job=$!
    (sleep "$1" && kill -KILL -- "-$job") >/dev/null 2>&1 &
    watch=$!
    wait "$job" 2>/dev/null || code=$?
    kill -KILL -- "-$watch" 2>/dev/null || :
    wait "$watch" 2>/dev/null || :
    if ((code == 137)); then code=124; fi
    exit "$code"
  )
}
