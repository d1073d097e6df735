# shellcheck shell=bash
# Starting a program inside: the image is checked, the runtime's options collected. No function
# here starts a process where the runtime is apptainer: it runs once for every rank of a job.

# load_modules PROGRAM CALL...: load environment modules, unless PROGRAM is there already. Inside a
# job the batch script has loaded them, and thousands of ranks must not do it again.
load_modules() {
  local -r program=$1
  shift
  command -v "$program" >/dev/null && return
  set +eu # module systems are written without them
  if ! declare -F module >/dev/null; then
    # shellcheck disable=SC1091
    source "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash" 2>/dev/null
  fi
  local call
  for call in "$@"; do
    # shellcheck disable=SC2086  # a call is several words: load Stages/2025 GCC
    module $call
  done
  set -eu
}

# check_program NAME: stop where the runtime is missing.
check_program() {
  command -v "$1" >/dev/null ||
    fail "$1 not found" \
      'load its module, or set container.runtime in configuration.toml to another runtime'
}

# check_sif FILE ARCH HINT: stop where the image is missing, is none, or is for another
# architecture. A SIF file tells it behind its first line: magic, version, architecture.
check_sif() {
  local -r file=$1 arch=$2 hint=$3
  [[ -e $file ]] || fail "image not found: $file" "$hint"
  [[ -r $file ]] || fail "cannot read the image $file" \
    "ask its owner to run: chmod a+r $(printf %q "$file")"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "not a SIF image: $file" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] || fail "image $file has the wrong architecture: $found, expected $arch" "$hint"
}

# check_tag PROGRAM TAG ARCH HINT: the same for an image in the store of docker or podman.
check_tag() {
  local found
  found=$("$1" image inspect --format '{{.Architecture}}' "$2" 2>/dev/null) || {
    "$1" version >/dev/null 2>&1 ||
      fail "$1 is installed but does not work" "run: $1 version"
    fail "$1 has no image $2" "$4"
  }
  [[ $found == "$3" ]] || fail "image $2 has the wrong architecture: $found, expected $3" "$4"
}

# host_arch: set REPLY to this machine's architecture, in the words used everywhere here.
host_arch() {
  REPLY=${BASH_VERSINFO[5]%%-*} # not HOSTTYPE, which tcsh exports in words of its own
  case $REPLY in
    x86_64) REPLY=amd64 ;;
    aarch64) REPLY=arm64 ;;
  esac
}

# check_host_arch ARCH WHAT: stop where this machine cannot run programs for ARCH.
check_host_arch() {
  host_arch
  [[ $REPLY == "$1" ]] ||
    fail "$2 is for $1, but this machine is $REPLY" "start it in a job, on a compute node"
}

# check_venv DIR BASE: fail if the venv is missing or was built on something else.
check_venv() {
  local base=
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg ]]; then return 0; fi # the user's own, used as it is
  [[ -e $1/longship-base ]] ||
    fail "Python packages are not installed: $1 not found" 'python3 set_up.py install'
  IFS= read -r base <"$1/longship-base" || :
  [[ $base == "$2" ]] ||
    fail "the Python packages in $1 were installed on top of $base, not of $2" 'python3 set_up.py install'
}

# make_folders FOLDER...: make the configured directories, or say which one cannot be made or entered.
make_folders() {
  local folder reason
  for folder in "$@"; do
    [[ -d $folder && -x $folder ]] && continue
    reason=$({ mkdir -p -- "$folder" && cd -- "$folder"; } 2>&1) ||
      fail_writing "$folder" "cannot use the directory $folder: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to, or change the permissions'
  done
}

# what is shown inside already, by its path there
declare -gA bound=()

# how `options` name a bind: as apptainer, docker and podman read it, or as enroot or pyxis do
declare -g longship_bind_style=csv

# add_bind SOURCE [TARGET [ro]]: show a folder or file of the host inside, once. It becomes one CSV
# record, the only form in which a path may hold commas, colons and quotes.
add_bind() {
  local -r source=$1 target=${2:-$1}
  [[ -z ${bound[$target]:-} ]] || return 0
  bound[$target]=$source
  [[ -e $source ]] ||
    fail "cannot bind $source: no such file or directory" 'check container.binds in configuration.toml'
  case $longship_bind_style in
    enroot) add_enroot_bind "$source" "$target" "${3:-rw}" ;;
    pyxis) add_pyxis_bind "$source" "$target" "${3:-rw}" ;;
    *) options+=(--mount "type=bind,\"src=${source//\"/\"\"}\",\"dst=${target//\"/\"\"}\"${3:+,$3}") ;;
  esac
}

