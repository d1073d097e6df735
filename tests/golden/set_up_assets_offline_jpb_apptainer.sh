#!/usr/bin/env bash
# Longship: set_up_assets_offline.py, machine jpb (jsc/site.toml)
set -euo pipefail

# record_of ASSET: set REPLY to the file.
record_of() {
  REPLY=$hub_cache/longship/$1.asset
}

# commit_in RECORD: set REPLY to the commit; empty where there is none.
commit_in() {
  REPLY=
  if [[ -r $1 ]]; then read -r REPLY _ <"$1" || :; fi
}

# files_in RECORD: their paths, one per line.
files_in() {
  tail -n +2 -- "$1" | cut -c 67-
}

# is_there ASSET FOLDER: whether all of its files are. No process, no network.
is_there() {
  record_of "$1"
  local -r record=$REPLY
  commit_in "$record"
  holds_files "$record" "$hub_cache/hub/$2/snapshots/$REPLY"
}

# holds_files RECORD FOLDER: whether all files are there.
holds_files() {
  local line count=
  [[ -r $1 ]] || return 1
  {
    read -r _ count || return 1
    [[ $count == [1-9]* ]] || return 1
    while IFS= read -r line; do
      [[ -e $2/${line:66} ]] || return 1
      count=$((count - 1))
    done
  } <"$1"
  ((count == 0))
}

# name_asset ASSET FOLDER NAME: let a branch, such as main, lead to its commit. main is what the
# libraries take where no revision is said.
name_asset() {
  local found=''
  local -r ref=$hub_cache/hub/$2/refs/$3
  record_of "$1"
  commit_in "$REPLY"
  local -r commit=$REPLY
  if [[ -r $ref ]]; then IFS= read -r found <"$ref" || :; fi
  if [[ $found == "$commit" ]]; then return; fi
  make_folders "${ref%/*}"
  { printf '%s' "$commit" >"$ref.partial" && mv -f -- "$ref.partial" "$ref"; } ||
    fail_writing "${ref%/*}" "cannot write $ref" 'see the line above'
}

# import_asset NUMBER ASSET FOLDER REPO: from there into the cache, if it is all there and as it was.
import_asset() {
  local -r number=$1 asset=$2 folder=$3 repo=$4
  local -r record=$travelling_assets/$asset.asset
  local -r again="where there is a network: python3 set_up.py download --machine $machine; then copy it here"
  if [[ ! -e $record ]]; then
    if is_there "$asset" "$folder"; then return; fi
    fail "the asset $repo is not among what was copied: no $record" "$again"
  fi
  record_of "$asset"
  local -r own=$REPLY
  if cmp -s -- "$record" "$own" && is_there "$asset" "$folder"; then
    note "$repo is there already"
    return
  fi
  step "$number" "Check $repo and put it into the cache"
  commit_in "$record"
  local -r files=$travelling_assets/$folder/$REPLY target=$hub_cache/hub/$folder/snapshots/$REPLY
  check_files "$record" "$files" "$repo"
  make_folders "${own%/*}" "${target%/*}"
  locked "$hub_cache/longship/$folder" take_files "$record" "$files" "$target" "$own"
}

# check_files RECORD FOLDER REPO: stop where one is missing or not what was recorded; name it. All cores
# take part, and split starts them by $SHELL.
check_files() {
  local commit count bad
  read -r commit count <"$1" || :
  # -c, not -q: a program that stops reading would make the pipe fail, and that would mean "none"
  if [[ ! $commit =~ ^[0-9a-f]{40}$ ]] || files_in "$1" | grep -cE '^/|(^|/)\.\.(/|$)' >/dev/null; then
    fail "the record $1 names files outside of its folder" 'do not trust where it comes from'
  fi
  [[ ${count:-0} == "$(files_in "$1" | wc -l)" ]] || fail "the record $1 is cut short" 'copy it again'
  [[ -d $2 ]] || fail "the files of $3 are missing: there is no $2" 'copy that folder too'
  bad=$(cd -- "$2" && tail -n +2 -- "$1" | LC_ALL=C SHELL=/bin/sh split --elide-empty-files -n "r/$(nproc)" \
    --filter='sha256sum --check --quiet 2>/dev/null' 2>/dev/null) && return
  bad=${bad%%: FAILED*}
  [[ -e $2/$bad ]] || fail "the file $2/$bad of $3 is missing" 'copy it again'
  fail "the file $2/$bad of $3 is damaged: its checksum is not what was recorded" 'copy it again'
}

# take_files RECORD FROM TO COPY: let the files appear in TO, complete or not at all; COPY of the record
# says so at the end. They are hard links where the file system has them.
take_files() {
  local -r record=$1 from=$2 to=$3 copy=$4
  local -r partial=$to.partial.$$
  local file
  rm -rf -- "$to".partial.*
  link_files "$record" "$from" "$partial" || {
    rm -rf -- "$partial"
    fail_writing "${to%/*}" "cannot copy the files of $from" 'see the lines above'
  }
  if [[ -d $to ]]; then
    # another selection of the same commit is there: its files stay
    while IFS= read -r file; do
      if [[ ! -e $to/$file ]]; then
        make_folders "$(dirname -- "$to/$file")"
        mv -f -- "$partial/$file" "$to/$file"
      fi
    done < <(files_in "$record")
    rm -rf -- "$partial"
  else
    mv -T -- "$partial" "$to"
  fi
  { cp -- "$record" "$copy.partial" && mv -f -- "$copy.partial" "$copy"; } ||
    fail_writing "${copy%/*}" "cannot write $copy" 'see the line above'
}

# link_files RECORD FROM TO: hard links, or copies on another file system.
link_files() {
  local option
  for option in --link --reflink=auto; do
    rm -rf -- "$3"
    make_folders "$3"
    if files_in "$1" | tr '\n' '\0' |
      (cd -- "$2" && xargs -0 -r cp -L "$option" --parents -t "$3" --) 2>"$3.log"; then
      rm -f -- "$3.log"
      return
    fi
  done
  cat -- "$3.log" >&2
  rm -f -- "$3.log"
  return 1
}

# checksum FILE: its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the line above'
  printf 'sha256:%s' "${sum%% *}"
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

LIBRARY="$PWD"/lib
on_interrupt 'python3 build_container.py'
hub_cache=/e/scratch/project_465000000/me/longship/cache/huggingface
machine=jpb
travelling_assets=/e/scratch/project_465000000/me/longship/offline/assets
import_asset 1/2 models--openai-community--gpt2-6b9ac9e60f44 models--openai-community--gpt2 openai-community/gpt2
import_asset 2/2 datasets--Salesforce--wikitext-8432789c8ec4 datasets--Salesforce--wikitext Salesforce/wikitext
name_asset datasets--Salesforce--wikitext-8432789c8ec4 datasets--Salesforce--wikitext main
name_asset models--openai-community--gpt2-6b9ac9e60f44 models--openai-community--gpt2 main
