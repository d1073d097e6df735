# shellcheck shell=bash disable=SC2154  # lib/overlay_builds.py assigns them
# The overlays that there are: shown, and deleted where nothing needs them. `active` is the one that
# belongs to the requirements as they are now.

# overlays_there: set `found` to the files of all versions, the oldest first.
overlays_there() {
  local path
  found=()
  while IFS= read -r path; do
    found+=("${path#*/}")
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
}

# list_overlays BASE: each with size, date, last use and requirements, and whether it is for now.
list_overlays() {
  local -a found
  local name
  overlays_there
  if ((${#found[@]})); then
    printf '  %-47s %8s  %-10s %-10s %s\n' OVERLAY SIZE BUILT 'LAST USE' REQUIREMENTS
  fi
  for name in ${found[@]+"${found[@]}"}; do
    describe_overlay "${active%/*}/versions/$name" "$1"
  done
  if [[ ! -e $active ]]; then
    printf 'not built yet for the requirements as they are now: %s\n' "$active"
    next_step 'python3 build_overlay.py'
  fi
}

# describe_overlay FILE BASE: its lines of the list.
describe_overlay() {
  local mark=' ' date asked size used
  human "$(stat -c %s -- "$1")"
  size=$REPLY
  record_value "$1.json" date
  date=${REPLY%T*}
  record_value "$1.json" requirements
  asked=$REPLY
  if ((${#asked} > 60)); then asked=${asked:0:57}...; fi
  last_use "$1"
  used=$REPLY
  if is_active_overlay "$1"; then mark='*'; fi
  printf '%s %-47s %8s  %-10s %-10s %s\n' "$mark" "$(basename -- "$1" .sqsh)" "$size" "${date:--}" "$used" "${asked:--}"
  if [[ $mark == '*' ]]; then
    record_value "$1.json" base
    if [[ $REPLY == "$(json_text "$2")" ]]; then
      printf '  in use\n'
    else
      printf '  for these requirements, but for another image: %s\n' "$REPLY"
    fi
  fi
}

# is_active_overlay FILE: whether the link for the requirements as they are now leads to it.
is_active_overlay() {
  [[ -L $active && $(readlink -- "$active") == "versions/${1##*/}" ]]
}

# last_use FILE: set REPLY to the day; a launcher's pin counts too.
last_use() {
  local pin day
  REPLY=never
  if [[ -e $1.used ]]; then REPLY=$(date -r "$1.used" +%Y-%m-%d); fi
  for pin in "${active%/*}"/pins/*; do
    if [[ -f $pin ]] && grep -qxF -- "$1" "$pin"; then
      day=$(date -r "$pin" +%Y-%m-%d)
      if [[ $REPLY == never || $day > $REPLY ]]; then REPLY=$day; fi
    fi
  done
}

# prune_overlays YES: delete all but the one for now and those that a job or launcher has pinned; ask
# first, unless YES is given.
prune_overlays() {
  local -a found unused=()
  local name path
  local -i bytes=0
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
    note 'there is nothing to delete'
    prune_what_builds_left
    return
  fi
  human "$bytes"
  [[ -n $1 ]] || confirm "delete ${#unused[@]} of the overlays, $REPLY?"
  for path in "${unused[@]}"; do delete_overlay "$path"; done
  prune_what_builds_left
  human "$bytes"
  printf 'freed: %s\n' "$REPLY" >&2
}

# confirm QUESTION: go on if the answer is yes.
confirm() {
  local answer=
  [[ -t 0 ]] || fail "nobody is here to answer: $1" 'with --yes it is not asked'
  printf '%s [y/N] ' "$1" >&2
  IFS= read -r answer || :
  if [[ $answer != [yY]* ]]; then
    note 'nothing was deleted'
    exit 0
  fi
}

# delete_overlay FILE: with all that belongs to it. Its record goes last: without the file it means
# nothing, and the file without a record is no overlay.
delete_overlay() {
  unpacked_folder "$1"
  rm -rf -- "$REPLY"
  rm -f -- "$1" "$1.used" "$1.json"
  printf 'deleted: %s\n' "${1##*/}" >&2
}

# prune_what_builds_left: links that lead nowhere, what a killed build left, and unpacked folders and
# records whose file is gone.
prune_what_builds_left() {
  local path
  for path in "${active%/*}"/*.sqsh; do
    if [[ -L $path && ! -e $path ]]; then rm -f -- "$path"; fi
  done
  for path in "${active%/*}"/versions/*.sqsh.json "${active%/*}"/versions/*.sqsh.used; do
    if [[ ! -e ${path%.*} ]]; then rm -f -- "$path"; fi
  done
  for path in "${active%/*}"/unpacked/*/; do
    path=${path%/}
    if [[ -d $path && ! -e ${active%/*}/versions/${path##*/}.sqsh && ! -e $path.lock ]]; then
      rm -rf -- "$path"
    fi
  done
}
