# shellcheck shell=bash disable=SC2154,SC2034  # set or used by the emitted script
# Images on their way to a machine without network: an archive of docker's, or a SIF.

# choose_fetcher BASE [PROGRAM...]: what can fetch the source here; set fetcher, and image and record
# to the names that its archive gets. PROGRAMs are those whose archive is a SIF.
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
  fail "nothing here fetches $source as an archive" \
    "install one of: skopeo, docker, podman${*:+, $*}"
}

# choose_sif_builder: what can make a SIF here; set fetcher.
choose_sif_builder() {
  for fetcher in apptainer singularity; do
    if command -v "$fetcher" >/dev/null; then
      tools=("$fetcher")
      return
    fi
  done
  fail "neither apptainer nor singularity is here, and $source takes one of them" \
    'download it on a machine that has one'
}

# fetch_archive TAG: make "$partial" from the registry's image, for "$arch"; it is called TAG
# in there.
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

# look_up_digest NAME: set digest to what the registry's name stands for now.
look_up_digest() {
  skopeo inspect --raw "docker://$1" >"$work/manifest" 2>"$work/log" </dev/null ||
    explain_failure "$work/log" skopeo
  digest=$(checksum "$work/manifest")
}

# untagged NAME: without its tag or digest.
untagged() {
  local -r last=${1##*[/#]}
  printf '%s%s' "${1%"$last"}" "${last%%[:@]*}"
}

# open_archive BASE: find the archive that `download` has made, and look whether it is all there;
# set archive, and source and digest to what it was made from.
open_archive() {
  local size
  archive=$1.tar
  if [[ $1.sif -nt $archive ]]; then archive=$1.sif; fi
  [[ -e $archive ]] || fail "there is no archive $archive" \
    "where there is a network: python3 build_container.py download --machine $machine; then copy it here"
  [[ -e $archive.json ]] ||
    fail "the archive $archive has no record: $archive.json" 'copy that file too, it lies beside it'
  size=$(image_bytes "$archive")
  record_value "$archive.json" bytes
  [[ $size == "$REPLY" ]] ||
    fail "the archive $archive is cut short: it has $size of $REPLY bytes" 'copy it again'
  check_image "$archive" "$arch" \
    "where there is a network: python3 build_container.py download --machine $machine"
  record_value "$archive.json" source
  printf -v source '%b' "${REPLY//\\\"/\"}" # JSON's other escapes are those of printf
  address=$source
  record_value "$archive.json" digest
  digest=$REPLY
}

# verify_archive: stop where it is not what was recorded.
verify_archive() {
  note "checking $archive"
  local sum
  sum=$(checksum "$archive")
  record_value "$archive.json" sha256
  [[ $sum == "$REPLY" ]] ||
    fail "the archive $archive is damaged: its checksum is $sum, and $REPLY was recorded" \
      'copy it again'
}
