# shellcheck shell=bash
# How the scripts of all stacks start their ranks on this node, inside the environment:
#
#   source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
#   start_ranks train.py --steps 10         or: start_ranks -m torchtitan.train ...
#
#   NUM_NODES, GPUS_PER_NODE    shape of the job, 1 and 1 if unset; world_size is their product
#   MASTER_ADDR, MASTER_PORT    rendezvous of several nodes; without Slurm NODE_RANK too

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

readonly num_nodes=${NUM_NODES:-1} gpus_per_node=${GPUS_PER_NODE:-1}
# shellcheck disable=SC2034  # for the stacks
readonly world_size=$((num_nodes * gpus_per_node))

# What ranks are told before the time limit, to write a checkpoint and end: a stack may say TERM.
checkpoint_signal=USR1

# start_ranks SCRIPT|-m MODULE ARGUMENT...: one process per GPU, started by torchrun, or by Slurm where
# it starts several tasks per node. The last thing that a script does.
start_ranks() {
  if ((${LOCAL_WORLD_SIZE:-1} > 1)); then
    trap '' USR1 # which would end it as long as it has no handler: importing PyTorch can take a minute
    if [[ $checkpoint_signal == USR1 ]]; then exec python "$@"; fi
    run_and_tell python "$@"
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
  choose_rendezvous
  # As a module, for torchrun's own script has the path of the Python that it was installed with.
  run_and_tell python -m torch.distributed.run \
    --nnodes="$num_nodes" --nproc-per-node="$gpus_per_node" "${rendezvous[@]}" --tee=3 "$@"
}

# choose_rendezvous: set `rendezvous`, torchrun's options. Every rank gets MASTER_ADDR as it stands. With
# torchrun's own choice (c10d) they would get the host name of whichever node comes first, which does
# not lead anywhere where another network connects the nodes (JUWELS, JURECA, Olivia); and the ranks'
# order would not be Slurm's, which keeps neighbours together.
choose_rendezvous() {
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

# run_and_tell COMMAND...: run it, pass signals on to the ranks, and end as it ends. Until a rank has a
# handler of its own it ignores USR1, and Ctrl-C, which reaches all processes of a terminal.
run_and_tell() {
  local +x status=0 own=0
  trap 'tell_ranks "$checkpoint_signal"' USR1
  trap 'tell_ranks TERM' TERM
  trap interrupt_ranks INT
  (
    trap '' USR1 INT
    exec "$@"
  ) &
  started=$!
  while :; do # a signal ends the waiting, not the training
    wait "$started" && status=0 || status=$?
    if ! kill -0 "$started" 2>/dev/null; then break; fi
  done
  # it can have ended in the same moment, and then its own status is still to be had
  wait "$started" 2>/dev/null && own=0 || own=$?
  if ((own != 127)); then status=$own; fi
  exit "$status"
}

# interrupt_ranks: on Ctrl-C the ranks write a checkpoint and end; a second one ends them at once. It
# must be a second later: a runtime may pass on what the terminal has sent already.
interrupt_ranks() {
  if [[ -z ${interrupted_at:-} ]]; then
    interrupted_at=$SECONDS
    printf '\nstopping with a checkpoint; Ctrl-C again ends without one\n' >&2
    tell_ranks "$checkpoint_signal"
  elif ((SECONDS > interrupted_at + 1)); then
    tell_ranks KILL
    kill -s TERM "$started" || : # which may have no ranks yet
  fi
}

# tell_ranks SIGNAL: Slurm tells the first process of a task only, which this is, before the time limit
# or at the end of a job. The ranks write a checkpoint and end well, and then torchrun does; told
# itself, it would end badly, or die of USR1 before them. No `return` stands in here: bash 5.2 loses
# its way with one in a trap that ends a waiting.
tell_ranks() {
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
