# shellcheck shell=bash disable=SC2154  # the emitted script says what to build: image, source, ...
# Building images. An image being built has another name, and everything that the build needs is in a directory of
# its own under scratch_dir; the image gets its name when it is complete, checked and recorded.
# The emitted script sets image (the file), record, active (the active image), source, address (the source, at the
# expected digest), digest (empty unless one is expected), input (the source if it is a file), arch, work, again
# (empty, or 1: rebuild) and tools (the programs that take part); it defines make_image, which makes "$partial" from
# "$address". An image of docker or podman is a file that contains its tag.

# build_image NEXT: build, unless the image exists already; NEXT is the command to run then.
build_image() {
  local -r wanted=$digest next=$1
  local sha256
  [[ -z $input || -r $input ]] ||
    fail "cannot read $input" 'check container.image in configuration.toml'
  if [[ -z $again ]] && is_built "$record"; then
    next_step "$next"
    return
  fi
  if [[ -z $again && -L $active ]] && is_built "${active%/*}/$(readlink -- "$active").json"; then
    return
  fi
  # its own for each process: what a killed one started can go on writing for a while
  partial=${image%/*}/partial-$$-${image##*/}
  tmp=$work/tmp-$$
  trap 'discard_partial_image; release_locks' EXIT
  remove_dead_builds
  make_folders "$work/cache" "$tmp"
  # where a project's folder hands its group on: Apptainer's user namespace has no number for that group
  { chgrp "$(id -g)" -- "$work" "$work/cache" "$tmp" && chmod g-s -- "$work" "$work/cache" "$tmp"; } 2>/dev/null || :
  check_cache "$work/cache/cache/blob"
  step 1/3 "Building the image from ${archive:-$source}"
  if [[ -n $input ]]; then
    digest=$(checksum "$input")
    check_digest
  elif [[ -z $digest ]]; then
    digest=$(daemon_digest)
  fi
  make_image
  step 2/3 'Checking the image'
  check_image "$partial" "$arch" "set container.image in configuration.toml to an image for $arch"
  sha256=$(image_checksum "$partial")
  check_digest
  step 3/3 'Recording and naming the image'
  write_record "$partial.json" "$partial" "$sha256"
  name_image
  remove_folder "$work"
  next_step "$next"
}

# name_image: make it the new image, with its record.
name_image() {
  rm -f -- "$record" # it belongs to the image that goes away now
  if holds_tag "$image" && [[ $(tag_in "$image") != "$(tag_in "$partial")" ]]; then
    delete_image "$image" || :
  fi
  put_shared "$partial" "$image"
  put_shared "$partial.json" "$record"
}

# check_digest: stop if it is not the expected digest.
check_digest() {
  if [[ $address != "$source" ]]; then digest=$wanted; fi # then the registry has seen to it
  [[ -z $wanted || $digest == "$wanted" ]] ||
    fail "the digest of $source has changed: now $digest, recorded $wanted" \
      'to accept the current digest, run the command again without --locked'
}

# daemon_digest: print docker's id of an image in its own store: no registry has named it, and a rebuilt one has the
# same name.
daemon_digest() {
  if [[ $source == docker-daemon:* ]]; then
    docker image inspect --format '{{.Id}}' "${source#docker-daemon:}" 2>/dev/null || :
  fi
}

# is_built RECORD: whether it is the record of the expected image, and that image exists.
is_built() {
  local there=$digest
  record_value "$1" source
  local -r recorded=$REPLY
  json_text "$source"
  [[ $recorded == "$REPLY" ]] || return 1
  if [[ -z $there && -n $input ]]; then there=$(checksum "$input") || exit 1; fi
  if [[ -z $there ]]; then there=$(daemon_digest); fi
  record_value "$1" digest
  [[ -z $there || $REPLY == "$there" ]] || return 1
  image_exists "${1%.json}" || return 1
  is_as_recorded "${1%.json}" || {
    note "rebuilding ${1%.json}, which does not match its record: $REPLY"
    return 1
  }
  record_value "$1" date
  note "$source was already built on $REPLY: ${1%.json}; --force rebuilds it"
}

# discard_partial_image: remove an unfinished image, whatever ended the build; downloaded layers stay in the cache for
# the next try.
discard_partial_image() {
  delete_image "$partial" || :
  rm -f -- "$partial" "$partial.json"
  remove_folder "$tmp"
}

# remove_dead_builds: remove what killed builds left. The lock is held: none is alive.
remove_dead_builds() {
  local left
  for left in "${image%/*}"/partial-*-"${image##*/}"; do
    if [[ -e $left ]]; then delete_image "$left" || rm -f -- "$left"; fi
  done
  for left in "${image%/*}"/partial-*-"${image##*/}.json"; do rm -f -- "$left"; done
  for left in "$work"/tmp-*; do remove_folder "$left"; done
}

