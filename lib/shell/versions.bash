# shellcheck shell=bash disable=SC2154  # the emitted script says which image: active, image, ...
# The image in use. `active` is a link to one of the versions beside it; putting another in use is one
# rename, whatever the image's size. A version's file is never changed, so what runs keeps what it
# started with. In the folder of the images there are:
#
#   <image>_<arch>.sif              in use: a link to a version; .sqsh for enroot, .docker or .podman
#                                   for a text that names the image in their stores
#   build/                          what build_container.py has made and nobody has put in use yet
#   versions/                       each image that was in use, with time and checksum in its name
#   versions/<image>_<arch>.sif.history     what was in use when: time, use or rollback, from, to
#   pins/                           a file for each launcher: which version it needs
#
# The emitted script sets: active, image and record (what build_container.py has made), arch, and
# defines start_in IMAGE COMMAND...

declare -g BUILD_ANEW='python3 build_container.py --force && python3 move_built_container_to_active.py'

# move_new_image: put the new image in use; where another process does so at the same time, wait for it.
move_new_image() {
  local new=
  if is_record "$record"; then new=$(version_of "$record"); fi
  locked "$record" put_in_use "$new"
}

# put_in_use NEW: check the new image and let `active` lead to it, which is NEW already where another
# process was faster. Killed at any moment, the next call goes on: the record is taken away last.
put_in_use() {
  local version=
  if [[ ! -e $record && -n $1 && $(active_version) == "$1" ]]; then
    printf 'in use: %s\n' "$1" >&2
    return
  fi
  if is_record "$record"; then version=${active%/*}/versions/$(version_of "$record"); fi
  if [[ -z $version || ! (-e $image || -e $version) ]]; then no_new_image; fi
  if [[ -e $image ]]; then
    step 1/2 "Check the new image $image"
    check_whole_image "$image" 'python3 build_container.py --force'
  fi
  step 2/2 'Put it in use'
  locked "$active" take_over_image "$version"
}

# take_over_image VERSION: the new image becomes a version, with its record, and is used.
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
  fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# no_new_image: say why there is nothing to put in use.
no_new_image() {
  if [[ -e $record ]] && ! is_record "$record"; then
    fail "the record of the new image is damaged: $record" 'python3 build_container.py --force'
  elif [[ -e $image ]]; then
    fail "the image $image is not complete: it has no record" 'python3 build_container.py'
  elif [[ -e $record ]]; then
    fail "the image $image is missing, there is only its record" 'python3 build_container.py --force'
  fi
  fail "there is no new image $image" \
    'python3 build_container.py; what there is: python3 move_built_container_to_active.py --list'
}

# version_of RECORD: the file name of an image among the versions: when it was built, and what it is.
version_of() {
  local name=${active##*/} date sum
  record_value "$1" date
  date=${REPLY//[-:Z]/}
  record_value "$1" sha256
  sum=${REPLY#sha256:}
  printf '%s_%s_%s.%s' "${name%.*}" "$date" "${sum:0:12}" "${name##*.}"
}

# check_whole_image FILE HINT: complete, for the right machine, what was recorded, and Python starts in it.
check_whole_image() {
  local -r image=$1
  local reason
  check_image "$image" "$arch" "$2"
  is_as_recorded "$image" || fail "the image $image is not what was built: $REPLY" "$2"
  host_arch
  if [[ $REPLY != "$arch" ]]; then
    note "python3 is not tried in it: it is for $arch, and this machine is $REPLY"
    return
  fi
  # not with -I: it would hide a PYTHONHOME of the image's, with which no Python starts; the host's is not it
  reason=$(unset PYTHONHOME PYTHONPATH && start_in "$(startable "$image")" python3 -s -c '' 2>&1 </dev/null) || {
    # without Apptainer's colours and warnings
    reason=$(printf '%s\n' "$reason" | sed $'s/\e\\[[0-9;]*m//g' | grep -v -e ^WARNING -e '^ *$' | tail -n 1) || :
    fail "python3 does not start in the image $image${reason:+: $reason}" \
      'name an image that has one: container.image in configuration.toml'
  }
}

# point_to VERSION KIND: let `active` lead to it; KIND, use or rollback, goes into the history.
point_to() {
  local -r version=$1 kind=$2
  local from
  [[ -e $version ]] || fail "the version $version is not there" \
    'what there is: python3 move_built_container_to_active.py --list'
  keep_unversioned_image
  from=$(active_version)
  if [[ $from != "${version##*/}" ]]; then
    add_to_history "$kind ${from:--} ${version##*/}"
    link_to "$version"
  fi
  printf 'in use: %s\n' "${version##*/}" >&2
}

# link_to VERSION: the swap itself.
link_to() {
  { ln -sfn -- "versions/${1##*/}" "$active.partial" && mv -T -- "$active.partial" "$active"; } ||
    fail_writing "${active%/*}" "cannot let $active lead to ${1##*/}" 'see the line above'
}

# active_version: the file name of the version in use; nothing where there is none.
active_version() {
  if [[ -L $active ]]; then basename -- "$(readlink -- "$active")"; fi
}

# keep_unversioned_image: an image that was put there by other means becomes a version too.
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

# history_file: where it is.
history_file() {
  local -r name=${active##*/}
  printf '%s/versions/%s.history' "${active%/*}" "$name"
}

# add_to_history TEXT: a line more, before it becomes true; what never became true does not count.
add_to_history() {
  local file
  file=$(history_file)
  {
    if [[ -f $file ]]; then cat -- "$file"; fi
    printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1"
  } >"$file.partial" || fail_keeping "$file"
  mv -- "$file.partial" "$file"
}

# last_change KIND: the last line of the history that led to what is in use: time kind from to; KIND
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

# roll_back: let `active` lead to what was in use before it.
roll_back() {
  local from
  [[ -L $active ]] || fail "there is no image in use: $active" 'python3 build_container.py'
  read -r _ _ from _ <<<"$(last_change use)"
  [[ ${from:--} != - ]] ||
    fail "nothing was in use before $(active_version)" \
      'what there is: python3 move_built_container_to_active.py --list'
  use_version "$from" rollback
}

# use_version NAME KIND: let `active` lead to one of the versions, named as in the list.
use_version() {
  local -r name=${active##*/}
  local version=$1
  if [[ $version != "${name%.*}_"* ]]; then version=${name%.*}_$version.${name##*.}; fi
  version=${active%/*}/versions/$version
  image_exists "$version" ||
    fail "the version $version is not there" \
      'what there is: python3 move_built_container_to_active.py --list'
  check_whole_image "$version" "$BUILD_ANEW; or another version: python3 move_built_container_to_active.py --list"
  point_to "$version" "$2"
}
