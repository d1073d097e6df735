#!/usr/bin/env bash
# Longship: set_up_assets_download.py, machine jpb (jsc/site.toml)
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

# fetch_asset NUMBER ASSET FOLDER KIND REPO REVISION [--include PATTERN | --exclude PATTERN]...: from the
# hub, unless it is there.
fetch_asset() {
  if is_there "$2" "$3"; then
    note "the $4 $5 is there already"
    return
  fi
  make_folders "$hub_cache/longship"
  locked "$hub_cache/longship/$3" fetch_missing_asset "$@"
}

# fetch_missing_asset NUMBER ASSET FOLDER KIND REPO REVISION [OPTION]...: nobody else does it now.
fetch_missing_asset() {
  local -r number=$1 asset=$2 folder=$3 kind=$4 repo=$5 revision=$6
  shift 6
  if is_there "$asset" "$folder"; then return; fi # another process has just done it
  step "$number" "Fetch the $kind $repo, $revision"
  find_hub
  record_of "$asset"
  inside "$hub_python" "$LIBRARY/inside/fetch_assets.py" "$hub_cache/hub" "$REPLY" "$machine" \
    "$kind" "$repo" "$revision" "$@" || exit 1
  record_of "$asset"
  commit_in "$REPLY"
  if [[ $REPLY != "$revision" ]]; then
    note "$revision of $repo is the commit $REPLY now; to stay with it: revision = \"$REPLY\""
  fi
}

# find_hub: set hub_python to a Python inside that has huggingface_hub: the environment's, the image's,
# or one in a venv that is made for it.
find_hub() {
  if [[ -n ${hub_python:-} ]]; then return; fi
  for hub_python in ${hub_venv:+"$hub_venv/bin/python"} python3 "$hub_tools/bin/python"; do
    if inside "$hub_python" -c 'import huggingface_hub' >/dev/null 2>&1; then return; fi
  done
  make_folders "${hub_tools%/*}"
  locked "$hub_tools" make_hub_tools
}

# make_hub_tools: the venv for it, of which nothing stays if it is not complete.
make_hub_tools() {
  note 'fetching huggingface_hub'
  rm -rf -- "$hub_tools"
  if inside python3 -m venv "$hub_tools" >&2 &&
    inside "$hub_python" -m pip --quiet --disable-pip-version-check \
      install -r "$LIBRARY/inside/hub.txt" >&2; then
    return
  fi
  rm -rf -- "$hub_tools"
  fail_writing "${hub_tools%/*}" 'huggingface_hub cannot be installed' \
    'see the lines above; or add huggingface_hub to the requirements'
}

# export_asset ASSET FOLDER: as plain files below "$travelling_assets".
export_asset() {
  local -r copy=$travelling_assets/$1.asset
  record_of "$1"
  local -r record=$REPLY
  commit_in "$record"
  local -r commit=$REPLY
  make_folders "$travelling_assets/$2"
  if ! cmp -s -- "$record" "$copy" || ! holds_files "$copy" "$travelling_assets/$2/$commit"; then
    locked "$travelling_assets/$2" take_files "$record" "$hub_cache/hub/$2/snapshots/$commit" \
      "$travelling_assets/$2/$commit" "$copy"
  fi
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

LIBRARY="$PWD"/lib
on_interrupt 'python3 build_container.py'
# shellcheck disable=SC2016 # expanded inside, not here
contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT='"'"'/home/me/long ship'"'"'
export LONGSHIP_MACHINE=jpb
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/e/project1/project_465000000/me/longship
export LONGSHIP_SCRATCH_DIR=/e/scratch/project_465000000/me/longship
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
inside() {
  /bin/sh -c "$contract" longship "$@"
}

hub_cache=/e/scratch/project_465000000/me/longship/cache/huggingface
machine=jpb
hub_venv=/e/scratch/project_465000000/me/longship/venv_pytorch_arm64
hub_tools=/e/scratch/project_465000000/me/longship/tools_arm64/hub
fetch_asset 1/2 models--openai-community--gpt2-6b9ac9e60f44 models--openai-community--gpt2 \
  model openai-community/gpt2 607a30d783dfa663caf39e06633721c8d4cfcd7e --include '*.json' \
  --include merges.txt
fetch_asset 2/2 datasets--Salesforce--wikitext-8432789c8ec4 datasets--Salesforce--wikitext \
  dataset Salesforce/wikitext main --exclude '*-raw-*'
travelling_assets=/e/scratch/project_465000000/me/longship/offline/assets
export_asset models--openai-community--gpt2-6b9ac9e60f44 models--openai-community--gpt2
export_asset datasets--Salesforce--wikitext-8432789c8ec4 datasets--Salesforce--wikitext
