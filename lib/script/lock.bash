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

# lock_run PATH FUNCTION [ARGUMENT...]: run a function while holding the lock of PATH.
lock_run() {
  lock_hold "$1"
  "${@:2}"
  lock_release
  if ((${#held_locks[@]} == 0)); then trap - EXIT; else trap lock_release_all EXIT; fi
}

# lock_hold PATH: hold the lock of PATH until the script ends.
lock_hold() {
  lock_take "$1.lock"
  trap lock_release_all EXIT
}

# lock_take LOCK: move a folder of ours to that name, or wait for whoever has it.
lock_take() {
  [[ -e /proc/$$/stat ]] || fail '/proc not found: locks need it' 'run the command on Linux'
  local -r lock=$1 own=$1.new.$(host_name).$$
  local told='' reason
  local -i failed=0
  until reason=$(lock_make "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it was given back just now
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
  held_locks+=("$lock")
  local file
  exec {file}<"$lock/owner"
  lock_files+=("$file")
  # A process that is killed right after its start would still run the trap of this one. In a group of
  # its own, as the lock may have to outlive this process's.
  trap - EXIT
  set -m
  (set +m && exec {file}<&- && lock_beat "$lock") >/dev/null 2>&1 </dev/null &
  set +m
  lock_hearts+=($!)
  disown
  lock_remove_dead "$lock"
}

# lock_make FOLDER LOCK: make a folder that says who has it, and move it to the lock's name. Everybody
# can read it, whatever this user's umask.
lock_make() {
  local host start
  host=$(host_name)
  start=$(process_start "$$")
  (umask a+rx && mkdir -- "$1" && printf '%s %s %s\n' "$host" "$$" "$start" >"$1/owner") && mv -T -- "$1" "$2"
}

# lock_beat LOCK: the sign of life, until no process holds the lock, or somebody else does. Its own process
# is recorded for other users, who cannot see which processes hold the lock.
lock_beat() {
  local -r owner=$(<"$1/owner")
  local -r start=${owner##* } heart=$BASHPID
  (umask a+r && printf '%s %s\n' "$heart" "$(process_start "$heart")" >"$1/heart.partial") &&
    mv -- "$1/heart.partial" "$1/heart" || : # on a full disk it beats all the same
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

# lock_remove FOLDER: give it another name first, as only that takes one step.
lock_remove() {
  local -r other=$1.new.$(host_name).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another member's lock can be moved away, but not be emptied
  else
    rm -rf -- "$1"
  fi
}

# lock_remove_dead LOCK: what was killed while it made or removed one; its name says whose it is.
lock_remove_dead() {
  local folder host
  for folder in "$1".new.* "$1.removal"; do
    host=${folder##*.new.}
    host=${host%.*}
    if [[ ! -d $folder ]]; then continue; fi
    if [[ $host == "$(host_name)" && -O $folder && ! -e /proc/${folder##*.} ]] || lock_is_stale "$folder"; then
      rm -rf -- "$folder" 2>/dev/null || : # another member's stays
    fi
  done
}

# lock_release: give back what was taken last.
lock_release() {
  local last=${#held_locks[@]}
  last=$((last - 1))
  local file=${lock_files[last]:-}
  if [[ -n ${lock_hearts[last]:-} ]]; then kill -- "-${lock_hearts[last]}" 2>/dev/null || :; fi
  if [[ -n $file ]]; then exec {file}<&-; fi
  lock_remove "${held_locks[last]}"
  unset "lock_hearts[last]" "lock_files[last]" "held_locks[last]"
}

# lock_release_all: give back all, at the end.
lock_release_all() {
  while ((${#held_locks[@]})); do lock_release; done
}

# host_name: its name; not HOSTNAME, which a job can inherit from the node that it was sent from.
host_name() {
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
  local -r now=$1.new.$(host_name).now.$$
  local host='' process='' start='' heart beating found sign
  if [[ -d $1 && ! (-r $1 && -x $1) || -e $1/owner && ! -r $1/owner ]]; then return 1; fi # nobody knows
  read -r host process start 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(host_name)" ]]; then
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

# lock_take_over LOCK OWN: remove a stale lock, and fail where that has to wait. Only one process may
# look and remove at a time, or the second one would remove the lock that the first has made meanwhile.
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

# lock_end_holders LOCK: end what its owner has left, and wait until that is gone; false where it stays.
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
