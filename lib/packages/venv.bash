# shellcheck shell=bash disable=SC2154  # lib/packages/install.py assigns them
# The venv with the Python packages. A new one is built next to the active one, at its final path; then a link is
# moved to it. So it exists completely or not at all, and running programs keep their packages.

declare -g VENV_KEPT_DAYS=14 # longer than the longest job of any site (Olivia: 7 d)

# install_venv CHOOSE BRING_UV [CHECK]: make "$venv" a link to a venv with all configured packages. The arguments
# are functions: CHOOSE sets pins to the lock file ("" for none), and renew to the hint that renews it; BRING_UV FILE
# fetches uv; CHECK verifies the downloads.
# Uses: inside COMMAND..., which runs a command in the image, and the variables of lib/packages/install.py.
install_venv() {
  check_venv_place
  check_requirements
  check_repositories
  "$1"
  local -r inputs=$(venv_inputs)
  local found=
  if [[ -e $venv/longship-base ]]; then IFS= read -r found <"$venv/longship-inputs" || :; fi
  if [[ $found == "$inputs" && -z $again ]] && venv_is_whole; then
    note "Python packages are up to date: $venv"
    return
  fi

  local -r venvs=${venv%/*}/venvs
  make_folders "$venvs"
  remove_unfinished_venvs "$venvs"
  new_venv=$venvs/${venv##*/venv_}-$(date +%Y%m%dT%H%M%S).$$-${inputs:0:12}
  trap 'discard_unfinished_venv; release_locks' EXIT
  ${3:+"$3"}
  step 1/4 "Creating the venv $new_venv"
  local image_torch=
  if [[ -n $torch && $base != host && -z $overlay ]]; then image_torch=$(inside python3 -c "$TORCH_VERSION"); fi
  if [[ -n $pins ]]; then
    check_pinned_python
    if [[ -z $overlay ]]; then check_pinned_torch "$image_torch"; fi
  fi
  choose_installer "$image_torch" "$2"
  make_venv "$new_venv" "$base" "$installer"
  if [[ -n $overlay ]]; then put_above_overlay; fi
  step 2/4 'Installing the packages'
  if [[ -n $pins ]]; then install_pins; else install_packages "$image_torch"; fi
  run_scripts
  step 3/4 'Byte-compiling the packages'
  compile_packages
  step 4/4 'Activating the venv'
  put_venv_in_use "$inputs"
  remove_replaced_venvs "$venvs" "$new_venv"
}

# venv_is_whole: whether the active venv has everything that was installed, and a Python that starts.
venv_is_whole() {
  lost_from_venv "$venv"
  if [[ -z $REPLY ]]; then
    inside "$venv/bin/python" -I -c '' >/dev/null 2>&1 </dev/null && return
    REPLY='a working Python'
  fi
  note "the venv $venv lacks $REPLY: rebuilding it"
  return 1
}

# venv_names VENV: print the names of its programs and packages, without names that contain a version.
venv_names() {
  (cd -- "$1" && printf '%s\n' bin/* lib/python*/site-packages/* |
    grep -v -e '[.]dist-info$' -e '/__' | LC_ALL=C sort)
}

# lost_from_venv VENV: set REPLY to the first name that has disappeared since it was built.
lost_from_venv() {
  REPLY=$(LC_ALL=C comm -23 "$1/longship-names" <(venv_names "$1") 2>/dev/null) || :
  REPLY=${REPLY%%$'\n'*}
}

# choose_installer IMAGE_TORCH BRING_UV: set installer, and uv if that is the installer.
choose_installer() {
  if [[ -n $overlay && -z $pins ]]; then
    installer=pip # uv does not see what the overlay has, pip does
  elif [[ -n $1 && -z $pins ]]; then
    # it is the build for the image's GPUs; uv does not see the packages of an image, pip does
    note "keeping the image's own PyTorch $1; installing on top of it with pip"
    installer=pip
  elif [[ $installer == uv ]]; then
    find_uv "$2" || installer=pip
  fi
}

# put_venv_in_use INPUTS: mark the new venv as complete, and move the link to it.
put_venv_in_use() {
  venv_names "$new_venv" >"$new_venv/longship-names"
  printf '%s\n' "$1" >"$new_venv/longship-inputs"
  printf '%s\n' "${overlay:-$base}" >"$new_venv/longship-base" # the last file: with it the venv is complete
  if [[ -e $venv/longship-base ]]; then
    touch -- "$venv/." 2>/dev/null || : # from now on the old one counts as replaced, unless it is another's
  elif [[ -e $venv/pyvenv.cfg ]]; then
    note "keeping the previous venv, which was not built by Longship: $(readlink -f -- "$venv")"
  fi
  ln -s -- "venvs/${new_venv##*/}" "$venv.partial.$$"
  mv -T -- "$venv.partial.$$" "$venv"
}

