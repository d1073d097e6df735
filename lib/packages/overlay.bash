# shellcheck shell=bash
# Building an overlay: the packages are installed at the path where they are mounted later, made
# reproducible, and packed into one file. `active` is a link to one of the versions: a complete new version
# is activated by one rename, and running jobs keep theirs. The directory of the overlays contains:
#
#   <name>_<hash>_<arch>.sqsh       active for requirements of that hash: a link to a version
#   versions/                       the files themselves, each with its record, .json
#   unpacked/                       the same as directories, for runtimes that cannot mount them
#   pins/                           a file for each launcher, with the version that it needs
#   bytecode_<arch>-<python>        compiled files for the next build

# State of a build, set by the functions of this file:
# active, work, image_record      the link, the directory of the build, the record of the image: overlay_begin
# compression, processors, packing    of mksquashfs: overlay_begin; its command, packer: overlay_find_packer
# image_id, python, interpreter   of the image, and of its Python: overlay_identify_image
# version, overlay_prefix         file of the new version, and path of its packages for programs: overlay_name_version
# method                          how the runtime mounts it, bind or overlay, "" if it is unpacked: overlay_can_mount

# shellcheck source=lib/packages/venv.bash
source "${BASH_SOURCE[0]%/*}/venv.bash"

declare -g OVERLAY_FORMAT=2 # what is built changes with it, from the same inputs

declare -g OVERLAY_TIME=315532800 # of all files in it: 1980-01-01, the oldest that a zip file can hold

declare -ga packer=(mksquashfs)

declare -g TAKEN_OVER='taken over' # instead of the checksum of its inputs: an overlay that Longship did not build

# overlay_check_arch JOB: fail if this machine cannot run programs of the target's architecture; JOB builds it.
overlay_check_arch() {
  host_arch
  [[ $REPLY == "$arch" ]] ||
    fail "cannot build an overlay for $arch on this $REPLY machine" \
      "build it on a compute node: ${1:-python3 build_overlay.py in a job}"
}

# overlay_begin ACTIVE WORKS IMAGE_RECORD COMPRESSION PROCESSORS MEMORY: make an empty directory to pack. The lock is
# held: its owner removes the directory at the end. WORKS is the path of such directories without the user ID: in
# /tmp, another user could not write to it.
overlay_begin() {
  local name=${1##*/}
  active=$1 work=$2.$UID/${name%.sqsh} image_record=$3 compression=$4 processors=$5 packing=()
  if [[ $5 != 0 ]]; then packing+=(-processors "$5"); fi
  if [[ -n $6 ]]; then packing+=(-mem "$6"); fi
  rm -rf -- "${work:?}"/*
  directory_make "$work/root$longship_overlay_mount"
  chmod 755 -- "$work/root" "$work/root$longship_overlay_mount" # they are packed too
}

# overlay_build FORCE INSTALLER UV: build and activate the overlay; rebuild an existing one if FORCE is given.
# Uses inside COMMAND..., which mounts "$work/root/user-software" at /user-software.
overlay_build() {
  local inputs uv_version=
  version='' overlay_prefix='' installer=$2 uv=$3
  trap 'overlay_discard; lock_release_all' EXIT
  unset SOURCE_DATE_EPOCH # mksquashfs refuses it beside its own options
  overlay_identify_image
  foreign_overlay_keep
  if [[ -z $1 ]] && foreign_overlay_take; then return; fi
  requirements_check
  lockfile_choose
  overlay_find_packer
  inputs=$(overlay_inputs)
  if [[ -z $1 ]] && overlay_is_built "$inputs"; then
    note "the overlay is up to date: $active"
    return
  fi
  lockfile_check ''
  step 1/5 'Resolving the versions'
  overlay_choose_method
  overlay_resolve
  if [[ $installer == uv ]]; then uv_version=$(inside "$uv" --version); fi
  overlay_name_version "$(overlay_version_hash "$inputs" "$uv_version")"
  # without a container it is built where programs run from it: an existing one stays unchanged
  if [[ -n $1 && $base != host ]] || ! overlay_is_whole "$version"; then
    overlay_install
    overlay_freeze "$uv_version"
    overlay_pack_version
    overlay_write_record "$image_id" "$inputs" "$(overlay_join_requirements <"$work/requirements.txt")" \
      "$(date -u +%Y-%m-%dT%H:%M:%SZ)" packages "$(grep -c '^[^-].*==' "$work/pins.txt")" compression "$compression"
    overlay_date_record "$version.json"
  else
    note "an overlay with these versions exists: $version"
    overlay_add_base "$version.json"
  fi
  version_link "$active" "${version##*/}"
  record_value "$version.json" sha256
  printf 'active: %s (%s)\n' "$active" "$REPLY" >&2
}

