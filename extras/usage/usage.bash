# shellcheck shell=bash
# What a run uses: the first rank of each node starts <run>/sampler, a process on the host.

# usage_start RUNTIME: as the first rank of a node, start the sampler, without a stream of the rank:
# Slurm waits for their end. Where the rank's process stays that of the runtime, the sampler is its
# child and ends with it; elsewhere it becomes the program, which must not have a child that it has
# not started. The batch script is no rank, and has no variables with STEP.
usage_start() {
  if [[ -n ${SLURM_STEP_NUM_TASKS:-} && $SLURM_LOCALID == 0 && -f ${RUN_DIR:-}/sampler ]]; then
    case $1 in
      host | enroot) (exec bash "$RUN_DIR/sampler" "$$" "$PPID" </dev/null >/dev/null 2>&1 &) ;;
      *) bash "$RUN_DIR/sampler" "$$" "$PPID" </dev/null >/dev/null 2>&1 & ;;
    esac
  fi
}

# usage_end: add what the run has used to its record; a slow file system does not delay the end for
# long.
usage_end() {
  local -a used
  mapfile -d '' -t used < <(timeout 20 python3 "$LONGSHIP_ROOT/submit.py" end "$RUN_DIR" 2>/dev/null)
  longship_facts+=("${used[@]}")
}
