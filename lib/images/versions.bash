# shellcheck shell=bash
# The active image: ACTIVE, the argument of these functions, is a link to one of the versions, see
# lib/store/store.bash. The directory of the images contains:
#
#   <image>_<arch>.sif              the active image: a link to a version; other runtimes have other
#                                   endings
#   build/                          new images, built and not yet active
#   versions/                       each image that was active, with time and checksum in its name
#   versions/<image>_<arch>.sif.history     what was active when: time, use or rollback, from, to
#   pins/                           a file for each launcher: the version that it needs

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"
# shellcheck source=lib/store/store.bash
source "${BASH_SOURCE[0]%/*}/../store/store.bash"

declare -g image_build_anew='python3 build_container.py --force && python3 move_built_container_to_active.py'

declare -g image_list_versions='list the versions: python3 move_built_container_to_active.py --list'

# image_activate ACTIVE: activate the new image; wait for another process that does the same.
image_activate() {
  local -r record=${1%/*}/build/${1##*/}.json
  local new=
  if record_is_complete "$record"; then new=$(version_name "$record"); fi
  lock_run "$record" image_activate_new "$1" "$new"
}

# image_activate_new ACTIVE VERSION: check the new image and activate it; where another process was
# faster, VERSION is active already. After a kill at any moment the next call resumes: the record is
# removed last.
image_activate_new() {
  local -r active=$1 image=${1%/*}/build/${1##*/}
  local -r record=$image.json
  local version=
  if [[ ! -e $record && -n $2 && $(store_active "$active") == "$2" ]]; then
    printf 'active image: %s\n' "$2" >&2
    return
  fi
  if record_is_complete "$record"; then version=${active%/*}/versions/$(version_name "$record"); fi
  if [[ -z $version || ! (-e $image || -e $version) ]]; then image_fail_to_activate "$image"; fi
  if [[ -e $image ]]; then
    step 1/2 "Checking the new image $image"
    image_check_whole "$image" 'python3 build_container.py --force'
  fi
  step 2/2 'Activating the new image'
  lock_run "$active" version_make "$active" "$image" "$version"
}

# version_make ACTIVE IMAGE VERSION: make the new image a version, with its record, and activate it.
version_make() {
  file_write "$3.json" "$(<"$2.json")"$'\n'
  if [[ -e $2 ]]; then mv -- "$2" "$3"; fi
  version_activate "$1" "$3" use
  rm -f -- "$2.json"
}

# image_fail_to_activate IMAGE: stop, with the reason why it cannot be activated.
image_fail_to_activate() {
  if [[ -e $1.json ]] && ! record_is_complete "$1.json"; then
    fail "the record of the new image is damaged: $1.json" 'run: python3 build_container.py --force'
  elif [[ -e $1 ]]; then
    fail "the new image is incomplete, it has no record: $1" 'run: python3 build_container.py'
  elif [[ -e $1.json ]]; then
    fail "the new image is missing, only its record exists: $1" \
      'run: python3 build_container.py --force'
  fi
  fail "no new image to activate: $1" "run: python3 build_container.py; or $image_list_versions"
}

# version_name RECORD: print the file name that a new image gets as a version: with its time and
# checksum.
version_name() {
  local name=${1##*/} date sum
  name=${name%.json}
  record_value "$1" date
  date=${REPLY//[-:Z]/}
  record_value "$1" sha256
  sum=${REPLY#sha256:}
  printf '%s_%s_%s.%s' "${name%.*}" "$date" "${sum:0:12}" "${name##*.}"
}

# image_check_whole FILE HINT [always]: stop unless it is complete, for the right machine and as it
# was recorded, and Python starts in it; with `always` the checksum is computed in any case.
image_check_whole() {
  local -r image=$1
  local reason
  image_check "$image" "$arch" "$2"
  image_matches_record "$image" "${3:-}" ||
    fail "the image $image does not match its record: $REPLY" "$2"
  host_arch
  if [[ $REPLY != "$arch" ]]; then
    note "python3 was not tested in the image: it is for $arch, and this machine is $REPLY"
    return
  fi
  # not with -I: it would hide a PYTHONHOME of the image's, with which no Python starts; the host's
  # is not it
  reason=$(unset PYTHONHOME PYTHONPATH && image_ask exec "$(image_reference "$image")" python3 -s -c '' 2>&1 </dev/null) || {
    # without Apptainer's colours and warnings
    reason=$(printf '%s\n' "$reason" | sed $'s/\e\\[[0-9;]*m//g' | grep -v -e ^WARNING -e '^ *$' | tail -n 1) || :
    fail "python3 does not start in the image $image${reason:+: $reason}" \
      'set container.image in configuration.toml to an image that has Python'
  }
}

# version_activate ACTIVE VERSION KIND: activate the version's file; KIND, use or rollback, goes
# into the history.
version_activate() {
  [[ -e $2 ]] || fail "no such version: $2" "$image_list_versions"
  store_keep_foreign "$1"
  store_activate "$@"
  printf 'active image: %s\n' "${2##*/}" >&2
}

# version_roll_back ACTIVE: activate the version that was active before the active one. The lock is
# held.
version_roll_back() {
  [[ -L $1 ]] || fail "no active image: $1" 'run: python3 build_container.py'
  store_previous "$1"
  [[ -n $REPLY ]] ||
    fail "no earlier version than $(store_active "$1") to roll back to" "$image_list_versions"
  version_use "$1" "$REPLY" rollback
}

# version_use ACTIVE VERSION KIND: activate one of the versions, named as in the list. The lock is
# held. A version's bytes can have decayed since it was built, so its checksum is computed.
version_use() {
  local -r name=${1##*/}
  local version=$2
  if [[ $version != "${name%.*}_"* ]]; then version=${name%.*}_$version.${name##*.}; fi
  version=${1%/*}/versions/$version
  image_ask exists "$version" ||
    fail "no such version: $version" \
      "$image_list_versions; for one of another image, set container.image first"
  image_check_whole "$version" "run: $image_build_anew; or use another version: python3 move_built_container_to_active.py --list" always
  version_activate "$1" "$version" "$3"
}

# image_prune ACTIVE: delete the versions that nothing needs: those of the configured image, then
# those of other names, of an earlier tag or of another configuration that shares the scratch
# directory.
image_prune() {
  local file name
  local -A seen=(["${1##*/}"]=1)
  lock_run "$1" versions_prune "$1" "$1"
  for file in "${1%/*}"/versions/*_"$arch"_[0-9]*_*."${1##*.}"; do
    name=${file##*/}
    name=${name%_*_*}.${1##*.}
    if [[ ! -e $file || -n ${seen[$name]:-} ]]; then continue; fi
    seen[$name]=1
    lock_run "${1%/*}/$name" versions_prune "${1%/*}/$name" "$1"
  done
  store_print_freed
}

# versions_prune ACTIVE CONFIGURED: the active version stays, also that of another image than the
# configured one, as another configuration can use it. Nothing is deleted if it is damaged: the last
# whole one could be among those. The lock is held.
versions_prune() {
  local -r now=$(store_active "$1")
  REPLY=
  if [[ -n $now ]]; then image_damage "${1%/*}/versions/$now"; fi
  if [[ $1 == "$2" ]]; then
    [[ -n $now ]] || fail "nothing was deleted: no active image: $1" \
      'run: python3 move_built_container_to_active.py'
    [[ -z $REPLY ]] || fail "nothing was deleted: the active image is damaged, $now: $REPLY" \
      "run: python3 move_built_container_to_active.py --use VERSION; or $image_build_anew"
  elif [[ -n $REPLY ]]; then
    note "kept all versions of ${1##*/}, because the active one is damaged, $now: $REPLY"
    return
  elif [[ -n $now ]]; then
    note "kept, active but not configured: $now; if no configuration uses it: rm $(printf %q "$1"), then prune again"
  fi
  versions_delete "$1"
}

# versions_delete ACTIVE: all but the active one, the one that a swap was killed with, and those
# that are pinned; also what a killed swap left, and records of images that were deleted by hand.
versions_delete() {
  local -r name=${1##*/}
  local -r begin=${1%/*}/versions/${name%.*} waiting=$(version_name "${1%/*}/build/$name.json")
  local -a versions=()
  local file
  for file in "$begin"_[0-9]*_*."${name##*.}"; do
    if [[ ${file##*/} != "$waiting" ]]; then versions+=("$file"); fi
  done
  store_find_unused "$1" ${versions[@]+"${versions[@]}"}
  store_delete image_delete
  for file in "$begin"_*.partial; do rm -f -- "$file"; done
  for file in "$begin"_*."${name##*.}.json"; do
    if [[ ! -e ${file%.json} ]]; then rm -f -- "$file"; fi
  done
}

# image_delete VERSION: delete an image, see store_delete.
image_delete() {
  local bytes=0 # in a store other names can still need the image
  if ! image_is_stored "$1"; then bytes=$(stat -c %s -- "$1"); fi
  image_ask delete "$1" || {
    note "kept, used by a container: ${1##*/}"
    return 1
  }
  REPLY=$bytes
}
