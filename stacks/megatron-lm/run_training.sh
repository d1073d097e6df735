#!/usr/bin/env bash
# Pre-train a GPT with Megatron-LM. Run inside the environment; the settings of stack.toml's
# [training] are in the variables TRAINING_*, and the arguments are passed to pretrain_gpt.py last,
# so they override the settings.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/lib/jobs/inside/data.bash"

readonly tensor=$TRAINING_TENSOR_PARALLEL pipeline=$TRAINING_PIPELINE_PARALLEL
readonly hint='change these values in [training] of configuration.toml'

# divides DIVISOR NUMBER MESSAGE: fail early; Megatron asserts the same, but in each rank and after
# its imports.
divides() {
    (($1 > 0 && $2 % $1 == 0)) || fail "$3" "$hint"
}
divides $((tensor * pipeline)) "$world_size" \
    "tensor_parallel $tensor x pipeline_parallel $pipeline does not divide $world_size GPUs"
divides "$tensor" "$TRAINING_HEADS" "tensor_parallel $tensor does not divide heads $TRAINING_HEADS"
divides "$pipeline" "$TRAINING_LAYERS" "pipeline_parallel $pipeline does not divide layers $TRAINING_LAYERS"
readonly replicas=$((world_size / (tensor * pipeline)))
divides $((TRAINING_MICRO_BATCH * replicas)) "$TRAINING_GLOBAL_BATCH" \
    "global_batch $TRAINING_GLOBAL_BATCH is not a multiple of micro_batch $TRAINING_MICRO_BATCH x $replicas replicas"

arguments=(
    --tensor-model-parallel-size="$tensor"
    --pipeline-model-parallel-size="$pipeline"
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --num-layers="$TRAINING_LAYERS"
    --hidden-size="$TRAINING_HIDDEN_SIZE"
    --num-attention-heads="$TRAINING_HEADS"
    --seq-length="$TRAINING_SEQUENCE_LENGTH"
    --max-position-embeddings="$TRAINING_SEQUENCE_LENGTH"
    --bf16
    --micro-batch-size="$TRAINING_MICRO_BATCH"
    --global-batch-size="$TRAINING_GLOBAL_BATCH"
    --train-iters="$TRAINING_STEPS"
    --lr="$TRAINING_LEARNING_RATE"
    --lr-decay-style=cosine
    --lr-warmup-fraction=0.01
    --clip-grad=1.0
    --no-create-attention-mask-in-dataloader # TransformerEngine's kernels build their own
    --eval-interval="$TRAINING_SAVE_INTERVAL" --eval-iters=10
    --log-interval=10 --log-throughput
)
if ((tensor > 1)); then arguments+=(--sequence-parallel); fi

case $TRAINING_RECIPE in
    llama)
        min_lr=$(LC_ALL=C awk -v lr="$TRAINING_LEARNING_RATE" 'BEGIN { print lr / 10 }')
        arguments+=(--attention-dropout=0 --hidden-dropout=0 --weight-decay=0.1 --adam-beta2=0.95 --min-lr="$min_lr")
        ;;
    gpt2) # Megatron's defaults, set because they can change
        arguments+=(--attention-dropout=0.1 --hidden-dropout=0.1 --weight-decay=0.01 --adam-beta2=0.999 --min-lr=0)
        ;;
    *) fail "unknown recipe: \"$TRAINING_RECIPE\"" 'set recipe to "llama" or "gpt2" in [training] of configuration.toml' ;;
esac

# check_split PREFIX...: refuse a share without a document, for which Megatron counts epochs
# forever.
check_split() {
    local prefix documents share
    local -a shares
    local -i sum=0
    [[ $TRAINING_SPLIT =~ ^(0|[1-9][0-9]*)(,\ *(0|[1-9][0-9]*))*$ ]] ||
        fail "split: expected integers separated by commas, got \"$TRAINING_SPLIT\"" \
            'write split = "98,1,1", for example, in [training] of configuration.toml'
    IFS=, read -ra shares <<<"$TRAINING_SPLIT"
    for share in "${shares[@]}"; do sum+=share; done
    for prefix; do
        [[ -f $prefix.idx ]] || continue # a weight
        documents=$(($(od -An -t d8 -j 18 -N 8 "$prefix.idx")))
        for share in "${shares[@]}"; do
            ((share == 0 || documents * share >= sum)) ||
                fail "split $TRAINING_SPLIT leaves a share empty: $prefix has $documents documents" "$hint"
        done
    done
}

tokenizer=$TRAINING_TOKENIZER
given=" $* " # one among the arguments replaces it
if [[ $given == *' --tokenizer-type'[=\ ]* ]]; then tokenizer=given; fi
if [[ -n $TRAINING_DATA ]]; then
    mapfile -t data <<<"$TRAINING_DATA"
    check_split "${data[@]}"
    arguments+=(
        --data-path "${data[@]}"
        --split="$TRAINING_SPLIT"
        --data-cache-path="$(data_cache megatron-lm "${data[@]}")"
    )
    if [[ -z $tokenizer ]]; then
        tokenizer=${data[-1]%_text_document}_tokenizer # the first can be a weight
        [[ -d $tokenizer ]] || fail "the data's tokenizer was not found: $tokenizer" \
            'set tokenizer in [training] of configuration.toml to the tokenizer of the data'
    fi
else
    arguments+=(--mock-data)
fi
if [[ $tokenizer == given ]]; then
    :
elif [[ -n $tokenizer ]]; then
    arguments+=(--tokenizer-type=HuggingFaceTokenizer --tokenizer-model="$tokenizer")
else
    arguments+=(--tokenizer-type=NullTokenizer --vocab-size=50256)
fi

script=("${LONGSHIP_REPOSITORIES:?}/Megatron-LM/pretrain_gpt.py")
if [[ -n $TRAINING_PROFILE ]]; then
    # A profile neither reads nor writes checkpoints: after a resume, step 10 would be in the past.
    ((TRAINING_STEPS >= 12)) ||
      fail "cannot profile the 11th and 12th step: steps is $TRAINING_STEPS" "$hint"
    read -ra ranks <<<"$TRAINING_PROFILE"
    arguments+=(--profile --profile-step-start=10 --profile-step-end=12 --profile-ranks "${ranks[@]}")
    script=("$LONGSHIP_ROOT/stacks/megatron-lm/profile_ranks.py" "${script[@]}")
else
    checkpoints=$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME
    arguments+=(
        --save="$checkpoints" --load="$checkpoints" --save-interval="$TRAINING_SAVE_INTERVAL"
        --exit-signal-handler
        --tensorboard-dir="$checkpoints/tensorboard" --log-timers-to-tensorboard
    )
    script=("$LONGSHIP_ROOT/stacks/megatron-lm/record_metrics.py" "${script[@]}")
fi

# Tensor parallelism requires this on A100 and GH200: kernels start in the order of their launch,
# communication before the computation that it overlaps with.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}

# shellcheck disable=SC2034  # the only signal that --exit-signal-handler takes
checkpoint_signal=TERM
start_ranks "${script[@]}" "${arguments[@]}" "$@"
