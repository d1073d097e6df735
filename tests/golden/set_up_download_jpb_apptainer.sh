#!/usr/bin/env bash
# Longship: set_up_download.py, machine jpb (jsc/site.toml)
set -euo pipefail

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

# pin_packages FOLDER UV PYTHON...: choose versions for the target that FOLDER/target describes, and
# write FOLDER/pins.txt; PYTHON... is a command.
pin_packages() {
  local -r folder=$1 its_uv=$2
  "${@:3}" "$LIBRARY/inside/pin_packages.py" "$its_uv" "$folder/target" "$arch" "$gpu" "$torch" \
    "$repositories_folder" "$folder/pins.txt" \
    pip ${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"} ||
    fail_writing "$folder" 'the versions of the packages cannot be chosen' \
      "see the lines above; mend the requirements, and run the same command again; without a network: $offline_mode"
}

# describe_inside FOLDER: write down what the Python inside has. Where there is no image the venv
# shares nothing with it.
describe_inside() {
  make_folders "$1"
  inside python3 "$LIBRARY/inside/describe_image.py" "$1" ||
    fail_writing "$1" "python3 cannot tell what $base has" 'see the lines above'
  if [[ $base == host ]]; then forget_packages "$1"; fi
}

# forget_packages FOLDER: leave of a description only what the Python is.
forget_packages() {
  rm -rf -- "$1/wheels"
  mkdir -- "$1/wheels"
  : >"$1/packages.txt"
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

# write_header PYTHON GLIBC: the first lines of a list, which say what it was made for and from.
write_header() {
  printf '# %s: %s\n' python "$1" glibc "$2" platform "linux $arch" image "$image_address" \
    requirements "$(requirements_sum)" repositories "$(sources_sum)"
}

# download_packages [OPTION]...: fetch all wheels for the target; OPTIONs are pip's.
# Uses: start_image, which defines inside COMMAND... for the target's image, if it runs here.
download_packages() {
  check_requirements
  check_repositories
  choose_lock
  unfinished=$downloads/${lock##*/}
  unfinished=${unfinished%.lock}.partial
  trap 'rm -rf -- "$unfinished"; release_locks' EXIT
  rm -rf -- "$unfinished"
  make_folders "$unfinished/target" "$unfinished/built"
  find_host_python
  step 1/4 'Find out what the target has'
  runs_here=no
  if image_starts; then
    start_image
    runs_here=yes
  fi
  describe_target "$unfinished/target"
  note "the target has Python $(<"$unfinished/target/python") on $arch"
  step 2/4 'Choose the versions'
  make_fetcher
  choose_versions "$@"
  step 3/4 'Fetch the wheels'
  fetch_wheels "$@"
  step 4/4 'Check that all is there'
  if [[ -s $unfinished/missing.txt ]]; then build_wheels "$@"; fi
  list_wheels
  rm -rf -- "$unfinished"
}

# find_host_python: set host_python to the first that is new enough; python3 of a login node is old.
find_host_python() {
  for host_python in "${LIBRARY%/*}/.venv/bin/python" python3 python3.{14,13,12,11,10,9}; do
    if "$host_python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      return
    fi
  done
  fail 'there is no Python 3.9 or newer here, which fetches the packages' \
    'install one, or put it on PATH; on a cluster: module avail python'
}

# image_starts: whether the target's programs run here.
image_starts() {
  host_arch
  [[ $REPLY == "$arch" ]] && (start_image && inside python3 --version) >/dev/null 2>&1
}

# describe_target FOLDER: write down the target's Python and the packages that its image has.
describe_target() {
  if [[ -n $pins ]]; then
    describe_by_hand "$1" "$(header_value python "$pins")" "$(header_value glibc "$pins")"
  elif [[ $runs_here == yes && ($base != host || -z $configured_python) ]]; then
    describe_inside "$1"
  elif [[ -n $archive && -e $archive ]]; then
    note "reading $archive"
    "$host_python" "$LIBRARY/inside/read_archive.py" "$1" "$archive" ||
      fail "the image's archive $archive cannot be read" \
        "fetch it again: python3 build_container.py download --force --machine $machine"
  elif [[ -n $configured_python ]]; then
    if [[ $base != host ]]; then
      note "what $image_address has is not known here: everything is fetched, also what it has"
    fi
    describe_by_hand "$1" "$configured_python" ''
    if [[ $base != host && ($gpu == cuda || $gpu == rocm) ]]; then
      note "but no PyTorch: that is the image's own, the build for $gpu"
      printf 'torch\n' >"$1/excluded.txt"
    fi
  else
    fail "nothing here tells which Python $machine has" \
      "say it in configuration.toml, packages.python = \"3.12\"$(if [[ -n $archive ]]; then
        printf '; or first: python3 build_container.py download --machine %s' "$machine"
      fi)"
  fi
}

# describe_by_hand FOLDER PYTHON GLIBC: without the packages that an image has.
describe_by_hand() {
  printf '%s' "$2" >"$1/python"
  printf '%s' "$3" >"$1/glibc"
  forget_packages "$1"
}

# make_fetcher: a venv with the pip and the uv that fetch, once on this machine.
make_fetcher() {
  if [[ -x $fetcher/bin/uv ]] && "$fetcher/bin/python" -c ''; then return; fi
  make_folders "${fetcher%/*}"
  rm -rf -- "$fetcher" "$fetcher.partial"
  if ! "$host_python" -m venv "$fetcher.partial" >&2 ||
    ! "$fetcher.partial/bin/python" -m pip --quiet --disable-pip-version-check install --upgrade \
      'pip>=24' -r "$LIBRARY/inside/uv.txt" >&2; then
    rm -rf -- "$fetcher.partial"
    fail_writing "${fetcher%/*}" 'pip and uv cannot be had, which fetch the packages' \
      'see the lines above; is there a network, and a Python with venv?'
  fi
  mv -T -- "$fetcher.partial" "$fetcher"
}

# choose_versions [OPTION]...: write what is to be fetched, and what stands above the list of it.
choose_versions() {
  if [[ -n $pins ]]; then
    note "the versions are those of $pins"
    sed '/^#/d' "$pins" >"$unfinished/pins.txt"
  else
    local -r python=$fetcher/bin/python
    pin_packages "$unfinished" "$fetcher/bin/uv" \
      "$python" "$LIBRARY/inside/pip_options.py" "$@" -- "$python"
  fi
  {
    write_header "$(<"$unfinished/target/python")" "$(<"$unfinished/target/glibc")"
    if [[ -n $pins ]]; then printf '# lock: %s\n' "$(sha256sum <"$pins")"; fi
  } >"$unfinished/header"
}

# fetch_wheels [OPTION]...: all that there are; missing.txt then names the others.
fetch_wheels() {
  local full=
  local -i failed=0
  fetch_packages fetch "$repositories_folder" ${sources[@]+"${sources[@]}"} -- "$@" || failed=$?
  if ((failed == 4)); then full=': No space left on device'; fi # pip has cleaned up meanwhile
  ((failed == 0)) ||
    fail_writing "$downloads" "the packages cannot be fetched into $downloads$full" \
      'see the lines above; the same command goes on where it stopped'
}

# fetch_packages MODE WORD...: one step of the download.
fetch_packages() {
  local name=${lock##*/}
  name=${name%.lock}
  "$fetcher/bin/python" "$LIBRARY/inside/fetch_packages.py" "$1" "$downloads" "$name" "$arch" \
    "$unfinished" "${@:2}"
}

# build_wheels [OPTION]...: make wheels of what comes only as source; in the image, if it runs here.
build_wheels() {
  local -a python=("$fetcher/bin/python")
  local where='this machine' pip
  pip=$("$fetcher/bin/python" -c 'import pip; print(pip.__path__[0])') # an image may have none
  if [[ $runs_here == yes ]]; then
    python=(inside python3)
    where="$base"
  fi
  note "building from source, with the Python of $where: $(sed -n 's/^\([^ ]\{1,\}\).*/\1/p' \
    "$unfinished/missing.txt" | paste -s -d ' ')"
  "${python[@]}" "$pip" --quiet --disable-pip-version-check wheel --no-deps --require-hashes \
    --wheel-dir "$unfinished/built" "$@" -r "$unfinished/missing.txt" >&2 ||
    note 'not all of it could be built: see the lines above'
}

# list_wheels: print the table; stop where something is missing.
list_wheels() {
  local -i failed=0
  fetch_packages finish "$runs_here" >"$unfinished/table" || failed=$?
  case $failed in
    0) cat -- "$unfinished/table" ;;
    3) fail "no wheel for Python $(<"$unfinished/target/python") on $arch: $(<"$unfinished/table")" \
      'ask for versions that have one, or put wheels of your own where pip finds them: -- --find-links FOLDER' ;;
    *) fail_writing "$downloads" "the lists of $downloads cannot be written" 'see the lines above' ;;
  esac
}