# check_venv_place: fail if a directory is at the path of the link. A venv of the user can be there; it must not
# be moved, because its programs contain its path.
check_venv_place() {
  if [[ ! -d $venv || -L $venv ]]; then return; fi
  fail "$venv is a directory that Longship did not create; its link to a venv must be there" \
    "to build a venv, move it first: $(printf 'mv %q %q' "$venv" "$venv.old"); or keep using it, without set_up.py install"
}

# discard_unfinished_venv: remove an incomplete venv, whatever ended the installation.
discard_unfinished_venv() {
  if [[ ! -e $new_venv/longship-base ]]; then rm -rf -- "$new_venv"; fi
}

# make_venv DIR BASE INSTALLER: create it on top of the image's packages; alone if there is no image.
make_venv() {
  local -a sharing=(--system-site-packages) # not `options`: that is the runtime's, in `inside`
  if [[ $2 == host ]]; then sharing=(); fi
  if [[ $3 == uv ]]; then sharing+=(--without-pip); fi # uv brings it, in a tenth of the time
  inside python3 -m venv ${sharing[@]+"${sharing[@]}"} "$1" ||
    fail_writing "${1%/*}" "cannot create the venv $1" \
      "read Python's output above; on Debian and Ubuntu, run: apt install python3-venv"
}

# put_above_overlay: layer the new venv above the overlay: its packages come first, then the overlay's.
put_above_overlay() {
  inside "$new_venv/bin/python" "$LIBRARY/packages/inside/put_above.py" "$seen_at" ||
    fail_writing "$new_venv" "cannot layer the venv $new_venv above the overlay" "read Python's output above"
}

