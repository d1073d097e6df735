# shellcheck shell=bash
# The record of an overlay, versions/<name>.sqsh.json: what it was built from, the images that it is
# for, and how Apptainer mounts it. A build and a foreign overlay write it; launches and lists read
# it.

# shellcheck source=lib/packages/overlay.bash
source "${BASH_SOURCE[0]%/*}/overlay.bash"
# shellcheck source=lib/packages/overlay_prune.bash
source "${BASH_SOURCE[0]%/*}/overlay_prune.bash"

# overlay_write_record IMAGE INPUTS DATE CHECKSUM [NAME VALUE]...: write the record that launches and
# lists read; its requirements are in one line, without comments.
overlay_write_record() {
  local requirements_line
  requirements_line=$(requirements_print | sed -e 's/ *#.*//' -e '/^ *$/d' | paste -s -d ' ')
  record_write "$overlay_version.json" base "$base" image "$1" python "$overlay_python" \
    interpreter "$overlay_interpreter" \
    mounted_by "${overlay_method:-unpacking}" wanted "$2" requirements "$requirements_line" "${@:5}" \
    bytes "$(stat -L -c %s -- "$overlay_version")" \
    modified "$(image_fingerprint "$overlay_version")" sha256 "$4" \
    date "$3" host "$(host_name)"
}

# overlay_add_base RECORD: add this image to those that the overlay is for; a job can run the same
# one under another name.
overlay_add_base() {
  local bases
  record_value "$1" base
  bases=$REPLY
  if ! overlay_has_base "$base" "$bases"; then
    json_text "$base"
    record_change "$1" base "$bases"'\n'"$REPLY"
  fi
  overlay_date_record "$1"
}

# overlay_date_record RECORD: make it no older than the image, see overlay_check.
overlay_date_record() {
  if [[ $base != /* || ! $base -nt $1 ]]; then return 0; fi
  touch -r "$base" -- "$1" || fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# overlay_is_built INPUTS: whether the active overlay is what would be built for this image.
overlay_is_built() {
  local found
  [[ -e $overlay_active ]] || return 1
  found=$(readlink -f -- "$overlay_active")
  record_value "$found.json" wanted
  [[ $REPLY == "$1" ]] && overlay_is_whole "$found" || return 1
  overlay_add_base "$found.json"
}

# overlay_is_whole FILE: whether it exists, unchanged since it was built.
overlay_is_whole() {
  [[ -e $1 ]] || return 1
  if image_matches_record "$1"; then return; fi
  note "$1 has changed since it was built: $REPLY"
  return 1
}

# overlay_mend_unpacked FILE: unpack it again if a file of the directory that it is unpacked to has
# disappeared, or has another size.
overlay_mend_unpacked() {
  overlay_unpacked_directory "$1"
  local -r directory=$REPLY
  if [[ ! -e $directory ]]; then return; fi
  venv_find_lost "$directory"
  if [[ -z $REPLY ]]; then return; fi
  local -r lost=$REPLY
  if store_is_pinned "$1"; then
    fail "the unpacked overlay $directory lacks $lost, and is in use: $REPLY" \
      'when that has ended, run the command again: it unpacks the overlay again'
  fi
  note "the unpacked overlay $directory lacks $lost: unpacking it again"
  lock_run "$directory" overlay_delete_unpacked "$directory"
  overlay_unpack "$1"
}
