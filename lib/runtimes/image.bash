# shellcheck shell=bash
# What a runtime knows of its images.

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

# image_check_readable FILE HINT: stop if the image is missing or cannot be read.
image_check_readable() {
  [[ -e $1 ]] || fail "image not found: $1" "$2"
  [[ -r $1 ]] || fail "cannot read the image $1" "ask its owner to run: chmod a+r $(printf %q "$1")"
}

# sqsh_check FILE HINT: stop if the image is missing or not an image. Its architecture is checked at
# the build: that takes too long for each launch.
sqsh_check() {
  local magic=''
  image_check_readable "$1" "$2"
  IFS= read -r -n 4 magic <"$1" 2>/dev/null || :
  [[ $magic == hsqs ]] || fail "not a SquashFS image: $1" "$2"
}

# image_ask QUESTION FILE [ARGUMENT]...: ask the runtime about an image:
#   exists FILE                 whether it exists
#   check FILE ARCH HINT        stop if it is incomplete, not an image, or for another architecture
#   delete FILE                 delete it; false if something uses it
#   checksum FILE, bytes FILE   print its checksum, or its id in a store, and its size
#   reference FILE              print what the runtime starts
#   exec REFERENCE COMMAND...   run a command in it, without binds or environment
#   identify REFERENCE          print what is the same for everybody who has this image
# The plan defines another one for the runtime: answer_lines in runtime.py.
# shellcheck disable=SC2329
image_ask() {
  image_file "$@"
}

# image_file QUESTION FILE: the answers for an image that is a file.
image_file() {
  case $1 in
    exists) [[ -f $2 ]] ;;
    delete) rm -f -- "$2" ;;
    checksum) file_checksum "$2" ;;
    bytes) stat -c %s -- "$2" ;;
    reference) printf '%s' "$2" ;;
  esac
}

# image_reference FILE: print what a runtime starts: the file itself, or what it names.
image_reference() {
  image_ask reference "$1"
}
