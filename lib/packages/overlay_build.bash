# shellcheck shell=bash disable=SC2154,SC2034  # lib/packages/overlay.py assigns them
# Building an overlay: the packages are installed at the path where they are mounted later, made
# reproducible, and packed into one file. `active` is a link to one of the versions: a complete new version
# is activated by one rename, and running jobs keep theirs. The directory of the overlays contains:
#
#   <name>_<hash>_<arch>.sqsh       active for requirements of that hash: a link to a version
#   versions/                       the files themselves, each with its record, .json
#   unpacked/                       the same as directories, for runtimes that cannot mount them
#   pins/                           a file for each launcher, with the version that it needs
#   bytecode_<arch>-<python>        compiled files for the next build

declare -g OVERLAY_FORMAT=2 # what is built changes with it, from the same inputs

declare -g OVERLAY_TIME=315532800 # of all files in it: 1980-01-01, the oldest that a zip file can hold

# make_overlay CHOOSE BRING_UV [CHECK]: the arguments of install_venv.
# Uses: start_work, and inside COMMAND..., which mounts "$work/root/user-software" at /user-software.
make_overlay() {
  unset SOURCE_DATE_EPOCH # mksquashfs refuses it beside its own options
  check_requirements
  identify_image
  keep_foreign_overlay
  if [[ -z $again ]] && take_over_overlay; then return; fi
  check_repositories
  "$1"
  find_packer
  if [[ -n $pins ]]; then check_pinned_python; fi
  local -r wanted=$(overlay_inputs)
  if [[ -z $again ]] && overlay_is_built "$wanted"; then
    note "the overlay is up to date: $active"
    remove_work
    return
  fi
  version=
  trap 'discard_unfinished_overlay; release_locks' EXIT
  ${3:+"$3"}
  step 1/5 'Resolving the versions'
  find_way_to_mount
  choose_overlay_versions "$2"
  uv_version=
  if [[ $installer == uv ]]; then uv_version=$(inside "$uv" --version); fi
  name_version "$(hash_of_versions "$wanted")"
  # without a container it is built where programs run from it: an existing one stays unchanged
  if [[ -n $again && $base != host ]] || ! overlay_is_whole "$version"; then
    fill_overlay
    pack_version
    write_overlay_record
  else
    note "an overlay with these versions exists: $version"
    add_base "$version.json"
  fi
  point_overlay_to_version
  remove_work
}

