# shellcheck shell=bash disable=SC2154  # lib/packages.py assigns them
# The venv with the Python packages. A new one is built beside the one in use, at the path where it
# stays; then a link is moved to it. So it is there completely or not at all, and what runs keeps
# the packages that it started with.

declare -g VENV_KEPT_DAYS=14 # a replaced venv stays longer than any site's longest job (Olivia: 7 d)

# install_venv CHOOSE BRING_UV [CHECK]: make "$venv" lead to a venv with all that is wanted. CHOOSE
# sets pins to the list of packages with their hashes, "" where there is none, and renew to what
# makes it anew; BRING_UV FILE makes a uv; CHECK looks at what is to be installed. All are functions.
# Uses: inside COMMAND..., which runs a command in the image, and what lib/packages.py assigns.
install_venv() {
  check_venv_place
  check_requirements
  check_repositories
  "$1"
  local -r inputs=$(venv_inputs)
  local found=
  if [[ -e $venv/longship-base ]]; then IFS= read -r found <"$venv/longship-inputs" || :; fi
  if [[ $found == "$inputs" && -z $again ]] && venv_is_whole; then
    note "the Python packages are up to date: $venv"
    return
  fi

  local -r venvs=${venv%/*}/venvs
  make_folders "$venvs"
  remove_unfinished_venvs "$venvs"
  new_venv=$venvs/${venv##*/venv_}-$(date +%Y%m%dT%H%M%S).$$-${inputs:0:12}
  trap 'discard_unfinished_venv; release_locks' EXIT
  ${3:+"$3"}
  step 1/4 "Make the venv $new_venv"
  local image_torch=
  if [[ -n $torch && $base != host && -z $overlay ]]; then image_torch=$(inside python3 -c "$TORCH_VERSION"); fi
  if [[ -n $pins ]]; then
    check_pinned_python
    if [[ -z $overlay ]]; then check_pinned_torch "$image_torch"; fi
  fi
  choose_installer "$image_torch" "$2"
  make_venv "$new_venv" "$base" "$installer"
  if [[ -n $overlay ]]; then put_above_overlay; fi
  step 2/4 'Install the packages'
  if [[ -n $pins ]]; then install_pins; else install_packages "$image_torch"; fi
  run_scripts
  step 3/4 'Byte-compile them'
  compile_packages
  step 4/4 'Put it in use'
  put_venv_in_use "$inputs"
  remove_replaced_venvs "$venvs" "$new_venv"
}

# venv_is_whole: whether the venv in use has all that was installed, and a Python that starts.
venv_is_whole() {
  lost_from_venv "$venv"
  if [[ -z $REPLY ]]; then
    inside "$venv/bin/python" -I -c '' >/dev/null 2>&1 </dev/null && return
    REPLY='a Python that starts'
  fi
  note "the venv $venv lacks $REPLY: it is made anew"
  return 1
}

# venv_names VENV: print the names of its programs and packages, without those that change with a version.
venv_names() {
  (cd -- "$1" && printf '%s\n' bin/* lib/python*/site-packages/* |
    grep -v -e '[.]dist-info$' -e '/__' | LC_ALL=C sort)
}

# lost_from_venv VENV: set REPLY to the first name that it had when it was made, and has no more.
lost_from_venv() {
  REPLY=$(LC_ALL=C comm -23 "$1/longship-names" <(venv_names "$1") 2>/dev/null) || :
  REPLY=${REPLY%%$'\n'*}
}

# choose_installer IMAGE_TORCH BRING_UV: set installer, and uv where that is it.
choose_installer() {
  if [[ -n $overlay && -z $pins ]]; then
    installer=pip # uv does not see what the overlay has, pip does
  elif [[ -n $1 && -z $pins ]]; then
    # it is the build for the image's GPUs; uv does not see what an image has, pip does
    note "the image's own PyTorch $1 stays; pip installs on top of it"
    installer=pip
  elif [[ $installer == uv ]]; then
    find_uv "$2" || installer=pip
  fi
}

# put_venv_in_use INPUTS: call the new one complete, and let the link lead to it.
put_venv_in_use() {
  venv_names "$new_venv" >"$new_venv/longship-names"
  printf '%s\n' "$1" >"$new_venv/longship-inputs"
  printf '%s\n' "${overlay:-$base}" >"$new_venv/longship-base" # the last file: with it the venv is complete
  if [[ -e $venv/longship-base ]]; then
    touch -- "$venv/." 2>/dev/null || : # from now on the old one counts as replaced, unless it is another's
  elif [[ -e $venv/pyvenv.cfg ]]; then
    note "the venv that was in use is not Longship's and stays: $(readlink -f -- "$venv")"
  fi
  ln -s -- "venvs/${new_venv##*/}" "$venv.partial.$$"
  mv -T -- "$venv.partial.$$" "$venv"
}

# check_venv_place: stop where a folder lies in the place of the link; a venv of the user's own is
# used there too, but it must not be moved, as its programs hold its path.
check_venv_place() {
  if [[ ! -d $venv || -L $venv ]]; then return; fi
  fail "$venv is a folder that Longship did not make, where its link to a venv belongs" \
    "to keep it in use, change nothing; to have one built: $(printf 'mv %q %q' "$venv" "$venv.old")"
}

# discard_unfinished_venv: leave nothing half-written, whatever ended the installation.
discard_unfinished_venv() {
  if [[ ! -e $new_venv/longship-base ]]; then rm -rf -- "$new_venv"; fi
}