# install_packages IMAGE_TORCH: install the requirements, in their newest versions.
install_packages() {
  local -a wanted=(${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"})
  if [[ -n $overlay ]]; then # it has everything except the repositories
    if ((${#sources[@]})); then run_installer "$torch" "${sources[@]}"; fi
    return
  fi
  if [[ -n $1 ]]; then
    printf 'torch==%s\n' "$1" >"$new_venv/longship-constraints.txt"
    wanted+=(-c "$new_venv/longship-constraints.txt")
  elif [[ -n $torch ]]; then
    wanted+=(-r "$torch")
  fi
  # without its own pip, `pip install` would start the pip of the host or the image
  if [[ $installer == uv ]]; then wanted+=(pip); fi
  if ((${#wanted[@]})); then run_installer "$torch" "${wanted[@]}"; fi
}

# install_pins: install exactly the packages of the lock file "$pins", then the repositories.
install_pins() {
  [[ -n $overlay ]] || run_installer "$pins" --no-deps --require-hashes -r "$pins"
  if ((${#sources[@]})); then run_installer "$pins" --no-deps "${sources[@]}"; fi
}

# run_installer TORCH OPTION...: install packages; TORCH is the file that contains PyTorch's requirement.
run_installer() {
  local folder='' said
  if ((${#sources[@]})); then folder=$repositories_folder; fi
  local -ar install=("$new_venv/bin/python" "$LIBRARY/packages/inside/install_packages.py" "$wheelhouse"
    "$folder" "$installer" "$uv" "$@")
  if inside "${install[@]}"; then return; fi
  if [[ -z $wheelhouse ]]; then # its output went to the terminal, for the progress: run it again to read it
    said=$(PIP_RETRIES=1 UV_HTTP_RETRIES=0 inside "${install[@]}" --dry-run --quiet 2>&1) || :
    explain_index "$said"
    explain_package "$said"
  fi
  fail_writing "$new_venv" "cannot install the packages into $new_venv" \
    "the installer's output above has the reason; correct it and run the command again; without network: $offline_mode"
}

# run_scripts: run the install scripts of repositories, each in its repository's directory.
run_scripts() {
  local -i at
  for ((at = 0; at < ${#scripts[@]}; at += 2)); do
    note "running ${scripts[at + 1]} in $repositories_folder/${scripts[at]}"
    inside "$new_venv/bin/python" "$LIBRARY/packages/inside/install_packages.py" "$wheelhouse" \
      "$repositories_folder/${scripts[at]}" run "${scripts[at + 1]}" ||
      fail_writing "$new_venv" "the script ${scripts[at + 1]} of repository ${scripts[at]} failed" \
        'correct the script; its output is above; then run the command again'
  done
}

# compile_packages: byte-compile once, instead of in each rank of the first job; show progress on a terminal.
compile_packages() {
  local -i count=0
  inside "$new_venv/bin/python" -m compileall -j 0 "$new_venv/lib" 2>&1 | while IFS= read -r _; do
    count+=1
    if [[ -t 2 ]] && ((count % 100 == 0)); then printf '\r\e[K      %d files' "$count" >&2; fi
  done || : # some packages contain templates that are not Python
  if [[ -t 2 ]]; then printf '\r\e[K' >&2; fi
}

# prints nothing without PyTorch
declare -g TORCH_VERSION='
import importlib.metadata
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    pass'

# find_uv BRING_UV: set uv to a uv that runs inside; BRING_UV fetches a missing one to "$uv".
find_uv() {
  local found
  if found=$(inside sh -c 'command -v uv'); then
    uv=$found
    return
  fi
  if [[ ! -x $uv ]]; then
    make_folders "${uv%/*}"
    rm -rf -- "$uv.partial.$$"
    "$1" "$uv"
    rm -rf -- "$uv.partial.$$"
  fi
  if [[ ! -x $uv ]]; then
    note 'uv is not available; installing with pip'
    return 1
  fi
}

# fetch_uv FILE: fetch uv from the package index; fail if the disk is full or the index is not reachable.
fetch_uv() {
  local said full
  note 'installing uv'
  if said=$({ inside python3 -m venv "$1.partial.$$" &&
    inside "$1.partial.$$/bin/python" -m pip --quiet --disable-pip-version-check \
      install -r "$LIBRARY/packages/inside/uv.txt"; } 2>&1); then
    mv -- "$1.partial.$$/bin/uv" "$1"
    return
  fi
  full=$(fail_writing "${1%/*}" "$said" '' 2>&1) || : # before its files are removed
  rm -rf -- "$1.partial.$$"
  if [[ $full == *'No space left'* ]]; then
    fail_writing "${1%/*}" 'cannot install uv: No space left on device' ''
  fi
  explain_index "$said"
  printf '%s\n' "$said" >&2
}

# remove_unfinished_venvs DIR: remove what killed installations left. The lock is held: none is running.
remove_unfinished_venvs() {
  local each
  for each in "$1/${venv##*/venv_}-"[0-9]*/; do # the lock is that of this stack and architecture
    if [[ -d $each && ! -e $each/longship-base ]]; then rm -rf -- "$each" 2>/dev/null || :; fi # unless it is another member's
  done
}

# remove_replaced_venvs DIR CURRENT: remove those that no job can still use. A venv's modification time is when
# it was replaced.
remove_replaced_venvs() {
  local old
  while IFS= read -r -d '' old; do
    rm -rf -- "$old" 2>/dev/null || : # another member's stays
  done < <(find "$1" -mindepth 1 -maxdepth 1 -type d -name "${venv##*/venv_}-[0-9]*" ! -path "$2" -mtime "+$VENV_KEPT_DAYS" -print0)
}
