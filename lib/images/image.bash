# shellcheck shell=bash
# An image as a file: a SIF, a SquashFS file for enroot, a docker archive, or a text with a tag in the store of
# an engine (docker or podman); and the record next to it, as JSON:
#
#   source, digest      where it comes from, and the digest at that time
#   sha256, bytes, modified     of the file, to notice changes
#   architecture        amd64 or arm64
#   date, host, tools   when, where and with which programs it was built
#   script              the whole script that built it

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

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

# image_reference FILE: print what a runtime starts: the file itself, or the tag that it contains.
image_reference() {
  if engine_has_tag "$1"; then engine_tag_in "$1"; else printf '%s' "$1"; fi
}

# image_exec IMAGE COMMAND...: run a command in the image, without binds or environment.
image_exec() {
  case $runtime in
    docker | podman) "$runtime" run --rm --network=none --pull=never --entrypoint= "$@" ;;
    enroot) env NVIDIA_VISIBLE_DEVICES=void enroot start --rc "$LIBRARY/runtimes/inside/enroot.rc" "$@" ;;
    *) "$runtime" --quiet exec "$@" ;;
  esac
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
