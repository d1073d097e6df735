# shellcheck shell=bash
# Caches: those that the caller has chosen, and what a job's programs compile.

# directories of the caller's own caches, which must be visible inside
declare -ga caller_caches=()

# caches_keep CACHE... -- NAME...: name in LONGSHIP_CALLERS the caches that the caller has set, which
# the environment inside keeps, and other variables, of which it reports the ones that it replaces. A
# cache in the directories of an environment around this script is not the caller's: a job that is
# submitted inside has its own.
caches_keep() {
  local variable value
  caller_caches=()
  export LONGSHIP_CALLERS=' '
  while [[ $1 != -- ]]; do
    variable=$1 value=${!1-}
    shift
    case $value in
      '' | "${LONGSHIP_SCRATCH_DIR:-//}/cache/"* | "${LONGSHIP_NODE_CACHE:-//}/"*) continue ;;
      /tmp/*) ;;
      /*) if [[ -d $value ]]; then caller_caches+=("$value"); fi ;;
    esac
    LONGSHIP_CALLERS+="$variable "
  done
  for variable in "${@:2}"; do
    if [[ -n ${longship_kept[$variable]-${!variable-}} ]]; then LONGSHIP_CALLERS+="$variable "; fi
  done
}

# node_cache_make: in a job, export LONGSHIP_NODE_CACHE, a directory on this node that only the user
# can enter, for what programs compile: on a shared file system, ranks of several nodes would delete
# each other's files. Without such a directory they use the one in scratch_dir.
node_cache_make() {
  local REPLY
  unset LONGSHIP_NODE_CACHE
  if [[ -z ${SLURM_JOB_ID:-} ]]; then return 0; fi
  node_cache_find
  # all ranks of the node do it at once
  if [[ ! -d $REPLY ]]; then mkdir -m 700 -- "$REPLY" 2>/dev/null || :; fi
  if [[ -d $REPLY && -O $REPLY && ! -L $REPLY ]]; then
    export LONGSHIP_NODE_CACHE=$REPLY
  elif ((${SLURM_LOCALID:-0} == 0)); then
    note "cannot create $REPLY, so compilers use the caches in scratch_dir, where nodes can disturb each other"
  fi
}

# node_cache_find: set REPLY to that directory, in TMPDIR, or in /tmp if others could exchange a
# directory in TMPDIR. TMPDIR can be shared by the nodes, so the name contains the node's.
node_cache_find() {
  local parent=${TMPDIR:-/tmp}
  if [[ $parent != /tmp ]]; then
    parent=$(cd -P -- "$parent" 2>/dev/null && pwd -P) && directory_stays "$parent" || parent=/tmp
  fi
  REPLY=$parent/longship-$UID-$SLURM_JOB_ID-${SLURMD_NODENAME:-$HOSTNAME}
}

# directory_stays DIR: whether nobody else can exchange what the user makes in this directory, which
# has no links in its path: it and all above it belong to the user or root, and others cannot write
# to them, or have no right to what is not theirs (sticky).
directory_stays() {
  local path=$1 owner mode
  local -a paths=()
  while [[ $path == /?* ]]; do
    paths+=("$path")
    path=${path%/*}
  done
  while read -r owner mode; do
    mode=$((16#$mode))
    (((owner == UID || owner == 0) && (mode & 8#1000 || !(mode & 8#022)))) || return
  done < <(stat -c '%u %f' -- ${paths[@]+"${paths[@]}"} 2>/dev/null || printf '%s\n' "$((UID + 1)) 0")
}

# node_caches_remove: delete that directory on each node of the job. Slurm can refuse the step, as
# after scancel; then the directory stays until the site empties its /tmp.
node_caches_remove() {
  if [[ -z ${SLURM_JOB_ID:-} ]]; then return 0; fi
  # shellcheck disable=SC2016  # expanded on each node
  local -r text="$(declare -f node_cache_find directory_stays); "'node_cache_find; rm -rf -- "$REPLY"'
  if [[ -n ${SLURMD_NODENAME:-} ]]; then (eval "$text") 2>/dev/null; fi
  if ((${SLURM_JOB_NUM_NODES:-1} > 1)) || [[ -z ${SLURMD_NODENAME:-} ]]; then
    timeout 30 srun --overlap --nodes="${SLURM_JOB_NUM_NODES:-1}" --ntasks="${SLURM_JOB_NUM_NODES:-1}" \
      --ntasks-per-node=1 --kill-on-bad-exit=0 bash -c "$text" </dev/null >/dev/null 2>&1
  fi
}
