#!/usr/bin/env bash
# Read the training data once, so that the ranks find it in the cache, and try the tokenizer on it:
# TorchTitan tokenizes while it trains. Run inside the environment, on one node, without GPUs.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/inside/ranks.bash"

[[ ${1:-all} == all ]] ||
    fail 'TorchTitan needs its data prepared by one task alone' \
        'use a job file without "parallel" in its name: jsc/preprocess_data_jwc.sbatch'
(($# < 2)) ||
    fail "the data step takes no argument: $2" 'name the files in configuration.toml: [training] data = [...]'

exec python "$LONGSHIP_ROOT/stacks/torchtitan/check_data.py"
