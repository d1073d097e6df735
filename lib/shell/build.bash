# shellcheck shell=bash disable=SC2154  # the emitted script says what to build: image, source, ...
# Building images. What is being built has another name, and all that it needs lies in a folder of
# its own under scratch; it gets its name when it is complete, checked and recorded.
# The emitted script sets image (the file), record, active (what is in use), source, address (the
# source, at the digest that is wanted), digest (empty unless one is wanted), input (the file that the
# source is, if it is one), arch, work, again (empty, or 1: build even what is there) and tools (the
# programs that take part); it defines make_image, which makes "$partial" from "$address". An image of
# docker's or podman's is a file that names its tag.

# build_image NEXT: build, unless what is wanted is there already; NEXT is what to type then.
build_image() {
  local -r wanted=$digest next=$1
  local sha256
  [[ -z $input || -r $input ]] ||
    fail "there is no $input that can be read" 'see container.image in configuration.toml'
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
  step 1/3 "Make the image from ${archive:-$source}"
  if [[ -n $input ]]; then
    digest=$(checksum "$input")
    check_digest
  elif [[ -z $digest ]]; then
    digest=$(daemon_digest)
  fi
  make_image
  step 2/3 'Check it'
  check_image "$partial" "$arch" "name one for $arch: container.image in configuration.toml"
  sha256=$(image_checksum "$partial")
  check_digest
  step 3/3 'Record it and give it its name'
  write_record "$partial.json" "$partial" "$sha256"
  name_image
  remove_folder "$work"
  next_step "$next"
}

# name_image: from now on it is the new image, and its record belongs to it.
name_image() {
  rm -f -- "$record" # it belongs to the image that goes away now
  if holds_tag "$image" && [[ $(tag_in "$image") != "$(tag_in "$partial")" ]]; then
    delete_image "$image" || :
  fi
  put_shared "$partial" "$image"
  put_shared "$partial.json" "$record"
}

# check_digest: stop where it is not the digest that is wanted.
check_digest() {
  if [[ $address != "$source" ]]; then digest=$wanted; fi # then the registry has seen to it
  [[ -z $wanted || $digest == "$wanted" ]] ||
    fail "$source is no longer what was recorded: it is $digest now, and $wanted was recorded" \
      'take what is there now: the same command without --locked'
}

# daemon_digest: what docker calls the image that is wanted from its store: no registry has named it, and a
# rebuilt one has the same name.
daemon_digest() {
  if [[ $source == docker-daemon:* ]]; then
    docker image inspect --format '{{.Id}}' "${source#docker-daemon:}" 2>/dev/null || :
  fi
}

# is_built RECORD: whether it is a record of what is wanted, and of an image that is there.
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
    note "${1%.json} is not what was built: $REPLY"
    return 1
  }
  record_value "$1" date
  note "$source is there already, since $REPLY: ${1%.json}; --force makes it again"
}

# discard_partial_image: leave nothing half-made, whatever ended the build; what was fetched stays
# in the cache for the next try.
discard_partial_image() {
  delete_image "$partial" || :
  rm -f -- "$partial" "$partial.json"
  remove_folder "$tmp"
}

# remove_dead_builds: what killed ones left. The lock is held: none is alive.
remove_dead_builds() {
  local left
  for left in "${image%/*}"/partial-*-"${image##*/}"; do
    if [[ -e $left ]]; then delete_image "$left" || rm -f -- "$left"; fi
  done
  for left in "${image%/*}"/partial-*-"${image##*/}.json"; do rm -f -- "$left"; done
  for left in "$work"/tmp-*; do remove_folder "$left"; done
}

# check_cache LAYOUT: Apptainer uses what an earlier try has fetched without a look at it: what a full disk or
# a kill has left damaged goes. It is laid out as the OCI says: a blob is named after its checksum.
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

# remove_folder FOLDER: images hold folders that their owner may not write to.
remove_folder() {
  if [[ ! -d $1 ]]; then return 0; fi
  chmod -R u+rwX -- "$1" 2>/dev/null || :
  rm -rf -- "$1" 2>/dev/null || : # or what a killed build started still writes there
}

