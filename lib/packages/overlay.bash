# shellcheck shell=bash
# Building an overlay: the packages are installed at the path where they are mounted later, made
# reproducible, and packed into one file. `overlay_active` is a link to one of the versions: a
# complete new version is activated by one rename, and running jobs keep theirs. The directory of
# the overlays contains:
#
#   <name>_<hash>_<arch>.sqsh       active for requirements of that hash: a link to a version
#   versions/                       the files themselves, each with its record, .json
#   unpacked/                       the same as directories, for runtimes that cannot mount them
#   pins/                           a file for each launcher, with the version that it needs

# State of a build, set by the functions of this file, whose names begin with overlay_:
#
#   active, work, image_record      the link, the directory of the build, the record of the image:
#                                   overlay_begin
#   compression, processors         of mksquashfs: overlay_begin; packing, more of its options
#   packer                          its command: overlay_find_packer
#   image_id, python, interpreter   of the image, and of its Python: overlay_identify_image
#   version                         file of the new version: overlay_name_version
#   prefix, tree                    path of its packages for programs, and on this machine:
#                                   overlay_name_version
#   checksum                        of the new version: overlay_pack_version
#   steps, values                   number of steps; names and values that extras add to the record
#   method                          how the runtime mounts it, bind or overlay, "" if it is unpacked:
#                                   overlay_can_mount

# shellcheck source=lib/packages/venv.bash
source "${BASH_SOURCE[0]%/*}/venv.bash"

declare -g overlay_format=7 # what is built changes with it, from the same inputs

# of all files in it: 1980-01-01, the oldest that a zip file can hold
declare -g overlay_time=315532800

declare -ga overlay_packer=(mksquashfs)

# functions of extras, which the plan names, see lib/script/hooks.py
declare -ga overlay_before_compile=()

declare -ga overlay_after_compile=()

declare -ga overlay_after_pack=()

# overlay_check_arch JOB: fail if this machine cannot run programs of the target's architecture; JOB
# builds it.
overlay_check_arch() {
  host_arch
  [[ $REPLY == "$arch" ]] ||
    fail "cannot build an overlay for $arch on this $REPLY machine" \
      "build it on a compute node: ${1:-python3 build_overlay.py in a job}"
}

