#!/usr/bin/env bash
# Longship: build_container_offline.py, machine jpb (jsc/site.toml)
set -euo pipefail

longship_main() {
  machine=jpb
  build_hint='on a machine that allows builds, run: python3 build_container.py download --machine jpb; copy the archive here; then run: python3 build_container.py offline'
  on_interrupt 'python3 build_container.py offline'
  make_folders /e/scratch/project_465000000/me/longship/containers/build
  check_program apptainer

  arch=arm64
  active=/e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
  image=/e/scratch/project_465000000/me/longship/containers/build/pytorch_25.06-py3_arm64.sif
  record="$image".json
  work=/e/scratch/project_465000000/me/longship/cache/containers/pytorch_25.06-py3_arm64.sif."$UID"
  tools=(apptainer)
  again=''
  input=''
  open_archive /e/scratch/project_465000000/me/longship/offline/containers/pytorch_25.06-py3_arm64

  make_image() {
    export APPTAINER_CACHEDIR="$work"/cache
    export APPTAINER_TMPDIR="$tmp"
    verify_archive
    sif_from_archive apptainer build --force --arch arm64
  }

  locked "$record" build_image 'python3 move_built_container_to_active.py'
}

# ---------- lib/script/exported.bash

# keep_exported NAME...: put aside what is exported under names that this script uses.
# shellcheck disable=SC2034 # for hand_over, where a script has it
keep_exported() {
  declare -gA longship_kept=()
  # bash warns when it starts that this one is not installed, and would again after each `local LC_ALL`
  local -r longship_name=LC_ALL # a name, as ShellCheck warns of an assignment in a subshell
  if [[ -n ${LC_ALL-} && -n $(export "$longship_name=$LC_ALL" 2>&1) ]]; then set -- LC_ALL "$@"; fi
  while (($#)); do
    # a job script, which sources this, has variables of its own that are not exported
    if [[ -v $1 && $(declare -p "$1") =~ ^declare\ -[A-Za-z]*x ]]; then
      longship_kept[$1]=${!1}
      unset -v "$1"
    fi
    shift
  done
}

keep_exported LOCK_PATIENCE REPLY WRITTEN_TO active address again an anonymous arch \
    archive beating blob build_hint bytes character closed code colour comma config \
    current_step digest facts failed file folder found free free_inodes heart held_locks hint \
    holders host id image index inodes input interrupted_command kB key last layer left line \
    lines lock lock_files lock_hearts lock_signs log machine magic manifest mark message mode \
    next now of opened other own owner partial path place platform process program reason \
    record recorded removal said same script sha256 shown sign size source start stat status \
    sum tag tenths terminal text the there times tmp told tools tries unit units versions \
    wanted work

# ---------- lib/images/archive.bash

# open_archive BASE: find the downloaded archive and check its size; set archive, and source and digest to what it
# was made from.
open_archive() {
  local size
  archive=$1.tar
  if [[ $1.sif -nt $archive ]]; then archive=$1.sif; fi
  [[ -e $archive ]] || fail "archive not found: $archive" \
    "on a machine with network access, run: python3 build_container.py download --machine $machine; then copy the archive here"
  [[ -e $archive.json ]] ||
    fail "record of the archive not found: $archive.json" 'copy this file too, together with the archive'
  size=$(image_bytes "$archive")
  record_value "$archive.json" bytes
  [[ $size == "$REPLY" ]] ||
    fail "archive $archive is truncated: $size of $REPLY bytes" 'copy the archive again'
  check_image "$archive" "$arch" \
    "on a machine with network access, run: python3 build_container.py download --machine $machine"
  record_value "$archive.json" source
  printf -v source '%b' "${REPLY//\\\"/\"}" # JSON's other escapes are those of printf
  address=$source
  record_value "$archive.json" digest
  digest=$REPLY
}

# verify_archive: stop if its checksum is not the recorded one.
verify_archive() {
  note "checking $archive"
  local sum
  sum=$(checksum "$archive")
  record_value "$archive.json" sha256
  [[ $sum == "$REPLY" ]] ||
    fail "archive $archive is damaged: checksum $sum, recorded: $REPLY" \
      'copy the archive again'
}

# ---------- lib/images/build.bash

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

# ---------- lib/images/image.bash

declare -g WRITTEN_TO='modified after it was built'

# holds_tag FILE: whether it contains a tag; set REPLY to the program whose tag that is.
holds_tag() {
  REPLY=${1##*.}
  [[ $REPLY == docker || $REPLY == podman ]]
}

# tag_in FILE: print the tag that it contains.
tag_in() {
  local tag=
  if [[ -f $1 ]]; then IFS= read -r tag <"$1" || :; fi
  printf '%s' "$tag"
}

# image_exists FILE: whether the image exists.
image_exists() {
  [[ -f $1 ]] || return 1
  if holds_tag "$1"; then "$REPLY" image inspect "$(tag_in "$1")" >/dev/null 2>&1; fi
}

# delete_image FILE: with its tag, unless another file names that too; false if a container uses the tag.
delete_image() {
  local -a same=()
  if holds_tag "$1" && image_exists "$1"; then
    mapfile -t same < <(grep -l -x -F -e "$(tag_in "$1")" -- "${1%/*/*}"/{build,versions}/*."$REPLY" 2>/dev/null)
    if ((${#same[@]} < 2)); then "$REPLY" rmi "$(tag_in "$1")" >/dev/null 2>&1 || return 1; fi
  fi
  rm -f -- "$1"
}

# check_image FILE ARCH HINT: stop if it is incomplete, not an image, or for another architecture.
check_image() {
  local found
  case $1 in
    *.docker | *.podman)
      holds_tag "$1"
      check_tag "$REPLY" "$(tag_in "$1")" "$2" "$3"
      ;;
    *.sif) check_sif "$1" "$2" "$3" ;;
    *.sqsh)
      check_sqsh "$1" "$3"
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
  if manifest=$(member_of "$1" manifest.json); then
    config=$(grep -o '"Config": *"[^"]*"' <<<"$manifest" | head -n 1) || :
    config=${config%\"}
    config=${config##*\"}
  elif manifest=$(member_of "$1" index.json); then
    manifest=$(member_of "$1" "$(blob_named_in "$manifest")") || :
    config=$(blob_named_in "${manifest#*\"config\"}")
  fi
  member_of "$1" "$config" | tr -d ' \n' | grep -o '"architecture":"[^"]*"' | head -n 1 |
    cut -d '"' -f 4 || :
}

# member_of TAR NAME: print the content of a file in it.
member_of() {
  tar -xOf "$1" "$2" 2>/dev/null || tar -xOf "$1" "./$2" 2>/dev/null
}

# blob_named_in JSON: print the path of the first blob that an OCI document names.
blob_named_in() {
  local digest
  digest=$(grep -o 'sha256:[0-9a-f]*' <<<"$1" | head -n 1) || :
  printf 'blobs/sha256/%s' "${digest#sha256:}"
}

# checksum FILE: print its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the error above'
  printf 'sha256:%s' "${sum%% *}"
}

# image_checksum FILE: print the checksum of the image, or its id in the store of docker or podman.
image_checksum() {
  local id
  if holds_tag "$1"; then
    id=$("$REPLY" image inspect --format '{{.Id}}' "$(tag_in "$1")")
    printf 'sha256:%s' "${id#sha256:}"
  else
    checksum "$1"
  fi
}

# image_bytes FILE: print the size of the image.
image_bytes() {
  if holds_tag "$1"; then
    "$REPLY" image inspect --format '{{.Size}}' "$(tag_in "$1")"
  else
    stat -c %s -- "$1"
  fi
}

# image_mark FILE: print what changes when the file is written to, but not when it is renamed.
image_mark() {
  stat -L -c '%s %.9Y' -- "$1"
}

# is_record FILE: whether it is complete: the brace that ends it is its last line.
is_record() {
  local -a lines=()
  { mapfile -t lines <"$1"; } 2>/dev/null || return 1
  ((${#lines[@]} > 1)) && [[ ${lines[-1]} == '}' ]]
}

# image_damage FILE: set REPLY to how an image differs from its record, or to nothing; the checksum is not computed,
# as that can take minutes. An image that Longship did not build has no record.
image_damage() {
  local bytes
  REPLY=
  if [[ $1 == *_unrecorded.* ]]; then return; fi
  if ! is_record "$1.json"; then
    REPLY='the record is missing or damaged'
  elif ! image_exists "$1"; then
    REPLY='the image is missing'
  elif ! holds_tag "$1"; then
    bytes=$(stat -L -c %s -- "$1")
    record_value "$1.json" bytes
    if [[ $bytes != "$REPLY" ]]; then
      REPLY="$bytes bytes, recorded: ${REPLY:-none}"
      return
    fi
    record_value "$1.json" modified
    if [[ $(image_mark "$1") == "$REPLY" ]]; then REPLY=; else REPLY=$WRITTEN_TO; fi
  else
    REPLY=
  fi
}

# is_as_recorded FILE [always]: whether an image is what was built; if not, set REPLY to how it differs. The checksum
# is computed again if the file has been written to or copied, or `always`.
is_as_recorded() {
  local sum
  image_damage "$1"
  if [[ -z $REPLY || $REPLY == "$WRITTEN_TO" ]] && [[ $1 != *_unrecorded.* ]]; then
    if [[ -z $REPLY && ${2:-} != always ]] && ! holds_tag "$1"; then return; fi
    sum=$(image_checksum "$1") || exit
    record_value "$1.json" sha256
    if [[ $sum == "$REPLY" ]]; then
      renew_mark "$1"
      return
    fi
    REPLY="checksum $sum, recorded: ${REPLY:-none}"
  fi
  [[ -z $REPLY ]]
}

# renew_mark FILE: its checksum was right: nothing has to compute it again. Another user's record stays.
renew_mark() {
  if holds_tag "$1"; then return; fi
  (change_record "$1.json" modified "$(image_mark "$1")") 2>/dev/null || :
}

# this_script: the text of the script that runs, however it was started.
this_script() {
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

# write_record FILE IMAGE SHA256: what the image is, where it comes from, and what has built it.
write_record() {
  local program bytes mark
  local -a versions=()
  bytes=$(image_bytes "$2")
  mark=$(image_mark "$2")
  # shellcheck disable=SC2154  # the emitted script's
  for program in "${tools[@]}"; do
    versions+=("$(program_version "$program")")
  done
  # shellcheck disable=SC2154
  local -ra facts=(
    source "$source"
    digest "$digest"
    sha256 "$3"
    bytes "$bytes"
    modified "$mark"
    architecture "$arch"
    date "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    host "$(this_host)"
    tools "$(IFS=';' && printf '%s' "${versions[*]-}")"
    script "$(this_script)"
  )
  write_facts "$1" "${facts[@]}"
}

# write_facts FILE [NAME VALUE]...: as JSON, a line each, as record_value reads them.
write_facts() {
  local comma='{' index
  {
    for ((index = 2; index < $#; index += 2)); do
      json_text "${@:index+1:1}"
      printf '%s\n  "%s": "%s"' "$comma" "${!index}" "$REPLY"
      comma=,
    done
    printf '\n}\n'
  } >"$1" || fail_writing "${1%/*}" "cannot write $1" 'see the error above'
}

# record_value RECORD NAME: set REPLY to one of its values, as JSON has it; empty where there is none.
record_value() {
  local -a lines=()
  REPLY=
  [[ -r $1 ]] || return 0
  mapfile -t lines <"$1"
  value_in "$2" ${lines[@]+"${lines[@]}"}
}

# value_in NAME LINE...: the same, of a record's lines.
value_in() {
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

# ---------- lib/packages/overlay_record.bash

# change_record FILE NAME TEXT: replace one of its values, not the last one; TEXT is in JSON.
change_record() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "  \"$2\": "* ]]; then line="  \"$2\": \"$3\","; fi
    printf '%s\n' "$line"
  done <"$1" >"$1.partial" || fail_writing "${1%/*}" "cannot write $1" 'check the permissions of the directory; the line above has the reason'
  put_shared "$1.partial" "$1"
}

# ---------- lib/runtimes/enroot.bash

# check_sqsh FILE HINT: stop if the image is missing or not an image. Its architecture is checked when it is built:
# that takes too long for each launch.
check_sqsh() {
  local magic=''
  [[ -e $1 ]] || fail "image not found: $1" "$2"
  [[ -r $1 ]] || fail "cannot read image $1" \
    "ask its owner to run: chmod a+r $(printf %q "$1")"
  IFS= read -r -n 4 magic <"$1" 2>/dev/null || :
  [[ $magic == hsqs ]] || fail "not a SquashFS image: $1" "$2"
}

# sqsh_arch FILE: print the architecture of the programs in it, as enroot records none; nothing if it is incomplete.
# Links are left out: older unsquashfs does not follow them.
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

# check_program NAME: stop where the runtime is missing.
check_program() {
  command -v "$1" >/dev/null ||
    fail "$1 not found" \
      'load its module, or set container.runtime in configuration.toml to another runtime'
}

# check_sif FILE ARCH HINT: stop where the image is missing, is none, or is for another
# architecture. A SIF file tells it behind its first line: magic, version, architecture.
check_sif() {
  local -r file=$1 arch=$2 hint=$3
  [[ -e $file ]] || fail "image not found: $file" "$hint"
  [[ -r $file ]] || fail "cannot read the image $file" \
    "ask its owner to run: chmod a+r $(printf %q "$file")"
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

# check_tag PROGRAM TAG ARCH HINT: the same for an image in the store of docker or podman.
check_tag() {
  local found
  found=$("$1" image inspect --format '{{.Architecture}}' "$2" 2>/dev/null) || {
    "$1" version >/dev/null 2>&1 ||
      fail "$1 is installed but does not work" "run: $1 version"
    fail "$1 has no image $2" "$4"
  }
  [[ $found == "$3" ]] || fail "image $2 has the wrong architecture: $found, expected $3" "$4"
}

# make_folders FOLDER...: make the configured directories, or say which one cannot be made or entered.
make_folders() {
  local folder reason
  for folder in "$@"; do
    [[ -d $folder && -x $folder ]] && continue
    reason=$({ mkdir -p -- "$folder" && cd -- "$folder"; } 2>&1) ||
      fail_writing "$folder" "cannot use the directory $folder: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to, or change the permissions'
  done
}

# ---------- lib/script/group.bash

# put_shared PARTIAL FILE: give it its name, readable for whoever may read the folder.
put_shared() {
  share_with_group "${2%/*}" "$1"
  mv -T -- "$1" "$2" || fail_writing "${2%/*}" "cannot write $2" 'see the line above'
}

# share_with_group FOLDER PATH...: who may read or write the folder may do so with these, whatever this
# user's umask; what is another user's is left as it is.
share_with_group() {
  local mode path
  mode=$(stat -c %A -- "$1")
  for path in "${@:2}"; do
    # its group, not the user's first one
    chgrp --reference="$1" -- "$path" 2>/dev/null || continue
    if [[ ${mode:4:1} == r ]]; then chmod g+rX -- "$path"; fi
    if [[ ${mode:5:1} == w ]]; then chmod g+wX -- "$path"; fi
    if [[ ${mode:7:1} == r ]]; then chmod o+rX -- "$path"; fi
  done
}

# ---------- lib/script/json.bash

# json_text TEXT: set REPLY to the text as JSON has it between quotes.
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

# what this process holds, the open file of each, and the processes that keep it fresh
declare -ga held_locks=()

declare -ga lock_files=()

declare -ga lock_hearts=()

# the last sign of life of a lock that is waited for, and when it was seen first
declare -gA lock_signs=()

# locked PATH FUNCTION [ARGUMENT...]: run a function while holding the lock of PATH.
locked() {
  hold_lock "$1"
  "${@:2}"
  release_lock
  if ((${#held_locks[@]} == 0)); then trap - EXIT; else trap release_locks EXIT; fi
}

# hold_lock PATH: hold the lock of PATH until the script ends.
hold_lock() {
  acquire_lock "$1.lock"
  trap release_locks EXIT
}

# acquire_lock LOCK: move a folder of ours to that name, or wait for whoever has it.
acquire_lock() {
  [[ -e /proc/$$/stat ]] || fail '/proc not found: locks need it' 'run the command on Linux'
  local -r lock=$1 own=$1.new.$(this_host).$$
  local told='' reason
  local -i failed=0
  until reason=$(make_lock "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it was given back just now
      ((failed < 5)) || fail_writing "${lock%/*}" "cannot create the lock $lock: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to'
      continue
    fi
    failed=0
    if lock_is_stale "$lock" && take_over_lock "$lock" "$own"; then continue; fi
    [[ -n $told ]] ||
      note "waiting for the lock held by $(lock_owner "$lock"); if that process no longer exists, run: rm -r $(printf %q "$lock")"
    told=1
    sleep 1
  done
  held_locks+=("$lock")
  local file
  exec {file}<"$lock/owner"
  lock_files+=("$file")
  # A process that is killed right after its start would still run the trap of this one. In a group of
  # its own, as the lock may have to outlive this process's.
  trap - EXIT
  set -m
  (set +m && exec {file}<&- && beat_lock "$lock") >/dev/null 2>&1 </dev/null &
  set +m
  lock_hearts+=($!)
  disown
  remove_dead_locks "$lock"
}

# make_lock FOLDER LOCK: make a folder that says who has it, and move it to the lock's name. Everybody
# can read it, whatever this user's umask.
make_lock() {
  local host start
  host=$(this_host)
  start=$(process_start "$$")
  (umask a+rx && mkdir -- "$1" && printf '%s %s %s\n' "$host" "$$" "$start" >"$1/owner") && mv -T -- "$1" "$2"
}

# beat_lock LOCK: the sign of life, until no process holds the lock, or somebody else does. Its own process
# is recorded for other users, who cannot see which processes hold the lock.
beat_lock() {
  local -r owner=$(<"$1/owner")
  local -r start=${owner##* } heart=$BASHPID
  (umask a+r && printf '%s %s\n' "$heart" "$(process_start "$heart")" >"$1/heart.partial") &&
    mv -- "$1/heart.partial" "$1/heart" || : # on a full disk it beats all the same
  while sleep 5 && [[ $(<"$1/owner") == "$owner" ]]; do
    if [[ $(process_start "$$") != "$start" ]]; then
      find_lock_holders "$1"
      if ((${#holders[@]} == 0)); then return; fi
    fi
    touch -c -- "$1" "$1/owner"
  done
}

# find_lock_holders LOCK: set `holders` to the processes of this user that have it open.
find_lock_holders() {
  local file
  holders=()
  for file in /proc/[0-9]*/fd/[1-9][0-9]; do # bash opens it as 10 or above
    if [[ $file -ef $1/owner ]]; then
      file=${file#/proc/}
      holders+=("${file%%/*}")
    fi
  done
}

# remove_lock FOLDER: give it another name first, as only that takes one step.
remove_lock() {
  local -r other=$1.new.$(this_host).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another member's lock can be moved away, but not be emptied
  else
    rm -rf -- "$1"
  fi
}

# remove_dead_locks LOCK: what was killed while it made or removed one; its name says whose it is.
remove_dead_locks() {
  local folder host
  for folder in "$1".new.* "$1.removal"; do
    host=${folder##*.new.}
    host=${host%.*}
    if [[ ! -d $folder ]]; then continue; fi
    if [[ $host == "$(this_host)" && -O $folder && ! -e /proc/${folder##*.} ]] || lock_is_stale "$folder"; then
      rm -rf -- "$folder" 2>/dev/null || : # another member's stays
    fi
  done
}

# release_lock: give back what `locked` got last.
release_lock() {
  local last=${#held_locks[@]}
  last=$((last - 1))
  local file=${lock_files[last]:-}
  if [[ -n ${lock_hearts[last]:-} ]]; then kill -- "-${lock_hearts[last]}" 2>/dev/null || :; fi
  if [[ -n $file ]]; then exec {file}<&-; fi
  remove_lock "${held_locks[last]}"
  unset "lock_hearts[last]" "lock_files[last]" "held_locks[last]"
}

# release_locks: give back all, at the end.
release_locks() {
  while ((${#held_locks[@]})); do release_lock; done
}

# this_host: its name; not HOSTNAME, which a job can inherit from the node that it was sent from.
this_host() {
  printf '%s' "$(</proc/sys/kernel/hostname)"
}

# lock_owner LOCK: who holds it, in words.
lock_owner() {
  local host='' process=''
  read -r host process _ 2>/dev/null <"$1/owner" || :
  printf '%s' "${process:+process $process on }${host:-another process}"
}

# process_start PID: print when it started, which tells it from a later process with the same number;
# nothing of one that has ended.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  if [[ ${stat[0]:-Z} != [ZX] ]]; then printf '%s' "${stat[19]}"; fi
}

# lock_is_stale LOCK: whether its owner is gone. On this host that can be seen; of other hosts there is only
# the sign of life. It is compared with a folder made now, by the clock of the file system; where it lies in
# the future, it has to change.
lock_is_stale() {
  local -r now=$1.new.$(this_host).now.$$
  local host='' process='' start='' heart beating found sign
  if [[ -d $1 && ! (-r $1 && -x $1) || -e $1/owner && ! -r $1/owner ]]; then return 1; fi # nobody knows
  read -r host process start 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(this_host)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    if [[ -O $1/owner ]]; then return 0; fi # what it has started is ended before the lock is taken over
    # of another user: the heart outlives the last holder; /proc shows it, unless it is mounted with hidepid
    if [[ -e /proc/1/stat ]] && read -r heart beating <"$1/heart" && [[ $(process_start "$heart") != "$beating" ]]; then
      return 0
    fi 2>/dev/null
  fi
  mkdir -- "$now" 2>/dev/null || return 1
  sign=$(stat -c %Y -- "$now" "$1" "$1/owner" 2>/dev/null) || : # no owner
  rmdir -- "$now"
  local -a times=()
  read -r -d '' -a times <<<"$sign" || :
  if ((${#times[@]} < 2)); then return 1; fi # it was given back just now
  if ((${times[2]:-0} > times[1])); then times[1]=${times[2]}; fi
  if ((times[0] - times[1] > LOCK_PATIENCE)); then return 0; fi
  sign="$host $process $start ${times[1]}"
  if [[ ${lock_signs[$1]:-} != "$sign "* ]]; then lock_signs[$1]="$sign $SECONDS"; fi
  ((SECONDS - ${lock_signs[$1]##* } > LOCK_PATIENCE))
}

# take_over_lock LOCK OWN: remove a stale lock, and fail where that has to wait. Only one process may
# look and remove at a time, or the second one would remove the lock that the first has made meanwhile.
take_over_lock() {
  local -r lock=$1 removal=$1.removal
  local -i failed=0
  local owner
  if ! make_lock "$2" "$removal" 2>/dev/null; then
    rm -rf -- "$2"
    if ! lock_is_stale "$removal"; then return 1; fi
    remove_lock "$removal"
    return 0
  fi
  if lock_is_stale "$lock"; then
    owner=$(lock_owner "$lock")
    if end_lock_holders "$lock" && remove_lock "$lock" 2>/dev/null; then
      note "taking over the lock of $owner, which has ended"
    else
      failed=1
    fi
  fi
  remove_lock "$removal"
  return "$failed"
}

# end_lock_holders LOCK: end what its owner has left, and wait until that is gone; false where it stays.
end_lock_holders() {
  local -i tries
  for ((tries = 0; tries < 300; tries++)); do
    find_lock_holders "$1"
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

# print_messages [KIND TEXT]...: a line each, on standard error, at once: jobs share a log.
print_messages() {
  local REPLY told='' text
  while (($#)); do
    printable "$2"
    if [[ -n ${longship_unpacked:-} && ($1 == hint || $1 == next) ]]; then offline_modes "$REPLY"; fi
    text=$REPLY
    paint 2 "$1:"
    told+="$REPLY $text"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# offline_modes TEXT: set REPLY to a hint with the offline modes in place of those that need a network: this
# clone was unpacked from a bundle.
offline_modes() {
  local script mode
  REPLY=${1//python3 set_up.py install/python3 set_up.py offline}
  for script in build_container.py build_overlay.py; do
    REPLY=${REPLY//python3 $script/python3 $script offline}
    for mode in online download offline --list --prune --print-path; do
      REPLY=${REPLY//$script offline $mode/$script $mode}
    done
  done
}

# printable TEXT: set REPLY to it, with ? for each control character but tab and newline: what a file, a
# record or another program says must not move the cursor.
printable() {
  local LC_ALL=C
  REPLY=${1//[$'\x01'-$'\b\v'-$'\x1f\x7f']/?}
  REPLY=${REPLY//$'\xc2'[$'\x80'-$'\x9f']/?} # as UTF-8 has them
}

# paint FILE WORD: set REPLY to the word, in its colour where that file (1 or 2) is a terminal which
# shows colours, unless NO_COLOR says that the user wants none: https://no-color.org. Without `return`: in
# a trap that would have the status of what was interrupted.
paint() {
  local colour
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    case $2 in
      error: | problem) colour=31 ;;                            # red
      warning: | warning) colour=33 ;;                          # yellow
      ok) colour=32 ;;                                          # green
      hint: | next: | follow: | cancel: | status:) colour=36 ;; # cyan
      *) colour=1 ;;                                            # bold
    esac
    REPLY=$'\e['${colour}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing FOLDER MESSAGE HINT: the same after something could not be written; a full disk is
# the reason that programs tell least clearly. Some take back what they were writing (uv, a package
# a core), so a disk counts as full before the last byte.
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

# note TEXT: tell something that is no error.
note() {
  print_messages note "$1"
}

# step NUMBER/COUNT TEXT: say what is done now, and remember it for an interruption.
step() {
  local REPLY
  current_step="step $1, $2"
  paint 2 "[$1] $2"
  printf '%s\n' "$REPLY" >&2
}

# on_interrupt COMMAND: after Ctrl-C name the step and the command that resumes. SIGHUP too: without a trap,
# bash can end without its EXIT trap, and leave its locks.
on_interrupt() {
  interrupted_command=$1
  trap 'trap - INT TERM HUP
        printf "\n" >&2
        print_messages error "interrupted ${current_step:+in }${current_step:-before the first step}" \
          hint "no work is lost; resume with: $interrupted_command"
        exit 130' INT TERM HUP
}

# next_step COMMAND: say what to type now, unless quickstart.sh runs it.
next_step() {
  [[ -n ${LONGSHIP_QUICKSTART:-} ]] || print_messages next "$1"
}

# ---------- lib/script/progress.bash

# with_progress FROM TO PROGRAM...: run a program that reads the file FROM as its standard input or, if TO is not empty,
# writes it to the file TO.
with_progress() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:3}"
    return
  fi
  # the end of the program, also of this script, is the end of what file 4 leads to
  {
    "${@:3}" 3<&- 4>&- || code=$?
  } 3<&0 4> >(show_position "$1" "$2")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# show_position FROM TO: show the size of TO, else the position in file 3, until standard input ends.
show_position() {
  local key place bytes of status
  bytes=$(stat -L -c %s -- "$1")
  human "$bytes"
  of=$REPLY
  while status=0 && { read -r -t 0.5 || status=$?; } && ((status > 128)); do
    place=0
    if [[ -n $2 ]]; then
      place=$(stat -c %s -- "$2" 2>/dev/null) || place=0
    else
      while read -r key REPLY; do if [[ $key == pos: ]]; then place=$REPLY; fi; done </proc/self/fdinfo/3
    fi
    human "$place"
    printf '\r\e[K      %s of %s, %d %%' "$REPLY" "$of" $((place * 100 / (bytes > 0 ? bytes : 1))) >&2
  done
  printf '\r\e[K' >&2
}

# ---------- lib/script/watch.bash

# watched COMMAND...: run it, show its progress, and report a failure in two lines.
watched() {
  local -r log=$work/log
  "$@" 2>&1 </dev/null | tee -- "$log" | show_progress || explain_failure "$log" "$1"
}

# show_progress: print its messages; on a terminal only the latest, with the time and the downloaded bytes.
show_progress() {
  local line='' message='' terminal='' shown='' status
  local -r start=$SECONDS
  if [[ -t 2 ]]; then terminal=1; fi
  while :; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status > 0 && status <= 128)); then break; fi
    if ((status == 0)) && is_message "$line"; then
      message=$REPLY
      if [[ -z $terminal ]]; then printf '      %s\n' "$message" >&2; fi
    fi
    if [[ -n $terminal && $SECONDS != "$shown" ]]; then
      shown=$SECONDS
      human "$(du -s -B1 -- "$work/cache" "$partial" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')"
      printf '\r\e[K      %.54s  %d s, %s' "$message" "$((SECONDS - start))" "$REPLY" >&2
    fi
  done
  if [[ -n $terminal ]]; then printf '\r\e[K' >&2; fi
}

# is_message LINE: whether it shows progress; set REPLY to it.
is_message() {
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

# human BYTES: set REPLY to the size with a unit, such as 9.4 GB.
human() {
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

# explain_failure LOG PROGRAM: stop, with the cause and the fix if the log shows them.
explain_failure() {
  local text
  text=$(<"$1")
  local -r program=$2 said=${text,,}
  if [[ $said == *'no space left on device'* || $said == *'disk quota exceeded'* ]]; then
    fail "$source: No space left on device" \
      'free some space, or set [paths] in configuration.toml; then run the command again'
  fi
  if [[ -z $input || $input == *.tar ]]; then
    explain_source "$said" "$program"
  elif [[ $said == *'user namespace'* || $said == *newuidmap* || $said == *fakeroot* ]]; then
    tail -n 5 -- "$1" >&2
    fail "building from $source is not allowed on this machine" "$build_hint"
  fi
  tail -n 30 -- "$1" >&2
  fail_writing "$work" "$program cannot build an image from $source" 'see the output above'
}

# explain_source TEXT PROGRAM: stop if the text, in lower case, shows what is wrong with the source.
explain_source() {
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
      fail "$host: rate limit reached for anonymous pulls" "$(login_command "$2" "$host")"
      ;;
    *unauthorized* | *'authentication required'* | *'access denied'* | *'access to the resource is denied'* | *'no basic auth'*)
      fail "$host requires a login, or does not have $source" "$(login_command "$2" "$host")"
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

# login_command PROGRAM HOST: print the hint that gives the program a login for the registry.
login_command() {
  case $1 in
    apptainer | singularity) printf 'run: %s registry login --username NAME docker://%s' "$1" "$2" ;;
    enroot) printf 'add a line to %s: machine %s login NAME password ...' "\$ENROOT_CONFIG_PATH/.credentials" "$2" ;;
    *) printf 'run: %s login %s' "$1" "$2" ;;
  esac
}

longship_main "$@"
