# shellcheck shell=bash
# Building images, and archives of images for an air-gapped machine. An image being built has
# another name, and everything that the build needs is in a directory of its own under scratch_dir;
# the image gets its name when it is complete, checked and recorded. One script builds one image:
# build_from or build_from_archive, build_begin or archive_begin, then the runtime's own function,
# such as sif_build, or archive_build, then build_end.

# shellcheck source=lib/runtimes/build.bash
source "${BASH_SOURCE[0]%/*}/../runtimes/build.bash"

# build_from KIND ADDRESS DIGEST [HINT]: describe the source; DIGEST is the required one, or empty,
# and HINT is for a machine that cannot build. Stop if programs of the image, which a definition
# file or a Dockerfile runs, cannot run on this machine; docker can have an emulator for them.
build_from() {
  local emulator=${arch/arm64/aarch64}
  build_kind=$1 build_source=$2 build_address=$2 build_required=$3 build_digest=$3 build_hint=${4:-}
  if [[ $1 == docker && -n $3 ]]; then build_address=$(address_strip_tag "$2")@$3; fi
  case $2 in
    /*) build_file=$2 ;;
    *-archive:/*) build_file=${2#*:} ;;
  esac
  [[ -z $build_file || -r $build_file ]] ||
    fail "cannot read $build_file" 'check container.image in configuration.toml'
  [[ $1 == definition || $1 == dockerfile ]] || return 0
  emulator=/proc/sys/fs/binfmt_misc/qemu-${emulator/amd64/x86_64}
  host_arch
  [[ $REPLY == "$arch" || ($1 == dockerfile && -e $emulator) ]] ||
    fail "cannot run $arch programs on this $REPLY machine, which building $2 requires" \
      "$build_hint"
}

# build_from_archive BASE: find the downloaded archive, check its size, and describe what it was
# made from.
build_from_archive() {
  local size
  local -r fetch="on a machine with network access, run: python3 build_container.py download --machine $machine"
  build_kind=docker-archive build_archive=$1.tar
  if [[ $runtime == @(apptainer|singularity) && $1.sif -nt $build_archive ]]; then build_kind=sif build_archive=$1.sif; fi
  build_file=$build_archive
  [[ -e $build_archive ]] ||
    fail "archive not found: $build_archive" "$fetch; then copy the archive here"
  [[ -e $build_archive.json ]] || fail "record of the archive not found: $build_archive.json" \
    'copy this file too, together with the archive'
  size=$(image_ask bytes "$build_archive")
  record_value "$build_archive.json" bytes
  [[ $size == "$REPLY" ]] ||
    fail "archive $build_archive is truncated: $size of $REPLY bytes" 'copy the archive again'
  image_check "$build_archive" "$arch" "$fetch"
  record_value "$build_archive.json" source
  printf -v build_source '%b' "${REPLY//\\\"/\"}" # JSON's other escapes are those of printf
  build_address=$build_source
  record_value "$build_archive.json" digest
  build_digest=$REPLY build_required=$REPLY
}

# build_begin IMAGE WORK FORCE NEXT [ACTIVE]: take the image's lock and begin to build it in a
# directory named after WORK. If the image is already there, or is the active one, end the script,
# unless FORCE is given; NEXT is the command to run after the build.
build_begin() {
  local found
  build_image=$1 build_next=$4 build_active=${5:-}
  build_work=$2.$UID # what a killed build leaves is not another member's to delete
  if ((${#build_tools[@]} == 0)); then build_tools=("$runtime"); fi
  lock_hold "$1.json"
  if [[ -z $3 ]] && build_is_done "$1.json"; then
    next_step "$4"
    exit
  fi
  if [[ -z $3 && -L $build_active ]] &&
    build_is_done "${build_active%/*}/$(readlink -- "$build_active").json"; then
    # built before the configuration was changed back: it would be activated next
    if [[ -e $1 ]]; then
      rm -f -- "$1.json"
      image_ask delete "$1" || rm -f -- "$1"
      note "removed the new image $1: the configured image is active already"
    fi
    exit
  fi
  # its own for each process: what a killed one started can go on writing for a while
  build_partial=${1%/*}/partial-$$-${1##*/} build_tmp=$build_work/tmp-$$
  at_exit build_discard
  build_remove_dead
  build_make_directories
  build_check_cache "$build_work/cache/cache/blob"
  step 1/3 "Building the image from ${build_archive:-$build_source}"
  if [[ -n $build_archive ]]; then
    note "checking $build_archive"
    found=$(file_checksum "$build_archive")
    record_value "$build_archive.json" sha256
    [[ $found == "$REPLY" ]] ||
      fail "archive $build_archive is damaged: checksum $found, recorded: $REPLY" \
        'copy the archive again'
  fi
  found=$(build_source_digest) || exit
  if [[ -n $found ]]; then
    build_digest=$found
    build_check_digest
  fi
}

