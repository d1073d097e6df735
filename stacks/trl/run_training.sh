#!/usr/bin/env bash
# Fine-tune on this node's GPUs, as one of NUM_NODES. Run inside the environment; the arguments go to
# fine_tune.py.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/stacks/trl/settings.bash"

# Weights & Biases writes to files, to be uploaded later; WANDB_MODE=online uploads during the run.
# Nothing is written to the home directory.
readonly wandb=${LONGSHIP_SCRATCH_DIR:?}/cache/wandb
export WANDB_MODE=${WANDB_MODE:-offline}
export WANDB_DIR=${WANDB_DIR:-${RUN_DIR:-$LONGSHIP_SCRATCH_DIR}}
export WANDB_CACHE_DIR=${WANDB_CACHE_DIR:-$wandb/cache}
export WANDB_CONFIG_DIR=${WANDB_CONFIG_DIR:-$wandb/config}
export WANDB_DATA_DIR=${WANDB_DATA_DIR:-$wandb/data}
export WANDB_QUIET=${WANDB_QUIET:-true}
if [[ $WANDB_MODE != online ]]; then export WANDB_ERROR_REPORTING=false; fi

# If Slurm starts one task per rank, one rank of each node checks.
if ((${LOCAL_RANK:-0} == 0)); then
    python "$LONGSHIP_ROOT/stacks/trl/prepare_data.py" "${options[@]}"
fi
start_ranks "$LONGSHIP_ROOT/stacks/trl/fine_tune.py" "${options[@]}"
