# shellcheck shell=bash disable=SC2154  # the emitted script sets options (of sbatch), job (file, arguments)
# Submitting a job: what Slurm would refuse is told before, and what it will cost. `exec` in $( ) spares a process
# where bash would start another one for the command.

# check_slurm MACHINE: stop where there is none.
check_slurm() {
  command -v sbatch >/dev/null ||
    fail 'Slurm not found on this machine: sbatch is missing' \
      "submit from a login node of $1; or run without Slurm: python3 container_run.py COMMAND"
}

# check_python ROOT: stop where the job would not find a Python for the scripts: it calls python3, as
# PATH has it here.
check_python() {
  local said
  said=$(exec python3 "$1/submit.py" --help 2>&1 >/dev/null) && return
  said=${said%%$'\n'*}
  fail "the python3 that jobs use cannot run the scripts: ${said#error: }" \
    'python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt'
}

# check_given SETTING PATH [PATTERN...]: stop where nothing is there.
check_given() {
  local pattern
  if [[ -e $2 ]]; then return; fi
  for pattern in "${@:3}"; do
    if compgen -G "$pattern" >/dev/null; then return; fi
  done
  fail "$1 points to a missing file or directory: $2" \
    "create or copy it, or change $1 in configuration.toml; if another job creates it, add --after JOB"
}

# check_cached SETTING NAME FOLDER...: warn where a job, which is offline, would not find what the hub
# has under that name.
check_cached() {
  local folder
  for folder in "${@:3}"; do
    if [[ -e $folder ]]; then return; fi
  done
  warn_of "$1 is not in the Hugging Face cache, and jobs are offline: $2" \
    'add it to [[assets]] in configuration.toml, then run: python3 set_up.py install'
}

# make_runs FOLDER: make it, so that nobody who may write there can put something in the place of what
# is another's: the sticky bit.
make_runs() {
  make_folders "$1"
  [[ -w $1 ]] || fail "cannot write to $1, where each job records its run" \
    'make it writable, or set paths.scratch_dir in configuration.toml'
  if [[ -k $1 ]]; then return; fi
  if [[ -O $1 ]]; then
    chmod +t -- "$1" 2>/dev/null || : # a file system without it
  elif [[ -n $(find "$1/" -maxdepth 0 -perm /022) ]]; then
    warn_of "other users can replace your runs in $1" \
      "ask its owner, $(stat -c %U -- "$1"), to run: chmod +t $(printf %q "$1")"
  fi
}

# keep_configuration FOLDER NAME TEXT: for the jobs; nobody else may write to it, in the user's own
# FOLDER-UID.
keep_configuration() {
  local -r folder=$1-$UID
  if [[ ! -d $folder ]]; then (umask go-w && make_folders "$folder") || exit; fi
  is_own "$folder" ||
    fail "other users can write to $folder, which will contain what your jobs run" \
      "run: mv $(printf '%q %q' "$folder" "$folder.old")"
  keep_text "$folder/$2" "$3"
  export LONGSHIP_CONFIGURATION=$folder/$2
}

# keep_text FILE TEXT: write a file, complete or not at all, that nobody else can change.
keep_text() {
  make_folders "${1%/*}"
  (umask go-w && printf '%s' "$2" >"$1.partial.$$" && mv -- "$1.partial.$$" "$1") ||
    fail_writing "${1%/*}" "cannot write $1" 'check the reason in the line above'
}

# check_room DIR [BYTES [ELSEWHERE]]: warn if there is little room for files; ELSEWHERE ends the hint.
check_room() {
  local free size files_free files room_elsewhere=${3-, or set paths.scratch_dir in configuration.toml}
  read -r free size files_free files < <(timeout 20 stat -f -c '%a %S %d %c' -- "$1") || return 0
  if ((free * size < ${2:-10737418240})); then
    human $((free * size))
    warn_of_room "$1 has only $REPLY left"
  fi
  # some file systems have no limit, and say 0
  if ((files > 0 && files_free < 20000)); then warn_of_room "$1 has room for only $files_free more files"; fi
  if command -v lfs >/dev/null; then check_quotas "$1"; fi
}

