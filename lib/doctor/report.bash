# shellcheck shell=bash
# The report of doctor.py: a line per finding, with its fix on the next line; or everything as JSON.

# report_begin text|json
report_begin() {
  report_form=$1
  findings=()                 # state, topic, text and fix of each
  values=()                   # key, value and source of each
  declare -gA check_states=() # ok, warning or problem: by topic, what report_check has found last
}

# report STATE TOPIC TEXT [FIX]: report a finding: ok, warning or problem; every warning and problem has a fix.
report() {
  local REPLY
  offline_modes "${4:-}"
  local -r text=${3//[[:cntrl:]]/?} fix=$REPLY
  findings+=("$1" "$2" "$text" "$fix")
  if [[ $report_form == json ]]; then return; fi
  paint 1 "$1"
  printf '%s%*s  %-13s  ' "$REPLY" $((7 - ${#1})) '' "$2"
  report_wrapped "$text"
  if [[ -n $fix ]]; then printf '%9sfix: %s\n' '' "$fix"; fi # whole, to be copied
}

# report_wrapped TEXT: print a text from the 24th to the 80th column.
report_wrapped() {
  local -a words
  local word line=''
  read -r -d '' -a words <<<"$1" || :
  for word in ${words[@]+"${words[@]}"}; do
    if [[ -n $line ]] && ((25 + ${#line} + ${#word} > 80)); then
      printf '%s\n%24s' "$line" ''
      line=$word
    else
      line+=${line:+ }$word
    fi
  done
  printf '%s\n' "$line"
}

# report_value KEY VALUE SOURCE: report how one key is configured.
report_value() {
  if [[ $report_form == text ]]; then
    if ((${#values[@]} == 0)); then printf '\n%-25s %-22s %s\n' key source value; fi
    printf '%-25s %-22s %s\n' "$1" "$3" "${2//[[:cntrl:]]/?}"
  fi
  values+=("$@")
}

# report_end: print the number of problems and the next step; exit with code 1 if there is a problem.
report_end() {
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

# report_check TOPIC TEXT COMMAND...: run a check of another command. Its errors are problems, its warnings are
# warnings, each with its hint; if there are none, TEXT is ok: `-` is the last line that the command printed.
report_check() {
  local output line state='' text='' printed=/dev/null
  local -i code=0
  if [[ $2 == - ]]; then printed=/dev/stdout; fi
  output=$(run_with_timeout 60 "${@:3}" 2>&1 >"$printed" </dev/null) || code=$?
  check_states[$1]=ok
  while IFS= read -r line; do
    case $line in
      'error: '*) state=problem text=${line#*: } ;;
      'warning: '*) state=warning text=${line#*: } ;;
      'hint: '*)
        if [[ -n $state ]]; then
          report "$state" "$1" "$text" "${line#*: }"
          check_states[$1]=$state state=''
        fi
        ;;
    esac
  done <<<"$output"
  if ! report_passed "$1"; then return 0; fi
  if ((code)); then
    check_states[$1]=problem
    if ((code == 124)); then
      report problem "$1" 'no response within a minute' 'check the status page of your site: a file system may hang'
    else
      report problem "$1" "${output##*$'\n'}" 'share the output of: python3 doctor.py --json'
    fi
  elif [[ $2 == - ]]; then
    report ok "$1" "${output##*$'\n'}"
  elif [[ -n $2 ]]; then
    report ok "$1" "$2"
  fi
}

# report_passed TOPIC: whether report_check has run for this topic and has found it ok.
report_passed() {
  [[ ${check_states[$1]:-} == ok ]]
}

# report_failed TOPIC: whether report_check has found a warning or a problem.
report_failed() {
  [[ ${check_states[$1]:-ok} != ok ]]
}

# run_with_timeout SECONDS FUNCTION...: return 124 if the function took longer, and end everything that it started.
run_with_timeout() {
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
