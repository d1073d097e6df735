# shellcheck shell=bash disable=SC2154  # the emitted script assigns active, image, record and arch
# Versions of images that nothing needs are deleted: those of the configured image first, then those of other names,
# of an earlier tag, or of another configuration that shares the scratch directory.

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
