# shellcheck shell=bash
# An image as a file: a SIF, a SquashFS of enroot's, one of docker's archives, or the name of a tag
# in the store of docker or podman; and the record beside it, as JSON:
#
#   source, digest      where it comes from, and what that was then
#   sha256, bytes, modified     the file; whether it still is that
#   architecture        amd64 or arm64
#   date, host, tools   when, where and by what it was made
#   script              the whole script that made it

declare -g WRITTEN_TO='it was written to after it was built'

# holds_tag FILE: whether it names a tag, and of which program: set REPLY to it.
holds_tag() {
  REPLY=${1##*.}
  [[ $REPLY == docker || $REPLY == podman ]]
}

# tag_in FILE: the tag that it names.
tag_in() {
  local tag=
  if [[ -f $1 ]]; then IFS= read -r tag <"$1" || :; fi
  printf '%s' "$tag"
}

# startable FILE: what a runtime is told to start: the file itself, or the tag that it names.
startable() {
  if holds_tag "$1"; then tag_in "$1"; else printf '%s' "$1"; fi
}

# image_exists FILE: whether the image is there.
image_exists() {
  [[ -f $1 ]] || return 1
  if holds_tag "$1"; then "$REPLY" image inspect "$(tag_in "$1")" >/dev/null 2>&1; fi
}

# delete_image FILE: with its tag, if it names one; false if that is in use.
delete_image() {
  if holds_tag "$1" && image_exists "$1"; then
    "$REPLY" rmi "$(tag_in "$1")" >/dev/null 2>&1 || return 1
  fi
  rm -f -- "$1"
}

# check_image FILE ARCH HINT: stop where it is incomplete, no image, or for another architecture.
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
      unsquashfs -s "$1" >/dev/null 2>&1 || fail "the image $1 is not complete" "$3"
      found=$(sqsh_arch "$1")
      # older unsquashfs shows no file
      [[ -z $found || $found == "$2" ]] || fail "the image $1 is for $found, and $2 is needed" "$3"
      ;;
    *.tar)
      found=$(archive_arch "$1")
      [[ -n $found ]] || fail "$1 is no complete archive of an image" "$3"
      [[ $found == "$2" ]] || fail "the archive $1 is for $found, and $2 is needed" "$3"
      ;;
  esac
}

# archive_arch FILE: the architecture of the image in a tar file of docker's or the OCI's layout;
# nothing where there is none.
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

# member_of TAR NAME: the content of a file in it.
member_of() {
  tar -xOf "$1" "$2" 2>/dev/null || tar -xOf "$1" "./$2" 2>/dev/null
}

# blob_named_in JSON: the path of the first blob that an OCI document names.
blob_named_in() {
  local digest
  digest=$(grep -o 'sha256:[0-9a-f]*' <<<"$1" | head -n 1) || :
  printf 'blobs/sha256/%s' "${digest#sha256:}"
}

# checksum FILE: its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the line above'
  printf 'sha256:%s' "${sum%% *}"
}

# image_checksum FILE: the checksum of the image; its id where docker or podman has it.
image_checksum() {
  local id
  if holds_tag "$1"; then
    id=$("$REPLY" image inspect --format '{{.Id}}' "$(tag_in "$1")")
    printf 'sha256:%s' "${id#sha256:}"
  else
    checksum "$1"
  fi
}

# image_bytes FILE: the size of the image.
image_bytes() {
  if holds_tag "$1"; then
    "$REPLY" image inspect --format '{{.Size}}' "$(tag_in "$1")"
  else
    stat -c %s -- "$1"
  fi
}

# image_mark FILE: what changes when the file is written to; not when it is renamed.
image_mark() {
  stat -L -c '%s %.9Y' -- "$1"
}

# is_record FILE: whether it is complete: the brace that ends it is its last line.
is_record() {
  local -a lines=()
  { mapfile -t lines <"$1"; } 2>/dev/null || return 1
  ((${#lines[@]} > 1)) && [[ ${lines[-1]} == '}' ]]
}

# image_damage FILE: set REPLY to how an image differs from its record, without its checksum, which would
# take minutes; empty where it does not. One that was put there by other means has no record.
image_damage() {
  local bytes
  REPLY=
  if [[ $1 == *_unrecorded.* ]]; then return; fi
  if ! is_record "$1.json"; then
    REPLY='its record is missing or damaged'
  elif ! image_exists "$1"; then
    REPLY='it is missing'
  elif ! holds_tag "$1"; then
    bytes=$(stat -L -c %s -- "$1")
    record_value "$1.json" bytes
    if [[ $bytes != "$REPLY" ]]; then
      REPLY="it has $bytes bytes, and ${REPLY:-none} are recorded"
      return
    fi
    record_value "$1.json" modified
    if [[ $(image_mark "$1") == "$REPLY" ]]; then REPLY=; else REPLY=$WRITTEN_TO; fi
  else
    REPLY=
  fi
}

# is_as_recorded FILE: whether an image is what was built; if not, set REPLY to how it differs. The checksum
# is computed again only if the file has been written to or copied.
is_as_recorded() {
  local sum
  image_damage "$1"
  if [[ -z $REPLY || $REPLY == "$WRITTEN_TO" ]] && [[ $1 != *_unrecorded.* ]]; then
    if [[ -z $REPLY ]] && ! holds_tag "$1"; then return; fi
    sum=$(image_checksum "$1") || exit
    record_value "$1.json" sha256
    if [[ $sum == "$REPLY" ]]; then
      renew_mark "$1"
      return
    fi
    REPLY="its checksum is $sum, and ${REPLY:-none} is recorded"
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
  } >"$1" || fail_writing "${1%/*}" "cannot write $1" 'see the line above'
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