# build_make_directories: make the build's directories, and keep all caches and temporary files in
# them: not in the home directory, nor in /tmp.
build_make_directories() {
  local -ra directories=("$build_work" "$build_work/cache" "$build_tmp")
  directory_make "${directories[@]:1}"
  # where a project's directory hands its group on: Apptainer's user namespace has no number for
  # that group
  { chgrp "$(id -g)" -- "${directories[@]}" && chmod g-s -- "${directories[@]}"; } 2>/dev/null || :
  export APPTAINER_CACHEDIR=$build_work/cache APPTAINER_TMPDIR=$build_tmp
  export SINGULARITY_CACHEDIR=$build_work/cache SINGULARITY_TMPDIR=$build_tmp
  # programs that a definition file runs would see this one too
  if [[ $build_image != *.sif ]]; then export TMPDIR=$build_tmp; fi
}

# build_end: check, record and name the new image.
build_end() {
  local sha256 bytes mark program
  local -a versions=()
  step 2/3 'Checking the image'
  image_check "$build_partial" "$arch" "set container.image in configuration.toml to an image for $arch"
  sha256=$(image_ask checksum "$build_partial")
  build_check_digest
  step 3/3 'Recording and naming the image'
  bytes=$(image_ask bytes "$build_partial")
  mark=$(image_fingerprint "$build_partial")
  for program in "${build_tools[@]}"; do versions+=("$(program_version "$program")"); done
  record_write "$build_partial.json" source "$build_source" digest "$build_digest" sha256 "$sha256" bytes "$bytes" \
    modified "$mark" architecture "$arch" date "$(date -u +%Y-%m-%dT%H:%M:%SZ)" host "$(host_name)" \
    tools "$(IFS=';' && printf '%s' "${versions[*]-}")" script "$(script_text)"
  rm -f -- "$build_image.json" # it belongs to the image that goes away now
  if image_is_stored "$build_image" &&
    [[ $(image_reference "$build_image") != "$(image_reference "$build_partial")" ]]; then
    image_ask delete "$build_image" || :
  fi
  chmod 644 -- "$build_partial" # docker closes what it saves
  file_publish "$build_partial" "$build_image"
  file_publish "$build_partial.json" "$build_image.json"
  directory_remove "$build_work"
  build_partial=
  next_step "$build_next"
}

# build_check_digest: stop if it is not the required digest.
build_check_digest() {
  # the registry has checked it
  if [[ $build_address != "$build_source" ]]; then build_digest=$build_required; fi
  [[ -z $build_required || $build_digest == "$build_required" ]] ||
    fail "the digest of $build_source has changed: now $build_digest, recorded $build_required" \
      'to accept the current digest, run the command again without --locked'
}

# build_source_digest: print the digest of a source that no registry names: a file's checksum, or
# docker's id of an image in its own store, where a rebuilt image has the same name.
build_source_digest() {
  if [[ -n $build_archive ]]; then
    return
  elif [[ -n $build_file ]]; then
    file_checksum "$build_file"
  elif [[ $build_kind == docker-daemon ]]; then
    docker image inspect --format '{{.Id}}' "${build_source#docker-daemon:}" 2>/dev/null || :
  fi
}

# build_is_done RECORD: whether it is the record of the expected image, and that image exists.
build_is_done() {
  local expected=$build_digest
  record_value "$1" source
  local -r recorded=$REPLY
  json_text "$build_source"
  [[ $recorded == "$REPLY" ]] || return 1
  if [[ -z $expected ]]; then expected=$(build_source_digest) || exit 1; fi
  record_value "$1" digest
  [[ -z $expected || $REPLY == "$expected" ]] || return 1
  image_ask exists "${1%.json}" || return 1
  image_matches_record "${1%.json}" || {
    note "rebuilding ${1%.json}, which does not match its record: $REPLY"
    return 1
  }
  record_value "$1" date
  note "$build_source was already built on $REPLY: ${1%.json}; --force rebuilds it"
}

