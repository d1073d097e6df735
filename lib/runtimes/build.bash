# shellcheck shell=bash
# The build of an image: its state, and the programs that take part: their progress and failures.

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

# The build of this script:
#   image, active       the file that is built, and the active image; none for an archive
#   source, address     where it comes from, as configured and recorded, and the same at the
#                       required digest
#   kind, file          kind of the source (lib/runtimes/image.py), and its path if it is a file or
#                       an archive
#   archive             the archive if the image is built from one
#   required, digest    the digest that the source must have, empty for any, and the one that it has
#   hint, next          the hint if this machine cannot build, and the command to run after the
#                       build
#   login               the hint that gives the program a login for the registry HOST
#   work, tmp, partial  directory of everything that the build needs, its temporary files, and the
#                       unfinished image
# shellcheck disable=SC2034  # lib/images/build.bash and the runtimes use it
declare -g build_image='' build_active='' build_source='' build_address='' build_kind='' build_file='' \
  build_archive='' build_required='' build_digest='' build_hint='' build_next='' build_work='' build_tmp='' \
  build_partial='' build_login=''

# shellcheck disable=SC2034
declare -ga build_tools=() # the programs that take part

# build_fail LOG PROGRAM SOURCE FILE HINT: show what the program said, and stop. FILE is the source
# if it is a file; HINT is for a machine that cannot build from it. This is the only table of other
# programs' messages: each has the reason in its own words, and some do not say what to type.
build_fail() {
  local text host=${3#*://} login=${build_login:-run: $2 login HOST}
  local hint='see the output above, and check container.image in configuration.toml'
  host=${host%%/*}
  if [[ $host != *[.:]* && $host != localhost ]]; then host=docker.io; fi
  text=$(<"$1")
  case ${text,,} in
    *'no space left on device'* | *'disk quota exceeded'*)
      hint='free some space, or set [paths] in configuration.toml; then run the command again'
      ;;
    *'docker daemon'* | *'daemon socket'*) hint='docker does not answer, run: docker version' ;;
    *unauthorized* | *toomanyrequests* | *'authentication required'* | *denied* | *'no basic auth'*)
      hint+="; to log in: ${login//HOST/$host}"
      ;;
    *'no such host'* | *'could not resolve'* | *'network is unreachable'* | *'connection refused'* | \
      *'i/o timeout'* | *'no route to host'* | *'name resolution'*)
      hint="on a machine with network access, run: python3 build_container.py download \
--machine $machine; then on this machine: python3 build_container.py offline"
      ;;
    *'user namespace'* | *newuidmap* | *fakeroot*) hint="${5:-$hint}" ;;
  esac
  tail -n 30 -- "$1" >&2
  fail_writing "${1%/*}" "$2 cannot build an image from $3" "$hint"
}

# build_run COMMAND...: run a program of the build, show its progress, and stop if it fails.
build_run() {
  local -r log=$build_work/log
  "$@" 2>&1 </dev/null | tee -- "$log" | progress_show "$build_work/cache" "$build_partial" ||
    build_fail "$log" "$1" "$build_source" "$build_file" "$build_hint"
}

# image_copy FROM TO: copy it, because a site can replace its images at any time.
image_copy() {
  progress_run "$2" cp --reflink=auto -- "$1" "$2" ||
    fail_writing "${2%/*}" "cannot copy $1 to $2" 'see the error above'
}

# address_strip_tag NAME: print it without its tag or digest.
address_strip_tag() {
  local -r last=${1##*[/#]}
  printf '%s%s' "${1%"$last"}" "${last%%[:@]*}"
}

# program_version PROGRAM: print it in one line.
program_version() {
  local text
  text=$("$1" --version 2>/dev/null) || text="$1 version $("$1" version 2>/dev/null)" || :
  printf '%s' "${text%%$'\n'*}"
}
