# shellcheck shell=bash
# Slurm's plugin Pyxis: srun itself starts enroot's containers, and a rank is a process inside one.
# So options of srun contain what the launcher gives the other runtimes.

# where the container shows its own image, so that a launcher knows that it runs inside
readonly longship_image_inside=/longship-image

# of set_container_options, which a job script calls again; all empty if container.runtime is
# another one. The last one is the file of an engine that reads an environment definition file
# (EDF).
declare -g longship_image='' longship_image_hint='' longship_edf=''

# the EDF's lines of annotations
declare -ga longship_annotations=()

# pyxis_begin_options IMAGE HINT [DIR ANNOTATION...]: set CONTAINER_OPTIONS, now and again for this
# image; HINT is for one that is missing. With DIR, use an EDF: in the run directory, or outside of
# a run in DIR.
pyxis_begin_options() {
  longship_image=$1 longship_image_hint=$2
  if (($# > 2)); then
    longship_edf=${RUN_DIR:-$3/$SLURM_JOB_ID}/environment.toml longship_annotations=("${@:4}")
  fi
  set_container_options
}

# set_container_options: set CONTAINER_OPTIONS for the next srun. A job script calls it again after
# its last export, as a variable of the image beats the job's unless its name is given.
# shellcheck disable=SC2034  # read by bind_add and by the job script
set_container_options() {
  CONTAINER_OPTIONS=()
  if [[ -z $longship_image ]]; then return; fi # container.runtime is another one
  # until they are complete srun refuses to start anything, least of all on the bare host
  CONTAINER_OPTIONS=(--container-options-are-not-complete)
  # a job script calls this again, and goes on: nothing is left behind
  local variable REPLY
  local -a names=() options=() overlay_record=()
  local -A bound=()
  sqsh_check "$longship_image" "$longship_image_hint"
  # home too, as under every runtime: it contains tokens
  if [[ -n $longship_edf ]]; then pyxis_add_bind "$HOME" "$HOME" rw; fi
  bind_add "$longship_image" "$longship_image_inside" ro
  pyxis_add_binds
  export ENROOT_LOGIN_SHELL=no # /etc/profile would overwrite the image's PATH
  while IFS= read -r variable; do
    # enroot would change these on the way; unnamed they pass as they are, unless the image has them
    # too
    case ${!variable} in *$'\n'* | [\"\']*) continue ;; esac
    variable_is_hosts "$variable" || names+=("$variable")
  done < <(compgen -e)
  if [[ -n $longship_edf ]]; then
    pyxis_write_edf "$longship_edf" "${options[@]}"
    # names only: the file would store the values, and secrets with them
    CONTAINER_OPTIONS=(--environment="$longship_edf" --container-env="$(IFS=, && printf '%s' "${names[*]}")")
    return
  fi
  CONTAINER_OPTIONS=(
    --container-image="$longship_image" --container-workdir="$PWD" --container-mount-home
    --no-container-entrypoint --no-container-remap-root
    --container-mounts="$(IFS=, && printf '%s' "${options[*]}")"
    --container-env="$(IFS=, && printf '%s' "${names[*]}")"
  )
}

# pyxis_write_edf FILE MOUNT...: write the environment definition file; a step that starts meanwhile
# reads a complete one.
pyxis_write_edf() {
  local -a mounts=("${@:2}")
  pyxis_add_bind "$PWD" "$PWD" rw # checks it: the file expands variables
  directory_make "${1%/*}"
  file_write "$1" "$(
    printf 'image = "%s"\nworkdir = "%s"\nmounts = [\n' "$longship_image" "$PWD"
    printf '  "%s",\n' "${mounts[@]%:rw}"
    printf ']\n\n[annotations]\n'
    printf '%s\n' "${longship_annotations[@]}"
  )"$'\n'
}

# pyxis_add_squashfs FILE TARGET: let an engine with an EDF mount a SquashFS file.
pyxis_add_squashfs() {
  options+=("$1:$2:sqsh")
}

# pyxis_add_bind SOURCE TARGET MODE: stop at a path that its list of mounts cannot contain, as
# pyxis.py does.
pyxis_add_bind() {
  local path
  for path in "$1" "$2"; do
    [[ $path != *[[:space:],:\"\$\`\\]* ]] ||
      fail "Pyxis cannot bind $path: it contains a space or one of , : \" \$ \` \\" \
        'rename it, or set another path: [paths], container.binds in configuration.toml'
  done
  options+=("$1:$2:$3")
}

# pyxis_check_inside: stop a launcher that was started outside the container.
pyxis_check_inside() {
  [[ -e $longship_image_inside ]] ||
    fail "this launcher must run inside the container, and srun has started none on ${SLURMD_NODENAME:-$HOSTNAME}" \
      "write in the job script: set_container_options; srun \"\${CONTAINER_OPTIONS[@]}\" \"\$LAUNCHER\" COMMAND"
}
