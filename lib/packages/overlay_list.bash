# shellcheck shell=bash disable=SC2154  # lib/packages/overlay.py assigns them
# All overlays: listed, and deleted if nothing needs them. `active` is the link for the current requirements.

# overlays_there: set `found` to the files of all versions, oldest first.
overlays_there() {
  local path
  found=()
  while IFS= read -r path; do
    found+=("${path#*/}")
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
}

# list_overlays BASE COMMAND: list them with size, date, last use and requirements, and mark the active one;
# COMMAND builds a missing one.
list_overlays() {
  local -a found
  local name form='%s %-47s %8s  %-10s %-10s %s\n'
  local -i asked_columns=60
  terminal_columns
  if ((REPLY < 142)); then
    form='%s %s\n    %8s  %-10s %-10s %s\n'
    asked_columns=$((REPLY - 36))
  fi
  overlays_there
  if ((${#found[@]})); then
    # shellcheck disable=SC2059  # one of the two formats above
    printf "$form" ' ' OVERLAY SIZE BUILT 'LAST USE' REQUIREMENTS
  fi
  for name in ${found[@]+"${found[@]}"}; do
    describe_overlay "${active%/*}/versions/$name" "$1"
  done
  if [[ ! -e $active ]]; then
    printf 'not built yet for the current requirements: %s\n' "$active"
    next_step "$2"
  fi
}

# describe_overlay FILE BASE: print its lines of the list.
describe_overlay() {
  local mark=' ' date asked size used bases
  human "$(stat -L -c %s -- "$1")"
  size=$REPLY
  record_value "$1.json" date
  date=${REPLY%T*}
  record_value "$1.json" requirements
  asked=$REPLY
  if ((${#asked} > asked_columns)); then asked=${asked:0:asked_columns-3}...; fi
  last_use "$1"
  used=$REPLY
  if is_active_overlay "$1"; then mark='*'; fi
  # shellcheck disable=SC2059  # of list_overlays
  printf "$form" "$mark" "$(basename -- "$1" .sqsh)" "$size" "${date:--}" "$used" "${asked:--}"
  record_value "$1.json" wanted
  if [[ $REPLY == "$TAKEN_OVER" ]]; then printf '  not built by Longship: %s\n' "$(readlink -f -- "$1")"; fi
  if [[ $mark == '*' ]]; then
    record_value "$1.json" base
    bases=$REPLY
    if is_base "$2" "$bases"; then
      printf '  active\n'
    else
      printf '  for the current requirements, but for another image: %s\n' "${bases//'\n'/, }"
    fi
  fi
}

# overlays_as_json: the same as JSON; the images of each are on a line each.
overlays_as_json() {
  local -a found facts=()
  local name path mark value
  overlays_there
  for name in ${found[@]+"${found[@]}"}; do
    path=${active%/*}/versions/$name
    mark=false
    if is_active_overlay "$path"; then mark=true; fi
    facts+=("${name%.sqsh}" "$path" "$(stat -c %s -- "$path")" "$mark")
    last_use "$path"
    facts+=("${REPLY/never}")
    for value in date requirements base; do
      record_value "$path.json" "$value"
      facts+=("$REPLY")
    done
  done
  json_list 'overlay file bytes# in_use# last_use built= requirements= images=' ${facts[@]+"${facts[@]}"}
  printf '\n'
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
    if delete_overlay "$path"; then bytes+=size; fi
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
