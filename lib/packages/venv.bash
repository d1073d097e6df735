# shellcheck shell=bash
# The venv with the Python packages, and the installer. A new venv is built next to the active one,
# at its final path; then a link is moved to it. So it exists completely or not at all, and running
# programs keep their packages. venv_install sets, and overlay_build the last three:
#
#   venv            the link
#   venv_new        the directory that is built
#   venv_overlay    overlay that the venv is layered above; "" for none
#   venv_installer  uv or pip
#   venv_uv         its file inside, or the file that it is fetched to
#   venv_disk       a directory of this machine on the disk that is written

# shellcheck source=lib/packages/lock_packages.bash
source "${BASH_SOURCE[0]%/*}/lock_packages.bash"
# shellcheck source=lib/runtimes/overlay.bash
source "${BASH_SOURCE[0]%/*}/../runtimes/overlay.bash"
# shellcheck source=lib/store/store.bash
source "${BASH_SOURCE[0]%/*}/../store/store.bash"

declare -g venv_kept_days=14 # longer than the longest job of any site (Olivia: 7 d)

# venv_install VENV OVERLAY FORCE INSTALLER UV: make VENV a link to a venv with all configured
# packages, above OVERLAY, if given; build it anew if FORCE is given.
venv_install() {
  venv=$1 venv_overlay=$2 venv_installer=$4 venv_uv=$5
  # it must not be moved: the programs of a venv contain its path
  if [[ -d $venv && ! -L $venv ]]; then
    fail "$venv is a directory that Longship did not create; its link to a venv must be there" \
      "to build a venv, move it first: $(printf 'mv %q %q' "$venv" "$venv.old"); or keep using it, without set_up.py install"
  fi
  requirements_check
  lockfile_choose
  local -r inputs=$(venv_inputs)
  local found=
  if [[ -e $venv/longship-base ]]; then IFS= read -r found <"$venv/longship-inputs" || :; fi
  if [[ $found == "$inputs" && -z $3 ]] && venv_is_whole; then
    note "Python packages are up to date: $venv"
    return
  fi

  local -r venvs=${venv%/*}/venvs
  directory_make "$venvs"
  venv_disk=$venvs
  venv_remove_old "$venvs"
  venv_new=$venvs/${venv##*/venv_}-$(date +%Y%m%dT%H%M%S).$$-${inputs:0:12}
  at_exit venv_discard
  step 1/4 "Creating the venv $venv_new"
  lockfile_check "$venv_overlay"
  local image_torch=
  if [[ -z $lockfile && -n $requirements_torch && $base != host && -z $venv_overlay ]]; then
    image_torch=$(torch_version python3)
  fi
  installer_choose "$image_torch"
  venv_create "$venv_new"
  if [[ -n $venv_overlay ]]; then
    inside "$venv_new/bin/python" "$longship_library/packages/inside/__main__.py" layer_venv.layer "$overlay_target" ||
      fail_writing "$venv_new" "cannot layer the venv $venv_new above the overlay" \
        "read Python's output above"
    image_torch=$(torch_version "$venv_new/bin/python")
  fi
  step 2/4 'Installing the packages'
  venv_install_packages "$image_torch"
  venv_run_scripts
  venv_check_packages "$venv_new"
  step 3/4 'Byte-compiling the packages'
  venv_compile "$venv_new" 0 ''
  step 4/4 'Activating the venv'
  venv_activate "$inputs"
}

# venv_inputs: print one checksum of everything that decides what is installed.
venv_inputs() {
  {
    # images are too large to read: a version's name identifies it, a site's own image has a date
    printf '%s\n' "$base" "$venv_overlay" \
      "$(if [[ $base == /* ]]; then stat -c '%s %Y' -- "$base" 2>/dev/null; fi)"
    requirements_sums "$venv_installer" "$requirements_torch" \
      ${requirements[@]+"${requirements[@]}"} \
      ${requirements_above[@]+"${requirements_above[@]}"} ${lockfile:+"$lockfile"} \
      "$(sources_sum)" "$(sources_code_sum)" ${requirements_scripts[@]+"${requirements_scripts[@]}"}
  } | sha256sum | cut -d ' ' -f 1
}

# venv_is_whole: whether the active venv has everything that was installed, and a Python that
# starts.
venv_is_whole() {
  venv_find_lost "$venv"
  if [[ -z $REPLY ]]; then
    inside "$venv/bin/python" -I -c '' >/dev/null 2>&1 </dev/null && return
    REPLY='a working Python'
  fi
  note "the venv $venv lacks $REPLY: rebuilding it"
  return 1
}