# overlay_discard: remove incomplete files and the directory of the build, whatever ended it.
overlay_discard() {
  if [[ -n $version && $base == host && ! -e $version ]]; then rm -rf -- "$overlay_prefix" || :; fi
  rm -rf -- ${version:+"$version.partial" "$version.json.partial"} || :
  rm -rf -- "$work" || :
  rmdir -- "${work%/*}" 2>/dev/null || :
}

# overlay_identify_image: set image_id, which is the same for everybody who has this image, and its Python.
overlay_identify_image() {
  local output
  output=$(python_in_image)
  python=${output%% *}
  interpreter=${output#* }
  record_value "$image_record" digest
  if [[ -z $REPLY ]]; then record_value "$image_record" sha256; fi
  image_id=$REPLY
  if [[ -n $image_id || $base == host ]]; then return; fi
  case $runtime in
    apptainer | singularity) image_id="sif:$(od -An -v -tx1 -j 48 -N 16 "$base" | tr -d ' \n')" ;; # its UUID
    enroot) image_id="sqsh:$(head -c 96 -- "$base" | sha256sum | cut -d ' ' -f 1)" ;;              # its superblock
    *) image_id=$("$runtime" image inspect --format '{{.Id}}' "$base") ;;
  esac
}

# overlay_inputs: print one checksum of everything that decides what is built, except versions that are not
# locked. It contains no path, and no name of a user or machine.
overlay_inputs() {
  printf '%s\n' "$OVERLAY_FORMAT" "$(requirements_sum)" "$(sources_sum)" "$image_id" "$python" "$arch" \
    "$(if [[ $base == host ]]; then printf %s "$interpreter"; fi)" "$gpu" "$installer" "$compression" \
    "$("${packer[@]}" -version 2>&1 | head -n 1)" \
    "$(if [[ -n $lockfile ]]; then sed '/^#/d' "$lockfile" | sha256sum; fi)" | sha256sum | cut -d ' ' -f 1
}

# overlay_version_hash INPUTS UV_VERSION: print a checksum of everything that the version is made of.
overlay_version_hash() {
  {
    printf '%s\n' "$1" "$installer $2" "$method"
    sed '/^--/d' "$work/pins.txt" # with paths of this machine
  } | sha256sum | cut -c -12
}

# overlay_is_built INPUTS: whether the active overlay is what would be built for this image.
overlay_is_built() {
  local found
  [[ -e $active ]] || return 1
  found=$(readlink -f -- "$active")
  record_value "$found.json" wanted
  [[ $REPLY == "$1" ]] && overlay_is_whole "$found" || return 1
  overlay_add_base "$found.json"
}

# overlay_is_whole FILE: whether it exists, unchanged since it was built.
overlay_is_whole() {
  [[ -e $1 ]] || return 1
  if image_matches_record "$1"; then return; fi
  note "$1 has changed since it was built: $REPLY"
  return 1
}

# overlay_resolve: write pins.txt, every package to install.
overlay_resolve() {
  if ! uv_find; then
    [[ -n $lockfile ]] || fail 'uv is not available; it resolves the versions' \
      "check the network; pip's output above has the details; without network: $offline_command"
    installer=pip
  fi
  if [[ -n $lockfile ]]; then
    sed '/^#/d' "$lockfile" >"$work/pins.txt"
    return
  fi
  target_describe "$work/target"
  packages_resolve "$work" "$uv" inside python3
}

