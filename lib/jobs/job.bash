# shellcheck shell=bash
# The start of a job script: submit.py exports these functions, so that Slurm keeps them with the job;
# otherwise lib/shell/job.bash sources this file. After `start_job MACHINE "$@"` a job script has:
#
#   LAUNCHER            starts a command inside the environment: srun "$LAUNCHER" COMMAND
#   STACK_DIR           directory of the stack's scripts: run_training.sh, preprocess_data.sh
#   JOB_ARGUMENTS       arguments of the job
#   CONTAINER_OPTIONS   options of srun, if srun starts the containers itself (Pyxis; AWS, Alps)
#   RUN_DIR             run directory, with the record and the launcher
#   MASTER_ADDR, MASTER_PORT, NUM_NODES, GPUS_PER_NODE      rendezvous and shape of the job, for
#                                                           torchrun

# start_job MACHINE ARGUMENT...: pin the active image and packages, and write the launcher and the
# record, once for all ranks. LONGSHIP_TAKE_CODE is a function of an extra, which sets LONGSHIP_ROOT.
start_job() {
  if [[ -z ${LONGSHIP_WATCHED:-} ]]; then "${LONGSHIP_TAKE_CODE:-:}"; fi
  export LONGSHIP_ROOT
  # of the step in which sbatch was typed, if it was; srun would bind the ranks to its cores
  unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}"
  # shellcheck disable=SC2034  # for the job script
  JOB_ARGUMENTS=("${@:2}") CONTAINER_OPTIONS=()
  RUN_DIR=${LONGSHIP_WATCHED:-} # the run has begun, see run_has_begun
  if [[ -z $RUN_DIR ]]; then
    local facts
    facts=$(job_show) && RUN_DIR=$(python3 "$LONGSHIP_ROOT/submit.py" begin "$@" <<<"$facts") || exit
  fi
  # shellcheck source=/dev/null  # lib/jobs/start.py writes it
  source "$RUN_DIR/start.bash"
}

# job_show: print what Slurm reports of this job. Its controller can be too busy to answer for
# minutes, for example when a thousand jobs start at once.
job_show() {
  local seconds
  for seconds in {1..15} 15 15 15 15 15 15 15 15 15 15 15 15 0; do
    timeout 60 scontrol show job --oneliner "$SLURM_JOB_ID" && return
    printf 'longship: Slurm does not respond; retrying in %d s\n' "$seconds" >&2
    sleep "$seconds"
  done
  printf 'error: %s\nhint: %s\n' "Slurm reports nothing about job $SLURM_JOB_ID" \
    'check the status page of the site, then submit the job again' >&2
  return 1
}

# for the steps of a watcher, which start the script again, and for jobs that this job submits
export -f start_job job_show
