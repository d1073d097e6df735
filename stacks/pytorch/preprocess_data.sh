#!/usr/bin/env bash
# Make the training data, in all steps or one (prepare, shard, merge). Run inside the environment,
# for `shard` once per rank; the arguments go to preprocess_data.py.
set -euo pipefail

exec python "${LONGSHIP_ROOT:?}/preprocess_data.py" "$@"
