#!/usr/bin/env bash
# Longship: container_run, machine jpb (jsc/site.toml)
set -euo pipefail

longship_main() {
  roots_make /e/scratch/project_465000000/me/longship \
    /e/project1/project_465000000/me/longship \
    /e/scratch/project_465000000/me/longship/checkpoints
  host_forget MY_HOST_ONLY "${!MY_HOST_@}"
  caches_keep XDG_CACHE_HOME HF_HOME PIP_CACHE_DIR UV_CACHE_DIR TORCH_HOME \
    TORCH_EXTENSIONS_DIR NUMBA_CACHE_DIR MPLCONFIGDIR WANDB_CACHE_DIR WANDB_CONFIG_DIR \
    WANDB_DATA_DIR TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR CUDA_CACHE_PATH \
    MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR -- PYTHONNOUSERSITE UV_LINK_MODE HF_TOKEN_PATH \
    HF_STORED_TOKENS_PATH HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE HF_HUB_OFFLINE \
    HF_DATASETS_OFFLINE HF_EVALUATE_OFFLINE TRANSFORMERS_OFFLINE OMP_NUM_THREADS GREETING
  node_cache_make
  program_check apptainer
  image=/e/scratch/project_465000000/me/longship/containers/pytorch_26.09-py3_arm64.sif
  sif_check "$image" arm64 'run: python3 build_container.py --machine=jpb && python3 move_built_container_to_active.py --machine=jpb'
  host_check_arch arm64 "the image $image"
  options=()
  sif_add_options gpus
  bind_add_if_exists /e/project1/project_465000000/me/longship
  bind_add_if_exists /e/scratch/project_465000000/me/longship
  bind_add '/e/project1/project_465000000/me/long&ship'
  bind_add /data /data ro
  patched_file_add '/e/project1/project_465000000/me/long&ship/patches/files/it'"'"'s_yaml.py' /usr/lib/python3/dist-packages/yaml/__init__.py
  bind_host_files
  bind_pip_sources
  venv_check /e/scratch/project_465000000/me/longship/venv_pytorch_arm64 /e/scratch/project_465000000/me/longship/containers/pytorch_26.09-py3_arm64.sif
  command_set '/e/project1/project_465000000/me/long&ship/lib/runtimes/inside/interactive.bash' "$@"
  command_check_text
  command_exec apptainer --quiet exec "${options[@]}" "$image" /bin/sh -c "$longship_contract" longship "${command[@]}"
}

# The environment inside, the same for every runtime: POSIX sh.
# shellcheck disable=SC2016,SC2034 # expanded where it is used, not here
longship_contract='is_callers() { case ${LONGSHIP_CALLERS-} in *" $1 "*) ;; *) return 1 ;; esac; }
for longship_name in ${LONGSHIP_CALLERS-}; do
  eval "longship_was_$longship_name=\${$longship_name-}"
