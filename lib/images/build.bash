# shellcheck shell=bash
# Building images, and archives of images for an air-gapped machine. An image being built has another name, and
# everything that the build needs is in a directory of its own under scratch_dir; the image gets its name when it is
# complete, checked and recorded. An image of docker or podman is a file that contains its tag.
# One script builds one image: build_from or build_from_archive, build_begin or archive_begin, then one of sif_build,
# engine_build_image, enroot_build_image and archive_build, then build_end.

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

# The build of this script:
#   image, active       the file that is built, and the active image; none for an archive
#   source, address     where it comes from, as configured and recorded, and the same at the required digest
#   kind, file          kind of the source (lib/runtimes/image.py), and its path if it is a file or an archive
#   archive             the archive if the image is built from one
#   required, digest    the digest that the source must have, empty for any, and the one that it has
#   hint, next          the hint if this machine cannot build, and the command to run after the build
#   work, tmp, partial  directory of everything that the build needs, its temporary files, and the unfinished image
declare -g build_image='' build_active='' build_source='' build_address='' build_kind='' build_file='' \
  build_archive='' build_required='' build_digest='' build_hint='' build_next='' build_work='' build_tmp='' \
  build_partial=''

declare -ga build_tools=() # the programs that take part

# build_from KIND ADDRESS DIGEST [HINT]: describe the source; DIGEST is the required one, or empty, and HINT is for a
# machine that cannot build. Stop if programs of the image, which a definition file or a Dockerfile runs, cannot run
# on this machine; docker can have an emulator for them.
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
    fail "cannot run $arch programs on this $REPLY machine, which building $2 requires" "$build_hint"
}

# build_from_archive BASE: find the downloaded archive, check its size, and describe what it was made from.
build_from_archive() {
  local size
  local -r fetch="on a machine with network access, run: python3 build_container.py download --machine $machine"
  build_kind=docker-archive build_archive=$1.tar
  if [[ $runtime == @(apptainer|singularity) && $1.sif -nt $build_archive ]]; then build_kind=sif build_archive=$1.sif; fi
  build_file=$build_archive
  [[ -e $build_archive ]] || fail "archive not found: $build_archive" "$fetch; then copy the archive here"
  [[ -e $build_archive.json ]] || fail "record of the archive not found: $build_archive.json" \
    'copy this file too, together with the archive'
  size=$(image_bytes "$build_archive")
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

# build_begin IMAGE WORK FORCE NEXT [ACTIVE]: take the image's lock and begin to build it in a directory named after
# WORK. If the image is already there, or is the active one, end the script, unless FORCE is given; NEXT is the
# command to run after the build.
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
  if [[ -z $3 && -L $build_active ]] && build_is_done "${build_active%/*}/$(readlink -- "$build_active").json"; then
    if [[ -e $1 ]]; then # built before the configuration was changed back: it would be activated next
      rm -f -- "$1.json"
      image_delete "$1" || rm -f -- "$1"
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
      fail "archive $build_archive is damaged: checksum $found, recorded: $REPLY" 'copy the archive again'
  fi
  found=$(build_source_digest) || exit
  if [[ -n $found ]]; then
    build_digest=$found
    build_check_digest
  fi
}

# build_make_directories: make the build's directories, and keep all caches and temporary files in them: not in the home
# directory, nor in /tmp.
build_make_directories() {
  local -ra directories=("$build_work" "$build_work/cache" "$build_tmp")
  directory_make "${directories[@]:1}"
  # where a project's directory hands its group on: Apptainer's user namespace has no number for that group
  { chgrp "$(id -g)" -- "${directories[@]}" && chmod g-s -- "${directories[@]}"; } 2>/dev/null || :
  export APPTAINER_CACHEDIR=$build_work/cache APPTAINER_TMPDIR=$build_tmp
  export SINGULARITY_CACHEDIR=$build_work/cache SINGULARITY_TMPDIR=$build_tmp
  export ENROOT_CACHE_PATH=$build_work/cache ENROOT_TEMP_PATH=$build_tmp PARALLEL_HOME=$build_tmp
  # programs that a definition file runs would see this one too
  if [[ $build_image != *.sif ]]; then export TMPDIR=$build_tmp; fi
}

