#!/usr/bin/env bash
# Longship: container_run_overlay.py, machine local (local/site.toml)
set -euo pipefail

# add_environment: pass every exported variable by name, so that no value stands in an argument;
# not those that describe the host's own file system and shell. Enroot takes the lines of a value for
# variables of their own.
add_environment() {
  local variable
  while IFS= read -r variable; do
    if [[ -n ${bind_in_words_of:-} && ${!variable} == *$'\n'* ]]; then continue; fi
    case $variable in
      PATH | LD_LIBRARY_PATH | PWD | OLDPWD | SHLVL | HOSTNAME | SHELL | _ | DOCKER_* | XDG_RUNTIME_DIR) ;;
      *) options+=(--env "$variable") ;;
    esac
  done < <(compgen -e)
}

# check_sqsh FILE HINT: stop where the image is missing or is none. What it is for is looked at when it
# is built: that takes too long for each start.
check_sqsh() {
  local magic=''
  [[ -e $1 ]] || fail "the image $1 is missing" "$2"
  [[ -r $1 ]] || fail "the image $1 cannot be read" \
    "ask its owner for: chmod a+r $(printf %q "$1")"
  IFS= read -r -n 4 magic <"$1" 2>/dev/null || :
  [[ $magic == hsqs ]] || fail "$1 is no SquashFS image" "$2"
}

