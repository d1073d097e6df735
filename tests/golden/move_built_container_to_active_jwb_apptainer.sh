#!/usr/bin/env bash
# Longship: move_built_container_to_active.py, machine jwb (jsc/site.toml)
set -euo pipefail

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

# sqsh_arch FILE: the architecture of the programs in it, as enroot records none; nothing where it is
# not all there. Links are left out: older unsquashfs does not follow them.
sqsh_arch() {
  local file code
  while IFS= read -r file; do
    code=$(unsquashfs -cat "$1" "$file" 2>/dev/null | head -c 20 | od -An -v -tx1 | tr -d ' \n')
    case $code in
      7f454c46*3e00) printf amd64 && return ;;
      7f454c46*b700) printf arm64 && return ;;
    esac
  done < <(unsquashfs -lln "$1" 2>/dev/null | awk '$1 ~ /^-r.x/ && sub(/^.* squashfs-root\//, "")' |
    grep -E '(^|/)(bin|sbin)/[^/]+$' 2>/dev/null | head -n 50)
}

# holds_tag FILE: whether it names a tag, and of which program: set REPLY to it.
holds_tag() {
  REPLY=${1##*.}
  [[ $REPLY == docker || $REPLY == podman ]]
}

# tag_in FILE: the tag that it names.
tag_in() {
  local tag=
  if [[ -f $1 ]]; then IFS= read -r tag <"$1" || :; fi
  printf '%s' "$tag"
}

# startable FILE: what a runtime is told to start: the file itself, or the tag that it names.
startable() {
  if holds_tag "$1"; then tag_in "$1"; else printf '%s' "$1"; fi
}

# check_image FILE ARCH HINT: stop where it is incomplete, no image, or for another architecture.
check_image() {
  local found
  case $1 in
    *.docker | *.podman)
      holds_tag "$1"
      check_tag "$REPLY" "$(tag_in "$1")" "$2" "$3"
      ;;
    *.sif) check_sif "$1" "$2" "$3" ;;
    *.sqsh)
      check_sqsh "$1" "$3"
      unsquashfs -s "$1" >/dev/null 2>&1 || fail "the image $1 is not complete" "$3"
      found=$(sqsh_arch "$1")
      # older unsquashfs shows no file
      [[ -z $found || $found == "$2" ]] || fail "the image $1 is for $found, and $2 is needed" "$3"
      ;;
    *.tar)
      found=$(archive_arch "$1")
      [[ -n $found ]] || fail "$1 is no complete archive of an image" "$3"
      [[ $found == "$2" ]] || fail "the archive $1 is for $found, and $2 is needed" "$3"
      ;;
  esac
}

