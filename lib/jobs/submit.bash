# shellcheck shell=bash
# Submission of a job, after checks of everything that it needs. `exec` in $( ) saves a process
# where bash would start another one for the command.

# IDs of the submitted jobs
declare -ga submitted_ids=()

# submission_begin MACHINE ROOT PYTHON: stop where no job can be submitted, work in the clone, and
# forget what the job was given in which this is typed. PYTHON has just run the scripts.
submission_begin() {
  slurm_check "$1"
  slurm_forget_job
  temporary_choose /tmp # which the job inherits
  # hash starts no process
  if ! hash python3 2>/dev/null || [[ ${BASH_CMDS[python3]-} != "$3" ]]; then check_python "$2"; fi
  cd -- "$2" || exit
  unset "${!LONGSHIP_JOB_@}"
}

# slurm_check MACHINE: stop if this machine has no Slurm.
slurm_check() {
  command -v sbatch >/dev/null ||
    fail 'Slurm not found on this machine: sbatch is missing' \
      "submit from a login node of $1; or run without Slurm: python3 container_run.py COMMAND"
}

# slurm_forget_job: if this is typed in a job, unset its variables, which sbatch and the steps of
# the new job would take for options.
slurm_forget_job() {
  local name
  if [[ -z ${SLURM_JOB_ID:-} ]]; then return; fi
  for name in "${!SLURM_@}"; do
    if [[ $name != SLURM_CONF && $name != SLURM_CLUSTERS ]]; then unset -v "$name"; fi
  done
}

# check_python ROOT: stop if python3, with which a job calls the scripts, cannot run them.
check_python() {
  local output
  output=$(exec python3 "$1/submit.py" --help 2>&1 >/dev/null) && return
  output=${output%%$'\n'*}
  fail "the python3 that jobs use cannot run the scripts: ${output#error: }" \
    'python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt'
}

# setting_check_path SETTING PATH [PATTERN...]: stop if the path does not exist, and nothing matches
# a pattern.
setting_check_path() {
  local pattern
  if [[ -e $2 ]]; then return; fi
  for pattern in "${@:3}"; do
    if compgen -G "$pattern" >/dev/null; then return; fi
  done
  fail "$1 points to a missing file or directory: $2" \
    "create or copy it, or change $1 in configuration.toml; if another job creates it, add --after JOB"
}

# setting_check_cache SETTING NAME DIR...: warn if the cache of a job, which is offline, does not
# contain what the hub has under that name.
setting_check_cache() {
  local directory
  for directory in "${@:3}"; do
    if [[ -e $directory ]]; then return; fi
  done
  warn_of "$1 is not in the Hugging Face cache, and jobs are offline: $2" \
    'add it to [[assets]] in configuration.toml, then run: python3 set_up.py install'
}

# submission_use_code ROOT: let jobs start with the code in ROOT. They get the functions themselves,
# as a file could be another one when they start.
submission_use_code() {
  export LONGSHIP_ROOT=$1
  export -f start_job job_show
}

# submission_keep VARIABLE FILE TEXT: write what jobs read at their start, and export where it is.
submission_keep() {
  directory_make "${2%/*}"
  file_write "$2.$$" "$3" 600 # also if it is there: it can be damaged, and sites delete what is old
  file_publish "$2.$$" "$2"
  export "$1=$2"
}

# directory_check_room DIR [BYTES [ELSEWHERE]]: warn if there is little room for files; ELSEWHERE
# ends the hint.
directory_check_room() {
  local free size files_free files room_elsewhere=${3-, or set paths.scratch_dir in configuration.toml}
  read -r free size files_free files < <(timeout 20 stat -f -c '%a %S %d %c' -- "$1") || return 0
  if ((free * size < ${2:-10737418240})); then
    bytes_format $((free * size))
    room_warn "$1 has only $REPLY left"
  fi
  # some file systems have no limit, and say 0
  if ((files > 0 && files_free < 20000)); then room_warn "$1 has room for only $files_free more files"; fi
  if command -v lfs >/dev/null; then room_check_quotas "$1"; fi
}

