# shellcheck shell=bash disable=SC2154  # the emitted script says which image: active, image, record
# The versions of an image: shown, and deleted where nothing needs them.

# versions_there: set `found` to the files of all versions, the oldest first.
versions_there() {
  local -r name=${active##*/}
  found=("${active%/*}/versions/${name%.*}"_[0-9]*_*."${name##*.}")
  [[ -e ${found[0]} ]] || found=()
}

# list_versions: each with date, size, digest and source; which one is in use, and since when; and
# what waits to be put in use.
list_versions() {
  local -a found
  local now since version mark name=${active##*/} form='%s %-29s %-20s %8s  %-19s  %s\n'
  local -i source_columns
  terminal_columns
  source_columns=$((REPLY - 84))
  if ((REPLY < 120)); then
    form='%s %-29s %-20s %8s\n    %-19s  %s\n'
    source_columns=$((REPLY - 25))
  fi
  versions_there
  now=$(active_version)
  read -r since _ <<<"$(last_change '*')"
  if ((${#found[@]})); then
    # shellcheck disable=SC2059  # one of the two above
    printf "$form" ' ' VERSION BUILT SIZE DIGEST SOURCE
  fi
  for version in ${found[@]+"${found[@]}"}; do
    mark=' '
    if [[ ${version##*/} == "$now" ]]; then mark='*'; fi
    describe_version "$mark" "$version" "${version##*/"${name%.*}_"}"
    if [[ $mark == '*' ]]; then printf '  in use%s\n' "${since:+ since $since}"; fi
    image_damage "$version"
    if [[ -n $REPLY ]]; then printf '  damaged: %s\n' "$REPLY"; fi
  done
  if [[ -f $active && ! -L $active ]]; then
    printf 'in use: %s, put there by other means\n' "$active"
  elif [[ -n $now && ! -e $active ]]; then
    printf 'in use: %s, which is missing\n' "$now"
    next_step 'python3 move_built_container_to_active.py --use VERSION, or python3 build_container.py'
  elif [[ -z $now ]]; then
    printf 'no image is in use\n'
  fi
  if [[ -e $record && -e $image ]]; then
    printf 'new, not in use yet:\n'
    version=$(version_of "$record")
    describe_version '+' "$image" "${version#"${name%.*}_"}"
    next_step 'python3 move_built_container_to_active.py'
  elif [[ -z $now && ! -e $active ]]; then
    next_step 'python3 build_container.py'
  fi
}

# versions_as_json: the same for a program.
versions_as_json() {
  local -a found facts=()
  local now since used version
  versions_there
  now=$(active_version)
  read -r since _ <<<"$(last_change '*')"
  for version in ${found[@]+"${found[@]}"}; do
    used=false
    if [[ ${version##*/} == "$now" ]]; then used=true; fi
    add_version "$version" "${version##*/}" "$used"
  done
  if [[ -f $active && ! -L $active ]]; then add_version "$active" '' true; fi
  since=
  if [[ -e $record && -e $image ]]; then add_version "$image" "$(version_of "$record")" false; fi
  json_list 'version file built= bytes# digest= source= in_use# since' ${facts[@]+"${facts[@]}"}
  printf '\n'
}

# add_version FILE VERSION USED: to facts.
add_version() {
  local name=${active##*/} value=$2
  value=${value#"${name%.*}_"}
  facts+=("${value%.*}" "$1")
  for value in date bytes digest source; do
    record_value "$1.json" "$value"
    if [[ $value == bytes && -z $REPLY ]]; then REPLY=$(stat -c %s -- "$1"); fi
    facts+=("$REPLY")
  done
  if [[ $3 == true ]]; then value=$since; else value=''; fi
  facts+=("$3" "$value")
}

# describe_version MARK FILE NAME: one line of the list.
describe_version() {
  local date size digest
  local -r file=$2.json
  record_value "$file" date
  date=${REPLY:--}
  record_value "$file" bytes
  if [[ ! $REPLY =~ ^[0-9]+$ ]]; then REPLY=$(stat -c %s -- "$2"); fi
  human "$REPLY"
  size=$REPLY
  record_value "$file" digest
  digest=${REPLY:0:19}
  record_value "$file" source
  REPLY=${REPLY:--}
  # shellcheck disable=SC2059  # of list_versions
  printf "$form" "$1" "${3%.*}" "$date" "$size" "${digest:--}" "${REPLY:0:source_columns}"
}

# prune_versions: delete all but the one in use, the one that a swap was killed with, and those that a
# running job has pinned.
prune_versions() {
  local -a found
  local now waiting version
  local -i freed=0
  versions_there
  now=$(active_version)
  [[ -n $now ]] || fail "there is no image in use: $active" \
    'python3 move_built_container_to_active.py; nothing was deleted'
  # the last whole one could be among those that would go
  image_damage "${active%/*}/versions/$now"
  [[ -z $REPLY ]] || fail "nothing was deleted: the image in use is damaged, $now: $REPLY" \
    "python3 move_built_container_to_active.py --use VERSION; or $BUILD_ANEW"
  waiting=$(version_of "$record")
  for version in ${found[@]+"${found[@]}"}; do
    if [[ ${version##*/} == "$now" || ${version##*/} == "$waiting" ]]; then
      continue
    elif is_pinned "$version"; then
      note "kept, $REPLY uses it: ${version##*/}"
    else
      prune_version "$version"
      freed+=REPLY
    fi
  done
  prune_what_was_left
  human "$freed"
  printf 'freed: %s\n' "$REPLY" >&2
}

# prune_what_was_left: what a killed swap left, and records of images that were deleted by hand.
prune_what_was_left() {
  local file
  local -r name=${active##*/}
  for file in "${active%/*}/versions/${name%.*}"_*.partial; do rm -f -- "$file"; done
  for file in "${active%/*}/versions/${name%.*}"_*."${name##*.}.json"; do
    if [[ ! -e ${file%.json} ]]; then rm -f -- "$file"; fi
  done
}

# prune_version VERSION: set REPLY to the bytes that this frees; in a store other names can still
# hold the image.
prune_version() {
  local -i bytes=0
  if ! holds_tag "$1"; then bytes=$(stat -c %s -- "$1"); fi
  if delete_image "$1"; then
    rm -f -- "$1.json"
    printf 'deleted: %s\n' "${1##*/}" >&2
  else
    note "kept, something still runs in it: ${1##*/}"
  fi
  REPLY=$bytes
}
