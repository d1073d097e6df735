# shellcheck shell=bash disable=SC2154,SC2034  # lib/packages/overlay.py assigns them
# Packing, and testing which SquashFS files the runtime can mount: only a real mount shows it.

# check_build_arch JOB: fail if this machine cannot run programs of the target's architecture.
check_build_arch() {
  host_arch
  [[ $REPLY == "$arch" ]] ||
    fail "cannot build an overlay for $arch on this $REPLY machine" \
      "build it on a compute node: ${1:-python3 build_overlay.py in a job}"
}

# find_packer: set packer to the mksquashfs of this machine, or else of the image. Versions before 4.4 can
# neither set times nor pack with zstd.
find_packer() {
  for packer in 'mksquashfs' 'inside mksquashfs'; do
    read -r -a packer <<<"$packer"
    if packs_overlays "${packer[@]}"; then return; fi
  done
  fail 'mksquashfs 4.4 or newer not found, neither on this machine nor in the image; it packs the overlay' \
    'install squashfs-tools, or load its module; or use no overlay: packages.overlay = ""'
}

# packs_overlays COMMAND...: whether this mksquashfs is new enough.
packs_overlays() {
  local said
  said=$("$@" -version 2>/dev/null) || :
  [[ $said =~ version\ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 404))
}

# pack_overlay DIR FILE COMPRESSION [-progress]: pack its content with one owner, one time, and modes independent
# of the umask: the same content gives the same bytes. Large blocks, because a parallel file system reads a
# megabyte as fast as a page.
pack_overlay() {
  local -a how=(-comp "$3")
  # xz is a fifth smaller, but takes 30 times as long to pack and 4 times as long to import
  if [[ $3 == zstd ]]; then how+=(-Xcompression-level 3); fi
  if [[ $processors != 0 ]]; then how+=(-processors "$processors"); fi
  if [[ -n $memory ]]; then how+=(-mem "$memory"); fi
  rm -f -- "$2"
  "${packer[@]}" "$1" "$2" "${how[@]}" -b 1M -all-root -action 'chmod(u=rwX,go=rX)@true' -no-xattrs -all-time "$OVERLAY_TIME" \
    -mkfs-time "$OVERLAY_TIME" -noappend "${4:--no-progress}" -quiet
}

# find_way_to_mount: set way to bind or overlay, whichever works on this machine; "" if the file is unpacked.
find_way_to_mount() {
  local each said=
  way=
  case $runtime in apptainer | singularity) ;; *) return ;; esac
  if mountable "$compression"; then return; fi
  for each in zstd lz4 xz gzip; do
    if [[ $each != "$compression" ]] && mountable "$each"; then
      fail "$runtime on this machine cannot mount SquashFS files packed with $compression" \
        "set packages.compression = \"$each\" in configuration.toml, which works on this machine"
    fi
  done
  printf '%s\n' "$said" >&2
  fail "$runtime on this machine cannot mount SquashFS files" \
    "read $runtime's output above; or use no overlay: set packages.overlay = \"\" and run: python3 set_up.py install"
}

# mountable COMPRESSION: whether a small file packed with it can be read inside; set way to the method, or said to
# the reason.
mountable() {
  local -r probe=$work/probe.sqsh
  local from
  make_folders "$work/probe$longship_overlay_folder"
  seq 9999 >"$work/probe$longship_overlay_folder/mark"
  for way in bind overlay; do
    from=$work/probe
    if [[ $way == bind ]]; then from+=$longship_overlay_folder; fi
    # read a file, not only directories: file contents are compressed
    if said=$(pack_overlay "$from" "$probe" "$1" 2>&1) &&
      said=$(try_overlay "$probe" "$way" grep -c . "$longship_overlay_folder/mark" 2>&1) &&
      [[ ${said##*$'\n'} == 9999 ]]; then # Apptainer's warnings come before it
      return
    fi
  done
  return 1
}

# try_overlay FILE METHOD COMMAND...: run a command in the image with only that file mounted.
try_overlay() {
  local -a options=()
  add_overlay_file "$1" "$2"
  "$runtime" --quiet exec "${options[@]}" "$base" "${@:3}"
}
