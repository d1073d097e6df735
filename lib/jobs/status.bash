# shellcheck shell=bash
# Jobs that wait and run, and those that ended last.

# show_jobs RUNS: one's own jobs as Slurm knows them, with what the records below RUNS add.
show_jobs() {
  local -a current=()
  local listed failed_job='' form='%-12s %-16.16s %-11s %11s %11s %6s  %s\n'
  local -i columns
  terminal_columns
  columns=$REPLY
  if ((columns < 100)); then form='%-10s %-12.12s %-10s %10s %10s %5s  %s\n'; fi
  list_queue
  if [[ -z $listed ]]; then
    printf 'you have no pending or running jobs\n'
  else
    # shellcheck disable=SC2059  # one of the two above
    printf "$form" job name state elapsed limit nodes ''
    each_queued "$1" show_queued
  fi
  each_ended "$1" show_ended
  if [[ -n $failed_job ]]; then next_step "python3 doctor.py explain $failed_job"; fi
}

# jobs_as_json RUNS: the same for a program.
jobs_as_json() {
  local -a current=() jobs=()
  local listed
  list_queue
  each_queued "$1" add_queued
  each_ended "$1" add_ended
  json_list "id name= state nodes# elapsed_seconds# limit_seconds# reason cost# cost_unit= \
exit_code# ended= failed= log= last_line run" ${jobs[@]+"${jobs[@]}"}
  printf '\n'
}

# list_queue: set listed to what Slurm has of the user's jobs.
list_queue() {
  command -v squeue >/dev/null || fail 'Slurm not found on this machine: squeue is missing' 'run this command on a login node'
  listed=$(timeout 30 squeue --me --noheader --format='%i|%T|%M|%l|%D|%r|%j' 2>&1) || {
    check_cluster "$listed"
    fail "Slurm does not respond: $(slurm_reason "$listed")" 'try again later'
  }
}