# fetched_digest CACHE: the digest of the manifest that Apptainer has fetched last; its cache is laid
# out as the OCI says, and this one belongs to one image.
fetched_digest() {
  local -r index=$1/cache/blob/index.json
  local digests=''
  if [[ -f $index ]]; then digests=$(grep -o '"digest": *"sha256:[0-9a-f]*"' "$index") || :; fi
  digests=${digests##*\"sha256:}
  printf '%s' "${digests:+sha256:${digests%\"}}"
}

# pulled_digest PROGRAM NAME: what the registry calls the image that docker or podman has pulled.
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

# copy_image FROM TO: a copy of its own, because a site replaces its images without asking.
copy_image() {
  with_progress "$1" "$2" cp --reflink=auto -- "$1" "$2" ||
    fail_writing "${2%/*}" "cannot copy $1 to $2" 'see the line above'
}

# sif_from_archive COMMAND...: make "$partial" from "$archive", which is a SIF already or one of
# docker's archives for COMMAND.
sif_from_archive() {
  if [[ $archive == *.sif ]]; then
    copy_image "$archive" "$partial"
  else
    # in its folder: a path with a colon would be taken apart
    (cd -- "${archive%/*}" && watched "$@" "$partial" "docker-archive:${archive##*/}")
  fi
}

# load_archive PROGRAM FILE TAG: put one of docker's archives into the store, under this tag alone.
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

# take_from_daemon PROGRAM SOURCE TAG: docker has it already; podman asks docker for it.
take_from_daemon() {
  local -r name=${2#docker-daemon:}
  if [[ $1 == podman ]]; then watched podman pull "$2"; fi
  "$1" tag "$name" "$3" 2>/dev/null ||
    fail "$1 has no image $name" "see what there is: $1 image ls"
}

# build_tag PROGRAM DOCKERFILE ARCH TAG: its folder is the context.
build_tag() {
  watched "$1" build --platform "linux/$3" --file "$2" --tag "$4" "${2%/*}"
}

# hold_tag PROGRAM TAG: keep what TAG-partial is now under a tag of its own, named in "$partial". So a
# version of docker's and podman's is a file too, and is put in use like the others.
hold_tag() {
  local id
  id=$("$1" image inspect --format '{{.Id}}' "$2-partial")
  id=${id#sha256:}
  local -r own=$2_$(date -u +%Y%m%dT%H%M%S)_${id:0:12}
  printf '%s\n' "$own" >"$partial" ||
    fail_writing "${partial%/*}" "cannot write $partial" 'see the line above'
  "$1" tag "$2-partial" "$own"
  "$1" rmi "$2-partial" >/dev/null
}

# build_dockerfile DOCKERFILE ARCH ARCHIVE TAG: by whatever here reads Dockerfiles.
build_dockerfile() {
  local program
  for program in docker podman; do
    if command -v "$program" >/dev/null && "$program" version >/dev/null 2>&1; then
      build_tag "$program" "$1" "$2" "$4"
      save_tag "$program" "$4" "$3"
      return
    fi
  done
  fail "neither docker nor podman works here, which $1 needs" "$build_hint"
}

# save_tag PROGRAM TAG ARCHIVE: as an archive, which is all that is kept of it.
save_tag() {
  watched "$1" save --output "$3" "$2"
  "$1" rmi "$2" >/dev/null
}

# check_can_build ARCH KIND: a definition file and a Dockerfile run programs of the image; docker can
# have an emulator for them.
check_can_build() {
  local emulator=${1/arm64/aarch64}
  emulator=/proc/sys/fs/binfmt_misc/qemu-${emulator/amd64/x86_64}
  host_arch
  [[ $REPLY == "$1" || ($2 == dockerfile && -e $emulator) ]] ||
    fail "to build from $input, programs for $1 must run, and this machine is $REPLY" "$build_hint"
}
