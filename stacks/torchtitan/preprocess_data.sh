#!/usr/bin/env bash
# Read the training data once, so that the ranks find it in the cache, and try the tokenizer on it:
# TorchTitan tokenizes while it trains. Run inside the environment, on one node, without GPUs.
set -euo pipefail

if [[ ${1:-all} == shard ]]; then
    echo 'error: the data of this stack is prepared by one task' >&2
    echo 'hint: submit preprocess_data_SITE.sbatch, not preprocess_data_parallel_SITE.sbatch' >&2
    exit 1
fi
exec python "${LONGSHIP_ROOT:?}/stacks/torchtitan/check_data.py"