LIBRARY='/home/me/long ship/lib'
on_interrupt 'python3 set_up.py download --machine jpb'
make_folders /e/project1/project_465000000/me/longship /home/me/longship/scratch \
  /e/scratch/project_465000000/me/longship/checkpoints
offline_mode='python3 set_up.py offline'
base=/home/me/longship/scratch/containers/pytorch_25.06-py3_arm64.sif
torch='/home/me/long ship/requirements/torch.txt'
image_address=docker://nvcr.io/nvidia/pytorch:25.06-py3
lock='/home/me/long ship/requirements/pytorch_arm64.lock'
requirements=(-r '/home/me/long ship/requirements/environment.txt')
repositories_folder=/e/project1/project_465000000/me/longship/repos
repository_names=()
sources=()
scripts=()
arch=arm64
gpu=cuda
machine=jpb
downloads=/home/me/longship/scratch/offline/pip
fetcher=/home/me/longship/scratch/tools_amd64/fetcher
export PIP_CACHE_DIR=/home/me/longship/scratch/cache/pip
export UV_CACHE_DIR=/home/me/longship/scratch/cache/uv
archive=/home/me/longship/scratch/offline/containers/pytorch_25.06-py3_arm64.tar
configured_python=''

start_image() {

  # Nothing of the host's compilers and Python reaches the program.
  unset BASH_ENV ENV LD_PRELOAD LESSOPEN CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH \
  CMAKE_PREFIX_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV \
  "${!CONDA_@}" "${!_CE_@}" HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE \
  MY_HOST_ONLY "${!MY_HOST_@}"

  # What the program finds inside, in every runtime: POSIX sh.
  # shellcheck disable=SC2016 # expanded inside, not here
  contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT='"'"'/home/me/long ship'"'"'
export LONGSHIP_MACHINE=jpb
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/e/project1/project_465000000/me/longship
export LONGSHIP_SCRATCH_DIR=/home/me/longship/scratch
export LONGSHIP_CHECKPOINT_DIR=/e/scratch/project_465000000/me/longship/checkpoints
export LONGSHIP_REPOSITORIES=/e/project1/project_465000000/me/longship/repos
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
  image=/home/me/longship/scratch/containers/pytorch_25.06-py3_arm64.sif
  check_sif "$image" arm64 'python3 build_container.py && python3 move_built_container_to_active.py'
  check_host_arch arm64 "the image $image"
  options=()
  add_home
  add_bind '/home/me/long ship'
  add_bind /e/project1/project_465000000/me/longship
  add_bind /home/me/longship/scratch
  add_bind /e/scratch/project_465000000/me/longship/checkpoints
  add_bind /data /data ro
  add_host_files
  add_pip_sources
  add_nvidia_gpus

  inside() {
    apptainer --quiet exec "${options[@]}" "$image" /bin/sh -c "${decode-}$contract" longship "$@"
  }
}

make_folders /home/me/longship/scratch/offline/pip
locked /home/me/longship/scratch/offline/pip/download download_packages "$@"
next_step 'rsync -a /home/me/longship/scratch/offline/ jpb:/e/scratch/project_465000000/me/longship/offline/; then there: python3 set_up.py offline'