# room_check_quotas DIR: the same for Lustre's quotas: of the user, of the directory's group, and of
# its project, as on LUMI.
room_check_quotas() {
  local group project=''
  room_check_quota "$1" -u "$(id -un)"
  group=$(stat -c %G -- "$1") && room_check_quota "$1" -g "$group"
  read -r project _ < <(exec timeout 20 lfs project -d -- "$1" 2>/dev/null) || :
  if [[ $project =~ ^[1-9][0-9]*$ ]]; then room_check_quota "$1" -p "$project"; fi
}

# room_check_quota DIR OPTION NAME: lfs marks with an asterisk what is above its quota.
room_check_quota() {
  local output
  output=$(exec timeout 20 lfs quota -q "$2" "$3" -- "$1" 2>/dev/null) || return 0
  if [[ ${output##*"$1"} == *'*'* ]]; then room_warn "the quota of $3 on $1 is exhausted"; fi
}

# room_warn MESSAGE: of directory_check_room.
room_warn() {
  warn_of "$1" "free some space there$room_elsewhere"
}

# submission_check_after JOB RUNS: stop if the job, or a task of it, has ended without success:
# Slurm would take the new job, and cancel it. If Slurm does not know the job, stop unless a record
# in RUNS says that it has succeeded: Slurm assumes that of a job which it has forgotten.
submission_check_after() {
  local output record
  local -r failed='[[:space:]]JobState=(BOOT_FAIL|CANCELLED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT)[[:space:]]'
  if output=$(exec timeout 30 scontrol show job "$1" 2>&1); then
    [[ ! $output =~ $failed ]] ||
      fail "--after names a job that has not succeeded: $1" \
        "check its log, then run: python3 submit.py rerun $1"
    return
  fi
  if [[ $output != *'Invalid job id'* ]]; then return; fi
  # clusters that share a file system can have jobs of the same ID
  for record in "$2/$1"-*/record.json; do
    record_value "$record" exit_code
    if [[ $REPLY == 0 ]]; then return; fi
  done
  fail "--after names a job that Slurm does not know, and that no run records as successful: $1" \
    'list your jobs: python3 submit.py status; leave out --after if it has succeeded'
}

# submission_test LIMITS ARGUMENT...: let sbatch check options and job without submitting it. LIMITS
# are those that the site's file states; "" for none.
submission_test() {
  local output
  output=$(exec timeout 60 sbatch --test-only "${@:2}" 2>&1) && return
  case $output in
    *'slurm controller'* | *'configuration source'* | *'configuration file'* | *'imed out'*)
      fail "Slurm does not respond: $(slurm_last_error "$output")" \
        'try again later, on a login node; or run without Slurm: python3 container_run.py COMMAND'
      ;;
  esac
  fail "sbatch failed: $(slurm_last_error "$output")" "${1:+$1; }change the sbatch options after the job script, \
or its #SBATCH directives; your accounts: sacctmgr show associations user=${USER-}; partitions: sinfo"
}

# slurm_last_error TEXT: print the last error in it, or what getopt said, without the name of the
# program.
slurm_last_error() {
  local reason
  reason=$(sed -n -E 's/.*(error|failure|fatal): //p; s/^[a-z]+: ((unrecognized|invalid|ambiguous) )?option/\1option/p' <<<"$1" |
    tail -n 1)
  printf '%s' "${reason:-no reason given}"
}

# cost_check_memory MEGABYTES CORES THREADS PARTITION...: stop if Slurm gives a job more cores than
# the CORES that are priced, for its memory (MaxMemPerCPU). THREADS of a core are used; "": all.
cost_check_memory() {
  local partition output threads
  local -i limit cores
  for partition in "${@:4}"; do
    # the limit of the partition comes first
    output=$({ scontrol show partition "$partition"; scontrol show config; } 2>/dev/null) || :
    [[ $output =~ MaxMemPerCPU\ *=\ *([1-9][0-9]*) ]] || continue
    limit=${BASH_REMATCH[1]}
    threads=${3:-$(sinfo --noheader ${partition:+--partition="$partition"} --format=%Z | sort -n | tail -n 1)} || :
    [[ $threads =~ ^[1-9][0-9]*$ ]] || threads=1
    cores=$((($1 + limit * threads - 1) / (limit * threads)))
    ((cores <= $2)) || fail "for its memory, Slurm gives this job $cores cores, and its price counts $2" \
      "ask for these cores, such as with --cpus-per-task; or for less memory: MaxMemPerCPU is $limit MB"
  done
}

# cost_confirm REASON: ask whether a job is submitted whose cost is, or may be, above jobs.ask_above.
cost_confirm() {
  local answer
  [[ -t 0 ]] || fail "$1, and no terminal is attached to confirm it" 'confirm in advance with --yes'
  read -r -p "${1^}. Submit the job? [y/N] " answer || answer=
  [[ $answer == [yY]* ]] || fail 'not submitted' 'see the note above for the job and its cost'
}

# submission_send COUNT NUMBER ARGUMENT...: submit the job COUNT times, each to resume from the one
# before. The first NUMBER arguments are sbatch options; a later --dependency replaces one of these.
submission_send() {
  local -a after=()
  local -i number
  trap 'submission_tell_interrupted; exit 130' INT # also while further jobs are submitted
  for ((number = 0; number < $1; number++)); do
    submission_send_job "${@:3:$2}" "${after[@]}" "${@:3+$2}"
    after=("--dependency=afterany:${submitted_ids[-1]}")
    export LONGSHIP_JOB_RESUMES=${submitted_ids[-1]}
  done
}

# submission_tell_interrupted: name the submitted jobs; the last sbatch may have submitted one more.
submission_tell_interrupted() {
  warn_of "interrupted; submitted: ${submitted_ids[*]:-none}, and perhaps one more" \
    "list your jobs: squeue --me${submitted_ids[*]:+; to cancel these, run: scancel ${submitted_ids[*]}}"
}

# submission_tell_sent: name the jobs that were submitted before one that was not.
submission_tell_sent() {
  if ((${#submitted_ids[@]} == 0)); then return; fi
  warn_of "not all jobs were submitted, only ${submitted_ids[*]}" \
    "to cancel these jobs, run: scancel ${submitted_ids[*]}"
}

# submission_send_job ARGUMENT...: submit one job, and add it to submitted_ids.
submission_send_job() {
  local id output
  output=$(command_exec sbatch --parsable "$@" 2>&1) || {
    submission_tell_sent
    fail "sbatch failed: $(slurm_last_error "$output")" \
      'change the sbatch options, or the #SBATCH directives of the job script'
  }
  # among warnings, and lines of the site; ID;CLUSTER if there are several clusters
  [[ $'\n'$output$'\n' =~ $'\n'('Submitted batch job ')?([0-9]+)((;|' on cluster ')[^$'\n']*)?$'\n' ]] ||
    fail "sbatch submitted a job and printed no ID: $output" \
      'look for the job before you submit it again: squeue --me'
  id=${BASH_REMATCH[2]}
  submitted_ids+=("$id")
}

# log_resolve PATTERN ID: set REPLY to the path of a job's log; %a, the number of an array's task,
# remains.
log_resolve() {
  REPLY=${1//'%j'/"$2"}
  REPLY=${REPLY//'%A'/"$2"}
}

# jobs_print LOG: print the IDs, a line each, for a program; on a terminal the commands show them.
jobs_print() {
  [[ -t 1 ]] || printf '%s\n' "${submitted_ids[@]}"
  jobs_print_commands "$1"
}

# jobs_print_json OBJECT...: print an object for each job, in JSON; %j and %A are replaced by its
# ID. The first one is that of all jobs of a chain.
jobs_print_json() {
  local -i left=${#submitted_ids[@]}
  local id comma=''
  printf '['
  for id in "${submitted_ids[@]}"; do
    if (($# > left)); then shift; fi
    left=$((left - 1))
    log_resolve "$1" "$id"
    printf '%s\n  %s' "$comma" "$REPLY"
    comma=,
  done
  printf '\n]\n'
}

# jobs_print_commands LOG: print the commands to follow and cancel the jobs.
jobs_print_commands() {
  local quoted
  print_messages job "${submitted_ids[*]}"
  log_resolve "$1" "${submitted_ids[0]}"
  if [[ $REPLY == *%a* ]]; then
    print_messages log "${REPLY//'%a'/TASK}, one for each task"
  else
    printf -v quoted '%q' "$REPLY"
    print_messages log "$REPLY" follow "tail -F $quoted"
  fi
  print_messages cancel "scancel ${submitted_ids[*]}" status 'python3 submit.py status'
}