# make_venv FOLDER BASE INSTALLER: on top of the image's packages; alone where there is no image.
make_venv() {
  local -a sharing=(--system-site-packages) # not `options`: that is the runtime's, in `inside`
  if [[ $2 == host ]]; then sharing=(); fi
  if [[ $3 == uv ]]; then sharing+=(--without-pip); fi # uv brings it, in a tenth of the time
  inside python3 -m venv ${sharing[@]+"${sharing[@]}"} "$1" ||
    fail_writing "${1%/*}" "python3 cannot make the venv $1" \
      'see the lines above; on Debian and Ubuntu: apt install python3-venv'
}

# put_above_overlay: let the new venv see the overlay's packages, below its own, and start its scripts.
put_above_overlay() {
  inside "$new_venv/bin/python" "$LIBRARY/inside/put_above.py" "$seen_at" ||
    fail_writing "$new_venv" "the venv $new_venv cannot be put above the overlay" 'see the lines above'
}

# install_packages IMAGE_TORCH: what is asked for, at the versions that are newest now.
install_packages() {
  local -a wanted=(${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"})
  if [[ -n $overlay ]]; then # it has all but the repositories
    if ((${#sources[@]})); then run_installer "$torch" "${sources[@]}"; fi
    return
  fi
  if [[ -n $1 ]]; then
    printf 'torch==%s\n' "$1" >"$new_venv/longship-constraints.txt"
    wanted+=(-c "$new_venv/longship-constraints.txt")
  elif [[ -n $torch ]]; then
    wanted+=(-r "$torch")
  fi
  # a venv without its own pip would hand `pip install` to the pip of the host or the image
  if [[ $installer == uv ]]; then wanted+=(pip); fi
  if ((${#wanted[@]})); then run_installer "$torch" "${wanted[@]}"; fi
}

# install_pins: exactly the packages that "$pins" names, then the repositories, which it does not.
install_pins() {
  [[ -n $overlay ]] || run_installer "$pins" --no-deps --require-hashes -r "$pins"
  if ((${#sources[@]})); then run_installer "$pins" --no-deps "${sources[@]}"; fi
}

# run_installer TORCH OPTION...: TORCH is the file that names PyTorch.
run_installer() {
  local folder='' said
  if ((${#sources[@]})); then folder=$repositories_folder; fi
  local -ar install=("$new_venv/bin/python" "$LIBRARY/inside/install_packages.py" "$wheelhouse"
    "$folder" "$installer" "$uv" "$@")
  if inside "${install[@]}"; then return; fi
  if [[ -z $wheelhouse ]]; then # it shows its progress on a terminal; what it says is read once more
    said=$(PIP_RETRIES=1 UV_HTTP_RETRIES=0 inside "${install[@]}" --dry-run --quiet 2>&1) || :
    explain_index "$said"
    explain_package "$said"
  fi
  fail_writing "$new_venv" "the packages cannot be installed into $new_venv" \
    "see the lines above, and run the same command again; without a network: $offline_mode"
}

# run_scripts: what repositories need besides, each script in its repository's folder.
run_scripts() {
  local -i at
  for ((at = 0; at < ${#scripts[@]}; at += 2)); do
    note "running ${scripts[at + 1]} in $repositories_folder/${scripts[at]}"
    inside "$new_venv/bin/python" "$LIBRARY/inside/install_packages.py" "$wheelhouse" \
      "$repositories_folder/${scripts[at]}" run "${scripts[at + 1]}" ||
      fail_writing "$new_venv" "the script ${scripts[at + 1]} of repository ${scripts[at]} failed" \
        'see the lines above; mend it, and run the same command again'
  done
}

# compile_packages: once here, not at the start of the first job by each rank; a terminal shows how far it is.
compile_packages() {
  local -i count=0
  inside "$new_venv/bin/python" -m compileall -j 0 "$new_venv/lib" 2>&1 | while IFS= read -r _; do
    count+=1
    if [[ -t 2 ]] && ((count % 100 == 0)); then printf '\r\e[K      %d files' "$count" >&2; fi
  done || : # some packages have templates that are not Python
  if [[ -t 2 ]]; then printf '\r\e[K' >&2; fi
}

# prints nothing where there is no PyTorch
declare -g TORCH_VERSION='
import importlib.metadata
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    pass'

# find_uv BRING_UV: set uv to one that runs inside; BRING_UV makes the file "$uv" where there is none.
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

# fetch_uv FILE: from the package index.
fetch_uv() {
  local said
  note 'fetching uv'
  if said=$({ inside python3 -m venv "$1.partial.$$" &&
    inside "$1.partial.$$/bin/python" -m pip --quiet --disable-pip-version-check \
      install -r "$LIBRARY/inside/uv.txt"; } 2>&1); then
    mv -- "$1.partial.$$/bin/uv" "$1"
    return
  fi
  rm -rf -- "$1.partial.$$"
  explain_index "$said"
  if [[ $said == *'No space left'* ]]; then fail_writing "${1%/*}" "cannot fetch uv: No space left on device" 'make room'; fi
  printf '%s\n' "$said" >&2
}

# remove_unfinished_venvs FOLDER: what a killed installation left. The lock is held: none is alive.
remove_unfinished_venvs() {
  local each
  for each in "$1/${venv##*/venv_}-"[0-9]*/; do # the lock is that of this stack and architecture
    if [[ -d $each && ! -e $each/longship-base ]]; then rm -rf -- "$each" 2>/dev/null || :; fi # unless it is another member's
  done
}

# remove_replaced_venvs FOLDER CURRENT: those that no job can be using any more. A folder's time is
# the moment when it was replaced.
remove_replaced_venvs() {
  local old
  while IFS= read -r -d '' old; do
    rm -rf -- "$old" 2>/dev/null || : # another member's stays
  done < <(find "$1" -mindepth 1 -maxdepth 1 -type d -name "${venv##*/venv_}-[0-9]*" ! -path "$2" -mtime "+$VENV_KEPT_DAYS" -print0)
}
