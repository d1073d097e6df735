#!/usr/bin/env bash
# Read the training data once, so that the ranks find it in the cache, and try the tokenizer on it:
# TorchTitan tokenizes while it trains. Run inside the environment, on one node, without GPUs.
set -euo pipefail

case ${1:-all} in
    all) ;;
    prepare | shard | merge)
        echo 'error: the data of this stack is prepared by one task' >&2
        echo 'hint: submit preprocess_data_SITE.sbatch, not preprocess_data_parallel_SITE.sbatch' >&2
        exit 1
        ;;
    *)
        echo "error: the data of this stack takes no argument such as $1" >&2
        echo 'hint: name them in configuration.toml: [training] data = [...]' >&2
        exit 2
        ;;
esac
exec python "${LONGSHIP_ROOT:?}/stacks/torchtitan/check_data.py"
