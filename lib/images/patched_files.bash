# shellcheck shell=bash
# Patched files, which replace single files of the image. The original of a patched file is kept next to it as
# FILE.original, for the group to commit: then a new image with another original is noticed, and the change can be
# merged into it.

# patched_file_check IMAGE OURS TARGET: warn if IMAGE has another original than the one that ours was made from, or none.
# No launch waits for this: it runs when an image is activated.
patched_file_check() {
  local -r image=$1 ours=$2 target=$3
  local found='' own
  [[ -f $ours ]] || fail "file not found: $ours, which replaces $target of the image" \
    'create it, or remove it from container.patched_files in configuration.toml'
  own=$(mktemp) || fail_writing "${TMPDIR:-/tmp}" 'cannot create a temporary file' 'see the error above'
  # shellcheck disable=SC2016  # expanded inside
  image_ask exec "$image" /bin/sh -c 'if [ -f "$1" ]; then echo there; cat -- "$1"; else echo missing; fi' \
    sh "$target" >"$own" 2>/dev/null </dev/null || printf 'failed\n' >"$own"
  IFS= read -r found <"$own" || :
  case $found in
    there) patched_file_compare "$image" "$ours" "$target" "$own" ;;
    missing)
      warn_of "image $image has no file $target, which $ours replaces" \
        'correct the path, or remove it from container.patched_files in configuration.toml'
      ;;
    *) note "the image's own $target was not compared: image $image does not start" ;;
  esac
  rm -f -- "$own"
}

# patched_file_compare IMAGE OURS TARGET OWN: with OWN, which contains the image's file after its first line.
patched_file_compare() {
  local -r image=$1 ours=$2 target=$3 own=$4
  local -r original=$ours.original new=$ours.new
  local merge
  if [[ ! -e $original ]]; then
    if patched_file_keep "$own" "$original"; then
      note "saved the image's own $target as $original; commit it with your change"
    fi
  elif tail -n +2 -- "$own" | cmp -s -- - "$original"; then
    rm -f -- "$new" 2>/dev/null || :
  else
    patched_file_keep "$own" "$new" || :
    printf -v merge 'compare: diff -u %q %q; to merge: git merge-file %q %q %q && mv %q %q' \
      "$original" "$new" "$ours" "$original" "$new" "$new" "$original"
    warn_of "image $image has another $target than the one that $ours was made from" "$merge"
  fi
}

# patched_file_keep OWN FILE: save it, under its final name when it is complete. A clone that this user cannot write to is
# not a reason to stop.
patched_file_keep() {
  if tail -n +2 -- "$1" 2>/dev/null >"$2.partial" && mv -f -- "$2.partial" "$2" 2>/dev/null; then
    return
  fi
  rm -f -- "$2.partial" 2>/dev/null || :
  warn_of "cannot save the image's own file as $2" \
    "free some space, or make its directory writable: $(printf '%q' "${2%/*}")"
  return 1
}
