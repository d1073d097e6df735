# shellcheck shell=bash
# Deleting the overlays that nothing needs: neither the configured requirements, nor a job or launcher that has pinned
# one. overlay_prune sets `active`, the link for the configured requirements.

# shellcheck source=lib/runtimes/overlay.bash
source "${BASH_SOURCE[0]%/*}/../runtimes/overlay.bash"

# overlay_prune ACTIVE WORKS YES: delete all unused ones and the files of killed builds, in WORKS.UID too; ask first,
# unless YES is given. The lock of all overlays is held: no build is running.
overlay_prune() {
  local -a unused=() pins=()
  local path now used
  local -i bytes=0 size
  active=$1
  now=$(version_active "$active")
  while IFS= read -r path; do
    path=${active%/*}/versions/${path#*/}
    if [[ ${path##*/} == "$now" ]]; then
      continue
    elif version_is_pinned "$path"; then
      note "kept, $REPLY uses it: ${path##*/}"
    else
      unused+=("$path")
      bytes+=$(stat -c %s -- "$path")
      # a launcher's pin counts as a use
      mapfile -t pins < <(grep -l -s -D skip -F -e "${path##*/}" -- "${active%/*}"/pins/*)
      used=$(stat -c %y -- "$path.used" ${pins[@]+"${pins[@]}"} 2>/dev/null | sort | tail -n 1) || :
      used=${used%% *}
      printf '%s, last used: %s\n' "$(basename -- "$path" .sqsh)" "${used:-never}" >&2
    fi
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
  if ((${#unused[@]} == 0)); then
    note 'no unused overlays'
    overlay_prune_leftovers "$2"
    return
  fi
  bytes_format "$bytes"
  [[ -n $3 ]] || confirm "delete ${#unused[@]} overlays ($REPLY)?"
  bytes=0
  for path in "${unused[@]}"; do
    # the answer can have taken a while
    if version_is_pinned "$path"; then continue; fi
    size=$(stat -c %s -- "$path")
    if ! rm -f -- "$path.json" "$path" "$path.used"; then
      note "kept, owned by $(stat -c %U -- "$path"): ${path##*/}"
      continue
    fi
    overlay_unpacked_directory "$path"
    overlay_delete_unpacked "$REPLY"
    printf 'deleted: %s\n' "${path##*/}" >&2
    bytes+=$size
  done
  overlay_prune_leftovers "$2"
  bytes_format "$bytes"
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

# overlay_delete_unpacked DIR: rename it first, because a part of it would count as complete.
overlay_delete_unpacked() {
  if [[ ! -e $1 ]]; then return; fi
  { rm -rf -- "$1.partial" && mv -T -- "$1" "$1.partial" && rm -rf -- "$1.partial"; } ||
    note "cannot delete $1 completely"
}

# overlay_prune_leftovers WORKS: delete dangling links, files of killed builds, and unpacked directories and records
# without their file.
overlay_prune_leftovers() {
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
      overlay_delete_unpacked "$path"
    fi
  done
  rm -rf -- "${active%/*}"/versions/*.partial "${1:?}".*/* || :
}
