# shellcheck shell=bash
# The programs that make and read image archives, for every runtime: docker and podman build
# Dockerfiles too.

# shellcheck source=lib/runtimes/build.bash
source "${BASH_SOURCE[0]%/*}/build.bash"

# archive_choose PROGRAM...: set build_tools to the first that works on this machine.
archive_choose() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || continue
    if [[ $program != @(docker|podman) ]] || "$program" version >/dev/null 2>&1; then
      build_tools=("$program")
      return
    fi
  done
  return 1
}

# archive_build_dockerfile TAG ARCHIVE: build the Dockerfile with docker or podman, whichever works,
# as an archive.
archive_build_dockerfile() {
  local -a build_tools=() # of this step alone
  archive_choose docker podman ||
    fail "neither docker nor podman works on this machine, and $build_file requires one of them" \
      "$build_hint"
  engine_build "${build_tools[0]}" "$1-archive"
  engine_save "${build_tools[0]}" "$1-archive" "$2"
}

# engine_pull PROGRAM TAG: pull the registry's image, and give it this tag too.
engine_pull() {
  local -r name=${build_address#docker://}
  build_run "$1" pull --platform "linux/$arch" "$name"
  # shellcheck disable=SC2034  # build_end reads it
  build_digest=$(engine_pulled_digest "$1" "$name")
  "$1" tag "$name" "$2"
}

# engine_pulled_digest PROGRAM NAME: print the registry's digest of the image that docker or podman
# has pulled.
engine_pulled_digest() {
  local digest_of
  local -r name=${2##*/}
  # docker says it; what it keeps of it belongs to the first architecture that was pulled
  if digest_of=$(grep -o '^Digest: sha256:[0-9a-f]*' "$build_work/log"); then
    printf '%s' "${digest_of#Digest: }"
    return
  fi
  while IFS= read -r digest_of; do
    # docker leaves out docker.io/library/
    if [[ /$digest_of == */"${name%%[:@]*}"@* ]]; then
      printf '%s' "${digest_of##*@}"
      return
    fi
  done < <("$1" image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$2")
}

# engine_build PROGRAM TAG: build the Dockerfile; its directory is the context.
engine_build() {
  build_run "$1" build --platform "linux/$arch" --file "$build_file" --tag "$2" "${build_file%/*}"
}

# engine_check_works PROGRAM: stop if docker's daemon, or podman, does not answer.
engine_check_works() {
  "$1" version >/dev/null 2>&1 || fail "$1 is installed but does not work" "run: $1 version"
}

# engine_import PROGRAM TAG: tag an image of docker's store; podman gets it from docker first.
engine_import() {
  local -r name=${build_address#docker-daemon:}
  if [[ $1 == podman ]]; then build_run podman pull "$build_address"; fi
  "$1" tag "$name" "$2" 2>/dev/null || {
    engine_check_works "$1"
    fail "$1 has no image $name" "list its images: $1 image ls"
  }
}

# engine_load PROGRAM TAG: load a docker archive into the store, under this tag alone.
engine_load() {
  local loaded before
  before=$("$1" image ls --format '{{.Repository}}:{{.Tag}}')
  build_run "$1" load --input "$build_file"
  loaded=$(grep -o 'Loaded image.*' "$build_work/log" | tail -n 1)
  loaded=${loaded#*: }
  "$1" tag "$loaded" "$2"
  if [[ $loaded == *:* && $loaded != sha256:* ]] && ! grep -q -F -x -e "$loaded" <<<"$before"; then
    "$1" rmi "$loaded" >/dev/null
  fi
}

# engine_save PROGRAM TAG ARCHIVE: save it as an archive and remove it from the store.
engine_save() {
  build_run "$1" save --output "$3" "$2"
  "$1" rmi "$2" >/dev/null
}