# venv_files VENV: print size and path of all its files but bytecode.
venv_files() {
  (cd -- "$1" && find bin lib pyvenv.cfg ! -type d ! -name '*.pyc' -printf '%s %p\n' | LC_ALL=C sort)
}

# venv_list_files VENV: write this list, which venv_find_lost reads.
venv_list_files() {
  { venv_files "$1" && echo complete; } >"$1/longship-files" ||
    fail_writing "$1" "cannot list the files of $1" 'see the line above'
}

# venv_find_lost VENV: set REPLY to the first file that has disappeared, or has another size, since
# it was built; "" for none.
venv_find_lost() {
  REPLY='its list of files'
  if [[ $(tail -n 1 -- "$1/longship-files" 2>/dev/null) != complete ]]; then return; fi
  REPLY=$(LC_ALL=C comm -23 "$1/longship-files" \
    <({ venv_files "$1" || :; } 2>/dev/null; echo complete) 2>/dev/null) || :
  REPLY=${REPLY%%$'\n'*}
  REPLY=${REPLY#* }
}

# venv_create DIR: create it on top of the image's packages; alone if there is no image.
venv_create() {
  local -a sharing=(--system-site-packages) # not `options`: that is the runtime's, in `inside`
  if [[ $base == host ]]; then sharing=(); fi
  # uv brings it, in a tenth of the time
  if [[ $venv_installer == uv ]]; then sharing+=(--without-pip); fi
  inside python3 -I -m venv ${sharing[@]+"${sharing[@]}"} "$1" ||
    fail_writing "$venv_disk" "cannot create the venv $1" \
      "read Python's output above; on Debian and Ubuntu, run: apt install python3-venv"
  if [[ $base != host ]]; then
    inside python3 "$longship_library/packages/inside/__main__.py" layer_venv.layer_image "$1" ||
      fail_writing "$venv_disk" "cannot create the venv $1 above the image's packages" \
        "read Python's output above"
  fi
}

# venv_check_packages DIR: fail if it does not see a package of the image or of the requirements, to
# whatever place the installer has put it, or if one is from another source than its repository
# names.
venv_check_packages() {
  local output word present= # not `image`: that is the runtime's, in `inside`
  local -i code=0
  local -a files=()
  local -r functions=$longship_library/packages/inside look="read Python's output above"
  if [[ $base != host ]]; then
    present=$(inside python3 "$functions" layer_venv.print_packages) ||
      fail "cannot list the packages of $base" "$look"
  fi
  for word in ${requirements[@]+"${requirements[@]}"} ${requirements_above[@]+"${requirements_above[@]}"}; do
    if [[ $word != -r ]]; then files+=("$word"); fi
  done
  for word in ${requirements_source_names[@]+"${requirements_source_names[@]}"}; do
    files+=("$repositories_directory/$word")
  done
  output=$(inside "$1/bin/python" "$functions" layer_venv.check "$present" ${files[@]+"${files[@]}"}) || code=$?
  if ((code == 3)); then
    fail "the new environment lacks ${output%%$'\n'*}; the active one is unchanged" \
      "look for an option that redirects an installation: python3 container_run.py python3 -m pip config list"
  fi
  ((code == 0)) || fail "cannot use the new environment $1; the active one is unchanged" "$look"
}

# venv_install_packages TORCH: install the packages of the lock file, or the newest versions. TORCH is
# the version of PyTorch in the image or the overlay, which no package replaces; '' for none.
venv_install_packages() {
  local -a words=(${requirements[@]+"${requirements[@]}"} \
    ${requirements_sources[@]+"${requirements_sources[@]}"}) constraints=()
  if [[ -n $1 ]]; then
    printf 'torch==%s\n' "$1" >"$venv_new/longship-constraints.txt"
    constraints=(-c "$venv_new/longship-constraints.txt")
  fi
  if [[ -n $lockfile ]]; then
    [[ -n $venv_overlay ]] ||
      installer_run "$venv_new" "$lockfile" --no-deps --require-hashes -r "$lockfile"
    if ((${#requirements_sources[@]})); then
      installer_run "$venv_new" "$lockfile" --no-deps "${requirements_sources[@]}"
    fi
    if ((${#requirements_above[@]})); then
      installer_run "$venv_new" '' "${requirements_above[@]}" ${constraints[@]+"${constraints[@]}"}
    fi
    return
  fi
  if [[ -n $venv_overlay ]]; then
    # the overlay has everything else
    words=(${requirements_sources[@]+"${requirements_sources[@]}"} \
      ${requirements_above[@]+"${requirements_above[@]}"})
  elif [[ -z $1 && -n $requirements_torch ]]; then
    words+=(-r "$requirements_torch")
  fi
  # without its own pip, `pip install` would start the pip of the host or the image
  if [[ $venv_installer == uv ]]; then words+=(pip); fi
  if ((${#words[@]})); then
    installer_run "$venv_new" "$requirements_torch" "${words[@]}" ${constraints[@]+"${constraints[@]}"}
  fi
}

# venv_run_scripts: run the install scripts of repositories, each in its repository's directory.
venv_run_scripts() {
  local -i at
  for ((at = 0; at < ${#requirements_scripts[@]}; at += 2)); do
    note "running ${requirements_scripts[at + 1]} in $repositories_directory/${requirements_scripts[at]}"
    inside "$venv_new/bin/python" "$longship_library/packages/inside/__main__.py" install_packages.run_script \
      "$requirements_wheelhouse" \
      "$repositories_directory/${requirements_scripts[at]}" "${requirements_scripts[at + 1]}" ||
      fail_writing "$venv_new" \
        "the script ${requirements_scripts[at + 1]} of repository ${requirements_scripts[at]} failed" \
        'correct the script; its output is above; then run the command again'
  done
}

# venv_compile DIR PROCESSORS TIME: byte-compile once, instead of in each rank of the first job; show
# progress on a terminal. TIME is that of the sources, see inside/compile_packages.py.
venv_compile() {
  local -i count=0
  while read -r; do
    count+=1
    if [[ -t 2 ]] && ((count % 100 == 0)); then printf '\r\e[K      %d files' "$count" >&2; fi
  done < <(inside "$1/bin/python" "$longship_library/packages/inside/__main__.py" compile_packages.compile_all \
    "$1/lib" "$2" "$3")
  wait "$!" || fail_writing "$venv_disk" "cannot byte-compile the packages in $1" \
    "read Python's output above"
  if [[ -t 2 ]]; then printf '\r\e[K' >&2; fi
}

# venv_activate INPUTS: mark the new venv as complete, and move the link to it.
venv_activate() {
  venv_list_files "$venv_new"
  { printf '%s\n' "$1" >"$venv_new/longship-inputs" &&
    printf '%s\n' "${venv_overlay:-$base}" >"$venv_new/longship-base.partial"; } ||
    fail_writing "$venv_new" "cannot complete the venv $venv_new" 'see the line above'
  # the last file: with it the venv is complete
  mv -- "$venv_new/longship-base.partial" "$venv_new/longship-base"
  if [[ -e $venv/longship-base ]]; then
    touch -- "$venv/." 2>/dev/null || : # from now on the old one counts as replaced, unless it is another's
  elif [[ -e $venv/pyvenv.cfg ]]; then
    note "keeping the previous venv, which was not built by Longship: $(readlink -f -- "$venv")"
  fi
  store_link "$venv" "$venv_new"
}

# venv_discard: remove an incomplete venv, whatever ended the installation.
venv_discard() {
  if [[ ! -e $venv_new/longship-base ]]; then rm -rf -- "$venv_new"; fi
}

# venv_remove_old DIR: remove what killed installations left, and venvs that no job can still use.
# The lock is held: no installation is running. A venv's modification time is when it was replaced.
venv_remove_old() {
  local -a old=()
  mapfile -t -d '' old < <(find "$1" -mindepth 1 -maxdepth 1 -type d -name "${venv##*/venv_}-[0-9]*" \
    \( -mtime "+$venv_kept_days" -o ! -exec test -e {}/longship-base \; \) -print0)
  store_find_unused "$venv" ${old[@]+"${old[@]}"}
  rm -rf -- ${store_unused[@]+"${store_unused[@]}"} 2>/dev/null || : # a program can still hold a file in one
}

# installer_choose IMAGE_TORCH: set venv_installer, and venv_uv if that is the installer.
installer_choose() {
  if [[ -n $venv_overlay ]] && { [[ -z $lockfile ]] || ((${#requirements_above[@]})); }; then
    venv_installer=pip # uv does not see what the overlay has, pip does
  elif [[ -n $1 && -z $lockfile ]]; then
    # it is the build for the image's GPUs; uv does not see the packages of an image, pip does
    note "keeping the image's own PyTorch $1; installing on top of it with pip"
    venv_installer=pip
  elif [[ $venv_installer == uv ]]; then
    uv_find 'to install with pip: packages.installer = "pip" in configuration.toml'
  fi
}

# installer_run VENV TORCH OPTION...: install packages. uv takes the files of its cache as they are,
# so a package whose files differ from its RECORD is installed again without it.
installer_run() {
  local REPLY name
  local -a again=(--no-cache)
  installer_start "$@"
  if [[ $venv_installer != uv ]]; then return; fi
  installer_find_damaged "$1"
  if [[ -z $REPLY ]]; then return; fi
  while IFS= read -r name; do again+=(--reinstall-package "$name"); done <<<"$REPLY"
  note "files differ from the checksums of their packages: installing again without uv's cache: ${REPLY//$'\n'/, }"
  installer_start "$@" "${again[@]}"
  installer_find_damaged "$1"
  if [[ -n $REPLY ]]; then
    warn_of "files still differ from the checksums of their packages: ${REPLY//$'\n'/, }" \
      'if these do not work, check the disk; their wheels can have wrong checksums themselves'
  fi
}

# installer_find_damaged VENV: set REPLY to the packages whose files differ from their RECORD, a line
# for each.
installer_find_damaged() {
  REPLY=$(inside "$1/bin/python" -I "$longship_library/packages/inside/__main__.py" layer_venv.print_damaged) ||
    fail "cannot check the files of the packages in $1" "read Python's output above"
}

# installer_start VENV TORCH OPTION...: install packages; TORCH is the file that contains PyTorch's
# requirement.
installer_start() {
  local directory=''
  requirements_check_variables
  if ((${#requirements_sources[@]})); then directory=$repositories_directory; fi
  inside "$1/bin/python" "$longship_library/packages/inside/__main__.py" install_packages.install \
    "$requirements_wheelhouse" \
    "$directory" "$venv_installer" "$venv_uv" "${@:2}" ||
    fail_writing "$venv_disk" "cannot install the packages into $1" "read the installer's output above, \
and docs/how-to/packages.md#when-it-fails; without network: $requirements_offline"
}

# uv_find HINT: set venv_uv to one that runs inside; one that is missing or has another version than
# the pinned one is fetched. HINT is what else can be done, '' for nothing.
uv_find() {
  if REPLY=$(inside sh -c 'command -v uv'); then
    venv_uv=$REPLY
    return
  fi
  if uv_is_pinned inside "$venv_uv"; then return; fi
  directory_make "${venv_uv%/*}"
  at_exit rm -rf -- "$venv_uv.partial.$$" # a disk is full as long as it is there
  { if [[ -n $requirements_wheelhouse ]]; then uv_unpack; else uv_fetch; fi; } ||
    fail_writing "${venv_uv%/*}" 'cannot install uv' \
      "read the output above; without network: $requirements_offline${1:+; $1}"
}

# uv_is_pinned COMMAND...: whether this uv can be started and has the pinned version.
uv_is_pinned() {
  local pinned
  pinned=$(sed -n 's/^uv==/uv /p' "$longship_library/packages/inside/uv.txt")
  [[ $("$@" --version 2>/dev/null) == "$pinned"?( *) ]]
}

# uv_fetch: fetch uv from the package index.
uv_fetch() {
  note 'installing uv'
  inside python3 -I -m venv "$venv_uv.partial.$$" >&2 &&
    inside "$venv_uv.partial.$$/bin/python" -I -m pip --quiet --disable-pip-version-check \
      install -r "$longship_library/packages/inside/uv.txt" >&2 &&
    mv -f -- "$venv_uv.partial.$$/bin/uv" "$venv_uv"
}

# uv_unpack: unpack uv from its wheel in the wheelhouse, which can have those of other targets.
uv_unpack() {
  local wheel
  for wheel in "$requirements_wheelhouse"/uv-*.whl; do
    grep -qF -- "  ${wheel##*/}" "${lockfile%.lock}.sha256" || continue
    inside python3 -I -m zipfile -e "$wheel" "$venv_uv.partial.$$" &&
      chmod +x "$venv_uv.partial.$$"/uv-*.data/scripts/uv &&
      mv -f -- "$venv_uv.partial.$$"/uv-*.data/scripts/uv "$venv_uv"
    return
  done
  return 1
}
