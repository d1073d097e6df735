# shellcheck shell=bash disable=SC2154  # the emitted script sets longship_facts, longship_log, RUN_DIR, LAUNCHER
# The start and the record of a run: part of <run>/start.bash, which a job sources. In <run> there are:
#
#   record.json         inputs, nodes, start time, exit code and price per hour
#   launcher            the launcher script, which each rank starts
#   start.bash          the functions that the job script sources
#   job.sbatch          the job script at submission; job.salloc for an interactive job
#   arguments           the arguments of the job, each followed by a zero byte
#   options             the sbatch options, one per line, quoted for a shell
#   configuration.toml  the complete configuration
#   slurm.txt           the output of `scontrol show job`
#   packages.txt        the Python packages of the environment, with versions
#   repositories/       for each repository NAME.commit, and NAME.patch with all local changes
#   jupyter.token, jupyter.pem, jupyter.key     token and TLS files of JupyterLab; only the user can read the token

# set_rendezvous PATTERN: where the ranks of all nodes meet: {node} is the first node's name,
# {address} its IP address.
set_rendezvous() {
  local node='' address=''
  read -r node < <(scontrol show hostnames "$SLURM_JOB_NODELIST") || :
  if [[ $1 == *'{address}'* ]]; then
    # a login node, where the job of a shell runs, may not know it, and then nobody has to be met
    read -r address _ < <(getent ahostsv4 "$node") || ((SLURM_JOB_NUM_NODES == 1)) ||
      fail "the first node has no IP address: $node" "on that node, run: getent ahostsv4 $node"
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
    fail "Slurm distributed $SLURM_GPUS GPUs unevenly over $NUM_NODES nodes" \
      'request --gpus-per-node, or all GPUs of the nodes'
  fi
  # since Slurm 22.05 srun does not take it from the job
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
}

# tell_ranks_apart: each line of the log begins with its task; when one task fails, the others, which
# would wait for it until the time limit, are ended.
tell_ranks_apart() {
  export SLURM_LABELIO=1 SLURM_KILL_BAD_EXIT=1
}

# check_chain JOB: the next of a chain starts after a time limit, a lost node or a signal, but not after
# an error of the program's own, which would come again, nor where somebody has cancelled that job. The
# job's own record says so; Slurm, which forgets a job after minutes, is asked only where it has no end.
check_chain() {
  local state='not recorded: it never started' record
  for record in "${RUN_DIR%/*}/$1"-*/record.json; do
    record_value "$record" cluster
    if [[ ! -e $record || $REPLY != "${SLURM_CLUSTER_NAME:-}" ]] || ! is_own "${record%/*}"; then continue; fi
    record_value "$record" exit_code
    state=$REPLY
    record_value "$record" stopped
    case $REPLY in
      cancelled | requeued) state=CANCELLED ;; # one that was to start again, and never did: as it waited
      preempted) state= ;;                     # only Slurm knows whether it was to start again
    esac
  done
  if [[ -z $state ]]; then # killed, or its node is lost
    state=$(scontrol show job --oneliner "$1" 2>/dev/null) || state=
    state=${state#* JobState=}
    state=${state%% *}
  fi
  case $state in
    0 | 143) return ;; # 143: SIGTERM, as at the time limit
    [1-9]*) state=FAILED ;;
    CANCELLED | OUT_OF_MEMORY | not*) ;;
    *) return ;;
  esac
  fail "job $1, which this job resumes, ended in state $state" "check its log, then run: python3 submit.py rerun $1"
}

# is_own FOLDER: whether it is the user's, and nobody else can write to it.
is_own() {
  [[ -n $(exec find "$1" -maxdepth 0 -type d -user "$UID" ! -perm /022 2>/dev/null) ]]
}

# begin_record: what is known at the start; the rest is collected while the ranks start.
begin_record() {
  printf 'longship: run %s\n' "$RUN_DIR" >&2
  (keep_words)
  unset LONGSHIP_OPTIONS LONGSHIP_RERUN LONGSHIP_CHAINED_AFTER # not for what the job itself submits
  longship_facts+=(started "$(record_time)" nodelist "$SLURM_JOB_NODELIST" arguments "${JOB_ARGUMENTS[*]@Q}")
  write_run_record
  trap 'exit 143' TERM # after srun has ended, which Slurm has told the same
  trap 'end_run $?' EXIT
}

