#!/usr/bin/env bash
# Make data for pretraining with the script of the stack megatron-lm: JSON Lines -> tokens in
# Megatron's .bin and .idx, in all steps or one (prepare, shard, merge). Run inside the environment,
# for `shard` once per rank; the arguments go to preprocess_data.py. The tokenizer is that of
# [training], else that of its model, else a BPE that is trained.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/stacks/megatron-bridge/python_path.bash"

export TRAINING_TOKENIZER=${TRAINING_TOKENIZER:-$TRAINING_MODEL}
exec bash "$LONGSHIP_ROOT/stacks/megatron-lm/preprocess_data.sh" "$@"
