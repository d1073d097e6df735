# shellcheck shell=bash
# What doctor.py finds: a line each, with the fix in the next; or all of it as JSON.

# start_report text|json
start_report() {
  report_form=$1
  findings=() # state, topic, text and fix of each
}

# report STATE TOPIC TEXT [FIX]: ok, warning or problem; what is not ok has a fix.
report() {
  local color='' plain=''
  findings+=("$1" "$2" "$3" "${4:-}")
  if [[ $report_form == json ]]; then return; fi
  if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    plain=$'\e[0m'
    case $1 in ok) color=$'\e[32m' ;; warning) color=$'\e[33m' ;; problem) color=$'\e[31m' ;; esac
  fi
  printf '%s%-7s%s  %-12s  %s\n' "$color" "$1" "$plain" "$2" "$3"
  if [[ -n ${4:-} ]]; then printf '%24s%s\n' 'fix: ' "$4"; fi
}

# end_report: say how much is wrong; the exit code is 1 where there is a problem.
end_report() {
  local -i index problems=0 warnings=0
  local comma=''
  for ((index = 0; index < ${#findings[@]}; index += 4)); do
    case ${findings[index]} in problem) problems+=1 ;; warning) warnings+=1 ;; esac
  done
  if [[ $report_form == json ]]; then
    printf '{"problems": %d, "warnings": %d, "findings": [' "$problems" "$warnings"
    for ((index = 0; index < ${#findings[@]}; index += 4)); do
      printf '%s\n  ' "$comma"
      report_finding "${findings[@]:index:4}"
      comma=,
    done
    printf '\n]}\n'
  elif ((problems + warnings)); then
    printf '%d problems, %d warnings\n' "$problems" "$warnings"
  else
    printf 'all is well\n'
  fi
  ((problems == 0)) || exit 1
}

# report_finding STATE TOPIC TEXT FIX: one of them, as JSON.
report_finding() {
  local name comma='{'
  for name in state topic text fix; do
    json_text "$1"
    printf '%s"%s": "%s"' "$comma" "$name" "$REPLY"
    comma=', '
    shift
  done
  printf '}'
}
