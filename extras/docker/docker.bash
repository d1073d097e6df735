# shellcheck shell=bash
# The container engines, docker and podman: options for what Apptainer does automatically.

# shellcheck source=lib/runtimes/launch.bash
source "${BASH_SOURCE[0]%/*}/../../lib/runtimes/launch.bash"
# shellcheck source=lib/runtimes/build.bash
source "${BASH_SOURCE[0]%/*}/../../lib/runtimes/build.bash"

# engine_image PROGRAM QUESTION FILE [ARGUMENT]...: see image_ask. The file of an image ends in the
# program's name, and contains the tag of the image in the program's store. Other files are archives
# and overlays.
engine_image() {
  local tag
  case $2 in
    exec)
      "$1" run --rm --network=none --pull=never --entrypoint= "${@:3}"
      return
      ;;
    identify)
      "$1" image inspect --format '{{.Id}}' "$3"
      return
      ;;
  esac
  if [[ $3 != *."$1" ]]; then
    image_file "${@:2}"
    return
  fi
  tag=$(engine_tag_in "$3")
  case $2 in
    exists) [[ -f $3 ]] && engine_has_image "$1" "$tag" ;;
    check) engine_check "$1" "$tag" "${@:4}" ;;
    delete) engine_delete "$1" "$tag" "$3" ;;
    checksum) "$1" image inspect --format '{{.Id}}' "$tag" | sed 's/^\(sha256:\)\?/sha256:/' ;;
    bytes) "$1" image inspect --format '{{.Size}}' "$tag" ;;
    reference) printf '%s' "$tag" ;;
  esac
}

# engine_tag_in FILE: print the tag that it contains.
engine_tag_in() {
  local tag=
  if [[ -f $1 ]]; then IFS= read -r tag <"$1" || :; fi
  printf '%s' "$tag"
}

# engine_has_image PROGRAM TAG: whether its store has it; stop if docker's daemon does not answer.
engine_has_image() {
  if "$1" image inspect "$2" >/dev/null 2>&1; then return; fi
  engine_check_works "$1"
  return 1
}