# each_queued RUNS FUNCTION: call it for each job of listed: id, name, state, elapsed, limit, nodes,
# reason, run, record and seconds are set, and cost and cost_unit as far as they are known.
each_queued() {
  local id name state elapsed limit nodes reason run record seconds cost cost_unit
  while IFS='|' read -r id state elapsed limit nodes reason name; do
    if [[ -z $name ]]; then continue; fi # the rest of a name with a newline
    current+=("$id")
    run=
    for record in "$1/$id"-*/record.json; do # the folder's name is without odd characters
      if [[ -f $record ]] && is_own "${record%/*}"; then run=${record%/*}; fi
    done
    record=$run/record.json
    record_value "$record" cost_unit
    cost_unit=$REPLY
    slurm_seconds "$elapsed"
    seconds=$REPLY
    if [[ $state == PENDING ]]; then time_before "$record"; else recorded_seconds "$record" earlier_seconds; fi
    cost_of "$record" "$((seconds + REPLY))"
    cost=$REPLY
    "$2"
  done <<<"$listed"
}

# show_queued: two lines or three.
show_queued() {
  local line
  # shellcheck disable=SC2059  # of show_jobs
  printf -v line "$form" "$id" "$name" "$state" "$elapsed" "$limit" "$nodes" "${cost:+$cost $cost_unit so far}"
  printable "${line%$'\n'}"
  printf '%s\n' "$REPLY"
  if [[ $state == PENDING ]]; then
    printable "$reason"
    printf '    pending: %s\n' "$REPLY"
  fi
  if last_line "$record"; then
    printable "${REPLY:0:columns < 114 ? columns - 4 : 110}"
    printf '    %s\n' "$REPLY"
  fi
}

# add_queued: to jobs.
add_queued() {
  local limit_seconds log
  slurm_seconds "$limit"
  limit_seconds=$REPLY
  record_value "$record" log
  log=$REPLY
  json_text "$name"
  name=$REPLY # as a record has it
  last_line "$record" || REPLY=
  jobs+=("$id" "$name" "$state" "$nodes" "$seconds" "$limit_seconds" "$reason" "$cost" "$cost_unit"
    '' '' '' "$log" "$REPLY" "$run")
}

# slurm_seconds TIME: set REPLY to D-HH:MM:SS in seconds; empty for what is none, such as UNLIMITED.
slurm_seconds() {
  local -i days=0 seconds=0
  local part time=$1
  REPLY=
  if [[ ! $1 =~ ^([0-9]+-)?[0-9]+(:[0-9]+)*$ ]]; then return; fi
  if [[ $1 == *-* ]]; then days=10#${1%-*} time=${1#*-}; fi
  for part in ${time//:/ }; do seconds=$((seconds * 60 + 10#$part)); done
  REPLY=$((days * 86400 + seconds))
}

# cost_of RECORD SECONDS: set REPLY to it, in the site's unit; empty where no price is known.
cost_of() {
  record_value "$1" cost_per_hour
  if [[ ! $REPLY =~ ^[0-9.e+-]+$ || -z $2 ]]; then
    REPLY=
  else
    REPLY=$(awk -v per_hour="$REPLY" -v seconds="$2" 'BEGIN { printf "%.2f", per_hour * seconds / 3600 }')
  fi
}

# last_line RECORD: set REPLY to that of the job's log, without what would move the cursor or colour the
# rest; false where there is no log.
last_line() {
  local -r sequence=$'\033\\[[0-9;?]*[A-Za-z]'
  record_value "$1" log
  [[ -f $REPLY && -r $REPLY ]] || return 1
  REPLY=$(tail -c 2000 -- "$REPLY" | tr '\r' '\n' | sed "s/$sequence//g" |
    tr -d '\000-\010\013-\037' | grep -a -v '^ *$' | tail -n 1) || :
}

# each_ended RUNS FUNCTION: call it for the user's own five that ended last, with record, id, code and
# number set; not for the jobs that wait and run. One whose node was lost has no end in its record.
each_ended() {
  local record id code
  local -i number=0
  while IFS= read -r record; do
    record_value "$record" job
    id=$REPLY
    if [[ " ${current[*]-} " == *" $id "* ]]; then continue; fi
    record_value "$record" exit_code
    code=$REPLY
    number+=1
    "$2"
    ((number < 5)) || break
  done < <(find "$1" -mindepth 2 -maxdepth 2 -name record.json -user "$UID" -printf '%T@ %p\n' 2>/dev/null |
    sort -rn | head -n 50 | cut -d ' ' -f 2-)
}

# show_ended: in one line.
show_ended() {
  local name ended line
  if ((number == 1)); then
    printf '\nrecently finished:\n'
    if [[ $code != 0 ]]; then failed_job=$id; fi
  fi
  record_value "$record" name
  name=$REPLY
  record_value "$record" ended
  ended=${REPLY:-end time unknown}
  record_value "$record" failed
  printf -v line '%-12s %-16.16s %s  exit code %s  %s' "$id" "$name" "$ended" "${code:-unknown}" "$REPLY"
  printable "${line:0:columns}"
  printf '%s\n' "$REPLY"
}

# add_ended: to jobs.
add_ended() {
  local value seconds cost
  local -A recorded=()
  for value in name nodes started ended cost_unit failed log; do
    record_value "$record" "$value"
    recorded[$value]=$REPLY
  done
  seconds=
  if [[ -n ${recorded[ended]} ]]; then
    seconds_between "${recorded[started]}" "${recorded[ended]}"
    seconds=$REPLY
  fi
  recorded_seconds "$record" earlier_seconds
  cost_of "$record" "${seconds:+$((seconds + REPLY))}"
  cost=$REPLY
  last_line "$record" || REPLY=
  jobs+=("$id" "${recorded[name]}" ENDED "${recorded[nodes]}" "$seconds" '' '' "$cost"
    "${recorded[cost_unit]}" "$code" "${recorded[ended]}" "${recorded[failed]}" "${recorded[log]}"
    "$REPLY" "${record%/*}")
}
