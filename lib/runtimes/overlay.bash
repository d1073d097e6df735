# shellcheck shell=bash disable=SC2154,SC2034  # set or used by the emitted script
# The overlay of a launch: the file with the Python packages, mounted at /user-software. If the runtime is
# apptainer and the overlay exists, no function here starts a process: each rank of a job runs them.
# The emitted script sets: overlay, the file; `base` in its record names the image that it was built on.

readonly longship_overlay_folder=/user-software

# the lines of the record, read once: each rank does this on the shared file system
declare -ga overlay_record=()

# check_overlay BASE: fail if the overlay is missing or was built for another image.
check_overlay() {
  local -r rebuild='run: python3 build_overlay.py'
  { mapfile -t overlay_record <"$overlay.json"; } 2>/dev/null || missing_overlay "$rebuild"
  local bases
  [[ ${overlay_record[*]: -1} == '}' ]] ||
    fail "the record of the overlay is damaged: $overlay.json" "$rebuild"
  value_in base "${overlay_record[@]}"
  bases=$REPLY
  if ! is_base "$1" "$bases"; then
    value_in python "${overlay_record[@]}"
    fail "overlay $overlay was built for ${bases//'\n'/, } with Python $REPLY, not for $1" "$rebuild"
  fi
  [[ $1 == host || ! $1 -nt $overlay.json ]] ||
    fail "image $1 is newer than the overlay $overlay" "$rebuild"
  # without an image, the machine's own Python can have been replaced
  [[ $1 != host ]] || check_overlay_python "$rebuild"
}

# is_base IMAGE BASES: whether it is one of the images in a record, in JSON.
is_base() {
  json_text "$1"
  [[ "\\n$2\\n" == *"\\n$REPLY\\n"* ]]
}

# missing_overlay HINT: fail, with the reason why the record cannot be read.
missing_overlay() {
  if [[ -e $overlay && -e $overlay.json ]]; then
    fail "cannot read the overlay $overlay" \
      "ask its owner to run: chmod a+r $(printf '%q %q' "$overlay" "$overlay.json")"
  fi
  if [[ -e $overlay ]]; then
    fail "overlay $overlay has no record" "$1"
  fi
  fail "overlay not found: $overlay" "$1"
}

# check_overlay_python HINT: fail if the host's Python has changed since the overlay was built.
check_overlay_python() {
  local found
  value_in interpreter "${overlay_record[@]}"
  found=$("$REPLY" -c 'import platform; print(platform.python_version())' 2>/dev/null) || found=none
  value_in python "${overlay_record[@]}"
  [[ $found == "$REPLY" ]] ||
    fail "overlay $overlay was built for Python $REPLY, but this machine has $found" "$1"
}

# mount_overlay: let Apptainer mount it, with the method that worked when it was built.
mount_overlay() {
  value_in mounted_by "${overlay_record[@]}"
  add_overlay_file "$overlay" "$REPLY"
}

# add_overlay_file FILE METHOD: bind the file if that works, else lay it over the whole image.
add_overlay_file() {
  if [[ $2 == overlay ]]; then
    options+=(--overlay "$1:ro")
  else
    options+=(--mount
      "type=bind,\"src=${1//\"/\"\"}\",dst=$longship_overlay_folder,image-src=/,ro")
  fi
}

# bind_unpacked_overlay: for runtimes that cannot mount SquashFS files.
bind_unpacked_overlay() {
  unpack_overlay
  add_bind "$REPLY" "$longship_overlay_folder" ro
}

# unpack_overlay: unpack it once on this file system; set REPLY to the directory.
unpack_overlay() {
  unpacked_folder "$overlay"
  if [[ ! -e $REPLY/longship-overlay.json ]]; then
    make_folders "${REPLY%/*}"
    locked "$REPLY" unpack_overlay_to "$REPLY"
    unpacked_folder "$overlay"
  fi
}

# unpacked_folder FILE: set REPLY to the directory that it is unpacked to.
unpacked_folder() {
  local name=${1##*/}
  REPLY=${1%/*}
  REPLY=${REPLY%/*}/unpacked/${name%.sqsh}
}

# unpack_overlay_to DIR: the lock is held.
unpack_overlay_to() {
  local -a quiet=(-no-progress)
  local said
  if [[ -e $1/longship-overlay.json ]]; then return; fi # somebody else has done it meanwhile
  command -v unsquashfs >/dev/null ||
    fail 'unsquashfs not found; it unpacks the overlay' 'install squashfs-tools, or load its module'
  note "unpacking $overlay (once)"
  rm -rf -- "$1" "$1.partial"
  if [[ -t 2 ]]; then quiet=(); fi
  { said=$(unsquashfs ${quiet[@]+"${quiet[@]}"} -dest "$1.partial" "$overlay" 2>&1 >&3); } 3>&2 || {
    rm -rf -- "$1.partial"
    printf '%s\n' "$said" | tail -n 5 >&2
    fail_writing "${1%/*}" "cannot unpack $overlay" "read unsquashfs's output above"
  }
  mv -T -- "$1.partial" "$1"
}

# note_use: record the last use, for --list and --prune; not for the ranks of a job.
note_use() {
  { : >"$overlay.used"; } 2>/dev/null || :
}
