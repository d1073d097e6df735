#!/usr/bin/env bash
# Longship: build_container_offline.py, machine jpb (jsc/site.toml)
set -euo pipefail

longship_main() {
  machine=jpb
  arch=arm64
  runtime=apptainer
  on_interrupt 'python3 build_container.py offline'
  roots_make /e/scratch/project_465000000/me/longship \
    /e/project1/project_465000000/me/longship
  directory_make /e/scratch/project_465000000/me/longship/containers \
    /e/scratch/project_465000000/me/longship/containers/build
  program_check apptainer

  build_from_archive /e/scratch/project_465000000/me/longship/offline/containers/pytorch_26.09-py3_arm64
  build_begin \
    /e/scratch/project_465000000/me/longship/containers/build/pytorch_26.09-py3_arm64.sif \
    /e/scratch/project_465000000/me/longship/cache/containers/pytorch_26.09-py3_arm64.sif '' \
    'python3 move_built_container_to_active.py' \
    /e/scratch/project_465000000/me/longship/containers/pytorch_26.09-py3_arm64.sif
  sif_build apptainer longship/pytorch_26.09-py3:arm64
  build_end
}

# ---------- lib/script/exported.bash

# exported_keep NAME...: save and unset exported variables whose names this script uses.
# shellcheck disable=SC2034 # scripts that start a program read it
exported_keep() {
  declare -gA longship_kept=()
  # of a locale that is not installed, bash warns when it starts, and again after each `local LC_ALL`
  local -r longship_name=LC_ALL # in a variable: ShellCheck warns of assignments in a subshell
  if [[ -n ${LC_ALL-} && -n $(export "$longship_name=$LC_ALL" 2>&1) ]]; then set -- LC_ALL "$@"; fi
  while (($#)); do
    # a job script, which sources this file, also has variables that are not exported
    if [[ -v $1 && $(declare -p "$1") =~ ^declare\ -[A-Za-z]*x ]]; then
      longship_kept[$1]=${!1}
      unset -v "$1"
    fi
    shift
  done
}

exported_keep LOCK_PATIENCE REPLY WRITTEN_TO address an anonymous arch beating blob boot \
    build_active build_address build_archive build_digest build_file build_hint build_image \
    build_kind build_next build_partial build_required build_source build_tmp build_tools \
    build_work bytes character closed code comma config current_step digest digests \
    directories directory each expected failed fetch file found free free_inodes heart \
    held_locks hint holders host id index inodes interrupted_command kB key last layer left \
    line lines lock lock_files lock_hearts lock_signs log machine magic manifest mark message \
    now of opened options other own owner parent place platform process program reason \
    recorded removal runtime said same sha256 shown sign size source start stat status sum tag \
    tenths terminal text the times told tries unit units versions

# ---------- lib/images/build.bash

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
  trap 'build_discard; lock_release_all' EXIT
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
  file_publish "$build_partial" "$build_image"
  file_publish "$build_partial.json" "$build_image.json"
  directory_remove "$build_work"
  trap lock_release_all EXIT
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
  for left in "${build_image%/*}"/partial-*-"${build_image##*/}.json"; do rm -f -- "$left"; done
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

# engine_build PROGRAM TAG: build the Dockerfile; its directory is the context.
engine_build() {
  build_run "$1" build --platform "linux/$arch" --file "$build_file" --tag "$2" "${build_file%/*}"
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

# ---------- lib/images/image.bash

declare -g WRITTEN_TO='modified after it was built'

# engine_has_tag FILE: whether it contains a tag; set REPLY to the program whose tag that is.
engine_has_tag() {
  REPLY=${1##*.}
  [[ $REPLY == docker || $REPLY == podman ]]
}

# engine_tag_in FILE: print the tag that it contains.
engine_tag_in() {
  local tag=
  if [[ -f $1 ]]; then IFS= read -r tag <"$1" || :; fi
  printf '%s' "$tag"
}

# image_exists FILE: whether the image exists.
image_exists() {
  [[ -f $1 ]] || return 1
  if engine_has_tag "$1"; then "$REPLY" image inspect "$(engine_tag_in "$1")" >/dev/null 2>&1; fi
}

# image_delete FILE: with its tag, unless another file names that too; false if a container uses the tag.
image_delete() {
  local -a same=()
  if engine_has_tag "$1" && image_exists "$1"; then
    mapfile -t same < <(grep -l -x -F -e "$(engine_tag_in "$1")" -- "${1%/*/*}"/{build,versions}/*."$REPLY" 2>/dev/null)
    if ((${#same[@]} < 2)); then "$REPLY" rmi "$(engine_tag_in "$1")" >/dev/null 2>&1 || return 1; fi
  fi
  rm -f -- "$1"
}

# image_check FILE ARCH HINT: stop if it is incomplete, not an image, or for another architecture.
image_check() {
  local found
  case $1 in
    *.docker | *.podman)
      engine_has_tag "$1"
      engine_check "$REPLY" "$(engine_tag_in "$1")" "$2" "$3"
      ;;
    *.sif) sif_check "$1" "$2" "$3" ;;
    *.sqsh)
      sqsh_check "$1" "$3"
      unsquashfs -s "$1" >/dev/null 2>&1 || fail "incomplete image: $1" "$3"
      found=$(sqsh_arch "$1")
      # older unsquashfs shows no file
      [[ -z $found || $found == "$2" ]] || fail "image $1 has the wrong architecture: $found, expected $2" "$3"
      ;;
    *.tar)
      found=$(archive_arch "$1")
      [[ -n $found ]] || fail "not a complete image archive: $1" "$3"
      [[ $found == "$2" ]] || fail "archive $1 has the wrong architecture: $found, expected $2" "$3"
      ;;
  esac
}

# archive_arch FILE: print the architecture of the image in a tar file of docker's or the OCI's layout; nothing
# where there is none.
archive_arch() {
  local manifest config=''
  if manifest=$(archive_member "$1" manifest.json); then
    config=$(grep -o '"Config": *"[^"]*"' <<<"$manifest" | head -n 1) || :
    config=${config%\"}
    config=${config##*\"}
  elif manifest=$(archive_member "$1" index.json); then
    manifest=$(archive_member "$1" "$(archive_blob "$manifest")") || :
    config=$(archive_blob "${manifest#*\"config\"}")
  fi
  archive_member "$1" "$config" | tr -d ' \n' | grep -o '"architecture":"[^"]*"' | head -n 1 |
    cut -d '"' -f 4 || :
}

# archive_member TAR NAME: print the content of a file in it.
archive_member() {
  tar -xOf "$1" "$2" 2>/dev/null || tar -xOf "$1" "./$2" 2>/dev/null
}

# archive_blob JSON: print the path of the first blob that an OCI document names.
archive_blob() {
  local digest
  digest=$(grep -o 'sha256:[0-9a-f]*' <<<"$1" | head -n 1) || :
  printf 'blobs/sha256/%s' "${digest#sha256:}"
}

# file_checksum FILE: print its SHA-256, as sha256:...
file_checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(progress_run "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the error above'
  printf 'sha256:%s' "${sum%% *}"
}

# image_checksum FILE: print the checksum of the image, or its id in the store of docker or podman.
image_checksum() {
  local id
  if engine_has_tag "$1"; then
    id=$("$REPLY" image inspect --format '{{.Id}}' "$(engine_tag_in "$1")")
    printf 'sha256:%s' "${id#sha256:}"
  else
    file_checksum "$1"
  fi
}

# image_bytes FILE: print the size of the image.
image_bytes() {
  if engine_has_tag "$1"; then
    "$REPLY" image inspect --format '{{.Size}}' "$(engine_tag_in "$1")"
  else
    stat -c %s -- "$1"
  fi
}

# image_fingerprint FILE: print what changes when the file is written to, but not when it is renamed.
image_fingerprint() {
  stat -L -c '%s %.9Y' -- "$1"
}

# record_is_complete FILE: whether it is complete: the brace that ends it is its last line.
record_is_complete() {
  local -a lines=()
  { mapfile -t lines <"$1"; } 2>/dev/null || return 1
  ((${#lines[@]} > 1)) && [[ ${lines[-1]} == '}' ]]
}

# image_damage FILE: set REPLY to how an image differs from its record, or to nothing; the checksum is not computed,
# as that can take minutes. An image that Longship did not build can have no record.
image_damage() {
  local bytes
  REPLY=
  if [[ $1 == *_unrecorded.* && ! -e $1.json ]]; then return; fi
  if ! record_is_complete "$1.json"; then
    REPLY='the record is missing or damaged'
  elif ! image_exists "$1"; then
    REPLY='the image is missing'
  elif engine_has_tag "$1"; then
    REPLY=
  else
    bytes=$(stat -L -c %s -- "$1")
    record_value "$1.json" bytes
    if [[ $bytes != "$REPLY" ]]; then
      REPLY="$bytes bytes, recorded: ${REPLY:-none}"
      return
    fi
    record_value "$1.json" modified
    if [[ $(image_fingerprint "$1") == "$REPLY" ]]; then REPLY=; else REPLY=$WRITTEN_TO; fi
  fi
}

# image_matches_record FILE [always]: whether an image is what was built; if not, set REPLY to how it differs. The checksum
# is computed again if the file has been written to or copied, or `always`.
image_matches_record() {
  local sum
  image_damage "$1"
  if [[ -z $REPLY || $REPLY == "$WRITTEN_TO" ]] && [[ -e $1.json ]]; then
    if [[ -z $REPLY && ${2:-} != always ]] && ! engine_has_tag "$1"; then return; fi
    sum=$(image_checksum "$1") || exit
    record_value "$1.json" sha256
    if [[ $sum == "$REPLY" ]]; then
      if engine_has_tag "$1"; then return; fi
      # nothing has to compute it again; another member's record stays
      (record_change "$1.json" modified "$(image_fingerprint "$1")") 2>/dev/null || :
      return
    fi
    REPLY="checksum $sum, recorded: ${REPLY:-none}"
  fi
  [[ -z $REPLY ]]
}

# script_text: the text of the script that runs, however it was started.
script_text() {
  if [[ ${BASH_EXECUTION_STRING:-} == 'source /dev/fd/'* ]]; then # too long for an argument
    cat -- "${BASH_EXECUTION_STRING#* }"
  elif [[ -n ${BASH_EXECUTION_STRING:-} ]]; then
    printf '%s\n' "$BASH_EXECUTION_STRING"
  elif [[ -f $0 ]]; then
    cat -- "$0"
  fi
}

# program_version PROGRAM: in one line.
program_version() {
  case $1 in
    enroot) printf 'enroot version %s' "$(enroot version 2>/dev/null)" ;;
    *) "$1" --version 2>/dev/null | head -n 1 ;;
  esac || :
}

# record_write FILE [NAME VALUE]...: as JSON, a line each, as record_value reads them; complete or not at all.
record_write() {
  local text='' comma='{' index
  for ((index = 2; index < $#; index += 2)); do
    json_text "${@:index+1:1}"
    text+="$comma"$'\n'"  \"${!index}\": \"$REPLY\""
    comma=,
  done
  file_write "$1" "$text"$'\n}\n'
}

# record_value RECORD NAME: set REPLY to one of its values, as JSON has it; empty where there is none.
record_value() {
  local -a lines=()
  REPLY=
  [[ -r $1 ]] || return 0
  mapfile -t lines <"$1"
  record_find "$2" ${lines[@]+"${lines[@]}"}
}

# record_change FILE NAME TEXT: replace one of its values, not the last one; TEXT is in JSON.
record_change() {
  local line text=''
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "  \"$2\": "* ]]; then line="  \"$2\": \"$3\","; fi
    text+=$line$'\n'
  done <"$1" || fail "cannot read $1" 'check the permissions of the directory; the line above has the reason'
  file_write "$1" "$text"
}

# record_find NAME LINE...: the same, of a record's lines.
record_find() {
  local line
  REPLY=
  for line in "${@:2}"; do
    if [[ $line == "  \"$1\": \""* ]]; then
      line=${line#*\": \"}
      REPLY=${line%\"*}
      return
    fi
  done
}

# ---------- lib/images/watch.bash

# build_show_progress PATH...: print a program's messages; on a terminal only the latest, with the time and the size of PATHs,
# which the program writes.
build_show_progress() {
  local line='' message='' terminal='' shown='' status
  local -r start=$SECONDS
  if [[ -t 2 ]]; then terminal=1; fi
  while :; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status > 0 && status <= 128)); then break; fi
    if ((status == 0)) && build_is_message "$line"; then
      message=$REPLY
      if [[ -z $terminal ]]; then printf '      %s\n' "$message" >&2; fi
    fi
    if [[ -n $terminal && $SECONDS != "$shown" ]]; then
      shown=$SECONDS
      bytes_format "$(du -s -B1 -- "$@" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')"
      printf '\r\e[K      %.54s  %d s, %s' "$message" "$((SECONDS - start))" "$REPLY" >&2
    fi
  done
  if [[ -n $terminal ]]; then printf '\r\e[K' >&2; fi
}

# build_is_message LINE: whether it shows progress; set REPLY to it.
build_is_message() {
  local -r layer='^[0-9a-f]{12}: '
  REPLY=${1#INFO:}
  REPLY=${REPLY#\[INFO\]}
  REPLY=${REPLY#"${REPLY%%[! ]*}"}
  case $REPLY in
    '' | 'FATAL'* | 'ERROR'* | 'WARNING'* | *'warn rootless'* | *'level='* | 'Error'* | sha256:*) return 1 ;;
    *quashfs* | *'table size'* | 'Filesystem size'* | 'Number of'* | *'uncompressed'* | 'duplicates'*) return 1 ;;
    compressed* | root* | *'filesystem on'*) return 1 ;; # mksquashfs, which enroot does not silence
  esac
  [[ ! $REPLY =~ $layer ]]
}

# build_explain_failure LOG PROGRAM SOURCE FILE HINT: stop, with the cause and the fix if the log shows them. FILE is the
# source if it is a file; HINT is for a machine that cannot build from it.
build_explain_failure() {
  local text
  text=$(<"$1")
  local -r said=${text,,}
  if [[ $said == *'no space left on device'* || $said == *'disk quota exceeded'* ]]; then
    fail "$3: No space left on device" \
      'free some space, or set [paths] in configuration.toml; then run the command again'
  fi
  if [[ -z $4 || $4 == *.tar ]]; then
    build_explain_source "$said" "$2" "$3"
  elif [[ $said == *'user namespace'* || $said == *newuidmap* || $said == *fakeroot* ]]; then
    tail -n 5 -- "$1" >&2
    fail "building from $3 is not allowed on this machine" "$5"
  fi
  tail -n 30 -- "$1" >&2
  fail_writing "${1%/*}" "$2 cannot build an image from $3" 'see the output above'
}

# build_explain_source TEXT PROGRAM SOURCE: stop if the text, in lower case, shows what is wrong with the source.
build_explain_source() {
  local -r source=$3
  local host=${source#*://}
  host=${host%%/*}
  if [[ $host != *[.:]* && $host != localhost ]]; then host=docker.io; fi
  case $1 in
    *'no match for platform'* | *'no matching manifest'* | *'no image found in'* | *'no child with platform'*)
      fail "$source has no image for $arch" "set container.image in configuration.toml to an image for $arch"
      ;;
    *'manifest unknown'* | *'manifest_unknown'* | *'name_unknown'* | *'name unknown'*)
      fail "image not found: $source" 'check its name and tag: container.image in configuration.toml'
      ;;
    *toomanyrequests* | *'rate limit'*)
      fail "$host: rate limit reached for anonymous pulls" "$(registry_login_command "$2" "$host")"
      ;;
    *unauthorized* | *'authentication required'* | *'access denied'* | *'access to the resource is denied'* | *'no basic auth'*)
      fail "$host requires a login, or does not have $source" "$(registry_login_command "$2" "$host")"
      ;;
    *'no such host'* | *'network is unreachable'* | *'connection refused'* | *'i/o timeout'* | *'no route to host'* | \
      *'temporary failure in name resolution'* | *'could not resolve'* | *'tls handshake timeout'* | *'server misbehaving'*)
      fail "cannot reach $host from this machine" \
        "on a machine with network access, run: python3 build_container.py download --machine $machine; then on this machine: python3 build_container.py offline"
      ;;
    *'server gave http response'*)
      fail "$host does not use TLS, so an image can be replaced on its way" \
        "use another registry; or, if you trust it, add to ~/.config/containers/registries.conf: [[registry]] location = \"$host\" insecure = true"
      ;;
    *x509*)
      fail "the certificate of $host is not trusted on this machine" 'set the file of trusted certificates: export SSL_CERT_FILE=...'
      ;;
    *'unexpected eof'* | *'invalid tar header'* | *'not an ocilayout'* | *'not a docker archive'* | *'not found in tar'*)
      fail "not a complete image archive: $source" 'copy the archive again'
      ;;
  esac
}

# registry_login_command PROGRAM HOST: print the hint that gives the program a login for the registry.
registry_login_command() {
  case $1 in
    apptainer | singularity) printf 'run: %s registry login --username NAME docker://%s' "$1" "$2" ;;
    enroot) printf 'add a line to %s: machine %s login NAME password ...' "\$ENROOT_CONFIG_PATH/.credentials" "$2" ;;
    *) printf 'run: %s login %s' "$1" "$2" ;;
  esac
}

# ---------- lib/runtimes/enroot.bash

# sqsh_check FILE HINT: stop if the image is missing or not an image. Its architecture is checked at the build:
# that takes too long for each launch.
sqsh_check() {
  local magic=''
  image_check_readable "$1" "$2"
  IFS= read -r -n 4 magic <"$1" 2>/dev/null || :
  [[ $magic == hsqs ]] || fail "not a SquashFS image: $1" "$2"
}

# sqsh_arch FILE: print the architecture of the programs in an image, as enroot records none; print nothing if
# the file is incomplete. Symbolic links are skipped: older versions of unsquashfs do not follow them.
sqsh_arch() {
  local file code
  while IFS= read -r file; do
    code=$(unsquashfs -cat "$1" "$file" 2>/dev/null | head -c 20 | od -An -v -tx1 | tr -d ' \n')
    case $code in
      7f454c46*3e00) printf amd64 && return ;;
      7f454c46*b700) printf arm64 && return ;;
    esac
  done < <(unsquashfs -lln "$1" 2>/dev/null | awk '$1 ~ /^-r.x/ && sub(/^.* squashfs-root\//, "")' |
    grep -E '(^|/)(bin|sbin)/[^/]+$' 2>/dev/null | head -n 50)
}

# ---------- lib/runtimes/launch.bash

# program_check NAME: stop if the runtime is missing.
program_check() {
  command -v "$1" >/dev/null ||
    fail "$1 not found" \
      'load its module, or set container.runtime in configuration.toml to another runtime'
}

# image_check_readable FILE HINT: stop if the image is missing or cannot be read.
image_check_readable() {
  [[ -e $1 ]] || fail "image not found: $1" "$2"
  [[ -r $1 ]] || fail "cannot read the image $1" "ask its owner to run: chmod a+r $(printf %q "$1")"
}

# sif_check FILE ARCH HINT: stop if the image is missing, is not a SIF file, or is for another architecture: after its
# first line a SIF file has magic, version and architecture.
sif_check() {
  local -r file=$1 arch=$2 hint=$3
  image_check_readable "$file" "$hint"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "not a SIF image: $file" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] || fail "image $file has the wrong architecture: $found, expected $arch" "$hint"
}

# engine_check PROGRAM TAG ARCH HINT: the same for an image in the store of docker or podman.
engine_check() {
  local found
  found=$("$1" image inspect --format '{{.Architecture}}' "$2" 2>/dev/null) || {
    "$1" version >/dev/null 2>&1 ||
      fail "$1 is installed but does not work" "run: $1 version"
    fail "$1 has no image $2" "$4"
  }
  [[ $found == "$3" ]] || fail "image $2 has the wrong architecture: $found, expected $3" "$4"
}

# ---------- lib/script/json.bash

# json_text TEXT: set REPLY to the text, escaped for a JSON string.
json_text() {
  local LC_ALL=C
  local text=${1//\\/\\\\} code character
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
    for code in {1..31}; do
      printf -v code '%02x' "$code"
      printf -v character '%b' "\\x$code"
      text=${text//"$character"/"\\u00$code"}
    done
  fi
  REPLY=$text
}

# ---------- lib/script/lock.bash

declare -g LOCK_PATIENCE=60 # seconds without a sign of life from another host

# the locks that this process holds, the open file of each, and the process that refreshes it
declare -ga held_locks=()

declare -ga lock_files=()

declare -ga lock_hearts=()

# the last sign of life of each lock that this process waits for, and when it was first seen
declare -gA lock_signs=()

# lock_hold PATH: hold the lock of PATH until the script ends.
lock_hold() {
  lock_take "$1.lock"
  trap lock_release_all EXIT
}

# lock_take LOCK: create the lock, or wait for its owner.
lock_take() {
  [[ -e /proc/$$/stat ]] || fail '/proc not found: locks need it' 'run the command on Linux'
  local -r lock=$1 own=$1.new.$(host_name).$$
  local told='' reason
  local -i failed=0
  until reason=$(lock_make "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it has just been released
      ((failed < 5)) || fail_writing "${lock%/*}" "cannot create the lock $lock: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to'
      continue
    fi
    failed=0
    if lock_is_stale "$lock" && lock_take_over "$lock" "$own"; then continue; fi
    [[ -n $told ]] ||
      note "waiting for the lock held by $(lock_owner "$lock"); if that process no longer exists, run: rm -r $(printf %q "$lock")"
    told=1
    sleep 1
  done
  held_locks+=("$lock")
  local file
  exec {file}<"$lock/owner"
  lock_files+=("$file")
  # Without the trap, which a child that is killed right after its start would run. In its own process
  # group, because the lock can outlast this process's group.
  trap - EXIT
  set -m
  (set +m && exec {file}<&- && lock_beat "$lock") >/dev/null 2>&1 </dev/null &
  set +m
  lock_hearts+=($!)
  disown
  lock_remove_dead "$lock"
}

# lock_make DIR LOCK: create a directory that names its owner, and move it to the lock's name. Everybody
# can read it, whatever this user's umask. -f: on a terminal mv would ask before it replaces another user's
# lock, with the question captured, and could report "no" as a success.
lock_make() {
  local host start
  host=$(host_name)
  start=$(process_start "$$")
  (umask a+rx && mkdir -- "$1" && printf '%s %s %s %s\n' "$host" "$$" "$start" "$(host_boot)" >"$1/owner") && mv -f -T -- "$1" "$2"
}

# lock_beat LOCK: refresh the lock until no process holds it, or another owner does. The process that
# refreshes it is recorded for other users, who cannot see which processes hold the lock.
lock_beat() {
  local -r owner=$(<"$1/owner") heart=$BASHPID
  local start
  read -r _ _ start _ <<<"$owner"
  (umask a+r && printf '%s %s\n' "$heart" "$(process_start "$heart")" >"$1/heart.partial") &&
    mv -- "$1/heart.partial" "$1/heart" || : # a full disk does not stop the refreshes
  while sleep 5 && [[ $(<"$1/owner") == "$owner" ]]; do
    if [[ $(process_start "$$") != "$start" ]]; then
      lock_find_holders "$1"
      if ((${#holders[@]} == 0)); then return; fi
    fi
    touch -c -- "$1" "$1/owner"
  done
}

# lock_find_holders LOCK: set `holders` to the processes of this user that have it open.
lock_find_holders() {
  local file
  holders=()
  for file in /proc/[0-9]*/fd/[1-9][0-9]; do # bash opens it as 10 or above
    if [[ $file -ef $1/owner ]]; then
      file=${file#/proc/}
      holders+=("${file%%/*}")
    fi
  done
}

# lock_remove DIR: rename it first, because only a rename is atomic.
lock_remove() {
  local -r other=$1.new.$(host_name).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another user's lock can be renamed, but not emptied
  else
    rm -rf -- "$1"
  fi
}

# lock_remove_dead LOCK: remove what killed processes left of their own directories; the names say whose.
lock_remove_dead() {
  local directory host
  for directory in "$1".new.* "$1.removal"; do
    host=${directory##*.new.}
    host=${host%.*}
    if [[ ! -d $directory ]]; then continue; fi
    if [[ $host == "$(host_name)" && -O $directory && ! -e /proc/${directory##*.} ]] || lock_is_stale "$directory"; then
      rm -rf -- "$directory" 2>/dev/null || : # another user's stays
    fi
  done
}

# lock_release: release the lock that was taken last.
lock_release() {
  local last=${#held_locks[@]}
  last=$((last - 1))
  local file=${lock_files[last]:-}
  if [[ -n ${lock_hearts[last]:-} ]]; then kill -- "-${lock_hearts[last]}" 2>/dev/null || :; fi
  if [[ -n $file ]]; then exec {file}<&-; fi
  lock_remove "${held_locks[last]}"
  unset "lock_hearts[last]" "lock_files[last]" "held_locks[last]"
}

# lock_release_all: release all locks.
lock_release_all() {
  while ((${#held_locks[@]})); do lock_release; done
}

# host_name: print the name of this host; HOSTNAME can be that of the node from which the job was submitted.
host_name() {
  printf '%s' "$(</proc/sys/kernel/hostname)"
}

# host_boot: print what distinguishes this host from one of the same name, such as in another cluster.
host_boot() {
  { printf '%s' "$(</proc/sys/kernel/random/boot_id)"; } 2>/dev/null
}

# lock_owner LOCK: describe the owner for a message.
lock_owner() {
  local host='' process=''
  read -r host process _ 2>/dev/null <"$1/owner" || :
  printf '%s' "${process:+process $process on }${host:-another process}"
}

# process_start PID: print when it started, which distinguishes it from a later process with the same
# number; print nothing if it has ended.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  if [[ ${stat[0]:-Z} != [ZX] ]]; then printf '%s' "${stat[19]}"; fi
}

# lock_is_stale LOCK: succeed if its owner has ended. /proc shows it on this host; other hosts only refresh
# the lock. Its time is compared with that of a new directory, by the clock of the file system; a time in the
# future must change while this process waits.
lock_is_stale() {
  local -r now=$1.new.$(host_name).now.$$
  local host='' process='' start='' boot='' heart beating found sign
  if [[ -d $1 && ! (-r $1 && -x $1) || -e $1/owner && ! -r $1/owner ]]; then return 1; fi # cannot be known
  read -r host process start boot 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(host_name)" && ${boot:-$(host_boot)} == "$(host_boot)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    if [[ -O $1/owner ]]; then return 0; fi # its children are ended later
    # another user's: the process that refreshes it outlives the last holder; hidepid would hide it
    if [[ -e /proc/1/stat ]] && read -r heart beating <"$1/heart" && [[ $(process_start "$heart") != "$beating" ]]; then
      return 0
    fi 2>/dev/null
  fi
  mkdir -- "$now" 2>/dev/null || return 1
  sign=$(stat -c %Y -- "$now" "$1" "$1/owner" 2>/dev/null) || : # no owner
  rmdir -- "$now"
  local -a times=()
  read -r -d '' -a times <<<"$sign" || :
  if ((${#times[@]} < 2)); then return 1; fi # it has just been released
  if ((${times[2]:-0} > times[1])); then times[1]=${times[2]}; fi
  if ((times[0] - times[1] > LOCK_PATIENCE)); then return 0; fi
  sign="$host $process $start ${times[1]}"
  if [[ ${lock_signs[$1]:-} != "$sign "* ]]; then lock_signs[$1]="$sign $SECONDS"; fi
  ((SECONDS - ${lock_signs[$1]##* } > LOCK_PATIENCE))
}

# lock_take_over LOCK OWN: remove a stale lock, or fail if it must wait. Only one process may check and
# remove at a time: a second one would remove the lock that the first has just created.
lock_take_over() {
  local -r lock=$1 removal=$1.removal
  local -i failed=0
  local owner
  if ! lock_make "$2" "$removal" 2>/dev/null; then
    rm -rf -- "$2"
    if ! lock_is_stale "$removal"; then return 1; fi
    lock_remove "$removal"
    return 0
  fi
  if lock_is_stale "$lock"; then
    owner=$(lock_owner "$lock")
    if lock_end_holders "$lock" && lock_remove "$lock" 2>/dev/null; then
      note "taking over the lock of $owner, which has ended"
    else
      failed=1
    fi
  fi
  lock_remove "$removal"
  return "$failed"
}

# lock_end_holders LOCK: end the processes that its owner has left; fail if one does not end.
lock_end_holders() {
  local -i tries
  for ((tries = 0; tries < 300; tries++)); do
    lock_find_holders "$1"
    if ((${#holders[@]} == 0)); then return; fi
    if ((tries == 0)); then note "ending its remaining processes: ${holders[*]}"; fi
    if ((tries % 10 == 0)); then
      if ((tries < 50)); then kill "${holders[@]}"; else kill -KILL "${holders[@]}"; fi 2>/dev/null || :
    fi
    sleep 0.1
  done
  return 1
}

# ---------- lib/script/messages.bash

# print_messages [KIND TEXT]...: print a line for each to standard error, in one write: ranks share a log.
print_messages() {
  local REPLY told='' text
  while (($#)); do
    printable "$2"
    if [[ $1 == hint || $1 == next ]]; then offline_modes "$REPLY"; fi
    text=$REPLY
    paint 2 "$1:"
    told+="$REPLY $text"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# COMMAND=OFFLINE_COMMAND for hints, in a script of a clone that was unpacked from a bundle: render.py fills it
declare -ga longship_offline_commands=()

# offline_modes TEXT: set REPLY to the text, with the commands that need no network where a bundle was unpacked.
offline_modes() {
  local each
  REPLY=$1
  for each in ${longship_offline_commands[@]+"${longship_offline_commands[@]}"}; do
    REPLY=${REPLY//"${each%%=*}"/"${each#*=}"}
  done
}

# printable TEXT: set REPLY to it, with ? for each control character except tab and newline: text of files,
# records and other programs must not move the cursor.
printable() {
  local LC_ALL=C
  REPLY=${1//[$'\x01'-$'\b\v'-$'\x1f\x7f']/?}
  REPLY=${REPLY//$'\xc2'[$'\x80'-$'\x9f']/?} # C1 controls in UTF-8
}

# red, yellow, green and cyan; errors.py reads them here, and other words are bold
declare -gA longship_colours=([error]=31 [problem]=31 [warning]=33 [follows]=33 [ok]=32
  [hint]=36 [next]=36 [follow]=36 [cancel]=36 [status]=36)

# paint FILE WORD: set REPLY to the word, in its colour if file descriptor 1 or 2 is a terminal with colours
# and NO_COLOR is not set: https://no-color.org. No `return`: in a trap it would return the status of the
# interrupted command.
paint() {
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    REPLY=$'\e['${longship_colours[${2%:}]:-1}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: print what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing DIR MESSAGE HINT: fail after a write failed; report a full disk, which programs often do not
# name. Some remove what they could not finish (uv a package per core), so a disk counts as full earlier.
fail_writing() {
  local free=16777216 size=1 free_inodes=1 inodes=0
  read -r free size free_inodes inodes < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${inodes:-0} > 0 && ${free_inodes:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'free some space, or set [paths] in configuration.toml; then run the command again'
  fi
  fail "$2" "$3"
}

# note TEXT: print information that is not an error.
note() {
  print_messages note "$1"
}

# step NUMBER/COUNT TEXT: print the current step, and remember it for an interruption.
step() {
  local REPLY
  current_step="step $1, $2"
  paint 2 "[$1] $2"
  printf '%s\n' "$REPLY" >&2
}

# on_interrupt COMMAND: after Ctrl-C, print the step and the command that resumes. SIGHUP too: without a trap,
# bash can end without running its EXIT trap, and leave its locks.
on_interrupt() {
  interrupted_command=$1
  trap 'trap - INT TERM HUP
        printf "\n" >&2
        print_messages error "interrupted ${current_step:+in }${current_step:-before the first step}" \
          hint "no work is lost; resume with: $interrupted_command"
        exit 130' INT TERM HUP
}

# next_step COMMAND: print what to type next, unless quickstart.sh runs it.
next_step() {
  [[ -n ${LONGSHIP_QUICKSTART:-} ]] || print_messages next "$1"
}

# ---------- lib/script/private.bash

# directory_make DIR...: make directories, with missing parents, that only the user can enter; stop at one that cannot
# be made or entered.
directory_make() {
  local directory reason
  for directory in "$@"; do
    [[ -d $directory && -x $directory ]] && continue
    reason=$({ directory_create "$directory" && cd -- "$directory"; } 2>&1) ||
      fail_writing "$directory" "cannot use the directory $directory: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to, or change the permissions'
  done
}

# directory_create DIR: mkdir's own -p gives only the last directory a mode.
directory_create() {
  local parent=${1%/*}
  if [[ $1 != */* ]]; then parent=.; fi
  if [[ ! -d ${parent:-/} ]]; then directory_create "$parent" || return; fi
  mkdir -m 700 -- "$1" || [[ -d $1 ]] # another process has made it meanwhile
}

# roots_make SCRATCH DIR...: make the user's directories, and stop at one that another user owns or can change; where
# others can enter SCRATCH, at one in it too: they contain what runs.
roots_make() {
  local found
  directory_make "$@"
  found=$(find -H "$@" -maxdepth 1 -type d \( \( ! -uid "$UID" -o -perm /022 \) -print -quit \
    -o ! -samefile "$1" -prune -o ! -perm /011 -prune \)) || found=
  if [[ -z $found ]]; then return; fi
  if [[ ! -O $found ]]; then
    fail "$found belongs to $(stat -c %U -- "$found"), who would decide what you run" \
      'set [paths] in configuration.toml to directories of your own; what a group builds once can be in paths.shared_dir'
  fi
  fail "other users can write to $found, and would decide what you run" "run: chmod go-w $(printf %q "$found")"
}

# file_begin FILE: set REPLY to a new file next to it, for its content.
file_begin() {
  REPLY=$(mktemp -- "$1.partial.XXXXXX") || fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# file_publish PARTIAL FILE [MODE]: rename a complete file to its final name; who can enter its directory can read it. -f:
# on a terminal mv would ask before it replaces a file.
file_publish() {
  { chmod "${3:-644}" -- "$1" && mv -f -T -- "$1" "$2"; } || fail_writing "${2%/*}" "cannot write $2" 'see the line above'
}

# file_write FILE TEXT [MODE]: write a file, complete or not at all.
file_write() {
  local REPLY
  file_begin "$1"
  printf '%s' "$2" >"$REPLY" || {
    rm -f -- "$REPLY"
    fail_writing "${1%/*}" "cannot write $1" 'see the line above'
  }
  file_publish "$REPLY" "$1" "${@:3}"
}

# ---------- lib/script/progress.bash

# progress_run FROM TO PROGRAM...: run a program that reads the file FROM as its standard input or, if TO is not empty,
# writes it to the file TO.
progress_run() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:3}"
    return
  fi
  # file 4 is closed when the program or this script ends; then progress_show ends
  {
    "${@:3}" 3<&- 4>&- || code=$?
  } 3<&0 4> >(progress_show "$1" "$2")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# progress_show FROM TO: show the size of TO, else the position in file 3, until standard input ends.
progress_show() {
  local key place bytes of status
  bytes=$(stat -L -c %s -- "$1")
  bytes_format "$bytes"
  of=$REPLY
  while status=0 && { read -r -t 0.5 || status=$?; } && ((status > 128)); do
    place=0
    if [[ -n $2 ]]; then
      place=$(stat -c %s -- "$2" 2>/dev/null) || place=0
    else
      while read -r key REPLY; do if [[ $key == pos: ]]; then place=$REPLY; fi; done </proc/self/fdinfo/3
    fi
    bytes_format "$place"
    printf '\r\e[K      %s of %s, %d %%' "$REPLY" "$of" $((place * 100 / (bytes > 0 ? bytes : 1))) >&2
  done
  printf '\r\e[K' >&2
}

# bytes_format BYTES: set REPLY to the size with a unit, such as 9.4 GB.
bytes_format() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}

longship_main "$@"
