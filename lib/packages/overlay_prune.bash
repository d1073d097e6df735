# shellcheck shell=bash disable=SC2154  # lib/packages/overlay.py assigns them
# Overlays are deleted if nothing needs them. `active` is the link for the current requirements.

# overlays_there: set `found` to the files of all versions, oldest first.
overlays_there() {
  local path
  found=()
  while IFS= read -r path; do
    found+=("${path#*/}")
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
}

# is_active_overlay FILE: whether the link for the current requirements leads to it.
is_active_overlay() {
  [[ -L $active && $(readlink -- "$active") == "versions/${1##*/}" ]]
}

# last_use FILE: set REPLY to the date; a launcher's pin counts too.
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

# prune_overlays YES: delete all except the active one and those that a job or launcher has pinned; ask
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
    note 'no unused overlays'
    prune_what_builds_left
    return
  fi
  human "$bytes"
  [[ -n $1 ]] || confirm "delete ${#unused[@]} overlays ($REPLY)?"
  bytes=0
  for path in "${unused[@]}"; do
    # the answer can have taken a while
    if is_active_overlay "$path" || is_pinned "$path"; then continue; fi
    size=$(stat -c %s -- "$path")
    if delete_overlay "$path"; then bytes=$((bytes + size)); fi
  done
  prune_what_builds_left
  human "$bytes"
  printf 'freed: %s\n' "$REPLY" >&2
}

# confirm QUESTION: exit unless the answer is yes.
confirm() {
  local answer=
  [[ -t 0 ]] || fail "cannot ask for confirmation without a terminal: $1" 'to confirm in advance, add --yes'
  printf '%s [y/N] ' "$1" >&2
  IFS= read -r answer || :
  if [[ $answer != [yY]* ]]; then
    note 'nothing was deleted'
    exit 0
  fi
}

# delete_overlay FILE: delete it with its record and its directory; false if another user's permissions forbid it.
delete_overlay() {
  if ! rm -f -- "$1.json" "$1" "$1.used"; then
    note "kept, owned by $(stat -c %U -- "$1"): ${1##*/}"
    return 1
  fi
  unpacked_folder "$1"
  delete_unpacked "$REPLY"
  printf 'deleted: %s\n' "${1##*/}" >&2
}

# delete_unpacked DIR: rename it first, because a part of it would count as complete.
delete_unpacked() {
  if [[ ! -e $1 ]]; then return; fi
  { rm -rf -- "$1.partial" && mv -T -- "$1" "$1.partial" && rm -rf -- "$1.partial"; } ||
    note "cannot delete $1 completely"
}

# prune_what_builds_left: delete dangling links, files of killed builds, and unpacked directories and
# records without their file. The lock of all overlays is held: no build is running.
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
