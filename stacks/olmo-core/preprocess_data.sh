#!/usr/bin/env bash
# Make the training and the validation data, JSON Lines -> token IDs, in all steps or one (prepare,
# shard, merge). Run inside the environment, for `shard` once per rank; the arguments go to
# preprocess_data.py. If [training] names no tokenizer, a BPE is trained. OLMo-core reads the token
# IDs of the .bin files directly.
set -euo pipefail

mode=all
if [[ ${1:-} == @(all|prepare|shard|merge) ]]; then
    mode=$1
    shift
fi
bash "${LONGSHIP_ROOT:?}/stacks/olmo-core/check_job.sh" "$mode" "$@"

readonly trained=$LONGSHIP_SCRATCH_DIR/data/olmo-core_train_tokenizer

# tokenize SPLIT TEXT ARGUMENT...: make the tokens of one split.
tokenize() {
    python "$LONGSHIP_ROOT/preprocess_data.py" "$mode" --name="olmo-core_$1" --input="$2" "${@:3}"
}

# save_tokenizer: save the trained BPE also as a directory in Hugging Face's format, which the
# training reads, maybe now.
save_tokenizer() {
    local -r partial=$trained.partial-$(uname -n)-$$
    rm -rf -- "$partial"
    mkdir -p -- "$trained" "$partial"
    cp -- "$trained.json" "$partial/tokenizer.json"
    printf '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}\n' \
        >"$partial/tokenizer_config.json"
    mv -- "$partial"/* "$trained"
    rmdir -- "$partial"
}

tokenizer=()
if [[ -n $TRAINING_TOKENIZER ]]; then
    found=$(python "$LONGSHIP_ROOT/lib/jobs/inside/find_tokenizer.py" "$TRAINING_TOKENIZER")
    mapfile -t found <<<"$found"
    tokenizer=(--tokenizer="${found[0]}" --end-of-text="${found[1]}")
fi
tokenize train "$TRAINING_TEXT" "${tokenizer[@]}" "$@"
if [[ -z $TRAINING_TOKENIZER ]]; then # use the one trained on the training data
    tokenizer=(--tokenizer="$trained.json")
    if [[ $mode == @(all|prepare) ]]; then save_tokenizer; fi
fi
if [[ -z $TRAINING_VALIDATION_TEXT ]]; then exit; fi
tokenize validation "$TRAINING_VALIDATION_TEXT" "${tokenizer[@]}" "$@"