done
export PYTHONNOUSERSITE=1
export PIP_USER=0
export UV_LINK_MODE=copy
export LONGSHIP_ROOT='"'"'/e/project1/project_465000000/me/long&ship'"'"'
export LONGSHIP_MACHINE=jpb
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/e/project1/project_465000000/me/longship
export LONGSHIP_SCRATCH_DIR=/e/scratch/project_465000000/me/longship
export LONGSHIP_CHECKPOINT_DIR=/e/scratch/project_465000000/me/longship/checkpoints
export LONGSHIP_REPOSITORIES=/e/project1/project_465000000/me/longship/repos
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE
is_callers XDG_CACHE_HOME || export XDG_CACHE_HOME="$LONGSHIP_SCRATCH_DIR/cache/xdg"
is_callers HF_HOME || export HF_HOME="$LONGSHIP_SCRATCH_DIR/cache/huggingface"
is_callers PIP_CACHE_DIR || export PIP_CACHE_DIR="$LONGSHIP_SCRATCH_DIR/cache/pip"
is_callers UV_CACHE_DIR || export UV_CACHE_DIR="$LONGSHIP_SCRATCH_DIR/cache/uv"
is_callers TORCH_HOME || export TORCH_HOME="$LONGSHIP_SCRATCH_DIR/cache/torch"
is_callers TORCH_EXTENSIONS_DIR || export TORCH_EXTENSIONS_DIR="$LONGSHIP_SCRATCH_DIR/cache/torch_extensions"
is_callers NUMBA_CACHE_DIR || export NUMBA_CACHE_DIR="$LONGSHIP_SCRATCH_DIR/cache/numba"
is_callers MPLCONFIGDIR || export MPLCONFIGDIR="$LONGSHIP_SCRATCH_DIR/cache/matplotlib"
is_callers WANDB_CACHE_DIR || export WANDB_CACHE_DIR="$LONGSHIP_SCRATCH_DIR/cache/wandb/cache"
is_callers WANDB_CONFIG_DIR || export WANDB_CONFIG_DIR="$LONGSHIP_SCRATCH_DIR/cache/wandb/config"
is_callers WANDB_DATA_DIR || export WANDB_DATA_DIR="$LONGSHIP_SCRATCH_DIR/cache/wandb/data"
is_callers TORCHINDUCTOR_CACHE_DIR || export TORCHINDUCTOR_CACHE_DIR="${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}/inductor"
is_callers TRITON_CACHE_DIR || export TRITON_CACHE_DIR="${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}/triton"
is_callers CUDA_CACHE_PATH || export CUDA_CACHE_PATH="${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}/cuda"
is_callers MIOPEN_USER_DB_PATH || export MIOPEN_USER_DB_PATH="${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}/miopen"
is_callers MIOPEN_CUSTOM_CACHE_DIR || export MIOPEN_CUSTOM_CACHE_DIR="${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}/miopen"
export HF_TOKEN_PATH="$HOME"/.cache/huggingface/token
export HF_STORED_TOKENS_PATH="$HOME"/.cache/huggingface/stored_tokens
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_EVALUATE_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export OMP_NUM_THREADS=8
export GREETING='"'"'it'"'"'"'"'"'"'"'"'s "$HOME"'"'"'
longship_replaced=
for longship_name in ${LONGSHIP_CALLERS-}; do
  eval "[ \"\${$longship_name-}\" = \"\$longship_was_$longship_name\" ]" && continue
  case $longship_name in
    TRAINING_*) longship_by="[training]" ;;
    HF_HUB_OFFLINE|HF_DATASETS_OFFLINE|HF_EVALUATE_OFFLINE|TRANSFORMERS_OFFLINE) longship_by="--online, environment.set" ;;
    HF_HUB_CACHE|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_CACHE) longship_by=HF_HOME ;;
    *) longship_by=environment.set ;;
  esac
  longship_replaced="$longship_replaced${longship_replaced:+, }$longship_name ($longship_by)"
