# shellcheck shell=bash disable=SC2154,SC2034  # set or used by the emitted script
# The overlay of a launch: the file with the Python packages, shown inside at /user-software. No
# function here starts a process where the runtime is apptainer and the overlay is there: it runs
# once for every rank of a job.
# The emitted script sets: overlay, the file; `base` in the record beside it names the image that it
# was built on.

readonly longship_overlay_folder=/user-software

# the record's lines, read once: a rank asks the shared file system as little as it can
declare -ga overlay_record=()

# check_overlay BASE: stop where the overlay is missing or belongs to another image.
check_overlay() {
  { mapfile -t overlay_record <"$overlay.json"; } 2>/dev/null || missing_overlay
  local bases
  [[ ${overlay_record[*]: -1} == '}' ]] ||
    fail "the record of the overlay is damaged: $overlay.json" 'python3 build_overlay.py'
  value_in base "${overlay_record[@]}"
  bases=$REPLY
  if ! is_base "$1" "$bases"; then
    value_in python "${overlay_record[@]}"
    fail "the overlay $overlay belongs to ${bases//'\n'/, } with Python $REPLY, not to $1" \
      'python3 build_overlay.py'
  fi
  [[ $1 == host || ! $1 -nt $overlay.json ]] ||
    fail "the image $1 is newer than the overlay $overlay" 'python3 build_overlay.py'
  # without an image it is the machine's own Python that may have been replaced
  [[ $1 != host ]] || check_overlay_python
}

# is_base IMAGE BASES: whether it is one of those in a record, as JSON has them.
is_base() {
  json_text "$1"
  [[ "\\n$2\\n" == *"\\n$REPLY\\n"* ]]
}

# missing_overlay: say why there is none.
missing_overlay() {
  if [[ -e $overlay && -e $overlay.json ]]; then
    fail "the overlay $overlay cannot be read" \
      "ask its owner for: chmod a+r $(printf '%q %q' "$overlay" "$overlay.json")"
  fi
  if [[ -e $overlay ]]; then
    fail "the overlay $overlay was not made by Longship" 'python3 build_overlay.py, which takes it over'
  fi
  fail "there is no overlay $overlay" 'python3 build_overlay.py'
}

# check_overlay_python: stop where the host has another Python now than when it was built.
check_overlay_python() {
  local found
  value_in interpreter "${overlay_record[@]}"
  found=$("$REPLY" -c 'import platform; print(platform.python_version())' 2>/dev/null) || found=none
  value_in python "${overlay_record[@]}"
  [[ $found == "$REPLY" ]] ||
    fail "the overlay $overlay is for Python $REPLY, and this machine has $found" \
      'python3 build_overlay.py'
}

# mount_overlay: let Apptainer mount it, in the way that was found to work when it was built.
mount_overlay() {
  value_in mounted_by "${overlay_record[@]}"
  add_overlay_file "$overlay" "$REPLY"
}

# add_overlay_file FILE WAY: bind the file where that works, else lay it over the whole image.
add_overlay_file() {
  if [[ $2 == overlay ]]; then
    options+=(--overlay "$1:ro")
  else
    options+=(--mount
      "type=bind,\"src=${1//\"/\"\"}\",dst=$longship_overlay_folder,image-src=/,ro")
  fi
}

# bind_unpacked_overlay: for runtimes that mount no such file.
bind_unpacked_overlay() {
  if [[ -n ${LONGSHIP_STAGED:-} && -d $LONGSHIP_STAGED/packages ]]; then # Pyxis, in the start of a job
    REPLY=$LONGSHIP_STAGED/packages
  else
    unpack_overlay
  fi
  add_bind "$REPLY" "$longship_overlay_folder" ro
}

# unpack_overlay: unpack it once on this file system; set REPLY to where.
unpack_overlay() {
  unpacked_folder "$overlay"
  if [[ ! -e $REPLY/longship-overlay.json ]]; then
    make_folders "${REPLY%/*}"
    locked "$REPLY" unpack_overlay_to "$REPLY"
    unpacked_folder "$overlay"
  fi
}

# unpacked_folder FILE: set REPLY to the folder that it is unpacked to.
unpacked_folder() {
  local name=${1##*/}
  REPLY=${1%/*}
  REPLY=${REPLY%/*}/unpacked/${name%.sqsh}
}

# unpack_overlay_to FOLDER: the lock is held.
unpack_overlay_to() {
  local -a quiet=(-no-progress)
  local said
  if [[ -e $1/longship-overlay.json ]]; then return; fi # somebody else has done it meanwhile
  command -v unsquashfs >/dev/null ||
    fail 'unsquashfs is not on this machine, which unpacks the overlay' \
      'install squashfs-tools, or load its module'
  note "unpacking $overlay, once"
  rm -rf -- "$1" "$1.partial"
  if [[ -t 2 ]]; then quiet=(); fi
  { said=$(unsquashfs ${quiet[@]+"${quiet[@]}"} -dest "$1.partial" "$overlay" 2>&1 >&3); } 3>&2 || {
    rm -rf -- "$1.partial"
    printf '%s\n' "$said" | tail -n 5 >&2
    fail_writing "${1%/*}" "cannot unpack $overlay" 'see the lines above'
  }
  mv -T -- "$1.partial" "$1"
}

# note_use: when it was used last, for --list and --prune; not for the ranks of a job.
note_use() {
  { : >"$overlay.used"; } 2>/dev/null || :
}
