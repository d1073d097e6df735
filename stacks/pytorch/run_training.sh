#!/usr/bin/env bash
# Train with train.py on this node's GPUs, as one of NUM_NODES. Run inside the environment; the
# arguments go to train.py.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

start_ranks "$LONGSHIP_ROOT/train.py" "$@"