done
unset LONGSHIP_CALLERS
case ${SLURM_PROCID:-0}$longship_replaced in 0?*)
  echo "note: replaced inside the environment, by these settings: $longship_replaced" >&2 ;; esac
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
export VIRTUAL_ENV=/e/scratch/project_465000000/me/longship/venv_pytorch_arm64
export PATH="$VIRTUAL_ENV"/bin:"$PATH"
for longship_packages in ${PYTHONPATH:+"$VIRTUAL_ENV"/lib/python*/site-packages}; do PYTHONPATH=$longship_packages:$PYTHONPATH; done
case $1 in */*) [ ! -f "$1" ] || [ -x "$1" ] || {
  printf '"'"'%s\n'"'"' "error: cannot run $1: not executable" "hint: run: chmod +x $1; or: python $1" >&2
  exit 126; } ;; esac
case $1 in cd | export | source) false ;; *) command -v -- "$1" >/dev/null ;; esac || {
  printf '"'"'%s\n'"'"' "error: command not found inside the environment: \"$1\"" >&2
  case $1 in
    *'"'"' '"'"'*) echo "hint: type it without the quotes around it: $1" ;;
    *.py) echo "hint: run: python $*" ;;
    cd | export | source) echo "hint: run: bash -c '"'"'$1 ... && COMMAND'"'"'" ;;
    *) echo "hint: if a Python package has it, add the package to the requirements and run: python3 set_up.py install --machine=jpb; or choose an image that has it: container.image in configuration.toml" ;;
  esac >&2
  exit 127
}
exec "$@"'

# ---------- lib/script/exported.bash

# exported_keep: save and unset the exported variables that could have the name of one of this
# script's: those in lower case, but for proxies, which programs read, and REPLY.
# shellcheck disable=SC2034 # scripts that start a program read it
exported_keep() {
  declare -gA longship_kept=()
  local longship_each
  # of a locale that is not installed, bash warns when it starts, and again after each `local
  # LC_ALL`
  local -r longship_name=LC_ALL # in a variable: ShellCheck warns of assignments in a subshell
  set -- REPLY
  if [[ -n ${LC_ALL-} && -n $(export "$longship_name=$LC_ALL" 2>&1) ]]; then set -- REPLY LC_ALL; fi
  # by their first letter: `compgen -e` would need a process in each rank
  for longship_each in "$@" "${!a@}" "${!b@}" "${!c@}" "${!d@}" "${!e@}" "${!f@}" "${!g@}" "${!h@}" \
    "${!i@}" "${!j@}" "${!k@}" "${!l@}" "${!m@}" "${!n@}" "${!o@}" "${!p@}" "${!q@}" "${!r@}" \
    "${!s@}" "${!t@}" "${!u@}" "${!v@}" "${!w@}" "${!x@}" "${!y@}" "${!z@}"; do
    case $longship_each in longship_* | *_proxy) continue ;; esac
    # a job script, which sources this file, also has variables that are not exported
    if [[ -v $longship_each && $(declare -p "$longship_each") =~ ^declare\ -[A-Za-z]*x ]]; then
      longship_kept[$longship_each]=${!longship_each}
      unset -v "$longship_each"
    fi
  done
}

# command_exec COMMAND...: become the command, with the caller's exported variables and without the
# options of this shell.
command_exec() {
  local longship_name
  for longship_name in "${!longship_kept[@]}"; do
    # `local`: a global array of this script may have the same name
    # shellcheck disable=SC2163 # exports the variable of this name
    local -x "$longship_name=${longship_kept[$longship_name]}" 2>/dev/null # the warning of LC_ALL
  done
  export -n SHELLOPTS BASHOPTS
  exec "$@"
}

exported_keep

# ---------- lib/runtimes/apptainer.bash

# sif_check FILE ARCH HINT: stop if the image is missing, is not a SIF file, or is for another
# architecture: after its first line a SIF file has magic, version and architecture.
sif_check() {
  local -r file=$1 arch=$2 hint=$3
  image_check_readable "$file" "$hint"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "not a SIF image: $file" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] ||
    fail "image $file has the wrong architecture: $found, expected $arch" "$hint"
}

# sif_add_options [gpus]: the options that follow from the caller's environment and from the node.
sif_add_options() {
  sif_forget_options
  sif_add_home
  if [[ -n ${1-} ]]; then sif_add_gpus; fi
}

# sif_forget_options: unset the caller's options of the runtime, which would change what every
# program finds inside. Binds, libraries that a site's module adds, places of files, logins and what
# a container around this one has set stay.
sif_forget_options() {
  local variable path
  local -a ignored=() paths
  for variable in "${!APPTAINER@}" "${!SINGULARITY@}"; do
    case ${variable#*_} in
      BIND | BINDPATH)
        IFS=, read -r -a paths <<<"${!variable}"
        for path in ${paths[@]+"${paths[@]}"}; do
          # the options of a bind are separated by commas too, and a backslash escapes one
          case $path in ro | rw | id=* | image-src=* | *\\*) continue ;; esac
          [[ -e ${path%%:*} ]] || fail "$variable names a path that does not exist: ${path%%:*}" \
            "correct it, or run: unset $variable"
        done
        ;;
      MOUNT | LD_LIBRARY_PATH | USERNS | CACHEDIR | TMPDIR | CONFIG* | DOCKER_* | MESSAGELEVEL) ;;
      ALLOWED_DIR) ;; # of a site, Jean Zay
      CONTAINER | NAME | COMMAND | ENVIRONMENT | APPNAME) ;;
      *) ignored+=("$variable") ;;
    esac
  done
  if ((${#ignored[@]})); then
    unset "${ignored[@]}"
    # of the ranks of a job, the first tells it
    if [[ ${SLURM_PROCID:-0} == 0 ]]; then note "ignoring from the environment: ${ignored[*]}"; fi
  fi
}

# sif_add_home: bind HOME if it is not the home directory of the passwd file, which Apptainer binds.
sif_add_home() {
  local -r home=${HOME:-}
  if [[ ! -d $home ]]; then return 0; fi
  unset HOME # bash then expands ~ from the passwd file
  local -r own=~
  export HOME=$home
  if [[ $home == "$own" ]]; then return 0; fi
  [[ $home != *:* ]] ||
    fail "HOME contains a colon, which Apptainer does not allow: $home" \
      'set HOME to another path of that directory, such as a link: export HOME=...'
  options+=(--home "$home")
}

# sif_add_gpus: pass the node's GPUs, if it has some; else --nv only warns.
sif_add_gpus() {
  if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi
  if [[ -e /dev/kfd ]]; then options+=(--rocm); fi
}

# ---------- lib/runtimes/caches.bash

# directories of the caller's own caches, which must be visible inside
declare -ga caller_caches=()

# caches_keep CACHE... -- NAME...: name in LONGSHIP_CALLERS the caches that the caller has set, which
# the environment inside keeps, and other variables, of which it reports the ones that it replaces. A
# cache in the directories of an environment around this script is not the caller's: a job that is
# submitted inside has its own.
caches_keep() {
  local variable value
  caller_caches=()
  export LONGSHIP_CALLERS=' '
  while [[ $1 != -- ]]; do
    variable=$1 value=${!1-}
    shift
    case $value in
      '' | "${LONGSHIP_SCRATCH_DIR:-//}/cache/"* | "${LONGSHIP_NODE_CACHE:-//}/"*) continue ;;
      /tmp/*) ;;
      /*) if [[ -d $value ]]; then caller_caches+=("$value"); fi ;;
    esac
    LONGSHIP_CALLERS+="$variable "
  done
  for variable in "${@:2}"; do
    if [[ -n ${longship_kept[$variable]-${!variable-}} ]]; then LONGSHIP_CALLERS+="$variable "; fi
  done
}

# node_cache_make: in a job, export LONGSHIP_NODE_CACHE, a directory on this node that only the user
# can enter, for what programs compile: on a shared file system, ranks of several nodes would delete
# each other's files. Without such a directory they use the one in scratch_dir.
node_cache_make() {
  local REPLY
  unset LONGSHIP_NODE_CACHE
  if [[ -z ${SLURM_JOB_ID:-} ]]; then return 0; fi
  node_cache_find
  # all ranks of the node do it at once
  if [[ ! -d $REPLY ]]; then mkdir -m 700 -- "$REPLY" 2>/dev/null || :; fi
  if [[ -d $REPLY && -O $REPLY && ! -L $REPLY ]]; then
    export LONGSHIP_NODE_CACHE=$REPLY
  elif ((${SLURM_LOCALID:-0} == 0)); then
    note "cannot create $REPLY, so compilers use the caches in scratch_dir, where nodes can disturb each other"
  fi
}

# node_cache_find: set REPLY to that directory, in TMPDIR, or in /tmp if others could exchange a
# directory in TMPDIR. TMPDIR can be shared by the nodes, so the name contains the node's.
node_cache_find() {
  local parent=${TMPDIR:-/tmp}
  if [[ $parent != /tmp ]]; then
    parent=$(cd -P -- "$parent" 2>/dev/null && pwd -P) && directory_stays "$parent" || parent=/tmp
  fi
  REPLY=$parent/longship-$UID-$SLURM_JOB_ID-${SLURMD_NODENAME:-$HOSTNAME}
}

# directory_stays DIR: whether nobody else can exchange what the user makes in this directory, which
# has no links in its path: it and all above it belong to the user or root, and others cannot write
# to them, or have no right to what is not theirs (sticky).
directory_stays() {
  local path=$1 owner mode
  local -a paths=()
  while [[ $path == /?* ]]; do
    paths+=("$path")
    path=${path%/*}
  done
  while read -r owner mode; do
    mode=$((16#$mode))
    (((owner == UID || owner == 0) && (mode & 8#1000 || !(mode & 8#022)))) || return
  done < <(stat -c '%u %f' -- ${paths[@]+"${paths[@]}"} 2>/dev/null || printf '%s\n' "$((UID + 1)) 0")
}

# ---------- lib/runtimes/host.bash

# host_arch: set REPLY to this machine's architecture, amd64 or arm64.
host_arch() {
  REPLY=${BASH_VERSINFO[5]%%-*} # not HOSTTYPE: tcsh exports other names
  case $REPLY in
    x86_64) REPLY=amd64 ;;
    aarch64) REPLY=arm64 ;;
  esac
}

# host_check_arch ARCH WHAT: stop if this machine cannot run programs for ARCH.
host_check_arch() {
  host_arch
  [[ $REPLY == "$1" ]] ||
    fail "$2 is for $1, but this machine is $REPLY" "start it in a job, on a compute node"
}

# ---------- lib/runtimes/image.bash

# image_check_readable FILE HINT: stop if the image is missing or cannot be read.
image_check_readable() {
  [[ -e $1 ]] || fail "image not found: $1" "$2"
  [[ -r $1 ]] || fail "cannot read the image $1" "ask its owner to run: chmod a+r $(printf %q "$1")"
}

# ---------- lib/runtimes/launch.bash

# host_forget NAME...: unset what is wrong inside an image: compilers, Python, preloaded libraries
# and conda of the host, and further names. JSC's modules rely on PYTHONPATH and set the compiler's
# paths.
# shellcheck disable=SC2120 # most plans name nothing more
host_forget() {
  unset BASH_ENV ENV LD_PRELOAD LESSOPEN \
    CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH CMAKE_PREFIX_PATH \
    PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONSAFEPATH VIRTUAL_ENV \
    "${!CONDA_@}" "${!_CE_@}" \
    PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER UV_PYTHON UV_SYSTEM_PYTHON "$@"
}

# program_check NAME: stop if the runtime is missing.
program_check() {
  command -v "$1" >/dev/null ||
    fail "$1 not found" \
      'load its module, or set container.runtime in configuration.toml to another runtime'
}

# venv_check DIR BASE: fail if the venv is missing or was built on something else.
venv_check() {
  local base='' stack=${1##*/}
  stack=${stack#venv_} stack=${stack%_*} # of venv_STACK_ARCH, or of venvs/STACK_ARCH-TIME
  # the user's own, used unchanged
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg ]]; then return 0; fi
  [[ -e $1/longship-base ]] ||
    fail "Python packages are not installed: $1 not found" \
      "python3 set_up.py install --stack $stack"
  IFS= read -r base <"$1/longship-base" || :
  [[ $base == "$2" ]] ||
    fail "the Python packages in $1 were installed on top of $base, not of $2" \
      "python3 set_up.py install --stack $stack"
}

