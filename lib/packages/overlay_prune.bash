# shellcheck shell=bash
# Deleting the overlays that nothing needs: neither the configured requirements, nor a job or
# launcher that has pinned one. overlay_prune sets `overlay_active`, the link for the configured
# requirements.

# shellcheck source=lib/runtimes/overlay.bash
source "${BASH_SOURCE[0]%/*}/../runtimes/overlay.bash"
# shellcheck source=lib/store/store.bash
source "${BASH_SOURCE[0]%/*}/../store/store.bash"

# overlay_prune ACTIVE WORKS YES: delete all unused ones and the files of killed builds, in
# WORKS.UID too; ask first, unless YES is given. The lock of all overlays is held: no build is
# running.
overlay_prune() {
  local -a versions=()
  local version
  local -i bytes=0
  overlay_active=$1
  while IFS= read -r version; do
    versions+=("${overlay_active%/*}/versions/${version#*/}")
  done < <(cd -- "${overlay_active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
  store_find_unused "$overlay_active" ${versions[@]+"${versions[@]}"}
  if ((${#store_unused[@]} == 0)); then
    note 'no unused overlays'
    overlay_prune_leftovers "$2"
    return
  fi
  for version in "${store_unused[@]}"; do
    bytes+=$(stat -c %s -- "$version")
    printf '%s\n' "${version##*/}" >&2
  done
  bytes_format "$bytes"
  note 'this configuration and running jobs use none of these; waiting jobs, other stacks and requirements may'
  [[ -n $3 ]] || confirm "delete ${#store_unused[@]} overlays ($REPLY)?"
  store_delete overlay_delete
  overlay_prune_leftovers "$2"
  store_print_freed
}

# overlay_delete VERSION: delete an overlay, see store_delete; what it was unpacked to goes last.
overlay_delete() {
  local -r bytes=$(stat -c %s -- "$1")
  rm -f -- "$1" "$1.used" || {
    note "kept, owned by $(stat -c %U -- "$1"): ${1##*/}"
    return 1
  }
  overlay_unpacked_directory "$1"
  overlay_delete_unpacked "$REPLY"
  REPLY=$bytes
}

# confirm QUESTION: exit unless the answer is yes.
confirm() {
  local answer=
  [[ -t 0 ]] ||
    fail "cannot ask for confirmation without a terminal: $1" 'to confirm in advance, add --yes'
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

# overlay_prune_leftovers WORKS: delete dangling links, files of killed builds, and unpacked
# directories and records without their file.
overlay_prune_leftovers() {
  local path
  for path in "${overlay_active%/*}"/{,versions/}*.sqsh; do
    if [[ -L $path && ! -e $path ]]; then rm -f -- "$path"; fi
  done
  for path in "${overlay_active%/*}"/versions/*.sqsh.json "${overlay_active%/*}"/versions/*.sqsh.used; do
    if [[ ! -e ${path%.*} ]]; then rm -f -- "$path"; fi
  done
  for path in "${overlay_active%/*}"/unpacked/*/; do
    path=${path%/}
    case $path in *.lock | *.lock.* | *.partial) continue ;; esac # a launch is unpacking
    if [[ ! -e ${overlay_active%/*}/versions/${path##*/}.sqsh && ! -e $path.lock ]]; then
      overlay_delete_unpacked "$path"
    fi
  done
  rm -rf -- "${overlay_active%/*}"/versions/*.partial "${1:?}".*/* || :
}
