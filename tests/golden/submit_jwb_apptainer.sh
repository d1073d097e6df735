#!/usr/bin/env bash
# Longship: submit.py, machine jwb (jsc/site.toml)
set -euo pipefail

# check_sif FILE ARCH HINT: stop where the image is missing, is none, or is for another
# architecture. A SIF file tells it behind its first line: magic, version, architecture.
check_sif() {
  local -r file=$1 arch=$2 hint=$3
  [[ -e $file ]] || fail "the image $file is missing" "$hint"
  [[ -r $file ]] || fail "the image $file cannot be read" \
    "ask its owner for: chmod a+r $(printf %q "$file")"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "$file is no SIF image" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] || fail "the image $file is for $found, and $arch is needed" "$hint"
}

# check_venv FOLDER BASE: stop where the venv is missing or was made on top of something else.
check_venv() {
  local base=
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg ]]; then return 0; fi # the user's own, used as it is
  [[ -e $1/longship-base ]] ||
    fail "the Python packages are not installed: no $1" 'python3 set_up.py install'
  IFS= read -r base <"$1/longship-base" || :
  [[ $base == "$2" ]] ||
    fail "the Python packages in $1 belong to $base, not to $2" 'python3 set_up.py install'
}

# make_folders FOLDER...: make the configured folders, or say which one cannot be made.
make_folders() {
  local folder reason
  for folder in "$@"; do
    [[ -d $folder ]] && continue
    reason=$(mkdir -p -- "$folder" 2>&1) ||
      fail_writing "$folder" "cannot make the folder $folder: ${reason##*: }" \
        'set [paths] in configuration.toml to a place that you can write to'
  done
}

# print_messages [KIND TEXT]...: a line each, on standard error, at once: jobs share a log.
print_messages() {
  local REPLY told=''
  while (($#)); do
    paint 2 "$1:"
    told+="$REPLY $2"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# paint FILE WORD: set REPLY to the word, in its colour where that file (1 or 2) is a terminal which
# shows colours, unless NO_COLOR says that the user wants none: https://no-color.org. Without `return`: in
# a trap that would have the status of what was interrupted.
paint() {
  local colour
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    case $2 in
      error: | problem) colour=31 ;;                            # red
      warning: | warning) colour=33 ;;                          # yellow
      ok) colour=32 ;;                                          # green
      hint: | next: | follow: | cancel: | status:) colour=36 ;; # cyan
      *) colour=1 ;;                                            # bold
    esac
    REPLY=$'\e['${colour}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing FOLDER MESSAGE HINT: the same after something could not be written; a full disk is