# check_cache LAYOUT: remove what a full disk or a kill has left damaged: Apptainer reuses the cache unchecked. The
# layout is the OCI's: a blob is named after its checksum.
check_cache() {
  local blob sum opened closed
  if [[ -e $1/index.json ]]; then
    opened=$(tr -cd '{' <"$1/index.json") closed=$(tr -cd '}' <"$1/index.json")
    if [[ -z $opened ]] || ((${#opened} != ${#closed})); then rm -f -- "$1/index.json"; fi
  fi
  for blob in "$1"/blobs/sha256/*; do
    if [[ ! -f $blob ]]; then continue; fi
    sum=$(sha256sum <"$blob") || sum=
    if [[ ${sum%% *} != "${blob##*/}" ]]; then rm -f -- "$blob"; fi
  done
}

# remove_folder DIR: remove it; images contain directories that their owner may not write to.
remove_folder() {
  if [[ ! -d $1 ]]; then return 0; fi
  chmod -R u+rwX -- "$1" 2>/dev/null || :
  rm -rf -- "$1" 2>/dev/null || : # or what a killed build started still writes there
}

# fetched_digest CACHE: print the digest of the manifest that Apptainer has downloaded last; the layout of the cache
# is the OCI's, and this cache belongs to one image.
fetched_digest() {
  local -r index=$1/cache/blob/index.json
  local digests=''
  if [[ -f $index ]]; then digests=$(grep -o '"digest": *"sha256:[0-9a-f]*"' "$index") || :; fi
  digests=${digests##*\"sha256:}
  printf '%s' "${digests:+sha256:${digests%\"}}"
}

# pulled_digest PROGRAM NAME: print the registry's digest of the image that docker or podman has pulled.
pulled_digest() {
  local digest_of
  local -r name=${2##*/}
  # docker says it; what it keeps of it belongs to the first architecture that was pulled
  if digest_of=$(grep -o '^Digest: sha256:[0-9a-f]*' "$work/log"); then
    printf '%s' "${digest_of#Digest: }"
    return
  fi
  while IFS= read -r digest_of; do
    # docker leaves out docker.io/library/
    if [[ /$digest_of == */"${name%%[:@]*}"@* ]]; then
      printf '%s' "${digest_of##*@}"
      return
    fi
  done < <("$1" image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$2")
}

# copy_image FROM TO: copy it, because a site can replace its images at any time.
copy_image() {
  with_progress "$1" "$2" cp --reflink=auto -- "$1" "$2" ||
    fail_writing "${2%/*}" "cannot copy $1 to $2" 'see the error above'
}

# sif_from_archive COMMAND...: make "$partial" from "$archive", which is a SIF already, or a docker archive for
# COMMAND.
sif_from_archive() {
  if [[ $archive == *.sif ]]; then
    copy_image "$archive" "$partial"
  else
    # in its folder: a path with a colon would be taken apart
    (cd -- "${archive%/*}" && watched "$@" "$partial" "docker-archive:${archive##*/}")
  fi
}

# load_archive PROGRAM FILE TAG: load a docker archive into the store, under this tag alone.
load_archive() {
  local loaded before
  before=$("$1" image ls --format '{{.Repository}}:{{.Tag}}')
  watched "$1" load --input "$2"
  loaded=$(grep -o 'Loaded image.*' "$work/log" | tail -n 1)
  loaded=${loaded#*: }
  "$1" tag "$loaded" "$3"
  if [[ $loaded == *:* && $loaded != sha256:* ]] && ! grep -q -F -x -e "$loaded" <<<"$before"; then
    "$1" rmi "$loaded" >/dev/null
  fi
}

# take_from_daemon PROGRAM SOURCE TAG: tag an image of docker's store; podman gets it from docker first.
take_from_daemon() {
  local -r name=${2#docker-daemon:}
  if [[ $1 == podman ]]; then watched podman pull "$2"; fi
  "$1" tag "$name" "$3" 2>/dev/null ||
    fail "$1 has no image $name" "list its images: $1 image ls"
}

# build_tag PROGRAM DOCKERFILE ARCH TAG: build it; its directory is the context.
build_tag() {
  watched "$1" build --platform "linux/$3" --file "$2" --tag "$4" "${2%/*}"
}

# hold_tag PROGRAM TAG: keep what TAG-partial is now under a tag of its own, named in "$partial". So a version of
# docker's and podman's is a file too, and is activated like the others. The active image, built again, keeps its
# tag: packages were installed on top of that.
hold_tag() {
  local id own
  id=$("$1" image inspect --format '{{.Id}}' "$2-partial")
  id=${id#sha256:}
  own=$2_$(date -u +%Y%m%dT%H%M%S)_${id:0:12}
  if [[ $(tag_in "$active") == "$2_"*"_${id:0:12}" ]]; then own=$(tag_in "$active"); fi
  printf '%s\n' "$own" >"$partial" ||
    fail_writing "${partial%/*}" "cannot write $partial" 'see the error above'
  "$1" tag "$2-partial" "$own"
  "$1" rmi "$2-partial" >/dev/null
}

# build_dockerfile DOCKERFILE ARCH ARCHIVE TAG: build it with docker or podman, whichever works.
build_dockerfile() {
  local program
  for program in docker podman; do
    if command -v "$program" >/dev/null && "$program" version >/dev/null 2>&1; then
      build_tag "$program" "$1" "$2" "$4"
      save_tag "$program" "$4" "$3"
      return
    fi
  done
  fail "neither docker nor podman works on this machine, and $1 requires one of them" "$build_hint"
}

# save_tag PROGRAM TAG ARCHIVE: save it as an archive and remove it from the store.
save_tag() {
  watched "$1" save --output "$3" "$2"
  "$1" rmi "$2" >/dev/null
}

# check_can_build ARCH KIND: stop if programs of the image, which a definition file or a Dockerfile runs, cannot run on
# this machine; docker can have an emulator for them.
check_can_build() {
  local emulator=${1/arm64/aarch64}
  emulator=/proc/sys/fs/binfmt_misc/qemu-${emulator/amd64/x86_64}
  host_arch
  [[ $REPLY == "$1" || ($2 == dockerfile && -e $emulator) ]] ||
    fail "cannot run $1 programs on this $REPLY machine, which building $input requires" "$build_hint"
}