# what is bound already, by its path inside
declare -gA bound=()

# bind_add SOURCE [TARGET [ro]]: bind a directory or file of the host, once.
bind_add() {
  local -r source=$1 target=${2:-$1}
  [[ -z ${bound[$target]:-} ]] || return 0
  bound[$target]=$source
  [[ -e $source ]] ||
    fail "cannot bind $source: no such file or directory" \
      'check container.binds in configuration.toml'
  bind_format "$source" "$target" "${3:-rw}"
}

# bind_format SOURCE TARGET MODE: add the bind to options, as a CSV record: only there can a path
# contain commas, colons and quotes.
# shellcheck disable=SC2329  # the plan for enroot and Pyxis defines another one
bind_format() {
  local -r mode=${3#rw}
  options+=(--mount "type=bind,\"src=${1//\"/\"\"}\",\"dst=${2//\"/\"\"}\"${mode:+,$mode}")
}

# bind_add_if_exists SOURCE [TARGET [ro]]: the same for what some nodes of a site lack.
bind_add_if_exists() {
  if [[ -e $1 ]]; then bind_add "$@"; fi
}

# variables that name a file or directory with certificates
readonly longship_certificates=(SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT
  GIT_SSL_CAINFO AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS)

# bind_host_files: bind what the environment names: certificates, caches and the temporary
# directory.
bind_host_files() {
  local variable path
  for variable in "${longship_certificates[@]}"; do
    path=${!variable:-}
    if [[ $path == /* && -e $path ]]; then bind_add "$path" "$path" ro; fi
  done
  if [[ ${TMPDIR:-/tmp}/ != /tmp/* && -d ${TMPDIR:-} ]]; then bind_add "$TMPDIR"; fi
  # of a job, TMPDIR without the links in its path
  if [[ ${LONGSHIP_NODE_CACHE:-/tmp/} != /tmp/* ]]; then bind_add "$LONGSHIP_NODE_CACHE"; fi
  for path in ${caller_caches[@]+"${caller_caches[@]}"}; do bind_add "$path"; done
}

# bind_pip_sources: bind pip's configuration, and the directories and files that it names.
bind_pip_sources() {
  local -
  set -f # values of pip's configuration are not patterns
  local path text='' lines
  for path in /etc/pip.conf /etc/xdg/pip/pip.conf "${PIP_CONFIG_FILE:-}" \
    "${HOME:-}/.pip/pip.conf" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf"; do
    [[ -f $path && -r $path ]] || continue
    if [[ $path != "${HOME:-/}"/* ]]; then bind_add "$path" "$path" ro; fi
    mapfile -t lines <"$path"
    text+=" ${lines[*]}"
  done
  text+=" ${PIP_FIND_LINKS:-} ${PIP_INDEX_URL:-} ${PIP_EXTRA_INDEX_URL:-} ${UV_FIND_LINKS:-}"
  for path in ${text//[=,]/ }; do
    path=${path#file://}
    path=${path%/simple} # the files of an index are next to it
    if [[ $path == /* && (-d $path || -f $path) ]]; then bind_add "$path" "$path" ro; fi
  done
}

# command_set INTERACTIVE_FILE ARGUMENT...: set command to the arguments, or to an interactive
# shell: sh if an image has no bash.
command_set() {
  command=("${@:2}")
  if ((${#command[@]} == 0)); then
    # shellcheck disable=SC2016  # expanded inside
    command=(/bin/sh -c 'if command -v bash >/dev/null; then exec bash --rcfile "$0" -i; fi; exec sh -i' "$1")
  fi
}

# UTF-8, by well-formed byte sequences: the Unicode Standard, table 3-7.
declare -g launch_utf8=$'^([\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|'\
$'[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|'\
$'[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*$'

# command_check_text: stop at an argument that is not UTF-8: the runtimes pass arguments as JSON,
# with U+FFFD for its bytes.
command_check_text() {
  local LC_ALL=C
  local word
  for word in "${command[@]}"; do
    [[ $word =~ $launch_utf8 ]] ||
      fail "argument is not UTF-8, which containers cannot pass on: ${word@Q}" \
        'rename the file, or convert the argument'
  done
}

# patched_file_add OURS TARGET: bind our file read-only over the image's own.
patched_file_add() {
  [[ -f $1 ]] || fail "file not found: $1, which replaces $2 of the image" \
    'create it, or remove it from container.patched_files in configuration.toml'
  bind_add "$1" "$2" ro
}

# ---------- lib/script/messages.bash

# print_messages [KIND TEXT]...: print a line for each to standard error, in one write: ranks share
# a log.
print_messages() {
  local REPLY told='' text
  while (($#)); do
    printable "$2"
    if [[ $1 == hint || $1 == next ]]; then offline_modes "$REPLY"; fi
    text=$REPLY
    paint 2 "$1:"
    told+="$REPLY $text"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# COMMAND=OFFLINE_COMMAND for hints, in a script of a clone that was unpacked from a bundle:
# render.py fills it
declare -ga longship_offline_commands=()

# offline_modes TEXT: set REPLY to the text, with the commands that need no network where a bundle
# was unpacked.
offline_modes() {
  local each
  REPLY=$1
  for each in ${longship_offline_commands[@]+"${longship_offline_commands[@]}"}; do
    REPLY=${REPLY//"${each%%=*}"/"${each#*=}"}
  done
}

# printable TEXT: set REPLY to it, with ? for each control character except tab and newline: text of
# files, records and other programs must not move the cursor.
printable() {
  local LC_ALL=C
  REPLY=${1//[$'\x01'-$'\b\v'-$'\x1f\x7f']/?}
  REPLY=${REPLY//$'\xc2'[$'\x80'-$'\x9f']/?} # C1 controls in UTF-8
}

# red, yellow, green and cyan; errors.py reads them here, and other words are bold
declare -gA longship_colours=([error]=31 [problem]=31 [warning]=33 [follows]=33 [ok]=32
  [hint]=36 [next]=36 [follow]=36 [cancel]=36 [status]=36)

# paint FILE WORD: set REPLY to the word, in its colour if file descriptor 1 or 2 is a terminal with
# colours and NO_COLOR is not set: https://no-color.org. No `return`: in a trap it would return the
# status of the interrupted command.
paint() {
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    REPLY=$'\e['${longship_colours[${2%:}]:-1}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: print what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing DIR MESSAGE HINT: fail after a write failed; report a full disk, which programs often
# do not name. Some remove what they could not finish (uv a package per core), so a disk counts as
# full earlier.
fail_writing() {
  local free=16777216 size=1 free_inodes=1 inodes=0
  read -r free size free_inodes inodes < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${inodes:-0} > 0 && ${free_inodes:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'free some space, or set [paths] in configuration.toml; then run the command again'
  fi
  fail "$2" "$3"
}

# note TEXT: print information that is not an error.
note() {
  print_messages note "$1"
}

# warn_of MESSAGE HINT: print what will go wrong later, and what to type.
warn_of() {
  print_messages warning "$1" hint "$2"
}

# ---------- lib/script/private.bash

# directory_make DIR...: make directories, with missing parents, that only the user can enter; stop
# at one that cannot be made or entered.
directory_make() {
  local directory reason
  for directory in "$@"; do
    [[ -d $directory && -x $directory ]] && continue
    reason=$({ directory_create "$directory" && cd -- "$directory"; } 2>&1) ||
      fail_writing "$directory" "cannot use the directory $directory: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to, or change the permissions'
  done
}

# directory_create DIR: mkdir's own -p gives only the last directory a mode.
directory_create() {
  local parent=${1%/*}
  if [[ $1 != */* ]]; then parent=.; fi
  if [[ ! -d ${parent:-/} ]]; then directory_create "$parent" || return; fi
  mkdir -m 700 -- "$1" || [[ -d $1 ]] # another process has made it meanwhile
}

# roots_make SCRATCH DIR...: make the user's directories, and those in SCRATCH in which programs
# write what runs; stop at one that others can change.
roots_make() {
  local -a written=("$1"/{cache,venvs})
  local directory
  for directory in "$1"/tools_{amd64,arm64}; do
    if [[ -d $directory ]]; then written+=("$directory"); fi
  done
  set -- "$@" "$1/runs" "${written[@]}"
  directory_make "$@"
  directory_check_own "$@"
  directory_check_closed "$1" "${written[@]}"
  if [[ -n ${SLURM_JOB_ID:-} ]]; then temporary_choose /tmp; else temporary_choose "$1/tmp"; fi
}

# directory_check_closed ABOVE DIR...: stop if others can enter ABOVE and a directory in it into which
# programs write what runs: they do so with the user's umask.
directory_check_closed() {
  local mode directory
  if ! directory_is_reachable "$1"; then return 0; fi
  while read -r mode directory; do
    if ((16#$mode & 8#077)); then
      fail "other users can enter $directory, in which programs write what you run" \
        "delete what others may have changed in it, and run: chmod go= $(printf %q "$directory")"
    fi
  done < <(exec stat -L -c '%f %n' -- "${@:2}")
}

# directory_is_reachable DIR: whether others can enter a directory: it, and those above it, are not
# closed by the user.
directory_is_reachable() {
  local path owner mode
  local -a paths=()
  path=$(cd -P -- "$1" && pwd -P) || return
  while [[ $path == /?* ]]; do
    paths+=("$path")
    path=${path%/*}
  done
  while read -r owner mode; do
    if [[ $owner == "$UID" ]] && ((!(16#$mode & 8#077))); then return 1; fi
  done < <(exec stat -c '%u %f' -- "${paths[@]}")
}

# temporary_choose DIR: replace a TMPDIR that does not exist, or in which others can exchange files,
# by DIR.
temporary_choose() {
  local owner=-1 mode=0
  if [[ -z ${TMPDIR:-} ]]; then return 0; fi
  read -r owner mode < <(exec stat -L -c '%u %f' -- "$TMPDIR" 2>/dev/null) || :
  if [[ $owner == "$UID" || $owner == 0 ]] && ((!(16#$mode & 8#022) || 16#$mode & 8#1000)); then return 0; fi
  warn_of "TMPDIR, $TMPDIR, does not exist, or other users can exchange your files in it: using $1" \
    'export TMPDIR with a directory of your own, to which nobody else can write'
  if [[ $1 != /tmp ]]; then
    directory_make "$1"
    directory_check_own "$1"
  fi
  export TMPDIR=$1
}

# directory_check_own DIR...: stop at one that another user owns or can change, or to which a link of
# another user than root leads.
directory_check_own() {
  local found owner mode directory
  local -a links=()
  for directory in "$@"; do links_find "$directory"; done
  found=$(stat -L -c '%u %f %n' -- "$@" && { ((!${#links[@]})) || stat -c '%u %f %n' -- "${links[@]}"; }) ||
    fail "cannot check who can write to ${*@Q}" 'see the line above'
  found+=$'\n'
  while [[ -n $found ]]; do # no here-string, for which old versions of bash make a file in TMPDIR
    directory=${found%%$'\n'*} found=${found#*$'\n'}
    owner=${directory%% *} directory=${directory#* }
    mode=${directory%% *} directory=${directory#* }
    if [[ $owner != "$UID" ]] && ((owner != 0 || (16#$mode & 8#170000) != 8#120000)); then
      fail "$directory belongs to $(id -un -- "$owner" 2>/dev/null || echo "user $owner"), who would decide what you run" \
        'set [paths] in configuration.toml to directories of your own; what a group builds once can be in paths.shared_dir'
    elif ((16#$mode & 8#022 && (16#$mode & 8#170000) != 8#120000)); then
      fail "other users can write to $directory, and would decide what you run" \
        "delete what others may have changed in it, and run: chmod go-w $(printf %q "$directory"); if that has no effect, \
set [paths] to a file system with permissions"
    fi
  done
}

# links_find PATH: add to links each link on the way to a path, and those on the way to where they
# lead. The kernel follows no more than 40: the path of a longer chain cannot be opened.
links_find() {
  local place='' rest=${1#/}/ target followed=0
  while [[ -n $rest ]] && ((followed < 40)); do
    case ${rest%%/*} in
      '' | .) ;;
      ..) place=${place%/*} ;;
      *) place+=/${rest%%/*} ;;
    esac
    rest=${rest#*/}
    if [[ -L $place ]]; then
      links+=("$place")
      followed=$((followed + 1))
      target=$(readlink -- "$place") || return
      if [[ $target == /* ]]; then place=; else place=${place%/*}; fi
      rest=$target/$rest
    fi
  done
}

longship_main "$@"