# keep_words: what the job was submitted with, and is started again with: nobody else may change it.
keep_words() {
  umask go-w
  # a shell's is no file for sbatch
  if [[ -f $0 ]]; then cp -- "$0" "$RUN_DIR/job.$([[ -n $longship_log ]] && printf sbatch || printf salloc)"; fi
  : >"$RUN_DIR/arguments"
  if ((${#JOB_ARGUMENTS[@]})); then printf '%s\0' "${JOB_ARGUMENTS[@]}" >"$RUN_DIR/arguments"; fi
  if [[ -n ${LONGSHIP_OPTIONS:-} ]]; then printf '%s\n' "$LONGSHIP_OPTIONS" >"$RUN_DIR/options"; fi
}

# write_run_record: the file is complete at any moment.
write_run_record() {
  write_facts "$RUN_DIR/record.json.partial" "${longship_facts[@]}" &&
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
  longship_recorder=$!
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
  # Pyxis may have to unpack the image for it
  if ! env -u SLURM_LABELIO timeout 600 "${start[@]}" "$LAUNCHER" python3 \
    "$LONGSHIP_ROOT/lib/jobs/inside/list_packages.py" >"$RUN_DIR/packages.partial"; then
    rm -f -- "$RUN_DIR/packages.partial"
    return
  fi
  mv -- "$RUN_DIR/packages.partial" "$RUN_DIR/packages.txt"
}

# record_repository NAME FOLDER FILE: FILE.commit, and FILE.patch with all that was changed since the
# version that the configuration asks for: commits, index and files; untracked ones are named, and so are
# those that are left out because they hold a password.
record_repository() {
  (record_changes "$@")
}

# record_changes NAME FOLDER FILE: the same, in a subshell.
record_changes() {
  borrowed=$(mktemp -d "${TMPDIR:-/tmp}/longship-git.XXXXXX") || exit
  trap 'rm -rf -- "$borrowed"' EXIT
  find_git_folder "$2"
  commit=$(git --git-dir="$own" rev-parse --verify HEAD 2>&1) || {
    printf 'commit unknown: %s\n' "${commit##*$'\n'}" >"$3.commit"
    exit 0
  }
  base=$(git --git-dir="$own" rev-parse --verify --quiet refs/longship/base) || base=$commit
  borrow_git_folder
  {
    printf 'commit %s\nbase %s\n' "$commit" "$base"
    git_borrowed ls-files --others --exclude-standard | sed 's/^/untracked /'
    list_changes . >"$borrowed/patch"
    if grep -a -c -E -e "$IN_NO_PATCH" -- "$borrowed/patch" >/dev/null; then leave_passwords_out; fi
  } >"$3.commit"
  rm -f -- "$3.patch"
  if [[ -s $borrowed/patch ]]; then cat -- "$borrowed/patch" >"$3.patch"; fi
}

# what no recorded change may hold: secrets, and passwords in URLs
declare -g IN_NO_PATCH="$SECRET"'|://[^]/:@<>{}$*[:space:]]+:[^]/@<>{}$*[:space:]]+@|https?://[^]/:@<>{}$*[:space:]]{20,}@'

# leave_passwords_out: write the patch again without the files that hold one, and name them.
leave_passwords_out() {
  local -a left=()
  local file
  while IFS= read -r -d '' file; do
    if list_changes ":(literal)$file" | grep -a -c -E -e "$IN_NO_PATCH" >/dev/null; then
      left+=(":(exclude,literal)$file")
      printf 'left out, because it contains a password: %q\n' "$file"
    fi
  done < <(list_changes --name-only -z)
  list_changes . "${left[@]}" >"$borrowed/patch"
}

# list_changes [OPTION... | PATHSPEC...]: those since the base, as a patch.
list_changes() {
  git_borrowed diff --binary --no-color --no-renames --no-ext-diff --no-textconv --ignore-submodules=dirty "$base" "$@"
}

# find_git_folder FOLDER: set top to the folder of the repository that it is in, own to that of HEAD and
# index, and shared to that of all else, which a second work tree has in common with the first.
find_git_folder() {
  top=$1
  while [[ ! -e $top/.git && $top == /*/* ]]; do top=${top%/*}; done
  own=$top/.git
  if [[ -f $own ]]; then
    own=$(sed -n 's/^gitdir: //p' "$top/.git")
    if [[ $own != /* ]]; then own=$top/$own; fi
  fi
  shared=$own
  if [[ -f $own/commondir ]]; then
    shared=$(<"$own/commondir")
    if [[ $shared != /* ]]; then shared=$own/$shared; fi
  fi
}

# borrow_git_folder: what a repository of somebody else configures can start programs: filters, file
# monitors, hooks, transports, in its submodules too. So git gets another folder, with its HEAD, its index
# and what says how files are read.
borrow_git_folder() {
  local key value
  mkdir -p -- "$borrowed/refs" "$borrowed/info"
  printf '%s\n' "$commit" >"$borrowed/HEAD"
  printf '[core]\nrepositoryFormatVersion = 1\n' >"$borrowed/config"
  while read -r key value; do
    if [[ $value =~ ^[a-z0-9]*$ ]]; then
      printf '[%s]\n%s = %s\n' "${key%%.*}" "${key#*.}" "${value:-true}" >>"$borrowed/config"
    fi
  done < <(git --git-dir="$own" config --get-regexp \
    '^(core\.(autocrlf|eol|filemode|ignorecase|symlinks)|extensions\.objectformat)$')
  # with its time, by which git knows files that were changed in the same moment
  {
    cp -p -- "$own/index" "$borrowed/index" || :
    cp -- "$own"/sharedindex.* "$borrowed" || :
    cp -- "$shared"/info/{exclude,attributes} "$borrowed/info" || :
  } 2>/dev/null
}

# git_borrowed ARGUMENT...: git with that folder, and with nobody's settings.
git_borrowed() {
  env -u GIT_CONFIG_GLOBAL -u GIT_CONFIG_SYSTEM -u GIT_CONFIG_COUNT -u GIT_CONFIG_PARAMETERS -u GIT_INDEX_FILE \
    -u GIT_COMMON_DIR -u GIT_NAMESPACE GIT_CONFIG_NOSYSTEM=1 HOME="$borrowed" XDG_CONFIG_HOME="$borrowed" \
    GIT_DIR="$borrowed" GIT_WORK_TREE="$top" GIT_OBJECT_DIRECTORY="$shared/objects" \
    git -C "$top" -c core.hooksPath=/dev/null -c core.fsmonitor=false "$@"
}

# compare_code RUN [NAME FOLDER]...: a run is started again with the code that is there now; say where that
# is not the code which the run had.
compare_code() {
  local -r run=$1 now=$(mktemp -d "${TMPDIR:-/tmp}/longship-code.XXXXXX")
  local name was base hint
  shift
  while (($# > 1)); do
    name=$1 was=$run/repositories/$1
    if [[ -e $was.commit ]] && record_repository "$name" "$2" "$now/$name" && ! is_same_code "$was" "$now/$name"; then
      base=$(sed -n 's/^base //p' "$was.commit")
      printf -v hint 'restore the recorded code: git -C %q checkout %s' "$2" "$base"
      if [[ -e $was.patch ]]; then printf -v hint '%s && git -C %q apply %q' "$hint" "$2" "$was.patch"; fi
      warn_of "the code of $name differs from that of ${run##*/}: the job uses the current code" "$hint"
    fi
    shift 2
  done
  rm -rf -- "$now"
}

# is_same_code FILE FILE: by what record_repository has written; the second line of it names the base.
is_same_code() {
  cmp --silent -- <(head -n 2 -- "$1.commit") <(head -n 2 -- "$2.commit") &&
    cmp --silent -- <(cat -- "$1.patch" 2>/dev/null) <(cat -- "$2.patch" 2>/dev/null)
}

# end_recorder: it has 20 seconds more, as whole nodes wait for it.
end_recorder() {
  local attempt
  if [[ -z ${longship_recorder:-} ]]; then return; fi
  for ((attempt = 0; attempt < 200; attempt++)); do
    kill -0 "$longship_recorder" 2>/dev/null || break
    sleep 0.1
  done
  kill "$longship_recorder" 2>/dev/null
  rm -f -- "$RUN_DIR/packages.partial"
  if [[ ! -e $RUN_DIR/packages.txt ]]; then
    printf 'longship: packages.txt not written: python3 could not list the packages in time\n' >&2
  fi
}

# end_run CODE: complete the record, whatever ended the job; what goes wrong here changes no exit code.
end_run() {
  local -r code=$1
  local failed=''
  trap - EXIT
  set +e
  end_recorder
  if ((code != 0)) && [[ -r $longship_log ]]; then failed=$(first_failure "$longship_log"); fi
  longship_facts+=(ended "$(record_time)" exit_code "$code")
  find_who_stopped "$longship_log"
  if [[ -n $REPLY ]]; then longship_facts+=(stopped "$REPLY"); fi
  if [[ -n $failed ]]; then longship_facts+=(failed "${failed%%$'\n'*}"); fi
  if ! (write_run_record); then
    print_messages error "the record $RUN_DIR/record.json cannot be completed: the job exited with code $code"
  fi
  if [[ -n $failed ]]; then print_messages error "$failed"; fi
  exit "$code"
}
