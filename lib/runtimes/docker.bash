# shellcheck shell=bash
# The container engines, docker and podman: options for what Apptainer does automatically.

# shellcheck source=lib/runtimes/launch.bash
source "${BASH_SOURCE[0]%/*}/launch.bash"

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

# engine_add_groups PROGRAM: keep the caller's other groups, whose shared directories could not be written to otherwise.
# Rootless podman can keep them only with crun.
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

# engine_add_shared_memory PROGRAM: share the host's memory; podman refuses --ipc=host on a host without message queues.
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

# variables_add PROGRAM [SECRET...]: pass the program's exported variables by name, so that no value is in an argument.
# Enroot takes the lines of a value for variables of their own. SECRETS go another way (engine_secrets_text): `docker
# inspect` shows variables, and podman's database keeps them.
variables_add() {
  local variable
  longship_secrets=()
  while IFS= read -r variable; do
    if [[ $1 == enroot && ${longship_kept[$variable]-${!variable}} == *$'\n'* ]]; then continue; fi
    if variable_is_hosts "$variable"; then continue; fi
    if [[ " ${*:2} " == *" $variable "* ]]; then
      longship_secrets+=("$variable")
    else
      options+=(--env "$variable")
    fi
  done < <(exported_names)
}

# engine_secrets_text: write the secrets to a file in memory for this user alone, and print what the shell inside runs
# first: it reads the file and removes it. A container that never started leaves it to the next start.
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

# engine_add_working_directory: keep the working directory if it is visible inside, as Apptainer does.
engine_add_working_directory() {
  local target
  if [[ -t 0 && -t 1 ]]; then options+=(--tty); fi
  for target in "${!bound[@]}"; do # homes can be in /var, as on Fedora Silverblue, and clones in /opt
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