# archive_arch FILE: the architecture of the image in a tar file of docker's or the OCI's layout;
# nothing where there is none.
archive_arch() {
  local manifest config=''
  if manifest=$(member_of "$1" manifest.json); then
    config=$(grep -o '"Config": *"[^"]*"' <<<"$manifest" | head -n 1) || :
    config=${config%\"}
    config=${config##*\"}
  elif manifest=$(member_of "$1" index.json); then
    manifest=$(member_of "$1" "$(blob_named_in "$manifest")") || :
    config=$(blob_named_in "${manifest#*\"config\"}")
  fi
  member_of "$1" "$config" | tr -d ' \n' | grep -o '"architecture":"[^"]*"' | head -n 1 |
    cut -d '"' -f 4 || :
}

# member_of TAR NAME: the content of a file in it.
member_of() {
  tar -xOf "$1" "$2" 2>/dev/null || tar -xOf "$1" "./$2" 2>/dev/null
}

# blob_named_in JSON: the path of the first blob that an OCI document names.
blob_named_in() {
  local digest
  digest=$(grep -o 'sha256:[0-9a-f]*' <<<"$1" | head -n 1) || :
  printf 'blobs/sha256/%s' "${digest#sha256:}"
}

# checksum FILE: its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the line above'
  printf 'sha256:%s' "${sum%% *}"
}

# image_checksum FILE: the checksum of the image; its id where docker or podman has it.
image_checksum() {
  local id
  if holds_tag "$1"; then
    id=$("$REPLY" image inspect --format '{{.Id}}' "$(tag_in "$1")")
    printf 'sha256:%s' "${id#sha256:}"
  else
    checksum "$1"
  fi
}

# image_mark FILE: what changes when the file is written to; not when it is renamed.
image_mark() {
  stat -c '%s %.9Y' -- "$1"
}

# record_value RECORD NAME: set REPLY to one of its values, as JSON has it; empty where there is none.
record_value() {
  local -a lines=()
  REPLY=
  [[ -r $1 ]] || return 0
  mapfile -t lines <"$1"
  value_in "$2" ${lines[@]+"${lines[@]}"}
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

# check_tag PROGRAM TAG ARCH HINT: the same for an image in the store of docker or podman.
check_tag() {
  local found
  found=$("$1" image inspect --format '{{.Architecture}}' "$2" 2>/dev/null) || {
    "$1" version >/dev/null 2>&1 ||
      fail "$1 is here, but it does not work" "see what it says: $1 version"
    fail "$1 has no image $2" "$4"
  }
  [[ $found == "$3" ]] || fail "the image $2 is for $found, and $3 is needed" "$4"
}

# host_arch: set REPLY to this machine's architecture, in the words used everywhere here.
host_arch() {
  REPLY=${BASH_VERSINFO[5]%%-*} # not HOSTTYPE, which tcsh exports in words of its own
  case $REPLY in
    x86_64) REPLY=amd64 ;;
    aarch64) REPLY=arm64 ;;
  esac
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

# with_progress FROM TO PROGRAM...: run what reads the file FROM: as its standard input, or, if TO is not
# empty, to write the file TO.
with_progress() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:3}"
    return
  fi
  # the end of the program, also of this script, is the end of what file 4 leads to
  {
    "${@:3}" 3<&- 4>&- || code=$?
  } 3<&0 4> >(show_position "$1" "$2")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# show_position FROM TO: by the size of TO, else by the place in file 3, until standard input ends.
show_position() {
  local key place bytes of status
  bytes=$(stat -L -c %s -- "$1")
  human "$bytes"
  of=$REPLY
  while status=0 && { read -r -t 0.5 || status=$?; } && ((status > 128)); do
    place=0
    if [[ -n $2 ]]; then
      place=$(stat -c %s -- "$2" 2>/dev/null) || place=0
    else
      while read -r key REPLY; do if [[ $key == pos: ]]; then place=$REPLY; fi; done </proc/self/fdinfo/3
    fi
    human "$place"
    printf '\r\e[K      %s of %s, %d %%' "$REPLY" "$of" $((place * 100 / (bytes > 0 ? bytes : 1))) >&2
  done
  printf '\r\e[K' >&2
}