# overlay_name_version HASH: set version, whose record has the inputs in full, and overlay_prefix.
overlay_name_version() {
  local name=${active##*/}
  version=${active%/*}/versions/${name%.sqsh}_$1.sqsh
  overlay_prefix=$longship_overlay_mount
  if [[ $base == host ]]; then
    overlay_unpacked_directory "$version"
    overlay_prefix=$REPLY # no container mounts it elsewhere
    directory_make "${overlay_prefix%/*}"
    group_share "${active%/*}" "${overlay_prefix%/*}"
  fi
}

# overlay_install: install the packages of pins.txt.
overlay_install() {
  step 2/5 "Creating the venv for ${version##*/}"
  if [[ $base == host ]]; then rm -rf -- "$overlay_prefix"; fi
  venv_create "$overlay_prefix"
  step 3/5 'Installing the packages'
  if [[ -s $work/pins.txt ]]; then
    # By its other path, on the mount of uv's cache: hard links do not cross mounts.
    local -a prefix=()
    if [[ $installer == uv && $base != host ]]; then prefix=(--prefix "$work/root$longship_overlay_mount"); fi
    installer_run "$overlay_prefix" "$work/pins.txt" ${prefix[@]+"${prefix[@]}"} \
      --no-deps --require-hashes -r "$work/pins.txt"
  fi
}

# overlay_freeze UV_VERSION: byte-compile, and make the files reproducible.
overlay_freeze() {
  step 4/5 'Byte-compiling the packages'
  requirements_print >"$work/requirements.txt"
  inside "$overlay_prefix/bin/python" "$LIBRARY/packages/inside" freeze_packages.freeze \
    "$overlay_prefix" "$OVERLAY_TIME" "${active%/*}/bytecode_$arch" "$processors" "$work" \
    format "$OVERLAY_FORMAT" image "$image_id" python "$python" architecture "$arch" uv "$1" ||
    fail_writing "$work" "cannot byte-compile the packages in $work" "read Python's output above"
}

# overlay_pack_version: pack it, test it, and give it its name.
overlay_pack_version() {
  local tree=$work/root$longship_overlay_mount output
  if [[ $base == host ]]; then tree=$overlay_prefix; fi
  if [[ $method == overlay ]]; then tree=$work/root; fi
  step 5/5 "Packing the overlay with $compression"
  directory_make "${version%/*}"
  if [[ -t 2 ]]; then packing+=(-progress); else packing+=(-no-progress); fi
  # in a subshell: the trap for Ctrl-C would write where a function's output goes
  { output=$(overlay_pack "$tree" "$version.partial" "$compression" "${packing[@]}" 2>&1 >&3); } 3>&2 || {
    printf '%s\n' "$output" | tail -n 5 >&2
    fail_writing "${version%/*}" "cannot pack the overlay into $version" "read mksquashfs's output above"
  }
  if [[ -n $method ]]; then
    overlay_try "$version.partial" "$method" "$longship_overlay_mount/bin/python" -I -c '' ||
      fail "cannot start python from the new overlay $version" "read $runtime's output above"
  fi
  file_publish "$version.partial" "$version"
}

# overlay_find_packer: set packer to the mksquashfs of this machine, or else of the image. Versions before 4.4 can
# neither set times nor pack with zstd.
overlay_find_packer() {
  packer=(mksquashfs)
  if overlay_can_pack "${packer[@]}"; then return; fi
  packer=(inside mksquashfs)
  overlay_can_pack "${packer[@]}" || fail 'mksquashfs 4.4 or newer not found, neither on this machine nor in the image; it packs the overlay' \
    'install squashfs-tools, or load its module; or use no overlay: packages.overlay = ""'
}

# overlay_can_pack COMMAND...: whether this mksquashfs is new enough.
overlay_can_pack() {
  local output
  output=$("$@" -version 2>/dev/null) || :
  [[ $output =~ version\ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 404))
}

# overlay_pack DIR FILE COMPRESSION OPTION...: pack its content with one owner, one time, and modes independent
# of the umask: the same content gives the same bytes. Large blocks, because a parallel file system reads a
# megabyte as fast as a page. OPTIONs are those of mksquashfs.
overlay_pack() {
  local -a how=(-comp "$3")
  # xz is a fifth smaller, but takes 30 times as long to pack and 4 times as long to import
  if [[ $3 == zstd ]]; then how+=(-Xcompression-level 3); fi
  rm -f -- "$2"
  "${packer[@]}" "$1" "$2" "${how[@]}" "${@:4}" -b 1M -all-root -action 'chmod(u=rwX,go=rX)@true' -no-xattrs \
    -all-time "$OVERLAY_TIME" -mkfs-time "$OVERLAY_TIME" -noappend -quiet
}

# overlay_choose_method: set method to what works on this machine; only a real mount shows it.
overlay_choose_method() {
  local each
  method=
  case $runtime in apptainer | singularity) ;; *) return ;; esac
  if overlay_can_mount "$work" "$compression"; then return; fi
  for each in zstd lz4 xz gzip; do
    if [[ $each != "$compression" ]] && overlay_can_mount "$work" "$each"; then
      fail "$runtime on this machine cannot mount SquashFS files packed with $compression" \
        "set packages.compression = \"$each\" in configuration.toml, which works on this machine"
    fi
  done
  printf '%s\n' "$REPLY" >&2
  fail "$runtime on this machine cannot mount SquashFS files" \
    "read $runtime's output above; or use no overlay: set packages.overlay = \"\" and run: python3 set_up.py install"
}

