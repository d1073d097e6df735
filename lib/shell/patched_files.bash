# shellcheck shell=bash disable=SC2154  # the emitted script defines start_in IMAGE COMMAND...
# Single files of ours in place of the image's own. The original that a file was made from is kept
# beside it as FILE.original, for the group to commit: so a new image with another original is noticed,
# and the change can be merged into it.

# add_patched_file OURS TARGET: show our file inside, read-only, in place of the image's own.
add_patched_file() {
  [[ -f $1 ]] || fail "there is no file $1 to put in place of the image's $2" \
    "make it, or take it out of container.patched_files in configuration.toml"
  add_bind "$1" "$2" ro
}

# check_patched_files IMAGE [OURS TARGET]...: warn where IMAGE has another original than the one that
# ours was made from, or none. No launch waits for this: it is for when an image is put in use.
check_patched_files() {
  local -r image=$1
  shift
  while (($#)); do
    check_patched_file "$image" "$1" "$2"
    shift 2
  done
}

# check_patched_file IMAGE OURS TARGET: the same for one file.
check_patched_file() {
  local -r image=$1 ours=$2 target=$3
  local found='' own
  [[ -f $ours ]] || fail "there is no file $ours to put in place of the image's $target" \
    'make it, or take it out of container.patched_files in configuration.toml'
  own=$(mktemp) || fail_writing "${TMPDIR:-/tmp}" 'cannot make a temporary file' 'see the line above'
  # shellcheck disable=SC2016  # expanded inside
  start_in "$image" /bin/sh -c 'if [ -f "$1" ]; then echo there; cat -- "$1"; else echo missing; fi' \
    sh "$target" >"$own" 2>/dev/null </dev/null || printf 'failed\n' >"$own"
  IFS= read -r found <"$own" || :
  case $found in
    there) compare_original "$image" "$ours" "$target" "$own" ;;
    missing)
      warn_of "the image $image has no file $target, which $ours is to replace" \
        'correct its path, or take it out of container.patched_files in configuration.toml'
      ;;
    *) note "the image's own $target cannot be compared here: $image does not start" ;;
  esac
  rm -f -- "$own"
}

# compare_original IMAGE OURS TARGET OWN: with OWN, which holds the image's file behind its first line.
compare_original() {
  local -r image=$1 ours=$2 target=$3 own=$4
  local -r original=$ours.original new=$ours.new
  if [[ ! -e $original ]]; then
    if keep_original "$own" "$original"; then
      note "the image's own $target is kept as $original; commit it with your change"
    fi
  elif tail -n +2 -- "$own" | cmp -s -- - "$original"; then
    rm -f -- "$new" 2>/dev/null || :
  else
    keep_original "$own" "$new" || :
    warn_of "$target is another one in the image $image than the one that $ours was made from" \
      "$(merge_command "$ours" "$original" "$new")"
  fi
}

# keep_original OWN FILE: under its final name when it is complete. A clone that this user cannot write
# to is no reason to stop.
keep_original() {
  if tail -n +2 -- "$1" 2>/dev/null >"$2.partial" && mv -f -- "$2.partial" "$2" 2>/dev/null; then
    return
  fi
  rm -f -- "$2.partial" 2>/dev/null || :
  warn_of "the image's own file cannot be kept as $2" \
    "make room in its folder, or let you write there: $(printf '%q' "${2%/*}")"
  return 1
}

# merge_command OURS ORIGINAL NEW: what takes the image's changes over into our file.
merge_command() {
  local ours original new
  printf -v ours '%q' "$1"
  printf -v original '%q' "$2"
  printf -v new '%q' "$3"
  printf 'see diff -u %s %s; to take it over: git merge-file %s %s %s && mv %s %s' \
    "$original" "$new" "$ours" "$original" "$new" "$new" "$original"
}
