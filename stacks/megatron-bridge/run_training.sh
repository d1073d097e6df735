#!/usr/bin/env bash
# Train with a recipe of Megatron-Bridge. Run inside the environment; the settings of stack.toml's
# [training] are in the variables TRAINING_*, and the arguments are passed to run_recipe.py last, so
# they override the settings.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/lib/jobs/inside/data.bash"
source "$LONGSHIP_ROOT/stacks/megatron-bridge/python_path.bash"

bash "$LONGSHIP_ROOT/stacks/megatron-bridge/check_job.sh" training "$@"

# quote VALUE...: print strings of Hydra's grammar, separated by commas: paths can contain spaces
# and commas.
quote() {
    local IFS=,
    local -a quoted=("${@//\'/\\\'}")
    quoted=("${quoted[@]/#/\'}")
    printf '%s' "${quoted[*]/%/\'}"
}

# set_option OPTION VALUE: pass a setting on, unless it is the recipe's.
set_option() {
    if [[ -n $2 && $2 != 0 ]]; then arguments+=("$1" "$2"); fi
}

readonly run=$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME
arguments=(
    --recipe "$TRAINING_RECIPE"
    --max_steps "$TRAINING_STEPS"
    --warmup_iters "$TRAINING_WARMUP_STEPS"
    --save_dir "$run"
    --load_dir "$run"
    --save_interval "$TRAINING_CHECKPOINT_INTERVAL"
)
set_option --tensor_model_parallel_size "$TRAINING_TENSOR_PARALLEL"
set_option --pipeline_model_parallel_size "$TRAINING_PIPELINE_PARALLEL"
set_option --context_parallel_size "$TRAINING_CONTEXT_PARALLEL"
set_option --seq_length "$TRAINING_SEQUENCE_LENGTH"
set_option --micro_batch_size "$TRAINING_MICRO_BATCH"
set_option --global_batch_size "$TRAINING_GLOBAL_BATCH"
set_option --lr "$TRAINING_LEARNING_RATE"

tokenizer=$TRAINING_TOKENIZER
overrides=(
    train.exit_signal_handler=true
    logger.tensorboard_dir="$(quote "$run/tensorboard")"
    validation.eval_interval="$TRAINING_VALIDATION_INTERVAL"
    validation.eval_iters="$TRAINING_VALIDATION_STEPS"
)
if ((TRAINING_TENSOR_PARALLEL > 1)); then overrides+=(model.sequence_parallel=true); fi
if [[ -n $TRAINING_DATA ]]; then
    mapfile -t data <<<"$TRAINING_DATA"
    if [[ $TRAINING_RECIPE == *_pretrain_* ]]; then
        overrides+=(
            dataset.data_path="[$(quote "${data[@]}")]"
            dataset.split="$(quote "$TRAINING_SPLIT")"
            dataset.path_to_cache="$(quote "$(data_cache megatron-bridge "${data[@]}")")"
        )
        if [[ -z $tokenizer$TRAINING_MODEL ]]; then
            tokenizer=${data[-1]%_text_document}_tokenizer # the first can be a weight
        fi
    else
        arguments+=(--dataset local-jsonl)
        overrides+=(dataset.dataset_root="$(quote "${data[0]}")")
    fi
fi
if [[ -n $tokenizer ]]; then
    overrides+=(tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model="$(quote "$tokenizer")")
fi

# shellcheck disable=SC2034  # the signal that exit_signal_handler takes
checkpoint_signal=TERM
start_ranks "$LONGSHIP_ROOT/stacks/megatron-bridge/train.py" "${arguments[@]}" "${overrides[@]}" "$@"
