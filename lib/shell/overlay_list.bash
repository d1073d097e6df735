# shellcheck shell=bash disable=SC2154  # lib/overlay_builds.py assigns them
# The overlays that there are: shown, and deleted where nothing needs them. `active` is the one that
# belongs to the requirements as they are now.

# overlays_there: set `found` to the files of all versions, the oldest first.
overlays_there() {
  local path
  found=()
  while IFS= read -r path; do
    found+=("${path#*/}")
  done < <(cd -- "${active%/*}/versions" 2>/dev/null && stat -L -c '%Y/%n' -- *.sqsh 2>/dev/null | sort -n)
}

# list_overlays BASE: each with size, date, last use and requirements, and whether it is for now.
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
    # shellcheck disable=SC2059  # one of the two above
    printf "$form" ' ' OVERLAY SIZE BUILT 'LAST USE' REQUIREMENTS
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
  if [[ $REPLY == "$TAKEN_OVER" ]]; then printf '  not made by Longship: %s\n' "$(readlink -f -- "$1")"; fi
  if [[ $mark == '*' ]]; then
    record_value "$1.json" base
    bases=$REPLY
    if is_base "$2" "$bases"; then
      printf '  in use\n'
    else
      printf '  for these requirements, but for another image: %s\n' "${bases//'\n'/, }"
    fi
  fi
}

# overlays_as_json: the same for a program; the images that each is for stand on a line each.
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
    if [[ -f $pin ]] && grep -qF -- "${1##*/}" "$pin"; then
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
    note 'there is nothing to delete'
    prune_what_builds_left
    return
  fi
  human "$bytes"
  [[ -n $1 ]] || confirm "delete ${#unused[@]} of the overlays, $REPLY?"
  bytes=0
  for path in "${unused[@]}"; do
    # the answer can have taken its time
    if is_active_overlay "$path" || is_pinned "$path"; then continue; fi
    size=$(stat -c %s -- "$path")
    if delete_overlay "$path"; then bytes+=size; fi
  done
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

# delete_overlay FILE: with all that belongs to it; false where another user does not let us.
delete_overlay() {
  if ! rm -f -- "$1.json" "$1" "$1.used"; then
    note "kept, it belongs to $(stat -c %U -- "$1"): ${1##*/}"
    return 1
  fi
  unpacked_folder "$1"
  delete_unpacked "$REPLY"
  printf 'deleted: %s\n' "${1##*/}" >&2
}

# delete_unpacked FOLDER: by another name first, as one that is half there would count as complete.
delete_unpacked() {
  if [[ ! -e $1 ]]; then return; fi
  { rm -rf -- "$1.partial" && mv -T -- "$1" "$1.partial" && rm -rf -- "$1.partial"; } ||
    note "cannot delete all of $1"
}

# prune_what_builds_left: links that lead nowhere, what killed builds left, and unpacked folders and
# records whose file is gone. The lock of all overlays is held: no build is at work.
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
