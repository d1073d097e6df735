# shellcheck shell=bash
# The start of the ranks on this node, for the scripts of all stacks, inside the environment:
#
#   source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
#   start_ranks train.py --steps 10         or: start_ranks -m torchtitan.train ...
#
#   NUM_NODES, GPUS_PER_NODE    shape of the job, 1 and 1 if unset; world_size is their product
#   MASTER_ADDR, MASTER_PORT    rendezvous of several nodes; without Slurm NODE_RANK too
#   LONGSHIP_INSTEAD_OF_RANKS   program that is run once, with the command of a rank, and no ranks

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

readonly num_nodes=${NUM_NODES:-1} gpus_per_node=${GPUS_PER_NODE:-1}
# shellcheck disable=SC2034  # for the stacks
readonly world_size=$((num_nodes * gpus_per_node))

# The signal on which ranks write a checkpoint and end, before the time limit; a stack can set TERM.
checkpoint_signal=USR1

# start_ranks SCRIPT|-m MODULE ARGUMENT...: start one process per GPU with torchrun, unless Slurm
# has started several tasks per node. A script calls it last: it does not return.
start_ranks() {
  if [[ -n ${LONGSHIP_INSTEAD_OF_RANKS:-} ]]; then exec python "$LONGSHIP_INSTEAD_OF_RANKS" "$@"; fi
  ranks_set_wandb
  if ((${LOCAL_WORLD_SIZE:-1} > 1)); then
    trap '' USR1 # it would end the rank before that has a handler: importing PyTorch can take a minute
    if [[ $checkpoint_signal == USR1 ]]; then exec python "$@"; fi
    ranks_run python "$@"
  fi

  # torchrun's own default is one thread, which starves training on CPUs.
  local +x -r threads=$(($(nproc) / gpus_per_node)) # not for the ranks, whatever the user exports
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
  export PYTHONUNBUFFERED=1 # or torchrun would keep back what ranks print until it is 8 KiB
  # shellcheck disable=SC2016  # torchrun fills it in
  export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank ${rank}] '
  # --signals-to-handle: by default torchrun takes Ctrl-C too, and kills the ranks after 30 s.
  export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGHUP,SIGQUIT
  local +x -a rendezvous
  ranks_choose_rendezvous
  # As a module, for torchrun's own script has the path of the Python that it was installed with.
  ranks_run python -m torch.distributed.run \
    --nnodes="$num_nodes" --nproc-per-node="$gpus_per_node" "${rendezvous[@]}" --tee=3 "$@"
}

# ranks_set_wandb: W&B writes to files in the run directory, which submit.py sync uploads;
# WANDB_MODE=online uploads during the run, where compute nodes have a network.
ranks_set_wandb() {
  export WANDB_MODE=${WANDB_MODE:-offline} WANDB_QUIET=${WANDB_QUIET:-true}
  export WANDB_DIR=${WANDB_DIR:-${RUN_DIR:-${LONGSHIP_SCRATCH_DIR:-}}}
  if [[ $WANDB_MODE != online ]]; then export WANDB_ERROR_REPORTING=false; fi
}

# ranks_link_outputs DIR: link the directory of the training's results as <run>/outputs, for
# submit.py report and sync.
ranks_link_outputs() {
  if [[ -n ${RUN_DIR:-} ]] && ((${SLURM_PROCID:-0} == 0)); then ln -sfn -- "$1" "$RUN_DIR/outputs" 2>/dev/null || :; fi
}

# ranks_choose_rendezvous: set rendezvous to torchrun's options. Every rank gets MASTER_ADDR
# unchanged. With torchrun's default (c10d) it would be the host name of the first node that starts,
# which is wrong if another network connects the nodes (JUWELS, JURECA, Olivia), and the order of
# the ranks would not be Slurm's, which keeps neighbours together.
ranks_choose_rendezvous() {
  if ((num_nodes == 1)); then
    rendezvous=(--standalone)
    return
  fi
  rendezvous=(
    --node-rank="${SLURM_NODEID:-${NODE_RANK:?}}"
    --master-addr="${MASTER_ADDR:?}"
    --master-port="${MASTER_PORT:?}"
  )
}

# ranks_run COMMAND...: run it, forward signals to the ranks, and exit with its exit code. Until a
# rank has a handler it ignores USR1, and Ctrl-C, which reaches all processes of a terminal.
ranks_run() {
  local +x status=0 own=0
  trap 'ranks_signal "$checkpoint_signal"' USR1
  trap 'ranks_signal TERM' TERM
  trap ranks_interrupt INT
  (
    trap '' USR1 INT
    exec "$@"
  ) &
  started=$!
  while :; do # a signal interrupts wait, not the training
    wait "$started" && status=0 || status=$?
    if ! kill -0 "$started" 2>/dev/null; then break; fi
  done
  # if it ended at the same moment, its own exit code is still available
  wait "$started" 2>/dev/null && own=0 || own=$?
  if ((own != 127)); then status=$own; fi
  exit "$status"
}

# ranks_interrupt: on Ctrl-C the ranks write a checkpoint and end; a second one, at least a second
# later, kills them. A runtime can forward the first one again.
ranks_interrupt() {
  if [[ -z ${interrupted_at:-} ]]; then
    interrupted_at=$SECONDS
    printf '\nstopping with a checkpoint; Ctrl-C again ends without one\n' >&2
    ranks_signal "$checkpoint_signal"
  elif ((SECONDS > interrupted_at + 1)); then
    ranks_signal KILL
    kill -s TERM "$started" || : # which may have no ranks yet
  fi
}

# ranks_signal SIGNAL: send it to the ranks, not to torchrun, which would fail, or die of USR1
# before them; it ends when they do. Slurm signals only this process, the first of its task. Without
# `return`: in a trap that interrupts wait, bash 5.2 does not continue correctly after it.
ranks_signal() {
  local stat line parent
  local -a ranks=("$started")
  if ((${LOCAL_WORLD_SIZE:-1} == 1)); then # that is torchrun
    ranks=()
    for stat in /proc/[0-9]*/stat; do
      { IFS= read -r line <"$stat"; } 2>/dev/null || continue # ended meanwhile
      read -r _ parent _ <<<"${line##*) }"
      if ((parent == started)); then ranks+=("${stat//[!0-9]/}"); fi
    done
  fi
  if ((${#ranks[@]})); then kill -s "$1" "${ranks[@]}" || :; fi
}