# engine_delete PROGRAM TAG FILE: delete the file, and the tag unless another file names it too;
# false if a container uses the tag.
engine_delete() {
  local -a same=()
  if engine_image "$1" exists "$3"; then
    mapfile -t same < <(grep -l -x -F -e "$2" -- "${3%/*/*}"/{build,versions}/*."$1" 2>/dev/null)
    if ((${#same[@]} < 2)); then "$1" rmi "$2" >/dev/null 2>&1 || return 1; fi
  fi
  rm -f -- "$3"
}

# engine_add_user PROGRAM: run as the caller, with home and /tmp.
engine_add_user() {
  engine_add_groups "$1"
  options+=(--user "$UID:${GROUPS[0]}")
  # rootless podman maps the caller to root inside unless told otherwise; SELinux would hide binds
  if [[ $1 == podman ]]; then options+=(--security-opt=label=disable); fi
  if [[ $1 == podman && $UID != 0 ]]; then options+=(--userns=keep-id); fi
  if [[ -d ${HOME:-} && $HOME != / ]]; then bind_add "$HOME"; fi
  bind_add /tmp
}

# engine_add_groups PROGRAM: keep the caller's other groups, whose shared directories could not be
# written to otherwise. Rootless podman can keep them only with crun.
engine_add_groups() {
  local group
  local -a groups
  read -r -a groups < <(id -G)
  if ((${#groups[@]} == 1)); then return; fi
  if [[ $1 == podman && $UID != 0 ]]; then
    if [[ $(podman info --format '{{.Host.OCIRuntime.Name}}' 2>/dev/null) == crun ]]; then
      options+=(--group-add=keep-groups)
    fi
    return
  fi
  for group in "${groups[@]}"; do
    if [[ $group != "${GROUPS[0]}" ]]; then options+=(--group-add "$group"); fi
  done
}

# engine_add_shared_memory PROGRAM: share the host's memory; podman refuses --ipc=host on a host
# without message queues.
engine_add_shared_memory() {
  if [[ $1 == docker || -e /dev/mqueue ]]; then
    options+=(--ipc=host)
  else
    bind_add /dev/shm
  fi
}

# engine_add_gpus PROGRAM: pass the node's GPUs, if it has some.
engine_add_gpus() {
  if [[ -e /dev/nvidiactl && $1 == docker ]]; then options+=(--gpus=all); fi
  if [[ -e /dev/nvidiactl && $1 == podman ]]; then options+=(--device=nvidia.com/gpu=all); fi
  if [[ -e /dev/kfd ]]; then options+=(--device=/dev/kfd --device=/dev/dri); fi
}

# engine_add_variables [SECRET...]: pass the program's exported variables by name, so that no value
# is in an argument. SECRETS go another way (engine_secrets_text): `docker inspect` shows variables,
# and podman's database keeps them.
engine_add_variables() {
  local variable
  longship_secrets=()
  while IFS= read -r variable; do
    if variable_is_hosts "$variable"; then continue; fi
    if [[ " $* " == *" $variable "* ]]; then
      longship_secrets+=("$variable")
    else
      options+=(--env "$variable")
    fi
  done < <(exported_names)
}

# engine_secrets_text: write the secrets to a file in memory for this user alone, and print what the
# shell inside runs first: it reads the file and removes it. A container that never started leaves
# it to the next start.
engine_secrets_text() {
  if ((${#longship_secrets[@]} == 0)); then return; fi
  local file variable value
  local -r quote="'\\''"
  for file in /dev/shm/longship-secrets-*; do
    value=${file#*-secrets-}
    if [[ -O $file && ! -e /proc/${value%.*} ]]; then rm -f -- "$file"; fi
  done
  if file=$(mktemp "/dev/shm/longship-secrets-$$.XXXXXXXX") &&
    (for variable in "${longship_secrets[@]}"; do
      value=${longship_kept[$variable]-${!variable}}
      printf "export %s='%s'\n" "$variable" "${value//\'/$quote}" || exit
    done >"$file"); then
    # an image can lack rm; a daemon on another host, or with other user ids, cannot read the file
    printf '[ -r %s ] && . %s && : >%s || { printf "%%s\\n" "error: cannot read %s inside the container" \
"hint: put the token into a file: environment.token_files in configuration.toml" >&2; exit 1; }; rm -f %s 2>/dev/null; ' \
      "$file" "$file" "$file" "$file" "$file"
  else
    if [[ -n $file ]]; then rm -f -- "$file"; fi
    printf 'exit 1; '
    fail_writing /dev/shm 'cannot write to /dev/shm, which passes tokens to the container' \
      "unset ${longship_secrets[*]}; or put the token into a file: environment.token_files in configuration.toml"
  fi
}

# engine_add_working_directory: keep the working directory if it is visible inside, as Apptainer
# does.
engine_add_working_directory() {
  local target
  if [[ -t 0 && -t 1 ]]; then options+=(--tty); fi
  # homes can be in /var, as on Fedora Silverblue, and clones in /opt
  for target in "${!bound[@]}"; do
    if [[ ${bound[$target]} == "$target" && $PWD/ == "$target"/* ]]; then
      options+=(--workdir "$PWD")
      return
    fi
  done
  case $PWD/ in
    // | /bin/* | /boot/* | /dev/* | /etc/* | /lib/* | /lib32/* | /lib64/* | /libx32/* | /opt/* | /proc/* | /run/* | /sbin/* | /sys/* | /usr/* | /var/*)
      options+=(--workdir=/)
      ;;
    *)
      bind_add "$PWD"
      options+=(--workdir "$PWD")
      ;;
  esac
}

# engine_build_image PROGRAM TAG: make an image in the store of docker or podman.
engine_build_image() {
  case $build_kind in
    docker) engine_pull "$1" "$2-partial" ;;
    dockerfile) engine_build "$1" "$2-partial" ;;
    docker-daemon) engine_import "$1" "$2-partial" ;;
    *) engine_load "$1" "$2-partial" ;;
  esac
  engine_keep_tag "$1" "$2"
}

# engine_keep_tag PROGRAM TAG: keep what TAG-partial is now under a tag of its own, named in
# "$build_partial". So a version of docker's and podman's is a file too, and is activated like the
# others. The active image, built again, keeps its tag: packages were installed on top of that.
engine_keep_tag() {
  local id own
  id=$("$1" image inspect --format '{{.Id}}' "$2-partial")
  id=${id#sha256:}
  own=$2_$(date -u +%Y%m%dT%H%M%S)_${id:0:12}
  if [[ $(engine_tag_in "$build_active") == "$2_"*"_${id:0:12}" ]]; then own=$(engine_tag_in "$build_active"); fi
  printf '%s\n' "$own" >"$build_partial" ||
    fail_writing "${build_partial%/*}" "cannot write $build_partial" 'see the error above'
  "$1" tag "$2-partial" "$own"
  "$1" rmi "$2-partial" >/dev/null
}

# engine_check PROGRAM TAG ARCH HINT: the same for an image in the store of docker or podman.
engine_check() {
  local found
  found=$("$1" image inspect --format '{{.Architecture}}' "$2" 2>/dev/null) || {
    engine_check_works "$1"
    fail "$1 has no image $2" "$4"
  }
  [[ $found == "$3" ]] || fail "image $2 has the wrong architecture: $found, expected $3" "$4"
}