# build_end: check, record and name the new image.
build_end() {
  local sha256 bytes mark program
  local -a versions=()
  step 2/3 'Checking the image'
  image_check "$build_partial" "$arch" "set container.image in configuration.toml to an image for $arch"
  sha256=$(image_checksum "$build_partial")
  build_check_digest
  step 3/3 'Recording and naming the image'
  bytes=$(image_bytes "$build_partial")
  mark=$(image_fingerprint "$build_partial")
  for program in "${build_tools[@]}"; do versions+=("$(program_version "$program")"); done
  record_write "$build_partial.json" source "$build_source" digest "$build_digest" sha256 "$sha256" bytes "$bytes" \
    modified "$mark" architecture "$arch" date "$(date -u +%Y-%m-%dT%H:%M:%SZ)" host "$(host_name)" \
    tools "$(IFS=';' && printf '%s' "${versions[*]-}")" script "$(script_text)"
  rm -f -- "$build_image.json" # it belongs to the image that goes away now
  if engine_has_tag "$build_image" && [[ $(engine_tag_in "$build_image") != "$(engine_tag_in "$build_partial")" ]]; then
    image_delete "$build_image" || :
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
  if [[ $build_address != "$build_source" ]]; then build_digest=$build_required; fi # the registry has checked it
  [[ -z $build_required || $build_digest == "$build_required" ]] ||
    fail "the digest of $build_source has changed: now $build_digest, recorded $build_required" \
      'to accept the current digest, run the command again without --locked'
}

# build_source_digest: print the digest of a source that no registry names: a file's checksum, or docker's id of an image in
# its own store, where a rebuilt image has the same name.
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
  image_exists "${1%.json}" || return 1
  image_matches_record "${1%.json}" || {
    note "rebuilding ${1%.json}, which does not match its record: $REPLY"
    return 1
  }
  record_value "$1" date
  note "$build_source was already built on $REPLY: ${1%.json}; --force rebuilds it"
}

# build_discard: remove an unfinished image, whatever ended the build; downloaded layers stay in the cache for
# the next try.
build_discard() {
  if [[ -z $build_partial ]]; then return; fi
  image_delete "$build_partial" || :
  rm -f -- "$build_partial" "$build_partial.json"
  directory_remove "$build_tmp"
}

# build_remove_dead: remove what killed builds left. The lock is held: none is alive.
build_remove_dead() {
  local left
  for left in "${build_image%/*}"/partial-*-"${build_image##*/}"; do
    if [[ -e $left ]]; then image_delete "$left" || rm -f -- "$left"; fi
  done
  rm -f -- "${build_image%/*}"/partial-*-"${build_image##*/}.json"{,.partial}
  for left in "$build_work"/tmp-*; do directory_remove "$left"; done
}

# build_check_cache LAYOUT: remove what a full disk or a kill has left damaged: Apptainer reuses the cache unchecked. The
# layout is the OCI's: a blob is named after its checksum.
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

# build_run COMMAND...: run a program of the build, show its progress, and explain a failure.
build_run() {
  local -r log=$build_work/log
  "$@" 2>&1 </dev/null | tee -- "$log" | build_show_progress "$build_work/cache" "$build_partial" ||
    build_explain_failure "$log" "$1" "$build_source" "$build_file" "$build_hint"
}

# sif_build PROGRAM TAG: build a SIF with apptainer or singularity; TAG is for an image that docker builds first.
sif_build() {
  local -a options=(--force)
  local directory=. address=$build_address
  # before version 4, SingularityCE's option of this name has another meaning
  if [[ $1 == apptainer ]]; then options+=(--arch "$arch"); fi
  case $build_kind in
    sif)
      image_copy "$build_file" "$build_partial"
      return
      ;;
    oras | library) # the SIF itself: a build would unpack and pack it again
      build_run "$1" pull "${options[@]}" --disable-cache "$build_partial" "$address"
      build_digest=$(file_checksum "$build_partial")
      return
      ;;
    dockerfile)
      archive_build_dockerfile "$2" "$build_tmp/image.tar"
      directory=$build_tmp address=docker-archive:image.tar
      ;;
    *-archive) directory=${build_file%/*} address=$build_kind:${build_file##*/} ;;
  esac
  # in the archive's directory: a path with a colon would be taken apart; not pulled: that keeps a second copy of the SIF
  (cd -- "$directory" && build_run "$1" build "${options[@]}" "$build_partial" "$address")
  if [[ $build_kind == docker ]]; then build_digest=$(sif_fetched_digest "$build_work/cache"); fi
}

