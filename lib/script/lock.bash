# shellcheck shell=bash
# A lock on a shared file system without flock: a directory that names its owner. One rename moves
# it to its final name, and fails if the name is taken. The lock is held while any process has its
# file `owner` open; the owner's children inherit the open file, so the lock lasts as long as the
# last of them. Until then it is refreshed every few seconds; a lock that nobody holds is taken
# over.

declare -g lock_patience=60 # seconds without a sign of life from another host

# the locks that this process holds, the open file of each, and the process that refreshes it
declare -ga held_locks=()

declare -ga lock_files=()

declare -ga lock_hearts=()

# the process that releases them at its end
declare -g lock_process=''

# the last sign of life of each lock that this process waits for, and when it was first seen
declare -gA lock_signs=()

# lock_run PATH FUNCTION [ARGUMENT...]: run a function while holding the lock of PATH.
lock_run() {
  lock_hold "$1"
  "${@:2}"
  lock_release
}

# lock_hold PATH: hold the lock of PATH until the script ends.
lock_hold() {
  lock_take "$1.lock"
}

# lock_take LOCK: create the lock, or wait for its owner. A subshell does not release the locks of
# its parent.
lock_take() {
  [[ -e /proc/$$/stat ]] || fail '/proc not found: locks need it' 'run the command on Linux'
  local -r lock=$1 own=$1.new.$(host_name).$$
  local told='' reason
  local -i failed=0
  until reason=$(lock_make "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it has just been released
      ((failed < 5)) || fail_writing "${lock%/*}" "cannot create the lock $lock: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to'
      continue
    fi
    failed=0
    if lock_is_stale "$lock" && lock_take_over "$lock" "$own"; then continue; fi
    [[ -n $told ]] ||
      note "waiting for the lock held by $(lock_owner "$lock"); if that process no longer exists, run: rm -r $(printf %q "$lock")"
    told=1
    sleep 1
  done
  if [[ $lock_process != "$BASHPID" ]]; then
    held_locks=() lock_files=() lock_hearts=() lock_process=$BASHPID
    at_exit lock_release_all
  fi
  held_locks+=("$lock")
  local file
  exec {file}<"$lock/owner"
  lock_files+=("$file")
  # Without the trap, which a child that is killed right after its start would run. In its own
  # process group, because the lock can outlast this process's group.
  trap - EXIT
  set -m
  (set +m && exec {file}<&- && lock_beat "$lock") >/dev/null 2>&1 </dev/null &
  set +m
  lock_hearts+=($!)
  disown 2>/dev/null || : # it has ended
  at_exit_arm
  lock_remove_dead "$lock"
}

# lock_make DIR LOCK: create a directory that names its owner, and move it to the lock's name.
# Everybody can read it, whatever this user's umask. -f: on a terminal mv would ask before it
# replaces another user's lock, with the question captured, and could report "no" as a success.
lock_make() {
  local host start
  host=$(host_name)
  start=$(process_start "$$")
  mkdir -m 755 -- "$1" && printf '%s %s %s %s\n' "$host" "$$" "$start" "$(host_boot)" >"$1/owner" &&
    chmod 644 -- "$1/owner" && mv -f -T -- "$1" "$2"
}

# lock_beat LOCK: refresh the lock until no process holds it, or another owner does.
lock_beat() {
  local -r owner=$(<"$1/owner")
  local start
  read -r _ _ start _ <<<"$owner"
  while sleep 5 && [[ $(<"$1/owner") == "$owner" ]]; do
    if [[ $(process_start "$$") != "$start" ]]; then
      lock_find_holders "$1"
      if ((${#holders[@]} == 0)); then return; fi
    fi
    touch -c -- "$1" "$1/owner"
  done
}

# lock_find_holders LOCK: set `holders` to the processes of this user that have it open.
lock_find_holders() {
  local file
  holders=()
  for file in /proc/[0-9]*/fd/[1-9][0-9]; do # bash opens it as 10 or above
    if [[ $file -ef $1/owner ]]; then
      file=${file#/proc/}
      holders+=("${file%%/*}")
    fi
  done
}

# lock_remove DIR: rename it first, because only a rename is atomic.
lock_remove() {
  local -r other=$1.new.$(host_name).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another user's lock can be renamed, but not emptied
  else
    rm -rf -- "$1"
  fi
}

# lock_remove_dead LOCK: remove what killed processes left of their own directories; the names say
# whose.
lock_remove_dead() {
  local directory host
  for directory in "$1".new.* "$1.removal"; do
    host=${directory##*.new.}
    host=${host%.*}
    if [[ ! -d $directory ]]; then continue; fi
    if [[ $host == "$(host_name)" && -O $directory && ! -e /proc/${directory##*.} ]] ||
      lock_is_stale "$directory"; then
      rm -rf -- "$directory" 2>/dev/null || : # another user's stays
    fi
  done
}

# lock_release: release the lock that was taken last.
lock_release() {
  local last=${#held_locks[@]}
  last=$((last - 1))
  local file=${lock_files[last]:-}
  if [[ -n ${lock_hearts[last]:-} ]]; then kill -- "-${lock_hearts[last]}" 2>/dev/null || :; fi
  if [[ -n $file ]]; then exec {file}<&-; fi
  lock_remove "${held_locks[last]}"
  unset "lock_hearts[last]" "lock_files[last]" "held_locks[last]"
}

# lock_release_all: release all locks.
lock_release_all() {
  while ((${#held_locks[@]})); do lock_release; done
}

# host_name: print the name of this host; HOSTNAME can be that of the node from which the job was
# submitted.
host_name() {
  printf '%s' "$(</proc/sys/kernel/hostname)"
}

# host_boot: print what distinguishes this host from one of the same name, such as in another
# cluster.
host_boot() {
  { printf '%s' "$(</proc/sys/kernel/random/boot_id)"; } 2>/dev/null
}

# lock_owner LOCK: describe the owner for a message.
lock_owner() {
  local host='' process=''
  read -r host process _ 2>/dev/null <"$1/owner" || :
  printf '%s' "${process:+process $process on }${host:-another process}"
}

# process_start PID: print when it started, which distinguishes it from a later process with the
# same number; print nothing if it has ended.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  if [[ ${stat[0]:-Z} != [ZX] ]]; then printf '%s' "${stat[19]}"; fi
}

# lock_is_stale LOCK: succeed if its owner has ended. /proc shows it on this host; other hosts only
# refresh the lock. Its time is compared with that of a new directory, by the clock of the file
# system; a time in the future must change while this process waits.
lock_is_stale() {
  local -r now=$1.new.$(host_name).now.$$
  local host='' process='' start='' boot='' found sign
  # cannot be known
  if [[ -d $1 && ! (-r $1 && -x $1) || -e $1/owner && ! -r $1/owner ]]; then return 1; fi
  read -r host process start boot 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(host_name)" && ${boot:-$(host_boot)} == "$(host_boot)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    if [[ -O $1/owner ]]; then return 0; fi # its children are ended later
  fi
  mkdir -- "$now" 2>/dev/null || return 1
  sign=$(stat -c %Y -- "$now" "$1" "$1/owner" 2>/dev/null) || : # no owner
  rmdir -- "$now"
  local -a times=()
  read -r -d '' -a times <<<"$sign" || :
  if ((${#times[@]} < 2)); then return 1; fi # it has just been released
  if ((${times[2]:-0} > times[1])); then times[1]=${times[2]}; fi
  if ((times[0] - times[1] > lock_patience)); then return 0; fi
  sign="$host $process $start ${times[1]}"
  if [[ ${lock_signs[$1]:-} != "$sign "* ]]; then lock_signs[$1]="$sign $SECONDS"; fi
  ((SECONDS - ${lock_signs[$1]##* } > lock_patience))
}

# lock_take_over LOCK OWN: remove a stale lock, or fail if it must wait. Only one process may check
# and remove at a time: a second one would remove the lock that the first has just created.
lock_take_over() {
  local -r lock=$1 removal=$1.removal
  local -i failed=0
  local owner
  if ! lock_make "$2" "$removal" 2>/dev/null; then
    rm -rf -- "$2"
    if ! lock_is_stale "$removal"; then return 1; fi
    lock_remove "$removal"
    return 0
  fi
  if lock_is_stale "$lock"; then
    owner=$(lock_owner "$lock")
    if lock_end_holders "$lock" && lock_remove "$lock" 2>/dev/null; then
      note "taking over the lock of $owner, which has ended"
    else
      failed=1
    fi
  fi
  lock_remove "$removal"
  return "$failed"
}

# lock_end_holders LOCK: end the processes that its owner has left; fail if one does not end.
lock_end_holders() {
  local -i tries
  for ((tries = 0; tries < 300; tries++)); do
    lock_find_holders "$1"
    if ((${#holders[@]} == 0)); then return; fi
    if ((tries == 0)); then note "ending its remaining processes: ${holders[*]}"; fi
    if ((tries % 10 == 0)); then
      if ((tries < 50)); then kill "${holders[@]}"; else kill -KILL "${holders[@]}"; fi 2>/dev/null || :
    fi
    sleep 0.1
  done
  return 1
}
