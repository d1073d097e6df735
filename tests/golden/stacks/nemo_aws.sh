#!/usr/bin/env bash
# Longship: nemo on aws
set -euo pipefail

# check_venv FOLDER BASE: stop where the venv is missing or was made on top of something else.
check_venv() {
  local base=
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg ]]; then return 0; fi # the user's own, used as it is
  [[ -e $1/longship-base ]] ||
    fail "the Python packages are not installed: no $1" 'python3 set_up.py install'
  IFS= read -r base <"$1/longship-base" || :
  [[ $base == "$2" ]] ||
    fail "the Python packages in $1 belong to $base, not to $2" 'python3 set_up.py install'
}

# take_rank: what torch.distributed reads, for a step with a task for each rank; torchrun sets its own.
# The names without STEP are in the batch script too, which is no rank.
take_rank() {
  if [[ -z ${SLURM_STEP_NUM_TASKS:-} ]]; then return 0; fi
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS LOCAL_RANK=$SLURM_LOCALID
  export NODE_RANK=$SLURM_NODEID LOCAL_WORLD_SIZE
  # of each node: 8(x2),4
  local count
  local -i node=0
  for count in ${SLURM_STEP_TASKS_PER_NODE//,/ }; do
    if [[ $count =~ x([0-9]+) ]]; then node+=${BASH_REMATCH[1]}; else node+=1; fi
    LOCAL_WORLD_SIZE=${count%%(*}
    if ((SLURM_NODEID < node)); then return; fi
  done
}

# print_messages [KIND TEXT]...: a line each, on standard error, at once: jobs share a log.
print_messages() {
  local REPLY told=''
  while (($#)); do
    paint 2 "$1:"
    told+="$REPLY $2"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# paint FILE WORD: set REPLY to the word, in its colour where that file (1 or 2) is a terminal which
# shows colours, unless NO_COLOR says that the user wants none: https://no-color.org. Without `return`: in
# a trap that would have the status of what was interrupted.
paint() {
  local colour
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    case $2 in
      error: | problem) colour=31 ;;                            # red
      warning: | warning) colour=33 ;;                          # yellow
      ok) colour=32 ;;                                          # green
      hint: | next: | follow: | cancel: | status:) colour=36 ;; # cyan
      *) colour=1 ;;                                            # bold
    esac
    REPLY=$'\e['${colour}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

check_venv /fsx/me/longship/venv_nemo_amd64 /fsx/me/longship/containers/nemo_amd64.sqsh
take_rank

# What the program finds inside, in every runtime: POSIX sh.
# shellcheck disable=SC2016 # expanded there, not here
contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT=/home/me/longship
export LONGSHIP_MACHINE=aws
export LONGSHIP_STACK=nemo
export LONGSHIP_PROJECT_DIR=/fsx/me/longship
export LONGSHIP_SCRATCH_DIR=/fsx/me/longship
export LONGSHIP_CHECKPOINT_DIR=/fsx/me/longship/checkpoints
export LONGSHIP_REPOSITORIES=/fsx/me/longship/repos
export TRAINING_MODEL=gpt3/126m
export TRAINING_DATA='"'"''"'"'
export TRAINING_TOKENIZER=openai-community/gpt2
export TRAINING_STEPS=100
export TRAINING_VALIDATION_INTERVAL=0
export TRAINING_TENSOR_PARALLEL=0
export TRAINING_PIPELINE_PARALLEL=0
export TRAINING_MICRO_BATCH=0
export TRAINING_GLOBAL_BATCH=0
export TRAINING_RESULTS=results
export TRAINING_UNIQUE_RESULTS=0
export XDG_CACHE_HOME="$LONGSHIP_SCRATCH_DIR"/cache/xdg
export HF_HOME="$LONGSHIP_SCRATCH_DIR"/cache/huggingface
export PIP_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/pip
export UV_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/uv
export TORCH_HOME="$LONGSHIP_SCRATCH_DIR"/cache/torch
export TORCH_EXTENSIONS_DIR="$LONGSHIP_SCRATCH_DIR"/cache/torch_extensions
export TORCHINDUCTOR_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/inductor
export TRITON_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/triton
export CUDA_CACHE_PATH="$LONGSHIP_SCRATCH_DIR"/cache/cuda
export NUMBA_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/numba
export MPLCONFIGDIR="$LONGSHIP_SCRATCH_DIR"/cache/matplotlib
export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-$LONGSHIP_SCRATCH_DIR/cache/miopen}"
export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-$LONGSHIP_SCRATCH_DIR/cache/miopen}"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
export VIRTUAL_ENV=/fsx/me/longship/venv_nemo_amd64
export PATH="$VIRTUAL_ENV"/bin:"$PATH"
command -v -- "$1" >/dev/null || {
  echo "error: there is no command \"$1\" inside" >&2
  echo "hint: a Python package? add it to the requirements, then: python3 set_up.py install" >&2
  exit 127
}
exec "$@"'

exec /bin/sh -c "$contract" longship "$@"
