# shellcheck shell=bash disable=SC2154  # the emitted script assigns active, image, record and arch
# The versions of images: listed, and deleted where nothing needs them. The configured image comes first, then
# those of other names: of an earlier tag, or of another configuration that shares the scratch directory.

# find_versions: set `found` to the files of all versions of an image, the oldest first.
find_versions() {
  local -r name=${active##*/}
  found=("${active%/*}/versions/${name%.*}"_[0-9]*_*."${name##*.}")
  [[ -e ${found[0]} ]] || found=()
}

# find_other_images: set `others` to what the active image would be called, for each other name that has versions.
find_other_images() {
  local file name
  local -A seen=(["${active##*/}"]=1)
  others=()
  for file in "${active%/*}"/versions/*_"$arch"_[0-9]*_*."${active##*.}"; do
    name=${file##*/}
    name=${name%_*_*}.${active##*.}
    if [[ ! -e $file || -n ${seen[$name]:-} ]]; then continue; fi
    seen[$name]=1
    others+=("${active%/*}/$name")
  done
}

# with_image ACTIVE FUNCTION: call the function for another image.
with_image() {
  local -r active=$1 image=${1%/*}/build/${1##*/}
  local -r record=$image.json
  "$2"
}

# list_versions: each with date, size, digest and source; the active one is marked.
list_versions() {
  local -a found others
  local other form='%s %-29s %-20s %8s  %-19s  %s\n'
  local -i source_columns
  terminal_columns
  source_columns=$((REPLY - 84))
  if ((REPLY < 120)); then
    form='%s %-29s %-20s %8s\n    %-19s  %s\n'
    source_columns=$((REPLY - 25))
  fi
  find_versions
  find_other_images
  if ((${#found[@]} + ${#others[@]})); then
    # shellcheck disable=SC2059  # one of the two above
    printf "$form" ' ' VERSION BUILT SIZE DIGEST SOURCE
  fi
  list_image
  if [[ -e $record && -e $image ]]; then
    next_step 'python3 move_built_container_to_active.py'
  elif [[ -L $active && ! -e $active ]]; then
    next_step 'python3 move_built_container_to_active.py --use VERSION, or python3 build_container.py'
  elif [[ ! -e $active ]]; then
    next_step 'python3 build_container.py'
  fi
  for other in ${others[@]+"${others[@]}"}; do
    printf '\nnot configured: %s\n' "${other##*/}"
    with_image "$other" list_image
  done
}

# list_image: the versions of one image, and the new one.
list_image() {
  local since version mark
  local -r name=${active##*/}
  local -r now=$(active_version)
  find_versions
  read -r since _ <<<"$(last_change '*')"
  for version in ${found[@]+"${found[@]}"}; do
    mark=' '
    if [[ ${version##*/} == "$now" ]]; then mark='*'; fi
    describe_version "$mark" "$version" "${version##*/"${name%.*}_"}"
    if [[ $mark == '*' ]]; then printf '  active%s\n' "${since:+ since $since}"; fi
    image_damage "$version"
    if [[ -n $REPLY ]]; then printf '  damaged: %s\n' "$REPLY"; fi
  done
  if [[ -f $active && ! -L $active ]]; then
    printf 'active: %s, not built by Longship\n' "$active"
  elif [[ -n $now && ! -e $active ]]; then
    printf 'active: %s, which is missing\n' "$now"
  elif [[ -z $now ]]; then
    printf 'no active image\n'
  fi
  if [[ -e $record && -e $image ]]; then
    printf 'new image, not yet active:\n'
    version=$(version_of "$record")
    describe_version '+' "$image" "${version#"${name%.*}_"}"
  fi
}

# versions_as_json: the same for a program.
versions_as_json() {
  local -a found others facts=()
  local other
  find_other_images
  add_image
  for other in ${others[@]+"${others[@]}"}; do with_image "$other" add_image; done
  json_list 'image version file built= bytes# digest= source= in_use# since' ${facts[@]+"${facts[@]}"}
  printf '\n'
}

# add_image: add the versions of one image to facts.
add_image() {
  local since used version
  local -r now=$(active_version)
  find_versions
  read -r since _ <<<"$(last_change '*')"
  for version in ${found[@]+"${found[@]}"}; do
    used=false
    if [[ ${version##*/} == "$now" ]]; then used=true; fi
    add_version "$version" "${version##*/}" "$used"
  done
  if [[ -f $active && ! -L $active ]]; then add_version "$active" '' true; fi
  since=
  if [[ -e $record && -e $image ]]; then add_version "$image" "$(version_of "$record")" false; fi
}

# add_version FILE VERSION USED: add one version to facts.
add_version() {
  local name=${active##*/} value=$2
  value=${value#"${name%.*}_"}
  facts+=("$name" "${value%.*}" "$1")
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

# prune_images: delete the versions that nothing needs, of the configured image and then of the others.
prune_images() {
  local -a others
  local other
  local -i freed=0
  locked "$active" prune_versions
  find_other_images
  for other in ${others[@]+"${others[@]}"}; do locked "$other" with_image "$other" prune_other_image; done
  human "$freed"
  printf 'freed: %s\n' "$REPLY" >&2
}

# prune_versions: those of the configured image.
prune_versions() {
  local -r now=$(active_version)
  [[ -n $now ]] || fail "nothing was deleted: no active image: $active" \
    'run: python3 move_built_container_to_active.py'
  # the last whole one could be among those that would go
  image_damage "${active%/*}/versions/$now"
  [[ -z $REPLY ]] || fail "nothing was deleted: the active image is damaged, $now: $REPLY" \
    "run: python3 move_built_container_to_active.py --use VERSION; or $BUILD_ANEW"
  delete_versions
}

# prune_other_image: its active version stays, as another configuration can use it.
prune_other_image() {
  local -r now=$(active_version)
  if [[ -n $now ]]; then
    image_damage "${active%/*}/versions/$now"
    if [[ -n $REPLY ]]; then
      note "kept all versions of ${active##*/}, because the active one is damaged, $now: $REPLY"
      return
    fi
    note "kept, active but not configured: $now; if no configuration uses it: rm $(printf %q "$active"), then prune again"
  fi
  delete_versions
}

# delete_versions: all but the active one, the one that a swap was killed with, and those that a running job has
# pinned.
delete_versions() {
  local -a found
  local version
  local -r waiting=$(version_of "$record") now=$(active_version)
  find_versions
  for version in ${found[@]+"${found[@]}"}; do
    if [[ ${version##*/} == "$now" || ${version##*/} == "$waiting" ]]; then
      continue
    elif is_pinned "$version"; then
      note "kept, pinned by $REPLY: ${version##*/}"
    else
      prune_version "$version"
      freed=$((freed + REPLY))
    fi
  done
  prune_leftovers
}

# prune_leftovers: what a killed swap left, and records of images that were deleted by hand.
prune_leftovers() {
  local file
  local -r name=${active##*/}
  for file in "${active%/*}/versions/${name%.*}"_*.partial; do rm -f -- "$file"; done
  for file in "${active%/*}/versions/${name%.*}"_*."${name##*.}.json"; do
    if [[ ! -e ${file%.json} ]]; then rm -f -- "$file"; fi
  done
}

# prune_version VERSION: set REPLY to the bytes that this frees; in a store other names can still need the image.
prune_version() {
  local -i bytes=0
  if ! holds_tag "$1"; then bytes=$(stat -c %s -- "$1"); fi
  if delete_image "$1"; then
    rm -f -- "$1.json"
    printf 'deleted: %s\n' "${1##*/}" >&2
  else
    note "kept, used by a container: ${1##*/}"
    bytes=0
  fi
  REPLY=$bytes
}
