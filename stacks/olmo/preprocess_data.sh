#!/usr/bin/env bash
# Make the training data, in all steps or one (prepare, shard, merge). Run inside the environment,
# for `shard` once per rank; the arguments go to preprocess_data.py of this repository. OLMo reads
# the token IDs of the .bin file directly; the .idx file is for other programs.
set -euo pipefail

mode=all
if [[ ${1:-} == @(all|prepare|shard|merge) ]]; then
    mode=$1
    shift
fi

tokenizer=${TRAINING_TOKENIZER:?}
if [[ $tokenizer != /* ]]; then tokenizer=${LONGSHIP_REPOSITORIES:?}/OLMo/$tokenizer; fi

exec python "${LONGSHIP_ROOT:?}/preprocess_data.py" "$mode" --name olmo --tokenizer "$tokenizer" "$@"
