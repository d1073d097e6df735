#!/usr/bin/env bash
# Refuse a job that Megatron-Bridge cannot run. submit.py runs this before submission, and the job
# again.
#
#   check_job.sh training|all|prepare|shard|merge ARGUMENT...
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

readonly hint='change these values in [training] of configuration.toml'

# check_recipe ARGUMENT...: fail unless the recipe's name tells what it does, and a fine-tuning has
# a model and data.
check_recipe() {
    case _${TRAINING_RECIPE}_ in
        *_pretrain_*) return ;;
        *_sft_* | *_peft_* | *_lora_* | *_dora_*) ;;
        *) fail "unknown recipe: \"$TRAINING_RECIPE\"" \
            'set recipe in [training] of configuration.toml to a name such as qwen3_8b_pretrain_config or qwen3_8b_sft_config' ;;
    esac
    if [[ -z $TRAINING_MODEL && " $*" != *' checkpoint.pretrained_checkpoint='* ]]; then
        fail "$TRAINING_RECIPE trains a model further, but training.model is empty" \
            'set model in [training] of configuration.toml to a directory or a name on the hub'
    fi
    if [[ -z $TRAINING_DATA && " $*" != *' --dataset'[\ =]* ]]; then
        fail 'training.data is empty' \
            'set data in [training] of configuration.toml to a directory with training.jsonl and validation.jsonl'
    fi
}

# check_batch: fail if the sizes do not divide; a size that is the recipe's is not known here.
check_batch() {
    local -r tensor=$TRAINING_TENSOR_PARALLEL pipeline=$TRAINING_PIPELINE_PARALLEL context=$TRAINING_CONTEXT_PARALLEL
    if ((world_size * tensor * pipeline * context * TRAINING_MICRO_BATCH * TRAINING_GLOBAL_BATCH == 0)); then return; fi
    local -r replicas=$((world_size / (tensor * pipeline * context)))
    ((replicas > 0 && TRAINING_GLOBAL_BATCH % (TRAINING_MICRO_BATCH * replicas) == 0)) ||
        fail "global_batch $TRAINING_GLOBAL_BATCH is not a multiple of micro_batch $TRAINING_MICRO_BATCH x $replicas replicas" \
            "$hint"
}

if [[ ${1:?} == training ]]; then
    check_recipe "${@:2}"
    check_batch
    ((TRAINING_WARMUP_STEPS < TRAINING_STEPS)) ||
        fail "training.warmup_steps = $TRAINING_WARMUP_STEPS is not below steps = $TRAINING_STEPS" \
          "$hint"
fi