# build_discard: remove an unfinished image, whatever ended the build; downloaded layers stay in the
# cache for the next try.
build_discard() {
  if [[ -z $build_partial ]]; then return; fi
  # in a subshell: it stops where docker does not answer, and locks are to be released
  (image_ask delete "$build_partial") || :
  rm -f -- "$build_partial" "$build_partial.json"
  directory_remove "$build_tmp"
}

# build_remove_dead: remove what killed builds of this image left. The lock is held: none is alive.
build_remove_dead() {
  local left name
  for left in "${build_image%/*}"/partial-*-"${build_image##*/}"{,.json,.json.partial}; do
    name=${left##*/partial-} # its number of a process, then the image, whose name can have dashes
    if [[ ! -e $left || ${name#*-} != "${build_image##*/}"* ]]; then continue; fi
    if [[ $left == *.json* ]] || ! image_ask delete "$left"; then rm -f -- "$left"; fi
  done
  for left in "$build_work"/tmp-*; do directory_remove "$left"; done
}

# build_check_cache LAYOUT: remove what a full disk or a kill has left damaged: Apptainer reuses the
# cache unchecked. The layout is the OCI's: a blob is named after its checksum.
build_check_cache() {
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

# directory_remove DIR: remove it; images contain directories that their owner may not write to.
directory_remove() {
  if [[ ! -d $1 ]]; then return 0; fi
  chmod -R u+rwX -- "$1" 2>/dev/null || :
  rm -rf -- "$1" 2>/dev/null || : # or what a killed build started still writes there
}

# archive_begin BASE WORK FORCE NEXT [SIF_PROGRAM...]: choose the program to download or build the
# archive with, name the archive after BASE, and begin as build_begin does. The runtime of the
# target machine can use the archives of SIF_PROGRAMs.
archive_begin() {
  local ending=tar
  case $build_kind in
    docker)
      archive_choose skopeo docker podman "${@:5}" ||
        fail "no program found on this machine to download $build_source" \
          "install one of: skopeo, docker, podman${5:+, ${*:5}}"
      if [[ ${build_tools[0]} == apptainer || ${build_tools[0]} == singularity ]]; then ending=sif; fi
      ;;
    oras | library | definition)
      ending=sif
      archive_choose apptainer singularity ||
        fail "neither apptainer nor singularity found, and $build_source requires one of them" \
          'run the download on a machine that has one'
      ;;
    sif) ending=sif ;;
  esac
  build_begin "$1.$ending" "${@:2:3}"
}

# archive_build TAG: download or build the archive; it calls the image TAG-archive.
archive_build() {
  local -r program=${build_tools[0]} tag=$1-archive
  case $build_kind in
    docker)
      case $program in
        skopeo) archive_copy "$tag" ;;
        docker | podman)
          engine_pull "$program" "$tag"
          engine_save "$program" "$tag" "$build_partial"
          ;;
        *) sif_build "$program" ;;
      esac
      ;;
    dockerfile) archive_build_dockerfile "$1" "$build_partial" ;;
    docker-daemon)
      engine_import docker "$tag"
      engine_save docker "$tag" "$build_partial"
      ;;
    oras | library | definition) sif_build "$program" ;;
    *) image_copy "$build_file" "$build_partial" ;;
  esac
}

# archive_copy TAG: download the registry's image with skopeo; the archive calls it TAG.
archive_copy() {
  local name=${build_address#docker://}
  if [[ -z $build_digest ]]; then
    skopeo inspect --raw "docker://$name" >"$build_work/manifest" 2>"$build_work/log" </dev/null ||
      build_fail "$build_work/log" skopeo "$build_source" "$build_file" "$build_hint"
    build_digest=$(file_checksum "$build_work/manifest")
    name=$(address_strip_tag "$name")@$build_digest
  fi
  # in its directory: a path with a colon would be taken apart
  (cd -- "${build_image%/*}" && build_run skopeo --tmpdir "$build_tmp" copy --override-os linux \
    --override-arch "$arch" "docker://$name" "docker-archive:${build_partial##*/}:$1")
}
