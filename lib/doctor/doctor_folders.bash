# shellcheck shell=bash disable=SC2154,SC2034  # heeded is set, and room_elsewhere read, elsewhere
# What doctor.py asks of folders: can they be used, is there room, and what was left in them.

# diagnose_folder TOPIC SETTING FOLDER BYTES: whether it can be used, and has so much room.
diagnose_folder() {
  local text=$3 room_elsewhere=", or set $2 to another place"
  if [[ $2 == HOME ]]; then room_elsewhere=": du -h -d 1 $(printf %q "$3") | sort -h"; fi
  heed "$1" '' try_folder "$2" "$3"
  if [[ ${heeded[$1]} != ok ]]; then return 0; fi
  what_is_there "$3"
  if [[ $REPLY != "$3" ]]; then text+=' (made when it is needed)'; fi
  heed "$1" "$text$(room_left "$REPLY")" check_room "$REPLY" "$4"
}

# what_is_there FOLDER: set REPLY to it, or to the nearest one around it that is there.
what_is_there() {
  REPLY=$1
  until [[ -e $REPLY || -L $REPLY ]]; do
    REPLY=${REPLY%/*}
    REPLY=${REPLY:-/}
  done
}

# try_folder SETTING FOLDER: stop where files cannot be written or programs not be started in it, or,
# where it is not there yet, in the one around it.
try_folder() {
  local -r elsewhere="set $1 to another place"
  local there reason
  what_is_there "$2"
  there=$REPLY
  [[ -e $there ]] || fail "$2: the link $there is dangling" "$elsewhere, or run: rm $(printf %q "$there")"
  [[ -d $there ]] || fail "$2: $there is not a directory" "$elsewhere, or run: rm $(printf %q "$there")"
  # not local: the trap runs when the function has ended
  probe=$(mktemp -- "$there/.longship-doctor.XXXXXX" 2>&1) ||
    fail_writing "$there" "cannot write to $there: ${probe##*: }" "$elsewhere"
  trap 'rm -f -- "$probe"' EXIT
  reason=$({ printf '#!/bin/sh\n' >"$probe" && chmod u+x -- "$probe"; } 2>&1) ||
    fail_writing "$there" "cannot write to $there: ${reason##*: }" "$elsewhere"
  reason=$("$probe" 2>&1) ||
    fail "cannot start programs in $there: ${reason##*: }" \
      "$elsewhere; to check for noexec, run: findmnt --target $(printf %q "$there")"
}

# room_left FOLDER: print how much, where it can be known.
room_left() {
  local free size
  read -r free size < <(timeout 20 stat -f -c '%a %S' -- "$1" 2>/dev/null) || return 0
  human $((free * size))
  printf ', %s free' "$REPLY"
}

# diagnose_caches CACHES: they would fill a home folder, whatever link leads there.
diagnose_caches() {
  local home folder lies
  home=$(readlink -f -- "${HOME:-/nowhere}") || home=/nowhere
  lies=$(readlink -m -- "${1%/*}")
  if [[ $lies/ == "$home"/* ]]; then
    report ok caches "$1, in the home directory, like scratch_dir"
    return
  fi
  for folder in "$1" "$1"/*; do
    lies=$(readlink -m -- "$folder")
    if [[ $lies/ == "$home"/* ]]; then
      report warning caches "$folder leads to $lies: caches would fill the home directory" \
        "rm $(printf %q "$folder"); the next command creates it again"
      return
    fi
  done
  report ok caches "$1, outside the home directory"
}

# diagnose_leftovers ROOT PROJECT SCRATCH: locks without an owner, and what was not finished.
diagnose_leftovers() {
  local path
  local -a where=() unfinished=() locks=()
  local -i kilobytes=0 stale=0
  for path in "$1/requirements" "$2" "$3" "$3"/{containers,containers/build,containers/versions,overlays} \
    "$3"/{overlays/versions,overlays/unpacked,offline,offline/containers,cache,venvs}; do
    if [[ -d $path ]]; then where+=("$path"); fi
  done
  while IFS= read -r -d '' path; do
    case $path in
      *.lock) locks+=("$path") ;;
      *) unfinished+=("$path") ;;
    esac
  done < <(((${#where[@]} == 0)) || timeout 30 find "${where[@]}" -mindepth 1 -maxdepth 1 \
    \( -type d -name '*.lock' -o -name '*.partial*' -mmin +60 \) -print0 2>/dev/null)
  for path in ${locks[@]+"${locks[@]}"}; do
    if lock_is_stale "$path"; then
      stale+=1
      report warning locks "$(lock_owner "$path") no longer runs, but its lock exists: $path, of $(lock_time "$path")" \
        "rm -r $(printf %q "$path"); or let the next command take it over"
    else
      report ok locks "$(lock_owner "$path") holds the lock $path, last seen $(lock_time "$path")"
      return # what is not finished may be its own
    fi
  done
  if ((${#unfinished[@]})); then
    kilobytes=$(timeout 30 du -skc -- "${unfinished[@]}" 2>/dev/null | tail -n 1 | cut -f 1) || :
    human $((kilobytes << 10))
    report warning leftovers "${#unfinished[@]} unfinished for over an hour, $REPLY: ${unfinished[*]}" \
      "rm -r$(printf ' %q' "${unfinished[@]}")"
  elif ((stale == 0)); then
    report ok leftovers 'no locks and no unfinished files'
  fi
}

# lock_time LOCK: print when it last showed a sign of life.
lock_time() {
  date -r "$1" '+%F %H:%M' 2>/dev/null || printf 'a moment ago'
}

# diagnose_home: programs write there whatever they are told, and a full one stops logins.
diagnose_home() {
  local -r home=${HOME:-}
  if [[ -z $home || ! -d $home ]]; then
    report problem home "HOME is ${home:-not set}, which is not a directory" "export HOME=\"\$(getent passwd $UID | cut -d : -f 6)\""
    return
  fi
  diagnose_folder home HOME "$home" 536870912
}
