# shellcheck shell=bash
# The tasks that doctor.py --job starts.

# ranks_find_job PATTERN: print the nodes of the job, which SLURM_JOB_ID names on a login node, and
# export what srun and the ranks need. The job's own ranks meet at its port, these at the next one.
ranks_find_job() {
  local -a nodes
  local list=${SLURM_JOB_NODELIST:-}
  [[ -n $list ]] ||
    list=$(squeue --noheader --jobs="$SLURM_JOB_ID" --states=RUNNING --format=%N) || :
  [[ -n $list ]] || fail "squeue shows no running job $SLURM_JOB_ID" "run: squeue --me"
  mapfile -t nodes < <(scontrol show hostnames "$list")
  printf 'job_nodes %s\n' "${nodes[*]}"
  export SLURM_JOB_NODELIST=$list SLURM_JOB_NUM_NODES=${#nodes[@]}
  if [[ -z ${MASTER_ADDR:-} || -z ${MASTER_PORT:-} ]]; then
    set_rendezvous "$1"
    MASTER_PORT=$((MASTER_PORT + 1))
  fi
}

# ranks_start WORD...: start a task on each node of the job, or as many as the job has; the words
# are further options and the command.
ranks_start() {
  # what an enclosing step, or a job script, has set for its own srun
  if [[ -n ${SLURM_STEP_ID:-} ]]; then
    unset "${!SLURM_CPU_BIND@}" SLURM_DISTRIBUTION SLURM_NTASKS_PER_NODE
  fi
  unset SLURM_LABELIO SLURM_KILL_BAD_EXIT
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
  local -ri tasks=${SLURM_NTASKS_PER_NODE:-1}
  exec srun --overlap --label --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node="$tasks" \
    --ntasks=$((SLURM_JOB_NUM_NODES * tasks)) --wait=0 --kill-on-bad-exit=0 "$@"
}