# add_bind_if_there SOURCE [TARGET [ro]]: the same for what not every node of a site has.
add_bind_if_there() {
  if [[ -e $1 ]]; then add_bind "$@"; fi
}

# what names a file or folder with certificates, to one program or another
readonly longship_certificates=(SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT
  GIT_SSL_CAINFO AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS)

# add_host_files: show what the caller's environment names: certificates and the temporary folder.
add_host_files() {
  local variable path
  for variable in "${longship_certificates[@]}"; do
    path=${!variable:-}
    if [[ $path == /* && -e $path ]]; then add_bind "$path" "$path" ro; fi
  done
  if [[ ${TMPDIR:-/tmp}/ != /tmp/* && -d ${TMPDIR:-} ]]; then add_bind "$TMPDIR"; fi
}

# add_pip_sources: show pip's configuration and the folders that it searches.
add_pip_sources() {
  local -
  set -f # words of pip's configuration are no patterns
  local path text='' lines
  for path in /etc/pip.conf /etc/xdg/pip/pip.conf "${PIP_CONFIG_FILE:-}" \
    "${HOME:-}/.pip/pip.conf" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf"; do
    [[ -f $path && -r $path ]] || continue
    if [[ $path != "${HOME:-/}"/* ]]; then add_bind "$path" "$path" ro; fi
    mapfile -t lines <"$path"
    text+=" ${lines[*]}"
  done
  text+=" ${PIP_FIND_LINKS:-} ${PIP_INDEX_URL:-} ${PIP_EXTRA_INDEX_URL:-} ${UV_FIND_LINKS:-}"
  for path in ${text//[=,]/ }; do
    path=${path#file://}
    path=${path%/simple} # an index has its files beside it
    if [[ $path == /* && -d $path ]]; then add_bind "$path" "$path" ro; fi
  done
}

# add_home: Apptainer shows the home folder of the passwd file; HOME may be another one.
add_home() {
  local -r home=${HOME:-}
  if [[ ! -d $home ]]; then return 0; fi
  unset HOME # bash then expands ~ from the passwd file
  local -r own=~
  export HOME=$home
  if [[ $home == "$own" ]]; then return 0; fi
  [[ $home != *:* ]] ||
    fail "HOME contains a colon, which Apptainer does not allow: $home" 'set HOME to another path of that directory, such as a link: export HOME=...'
  options+=(--home "$home")
}

# add_nvidia_gpus: only where the node has one; elsewhere --nv only warns.
add_nvidia_gpus() {
  if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi
}

# add_amd_gpus: the same for AMD.
add_amd_gpus() {
  if [[ -e /dev/kfd ]]; then options+=(--rocm); fi
}

# outlive_last_words: Slurm ends a step with the first rank that fails, and drops what it has not read of
# it by then. A rank that cannot start stays until that is read; one that starts is no bash any more.
outlive_last_words() {
  if [[ -n ${SLURM_STEP_NUM_TASKS:-} ]]; then trap 'sleep 1' EXIT; fi
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

# take_command INTERACTIVE_FILE ARGUMENT...: set command to what to run: by default an interactive shell, which
# is sh where an image has no bash.
take_command() {
  command=("${@:2}")
  if ((${#command[@]} == 0)); then
    # shellcheck disable=SC2016  # expanded inside
    command=(/bin/sh -c 'if command -v bash >/dev/null; then exec bash --rcfile "$0" -i; fi; exec sh -i' "$1")
  fi
}

# encode_command: the runtimes pass arguments on as JSON, which turns bytes that are not UTF-8 into U+FFFD. Where
# there are some, these bytes travel as octal escapes, undone inside. As an argument may then be longer than the
# kernel takes, each travels in pieces, with + before all but the last, which has =.
encode_command() {
  local LC_ALL=C
  [[ ! ${command[*]} =~ $UTF8$ ]] || return 0
  local word
  local -a pieces=()
  for word in "${command[@]}"; do
    while first_bytes 20000 "$word" && word=${word:${#REPLY}} && [[ -n $word ]]; do
      each_byte "$REPLY"
      pieces+=("+$REPLY")
    done
    each_byte "$REPLY"
    pieces+=("=$REPLY")
  done
  command=("${pieces[@]}")
  # POSIX sh; the full stop keeps newlines at an argument's end.
  # shellcheck disable=SC2016  # expanded inside
  longship_contract='longship_left=$# longship_word=
while [ "$longship_left" -gt 0 ]; do
  longship_word=$longship_word$(printf "%b." "${1#?}")
  longship_word=${longship_word%.}
  case $1 in =*)
    set -- "$@" "$longship_word"
    longship_word= ;;
  esac
  shift
  longship_left=$((longship_left - 1))
done
unset longship_left longship_word
'${longship_contract-}
}
