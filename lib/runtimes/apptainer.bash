# shellcheck shell=bash
# The runtimes apptainer and singularity: images are SIF files.

# shellcheck source=lib/runtimes/build.bash
source "${BASH_SOURCE[0]%/*}/build.bash"

# sif_image PROGRAM QUESTION FILE [ARGUMENT]...: see image_ask; image_check checks a SIF for every
# runtime.
sif_image() {
  case $2 in
    exec) "$1" --quiet exec "${@:3}" ;;
    identify) printf 'sif:%s' "$(od -An -v -tx1 -j 48 -N 16 "$3" | tr -d ' \n')" ;; # its UUID
    *) image_file "${@:2}" ;;
  esac
}

# sif_check FILE ARCH HINT: stop if the image is missing, is not a SIF file, or is for another
# architecture: after its first line a SIF file has magic, version and architecture.
sif_check() {
  local -r file=$1 arch=$2 hint=$3
  image_check_readable "$file" "$hint"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "not a SIF image: $file" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] ||
    fail "image $file has the wrong architecture: $found, expected $arch" "$hint"
}

# sif_add_options [gpus]: the options that follow from the caller's environment and from the node.
sif_add_options() {
  sif_forget_options
  sif_add_home
  if [[ -n ${1-} ]]; then sif_add_gpus; fi
}

# sif_forget_options: unset the caller's options of the runtime, which would change what every
# program finds inside. Binds, libraries that a site's module adds, places of files, logins and what
# a container around this one has set stay.
sif_forget_options() {
  local variable path
  local -a ignored=() paths
  for variable in "${!APPTAINER@}" "${!SINGULARITY@}"; do
    case ${variable#*_} in
      BIND | BINDPATH)
        IFS=, read -r -a paths <<<"${!variable}"
        for path in ${paths[@]+"${paths[@]}"}; do
          # the options of a bind are separated by commas too, and a backslash escapes one
          case $path in ro | rw | id=* | image-src=* | *\\*) continue ;; esac
          [[ -e ${path%%:*} ]] || fail "$variable names a path that does not exist: ${path%%:*}" \
            "correct it, or run: unset $variable"
        done
        ;;
      MOUNT | LD_LIBRARY_PATH | USERNS | CACHEDIR | TMPDIR | CONFIG* | DOCKER_* | MESSAGELEVEL) ;;
      ALLOWED_DIR) ;; # of a site, Jean Zay
      CONTAINER | NAME | COMMAND | ENVIRONMENT | APPNAME) ;;
      *) ignored+=("$variable") ;;
    esac
  done
  if ((${#ignored[@]})); then
    unset "${ignored[@]}"
    # of the ranks of a job, the first tells it
    if [[ ${SLURM_PROCID:-0} == 0 ]]; then note "ignoring from the environment: ${ignored[*]}"; fi
  fi
}

# sif_add_home: bind HOME if it is not the home directory of the passwd file, which Apptainer binds.
sif_add_home() {
  local -r home=${HOME:-}
  if [[ ! -d $home ]]; then return 0; fi
  unset HOME # bash then expands ~ from the passwd file
  local -r own=~
  export HOME=$home
  if [[ $home == "$own" ]]; then return 0; fi
  [[ $home != *:* ]] ||
    fail "HOME contains a colon, which Apptainer does not allow: $home" \
      'set HOME to another path of that directory, such as a link: export HOME=...'
  options+=(--home "$home")
}

# sif_add_gpus: pass the node's GPUs, if it has some; else --nv only warns.
sif_add_gpus() {
  if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi
  if [[ -e /dev/kfd ]]; then options+=(--rocm); fi
}

# sif_build PROGRAM TAG: build a SIF with apptainer or singularity; TAG is for an image that docker
# builds first.
sif_build() {
  local -a options=(--force)
  local directory=. address=$build_address
  build_login="run: $1 registry login --username NAME docker://HOST"
  # before version 4, SingularityCE's option of this name has another meaning
  if [[ $1 == apptainer ]]; then options+=(--arch "$arch"); fi
  case $build_kind in
    sif)
      image_copy "$build_file" "$build_partial"
      return
      ;;
    oras | library) # the SIF itself: a build would unpack and pack it again
      build_run "$1" pull "${options[@]}" --disable-cache "$build_partial" "$address"
      build_digest=$(file_checksum "$build_partial")
      return
      ;;
    dockerfile)
      archive_build_dockerfile "$2" "$build_tmp/image.tar"
      directory=$build_tmp address=docker-archive:image.tar
      ;;
    definition) directory=${build_file%/*} ;; # paths in it are relative to the file
    *-archive) directory=${build_file%/*} address=$build_kind:${build_file##*/} ;;
  esac
  # in the archive's directory: a path with a colon would be taken apart; not pulled: that keeps a
  # second copy of the SIF
  (cd -- "$directory" && build_run "$1" build "${options[@]}" "$build_partial" "$address")
  # shellcheck disable=SC2034  # build_end reads it
  if [[ $build_kind == docker ]]; then build_digest=$(sif_fetched_digest "$build_work/cache"); fi
}

# sif_fetched_digest CACHE: print the digest of the manifest that Apptainer has downloaded last; the
# layout of the cache is the OCI's, and this cache belongs to one image.
sif_fetched_digest() {
  local -r index=$1/cache/blob/index.json
  local digests=''
  if [[ -f $index ]]; then digests=$(grep -o '"digest": *"sha256:[0-9a-f]*"' "$index") || :; fi
  digests=${digests##*\"sha256:}
  printf '%s' "${digests:+sha256:${digests%\"}}"
}