# overlay_can_mount DIR COMPRESSION: whether a small file packed with it in DIR can be read inside; set method, and
# REPLY to the reason if it cannot.
overlay_can_mount() {
  local -r probe=$1/probe
  local from
  directory_make "$probe$longship_overlay_mount"
  seq 9999 >"$probe$longship_overlay_mount/mark"
  for method in bind overlay; do
    from=$probe
    if [[ $method == bind ]]; then from+=$longship_overlay_mount; fi
    # read a file, not only directories: file contents are compressed
    if REPLY=$(overlay_pack "$from" "$probe.sqsh" "$2" -processors 1 -no-progress 2>&1) &&
      REPLY=$(overlay_try "$probe.sqsh" "$method" grep -c . "$longship_overlay_mount/mark" 2>&1) &&
      [[ ${REPLY##*$'\n'} == 9999 ]]; then # Apptainer's warnings come before it
      return
    fi
  done
  return 1
}

# overlay_try FILE METHOD COMMAND...: run a command in the image with only that file mounted.
overlay_try() {
  local -a options=()
  overlay_add_file "$1" "$2"
  "$runtime" --quiet exec "${options[@]}" "$base" "${@:3}"
}

# overlay_write_record IMAGE INPUTS REQUIREMENTS DATE [NAME VALUE]...: write the record that launches and lists read.
overlay_write_record() {
  record_write "$version.json.partial" base "$base" image "$1" python "$python" interpreter "$interpreter" \
    mounted_by "${method:-unpacking}" wanted "$2" requirements "$3" "${@:5}" \
    bytes "$(stat -L -c %s -- "$version")" modified "$(image_fingerprint "$version")" sha256 "$(file_checksum "$version")" \
    date "$4" host "$(host_name)"
  file_publish "$version.json.partial" "$version.json"
}

# overlay_join_requirements: join them in one line, without comments.
overlay_join_requirements() {
  sed -e 's/ *#.*//' -e '/^ *$/d' | paste -s -d ' '
}

# overlay_add_base RECORD: add this image to those that the overlay is for; a job can run the same one under another
# name.
overlay_add_base() {
  local bases
  record_value "$1" base
  bases=$REPLY
  if ! overlay_has_base "$base" "$bases"; then
    json_text "$base"
    record_change "$1" base "$bases"'\n'"$REPLY"
  fi
  overlay_date_record "$1"
}

# overlay_date_record RECORD: make it no older than the image, see overlay_check.
overlay_date_record() {
  if [[ $base == /* && $base -nt $1 ]]; then touch -r "$base" -- "$1"; fi
}

# record_change FILE NAME TEXT: replace one of its values, not the last one; TEXT is in JSON.
record_change() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "  \"$2\": "* ]]; then line="  \"$2\": \"$3\","; fi
    printf '%s\n' "$line"
  done <"$1" >"$1.partial" || fail_writing "${1%/*}" "cannot write $1" 'check the permissions of the directory; the line above has the reason'
  file_publish "$1.partial" "$1"
}

# An overlay that Longship did not build: a user has put a file, or a link to one, at the path of the overlay
# for the requirements, such as the file of the tutorial that the name's form is from. It becomes one of the
# versions and is checked once; with a record it is used like any other overlay. It is not copied, and the target
# of a link is never changed or deleted.

# foreign_overlay_keep: keep the user's file as one of the versions, whatever is built later.
foreign_overlay_keep() {
  local when
  if [[ ! -f $active || -L $active && $(readlink -- "$active") == versions/* ]]; then return; fi
  when=$(date -u -r "$active" +%Y%m%dT%H%M%S)
  version=${active%/*}/versions/$(basename -- "$active" .sqsh)_$when.sqsh
  until [[ ! -e $version || $version -ef $active ]]; do version=${version%.sqsh}+.sqsh; done
  if [[ -L $active ]]; then
    ln -sfn -- "$(readlink -f -- "$active")" "$version"
  else
    ln -f -- "$active" "$version"
  fi || fail_writing "${version%/*}" "cannot write $version" 'check the permissions of the directory; the line above has the reason'
  version_link "$active" "${version##*/}"
}

# foreign_overlay_take: use a foreign overlay; false if it was built by Longship, or is missing.
foreign_overlay_take() {
  [[ -f $active ]] || return 1
  version=${active%/*}/$(readlink -- "$active")
  if [[ $version =~ _[0-9a-f]{12}\.sqsh$ ]]; then return 1; fi # as overlay_name_version names them
  foreign_overlay_check
  if record_is_complete "$version.json"; then
    overlay_add_base "$version.json"
  else
    step 1/1 "Checking $(readlink -f -- "$version")"
    overlay_write_record '' "$TAKEN_OVER" "$(requirements_print | overlay_join_requirements)" \
      "$(date -u -r "$version" +%Y-%m-%dT%H:%M:%SZ)"
  fi
  note "the overlay was not built by Longship and is used unchanged: $active"
  note 'to build it from the requirements instead, run: python3 build_overlay.py --force'
}

# lists the contents of an overlay, in POSIX sh: a directory of packages for each Python, its own Python, and
# programs whose first line names a Python that does not exist
# shellcheck disable=SC2016  # expanded inside
declare -g LOOK_AT_OVERLAY='cd "$1" || exit
for each in lib/python*/site-packages; do
  if [ -d "$each" ]; then each=${each%/*}; echo "packages ${each#lib/python}"; fi
done
bin/python -I -c "import sys; print(\"python %d.%d\" % sys.version_info[:2])" || :
for each in bin/*; do
  if [ -f "$each" ] && [ ! -L "$each" ] && IFS= read -r line <"$each"; then
    case $line in
      "#!"*/python*) [ -x "${line#??}" ] || { echo "gone ${line#??}"; break; } ;;
    esac
  fi
done'

# foreign_overlay_check: fail if the image cannot use it; set method to the one that mounts it.
foreign_overlay_check() {
  local output='' own
  case $runtime in
    apptainer | singularity) ;;
    *) foreign_overlay_fail "was not built by Longship, and $runtime cannot mount it" ;;
  esac
  for method in bind overlay; do
    output=$(overlay_try "$version" "$method" sh -c "$LOOK_AT_OVERLAY" sh "$longship_overlay_mount" 2>&1) || continue
    if [[ $'\n'$output == *$'\n''packages '* ]]; then break; fi
  done
  if [[ $'\n'$output != *$'\n''packages '* ]]; then
    if [[ -n $output ]]; then printf '%s\n' "$output" >&2; fi
    foreign_overlay_fail "cannot be mounted or does not contain a venv: $longship_overlay_mount/lib/python${python%.*}/site-packages not found"
  fi
  own=$(grep -m 1 '^python ' <<<"$output") ||
    foreign_overlay_fail "was built with another image: its Python, $longship_overlay_mount/bin/python, does not start in $base"
  grep -qx "packages ${own#* }" <<<"$output" ||
    foreign_overlay_fail "is for Python $(sed -n 's/^packages //p' <<<"$output" | paste -s -d ' '), but the image $base has ${own#* }"
  if output=$(grep -m 1 '^gone ' <<<"$output"); then
    note "the overlay's programs need ${output#* }, which does not exist: start them with python -m NAME"
  fi
}

# foreign_overlay_fail MESSAGE: fail; the file stays unchanged.
foreign_overlay_fail() {
  fail "overlay $(readlink -f -- "$version") $1" \
    'set container.image to the image that it was built with; or build a new overlay: python3 build_overlay.py --force'
}
