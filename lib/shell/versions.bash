# shellcheck shell=bash disable=SC2154  # the emitted script says which image: active, image, ...
# The image in use. `active` is a link to one of the versions beside it; putting another in use is one
# rename, whatever the image's size. A version's file is never changed, so what runs keeps what it
# started with. The history says what was in use when: time, use or rollback, from, to.
# The emitted script sets: active, image and record (what build_container.py has made), arch, and
# defines start_in IMAGE COMMAND...

# put_in_use: check the new image and let `active` lead to it. Killed at any moment, the next call
# goes on: the new image's record is taken away last.
put_in_use() {
  local -r versions=${active%/*}/versions
  [[ -e $record ]] || no_new_image
  local -r version=$versions/$(version_of "$record")
  if [[ -e $image || ! -e $version ]]; then
    step 1/2 "Check the new image $image"
    check_new_image
    make_folders "$versions"
    mv -- "$image" "$version"
  fi
  step 2/2 'Put it in use'
  cp -- "$record" "$version.json.partial" ||
    fail_writing "$versions" "cannot write $version.json" 'see the line above'
  mv -- "$version.json.partial" "$version.json"
  locked "$active" point_to "$version" use
  rm -f -- "$record"
}

# no_new_image: say why there is nothing to put in use.
no_new_image() {
  if [[ -e $image ]]; then
    fail "the image $image is not complete: it has no record" 'python build_container.py'
  fi
  fail "there is no new image $image" \
    'python build_container.py; what there is: python move_built_container_to_active.py --list'
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

# check_new_image: complete, for the right machine, what was recorded, and Python starts in it.
check_new_image() {
  local sum reason
  check_image "$image" "$arch" 'python build_container.py --force'
  record_value "$record" modified
  if [[ $(image_mark "$image") != "$REPLY" ]] || holds_tag "$image"; then
    # its checksum was computed when it was built; again only if it has been written to or copied
    sum=$(image_checksum "$image")
    record_value "$record" sha256
    [[ $sum == "$REPLY" ]] ||
      fail "the image $image is not what was built: its checksum is $sum, and $REPLY was recorded" \
        'python build_container.py --force'
  fi
  host_arch
  if [[ $REPLY != "$arch" ]]; then
    note "python3 is not tried in it: it is for $arch, and this machine is $REPLY"
    return
  fi
  reason=$(start_in "$(startable "$image")" python3 -c '' 2>&1 </dev/null) ||
    fail "python3 does not start in the image $image${reason:+: ${reason##*$'\n'}}" \
      'name an image that has one: container.image in configuration.toml'
}

# point_to VERSION KIND: let `active` lead to it; KIND, use or rollback, goes into the history.
point_to() {
  local -r version=$1 kind=$2
  local from
  keep_unversioned_image
  from=$(active_version)
  if [[ $from != "${version##*/}" ]]; then
    add_to_history "$kind ${from:--} ${version##*/}"
    ln -sfn -- "versions/${version##*/}" "$active.partial"
    mv -T -- "$active.partial" "$active"
  fi
  printf 'in use: %s\n' "${version##*/}" >&2
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
  } || fail_writing "${kept%/*}" "cannot keep the image $active as $kept" 'see the line above'
  ln -sfn -- "versions/${kept##*/}" "$active.partial"
  mv -T -- "$active.partial" "$active"
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
  } >"$file.partial" || fail_writing "${file%/*}" "cannot write $file" 'see the line above'
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
  [[ -L $active ]] || fail "there is no image in use: $active" 'python build_container.py'
  read -r _ _ from _ <<<"$(last_change use)"
  [[ ${from:--} != - ]] ||
    fail "nothing was in use before $(active_version)" \
      'what there is: python move_built_container_to_active.py --list'
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
      'what there is: python move_built_container_to_active.py --list'
  check_image "$version" "$arch" 'what there is: python move_built_container_to_active.py --list'
  point_to "$version" "$2"
}

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
  local now since version mark name=${active##*/}
  versions_there
  now=$(active_version)
  read -r since _ <<<"$(last_change '*')"
  if ((${#found[@]})); then
    printf '  %-29s %-20s %8s  %-19s  %s\n' VERSION BUILT SIZE DIGEST SOURCE
  fi
  for version in "${found[@]}"; do
    mark=' '
    if [[ ${version##*/} == "$now" ]]; then mark='*'; fi
    describe_version "$mark" "$version" "${version##*/"${name%.*}_"}"
    if [[ $mark == '*' ]]; then printf '  in use%s\n' "${since:+ since $since}"; fi
  done
  if [[ -f $active && ! -L $active ]]; then
    printf 'in use: %s, put there by other means\n' "$active"
  elif [[ -z $now ]]; then
    printf 'no image is in use\n'
  fi
  if [[ -e $record && -e $image ]]; then
    printf 'new, not in use yet:\n'
    version=$(version_of "$record")
    describe_version '+' "$image" "${version#"${name%.*}_"}"
    next_step 'python move_built_container_to_active.py'
  elif [[ -z $now && ! -e $active ]]; then
    next_step 'python build_container.py'
  fi
}

# describe_version MARK FILE NAME: one line of the list.
describe_version() {
  local date size digest
  local -r file=$2.json
  record_value "$file" date
  date=${REPLY:--}
  record_value "$file" bytes
  human "${REPLY:-$(stat -c %s -- "$2")}"
  size=$REPLY
  record_value "$file" digest
  digest=${REPLY:0:19}
  record_value "$file" source
  printf '%s %-29s %-20s %8s  %-19s  %s\n' "$1" "${3%.*}" "$date" "$size" "${digest:--}" "${REPLY:--}"
}

# prune_versions: delete all but the one in use and those that a running job has pinned.
prune_versions() {
  local -a found
  local now version freed=0 kept=0
  versions_there
  now=$(active_version)
  [[ -n $now ]] || fail "there is no image in use: $active" \
    'python move_built_container_to_active.py; nothing was deleted'
  for version in "${found[@]}"; do
    if [[ ${version##*/} == "$now" ]]; then continue; fi
    if is_pinned "$version"; then
      note "kept, $REPLY uses it: ${version##*/}"
      kept=$((kept + 1))
      continue
    fi
    record_value "$version.json" bytes
    freed=$((freed + ${REPLY:-$(stat -c %s -- "$version")}))
    delete_image "$version"
    rm -f -- "$version.json"
    printf 'deleted: %s\n' "${version##*/}" >&2
  done
  human "$freed"
  printf 'freed: %s\n' "$REPLY" >&2
}
