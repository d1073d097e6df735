#!/usr/bin/env bash
# Refuse a job that TorchTitan cannot run. submit.py runs this before submission, and the job again.
#
#   check_job.sh training|all|prepare|shard|merge ARGUMENT...
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/lib/jobs/inside/data.bash"

readonly hint='change these values in [training] of configuration.toml'

# check_batch: fail if the sizes do not divide as TorchTitan's trainer requires.
check_batch() {
    local -r tensor=$TRAINING_TENSOR_PARALLEL
    local -r per_replica=$((TRAINING_GPUS_PER_REPLICA ? TRAINING_GPUS_PER_REPLICA : gpus_per_node))
    ((world_size % per_replica == 0)) ||
        fail "$world_size GPUs are not a multiple of training.gpus_per_replica = $per_replica" \
          "$hint"
    ((tensor > 0 && per_replica % tensor == 0)) ||
        fail "training.tensor_parallel = $tensor does not divide the $per_replica GPUs of a replica" "$hint"
    ((TRAINING_SEQUENCE_LENGTH % tensor == 0)) ||
        fail "training.sequence_length = $TRAINING_SEQUENCE_LENGTH is not a multiple of tensor_parallel = $tensor" \
            "$hint"
    local -r pass=$((TRAINING_LOCAL_BATCH_SIZE * world_size / tensor))
    ((TRAINING_GLOBAL_BATCH_SIZE % pass == 0)) ||
        fail "training.global_batch_size = $TRAINING_GLOBAL_BATCH_SIZE is not a multiple of the $pass sequences of a pass" \
            "$hint"
}

# check_training ARGUMENT...: check the settings, unless arguments for TorchTitan set the
# parallelism.
check_training() {
    local argument parallel=''
    [[ -n $TRAINING_DATA ]] || fail 'training.data is empty' \
        'set data in [training] of configuration.toml to the output of preprocess_data_*.sbatch'
    for argument; do
        if [[ $argument == --parallelism.* ]]; then parallel=1; fi
    done
    if [[ -z $parallel ]] && ((world_size)); then check_batch; fi
}

case ${1:?} in
    training) check_training "${@:2}" ;;
    *) data_check "${@:2}" ;;
esac
