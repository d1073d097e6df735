# shellcheck shell=bash
# The ranks that doctor.py --job starts.

# ranks_start NODES COUNT TASKS WORD...: start TASKS on each of COUNT NODES; the words are further
# options and the command. After the finding `end`, a rank that hangs would keep srun.
ranks_start() {
  local -i patience=15
  sed -u $'/finding\tend\t/q' < <(exec srun --overlap --label --nodelist="$1" --nodes="$2" --ntasks=$(($2 * $3)) \
    --ntasks-per-node="$3" --wait=0 --kill-on-bad-exit=0 "${@:4}" 2>&1)
  while ((patience--)) && kill -0 "$!" 2>/dev/null; do sleep 0.2; done
  kill "$!" 2>/dev/null || :
}

# rank_begin: print the node of this task, as an error before the program starts names only the
# task.
rank_begin() {
  printf 'job_node %s\n' "${SLURMD_NODENAME:-$(uname -n)}"
  # JSC's Slurm shows a task one GPU, of those that its ranks shall share
  local visible=${CUDA_VISIBLE_DEVICES:-}
  visible=${visible//[!,]/}
  if ((${SLURM_STEP_TASKS_PER_NODE%%[!0-9]*} == 1 && ${#visible} + 1 < ${SLURM_GPUS_ON_NODE:-0})); then
    unset CUDA_VISIBLE_DEVICES
  fi
}
