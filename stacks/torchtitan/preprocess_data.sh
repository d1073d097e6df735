#!/usr/bin/env bash
# Make the training and the validation data: JSON Lines -> tokens in Megatron's .bin and .idx, in
# all steps or one (prepare, shard, merge). Run inside the environment, for `shard` once per rank;
# the arguments go to preprocess_data.py. If [training] names no tokenizer, a BPE is trained.
set -euo pipefail

mode=all
if [[ ${1:-} == @(all|prepare|shard|merge) ]]; then
    mode=$1
    shift
fi
bash "${LONGSHIP_ROOT:?}/stacks/torchtitan/check_job.sh" "$mode" "$@"

# tokenize SPLIT TEXT ARGUMENT...: make the tokens of one split.
tokenize() {
    python "$LONGSHIP_ROOT/preprocess_data.py" "$mode" --name="torchtitan_$1" --input="$2" "${@:3}"
}

tokenizer=()
if [[ -n $TRAINING_TOKENIZER ]]; then
    found=$(python "$LONGSHIP_ROOT/lib/jobs/inside/find_tokenizer.py" "$TRAINING_TOKENIZER")
    mapfile -t found <<<"$found"
    tokenizer=(--tokenizer="${found[0]}" --end-of-text="${found[1]}")
fi
tokenize train "$TRAINING_TEXT" "${tokenizer[@]}" "$@"
if [[ -z $TRAINING_VALIDATION_TEXT ]]; then exit; fi
if [[ -z $TRAINING_TOKENIZER ]]; then # use the one trained on the training data
    tokenizer=(--tokenizer="$LONGSHIP_SCRATCH_DIR/data/torchtitan_train_tokenizer.json")
fi
tokenize validation "$TRAINING_VALIDATION_TEXT" "${tokenizer[@]}" "$@"