# add_enroot_bind SOURCE TARGET MODE: as a line of fstab with colons in place of its spaces.
add_enroot_bind() {
  local path
  local -a fields=()
  for path in "$1" "$2"; do
    path=${path//\\/\\134}
    path=${path// /\\040}
    path=${path//$'\t'/\\011}
    path=${path//$'\n'/\\012}
    path=${path//:/\\072}
    fields+=("$path")
  done
  options+=(--mount "${fields[0]}:${fields[1]}:none:x-create=auto,rbind,$3")
}

# value_in NAME LINE...: the same, of a record's lines.
value_in() {
  local line
  REPLY=
  for line in "${@:2}"; do
    if [[ $line == "  \"$1\": \""* ]]; then
      line=${line#*\": \"}
      REPLY=${line%\"*}
      return
    fi
  done
}

# json_text TEXT: set REPLY to the text as JSON has it between quotes.
json_text() {
  local LC_ALL=C
  local text=${1//\\/\\\\} code character
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
    for code in {1..31}; do
      printf -v code '%02x' "$code"
      printf -v character '%b' "\\x$code"
      text=${text//"$character"/"\\u00$code"}
    done
  fi
  REPLY=$text
}

# check_program NAME: stop where the runtime is missing.
check_program() {
  command -v "$1" >/dev/null ||
    fail "$1 is not on this machine" \
      'choose another one: container.runtime in configuration.toml, or load its module'
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
    fail "$2 is for $1, and this machine is $REPLY" "start it on a compute node, in a job"
}

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

# what is shown inside already, by its path there
declare -A bound=()

# add_bind SOURCE [TARGET [ro]]: show a folder or file of the host inside, once. It becomes one CSV
# record, the only form in which a path may hold commas, colons and quotes.
add_bind() {
  local -r source=$1 target=${2:-$1}
  [[ -z ${bound[$target]:-} ]] || return 0
  bound[$target]=$source
  [[ -e $source ]] ||
    fail "there is no $source to bind" 'see container.binds in configuration.toml'
  if [[ -n ${bind_in_words_of:-} ]]; then # enroot, Pyxis
    "$bind_in_words_of" "$source" "$target" "${3:-rw}"
    return
  fi
  options+=(--mount
    "type=bind,\"src=${source//\"/\"\"}\",\"dst=${target//\"/\"\"}\"${3:+,$3}")
}

# what names a file or folder with certificates, to one program or another
readonly CERTIFICATES=(SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT
  GIT_SSL_CAINFO AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS)

# add_host_files: show what the caller's environment names: certificates and the temporary folder.
add_host_files() {
  local variable path
  for variable in "${CERTIFICATES[@]}"; do
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

# take_command INTERACTIVE_FILE ARGUMENT...: what to run; nothing said is an interactive shell.
take_command() {
  command=("${@:2}")
  if ((${#command[@]} == 0)); then command=(bash --rcfile "$1" -i); fi
}

# UTF-8 by the bytes that may follow each other (the Unicode standard, table 3-7)
readonly UTF8=$'^([\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|'\
$'[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|'\
$'[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*$'

# encode_command: the runtimes pass arguments on as JSON, which turns bytes that are no UTF-8 into
# U+FFFD. Where there are some, all arguments travel with octal escapes, undone inside.
encode_command() {
  local LC_ALL=C
  [[ ! ${command[*]} =~ $UTF8 ]] || return 0
  local word byte code encoded
  local -i index position
  for index in "${!command[@]}"; do
    word=${command[index]} encoded=
    for ((position = 0; position < ${#word}; position++)); do
      byte=${word:position:1}
      if [[ $byte == [$'\x01'-'['$'\x5d'-$'\x7f'] ]]; then # all of ASCII but the backslash
        encoded+=$byte
      else
        printf -v code '%d' "'$byte"
        printf -v code '\\0%03o' "$((code & 255))"
        encoded+=$code
      fi
    done
    command[index]=$encoded
  done
  # POSIX sh; the full stop keeps newlines at an argument's end.
  # shellcheck disable=SC2016  # expanded inside
  decode='longship_left=$#
while [ "$longship_left" -gt 0 ]; do
  longship_word=$(printf "%b." "$1")
  set -- "$@" "${longship_word%.}"
  shift
  longship_left=$((longship_left - 1))
done
unset longship_left longship_word
'
}

readonly LOCK_PATIENCE=60 # seconds without a sign of life from another host

# what this process holds, and the processes that keep it fresh
declare -a held_locks=()

declare -a lock_hearts=()

# locked PATH FUNCTION [ARGUMENT...]: run a function while holding the lock of PATH.
locked() {
  acquire_lock "$1.lock"
  trap release_locks EXIT
  "${@:2}"
  release_lock
  if ((${#held_locks[@]} == 0)); then trap - EXIT; else trap release_locks EXIT; fi
}

# acquire_lock LOCK: move a folder of ours to that name, or wait for whoever has it.
acquire_lock() {
  local -r lock=$1 own=$1.new.$(this_host).$$
  local told='' reason
  local -i failed=0
  until reason=$(make_lock "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it was given back just now
      ((failed < 5)) || fail_writing "${lock%/*}" "cannot make the lock $lock: ${reason##*: }" \
        'set [paths] in configuration.toml to a place that you can write to'
      continue
    fi
    failed=0
    if lock_is_stale "$lock"; then
      take_over_lock "$lock"
      continue
    fi
    [[ -n $told ]] || note "waiting for $(lock_owner "$lock"), which works on the same ($lock)"
    told=1
    sleep 1
  done
  held_locks+=("$lock")
  # The sign of life ends with this process, however it ends. A process that is killed right after
  # its start would still run the trap of this one.
  trap - EXIT
  (while sleep 5 && kill -0 "$$" 2>/dev/null; do touch -c "$lock/owner"; done) >/dev/null 2>&1 &
  lock_hearts+=($!)
  remove_dead_locks "$lock"
}

# make_lock FOLDER LOCK: make a folder that says who has it, and move it to the lock's name.
make_lock() {
  local host start
  host=$(this_host)
  start=$(process_start "$$")
  mkdir -- "$1" && printf '%s %s %s\n' "$host" "$$" "$start" >"$1/owner" && mv -T -- "$1" "$2"
}

# remove_lock FOLDER: give it another name first, as only that takes one step.
remove_lock() {
  local -r other=$1.new.$(this_host).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another member's lock can be moved away, but not be emptied
  else
    rm -rf -- "$1"
  fi
}

# remove_dead_locks LOCK: what was killed while it made or removed one; its name says whose it is.
remove_dead_locks() {
  local folder host
  for folder in "$1".new.*; do
    host=${folder##*.new.}
    host=${host%.*}
    if [[ ! -d $folder ]]; then continue; fi
    if [[ $host == "$(this_host)" && -O $folder && ! -e /proc/${folder##*.} ]] || lock_is_stale "$folder"; then
      rm -rf -- "$folder" 2>/dev/null || : # another member's stays
    fi
  done
}

# release_lock: give back what `locked` got last.
release_lock() {
  local last=${#held_locks[@]}
  last=$((last - 1))
  if [[ -n ${lock_hearts[last]:-} ]]; then kill "${lock_hearts[last]}" 2>/dev/null || :; fi
  remove_lock "${held_locks[last]}"
  unset "lock_hearts[last]" "held_locks[last]"
}

# release_locks: give back all, at the end.
release_locks() {
  while ((${#held_locks[@]})); do release_lock; done
}

# this_host: its name; not HOSTNAME, which a job can inherit from the node that it was sent from.
this_host() {
  printf '%s' "$(</proc/sys/kernel/hostname)"
}

# lock_owner LOCK: who holds it, in words.
lock_owner() {
  local host='' process=''
  read -r host process _ 2>/dev/null <"$1/owner" || :
  printf '%s' "${process:+process $process on }${host:-another process}"
}

# process_start PID: when it started, which tells it from a later process with the same number.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  printf '%s' "${stat[19]:-}"
}

# lock_is_stale LOCK: whether its owner is gone. On this host that can be seen; elsewhere its sign
# of life is compared with a file written now, by the clock of the file system.
lock_is_stale() {
  local host='' process='' start='' found now seen
  read -r host process start 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(this_host)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    # where /proc hides other users' processes (hidepid), only the sign of life is left
    if [[ -n $found || -O $1/owner || -r /proc/1/stat ]]; then return 0; fi
  fi
  now=$(touch -- "$1.now" && stat -c %Y -- "$1.now") || return 1
  rm -f -- "$1.now"
  seen=$(stat -c %Y -- "$1/owner" 2>/dev/null || stat -c %Y -- "$1" 2>/dev/null) || return 1
  ((now - seen > LOCK_PATIENCE))
}

# take_over_lock LOCK: remove a stale lock. Only one process may look and remove at a time, or the
# second one would remove the lock that the first has made meanwhile.
take_over_lock() {
  local -r lock=$1
  if mkdir -- "$lock.removal" 2>/dev/null; then
    if lock_is_stale "$lock"; then
      note "taking over the lock of $(lock_owner "$lock"), which is gone"
      remove_lock "$lock"
    fi
    rmdir -- "$lock.removal"
  elif lock_is_stale "$lock.removal"; then
    rmdir -- "$lock.removal" 2>/dev/null || :
  else
    sleep 1
  fi
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

# note TEXT: tell something that is no error.
note() {
  print_messages note "$1"
}

readonly OVERLAY_MOUNTED_AT=/user-software

# the record's lines, read once: a rank asks the shared file system as little as it can
declare -a overlay_record=()

# check_overlay BASE: stop where the overlay is missing or belongs to another image.
check_overlay() {
  { mapfile -t overlay_record <"$overlay.json"; } 2>/dev/null || missing_overlay
  local bases
  value_in base "${overlay_record[@]}"
  bases=$REPLY
  if ! is_base "$1" "$bases"; then
    value_in python "${overlay_record[@]}"
    fail "the overlay $overlay belongs to ${bases//'\n'/, } with Python $REPLY, not to $1" \
      'python3 build_overlay.py'
  fi
  [[ $1 == host || ! $1 -nt $overlay.json ]] ||
    fail "the image $1 is newer than the overlay $overlay" 'python3 build_overlay.py'
  # without an image it is the machine's own Python that may have been replaced
  [[ $1 != host ]] || check_overlay_python
}

# is_base IMAGE BASES: whether it is one of those in a record, as JSON has them.
is_base() {
  json_text "$1"
  [[ "\\n$2\\n" == *"\\n$REPLY\\n"* ]]
}

# missing_overlay: say why there is none.
missing_overlay() {
  if [[ -e $overlay && -e $overlay.json ]]; then
    fail "the overlay $overlay cannot be read" \
      "ask its owner for: chmod a+r $(printf '%q %q' "$overlay" "$overlay.json")"
  fi
  if [[ -e $overlay ]]; then
    fail "the overlay $overlay was not made by Longship" 'python3 build_overlay.py, which takes it over'
  fi
  fail "there is no overlay $overlay" 'python3 build_overlay.py'
}

# check_overlay_python: stop where the host has another Python now than when it was built.
check_overlay_python() {
  local found
  value_in interpreter "${overlay_record[@]}"
  found=$("$REPLY" -c 'import platform; print(platform.python_version())' 2>/dev/null) || found=none
  value_in python "${overlay_record[@]}"
  [[ $found == "$REPLY" ]] ||
    fail "the overlay $overlay is for Python $REPLY, and this machine has $found" \
      'python3 build_overlay.py'
}

# bind_unpacked_overlay: for runtimes that mount no such file.
bind_unpacked_overlay() {
  if [[ -n ${LONGSHIP_STAGED:-} && -d $LONGSHIP_STAGED/packages ]]; then # Pyxis, in the start of a job
    REPLY=$LONGSHIP_STAGED/packages
  else
    unpack_overlay
  fi
  add_bind "$REPLY" "$OVERLAY_MOUNTED_AT" ro
}

# unpack_overlay: unpack it once on this file system; set REPLY to where.
unpack_overlay() {
  unpacked_folder "$overlay"
  if [[ ! -e $REPLY/longship-overlay.json ]]; then
    make_folders "${REPLY%/*}"
    locked "$REPLY" unpack_overlay_to "$REPLY"
    unpacked_folder "$overlay"
  fi
}

# unpacked_folder FILE: set REPLY to the folder that it is unpacked to.
unpacked_folder() {
  local name=${1##*/}
  REPLY=${1%/*}
  REPLY=${REPLY%/*}/unpacked/${name%.sqsh}
}

# unpack_overlay_to FOLDER: the lock is held.
unpack_overlay_to() {
  local -a quiet=(-no-progress)
  local said
  if [[ -e $1/longship-overlay.json ]]; then return; fi # somebody else has done it meanwhile
  command -v unsquashfs >/dev/null ||
    fail 'unsquashfs is not on this machine, which unpacks the overlay' \
      'install squashfs-tools, or load its module'
  note "unpacking $overlay, once"
  rm -rf -- "$1" "$1.partial"
  if [[ -t 2 ]]; then quiet=(); fi
  { said=$(unsquashfs ${quiet[@]+"${quiet[@]}"} -dest "$1.partial" "$overlay" 2>&1 >&3); } 3>&2 || {
    rm -rf -- "$1.partial"
    printf '%s\n' "$said" | tail -n 5 >&2
    fail_writing "${1%/*}" "cannot unpack $overlay" 'see the lines above'
  }
  mv -T -- "$1.partial" "$1"
}

# note_use: when it was used last, for --list and --prune; not for the ranks of a job.
note_use() {
  { : >"$overlay.used"; } 2>/dev/null || :
}

make_folders /home/me/longship/project /home/me/longship/scratch

# Nothing of the host's compilers and Python reaches the program.
unset BASH_ENV ENV LD_PRELOAD LESSOPEN CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH \
  CMAKE_PREFIX_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV \
  "${!CONDA_@}" "${!_CE_@}" HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE

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
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
export VIRTUAL_ENV=/user-software
export PATH="$VIRTUAL_ENV"/bin:"$PATH"
export VIRTUAL_ENV=/home/me/longship/scratch/venv_pytorch_amd64
export PATH="$VIRTUAL_ENV"/bin:"$PATH"
command -v -- "$1" >/dev/null || {
  echo "error: there is no command \"$1\" inside" >&2
  echo "hint: a Python package? add it to the requirements, then: python3 build_overlay.py" >&2
  exit 127
}
exec "$@"'

check_program enroot
image=/home/me/longship/scratch/containers/python_3.11-slim-bookworm_amd64.sqsh
check_sqsh "$image" 'python3 build_container.py && python3 move_built_container_to_active.py'
check_host_arch amd64 "the image $image"
options=()
bind_in_words_of=add_enroot_bind
add_bind '/home/me/long ship'
add_bind /home/me/longship/project
add_bind /home/me/longship/scratch
add_host_files
add_pip_sources
overlay=/home/me/longship/scratch/overlays/myenv_998211f8576b_amd64.sqsh
check_overlay /home/me/longship/scratch/containers/python_3.11-slim-bookworm_amd64.sqsh
bind_unpacked_overlay
add_bind /tmp
export ENROOT_MOUNT_HOME=yes
export ENROOT_LOGIN_SHELL=no
export LONGSHIP_WORKING_FOLDER="$PWD"
add_environment
check_venv /home/me/longship/scratch/venv_pytorch_amd64 /home/me/longship/scratch/overlays/myenv_998211f8576b_amd64.sqsh
note_use
take_command '/home/me/long ship/lib/shell/interactive.bash' "$@"
encode_command
exec enroot start --rc '/home/me/long ship/lib/inside/enroot.rc' "${options[@]}" "$image" /bin/sh -c "${decode-}$contract" longship "${command[@]}"
