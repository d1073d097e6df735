# shellcheck shell=bash
# A lock on a shared file system without flock: a folder that says who has it, moved to its name by
# one rename, which fails where there is one already. It is held as long as a process has its file
# `owner` open, which all that its owner starts inherit: also what outlives an owner that was killed.
# As long it is refreshed; one that is held no more is taken over.

declare -g LOCK_PATIENCE=60 # seconds without a sign of life from another host

# what this process holds, the open file of each, and the processes that keep it fresh
declare -ga held_locks=()

declare -ga lock_files=()

declare -ga lock_hearts=()

# the last sign of life of a lock that is waited for, and when it was seen first
declare -gA lock_signs=()

# locked PATH FUNCTION [ARGUMENT...]: run a function while holding the lock of PATH.
locked() {
  hold_lock "$1"
  "${@:2}"
  release_lock
  if ((${#held_locks[@]} == 0)); then trap - EXIT; else trap release_locks EXIT; fi
}

# hold_lock PATH: hold the lock of PATH until the script ends.
hold_lock() {
  acquire_lock "$1.lock"
  trap release_locks EXIT
}

# acquire_lock LOCK: move a folder of ours to that name, or wait for whoever has it.
acquire_lock() {
  [[ -e /proc/$$/stat ]] || fail '/proc not found: locks need it' 'run the command on Linux'
  local -r lock=$1 own=$1.new.$(this_host).$$
  local told='' reason
  local -i failed=0
  until reason=$(make_lock "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it was given back just now
      ((failed < 5)) || fail_writing "${lock%/*}" "cannot create the lock $lock: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to'
      continue
    fi
    failed=0
    if lock_is_stale "$lock" && take_over_lock "$lock" "$own"; then continue; fi
    [[ -n $told ]] ||
      note "waiting for the lock held by $(lock_owner "$lock"); if that process no longer exists, run: rm -r $(printf %q "$lock")"
    told=1
    sleep 1
  done
  held_locks+=("$lock")
  local file
  exec {file}<"$lock/owner"
  lock_files+=("$file")
  # A process that is killed right after its start would still run the trap of this one. In a group of
  # its own, as the lock may have to outlive this process's.
  trap - EXIT
  set -m
  (set +m && exec {file}<&- && beat_lock "$lock") >/dev/null 2>&1 </dev/null &
  set +m
  lock_hearts+=($!)
  disown
  remove_dead_locks "$lock"
}

# make_lock FOLDER LOCK: make a folder that says who has it, and move it to the lock's name. Everybody
# can read it, whatever this user's umask.
make_lock() {
  local host start
  host=$(this_host)
  start=$(process_start "$$")
  (umask a+rx && mkdir -- "$1" && printf '%s %s %s\n' "$host" "$$" "$start" >"$1/owner") && mv -T -- "$1" "$2"
}

# beat_lock LOCK: the sign of life, until no process holds the lock, or somebody else does. Its own process
# is recorded for other users, who cannot see which processes hold the lock.
beat_lock() {
  local -r owner=$(<"$1/owner")
  local -r start=${owner##* } heart=$BASHPID
  (umask a+r && printf '%s %s\n' "$heart" "$(process_start "$heart")" >"$1/heart.partial") &&
    mv -- "$1/heart.partial" "$1/heart" || : # on a full disk it beats all the same
  while sleep 5 && [[ $(<"$1/owner") == "$owner" ]]; do
    if [[ $(process_start "$$") != "$start" ]]; then
      find_lock_holders "$1"
      if ((${#holders[@]} == 0)); then return; fi
    fi
    touch -c -- "$1" "$1/owner"
  done
}

# find_lock_holders LOCK: set `holders` to the processes of this user that have it open.
find_lock_holders() {
  local file
  holders=()
  for file in /proc/[0-9]*/fd/[1-9][0-9]; do # bash opens it as 10 or above
    if [[ $file -ef $1/owner ]]; then
      file=${file#/proc/}
      holders+=("${file%%/*}")
    fi
  done
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
  for folder in "$1".new.* "$1.removal"; do
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
  local file=${lock_files[last]:-}
  if [[ -n ${lock_hearts[last]:-} ]]; then kill -- "-${lock_hearts[last]}" 2>/dev/null || :; fi
  if [[ -n $file ]]; then exec {file}<&-; fi
  remove_lock "${held_locks[last]}"
  unset "lock_hearts[last]" "lock_files[last]" "held_locks[last]"
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

# process_start PID: print when it started, which tells it from a later process with the same number;
# nothing of one that has ended.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  if [[ ${stat[0]:-Z} != [ZX] ]]; then printf '%s' "${stat[19]}"; fi
}

# lock_is_stale LOCK: whether its owner is gone. On this host that can be seen; of other hosts there is only
# the sign of life. It is compared with a folder made now, by the clock of the file system; where it lies in
# the future, it has to change.
lock_is_stale() {
  local -r now=$1.new.$(this_host).now.$$
  local host='' process='' start='' heart beating found sign
  if [[ -d $1 && ! (-r $1 && -x $1) || -e $1/owner && ! -r $1/owner ]]; then return 1; fi # nobody knows
  read -r host process start 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(this_host)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    if [[ -O $1/owner ]]; then return 0; fi # what it has started is ended before the lock is taken over
    # of another user: the heart outlives the last holder; /proc shows it, unless it is mounted with hidepid
    if [[ -e /proc/1/stat ]] && read -r heart beating <"$1/heart" && [[ $(process_start "$heart") != "$beating" ]]; then
      return 0
    fi 2>/dev/null
  fi
  mkdir -- "$now" 2>/dev/null || return 1
  sign=$(stat -c %Y -- "$now" "$1" "$1/owner" 2>/dev/null) || : # no owner
  rmdir -- "$now"
  local -a times=()
  read -r -d '' -a times <<<"$sign" || :
  if ((${#times[@]} < 2)); then return 1; fi # it was given back just now
  if ((${times[2]:-0} > times[1])); then times[1]=${times[2]}; fi
  if ((times[0] - times[1] > LOCK_PATIENCE)); then return 0; fi
  sign="$host $process $start ${times[1]}"
  if [[ ${lock_signs[$1]:-} != "$sign "* ]]; then lock_signs[$1]="$sign $SECONDS"; fi
  ((SECONDS - ${lock_signs[$1]##* } > LOCK_PATIENCE))
}

# take_over_lock LOCK OWN: remove a stale lock, and fail where that has to wait. Only one process may
# look and remove at a time, or the second one would remove the lock that the first has made meanwhile.
take_over_lock() {
  local -r lock=$1 removal=$1.removal
  local -i failed=0
  local owner
  if ! make_lock "$2" "$removal" 2>/dev/null; then
    rm -rf -- "$2"
    if ! lock_is_stale "$removal"; then return 1; fi
    remove_lock "$removal"
    return 0
  fi
  if lock_is_stale "$lock"; then
    owner=$(lock_owner "$lock")
    if end_lock_holders "$lock" && remove_lock "$lock" 2>/dev/null; then
      note "taking over the lock of $owner, which has ended"
    else
      failed=1
    fi
  fi
  remove_lock "$removal"
  return "$failed"
}

# end_lock_holders LOCK: end what its owner has left, and wait until that is gone; false where it stays.
end_lock_holders() {
  local -i tries
  for ((tries = 0; tries < 300; tries++)); do
    find_lock_holders "$1"
    if ((${#holders[@]} == 0)); then return; fi
    if ((tries == 0)); then note "ending its remaining processes: ${holders[*]}"; fi
    if ((tries % 10 == 0)); then
      if ((tries < 50)); then kill "${holders[@]}"; else kill -KILL "${holders[@]}"; fi 2>/dev/null || :
    fi
    sleep 0.1
  done
  return 1
}
