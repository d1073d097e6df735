#!/usr/bin/env bash
# Longship: build_overlay_prune.py, machine jpb (jsc/site.toml)
set -euo pipefail

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

# unpacked_folder FILE: set REPLY to the folder that it is unpacked to.
unpacked_folder() {
  local name=${1##*/}
  REPLY=${1%/*}
  REPLY=${REPLY%/*}/unpacked/${name%.sqsh}
}

# overlays_there: set `found` to the files of all versions, the oldest first.
overlays_there() {
  local path
  found=()
  while IFS= read -r path; do
    found+=("${path#*/}")
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
}

# is_active_overlay FILE: whether the link for the requirements as they are now leads to it.
is_active_overlay() {
  [[ -L $active && $(readlink -- "$active") == "versions/${1##*/}" ]]
}

# last_use FILE: set REPLY to the day; a launcher's pin counts too.
last_use() {
  local pin day
  REPLY=never
  if [[ -e $1.used ]]; then REPLY=$(date -r "$1.used" +%Y-%m-%d); fi
  for pin in "${active%/*}"/pins/*; do
    if [[ -f $pin ]] && grep -qF -- "${1##*/}" "$pin"; then
      day=$(date -r "$pin" +%Y-%m-%d)
      if [[ $REPLY == never || $day > $REPLY ]]; then REPLY=$day; fi
    fi
  done
}

# prune_overlays YES: delete all but the one for now and those that a job or launcher has pinned; ask
# first, unless YES is given.
prune_overlays() {
  local -a found unused=()
  local name path
  local -i bytes=0 size
  overlays_there
  for name in ${found[@]+"${found[@]}"}; do
    path=${active%/*}/versions/$name
    if is_active_overlay "$path"; then
      continue
    elif is_pinned "$path"; then
      note "kept, $REPLY uses it: $name"
    else
      unused+=("$path")
      bytes+=$(stat -c %s -- "$path")
      last_use "$path"
      printf '%s, last used: %s\n' "${name%.sqsh}" "$REPLY" >&2
    fi
  done
  if ((${#unused[@]} == 0)); then
    note 'there is nothing to delete'
    prune_what_builds_left
    return
  fi
  human "$bytes"
  [[ -n $1 ]] || confirm "delete ${#unused[@]} of the overlays, $REPLY?"
  bytes=0
  for path in "${unused[@]}"; do
    # the answer can have taken its time
    if is_active_overlay "$path" || is_pinned "$path"; then continue; fi
    size=$(stat -c %s -- "$path")
    if delete_overlay "$path"; then bytes+=size; fi
  done
  prune_what_builds_left
  human "$bytes"
  printf 'freed: %s\n' "$REPLY" >&2
}

# confirm QUESTION: go on if the answer is yes.
confirm() {
  local answer=
  [[ -t 0 ]] || fail "nobody is here to answer: $1" 'with --yes it is not asked'
  printf '%s [y/N] ' "$1" >&2
  IFS= read -r answer || :
  if [[ $answer != [yY]* ]]; then
    note 'nothing was deleted'
    exit 0
  fi
}

# delete_overlay FILE: with all that belongs to it; false where another user does not let us.
delete_overlay() {
  if ! rm -f -- "$1.json" "$1" "$1.used"; then
    note "kept, it belongs to $(stat -c %U -- "$1"): ${1##*/}"
    return 1
  fi
  unpacked_folder "$1"
  delete_unpacked "$REPLY"
  printf 'deleted: %s\n' "${1##*/}" >&2
}

# delete_unpacked FOLDER: by another name first, as one that is half there would count as complete.
delete_unpacked() {
  if [[ ! -e $1 ]]; then return; fi
  { rm -rf -- "$1.partial" && mv -T -- "$1" "$1.partial" && rm -rf -- "$1.partial"; } ||
    note "cannot delete all of $1"
}

# prune_what_builds_left: links that lead nowhere, what killed builds left, and unpacked folders and
# records whose file is gone. The lock of all overlays is held: no build is at work.
prune_what_builds_left() {
  local path
  for path in "${active%/*}"/{,versions/}*.sqsh; do
    if [[ -L $path && ! -e $path ]]; then rm -f -- "$path"; fi
  done
  for path in "${active%/*}"/versions/*.sqsh.json "${active%/*}"/versions/*.sqsh.used; do
    if [[ ! -e ${path%.*} ]]; then rm -f -- "$path"; fi
  done
  for path in "${active%/*}"/unpacked/*/; do
    path=${path%/}
    case $path in *.lock | *.lock.* | *.partial) continue ;; esac # a launch is unpacking
    if [[ ! -e ${active%/*}/versions/${path##*/}.sqsh && ! -e $path.lock ]]; then
      delete_unpacked "$path"
    fi
  done
  rm -rf -- "${active%/*}"/versions/*.partial "${works:?}".*/* || :
}

# is_pinned VERSION: whether a launcher that is still needed names it; set REPLY to who needs it. A
# launcher of a job is needed while the job runs, any other one while it is there.
is_pinned() {
  local pin image job launcher
  for pin in "${active%/*}"/pins/*; do
    [[ -f $pin ]] || continue
    { IFS= read -r image && IFS= read -r job && IFS= read -r launcher; } <"$pin" || continue
    # by its name: two users can name the same folder in two ways
    if [[ ${image##*/} != "${1##*/}" ]] && ! { holds_tag "$1" && [[ $image == "$(tag_in "$1")" ]]; }; then
      continue
    fi
    if [[ -n $job ]] && job_is_over "$job" || [[ -z $job && ! -e $launcher ]]; then
      rm -f -- "$pin"
      continue
    fi
    REPLY=${job:+job ${job/ / of }}
    REPLY=${REPLY:-$launcher}
    return
  done
  return 1
}

# job_is_over "ID [CLUSTER]": whether Slurm is sure of it; one that does not answer, or is another cluster's
# (JUWELS and JURECA share their file systems), is not.
job_is_over() {
  local -r id=${1%% *} cluster=${1#* }
  local states settings
  if [[ $1 == *' '* ]]; then
    settings=$(timeout 20 scontrol show config 2>/dev/null) || return 1
    [[ $settings =~ ClusterName\ *=\ ([^[:space:]]+) && ${BASH_REMATCH[1]} == "$cluster" ]] || return 1
  fi
  if states=$(timeout 20 squeue --noheader --jobs="$id" --format=%T 2>&1); then
    [[ -z $states ]]
  else
    [[ $states == *'Invalid job id'* ]]
  fi
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

make_folders /e/scratch/project_465000000/me/longship/overlays
active=/e/scratch/project_465000000/me/longship/overlays/myenv_998211f8576b_arm64.sqsh
works=/e/scratch/project_465000000/me/longship/cache/overlays/work
locked /e/scratch/project_465000000/me/longship/overlays prune_overlays ''