# the reason that programs tell least clearly. Some take back what they were writing (uv, a package
# a core), so a disk counts as full before the last byte.
fail_writing() {
  local free=16777216 size=1 files_free=1 files=0
  read -r free size files_free files < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${files:-0} > 0 && ${files_free:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'make room there, or set [paths] in configuration.toml; then run the same command again'
  fi
  fail "$2" "$3"
}

# note TEXT: tell something that is no error.
note() {
  print_messages note "$1"
}

# warn_of MESSAGE HINT: tell what will go wrong sooner or later, and what to type.
warn_of() {
  print_messages warning "$1" hint "$2"
}

# check_slurm MACHINE: stop where there is none.
check_slurm() {
  command -v sbatch >/dev/null ||
    fail 'there is no Slurm on this machine: no sbatch' \
      "submit on a login node of $1; without Slurm: python3 container_run.py COMMAND"
}

# check_python ROOT: stop where the job would not find a Python for the scripts: it calls python3, as
# PATH has it here.
check_python() {
  local said
  said=$(python3 "$1/submit.py" --help 2>&1 >/dev/null) && return
  said=${said%%$'\n'*}
  fail "the python3 that jobs call cannot run the scripts: ${said#error: }" \
    'python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt'
}

# keep_text FILE TEXT: write a file, complete or not at all.
keep_text() {
  make_folders "${1%/*}"
  { printf '%s' "$2" >"$1.partial.$$" && mv -- "$1.partial.$$" "$1"; } ||
    fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# check_room FOLDER [BYTES]: warn where there would soon be no room for files.
check_room() {
  local free size files_free files
  read -r free size files_free files < <(timeout 20 stat -f -c '%a %S %d %c' -- "$1") || return 0
  if ((free * size < ${2:-10737418240})); then
    human $((free * size))
    warn_of_room "$1 has only $REPLY left"
  fi
  # some file systems have no limit, and say 0
  if ((files > 0 && files_free < 20000)); then warn_of_room "$1 takes only $files_free more files"; fi
  if command -v lfs >/dev/null; then check_quotas "$1"; fi
}

# check_quotas FOLDER: the same of Lustre's: of the user, of the folder's group, and of its project, as
# LUMI has them.
check_quotas() {
  local group project=''
  check_quota "$1" -u "$(id -un)"
  group=$(stat -c %G -- "$1") && check_quota "$1" -g "$group"
  read -r project _ < <(timeout 20 lfs project -d -- "$1" 2>/dev/null) || :
  if [[ $project =~ ^[1-9][0-9]*$ ]]; then check_quota "$1" -p "$project"; fi
}

# check_quota FOLDER OF WHOM: kilobytes used, quota, limit, and grace; then files in the same way; 0 for
# none. They follow the folder, on the next line where its name is long. An asterisk marks what is over
# the quota, brackets what is not known exactly.
check_quota() {
  local -r used='[[:space:]]\[?([0-9]+)]?\*?' number='[[:space:]]+([0-9]+)'
  local said
  said=$(timeout 20 lfs quota -q "$2" "$3" -- "$1" 2>/dev/null) || return 0
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
    warn_of_room "$2 on $1 is used up"
  elif [[ -n ${6:-} ]]; then
    warn_of_room "of $2 on $1 only $((quota - $3)) are left"
  else
    human $(((quota - $3) * 1024))
    warn_of_room "of $2 on $1 only $REPLY are left"
  fi
}

# warn_of_room MESSAGE
warn_of_room() {
  warn_of "$1" "make room there${room_elsewhere-, or set paths.scratch_dir in configuration.toml}"
}

# try_job: let Slurm look at the job as if it were submitted.
try_job() {
  local said code=0
  said=$(timeout 60 sbatch --test-only "${options[@]}" "${job[@]}" 2>&1) || code=$?
  ((code)) || return 0
  if ((code == 124)) || [[ $said == *'ontact slurm controller'* || $said == *'imed out'* ]]; then
    fail "Slurm does not answer${said:+: $(slurm_reason "$said")}" 'try again later'
  fi
  if [[ $said == *artition* ]]; then
    fail "Slurm refuses the job: $(slurm_reason "$said")" \
      "partitions here: $(timeout 20 sinfo --noheader --format=%R | paste -sd ' ' | sed 's/ /, /g')"
  fi
  fail "Slurm refuses the job: $(slurm_reason "$said")" \
    'change the options behind the job file, or its #SBATCH lines'
}

# slurm_reason TEXT: what sbatch says last, without its own name.
slurm_reason() {
  local line reason='it does not say why'
  while IFS= read -r line; do
    if [[ $line == *error:* ]]; then reason=${line##*error: }; fi
    if [[ $line == *failure:* ]]; then reason=${line##*failure: }; fi
    if [[ $line == *fatal:* ]]; then reason=${line##*fatal: }; fi
  done <<<"$1"
  printf '%s' "$reason"
}

# submit_jobs COUNT: submit it, and COUNT - 1 more that go on from each other; set `ids`.
submit_jobs() {
  local -a after=()
  ids=()
  local id said
  local -i number
  for ((number = 0; number < $1; number++)); do
    said=$(sbatch --parsable "${options[@]}" "${after[@]}" "${job[@]}" 2>&1) || {
      if ((number)); then warn_of "only ${#ids[@]} of $1 jobs are submitted" "to take them back: scancel ${ids[*]}"; fi
      fail "Slurm refuses the job: $(slurm_reason "$said")" 'change its options'
    }
    id=${said##*$'\n'} # warnings stand before it
    id=${id%%;*}       # what follows is the cluster's name
    [[ $id =~ ^[0-9]+$ ]] || fail "sbatch says no job id, but: $said" 'squeue --me; try again'
    ids+=("$id")
    after=("--dependency=afterany:$id")
    export LONGSHIP_CHAINED_AFTER=$id
  done
}

# log_of LOG ID: set REPLY to the path by its pattern; the number of an array's task stays %a.
log_of() {
  REPLY=${1//'%j'/"$2"}
  REPLY=${REPLY//'%A'/"$2"}
}

# tell_job LOG: how to look after it.
tell_job() {
  local quoted
  log_of "$1" "${ids[0]}"
  if [[ $REPLY == *%a* ]]; then
    print_messages log "${REPLY//'%a'/TASK}, one for each task"
  else
    printf -v quoted '%q' "$REPLY"
    print_messages log "$REPLY" follow "tail -F $quoted"
  fi
  print_messages cancel "scancel ${ids[*]}" status 'python3 submit.py status'
}

# human BYTES: set REPLY to them with a unit, such as 9.4 GB.
human() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}

check_slurm jwb
check_python '/home/me/long ship'
image=/p/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_amd64.sif
check_sif "$image" amd64 'python3 build_container.py && python3 move_built_container_to_active.py'
check_venv /p/scratch/project_465000000/me/longship/venv_pytorch_amd64 /p/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_amd64.sif
make_folders /p/scratch/project_465000000/me/longship/runs \
  /p/scratch/project_465000000/me/longship/runs
check_room /p/scratch/project_465000000/me/longship
cd '/home/me/long ship'
# shellcheck disable=SC2016 # the values as they are
keep_text /p/scratch/project_465000000/me/longship/runs/configurations/eef8b54b8633.toml 'machine = "jwb"
stack = "pytorch"
repositories = []
assets = []

[training]

[project]
name = "nordic-llm"
account = "project_465000000"

[paths]
project_dir = "/p/project1/{account}/{user}/longship"
scratch_dir = "/p/scratch/{account}/{user}/longship"
checkpoint_dir = ""

[container]
runtime = "auto"
image = ""
binds = ["/data:/data:ro"]

[container.patched_files]

[packages]
requirements = "requirements/environment.txt"
installer = "uv"
python = ""
overlay = ""
compression = "zstd"
processors = 0
memory = ""
work_dir = ""

[environment]
unset = ["MY_HOST_ONLY", "MY_HOST_*"]
secrets = ["HF_TOKEN", "WANDB_API_KEY"]

[environment.set]
OMP_NUM_THREADS = "8"
GREETING = "it'"'"'s \"$HOME\""

[environment.token_files]
HF_TOKEN = "~/.cache/huggingface/token"

[jobs]
ask_above = 0
stage = "auto"
stage_dirs = ["/dev/shm"]
'
export LONGSHIP_ROOT='/home/me/long ship'
export LONGSHIP_CONFIGURATION=/p/scratch/project_465000000/me/longship/runs/configurations/eef8b54b8633.toml
export LONGSHIP_STACK=pytorch
unset LONGSHIP_CHAINED_AFTER LONGSHIP_RERUN
export LONGSHIP_OPTIONS='--account=project_465000000
--nodes=4
'"'"'--comment=it'"'"'"'"'"'"'"'"'s mine'"'"''

options=(--account=project_465000000 --nodes=4 '--comment=it'"'"'s mine' --output=/p/scratch/project_465000000/me/longship/runs/%j-%x.log)
job=(jsc/run_training_jwb.sbatch --steps '1 0')
try_job
note 'train: 4 nodes of booster for at most 01:00:00, 3 jobs; at most 576.0 core-hours'
submit_jobs 3
printf '%s\n' "${ids[@]}"
tell_job /p/scratch/project_465000000/me/longship/runs/%j-train.log
