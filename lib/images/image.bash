# shellcheck shell=bash
# An image as a file: a SIF, a docker archive, what another runtime starts, or a text that names an
# image in its store; and the record next to it, as JSON:
#
#   source, digest      where it comes from, and the digest at that time
#   sha256, bytes, modified     of the file, to notice changes
#   architecture        amd64 or arm64
#   date, host, tools   when, where and with which programs it was built
#   script              the whole script that built it

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

declare -g image_written_to='modified after it was built'

# image_is_stored FILE: whether it only names an image, which is in a store of the runtime.
image_is_stored() {
  [[ $(image_reference "$1") != "$1" ]]
}

# image_check FILE ARCH HINT: stop if it is incomplete, not an image, or for another architecture.
image_check() {
  local found
  case $1 in
    *.tar)
      found=$(archive_arch "$1")
      [[ -n $found ]] || fail "not a complete image archive: $1" "$3"
      [[ $found == "$2" ]] || fail "archive $1 has the wrong architecture: $found, expected $2" "$3"
      ;;
    *.sif) sif_check "$@" ;;
    *) image_ask check "$@" ;;
  esac
}

# archive_arch FILE: print the architecture of the image in a tar file of docker's or the OCI's
# layout; nothing where there is none.
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

# image_fingerprint FILE: print what changes when the file is written to, but not when it is
# renamed.
image_fingerprint() {
  stat -L -c '%s %.9Y' -- "$1"
}

# image_damage FILE: set REPLY to how an image differs from its record, or to nothing; the checksum
# is not computed, as that can take minutes. An image that Longship did not build can have no
# record.
image_damage() {
  local bytes
  REPLY=
  if [[ $1 == *_unrecorded.* && ! -e $1.json ]]; then return; fi
  if ! record_is_complete "$1.json"; then
    REPLY='the record is missing or damaged'
  elif ! image_ask exists "$1"; then
    REPLY='the image is missing'
  elif ! image_is_stored "$1"; then
    bytes=$(stat -L -c %s -- "$1")
    record_value "$1.json" bytes
    if [[ $bytes != "$REPLY" ]]; then
      REPLY="$bytes bytes, recorded: ${REPLY:-none}"
      return
    fi
    record_value "$1.json" modified
    if [[ $(image_fingerprint "$1") == "$REPLY" ]]; then REPLY=; else REPLY=$image_written_to; fi
  fi
}

# image_matches_record FILE [always]: whether an image is what was built; if not, set REPLY to how
# it differs. The checksum is computed again if the file has been written to or copied, or `always`.
image_matches_record() {
  local sum
  image_damage "$1"
  if [[ -z $REPLY || $REPLY == "$image_written_to" ]] && [[ -e $1.json ]]; then
    if [[ -z $REPLY && ${2:-} != always ]] && ! image_is_stored "$1"; then return; fi
    sum=$(image_ask checksum "$1") || exit
    record_value "$1.json" sha256
    if [[ $sum == "$REPLY" ]]; then
      if image_is_stored "$1"; then return; fi
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
