# shellcheck shell=bash disable=SC2154,SC2034  # set or used by the emitted script
# Images for an air-gapped machine: a docker archive, or a SIF.

# choose_fetcher BASE [PROGRAM...]: set fetcher to a program that can download the source, and image and record to
# the names of the archive. PROGRAMs are those whose archive is a SIF.
choose_fetcher() {
  local program
  local -r base=$1
  shift
  for program in skopeo docker podman "$@"; do
    command -v "$program" >/dev/null || continue
    if [[ $program != docker ]] || docker version >/dev/null 2>&1; then
      fetcher=$program
      image=$base.tar
      if [[ $program == apptainer || $program == singularity ]]; then image=$base.sif; fi
      record=$image.json
      tools=("$program")
      return
    fi
  done
  fail "no program found on this machine to download $source" \
    "install one of: skopeo, docker, podman${*:+, $*}"
}

# choose_sif_builder: set fetcher to a program that can build a SIF.
choose_sif_builder() {
  for fetcher in apptainer singularity; do
    if command -v "$fetcher" >/dev/null; then
      tools=("$fetcher")
      return
    fi
  done
  fail "neither apptainer nor singularity found, and $source requires one of them" \
    'run the download on a machine that has one'
}

# fetch_archive TAG: download the registry's image for "$arch" as "$partial"; the archive calls it TAG.
fetch_archive() {
  local name=${address#docker://}
  case $fetcher in
    skopeo)
      if [[ -z $digest ]]; then
        look_up_digest "$name"
        name=$(untagged "$name")@$digest
      fi
      # in its folder: a path with a colon would be taken apart
      (cd -- "${image%/*}" && watched skopeo --tmpdir "$tmp" copy --override-os linux \
        --override-arch "$arch" "docker://$name" "docker-archive:${partial##*/}:$1")
      ;;
    docker | podman)
      watched "$fetcher" pull --platform "linux/$arch" "$name"
      digest=$(pulled_digest "$fetcher" "$name")
      "$fetcher" tag "$name" "$1"
      save_tag "$fetcher" "$1" "$partial"
      ;;
    apptainer)
      watched apptainer build --force --arch "$arch" "$partial" "docker://$name"
      digest=$(fetched_digest "$work/cache")
      ;;
    singularity) # its --arch is about other things before version 4
      watched singularity build --force "$partial" "docker://$name"
      digest=$(fetched_digest "$work/cache")
      ;;
  esac
}

# look_up_digest NAME: set digest to that of the name in the registry now.
look_up_digest() {
  skopeo inspect --raw "docker://$1" >"$work/manifest" 2>"$work/log" </dev/null ||
    explain_failure "$work/log" skopeo
  digest=$(checksum "$work/manifest")
}

# untagged NAME: print it without its tag or digest.
untagged() {
  local -r last=${1##*[/#]}
  printf '%s%s' "${1%"$last"}" "${last%%[:@]*}"
}

# open_archive BASE: find the downloaded archive and check its size; set archive, and source and digest to what it
# was made from.
open_archive() {
  local size
  archive=$1.tar
  if [[ $1.sif -nt $archive ]]; then archive=$1.sif; fi
  [[ -e $archive ]] || fail "archive not found: $archive" \
    "on a machine with network access, run: python3 build_container.py download --machine $machine; then copy the archive here"
  [[ -e $archive.json ]] ||
    fail "record of the archive not found: $archive.json" 'copy this file too, together with the archive'
  size=$(image_bytes "$archive")
  record_value "$archive.json" bytes
  [[ $size == "$REPLY" ]] ||
    fail "archive $archive is truncated: $size of $REPLY bytes" 'copy the archive again'
  check_image "$archive" "$arch" \
    "on a machine with network access, run: python3 build_container.py download --machine $machine"
  record_value "$archive.json" source
  printf -v source '%b' "${REPLY//\\\"/\"}" # JSON's other escapes are those of printf
  address=$source
  record_value "$archive.json" digest
  digest=$REPLY
}

# verify_archive: stop if its checksum is not the recorded one.
verify_archive() {
  note "checking $archive"
  local sum
  sum=$(checksum "$archive")
  record_value "$archive.json" sha256
  [[ $sum == "$REPLY" ]] ||
    fail "archive $archive is damaged: checksum $sum, recorded: $REPLY" \
      'copy the archive again'
}
