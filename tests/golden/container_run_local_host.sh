#!/usr/bin/env bash
# Longship: container_run.py, machine local (local/site.toml)
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

# make_folders FOLDER...: make the configured folders, or say which one cannot be made.
make_folders() {
  local folder reason
  for folder in "$@"; do
    [[ -d $folder ]] && continue
    reason=$(mkdir -p -- "$folder" 2>&1) ||
      fail_writing "$folder" "cannot make the folder $folder: ${reason##*: }" \
        'set [paths] in configuration.toml to a place that you can write to'
  done
}

# take_command INTERACTIVE_FILE ARGUMENT...: what to run; nothing said is an interactive shell.
take_command() {
  command=("${@:2}")
  if ((${#command[@]} == 0)); then command=(bash --rcfile "$1" -i); fi
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

# fail_writing FOLDER MESSAGE HINT: the same after something could not be written; a full disk is
# the reason that programs tell least clearly. Some take back what they were writing (uv, a package
# a core), so a disk counts as full before the last byte.
fail_writing() {
  local free=16777216 size=1 files_free=1 files=0
  read -r free size files_free files < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${files:-0} > 0 && ${files_free:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'make room there, or set [paths] in configuration.toml; then run the same command again'
  fi
  fail "$2" "$3"
}

make_folders /home/me/longship/project /home/me/longship/scratch

# Nothing of the host's compilers and Python reaches the program.
unset BASH_ENV ENV LD_PRELOAD LESSOPEN CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH \
  CMAKE_PREFIX_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV \
  "${!CONDA_@}" "${!_CE_@}" HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE \
  MY_HOST_ONLY "${!MY_HOST_@}"

# What the program finds inside, in every runtime: POSIX sh.
# shellcheck disable=SC2016 # expanded inside, not here
contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT='"'"'/home/me/long ship'"'"'
export LONGSHIP_MACHINE=local
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/home/me/longship/project
export LONGSHIP_SCRATCH_DIR=/home/me/longship/scratch
export LONGSHIP_CHECKPOINT_DIR=/home/me/longship/scratch/checkpoints
export LONGSHIP_REPOSITORIES=/home/me/longship/project/repos
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
export OMP_NUM_THREADS=8
export GREETING='"'"'it'"'"'"'"'"'"'"'"'s "$HOME"'"'"'
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
export VIRTUAL_ENV=/home/me/longship/scratch/venv_pytorch_amd64
export PATH="$VIRTUAL_ENV"/bin:"$PATH"
command -v -- "$1" >/dev/null || {
  echo "error: there is no command \"$1\" inside" >&2
  echo "hint: a Python package? add it to the requirements, then: python3 set_up.py install" >&2
  exit 127
}
exec "$@"'

check_venv /home/me/longship/scratch/venv_pytorch_amd64 host
take_command '/home/me/long ship/lib/shell/interactive.bash' "$@"
exec /bin/sh -c "$contract" longship "${command[@]}"
