# shellcheck shell=bash
# The venv with the Python packages. A new one is built beside the one in use, at the path where it
# stays; then a link is moved to it. So it is there completely or not at all, and what runs keeps
# the packages that it started with.

readonly VENV_KEPT_DAYS=14 # a replaced venv stays longer than any site's longest job (Olivia: 7 d)

# install_venv LINK BASE INSTALLER UV TORCH [REQUIREMENT | -r FILE]...: make LINK lead to a venv with
# all requirements; TORCH is a file of them for images without a PyTorch of their own.
# Uses: inside COMMAND..., which runs a command in the image.
install_venv() {
  local -r link=$1 base=$2 torch=$5
  local installer=$3 uv=$4
  shift 5
  check_requirements "$@"
  local -r inputs=$(venv_inputs "$base" "$installer" "$torch" "$@")
  local found=
  if [[ -e $link/longship-base ]]; then IFS= read -r found <"$link/longship-inputs" || :; fi
  if [[ $found == "$inputs" ]]; then
    note "the Python packages are up to date: $link"
    return
  fi

  local -r venvs=${link%/*}/venvs
  make_folders "$venvs"
  remove_unfinished_venvs "$venvs"
  new_venv=$venvs/${link##*_}-$(date +%Y%m%dT%H%M%S)-${inputs:0:12}
  trap 'discard_unfinished_venv; release_locks' EXIT
  step 1/3 "Make the venv $new_venv"
  local image_torch=
  if [[ -n $torch && $base != host ]]; then image_torch=$(inside python3 -c "$TORCH_VERSION"); fi
  if [[ -n $image_torch ]]; then
    # it is the build for the image's GPUs; uv does not see what an image has, pip does
    note "the image's own PyTorch $image_torch stays; pip installs on top of it"
    installer=pip
  elif [[ $installer == uv ]]; then
    uv=$(find_uv "$uv") || installer=pip
  fi
  make_venv "$new_venv" "$base" "$installer"
  step 2/3 'Install the packages'
  install_packages "$new_venv" "$installer" "$uv" "$torch" "$image_torch" "$@"
  step 3/3 'Put it in use'
  printf '%s\n' "$inputs" >"$new_venv/longship-inputs"
  printf '%s\n' "$base" >"$new_venv/longship-base" # the last file: with it the venv is complete
  if [[ -d $link ]]; then touch -- "$link/."; fi # from now on the old one counts as replaced
  ln -s -- "venvs/${new_venv##*/}" "$link.partial.$$"
  mv -T -- "$link.partial.$$" "$link"
  remove_replaced_venvs "$venvs" "$new_venv"
}

# discard_unfinished_venv: leave nothing half-written, whatever ended the installation.
discard_unfinished_venv() {
  if [[ ! -e $new_venv/longship-base ]]; then rm -rf -- "$new_venv"; fi
}

# check_requirements [REQUIREMENT | -r FILE]...: stop where a file is missing.
check_requirements() {
  while (($#)); do
    if [[ $1 == -r ]]; then
      shift
      [[ -r $1 ]] || fail "there is no requirements file $1" \
        'make it, or name another one: packages.requirements in configuration.toml, "" for none'
    fi
    shift
  done
}

# venv_inputs WORD...: one checksum over everything that decides what is installed.
venv_inputs() {
  local word
  for word in "$@"; do
    if [[ -f $word ]]; then sha256sum <"$word"; else printf '%s\n' "$word"; fi
  done | sha256sum | cut -d ' ' -f 1
}

# make_venv FOLDER BASE INSTALLER: on top of the image's packages; alone where there is no image.
make_venv() {
  local -a sharing=(--system-site-packages) # not `options`: that is the runtime's, in `inside`
  if [[ $2 == host ]]; then sharing=(); fi
  if [[ $3 == uv ]]; then sharing+=(--without-pip); fi # uv brings it, in a tenth of the time
  inside python3 -m venv "${sharing[@]}" "$1" ||
    fail_writing "${1%/*}" "python3 cannot make the venv $1" \
      'see the lines above; on Debian and Ubuntu: apt install python3-venv'
}

# install_packages FOLDER INSTALLER UV TORCH IMAGE_TORCH [REQUIREMENT | -r FILE]...
install_packages() {
  local -r venv=$1 installer=$2 uv=$3 torch=$4 image_torch=$5
  local -a wanted=("${@:6}")
  if [[ -n $image_torch ]]; then
    printf 'torch==%s\n' "$image_torch" >"$venv/longship-constraints.txt"
    wanted+=(-c "$venv/longship-constraints.txt")
  elif [[ -n $torch ]]; then
    wanted+=(-r "$torch")
  fi
  # a venv without its own pip would hand `pip install` to the pip of the host or the image
  if [[ $installer == uv ]]; then wanted+=(pip); fi
  if ((${#wanted[@]} == 0)); then return; fi
  inside "$venv/bin/python" "$LIBRARY/inside/install_packages.py" \
    "$installer" "$uv" "$torch" "${wanted[@]}" ||
    fail_writing "$venv" "the packages cannot be installed into $venv" \
      'see the lines above; mend it, and run the same command again'
}

# prints nothing where there is no PyTorch
readonly TORCH_VERSION='
import importlib.metadata
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    pass'

# find_uv FILE: print the path of a uv that runs inside; FILE is made where there is none.
find_uv() {
  local -r uv=$1
  local found
  if found=$(inside sh -c 'command -v uv'); then
    printf '%s\n' "$found"
    return
  fi
  if [[ ! -x $uv ]]; then
    note 'fetching uv'
    make_folders "${uv%/*}"
    rm -rf -- "$uv.partial"
    if inside python3 -m venv "$uv.partial" >&2 &&
      inside "$uv.partial/bin/python" -m pip --quiet --disable-pip-version-check \
        install -r "$LIBRARY/inside/uv.txt" >&2; then
      mv -- "$uv.partial/bin/uv" "$uv"
    fi
    rm -rf -- "$uv.partial"
    if [[ ! -x $uv ]]; then
      note 'uv cannot be had here; pip installs the packages'
      return 1
    fi
  fi
  printf '%s\n' "$uv"
}

# remove_unfinished_venvs FOLDER: what a killed installation left. The lock is held: none is alive.
remove_unfinished_venvs() {
  local venv
  for venv in "$1"/*/; do
    if [[ -d $venv && ! -e $venv/longship-base ]]; then rm -rf -- "$venv"; fi
  done
}

# remove_replaced_venvs FOLDER CURRENT: those that no job can be using any more. A folder's time is
# the moment when it was replaced.
remove_replaced_venvs() {
  local old
  while IFS= read -r -d '' old; do
    rm -rf -- "$old"
  done < <(find "$1" -mindepth 1 -maxdepth 1 -type d ! -path "$2" -mtime "+$VENV_KEPT_DAYS" -print0)
}