# enroot_build_image TAG: build a SquashFS file with enroot; TAG is for an image that docker builds or loads first.
enroot_build_image() {
  case $build_kind in
    docker) enroot_import ;;
    docker-daemon) build_run enroot import --output "$build_partial" "dockerd://${build_address#*:}" ;;
    sqsh) image_copy "$build_file" "$build_partial" ;;
    *)
      command -v docker >/dev/null ||
        fail "docker not found, with which enroot reads $build_file" \
          'with a network, run: python3 build_container.py; or import the image on a machine with docker, and set container.image in configuration.toml to its .sqsh file'
      if [[ $build_kind == dockerfile ]]; then
        engine_build docker "$1-partial"
      else
        engine_load docker "$1-partial"
      fi
      build_run enroot import --output "$build_partial" "dockerd://$1-partial"
      docker rmi "$1-partial" >/dev/null
      ;;
  esac
}

# enroot_import: import the registry's image; enroot has names of its own for architectures, and requires a # after the
# host.
enroot_import() {
  local name=${build_address#docker://} machine_name=${arch/amd64/x86_64} found=''
  machine_name=${machine_name/arm64/aarch64}
  name=${name#docker.io/}
  if [[ ${name%%/*} == *[.:]* ]]; then name=${name/\//#}; fi
  # enroot before 4 neither tells a digest, but how it is used, nor takes one
  if [[ -z $build_digest ]] && found=$(enroot digest --arch "$machine_name" "docker://$name" 2>/dev/null </dev/null) &&
    [[ $found =~ ^sha256:[0-9a-f]{64}$ ]]; then
    build_digest=$found
    name=$(address_strip_tag "$name")@$found
  fi
  build_run enroot import --arch "$machine_name" --output "$build_partial" "docker://$name"
}

# engine_build_image PROGRAM TAG: make an image in the store of docker or podman.
engine_build_image() {
  case $build_kind in
    docker) engine_pull "$1" "$2-partial" ;;
    dockerfile) engine_build "$1" "$2-partial" ;;
    docker-daemon) engine_import "$1" "$2-partial" ;;
    *) engine_load "$1" "$2-partial" ;;
  esac
  engine_keep_tag "$1" "$2"
}

# engine_pull PROGRAM TAG: pull the registry's image, and give it this tag too.
engine_pull() {
  local -r name=${build_address#docker://}
  build_run "$1" pull --platform "linux/$arch" "$name"
  build_digest=$(engine_pulled_digest "$1" "$name")
  "$1" tag "$name" "$2"
}

# engine_build PROGRAM TAG: build the Dockerfile; its directory is the context.
engine_build() {
  build_run "$1" build --platform "linux/$arch" --file "$build_file" --tag "$2" "${build_file%/*}"
}

# engine_import PROGRAM TAG: tag an image of docker's store; podman gets it from docker first.
engine_import() {
  local -r name=${build_address#docker-daemon:}
  if [[ $1 == podman ]]; then build_run podman pull "$build_address"; fi
  "$1" tag "$name" "$2" 2>/dev/null || fail "$1 has no image $name" "list its images: $1 image ls"
}

# engine_load PROGRAM TAG: load a docker archive into the store, under this tag alone.
engine_load() {
  local loaded before
  before=$("$1" image ls --format '{{.Repository}}:{{.Tag}}')
  build_run "$1" load --input "$build_file"
  loaded=$(grep -o 'Loaded image.*' "$build_work/log" | tail -n 1)
  loaded=${loaded#*: }
  "$1" tag "$loaded" "$2"
  if [[ $loaded == *:* && $loaded != sha256:* ]] && ! grep -q -F -x -e "$loaded" <<<"$before"; then
    "$1" rmi "$loaded" >/dev/null
  fi
}

# engine_keep_tag PROGRAM TAG: keep what TAG-partial is now under a tag of its own, named in "$build_partial". So a version of
# docker's and podman's is a file too, and is activated like the others. The active image, built again, keeps its
# tag: packages were installed on top of that.
engine_keep_tag() {
  local id own
  id=$("$1" image inspect --format '{{.Id}}' "$2-partial")
  id=${id#sha256:}
  own=$2_$(date -u +%Y%m%dT%H%M%S)_${id:0:12}
  if [[ $(engine_tag_in "$build_active") == "$2_"*"_${id:0:12}" ]]; then own=$(engine_tag_in "$build_active"); fi
  printf '%s\n' "$own" >"$build_partial" ||
    fail_writing "${build_partial%/*}" "cannot write $build_partial" 'see the error above'
  "$1" tag "$2-partial" "$own"
  "$1" rmi "$2-partial" >/dev/null
}

# archive_build_dockerfile TAG ARCHIVE: build the Dockerfile with docker or podman, whichever works, as an archive.
archive_build_dockerfile() {
  local -a build_tools=() # of this step alone
  archive_choose docker podman ||
    fail "neither docker nor podman works on this machine, and $build_file requires one of them" "$build_hint"
  engine_build "${build_tools[0]}" "$1-archive"
  engine_save "${build_tools[0]}" "$1-archive" "$2"
}

# engine_save PROGRAM TAG ARCHIVE: save it as an archive and remove it from the store.
engine_save() {
  build_run "$1" save --output "$3" "$2"
  "$1" rmi "$2" >/dev/null
}

# image_copy FROM TO: copy it, because a site can replace its images at any time.
image_copy() {
  progress_run "$1" "$2" cp --reflink=auto -- "$1" "$2" ||
    fail_writing "${2%/*}" "cannot copy $1 to $2" 'see the error above'
}

# sif_fetched_digest CACHE: print the digest of the manifest that Apptainer has downloaded last; the layout of the cache
# is the OCI's, and this cache belongs to one image.
sif_fetched_digest() {
  local -r index=$1/cache/blob/index.json
  local digests=''
  if [[ -f $index ]]; then digests=$(grep -o '"digest": *"sha256:[0-9a-f]*"' "$index") || :; fi
  digests=${digests##*\"sha256:}
  printf '%s' "${digests:+sha256:${digests%\"}}"
}

# engine_pulled_digest PROGRAM NAME: print the registry's digest of the image that docker or podman has pulled.
engine_pulled_digest() {
  local digest_of
  local -r name=${2##*/}
  # docker says it; what it keeps of it belongs to the first architecture that was pulled
  if digest_of=$(grep -o '^Digest: sha256:[0-9a-f]*' "$build_work/log"); then
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

# address_strip_tag NAME: print it without its tag or digest.
address_strip_tag() {
  local -r last=${1##*[/#]}
  printf '%s%s' "${1%"$last"}" "${last%%[:@]*}"
}

# archive_begin BASE WORK FORCE NEXT [SIF_PROGRAM...]: choose the program to download or build the archive with, name
# the archive after BASE, and begin as build_begin does. The runtime of the target machine can use the archives of
# SIF_PROGRAMs.
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

# archive_choose PROGRAM...: set build_tools to the first that works on this machine.
archive_choose() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || continue
    if [[ $program != @(docker|podman) ]] || "$program" version >/dev/null 2>&1; then
      build_tools=("$program")
      return
    fi
  done
  return 1
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
      build_explain_failure "$build_work/log" skopeo "$build_source" "$build_file" "$build_hint"
    build_digest=$(file_checksum "$build_work/manifest")
    name=$(address_strip_tag "$name")@$build_digest
  fi
  # in its directory: a path with a colon would be taken apart
  (cd -- "${build_image%/*}" && build_run skopeo --tmpdir "$build_tmp" copy --override-os linux \
    --override-arch "$arch" "docker://$name" "docker-archive:${build_partial##*/}:$1")
}