# overlay_begin ACTIVE WORKS IMAGE_RECORD COMPRESSION PROCESSORS MEMORY: make an empty directory to
# pack. The lock is held: its owner removes the directory at the end. WORKS is the path of such
# directories without the user ID: in /tmp, another user could not write to it.
overlay_begin() {
  local name=${1##*/}
  overlay_active=$1 overlay_work=$2.$UID/${name%.sqsh} overlay_image_record=$3 \
    overlay_compression=$4 overlay_processors=$5 overlay_packing=()
  if [[ $5 != 0 ]]; then overlay_packing+=(-processors "$5"); fi
  if [[ -n $6 ]]; then overlay_packing+=(-mem "$6"); fi
  directory_make "${overlay_work%/*}"
  is_own "${overlay_work%/*}" || # in /tmp everybody can create a directory of this name
    fail "other users own the build directory, or can write to it: ${overlay_work%/*}" \
      "run: rm -r $(printf %q "${overlay_work%/*}"); or set packages.work_dir in configuration.toml to another directory"
  rm -rf -- "${overlay_work:?}"/*
  directory_make "$overlay_work/root$overlay_target"
  chmod 755 -- "$overlay_work/root" "$overlay_work/root$overlay_target" # they are packed too
}

# overlay_build FORCE INSTALLER UV: build and activate the overlay; rebuild an existing one if FORCE
# is given. Uses inside COMMAND..., which mounts "$work/root$overlay_target" at overlay_target.
overlay_build() {
  local inputs uv_version=
  overlay_version='' overlay_prefix='' venv_installer=$2 venv_uv=$3
  overlay_steps=$((5 + ${#overlay_after_pack[@]})) overlay_values=()
  at_exit overlay_discard
  unset SOURCE_DATE_EPOCH # mksquashfs refuses it beside its own options
  overlay_identify_image
  store_keep_foreign "$overlay_active"
  if [[ -z $1 ]] && foreign_overlay_take; then return; fi
  requirements_check
  lockfile_choose
  overlay_find_packer
  inputs=$(overlay_inputs)
  if [[ -z $1 ]] && overlay_is_built "$inputs"; then
    note "the overlay is up to date: $overlay_active"
    overlay_mend_unpacked "$(readlink -f -- "$overlay_active")"
    return
  fi
  lockfile_check ''
  step "1/$overlay_steps" 'Resolving the versions'
  overlay_choose_method
  overlay_resolve
  if [[ $venv_installer == uv ]]; then uv_version=$(inside "$venv_uv" --version); fi
  overlay_name_version "$inputs" "$uv_version"
  # without a container it is built where programs run from it: an existing one stays unchanged
  if [[ -n $1 && $base != host ]] || ! overlay_is_whole "$overlay_version"; then
    overlay_install
    overlay_freeze "$uv_version"
    overlay_pack_version
    overlay_write_record "$overlay_image_id" "$inputs" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
      "$overlay_checksum" packages "$(grep -c '^[^-].*==' "$overlay_work/pins.txt")" \
      compression "$overlay_compression" ${overlay_values[@]+"${overlay_values[@]}"}
    overlay_date_record "$overlay_version.json"
  else
    note "an overlay with these versions exists: $overlay_version"
    overlay_add_base "$overlay_version.json"
  fi
  overlay_mend_unpacked "$overlay_version"
  store_link "$overlay_active" "$overlay_version"
  record_value "$overlay_version.json" sha256
  printf 'active: %s (%s)\n' "$overlay_active" "$REPLY" >&2
}

# overlay_discard: remove incomplete files and the directory of the build, whatever ended it.
overlay_discard() {
  if [[ -n $overlay_version && $base == host && ! -e $overlay_version ]]; then
    rm -rf -- "$overlay_prefix" || :
  fi
  rm -rf -- ${overlay_version:+"$overlay_version.partial"} || :
  rm -rf -- "$overlay_work" || :
  rmdir -- "${overlay_work%/*}" 2>/dev/null || :
}

# overlay_identify_image: set overlay_image_id, which is the same for everybody who has this image,
# and its Python.
overlay_identify_image() {
  local output
  output=$(python_in_image)
  overlay_python=${output%% *}
  overlay_interpreter=${output#* }
  record_value "$overlay_image_record" digest
  if [[ -z $REPLY ]]; then record_value "$overlay_image_record" sha256; fi
  overlay_image_id=$REPLY
  if [[ -n $overlay_image_id || $base == host ]]; then return; fi
  overlay_image_id=$(image_ask identify "$base")
}

# overlay_inputs: print one checksum of everything that decides what is built, except versions that
# are not locked. It contains no path, and no name of a user or machine.
overlay_inputs() {
  local format=$overlay_format
  if ((${#overlay_after_compile[@]} == 0)); then format+=' without extras'; fi
  printf '%s\n' "$format" "$(requirements_sum)" "$(sources_sum)" "$overlay_image_id" "$overlay_python" "$arch" \
    "$(if [[ $base == host ]]; then printf %s "$overlay_interpreter"; fi)" "$gpu" \
    "$venv_installer" "$overlay_compression" \
    "$("${overlay_packer[@]}" -version 2>&1 | head -n 1)" \
    "$(if [[ -n $lockfile ]]; then sed '/^#/d' "$lockfile" | sha256sum; fi)" | sha256sum | cut -d ' ' -f 1
}

# overlay_resolve: write pins.txt, every package to install.
overlay_resolve() {
  if [[ -z $lockfile || $venv_installer == uv ]]; then uv_find ''; fi
  if [[ -n $lockfile ]]; then
    sed '/^#/d' "$lockfile" >"$overlay_work/pins.txt"
    return
  fi
  target_describe "$overlay_work/target"
  packages_resolve "$overlay_work" "$venv_uv" inside python3
}

# overlay_name_version INPUTS UV_VERSION: set overlay_version, whose name has a checksum of
# everything that it is made of, overlay_prefix and overlay_tree.
overlay_name_version() {
  local name=${overlay_active##*/} hash
  hash=$({
    printf '%s\n' "$1" "$venv_installer $2" "$overlay_method"
    sed '/^--/d' "$overlay_work/pins.txt" # with paths of this machine
  } | sha256sum | cut -c -12)
  overlay_version=${overlay_active%/*}/versions/${name%.sqsh}_$hash.sqsh
  overlay_prefix=$overlay_target overlay_tree=$overlay_work/root$overlay_target
  if [[ $base == host ]]; then
    overlay_unpacked_directory "$overlay_version"
    overlay_prefix=$REPLY overlay_tree=$REPLY # no container mounts it elsewhere
  fi
  venv_disk=$overlay_tree
}

# overlay_install: install the packages of pins.txt.
overlay_install() {
  local -a linked=()
  # not where it is mounted: no link goes from one mount to another, such as that of uv's cache
  if [[ $venv_installer == uv && $base != host ]]; then linked=(--prefix "$overlay_tree"); fi
  step "2/$overlay_steps" "Creating the venv for ${overlay_version##*/}"
  if [[ $base == host ]]; then
    rm -rf -- "$overlay_prefix"
    directory_make "$overlay_prefix" # closed until shared_open
  fi
  venv_create "$overlay_prefix"
  step "3/$overlay_steps" 'Installing the packages'
  if [[ -s $overlay_work/pins.txt ]]; then
    installer_run "$overlay_prefix" "$overlay_work/pins.txt" --no-deps --require-hashes \
      -r "$overlay_work/pins.txt" ${linked[@]+"${linked[@]}"}
  fi
  venv_check_packages "$overlay_prefix"
}

# overlay_freeze UV_VERSION: byte-compile the packages, and write the manifest, the last of the
# files.
overlay_freeze() {
  local -r manifest=$overlay_tree/longship-overlay.json
  local -a packages=("$overlay_tree"/lib/python*/site-packages)
  local pins time=$overlay_time
  step "4/$overlay_steps" 'Byte-compiling the packages'
  # A compiled file contains the time of its source, so a file that is bound over one of these
  # (container.patched_files) is noticed. Here it is the time of the packed file: the files
  # themselves can be links to those of uv's cache, and keep theirs. What is unpacked has any time.
  if [[ -z $overlay_method ]]; then time=any; fi
  rm -f -- "$overlay_tree/.lock" # of uv
  overlay_run_hooks "${packages[0]}" ${overlay_before_compile[@]+"${overlay_before_compile[@]}"}
  venv_compile "$overlay_prefix" "$overlay_processors" "$time"
  overlay_run_hooks "${packages[0]}" ${overlay_after_compile[@]+"${overlay_after_compile[@]}"}
  if [[ -z $overlay_method ]]; then venv_list_files "$overlay_tree"; fi
  # without hashes: online they are those of all files of a version, offline of the one used
  pins=$(sed -E '/^([ #-]|$)/d; s/ (\\|--hash).*//' "$overlay_work/pins.txt" | strip_passwords | LC_ALL=C sort)
  record_write "$manifest" format "$overlay_format" image "$overlay_image_id" \
    python "$overlay_python" architecture "$arch" \
    uv "$1" requirements "$(requirements_print)" lock "$pins"
  if [[ $base == host ]]; then shared_open "$overlay_tree"; fi
}

# overlay_run_hooks PATH FUNCTION...: let extras add to the new overlay.
overlay_run_hooks() {
  local hook
  for hook in "${@:2}"; do "$hook" "$1"; done
}

# overlay_pack_version: pack it, test it, and give it its name.
overlay_pack_version() {
  local tree=$overlay_tree output
  if [[ $overlay_method == overlay ]]; then tree=$overlay_work/root; fi
  step "5/$overlay_steps" "Packing the overlay with $overlay_compression"
  if [[ -t 2 ]]; then overlay_packing+=(-progress); else overlay_packing+=(-no-progress); fi
  # in a subshell: the trap for Ctrl-C would write where a function's output goes
  { output=$(overlay_pack "$tree" "$overlay_version.partial" "$overlay_compression" "${overlay_packing[@]}" 2>&1 >&3); } 3>&2 || {
    printf '%s\n' "$output" | tail -n 5 >&2
    fail_writing "${overlay_version%/*}" "cannot pack the overlay into $overlay_version" \
      "read mksquashfs's output above"
  }
  if [[ -n $overlay_method ]]; then
    overlay_try "$overlay_version.partial" "$overlay_method" "$overlay_target/bin/python" -I -c '' ||
      fail "cannot start python from the new overlay $overlay_version" \
        "read $runtime's output above"
  fi
  overlay_checksum=$(file_checksum "$overlay_version.partial") # while it is in memory
  rm -rf -- "$overlay_work/root" & # it takes seconds, in which other things are done
  overlay_run_hooks "$overlay_version.partial" ${overlay_after_pack[@]+"${overlay_after_pack[@]}"}
  chmod 644 -- "$overlay_version.partial"
  # the same bytes: programs of other nodes may have the file open, and NFS would take it from them
  if cmp --silent -- "$overlay_version.partial" "$overlay_version"; then return; fi
  file_publish "$overlay_version.partial" "$overlay_version"
}

# overlay_find_packer: set overlay_packer to the mksquashfs of this machine, or else of the image.
# Versions before 4.4 can neither set times nor pack with zstd.
overlay_find_packer() {
  if overlay_can_pack "${overlay_packer[@]}"; then return; fi
  overlay_packer=(inside mksquashfs)
  overlay_can_pack "${overlay_packer[@]}" ||
    fail 'mksquashfs 4.4 or newer not found, on this machine or in the image; it packs overlays' \
      'install squashfs-tools, or load its module; or use no overlay: packages.overlay = ""'
}

# overlay_can_pack COMMAND...: whether this mksquashfs is new enough.
overlay_can_pack() {
  local output
  output=$("$@" -version 2>/dev/null) || :
  [[ $output =~ version\ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 404))
}

# overlay_pack DIR FILE COMPRESSION OPTION...: pack its content with one owner, one time, and modes
# independent of the umask: the same content gives the same bytes. Blocks of 128 KB, the most that a
# mount is asked for at once: of larger ones half is read and unpacked for nothing. OPTIONs are
# those of mksquashfs.
overlay_pack() {
  local -a how=(-comp "$3")
  # xz is a fifth smaller, but takes 30 times as long to pack and 4 times as long to import
  if [[ $3 == zstd ]]; then how+=(-Xcompression-level 3); fi
  rm -f -- "$2"
  "${overlay_packer[@]}" "$1" "$2" "${how[@]}" "${@:4}" -b 128K -all-root -no-xattrs \
    -action 'chmod(u=rwX,go=rX)@true' -all-time "$overlay_time" -mkfs-time "$overlay_time" -noappend -quiet
}

# overlay_choose_method: set overlay_method to what works on this machine; only a real mount shows
# it.
overlay_choose_method() {
  overlay_method=
  case $runtime in apptainer | singularity) ;; *) return ;; esac
  if overlay_can_mount "$overlay_work" "$overlay_compression"; then return; fi
  printf '%s\n' "$REPLY" >&2
  fail "$runtime on this machine cannot mount SquashFS files packed with $overlay_compression" \
    "try packages.compression = \"gzip\" in configuration.toml; or use no overlay: set \
packages.overlay = \"\" and run: python3 set_up.py install"
}

# overlay_can_mount DIR COMPRESSION: whether a small file packed with it in DIR can be read inside;
# set overlay_method, and REPLY to the reason if it cannot.
overlay_can_mount() {
  local -r probe=$1/probe
  local from
  directory_make "$probe$overlay_target"
  seq 9999 >"$probe$overlay_target/mark"
  for overlay_method in bind overlay; do
    from=$probe
    if [[ $overlay_method == bind ]]; then from+=$overlay_target; fi
    # read a file, not only directories: file contents are compressed
    if REPLY=$(overlay_pack "$from" "$probe.sqsh" "$2" -processors 1 -no-progress 2>&1) &&
      REPLY=$(overlay_try "$probe.sqsh" "$overlay_method" grep -c . "$overlay_target/mark" 2>&1) &&
      [[ ${REPLY##*$'\n'} == 9999 ]]; then # Apptainer's warnings come before it
      return
    fi
  done
  return 1
}

# overlay_try FILE METHOD COMMAND...: run a command in the image with only that file mounted.
overlay_try() {
  local -a options=()
  overlay_add_file "$1" "$overlay_target" "$2"
  "$runtime" --quiet exec "${options[@]}" "$base" "${@:3}"
}
