# shellcheck shell=bash
# The overlay of a launch: FILE contains the Python packages, which are mounted at TARGET. If the
# runtime is apptainer and the overlay exists, no function here starts a process, except
# file_read_ahead in the first rank of a node: each rank of a job runs them.

# the lines of the record, read once: each rank does this on the shared file system
declare -ga overlay_record=()

# overlay_check FILE BASE STACK: fail if the overlay is missing or was built for another image than
# BASE.
overlay_check() {
  local -r rebuild="run: python3 build_overlay.py --stack $3"
  { mapfile -t overlay_record <"$1.json"; } 2>/dev/null ||
    fail "overlay not found, or its record: $1" \
      "$rebuild; or, if it is there, ask its owner to run: chmod a+r $(printf '%q %q' "$1" "$1.json")"
  local bases
  [[ ${overlay_record[*]: -1} == '}' ]] ||
    fail "the record of the overlay is damaged: $1.json" "$rebuild"
  record_find base "${overlay_record[@]}"
  bases=$REPLY
  if ! overlay_has_base "$2" "$bases"; then
    record_find python "${overlay_record[@]}"
    fail "overlay $1 was built for ${bases//'\n'/, } with Python $REPLY, not for $2" "$rebuild"
  fi
  [[ $2 == host || ! $2 -nt $1.json ]] || fail "image $2 is newer than the overlay $1" "$rebuild"
  # without an image, the machine's own Python can have been replaced
  [[ $2 != host ]] || overlay_check_python "$1" "$rebuild"
}

# overlay_has_base IMAGE BASES: whether it is one of the images in a record, in JSON.
overlay_has_base() {
  json_text "$1"
  [[ "\\n$2\\n" == *"\\n$REPLY\\n"* ]]
}

# overlay_check_python FILE HINT: fail if the host's Python has changed since the overlay was built.
overlay_check_python() {
  local found
  record_find interpreter "${overlay_record[@]}"
  found=$("$REPLY" -I -c 'import platform; print(platform.python_version())' 2>/dev/null) || found=none
  record_find python "${overlay_record[@]}"
  [[ $found == "$REPLY" ]] ||
    fail "overlay $1 was built for Python $REPLY, but this machine has $found" "$2"
}

# overlay_mount FILE TARGET IMAGE: let Apptainer mount it on the image, with the method that worked
# when it was built.
overlay_mount() {
  record_find mounted_by "${overlay_record[@]}"
  overlay_add_file "$1" "$2" "$REPLY"
  # what one rank of a node has read, the others find in memory
  if [[ ${SLURM_LOCALID:-0} != 0 || ${LONGSHIP_READ_AHEAD:-1} == 0 ]]; then return; fi
  record_find overlay_reads "${overlay_record[@]}"
  file_read_ahead "$1" "$REPLY"
  record_find image_reads "${overlay_record[@]}"
  file_read_ahead "$3" "$REPLY"
}

# file_read_ahead FILE PARTS: read parts of a file into the node's memory, all at once and in the
# background; PARTS are the options of a dd for each. A program reads one part after the other, and
# a parallel file system can answer late. If all is in memory already this is for nothing, so the
# program comes first (nice).
file_read_ahead() {
  local -r only='^(skip=[0-9]+ count=[0-9]+ ?)+$' # nothing else: dd can write too
  [[ $2 =~ $only ]] || return 0
  # a grandchild: the runtime, which takes the place of this bash, has no child that it does not
  # know
  (printf '%s' "$2" | nice -n 19 xargs -n 2 -P 32 dd if="$1" bs=1M iflag=skip_bytes,count_bytes of=/dev/null &>/dev/null &)
}

# overlay_add_file FILE TARGET METHOD: bind the file if that works, else lay it over the whole
# image.
overlay_add_file() {
  if [[ $3 == overlay ]]; then
    options+=(--overlay "$1:ro")
  else
    options+=(--mount "type=bind,\"src=${1//\"/\"\"}\",dst=$2,image-src=/,ro")
  fi
}

# overlay_bind_unpacked FILE TARGET: for runtimes that cannot mount SquashFS files.
overlay_bind_unpacked() {
  overlay_unpack "$1"
  bind_add "$REPLY" "$2" ro
}

# overlay_unpack FILE: unpack it once on this file system; set REPLY to the directory.
overlay_unpack() {
  overlay_unpacked_directory "$1"
  if [[ ! -e $REPLY/longship-overlay.json ]]; then
    directory_make "${REPLY%/*}"
    lock_run "$REPLY" overlay_unpack_to "$1" "$REPLY"
    overlay_unpacked_directory "$1"
  fi
}

# overlay_unpacked_directory FILE: set REPLY to the directory that it is unpacked to.
overlay_unpacked_directory() {
  local name=${1##*/}
  REPLY=${1%/*}
  REPLY=${REPLY%/*}/unpacked/${name%.sqsh}
}

# overlay_unpack_to FILE DIR: the lock is held.
overlay_unpack_to() {
  local -a quiet=(-no-progress)
  local output
  if [[ -e $2/longship-overlay.json ]]; then return; fi # another process has unpacked it meanwhile
  command -v unsquashfs >/dev/null ||
    fail 'unsquashfs not found; it unpacks the overlay' 'install squashfs-tools, or load its module'
  note "unpacking $1 (once)"
  rm -rf -- "$2" "$2.partial"
  if [[ -t 2 ]]; then quiet=(); fi
  { output=$(unsquashfs ${quiet[@]+"${quiet[@]}"} -dest "$2.partial" "$1" 2>&1 >&3); } 3>&2 || {
    rm -rf -- "$2.partial"
    printf '%s\n' "$output" | tail -n 5 >&2
    fail_writing "${2%/*}" "cannot unpack $1" "read unsquashfs's output above"
  }
  # a site that deletes old files would begin with these; without this list they were compiled for
  # the time that they have
  if [[ -e $2.partial/longship-files ]]; then find "$2.partial" -exec touch -h -- {} +; fi
  mv -T -- "$2.partial" "$2"
}

# overlay_record_use FILE: record the last use, for --list; not for the ranks of a job.
overlay_record_use() {
  (umask 022 && : >"$1.used") 2>/dev/null || :
}