# put_in_use: check the new image and let `active` lead to it. Killed at any moment, the next call
# goes on: the new image's record is taken away last.
put_in_use() {
  local -r version=${active%/*}/versions/$(version_of "$record")
  if [[ ! -e $record || ! (-e $image || -e $version) ]]; then no_new_image; fi
  if [[ -e $image ]]; then
    step 1/2 "Check the new image $image"
    check_new_image
  fi
  step 2/2 'Put it in use'
  locked "$active" take_over_image "$version"
}

# take_over_image VERSION: the new image becomes a version, with its record, and is used.
take_over_image() {
  make_folders "${1%/*}"
  cp -- "$record" "$1.json.partial" || fail_keeping "$1.json"
  mv -- "$1.json.partial" "$1.json"
  if [[ -e $image ]]; then mv -- "$image" "$1"; fi
  point_to "$1" use
  rm -f -- "$record"
}

# fail_keeping FILE: stop where a file cannot be written, and leave no part of it.
fail_keeping() {
  rm -f -- "$1.partial"
  fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# no_new_image: say why there is nothing to put in use.
no_new_image() {
  if [[ -e $image ]]; then
    fail "the image $image is not complete: it has no record" 'python3 build_container.py'
  elif [[ -e $record ]]; then
    fail "the image $image is missing, there is only its record" 'python3 build_container.py --force'
  fi
  fail "there is no new image $image" \
    'python3 build_container.py; what there is: python3 move_built_container_to_active.py --list'
}

# version_of RECORD: the file name of an image among the versions: when it was built, and what it is.
version_of() {
  local name=${active##*/} date sum
  record_value "$1" date
  date=${REPLY//[-:Z]/}
  record_value "$1" sha256
  sum=${REPLY#sha256:}
  printf '%s_%s_%s.%s' "${name%.*}" "$date" "${sum:0:12}" "${name##*.}"
}

# check_new_image: complete, for the right machine, what was recorded, and Python starts in it.
check_new_image() {
  local sum reason
  check_image "$image" "$arch" 'python3 build_container.py --force'
  record_value "$record" modified
  if [[ $(image_mark "$image") != "$REPLY" ]] || holds_tag "$image"; then
    # its checksum was computed when it was built; again only if it has been written to or copied
    sum=$(image_checksum "$image")
    record_value "$record" sha256
    [[ $sum == "$REPLY" ]] ||
      fail "the image $image is not what was built: its checksum is $sum, and $REPLY was recorded" \
        'python3 build_container.py --force'
  fi
  host_arch
  if [[ $REPLY != "$arch" ]]; then
    note "python3 is not tried in it: it is for $arch, and this machine is $REPLY"
    return
  fi
  reason=$(start_in "$(startable "$image")" python3 -I -c '' 2>&1 </dev/null) || {
    # without Apptainer's colours and warnings
    reason=$(printf '%s\n' "$reason" | sed $'s/\e\\[[0-9;]*m//g' | grep -v -e ^WARNING -e '^ *$' | tail -n 1) || :
    fail "python3 does not start in the image $image${reason:+: $reason}" \
      'name an image that has one: container.image in configuration.toml'
  }
}

# point_to VERSION KIND: let `active` lead to it; KIND, use or rollback, goes into the history.
point_to() {
  local -r version=$1 kind=$2
  local from
  [[ -e $version ]] || fail "the version $version is not there" \
    'what there is: python3 move_built_container_to_active.py --list'
  keep_unversioned_image
  from=$(active_version)
  if [[ $from != "${version##*/}" ]]; then
    add_to_history "$kind ${from:--} ${version##*/}"
    link_to "$version"
  fi
  printf 'in use: %s\n' "${version##*/}" >&2
}

# link_to VERSION: the swap itself.
link_to() {
  { ln -sfn -- "versions/${1##*/}" "$active.partial" && mv -T -- "$active.partial" "$active"; } ||
    fail_writing "${active%/*}" "cannot let $active lead to ${1##*/}" 'see the line above'
}

# active_version: the file name of the version in use; nothing where there is none.
active_version() {
  if [[ -L $active ]]; then basename -- "$(readlink -- "$active")"; fi
}

# keep_unversioned_image: an image that was put there by other means becomes a version too.
keep_unversioned_image() {
  [[ -f $active && ! -L $active ]] || return 0
  local -r name=${active##*/}
  local kept
  kept=${active%/*}/versions/${name%.*}_$(date -u -r "$active" +%Y%m%dT%H%M%S)_unrecorded.${name##*.}
  make_folders "${kept%/*}"
  [[ -e $kept ]] || ln -- "$active" "$kept" 2>/dev/null || {
    cp --reflink=auto -- "$active" "$kept.partial" && mv -- "$kept.partial" "$kept"
  } || fail_keeping "$kept"
  link_to "$kept"
}

# history_file: where it is.
history_file() {
  local -r name=${active##*/}
  printf '%s/versions/%s.history' "${active%/*}" "$name"
}

# add_to_history TEXT: a line more, before it becomes true; what never became true does not count.
add_to_history() {
  local file
  file=$(history_file)
  {
    if [[ -f $file ]]; then cat -- "$file"; fi
    printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1"
  } >"$file.partial" || fail_keeping "$file"
  mv -- "$file.partial" "$file"
}

# human BYTES: set REPLY to them with a unit, such as 9.4 GB.
human() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}

on_interrupt 'python3 move_built_container_to_active.py'
make_folders /p/scratch/project_465000000/me/longship/containers/build
load_modules apptainer purge 'load Stages/2025 GCC' 'try-load Apptainer-Tools'
check_program apptainer
arch=amd64
active=/p/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_amd64.sif
image=/p/scratch/project_465000000/me/longship/containers/build/pytorch_25.06-py3_amd64.sif
record="$image".json

start_in() {
  apptainer --quiet exec "$@"
}

locked "$record" put_in_use
next_step 'python3 set_up.py install'
