# shellcheck shell=bash disable=SC2154  # the emitted script says which image: active, image, ...
# The active image. `active` is a link to one of the versions; activating another one is a single rename,
# whatever the image's size. The file of a version is never changed, so running jobs keep the image that they
# started with. The directory of the images contains:
#
#   <image>_<arch>.sif              the active image: a link to a version; .sqsh for enroot, .docker or .podman
#                                   for a file with the tag in their stores
#   build/                          new images, built and not yet active
#   versions/                       each image that was active, with time and checksum in its name
#   versions/<image>_<arch>.sif.history     what was active when: time, use or rollback, from, to
#   pins/                           a file for each launcher: the version that it needs
#
# The emitted script sets: active, image and record (of the new image), arch, and defines start_in IMAGE
# COMMAND...

declare -g BUILD_ANEW='python3 build_container.py --force && python3 move_built_container_to_active.py'

# move_new_image: activate the new image; wait for another process that does the same.
move_new_image() {
  local new=
  if is_record "$record"; then new=$(version_of "$record"); fi
  locked "$record" put_in_use "$new"
}

# put_in_use NEW: check the new image and activate it; where another process was faster, NEW is active already.
# After a kill at any moment the next call resumes: the record is removed last.
put_in_use() {
  local version=
  if [[ ! -e $record && -n $1 && $(active_version) == "$1" ]]; then
    printf 'active image: %s\n' "$1" >&2
    return
  fi
  if is_record "$record"; then version=${active%/*}/versions/$(version_of "$record"); fi
  if [[ -z $version || ! (-e $image || -e $version) ]]; then no_new_image; fi
  if [[ -e $image ]]; then
    step 1/2 "Checking the new image $image"
    check_whole_image "$image" 'python3 build_container.py --force'
  fi
  step 2/2 'Activating the new image'
  locked "$active" take_over_image "$version"
}

# take_over_image VERSION: make the new image a version, with its record, and activate it.
take_over_image() {
  make_folders "${1%/*}"
  cp -- "$record" "$1.json.partial" || fail_keeping "$1.json"
  mv -- "$1.json.partial" "$1.json"
  if [[ -e $image ]]; then mv -- "$image" "$1"; fi
  point_to "$1" use
  rm -f -- "$record"
}

# fail_keeping FILE: stop where a file cannot be written, and leave no part of it.
fail_keeping() {
  rm -f -- "$1.partial"
  fail_writing "${1%/*}" "cannot write $1" 'see the error above'
}

# no_new_image: stop, with the reason why no image can be activated.
no_new_image() {
  if [[ -e $record ]] && ! is_record "$record"; then
    fail "the record of the new image is damaged: $record" 'run: python3 build_container.py --force'
  elif [[ -e $image ]]; then
    fail "the new image is incomplete, it has no record: $image" 'run: python3 build_container.py'
  elif [[ -e $record ]]; then
    fail "the new image is missing, only its record exists: $image" 'run: python3 build_container.py --force'
  fi
  fail "no new image to activate: $image" \
    'run: python3 build_container.py; or list the versions: python3 move_built_container_to_active.py --list'
}

# version_of RECORD: print the file name that an image gets as a version: with its time and checksum.
version_of() {
  local name=${active##*/} date sum
  record_value "$1" date
  date=${REPLY//[-:Z]/}
  record_value "$1" sha256
  sum=${REPLY#sha256:}
  printf '%s_%s_%s.%s' "${name%.*}" "$date" "${sum:0:12}" "${name##*.}"
}

# check_whole_image FILE HINT [always]: stop unless it is complete, for the right machine and as it was recorded, and
# Python starts in it; with `always` the checksum is computed in any case.
check_whole_image() {
  local -r image=$1
  local reason
  check_image "$image" "$arch" "$2"
  is_as_recorded "$image" "${3:-}" || fail "the image $image does not match its record: $REPLY" "$2"
  host_arch
  if [[ $REPLY != "$arch" ]]; then
    note "python3 was not tested in the image: it is for $arch, and this machine is $REPLY"
    return
  fi
  # not with -I: it would hide a PYTHONHOME of the image's, with which no Python starts; the host's is not it
  reason=$(unset PYTHONHOME PYTHONPATH && start_in "$(startable "$image")" python3 -s -c '' 2>&1 </dev/null) || {
    # without Apptainer's colours and warnings
    reason=$(printf '%s\n' "$reason" | sed $'s/\e\\[[0-9;]*m//g' | grep -v -e ^WARNING -e '^ *$' | tail -n 1) || :
    fail "python3 does not start in the image $image${reason:+: $reason}" \
      'set container.image in configuration.toml to an image that has Python'
  }
}

# point_to VERSION KIND: activate it; KIND, use or rollback, goes into the history.
point_to() {
  local -r version=$1 kind=$2
  local from
  [[ -e $version ]] || fail "no such version: $version" \
    'list the versions: python3 move_built_container_to_active.py --list'
  keep_unversioned_image
  from=$(active_version)
  if [[ $from != "${version##*/}" ]]; then
    add_to_history "$kind ${from:--} ${version##*/}"
    link_to "$version"
  fi
  printf 'active image: %s\n' "${version##*/}" >&2
}

# link_to VERSION: the swap itself.
link_to() {
  { ln -sfn -- "versions/${1##*/}" "$active.partial" && mv -T -- "$active.partial" "$active"; } ||
    fail_writing "${active%/*}" "cannot activate ${1##*/} as $active" 'see the error above'
}

# active_version: print the file name of the active version; nothing where no version is active.
active_version() {
  if [[ -L $active ]]; then basename -- "$(readlink -- "$active")"; fi
}

# keep_unversioned_image: make an image that Longship did not build a version too.
keep_unversioned_image() {
  [[ -f $active && ! -L $active ]] || return 0
  local -r name=${active##*/}
  local kept
  kept=${active%/*}/versions/${name%.*}_$(date -u -r "$active" +%Y%m%dT%H%M%S)_unrecorded.${name##*.}
  make_folders "${kept%/*}"
  [[ -e $kept ]] || ln -- "$active" "$kept" 2>/dev/null || {
    cp --reflink=auto -- "$active" "$kept.partial" && mv -- "$kept.partial" "$kept"
  } || fail_keeping "$kept"
  link_to "$kept"
}

# history_file: print its path.
history_file() {
  local -r name=${active##*/}
  printf '%s/versions/%s.history' "${active%/*}" "$name"
}

# add_to_history TEXT: add a line before it becomes true; a line that never became true does not count.
add_to_history() {
  local file
  file=$(history_file)
  {
    if [[ -f $file ]]; then cat -- "$file"; fi
    printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1"
  } >"$file.partial" || fail_keeping "$file"
  mv -- "$file.partial" "$file"
}

# last_change KIND: print the last line of the history that activated the active version: time kind from to; KIND
# is a pattern.
last_change() {
  local file time kind from to found='' now
  file=$(history_file)
  now=$(active_version)
  if [[ -f $file ]]; then
    while read -r time kind from to; do
      # shellcheck disable=SC2053  # a pattern
      if [[ $to == "$now" && $kind == $1 ]]; then found="$time $kind $from $to"; fi
    done <"$file"
  fi
  printf '%s' "$found"
}

# roll_back: activate the previously active version.
roll_back() {
  local from
  [[ -L $active ]] || fail "no active image: $active" 'run: python3 build_container.py'
  read -r _ _ from _ <<<"$(last_change use)"
  [[ ${from:--} != - ]] ||
    fail "no earlier version than $(active_version) to roll back to" \
      'list the versions: python3 move_built_container_to_active.py --list'
  use_version "$from" rollback
}

# use_version NAME KIND: activate one of the versions, named as in the list. Its bytes can have decayed since it was
# built, so its checksum is computed.
use_version() {
  local -r name=${active##*/}
  local version=$1
  if [[ $version != "${name%.*}_"* ]]; then version=${name%.*}_$version.${name##*.}; fi
  version=${active%/*}/versions/$version
  image_exists "$version" ||
    fail "no such version: $version" \
      'list the versions: python3 move_built_container_to_active.py --list; for one of another image, set container.image first'
  check_whole_image "$version" "run: $BUILD_ANEW; or use another version: python3 move_built_container_to_active.py --list" always
  point_to "$version" "$2"
}