# check_quotas FOLDER: the same of Lustre's: of the user, of the folder's group, and of its project, as
# LUMI has them.
check_quotas() {
  local group project=''
  check_quota "$1" -u "$(id -un)"
  group=$(stat -c %G -- "$1") && check_quota "$1" -g "$group"
  read -r project _ < <(exec timeout 20 lfs project -d -- "$1" 2>/dev/null) || :
  if [[ $project =~ ^[1-9][0-9]*$ ]]; then check_quota "$1" -p "$project"; fi
}

# check_quota FOLDER OF WHOM: kilobytes used, quota, limit, and grace; then files in the same way; 0 for
# none. They follow the folder, on the next line where its name is long. An asterisk marks what is over
# the quota, brackets what is not known exactly.
check_quota() {
  local -r used='[[:space:]]\[?([0-9]+)]?\*?' number='[[:space:]]+([0-9]+)'
  local said
  said=$(exec timeout 20 lfs quota -q "$2" "$3" -- "$1" 2>/dev/null) || return 0
  [[ ${said##*"$1"} =~ $used$number$number([[:space:]]+[^[:space:]]+[[:space:]]*$used$number$number)? ]] ||
    return 0
  set -- "$1" "$3" "${BASH_REMATCH[@]}"
  warn_of_quota "$1" "the quota of $2" "${@:4:3}"
  if [[ -n $8 ]]; then warn_of_quota "$1" "the quota of $2 for files" "${@:8:3}" files; fi
}

# warn_of_quota FOLDER WHAT USED QUOTA LIMIT [files]
warn_of_quota() {
  local -i quota=$4
  if ((quota == 0)); then quota=$5; fi
  ((quota > 0 && $3 * 100 > quota * 95)) || return 0
  if (($3 >= quota)); then
    warn_of_room "$2 on $1 is exhausted"
  elif [[ -n ${6:-} ]]; then
    warn_of_room "$2 on $1 has only $((quota - $3)) left"
  else
    human $(((quota - $3) * 1024))
    warn_of_room "$2 on $1 has only $REPLY left"
  fi
}

# warn_of_room MESSAGE: of check_room.
warn_of_room() {
  warn_of "$1" "free some space there$room_elsewhere"
}

# check_after JOB RUNS: stop where neither Slurm nor the records below RUNS know the job: Slurm itself takes
# one that it does not know for one that has ended.
check_after() {
  local said
  said=$(exec timeout 30 scontrol show job "$1" 2>&1) && return
  if [[ $said == *'Invalid job id'* ]] && ! compgen -G "$2/$1-*/record.json" >/dev/null; then
    fail "--after names an unknown job: $1" 'list your jobs: python3 submit.py status'
  fi
}

# try_job: let Slurm look at the job as if it were submitted.
try_job() {
  local said code=0
  said=$(exec timeout 60 sbatch --test-only "${options[@]}" "${job[@]}" 2>&1) || code=$?
  ((code)) || return 0
  check_cluster "$said"
  if ((code == 124)) || [[ $said == *'ontact slurm controller'* || $said == *'imed out'* ]]; then
    fail "Slurm does not respond${said:+: $(slurm_reason "$said")}" 'try again later'
  fi
  if [[ $said == *artition* ]]; then
    fail "Slurm rejected the job: $(slurm_reason "$said")" \
      "use one of the partitions: $(timeout 20 sinfo --noheader --format=%R | paste -sd ' ' | sed 's/ /, /g')"
  fi
  fail "Slurm rejected the job: $(slurm_reason "$said")" \
    'change the sbatch options after the job script, or its #SBATCH directives'
}

# check_cluster TEXT: stop where Slurm's commands, which distributions package, belong to no cluster.
check_cluster() {
  [[ $1 != *'configuration source'* ]] ||
    fail 'Slurm is installed on this machine, but no cluster is configured' \
      'run this on a login node of a cluster; or run without Slurm: python3 container_run.py COMMAND'
}

# slurm_reason TEXT: what sbatch says last, without its own name.
slurm_reason() {
  local line reason='no reason given'
  while IFS= read -r line; do
    if [[ $line == *error:* ]]; then reason=${line##*error: }; fi
    if [[ $line == *failure:* ]]; then reason=${line##*failure: }; fi
    if [[ $line == *fatal:* ]]; then reason=${line##*fatal: }; fi
  done <<<"$1"
  printf '%s' "$reason"
}

# ask_about_cost TEXT: a job that costs more than jobs.ask_above is submitted when somebody says yes.
ask_about_cost() {
  local answer
  [[ -t 0 ]] || fail "the job may cost $1, above jobs.ask_above, and no terminal is attached to confirm it" \
    'confirm in advance with --yes'
  read -r -p 'The estimated cost is above jobs.ask_above. Submit the job? [y/N] ' answer || answer=
  [[ $answer == [yY]* ]] || fail 'not submitted' 'request fewer nodes or less time'
}

# submit_jobs COUNT: submit it, and COUNT - 1 more that go on from each other; set `ids`.
submit_jobs() {
  local -a after=()
  ids=()
  local id said
  local -i number
  for ((number = 0; number < $1; number++)); do
    said=$(hand_over sbatch --parsable "${options[@]}" "${after[@]}" "${job[@]}" 2>&1) || {
      if ((number)); then warn_of "only ${#ids[@]} of $1 jobs were submitted" "to cancel these jobs, run: scancel ${ids[*]}"; fi
      fail "Slurm rejected the job: $(slurm_reason "$said")" 'change the sbatch options, or the #SBATCH directives of the job script'
    }
    id=${said##*$'\n'} # warnings stand before it
    id=${id%%;*}       # what follows is the cluster's name
    [[ $id =~ ^[0-9]+$ ]] || fail "sbatch printed no job ID: $said" 'check with squeue --me, then try again'
    ids+=("$id")
    after=("--dependency=afterany:$id")
    export LONGSHIP_CHAINED_AFTER=$id
  done
}

# pin_again RUN: what a job that waits to be started again needs is not pruned meanwhile.
pin_again() {
  local needed id
  for needed in image overlay; do
    record_value "$1/record.json" "$needed"
    if [[ $REPLY != */versions/* ]]; then continue; fi # none, or the site's
    needed=$REPLY
    for id in "${ids[@]}"; do
      keep_text "$(pins_of "$needed")/$id-again" "$needed"$'\n'"$id"$'\n'"$1/launcher"$'\n'
    done
  done
}

# pins_of FILE: print the folder of the pins for a version: beside `versions`.
pins_of() {
  local -r versions=${1%/*}
  printf '%s/pins' "${versions%/versions}"
}

# log_of LOG ID: set REPLY to the path by its pattern; the number of an array's task stays %a.
log_of() {
  REPLY=${1//'%j'/"$2"}
  REPLY=${REPLY//'%A'/"$2"}
}

# print_ids: a line each, for a program; on a terminal tell_job says what they are.
print_ids() {
  [[ -t 1 ]] || printf '%s\n' "${ids[@]}"
}

# ids_as_json OBJECT: print an object for each job, in JSON; %j and %A are replaced by its ID.
ids_as_json() {
  local id comma=''
  printf '['
  for id in "${ids[@]}"; do
    log_of "$1" "$id"
    printf '%s\n  %s' "$comma" "$REPLY"
    comma=,
  done
  printf '\n]\n'
}

# tell_job LOG: how to look after it.
tell_job() {
  local quoted
  print_messages job "${ids[*]}"
  log_of "$1" "${ids[0]}"
  if [[ $REPLY == *%a* ]]; then
    print_messages log "${REPLY//'%a'/TASK}, one for each task"
  else
    printf -v quoted '%q' "$REPLY"
    print_messages log "$REPLY" follow "tail -F $quoted"
  fi
  print_messages cancel "scancel ${ids[*]}" status 'python3 submit.py status'
}
