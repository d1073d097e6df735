#!/usr/bin/env bash
# Longship: job_start.py, machine jrc (jsc/site.toml)
set -euo pipefail

# helpers_of RUNTIME: set REPLY to the folder with the programs that it starts itself.
helpers_of() {
  local name value
  REPLY=
  while IFS='=' read -r name value; do
    if [[ $name == LIBEXECDIR ]]; then REPLY=$value/$1/bin; fi
  done < <("$1" buildcfg 2>/dev/null)
}

# has_setuid_starter RUNTIME: whether the kernel mounts images for it, and it needs no user namespaces.
has_setuid_starter() {
  helpers_of "$1"
  [[ -u $REPLY/starter-suid ]]
}

# how srun tells the end of a task: node, task, reason
readonly TASK_ENDED='^srun: error: ([^ :]+): tasks? ([0-9]+)[^:]*: (.*)$'

# how it labels the lines of one, with the rank that torchrun adds
readonly TASK_SAID='^ *([0-9]+): (\[rank ([0-9]+)\] ?)?'

# the first line of what programs, runtimes and Slurm say when they fail
readonly FAILURE='(Traceback \(most recent|error: |FATAL: |ERROR: |[A-Za-z_.]*(Error|Exception): |Segmentation fault|slurmstepd: error|Fatal Python error)'

