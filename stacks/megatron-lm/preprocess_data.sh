#!/usr/bin/env bash
# Make the training data: JSON Lines -> tokens in Megatron's .bin and .idx, in all steps or one
# (prepare, shard, merge). Run inside the environment, for `shard` once per rank; the arguments go
# to preprocess_data.py. If [training] names no tokenizer, a BPE is trained and also saved in the
# format that Megatron-LM reads.
set -euo pipefail

readonly preprocess=${LONGSHIP_ROOT:?}/preprocess_data.py

if [[ -n $TRAINING_TOKENIZER ]]; then
    found=$(python "$LONGSHIP_ROOT/lib/jobs/inside/find_tokenizer.py" "$TRAINING_TOKENIZER")
    mapfile -t found <<<"$found"
    exec python "$preprocess" --tokenizer="${found[0]}" --end-of-text="${found[1]}" "$@"
fi
if [[ ${1:-} == @(shard|merge) ]]; then exec python "$preprocess" "$@"; fi
python "$preprocess" "$@"
PYTHONPATH=$LONGSHIP_ROOT${PYTHONPATH:+:$PYTHONPATH} exec python "$LONGSHIP_ROOT/stacks/megatron-lm/tokenizer_files.py" "$@"
