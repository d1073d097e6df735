# shellcheck shell=bash
# A lock on a shared file system without flock: a folder that says who has it, moved to its name by
# one rename, which fails where there is one already. Its owner refreshes it while alive; one whose
# owner is gone is taken over.

readonly LOCK_PATIENCE=60 # seconds without a sign of life from another host

# what this process holds, and the processes that keep it fresh
declare -ga held_locks=()

declare -ga lock_hearts=()

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