# first_failure LOG: print in a line who failed first, and below it what it said.
first_failure() {
  local LC_ALL=C # programs write any bytes
  local task='' rank='' text
  local -a said=() ended=()
  local -i from
  # a requeued job has tried before
  from=$(grep -a -b -F -x -e "longship: run $RUN_DIR" -- "$1" | tail -n 1 | cut -d : -f 1) || from=0
  find_ended_task < <(tail -c "+$((from + 1))" -- "$1" | grep -a -E -e "$TASK_ENDED")
  # grep finds it in gigabytes; what the task says next stands between the lines of others
  collect_said < <(tail -c "+$((from + 1))" -- "$1" | grep -a -E -m 1 -A 5000 -e "$TASK_SAID$FAILURE")
  if [[ -z $task ]]; then return; fi
  text="task $task failed first${rank:+, rank $rank}${ended[task]:+ ${ended[task]}}"
  printf '%s\n' "$text"
  if ((${#said[@]})); then printf '%s\n' "${said[@]}"; fi
}

# find_ended_task: set ended, by task, and task to the first that was not ended because of another one.
find_ended_task() {
  local line
  while IFS= read -r line; do
    if [[ $line =~ $TASK_ENDED ]]; then
      ended[BASH_REMATCH[2]]="on ${BASH_REMATCH[1]}: ${BASH_REMATCH[3]}"
      if [[ -z $task || ${ended[task]} == *': Terminated' ]]; then task=${BASH_REMATCH[2]}; fi
    fi
  done
}

# collect_said: the first line is of the one that failed first; set task, rank and said.
collect_said() {
  local line first=''
  while IFS= read -r line; do
    [[ $line =~ $TASK_SAID ]] || continue
    first=${first:-${BASH_REMATCH[0]}}
    if [[ ${BASH_REMATCH[0]} == "$first" ]] && ((${#said[@]} < 40)); then
      task=${BASH_REMATCH[1]} rank=${BASH_REMATCH[3]}
      said+=("  ${line#"$first"}")
    fi
  done
}

# write_facts FILE [NAME VALUE]...: as JSON, a line each, as record_value reads them.
write_facts() {
  local comma='{' index
  {
    for ((index = 2; index < $#; index += 2)); do
      json_text "${@:index+1:1}"
      printf '%s\n  "%s": "%s"' "$comma" "${!index}" "$REPLY"
      comma=,
    done
    printf '\n}\n'
  } >"$1" || fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# json_text TEXT: set REPLY to the text as JSON has it between quotes.
json_text() {
  local LC_ALL=C
  local text=${1//\\/\\\\} code character
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
    for code in {1..31}; do
      printf -v code '%02x' "$code"
      printf -v character '%b' "\\x$code"
      text=${text//"$character"/"\\u00$code"}
    done
  fi
  REPLY=$text
}

# load_modules PROGRAM CALL...: load environment modules, unless PROGRAM is there already. Inside a
# job the batch script has loaded them, and thousands of ranks must not do it again.
load_modules() {
  local -r program=$1
  shift
  command -v "$program" >/dev/null && return
  set +eu # module systems are written without them
  if ! declare -F module >/dev/null; then
    # shellcheck disable=SC1091
    source "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash" 2>/dev/null
  fi
  local call
  for call in "$@"; do
    # shellcheck disable=SC2086  # a call is several words: load Stages/2025 GCC
    module $call
  done
  set -eu
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

# warn_of MESSAGE HINT: tell what will go wrong sooner or later, and what to type.
warn_of() {
  print_messages warning "$1" hint "$2"
}

# set_rendezvous PATTERN: where the ranks of all nodes meet: {node} is the first node's name,
# {address} its IP address.
set_rendezvous() {
  local node='' address=''
  read -r node < <(scontrol show hostnames "$SLURM_JOB_NODELIST") || :
  if [[ $1 == *'{address}'* ]]; then
    # a login node, where the job of a shell runs, may not know it, and then nobody has to be met
    read -r address _ < <(getent ahostsv4 "$node") || ((SLURM_JOB_NUM_NODES == 1)) ||
      fail "the first node, $node, has no IP address" "ask on it: getent ahostsv4 $node"
    address=${address:-$node}
  fi
  MASTER_ADDR=${1//'{node}'/"$node"}
  MASTER_ADDR=${MASTER_ADDR//'{address}'/"$address"}
  # below the ports that Linux hands out by itself, and not another job's of the same node
  MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
  export MASTER_ADDR MASTER_PORT
}

# set_shape GPUS_PER_NODE: how large the job is.
set_shape() {
  export NUM_NODES=$SLURM_JOB_NUM_NODES GPUS_PER_NODE=$1
  if [[ -n ${SLURM_GPUS:-} ]] && ((${SLURM_GPUS##*:} != NUM_NODES * GPUS_PER_NODE)); then
    fail "Slurm has dealt $SLURM_GPUS GPUs out unevenly to $NUM_NODES nodes" \
      'ask for --gpus-per-node, or for all GPUs of the nodes'
  fi
  # since Slurm 22.05 srun does not take it from the job
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
}

# tell_ranks_apart: each line of the log begins with its task; when one task fails, the others, which
# would wait for it until the time limit, are ended.
tell_ranks_apart() {
  export SLURM_LABELIO=1 SLURM_KILL_BAD_EXIT=1
}

# begin_record: what is known at the start; the rest is collected while the ranks start.
begin_record() {
  printf 'longship: run %s\n' "$RUN_DIR" >&2
  # a shell's is no file for sbatch
  if [[ -f $0 ]]; then cp -- "$0" "$RUN_DIR/job.$([[ -n $log ]] && printf sbatch || printf salloc)"; fi
  : >"$RUN_DIR/arguments"
  if ((${#JOB_ARGUMENTS[@]})); then printf '%s\0' "${JOB_ARGUMENTS[@]}" >"$RUN_DIR/arguments"; fi
  if [[ -n ${LONGSHIP_OPTIONS:-} ]]; then printf '%s\n' "$LONGSHIP_OPTIONS" >"$RUN_DIR/options"; fi
  unset LONGSHIP_OPTIONS LONGSHIP_RERUN LONGSHIP_CHAINED_AFTER # not for what the job itself submits
  facts+=(started "$(record_time)" nodelist "$SLURM_JOB_NODELIST" arguments "${JOB_ARGUMENTS[*]@Q}")
  write_run_record
  trap 'exit 143' TERM # after srun has ended, which Slurm has told the same
  trap 'end_run $?' EXIT
}

# write_run_record: the file is complete at any moment.
write_run_record() {
  write_facts "$RUN_DIR/record.json.partial" "${facts[@]}"
  mv -- "$RUN_DIR/record.json.partial" "$RUN_DIR/record.json"
}

# record_time: the time, as all records have it.
record_time() {
  date -u +%Y-%m-%dT%H:%M:%SZ
}

# record_code [NAME FOLDER]...: commit and changes of each repository, and what is installed. It goes on
# while the ranks start: on a parallel file system git needs seconds for a large repository.
record_code() {
  collect_code "$@" </dev/null >/dev/null 2>&1 &
  recorder=$!
}

# collect_code [NAME FOLDER]...
collect_code() {
  mkdir -p -- "$RUN_DIR/repositories"
  while (($# > 1)); do
    record_repository "$1" "$2" "$RUN_DIR/repositories/$1" || :
    shift 2
  done
  local -a start=()
  if ((${#CONTAINER_OPTIONS[@]})); then start=(srun --overlap --nodes=1 --ntasks=1 "${CONTAINER_OPTIONS[@]}"); fi
  if ! env -u SLURM_LABELIO timeout 120 "${start[@]}" "$LAUNCHER" python3 \
    "$LONGSHIP_ROOT/lib/inside/list_packages.py" >"$RUN_DIR/packages.partial"; then
    rm -f -- "$RUN_DIR/packages.partial"
    return
  fi
  mv -- "$RUN_DIR/packages.partial" "$RUN_DIR/packages.txt"
}

# record_repository NAME FOLDER FILE: FILE.commit, and FILE.patch with all that was changed since the
# version that the configuration asks for: commits, index and files; untracked ones are named.
record_repository() {
  local commit base
  # a colleague's clone is only read
  local -ar read_only=(git -c "safe.directory=*" -c core.hooksPath=/dev/null -c core.fsmonitor=false -C "$2")
  commit=$("${read_only[@]}" rev-parse --verify HEAD 2>&1) || {
    printf 'commit unknown: %s\n' "${commit##*$'\n'}" >"$3.commit"
    return 0
  }
  base=$("${read_only[@]}" rev-parse --verify --quiet refs/longship/base) || base=$commit
  printf 'commit %s\nbase %s\n' "$commit" "$base" >"$3.commit"
  "${read_only[@]}" ls-files --others --exclude-standard | sed 's/^/untracked /' >>"$3.commit"
  "${read_only[@]}" diff --binary --no-ext-diff --no-textconv "$base" >"$3.patch"
  if [[ ! -s $3.patch ]]; then rm -f -- "$3.patch"; fi
}

# end_run CODE: complete the record, whatever ended the job; what goes wrong here changes no exit code.
end_run() {
  local -r code=$1
  local failed=''
  trap - EXIT
  set +e
  wait "${recorder:-}" 2>/dev/null
  end_stage
  if ((code != 0)) && [[ -r $log ]]; then failed=$(first_failure "$log"); fi
  facts+=(ended "$(record_time)" exit_code "$code")
  if [[ -n $failed ]]; then facts+=(failed "${failed%%$'\n'*}"); fi
  (write_run_record)
  if [[ -n $failed ]]; then print_messages error "$failed"; fi
  exit "$code"
}

# stage_job auto|always: where it cannot be done, the ranks read from the shared file system.
stage_job() {
  local -r how=$1 began=$SECONDS
  local -a files=("$RUN_DIR/launcher") names=(launcher) sums=('')
  local -i bytes=0 unpacked=0
  local stage_folder='' file
  for file in "$stage_image" "$stage_overlay"; do
    [[ -z $file || -r $file ]] || return 0 # the launcher tells what is missing
  done
  if [[ -n $stage_image ]]; then add_staged_file "$stage_image" image "$stage_image_sum"; fi
  if [[ -n $stage_overlay ]]; then
    add_staged_file "$stage_overlay" packages.sqsh "$stage_overlay_sum"
    if [[ $stage_as == unpacked ]]; then unpacked=$((4 * REPLY)); fi # of PyTorch's packages, about
    files+=("$stage_overlay.json") names+=(packages.sqsh.json) sums+=('')
  fi
  if [[ $how == auto ]] && ! staging_pays "$SLURM_JOB_NUM_NODES" "$bytes"; then return; fi
  if choose_stage_folder && hold_stage $((bytes + unpacked)) && fill_stage && hear_nodes; then
    export LONGSHIP_STAGED=$stage_folder
    if [[ $stage_as == packed ]]; then LAUNCHER=$stage_folder/launcher; fi # Pyxis' runs inside
    facts+=(staged "$stage_folder")
    human "$bytes"
    printf 'longship: %s copied to each node in %d s: %s\n' "$REPLY" $((SECONDS - began)) "$stage_folder" >&2
  else
    warn_of "image and packages are not copied to the nodes: $REPLY" \
      'the ranks read them from the shared file system; to try no more: jobs.stage = "never"'
    end_stage
  fi
}

# add_staged_file FILE NAME SUM: set REPLY to its size.
add_staged_file() {
  files+=("$1") names+=("$2") sums+=("$3")
  REPLY=$(stat -L -c %s -- "$1")
  bytes+=REPLY
}

# staging_pays NODES BYTES: whether it saves more than ten seconds of the first import, by the figures of
# benchmarks/model.py. An import reads a fifth of the files, as measured; that the shared file system gives
# 5 GB/s to all nodes together, where others work too, is assumed: 42 ms for a gigabyte and a node. To copy
# a gigabyte to all of them takes 9.7 s, and 20 ms a node. So it pays from some 450 nodes on.
staging_pays() {
  (((42 * $1 - 9700 - 20 * $1) * ($2 / 1000000) > 10000000))
}

# choose_stage_folder: set stage_folder, in the first of the configured folders that is here.
choose_stage_folder() {
  local root
  for root in "${stage_roots[@]}"; do
    [[ -d $root && -w $root ]] || continue
    stage_folder=$root/longship-${USER:-$UID}-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
    return
  done
  REPLY="there is none of jobs.stage_dirs here: ${stage_roots[*]}"
  return 1
}

# the functions of stage_node.bash
readonly ON_NODE=(on_node say_of_node make_node_folder use_what_comes free_on_node share_packages
  has_setuid_starter helpers_of)

# hold_stage BYTES: a step beside the ranks', with a task on each node, which lasts as long as the job. The
# daemon of Slurm runs its tasks' epilog, so even where all is killed, what is on the node goes too.
hold_stage() {
  {
    printf '#!/bin/bash\nmounted=%q\n' "$stage_folder/mounted"
    # shellcheck disable=SC2016  # for the epilog
    printf '%s\n' 'if [[ -d $mounted ]]; then fusermount3 -uz "$mounted" || fusermount -uz "$mounted"; fi 2>/dev/null'
    printf 'exec rm -rf -- %q\n' "$stage_folder"
  } >"$RUN_DIR/unstage"
  chmod +x -- "$RUN_DIR/unstage"
  # what is meant for the ranks is not for it
  exec {stage_answers}< <(exec env -u SLURM_LABELIO -u SLURM_KILL_BAD_EXIT -u SLURM_CPUS_PER_TASK -u SRUN_CPUS_PER_TASK \
    srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpu-bind=none --mem=0 --gres=none \
    --quiet --task-epilog="$RUN_DIR/unstage" \
    bash -c "$(declare -f "${ON_NODE[@]}"); on_node \"\$@\"" longship \
    "$stage_folder" "$1" "$stage_as" "$stage_runtime" "${SLURM_NTASKS_PER_NODE:-1}" \
    </dev/null 2>>"$RUN_DIR/stage.log")
  stage_keeper=$!
  hear_nodes
}

# hear_nodes: wait until all of them are ready; else set REPLY to what the first of them says.
hear_nodes() {
  local -i ready=0
  while ((ready < SLURM_JOB_NUM_NODES)); do
    IFS= read -r -t 600 -u "$stage_answers" || REPLY="not all nodes answer; see $RUN_DIR/stage.log"
    [[ $REPLY == ready ]] || return 1
    ready+=1
  done
}

# fill_stage: Slurm copies each file from node to node; the checksums are the last.
fill_stage() {
  local said checking
  local -i at
  exec {checking}< <(stage_checksums) # of the same bytes, meanwhile
  for at in "${!files[@]}"; do
    send_to_nodes "${files[at]}" "${names[at]}" || return
  done
  cat <&"$checking" >"$RUN_DIR/stage.sums" || return
  send_to_nodes "$RUN_DIR/stage.sums" sums
}

# send_to_nodes FILE NAME: else set REPLY to the reason.
send_to_nodes() {
  said=$(sbcast --force "$1" "$stage_folder/$2" 2>&1) && return
  REPLY="sbcast: ${said##*error: }"
  return 1
}

# stage_checksums: what each file must be, and a full stop.
stage_checksums() {
  local sum
  local -i at
  for at in "${!files[@]}"; do
    sum=${sums[at]#sha256:}
    if [[ -z $sum ]]; then read -r sum _ < <(sha256sum <"${files[at]}"); fi
    printf '%s  %s\n' "$sum" "${names[at]}"
  done
  printf '.'
}

# end_stage: before the job ends, so that its nodes are clean when the next one starts.
end_stage() {
  if [[ -z ${stage_keeper:-} ]]; then return; fi
  kill "$stage_keeper" 2>/dev/null || :
  while IFS= read -r -t 30 -u "${stage_answers:-0}"; do :; done # until all tasks have ended
  stage_keeper=
}

# on_node FOLDER BYTES AS RUNTIME RANKS: what runs on each node until the job ends; it says when there is
# a folder, and when what has come there can be used.
on_node() {
  make_node_folder "$1" "$2" || return
  printf 'ready\n'
  use_what_comes "$3" "$4" "$5" || return
  printf 'ready\n'
  exec sleep infinity
}

# say_of_node TEXT: why it cannot be done here.
say_of_node() {
  printf '%s: %s\n' "${SLURMD_NODENAME:-$HOSTNAME}" "$1"
  return 1
}

# make_node_folder FOLDER BYTES: nobody else's, with room, and where programs may be started.
make_node_folder() {
  local said
  said=$(mkdir -m 700 -- "$1" 2>&1) || say_of_node "${said##*: }" || return
  cd -- "$1" || return
  free_on_node
  if ((REPLY < $2)); then
    say_of_node "$(($2 >> 20)) MB are needed in ${1%/*}, and $((REPLY >> 20)) MB are free"
    return
  fi
  printf '#!/bin/sh\n' >try && chmod +x try
  ./try 2>/dev/null || say_of_node "no program can be started in ${1%/*}" || return
  rm try
}

# use_what_comes AS RUNTIME RANKS: the checksums come last, with a full stop behind them.
use_what_comes() {
  local said wanted=''
  until [[ $wanted == *. ]]; do
    sleep 0.2
    wanted=$(cat sums 2>/dev/null)
  done
  said=$(sha256sum --check --quiet --strict <<<"${wanted%$'\n'.}" 2>&1) ||
    say_of_node "${said%%$'\n'*}" || return
  [[ -e packages.sqsh ]] || return 0
  if [[ $1 == unpacked ]]; then
    said=$(unsquashfs -no-progress -dest packages packages.sqsh 2>&1) ||
      say_of_node "${said##*$'\n'}" || return
    rm packages.sqsh
  elif (($3 > 1)); then
    share_packages "$2"
  fi
}

# free_on_node: set REPLY to the bytes that the working folder may take; memory is the ranks' own, so it
# is a quarter of that.
free_on_node() {
  local -i free most
  free=$(stat -f -c '%a * %S' .)
  if [[ $(stat -f -c %T .) == tmpfs ]]; then
    most=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
    if ((0 < ${SLURM_MEM_PER_NODE:-0} && SLURM_MEM_PER_NODE < most / 1024)); then
      most=$((SLURM_MEM_PER_NODE * 1024))
    fi
    if ((most * 256 < free)); then free=$((most * 256)); fi
  fi
  REPLY=$free
}

# share_packages RUNTIME: one mount for all ranks of the node, which then share its cache: with four of them
# a third of the memory and a quarter of the time less (benchmarks/staging.py). What the kernel mounts for
# a setuid runtime shares the pages of the file anyway.
share_packages() {
  local program
  if has_setuid_starter "$1"; then return; fi
  mkdir mounted
  for program in "$REPLY/squashfuse_ll" squashfuse_ll squashfuse; do
    if "$program" -o ro "$PWD/packages.sqsh" mounted 2>/dev/null; then
      if [[ -d mounted/user-software ]]; then # the way `overlay`: the packages lie where they are seen
        ln -s mounted/user-software packages
      else
        ln -s mounted packages
      fi
      return
    fi
  done
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

load_modules apptainer purge 'load Stages/2025 GCC' 'try-load Apptainer-Tools'
export LONGSHIP_ROOT='/home/me/long ship'
export RUN_DIR=/p/scratch/project_465000000/me/longship/runs/12-train
# shellcheck disable=SC2034 # for the job file
LAUNCHER=/p/scratch/project_465000000/me/longship/runs/12-train/launcher
# shellcheck disable=SC2034
STACK_DIR='/home/me/long ship/stacks/pytorch'
log=/home/me/12-train.log
facts=(
  job 12
  name train
  machine jrc
  site jsc/site.toml
  stack pytorch
  repository '/home/me/long ship'
  runtime apptainer
  image /i.sif
  venv /p/scratch/project_465000000/me/longship/venv_pytorch_amd64
  partition booster
  account my-account
  nodes 2
  gpus 0
  time_limit 01:00:00
  submitted 2026-01-02T03:04:05
  restarts 0
  log /home/me/12-train.log
  cost_per_hour 256
  cost_unit core-hours
)
set_rendezvous '{node}i'
set_shape 4
tell_ranks_apart
record_code longship '/home/me/long ship'
begin_record
stage_roots=(/dev/shm)
stage_image=/i.sif
stage_image_sum=''
stage_overlay=''
stage_overlay_sum=''
stage_as=packed
stage_runtime=apptainer
stage_job auto
