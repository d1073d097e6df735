#!/usr/bin/env bash
# Train on this node's GPUs, as one of NUM_NODES. Run inside the environment; the arguments go to
# fine_tune.py.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/stacks/trl/settings.bash"

# If Slurm starts one task per rank, one rank of each node checks.
if ((${LOCAL_RANK:-0} == 0)); then
    python "$LONGSHIP_ROOT/stacks/trl/prepare_data.py" "${options[@]}"
fi
start_ranks "$LONGSHIP_ROOT/stacks/trl/fine_tune.py" "${options[@]}"
