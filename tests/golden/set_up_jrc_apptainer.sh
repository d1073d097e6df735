#!/usr/bin/env bash
# Longship: set_up.py, machine jrc (jsc/site.toml)
set -euo pipefail

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
    fail "$1 is not on this machine" \
      'choose another one: container.runtime in configuration.toml, or load its module'
}

# check_sif FILE ARCH HINT: stop where the image is missing, is none, or is for another
# architecture. A SIF file tells it behind its first line: magic, version, architecture.
check_sif() {
  local -r file=$1 arch=$2 hint=$3
  [[ -e $file ]] || fail "the image $file is missing" "$hint"
  [[ -r $file ]] || fail "the image $file cannot be read" \
    "ask its owner for: chmod a+r $(printf %q "$file")"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "$file is no SIF image" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] || fail "the image $file is for $found, and $arch is needed" "$hint"
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

# add_home: Apptainer shows the home folder of the passwd file; HOME may be another one.
add_home() {
  local -r home=${HOME:-}
  if [[ ! -d $home ]]; then return 0; fi
  unset HOME # bash then expands ~ from the passwd file
  local -r own=~
  export HOME=$home
  if [[ $home != "$own" ]]; then options+=(--home "$home"); fi
}

# add_nvidia_gpus: only where the node has one; elsewhere --nv only warns.
add_nvidia_gpus() {
  if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi
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

# step NUMBER/COUNT TEXT: say what is done now, and remember it for an interruption.
step() {
  local REPLY
  current_step="step $1, $2"
  paint 2 "[$1] $2"
  printf '%s\n' "$REPLY" >&2
}

# on_interrupt COMMAND: after Ctrl-C name the step and the command that goes on.
on_interrupt() {
  interrupted_command=$1
  trap 'trap - INT TERM
        printf "\n" >&2
        print_messages error "interrupted at ${current_step:-the start}" \
          hint "nothing is lost; go on with: $interrupted_command"
        exit 130' INT TERM
}

# next_step COMMAND: say what to type now.
next_step() {
  print_messages next "$1"
}

# check_requirements: stop where a file is missing.
check_requirements() {
  local word before=
  for word in ${requirements[@]+"${requirements[@]}"}; do
    if [[ $before == -r && ! -r $word && $word != "$repositories_folder"/* ]]; then
      fail "there is no requirements file $word" \
        'make it, or name another one: packages.requirements in configuration.toml, "" for none'
    fi
    before=$word
  done
}

# check_repositories: stop where one is missing, or what it is installed by.
check_repositories() {
  local name word
  local -i at
  for name in ${repository_names[@]+"${repository_names[@]}"}; do
    [[ -d $repositories_folder/$name ]] ||
      fail "there is no repository $repositories_folder/$name" 'python3 set_up.py install'
  done
  for word in ${sources[@]+"${sources[@]}"}; do
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    [[ -f $repositories_folder/$name/pyproject.toml || -f $repositories_folder/$name/setup.py ]] ||
      fail "repository $name cannot be installed: it has no pyproject.toml and no setup.py" \
        'set in its table of configuration.toml: install = "requirements", or "none"'
  done
  for word in ${requirements[@]+"${requirements[@]}"}; do
    [[ $word != "$repositories_folder"/* || -r $word ]] ||
      fail "there is no requirements file $word" \
        "name the repository's own one: requirements = ... in its table of configuration.toml"
  done
  for ((at = 1; at < ${#scripts[@]}; at += 2)); do
    [[ -r ${scripts[at]} ]] ||
      fail "there is no script ${scripts[at]} for repository ${scripts[at - 1]}" \
        'make it, or correct its name: script = ... in configuration.toml'
  done
}

# source_name ./NAME[EXTRA]: NAME.
source_name() {
  local -r path=${1#./}
  printf '%s' "${path%%\[*}"
}

# venv_inputs: one checksum over everything that decides what is installed.
venv_inputs() {
  local word
  local -a words=("$installer" "$torch" ${requirements[@]+"${requirements[@]}"})
  if [[ -n $pins ]]; then words+=("$pins"); fi
  if ((${#sources[@]})); then words+=("$(sources_sum)" "$(plain_sources_sum)"); fi
  if ((${#scripts[@]})); then words+=("${scripts[@]}"); fi
  {
    # files too large to be read: a version's name says what it holds, a site's own image has a date
    printf '%s\n' "$base" "$overlay" "$(if [[ $base == /* ]]; then stat -c '%s %Y' -- "$base" 2>/dev/null; fi)"
    for word in "${words[@]}"; do
      if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
    done
  } | sha256sum | cut -d ' ' -f 1
}

# requirements_sum: one checksum over what is asked for. No path is in it: the same on all machines.
requirements_sum() {
  local word
  for word in ${requirements[@]+"${requirements[@]}"} "$torch"; do
    if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
  done | sha256sum | cut -d ' ' -f 1
}

# print_requirements FILE [DEPTH]: its lines, and those of the files that it includes.
print_requirements() {
  local line
  local -r include='^[[:space:]]*(-r|-c|--requirement|--constraint)[[:space:]=]*([^[:space:]#]+)'
  cat -- "$1"
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ ! $line =~ $include ]]; then continue; fi
    line=${BASH_REMATCH[2]}
    if [[ $line != /* ]]; then line=${1%/*}/$line; fi
    if [[ -f $line ]] && ((${2:-0} < 9)); then print_requirements "$line" "$((${2:-0} + 1))"; fi # not for ever
  done <"$1"
}

# sources_sum: one checksum over what says which packages the repositories need, and how they are
# installed. Their code is not in it: an editable installation sees every change.
sources_sum() {
  local word name
  for word in ${sources[@]+"${sources[@]}"}; do
    printf '%s\n' "$word"
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    (cd -- "$repositories_folder/$name" &&
      sha256sum pyproject.toml setup.py setup.cfg requirements*.txt requirements/*.txt 2>/dev/null) || :
  done | sha256sum | cut -d ' ' -f 1
}

# plain_sources_sum: one checksum over the code of the repositories that are copied into the venv.
plain_sources_sum() {
  local word before=
  for word in "${sources[@]}"; do
    if [[ $word != -e && $before != -e ]]; then
      repository_state "$repositories_folder/$(source_name "$word")"
    fi
    before=$word
  done | sha256sum | cut -d ' ' -f 1
}

# repository_state FOLDER: its commit and its changes, without what a build leaves in it.
repository_state() {
  if git -C "$1" rev-parse HEAD 2>/dev/null; then
    git -C "$1" diff --binary HEAD
    (cd -- "$1" && git ls-files --others --exclude-standard -z -x build -x '*.egg-info' |
      xargs -0 -r sha256sum --)
  else
    (cd -- "$1" && find . \( -name build -o -name '*.egg-info' -o -name __pycache__ \) -prune -o \
      -type f -print0 | sort -z | xargs -0 -r sha256sum --)
  fi
}

# choose_lock: set pins to the group's own list, if there is one for this image.
choose_lock() {
  pins=
  renew='python3 set_up.py update makes it anew; or remove it, to install without'
  if [[ ! -e $lock ]]; then return; fi
  if [[ $(header_value image "$lock") != "$image_address" ]]; then
    note "$lock is for another image, $(header_value image "$lock"): it is not used"
  elif ! list_fits "$lock" requirements "$(requirements_sum)" ||
    ! list_fits "$lock" repositories "$(sources_sum)"; then
    fail "$lock does not fit: the requirements or the repositories have changed since" "$renew"
  else
    pins=$lock
  fi
}

# header_value KEY FILE: what the first lines of a list say, such as `# python: 3.12`.
header_value() {
  sed -n "s/^# $1: //p; /^[^#]/q" "$2"
}

# list_fits FILE KEY SUM: whether it was made from the same.
list_fits() {
  [[ $(header_value "$2" "$1") == "$3" ]]
}

# check_pinned_torch VERSION: stop where the image has a PyTorch and the list another one, or neither.
check_pinned_torch() {
  if [[ -z $torch || $base == host ]]; then return; fi
  if grep -q '^torch==' "$pins"; then
    [[ -z $1 ]] || fail "$pins has a second PyTorch: $base has its own, $1" "$renew"
  elif [[ -z $1 ]]; then
    fail "neither $base nor $pins has a PyTorch" "$renew"
  fi
}

# check_pinned_python: stop where the packages were chosen for another Python.
check_pinned_python() {
  local python
  python=$(inside python3 -c 'import sys; print("{}.{}".format(*sys.version_info))') ||
    fail "there is no python3 in $base" 'use an image that has one'
  [[ $python == "$(header_value python "$pins")" ]] ||
    fail "$pins is for Python $(header_value python "$pins"), and $base has $python" \
      "$renew"
}

readonly VENV_KEPT_DAYS=14 # a replaced venv stays longer than any site's longest job (Olivia: 7 d)

# install_venv CHOOSE BRING_UV [CHECK]: make "$venv" lead to a venv with all that is wanted. CHOOSE
# sets pins to the list of packages with their hashes, "" where there is none, and renew to what
# makes it anew; BRING_UV FILE makes a uv; CHECK looks at what is to be installed. All are functions.
# Uses: inside COMMAND..., which runs a command in the image, and what lib/packages.py assigns.
install_venv() {
  check_venv_place
  check_requirements
  check_repositories
  "$1"
  local -r inputs=$(venv_inputs)
  local found=
  if [[ -e $venv/longship-base ]]; then IFS= read -r found <"$venv/longship-inputs" || :; fi
  if [[ $found == "$inputs" ]]; then
    note "the Python packages are up to date: $venv"
    return
  fi

  local -r venvs=${venv%/*}/venvs
  make_folders "$venvs"
  remove_unfinished_venvs "$venvs"
  new_venv=$venvs/${venv##*/venv_}-$(date +%Y%m%dT%H%M%S)-${inputs:0:12}
  trap 'discard_unfinished_venv; release_locks' EXIT
  ${3:+"$3"}
  step 1/3 "Make the venv $new_venv"
  local image_torch=
  if [[ -n $torch && $base != host && -z $overlay ]]; then image_torch=$(inside python3 -c "$TORCH_VERSION"); fi
  if [[ -n $pins ]]; then
    check_pinned_python
    if [[ -z $overlay ]]; then check_pinned_torch "$image_torch"; fi
  fi
  choose_installer "$image_torch" "$2"
  make_venv "$new_venv" "$base" "$installer"
  if [[ -n $overlay ]]; then put_above_overlay; fi
  step 2/3 'Install the packages'
  if [[ -n $pins ]]; then install_pins; else install_packages "$image_torch"; fi
  run_scripts
  step 3/3 'Put it in use'
  put_venv_in_use "$inputs"
  remove_replaced_venvs "$venvs" "$new_venv"
}

# choose_installer IMAGE_TORCH BRING_UV: set installer, and uv where that is it.
choose_installer() {
  if [[ -n $overlay && -z $pins ]]; then
    installer=pip # uv does not see what the overlay has, pip does
  elif [[ -n $1 && -z $pins ]]; then
    # it is the build for the image's GPUs; uv does not see what an image has, pip does
    note "the image's own PyTorch $1 stays; pip installs on top of it"
    installer=pip
  elif [[ $installer == uv ]]; then
    uv=$(find_uv "$uv" "$2") || installer=pip
  fi
}

# put_venv_in_use INPUTS: call the new one complete, and let the link lead to it.
put_venv_in_use() {
  printf '%s\n' "$1" >"$new_venv/longship-inputs"
  printf '%s\n' "${overlay:-$base}" >"$new_venv/longship-base" # the last file: with it the venv is complete
  if [[ -e $venv/longship-base ]]; then
    touch -- "$venv/." 2>/dev/null || : # from now on the old one counts as replaced, unless it is another's
  elif [[ -e $venv/pyvenv.cfg ]]; then
    note "the venv that was in use is not Longship's and stays: $(readlink -f -- "$venv")"
  fi
  ln -s -- "venvs/${new_venv##*/}" "$venv.partial.$$"
  mv -T -- "$venv.partial.$$" "$venv"
}

# check_venv_place: stop where a folder lies in the place of the link; a venv of the user's own is
# used there too, but it must not be moved, as its programs hold its path.
check_venv_place() {
  if [[ ! -d $venv || -L $venv ]]; then return; fi
  fail "$venv is a folder that Longship did not make, where its link to a venv belongs" \
    "to keep it in use, change nothing; to have one built: $(printf 'mv %q %q' "$venv" "$venv.old")"
}

# discard_unfinished_venv: leave nothing half-written, whatever ended the installation.
discard_unfinished_venv() {
  if [[ ! -e $new_venv/longship-base ]]; then rm -rf -- "$new_venv"; fi
}

# make_venv FOLDER BASE INSTALLER: on top of the image's packages; alone where there is no image.
make_venv() {
  local -a sharing=(--system-site-packages) # not `options`: that is the runtime's, in `inside`
  if [[ $2 == host ]]; then sharing=(); fi
  if [[ $3 == uv ]]; then sharing+=(--without-pip); fi # uv brings it, in a tenth of the time
  inside python3 -m venv ${sharing[@]+"${sharing[@]}"} "$1" ||
    fail_writing "${1%/*}" "python3 cannot make the venv $1" \
      'see the lines above; on Debian and Ubuntu: apt install python3-venv'
}

# put_above_overlay: let the new venv see the overlay's packages, below its own, and start its scripts.
put_above_overlay() {
  inside "$new_venv/bin/python" "$LIBRARY/inside/put_above.py" "$seen_at" ||
    fail_writing "$new_venv" "the venv $new_venv cannot be put above the overlay" 'see the lines above'
}

# install_packages IMAGE_TORCH: what is asked for, at the versions that are newest now.
install_packages() {
  local -a wanted=(${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"})
  if [[ -n $overlay ]]; then # it has all but the repositories
    if ((${#sources[@]})); then run_installer "$torch" "${sources[@]}"; fi
    return
  fi
  if [[ -n $1 ]]; then
    printf 'torch==%s\n' "$1" >"$new_venv/longship-constraints.txt"
    wanted+=(-c "$new_venv/longship-constraints.txt")
  elif [[ -n $torch ]]; then
    wanted+=(-r "$torch")
  fi
  # a venv without its own pip would hand `pip install` to the pip of the host or the image
  if [[ $installer == uv ]]; then wanted+=(pip); fi
  if ((${#wanted[@]})); then run_installer "$torch" "${wanted[@]}"; fi
}

# install_pins: exactly the packages that "$pins" names, then the repositories, which it does not.
install_pins() {
  [[ -n $overlay ]] || run_installer "$pins" --no-deps --require-hashes -r "$pins"
  if ((${#sources[@]})); then run_installer "$pins" --no-deps "${sources[@]}"; fi
}

# run_installer TORCH OPTION...: TORCH is the file that names PyTorch.
run_installer() {
  local folder=
  if ((${#sources[@]})); then folder=$repositories_folder; fi
  inside "$new_venv/bin/python" "$LIBRARY/inside/install_packages.py" "$wheelhouse" \
    "$folder" "$installer" "$uv" "$@" ||
    fail_writing "$new_venv" "the packages cannot be installed into $new_venv" \
      "see the lines above, and run the same command again; without a network: $offline_mode"
}

# run_scripts: what repositories need besides, each script in its repository's folder.
run_scripts() {
  local -i at
  for ((at = 0; at < ${#scripts[@]}; at += 2)); do
    note "running ${scripts[at + 1]} in $repositories_folder/${scripts[at]}"
    inside "$new_venv/bin/python" "$LIBRARY/inside/install_packages.py" "$wheelhouse" \
      "$repositories_folder/${scripts[at]}" run "${scripts[at + 1]}" ||
      fail_writing "$new_venv" "the script ${scripts[at + 1]} of repository ${scripts[at]} failed" \
        'see the lines above; mend it, and run the same command again'
  done
}

# prints nothing where there is no PyTorch
readonly TORCH_VERSION='
import importlib.metadata
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    pass'

# find_uv FILE BRING_UV: print the path of a uv that runs inside; BRING_UV makes FILE where there is
# none.
find_uv() {
  local -r uv=$1
  local found
  if found=$(inside sh -c 'command -v uv'); then
    printf '%s\n' "$found"
    return
  fi
  if [[ ! -x $uv ]]; then
    make_folders "${uv%/*}"
    rm -rf -- "$uv.partial.$$"
    "$2" "$uv"
    rm -rf -- "$uv.partial.$$"
  fi
  if [[ ! -x $uv ]]; then
    note 'uv cannot be had here; pip installs the packages'
    return 1
  fi
  printf '%s\n' "$uv"
}

# fetch_uv FILE: from the package index.
fetch_uv() {
  note 'fetching uv'
  if inside python3 -m venv "$1.partial.$$" >&2 &&
    inside "$1.partial.$$/bin/python" -m pip --quiet --disable-pip-version-check \
      install -r "$LIBRARY/inside/uv.txt" >&2; then
    mv -- "$1.partial.$$/bin/uv" "$1"
  fi
}

# remove_unfinished_venvs FOLDER: what a killed installation left. The lock is held: none is alive.
remove_unfinished_venvs() {
  local each
  for each in "$1/${venv##*/venv_}-"[0-9]*/; do # the lock is that of this stack and architecture
    if [[ -d $each && ! -e $each/longship-base ]]; then rm -rf -- "$each" 2>/dev/null || :; fi # unless it is another member's
  done
}

# remove_replaced_venvs FOLDER CURRENT: those that no job can be using any more. A folder's time is
# the moment when it was replaced.
remove_replaced_venvs() {
  local old
  while IFS= read -r -d '' old; do
    rm -rf -- "$old" 2>/dev/null || : # another member's stays
  done < <(find "$1" -mindepth 1 -maxdepth 1 -type d -name "${venv##*/venv_}-[0-9]*" ! -path "$2" -mtime "+$VENV_KEPT_DAYS" -print0)
}

LIBRARY='/home/me/long ship/lib'
on_interrupt 'python3 set_up.py install'
make_folders /p/project1/project_465000000/me/longship \
  /p/scratch/project_465000000/me/longship
load_modules apptainer purge 'load Stages/2025 GCC' 'try-load Apptainer-Tools'

# Nothing of the host's compilers and Python reaches the program.
unset BASH_ENV ENV LD_PRELOAD LESSOPEN CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH \
  CMAKE_PREFIX_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV \
  "${!CONDA_@}" "${!_CE_@}" HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE \
  MY_HOST_ONLY "${!MY_HOST_@}"

# What the program finds inside, in every runtime: POSIX sh.
# shellcheck disable=SC2016 # expanded inside, not here
contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT='"'"'/home/me/long ship'"'"'
export LONGSHIP_MACHINE=jrc
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/p/project1/project_465000000/me/longship
export LONGSHIP_SCRATCH_DIR=/p/scratch/project_465000000/me/longship
export LONGSHIP_CHECKPOINT_DIR=/p/scratch/project_465000000/me/longship/checkpoints
export LONGSHIP_REPOSITORIES=/p/project1/project_465000000/me/longship/repos
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
unset HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE
export OMP_NUM_THREADS=8
export GREETING='"'"'it'"'"'"'"'"'"'"'"'s "$HOME"'"'"'
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
command -v -- "$1" >/dev/null || {
  echo "error: there is no command \"$1\" inside" >&2
  echo "hint: a Python package? add it to the requirements, then: python3 set_up.py install" >&2
  exit 127
}
exec "$@"'

check_program apptainer
image=/p/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_amd64.sif
check_sif "$image" amd64 'python3 build_container.py && python3 move_built_container_to_active.py'
check_host_arch amd64 "the image $image"
options=()
add_home
add_bind '/home/me/long ship'
add_bind /p/project1/project_465000000/me/longship
add_bind /p/scratch/project_465000000/me/longship
add_bind /data /data ro
add_host_files
add_pip_sources
add_nvidia_gpus

inside() {
  apptainer --quiet exec "${options[@]}" "$image" /bin/sh -c "${decode-}$contract" longship "$@"
}

offline_mode='python3 set_up.py offline'
base=/p/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_amd64.sif
torch='/home/me/long ship/requirements/torch.txt'
image_address=docker://nvcr.io/nvidia/pytorch:25.06-py3
lock='/home/me/long ship/requirements/pytorch_amd64.lock'
requirements=(-r '/home/me/long ship/requirements/environment.txt')
repositories_folder=/p/project1/project_465000000/me/longship/repos
repository_names=()
sources=()
scripts=()
venv=/p/scratch/project_465000000/me/longship/venv_pytorch_amd64
overlay=''
seen_at=''
installer=uv
uv=/p/scratch/project_465000000/me/longship/tools_amd64/uv
wheelhouse=''
locked "$venv" install_venv choose_lock fetch_uv
next_step 'python3 submit.py jsc/preprocess_data_jrc.sbatch'
