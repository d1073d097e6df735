#!/usr/bin/env bash
# Refuse a job that OLMo-core cannot run. submit.py runs this before submission, and the job again.
#
#   check_job.sh training|all|prepare|shard|merge ARGUMENT...
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/lib/jobs/inside/data.bash"

# check_training ARGUMENT...: check the sizes, unless arguments set the parallelism; a script has
# its own.
check_training() {
    local -r hint='change these values in [training] of configuration.toml'
    if [[ -n $TRAINING_SCRIPT ]]; then return; fi
    [[ -n $TRAINING_DATA ]] || fail 'training.data is empty' \
        'set data in [training] of configuration.toml to the output of preprocess_data_*.sbatch'
    if ((world_size == 0)) || [[ " $*" =~ ' --train_module.'(tp|cp|pp|ep|dp)_config ]]; then return; fi
    local -r per_replica=$((TRAINING_GPUS_PER_REPLICA ? TRAINING_GPUS_PER_REPLICA : gpus_per_node))
    ((world_size % per_replica == 0)) ||
        fail "$world_size GPUs are not a multiple of training.gpus_per_replica = $per_replica" \
          "$hint"
    local -r pass=$((TRAINING_MICRO_BATCH * world_size))
    ((pass > 0 && TRAINING_GLOBAL_BATCH % pass == 0)) ||
        fail "training.global_batch = $TRAINING_GLOBAL_BATCH is not a multiple of the $pass sequences of a pass" "$hint"
}

case ${1:?} in
    training) check_training "${@:2}" ;;
    *) data_check "${@:2}" ;;
esac
