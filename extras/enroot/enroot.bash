# shellcheck shell=bash
# The runtime enroot.

# shellcheck source=lib/runtimes/build.bash
source "${BASH_SOURCE[0]%/*}/../../lib/runtimes/build.bash"

# enroot_image RC QUESTION FILE [ARGUMENT]...: see image_ask; RC is the script that the container
# starts.
enroot_image() {
  case $2 in
    check) sqsh_check_whole "${@:3}" ;;
    exec) env NVIDIA_VISIBLE_DEVICES=void enroot start --rc "$1" "${@:3}" ;;
    identify) printf 'sqsh:%s' "$(head -c 96 -- "$3" | sha256sum | cut -d ' ' -f 1)" ;; # its superblock
    *) image_file "${@:2}" ;;
  esac
}

# sqsh_check_whole FILE ARCH HINT: stop if the image is incomplete, not an image, or for another
# architecture.
sqsh_check_whole() {
  local found
  sqsh_check "$1" "$3"
  unsquashfs -s "$1" >/dev/null 2>&1 || fail "incomplete image: $1" "$3"
  found=$(sqsh_arch "$1")
  # older unsquashfs shows no file
  [[ -z $found || $found == "$2" ]] ||
    fail "image $1 has the wrong architecture: $found, expected $2" "$3"
}

# enroot_hide_gpus: on a machine without GPUs, let images start that require one, as NVIDIA's do:
# enroot's hook would fail. Only this launch gets the variable: an exported one would reach jobs and
# hide their GPUs.
enroot_hide_gpus() {
  if [[ ! -e /dev/nvidiactl ]]; then options=(env NVIDIA_VISIBLE_DEVICES=void "${options[@]}"); fi
}

# sqsh_arch FILE: print the architecture of the programs in an image, as enroot records none; print
# nothing if the file is incomplete. Symbolic links are skipped: older versions of unsquashfs do not
# follow them.
sqsh_arch() {
  local file code
  while IFS= read -r file; do
    code=$(unsquashfs -cat "$1" "$file" 2>/dev/null | head -c 20 | od -An -v -tx1 | tr -d ' \n')
    case $code in
      7f454c46*3e00) printf amd64 && return ;;
      7f454c46*b700) printf arm64 && return ;;
    esac
  done < <(unsquashfs -lln "$1" 2>/dev/null | awk '$1 ~ /^-r.x/ && sub(/^.* squashfs-root\//, "")' |
    grep -E '(^|/)(bin|sbin)/[^/]+$' 2>/dev/null | head -n 50)
}

# enroot_add_bind SOURCE TARGET MODE: add a bind as enroot reads it: a line of fstab, with colons
# between the fields.
enroot_add_bind() {
  local path
  local -a fields=()
  for path in "$1" "$2"; do
    path=${path//\\/\\134}
    path=${path// /\\040}
    path=${path//$'\t'/\\011}
    path=${path//$'\n'/\\012}
    path=${path//:/\\072}
    fields+=("$path")
  done
  options+=(--mount "${fields[0]}:${fields[1]}:none:x-create=auto,rbind,$3")
}

# enroot_build_image TAG: build a SquashFS file with enroot; TAG is for an image that docker builds
# or loads first.
enroot_build_image() {
  export ENROOT_CACHE_PATH=$build_work/cache ENROOT_TEMP_PATH=$build_tmp PARALLEL_HOME=$build_tmp
  # shellcheck disable=SC2016  # shown
  build_login='add a line to $ENROOT_CONFIG_PATH/.credentials: machine HOST login NAME password ...'
  case $build_kind in
    docker) enroot_import ;;
    docker-daemon) build_run enroot import --output "$build_partial" "dockerd://${build_address#*:}" ;;
    sqsh) image_copy "$build_file" "$build_partial" ;;
    *)
      command -v docker >/dev/null ||
        fail "docker not found, with which enroot reads $build_file" \
          'with a network, run: python3 build_container.py; or import the image on a machine with docker, and set container.image in configuration.toml to its .sqsh file'
      if [[ $build_kind == dockerfile ]]; then
        engine_build docker "$1-partial"
      else
        engine_load docker "$1-partial"
      fi
      build_run enroot import --output "$build_partial" "dockerd://$1-partial"
      docker rmi "$1-partial" >/dev/null
      ;;
  esac
}

# enroot_import: import the registry's image; enroot has names of its own for architectures, and
# requires a # after the host.
enroot_import() {
  local name=${build_address#docker://} machine_name=${arch/amd64/x86_64} found=''
  machine_name=${machine_name/arm64/aarch64}
  name=${name#docker.io/}
  if [[ ${name%%/*} == *[.:]* ]]; then name=${name/\//#}; fi
  # enroot before 4 neither tells a digest, but how it is used, nor takes one
  if [[ -z $build_digest ]] &&
    found=$(enroot digest --arch "$machine_name" "docker://$name" 2>/dev/null </dev/null) &&
    [[ $found =~ ^sha256:[0-9a-f]{64}$ ]]; then
    build_digest=$found
    name=$(address_strip_tag "$name")@$found
  fi
  build_run enroot import --arch "$machine_name" --output "$build_partial" "docker://$name"
}

# enroot_add_variables: pass the program's exported variables by name, so that no value is in an
# argument. Enroot takes the lines of a value for variables of their own.
enroot_add_variables() {
  local variable
  while IFS= read -r variable; do
    if [[ ${longship_kept[$variable]-${!variable}} == *$'\n'* ]] || variable_is_hosts "$variable"; then continue; fi
    options+=(--env "$variable")
  done < <(exported_names)
}
