# shellcheck shell=bash
# The launch of a program inside: checks of the image, and the runtime's options. If the runtime is
# apptainer, no function here starts a process: each rank of a job runs them.

# shellcheck source=lib/runtimes/caches.bash
source "${BASH_SOURCE[0]%/*}/caches.bash"

# modules_load PROGRAM CALL...: load environment modules, unless PROGRAM is found. Inside a job the
# batch script has loaded them, and thousands of ranks must not do it again.
modules_load() {
  local -r program=$1
  shift
  command -v "$program" >/dev/null && return
  set +eu # module systems do not support these options
  if ! declare -F module >/dev/null; then
    # shellcheck disable=SC1091
    source "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash" 2>/dev/null
  fi
  local call
  for call in "$@"; do
    # shellcheck disable=SC2086  # a call has several arguments: load Stages/2025 GCC
    module $call
  done
  set -eu
}

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

# variable_is_hosts NAME: whether an exported variable describes the host's own file system or
# shell.
variable_is_hosts() {
  case $1 in
    PATH | LD_LIBRARY_PATH | PWD | OLDPWD | SHLVL | HOSTNAME | SHELL | _ | BASH_FUNC_* | DOCKER_* | XDG_RUNTIME_DIR) ;;
    *) return 1 ;;
  esac
}

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

# exit_delay: let a rank that cannot start wait until Slurm has read its messages: it ends a step
# with the first rank that fails, and drops unread output. A rank that starts has replaced this
# bash.
exit_delay() {
  if [[ -n ${SLURM_STEP_NUM_TASKS:-} ]]; then at_exit sleep 1; fi
}

# rank_export: export what torch.distributed reads, in a step with a task for each rank; torchrun
# sets it itself. The batch script, which is not a rank, has no variables with STEP.
rank_export() {
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
