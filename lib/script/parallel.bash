# shellcheck shell=bash
# The same work for several things at once, each in a process of its own.

declare -g MOST_AT_ONCE=8 # login nodes are shared

declare -ga parallel_jobs=()

# in_parallel FUNCTION WORD...: run FUNCTION WORD for each WORD, at once; what each prints is shown in
# one piece. Set `stopped` to the WORDs whose function failed; the others are finished all the same.
in_parallel() {
  local -r function=$1
  local -i number=0 status
  shift
  stopped=()
  parallel_jobs=()
  parallel_logs=$(mktemp -d)
  # a process that is killed right after its start would run it too
  trap 'if ((BASHPID == $$)); then stop_parallel; lock_release_all; fi' EXIT
  for _ in "$@"; do
    if ((number >= MOST_AT_ONCE)); then wait "${parallel_jobs[number - MOST_AT_ONCE]}" || :; fi
    number+=1
    set -m # in a process group of its own, to be ended as a whole
    (set +m && "$function" "${!number}") >"$parallel_logs/$number" 2>&1 </dev/null &
    set +m
    parallel_jobs+=($!)
  done
  if [[ -t 2 ]]; then show_parallel; fi
  number=0
  for _ in "$@"; do
    status=0
    wait "${parallel_jobs[number]}" || status=$?
    number+=1
    show_log "$parallel_logs/$number"
    if ((status)); then
      stopped+=("${!number}")
      report_job_failure "${!number}" "$parallel_logs/$number"
    fi
  done
  parallel_jobs=()
  trap lock_release_all EXIT
  rm -rf -- "$parallel_logs"
}

# show_parallel: how many are done, until all are.
show_parallel() {
  local -r start=$SECONDS
  local -i working=1
  local job
  while ((working)); do
    working=0
    for job in "${parallel_jobs[@]}"; do
      if kill -0 "$job" 2>/dev/null; then working+=1; fi
    done
    printf '\r\e[K      %d of %d done, %d s' $((${#parallel_jobs[@]} - working)) "${#parallel_jobs[@]}" \
      $((SECONDS - start)) >&2
    sleep 0.2
  done
  printf '\r\e[K' >&2
}

# show_log LOG: on standard error, where its messages may have a colour again.
show_log() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    case $line in
      'error: '* | 'warning: '* | 'hint: '* | 'note: '*) print_messages "${line%%: *}" "${line#*: }" ;;
      *) printf '%s\n' "$line" >&2 ;;
    esac
  done <"$1"
}

# report_job_failure WORD LOG: where a program failed that nobody had thought of, or was killed.
report_job_failure() {
  if [[ $(tail -n 1 -- "$2") != 'hint: '* ]]; then
    print_messages error "$1: stopped unexpectedly" hint 'read the output above, then run the command again'
  fi
}

# stop_parallel: what was started ends with this process, the programs that it runs too.
stop_parallel() {
  local job
  for job in ${parallel_jobs[@]+"${parallel_jobs[@]}"}; do
    kill -- "-$job" 2>/dev/null || :
    wait "$job" 2>/dev/null || :
  done
  rm -rf -- "$parallel_logs"
}
