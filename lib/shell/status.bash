# shellcheck shell=bash
# Jobs that wait and run, and those that ended last.

# show_jobs RUNS: one's own jobs as Slurm knows them, with what the records below RUNS add.
show_jobs() {
  local listed id name state elapsed limit nodes reason run
  local -a current=()
  command -v squeue >/dev/null || fail 'there is no Slurm on this machine: no squeue' 'ask on a login node'
  listed=$(timeout 30 squeue --me --noheader --format='%i|%T|%M|%l|%D|%r|%j' 2>&1) ||
    fail "Slurm does not answer: $(slurm_reason "$listed")" 'try again later'
  if [[ -z $listed ]]; then
    printf 'no job of yours waits or runs\n'
    show_ended "$1"
    return
  fi
  printf '%-12s %-16s %-11s %11s %11s %6s  %s\n' job name state elapsed limit nodes 'cost so far'
  while IFS='|' read -r id state elapsed limit nodes reason name; do
    [[ -n $id ]] || continue
    current+=("$id")
    for run in "$1/$id"-*/; do run=${run%/}; done # the folder's name is without odd characters
    cost_so_far "$run/record.json" "$elapsed"
    printf '%-12s %-16.16s %-11s %11s %11s %6s  %s\n' "$id" "$name" "$state" "$elapsed" "$limit" "$nodes" "$REPLY"
    if [[ $state == PENDING ]]; then printf '    waits: %s\n' "$reason"; fi
    show_last_line "$run/record.json"
  done <<<"$listed"
  show_ended "$1" "${current[@]}"
}

# cost_so_far RECORD ELAPSED: set REPLY to it, in the site's unit; empty where no price is known.
cost_so_far() {
  local per_hour
  record_value "$1" cost_per_hour
  per_hour=$REPLY
  record_value "$1" cost_unit
  if [[ -z $per_hour ]]; then
    REPLY=
    return
  fi
  REPLY=$(awk -v elapsed="$2" -v per_hour="$per_hour" -v unit="$REPLY" 'BEGIN {
    days = 0
    if (split(elapsed, halves, "-") == 2) { days = halves[1]; elapsed = halves[2] }
    count = split(elapsed, parts, ":")
    seconds = 0
    for (i = 1; i <= count; i++) seconds = seconds * 60 + parts[i]
    printf "%.2f %s", per_hour * (days * 24 + seconds / 3600), unit
  }')
}

# show_last_line RECORD: of the job's log, without what would move the cursor or colour the rest.
show_last_line() {
  local -r sequence=$'\033\\[[0-9;?]*[A-Za-z]'
  local line
  record_value "$1" log
  if [[ -r $REPLY ]]; then
    line=$(tail -c 2000 -- "$REPLY" | tr '\r' '\n' | sed "s/$sequence//g" |
      tr -d '\000-\010\013-\037' | grep -v '^ *$' | tail -n 1) || :
    printf '    %.110s\n' "$line"
  fi
}

# show_ended RUNS JOB...: the five that ended last; not the jobs that wait and run. One whose node was
# lost has no end in its record.
show_ended() {
  local record id name ended code
  local -i count=0
  while IFS= read -r record; do
    record_value "$record" job
    id=$REPLY
    if [[ " ${*:2} " == *" $id "* ]]; then continue; fi
    record_value "$record" exit_code
    code=${REPLY:-unknown}
    if ((count++ == 0)); then printf '\nended last:\n'; fi
    record_value "$record" name
    name=$REPLY
    record_value "$record" ended
    ended=${REPLY:-nobody knows when}
    record_value "$record" failed
    printf '%-12s %-16.16s %s  exit code %s  %s\n' "$id" "$name" "$ended" "$code" "$REPLY"
    ((count < 5)) || break
  done < <(find "$1" -mindepth 2 -maxdepth 2 -name record.json -printf '%T@ %p\n' 2>/dev/null |
    sort -rn | head -n 50 | cut -d ' ' -f 2-)
}
