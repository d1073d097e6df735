#!/usr/bin/env bash
# Train on this node's GPUs: one process per GPU, started by torchrun, or by Slurm where it starts
# several tasks per node. Run inside the environment; the arguments go to train.py.
#
#   NUM_NODES, GPUS_PER_NODE    shape of the job, 1 and 1 if unset
#   MASTER_ADDR, MASTER_PORT    rendezvous of several nodes
set -euo pipefail

readonly num_nodes=${NUM_NODES:-1} gpus_per_node=${GPUS_PER_NODE:-1}

if ((${LOCAL_WORLD_SIZE:-1} > 1)); then
    trap '' USR1 # which would end it as long as it has no handler: importing PyTorch can take a minute
    exec python "${LONGSHIP_ROOT:?}/train.py" "$@"
fi

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

# pass_on SIGNAL: Slurm tells the first process of a task only, which this is, before the time limit or
# at the end of a job. The workers write a checkpoint and end well, and then torchrun does; told
# itself, it would end badly, or die of USR1 before them.
pass_on() {
    local stat line parent
    local -a workers=()
    for stat in /proc/[0-9]*/stat; do
        { IFS= read -r line <"$stat"; } 2>/dev/null || continue # ended meanwhile
        read -r _ parent _ <<<"${line##*) }"
        if ((parent == torchrun)); then workers+=("${stat//[!0-9]/}"); fi
    done
    if ((${#workers[@]})); then kill -s "$1" "${workers[@]}" || :; fi
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM

# As a module, for torchrun's own script has the path of the Python that it was installed with. Until
# train.py has handlers of its own its workers ignore USR1 as torchrun does.
(
    trap '' USR1
    exec python -m torch.distributed.run \
        --nnodes="$num_nodes" --nproc-per-node="$gpus_per_node" "${rendezvous[@]}" --tee=3 \
        "${LONGSHIP_ROOT:?}/train.py" "$@"
) &
torchrun=$!
status=0
while :; do # a signal ends the waiting, not the training
    wait "$torchrun" && status=0 || status=$?
    kill -0 "$torchrun" 2>/dev/null || exit "$status"
done
