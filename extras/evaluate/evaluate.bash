# shellcheck shell=bash
# Evaluations: a job that is submitted with a training exports the trained model, and evaluates it.

# evaluation_send RUNS NAME ARGUMENT...: submit the job that exports and evaluates what the last job
# of that NAME trains, to start after that one has completed. evaluation_export knows the path of
# the model. The file RUN.then keeps what the training uses from being pruned, whoever prunes
# (pins.bash).
evaluation_send() {
  # shellcheck disable=SC2154  # of lib/jobs/submit.bash
  local -r trained=${submitted_ids[-1]}
  submission_send_job --dependency="afterok:$trained" --kill-on-invalid-dep=yes "${@:3}" "$1/$trained-$2/exported"
  file_write "$1/$trained-$2.then" "${submitted_ids[-1]}"
  print_messages results "$1/$trained-$2/exported/evaluation"
}

# evaluation_export MODEL: if it is RUN/exported, let it be a link to the newest checkpoint of that
# training in Hugging Face's format, which is written in the environment of that run. If another
# cluster has a job of the same ID, the run of this one is RUN.2: JOB_ARGUMENTS then names that.
evaluation_export() {
  local run=${1%/exported} each model
  if [[ $1 != "${RUN_DIR%/*}"/*/exported ]]; then return; fi
  for each in "$run" "$run".[2-9]*; do
    record_value "$each/record.json" cluster
    if [[ $REPLY == "${SLURM_CLUSTER_NAME:-}" ]] && is_own "$each"; then run=$each; break; fi
  done
  JOB_ARGUMENTS[0]=$run/exported
  if [[ -e ${JOB_ARGUMENTS[0]} ]]; then return; fi
  if ! is_own "$run" "$run/start.bash" "$run/launcher" || [[ ! -d $run/outputs ]]; then
    fail "${run##*/} has no results of a training of yours: $run/outputs" \
      'list your runs: python3 submit.py status'
  fi
  printf 'longship: exporting the newest checkpoint of %s\n' "$run" >&2
  if ! model=$(evaluation_export_inside "$run") || ! ln -sfn -- "$model" "$run/exported"; then
    fail "no checkpoint of ${run##*/} was exported" 'check the lines above'
  fi
}

# evaluation_export_inside RUN: start the export of its stack, and print the directory of the model.
# The run's start.bash sets its launcher, options of srun and stack, and then returns, as for a
# script that is watched.
evaluation_export_inside() {
  local -r own=$RUN_DIR outputs=$(realpath -- "$1/outputs")
  local -a start=()
  unset SLURM_GPUS # those of this job
  export LONGSHIP_WATCHED=$1
  # shellcheck source=/dev/null
  source "$1/start.bash" >&2
  export RUN_DIR=$own
  if ((${#CONTAINER_OPTIONS[@]})); then start=(srun --nodes=1 --ntasks=1 "${CONTAINER_OPTIONS[@]}"); fi
  env -u SLURM_LABELIO "${start[@]}" "$LAUNCHER" bash "$STACK_DIR/export.sh" "$outputs" | tail -n 1
}
