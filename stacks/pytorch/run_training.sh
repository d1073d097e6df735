#!/usr/bin/env bash
# Train on this node's GPUs: one process per GPU, started by torchrun.
# Run once per node, inside the environment; the arguments go to train.py.
#
#   NUM_NODES, GPUS_PER_NODE    shape of the job, 1 and 1 if unset
#   MASTER_ADDR, MASTER_PORT    rendezvous of several nodes
set -euo pipefail

readonly num_nodes=${NUM_NODES:-1} gpus_per_node=${GPUS_PER_NODE:-1}

if ((num_nodes > 1)); then
    rendezvous=(
        --rdzv-backend=c10d
        --rdzv-endpoint="${MASTER_ADDR:?}:${MASTER_PORT:?}"
        --rdzv-id="${SLURM_JOB_ID:-longship}"
    )
    # The first node hosts the rendezvous. Left alone, torchrun compares MASTER_ADDR with the host
    # name, in vain where it is the name of another network (JUWELS, JURECA: the host name and `i`).
    if [[ -n ${SLURM_NODEID:-} ]]; then
        rendezvous+=(--rdzv-conf="is_host=$((SLURM_NODEID == 0))")
    fi
else
    rendezvous=(--standalone)
fi

# torchrun's own default is one thread, which starves training on CPUs.
threads=$(($(nproc) / gpus_per_node))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
# shellcheck disable=SC2016  # torchrun fills it in
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank ${rank}] '

# Slurm sends USR1 to every process of a step: torchrun would die of it before its workers, which
# set a handler of their own, have written the checkpoint.
trap '' USR1

# As a module, for torchrun's own script has the path of the Python that it was installed with.
exec python -m torch.distributed.run \
    --nnodes="$num_nodes" --nproc-per-node="$gpus_per_node" "${rendezvous[@]}" --tee=3 \
    "${LONGSHIP_ROOT:?}/train.py" "$@"