# start_work: make an empty directory to pack. The lock is held: its owner removes the directory at the end.
start_work() {
  trap 'remove_work; release_locks' EXIT
  rm -rf -- "${work:?}"/*
  make_folders "$work/root$longship_overlay_folder"
  chmod 755 -- "$work/root" "$work/root$longship_overlay_folder" # they are packed too
}

# hash_of_versions WANTED: print a checksum of everything that the version is made of.
hash_of_versions() {
  {
    printf '%s\n' "$1" "$installer $uv_version" "$way"
    sed '/^--/d' "$work/pins.txt" # with paths of this machine
  } | sha256sum | cut -c -12
}

# discard_unfinished_overlay: remove incomplete files, whatever ended the build.
discard_unfinished_overlay() {
  if [[ -n $version && $base == host && ! -e $version ]]; then rm -rf -- "$seen_at" || :; fi
  rm -rf -- ${version:+"$version.partial" "$version.json.partial"} || :
  remove_work
}

# remove_work: remove the directory of the build, and its parent if it is empty then.
remove_work() {
  rm -rf -- "$work" || :
  rmdir -- "${work%/*}" 2>/dev/null || :
}

# identify_image: set image_id, which is the same for everybody who has this image, and its Python.
identify_image() {
  local told
  told=$(inside python3 -c 'import platform, sys; print(platform.python_version(), sys.executable)') ||
    fail "python3 not found in the image $base" 'set container.image to an image that has python3'
  python=${told%% *}
  interpreter=${told#* }
  record_value "$image_record" digest
  if [[ -z $REPLY ]]; then record_value "$image_record" sha256; fi
  image_id=$REPLY
  if [[ -n $image_id || $base == host ]]; then return; fi
  case $runtime in
    apptainer | singularity) image_id="sif:$(od -An -v -tx1 -j 48 -N 16 "$base" | tr -d ' \n')" ;; # its UUID
    enroot) image_id="sqsh:$(head -c 96 -- "$base" | sha256sum | cut -d ' ' -f 1)" ;;  # its superblock
    *) image_id=$("$runtime" image inspect --format '{{.Id}}' "$base") ;;
  esac
}

# overlay_inputs: print one checksum of everything that decides what is built, except versions that are not
# locked. It contains no path, and no name of a user or machine.
overlay_inputs() {
  printf '%s\n' "$OVERLAY_FORMAT" "$(requirements_sum)" "$(sources_sum)" "$image_id" "$python" "$arch" \
    "$(if [[ $base == host ]]; then printf %s "$interpreter"; fi)" "$gpu" "$installer" "$compression" "$("${packer[@]}" -version 2>&1 | head -n 1)" \
    "$(if [[ -n $pins ]]; then sed '/^#/d' "$pins" | sha256sum; fi)" | sha256sum | cut -d ' ' -f 1
}

# overlay_is_built WANTED: whether the active overlay is what would be built for this image.
overlay_is_built() {
  local found
  [[ -e $active ]] || return 1
  found=$(readlink -f -- "$active")
  record_value "$found.json" wanted
  [[ $REPLY == "$1" ]] && overlay_is_whole "$found" || return 1
  add_base "$found.json"
}

# overlay_is_whole FILE: whether it exists, unchanged since it was built.
overlay_is_whole() {
  if [[ ! -e $1 ]] || is_as_recorded "$1"; then
    [[ -e $1 ]]
  else
    note "$1 has changed since it was built: $REPLY"
    return 1
  fi
}

# choose_overlay_versions BRING_UV: write pins.txt, every package to install.
choose_overlay_versions() {
  if ! find_uv "$1"; then
    [[ -n $pins ]] || fail 'uv is not available; it resolves the versions' \
      "check the network; pip's output above has the details; without network: $offline_mode"
    installer=pip
  fi
  if [[ -n $pins ]]; then
    if [[ -n $torch && $base != host ]]; then
      check_pinned_torch "$(inside python3 -c "$TORCH_VERSION")"
    fi
    sed '/^#/d' "$pins" >"$work/pins.txt"
    return
  fi
  describe_inside "$work/target"
  pin_packages "$work" "$uv" inside python3
}

# name_version HASH: set version; the record has the inputs in full.
name_version() {
  local name=${active##*/}
  version=${active%/*}/versions/${name%.sqsh}_$1.sqsh
  if [[ $base == host ]]; then
    unpacked_folder "$version"
    seen_at=$REPLY # no container mounts it elsewhere
    make_folders "${seen_at%/*}"
    share_with_group "${active%/*}" "${seen_at%/*}"
  fi
}

# fill_overlay: install, byte-compile, and make the files reproducible.
fill_overlay() {
  new_venv=$seen_at
  step 2/5 "Creating the venv for ${version##*/}"
  if [[ $base == host ]]; then rm -rf -- "$seen_at"; fi
  make_venv "$seen_at" "$base" "$installer"
  step 3/5 'Installing the packages'
  if [[ -s $work/pins.txt ]]; then
    # By its other path, on the mount of uv's cache: hard links do not cross mounts.
    local -a prefix=()
    if [[ $installer == uv && $base != host ]]; then prefix=(--prefix "$work/root$longship_overlay_folder"); fi
    run_installer "$work/pins.txt" ${prefix[@]+"${prefix[@]}"} \
      --no-deps --require-hashes -r "$work/pins.txt"
  fi
  step 4/5 'Byte-compiling the packages'
  print_all_requirements | without_passwords >"$work/requirements.txt"
  inside "$seen_at/bin/python" "$LIBRARY/packages/inside/freeze_packages.py" \
    "$seen_at" "$OVERLAY_TIME" "$bytecode" "$processors" "$work" \
    format "$OVERLAY_FORMAT" image "$image_id" python "$python" architecture "$arch" \
    uv "$uv_version" ||
    fail_writing "$work" "cannot byte-compile the packages in $work" "read Python's output above"
}

# pack_version: pack it, test it, and give it its name.
pack_version() {
  local tree=$work/root$longship_overlay_folder bar=-no-progress said
  if [[ $base == host ]]; then tree=$seen_at; fi
  if [[ $way == overlay ]]; then tree=$work/root; fi
  step 5/5 "Packing the overlay with $compression"
  make_folders "${version%/*}"
  if [[ -t 2 ]]; then bar=-progress; fi
  # in a subshell: the trap for Ctrl-C would write where a function's output goes
  { said=$(pack_overlay "$tree" "$version.partial" "$compression" "$bar" 2>&1 >&3); } 3>&2 || {
    printf '%s\n' "$said" | tail -n 5 >&2
    fail_writing "${version%/*}" "cannot pack the overlay into $version" "read mksquashfs's output above"
  }
  if [[ -n $way ]]; then
    try_overlay "$version.partial" "$way" "$longship_overlay_folder/bin/python" -I -c '' ||
      fail "cannot start python from the new overlay $version" "read $runtime's output above"
  fi
  put_shared "$version.partial" "$version"
}

# point_overlay_to_version: activate the version, and report it.
point_overlay_to_version() {
  link_to "$version"
  record_value "$version.json" sha256
  printf 'active: %s (%s)\n' "$active" "$REPLY" >&2
}
