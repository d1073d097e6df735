# shellcheck shell=bash disable=SC2154,SC2034  # lib/overlay_builds.py assigns them
# Packing, and which of the files the runtime here can mount: the only way to know is to mount one.

# check_build_arch JOB: stop where this machine cannot run what is installed.
check_build_arch() {
  host_arch
  [[ $REPLY == "$arch" ]] ||
    fail "the overlay is for $arch, and this machine is $REPLY" \
      "build it on a compute node: ${1:-in a job, python3 build_overlay.py}"
}

# find_packer: set packer to the mksquashfs of this machine, or else of the image. Before 4.4 it can
# neither set times nor pack with zstd.
find_packer() {
  for packer in 'mksquashfs' 'inside mksquashfs'; do
    read -r -a packer <<<"$packer"
    if packs_overlays "${packer[@]}"; then return; fi
  done
  fail 'there is no mksquashfs 4.4 or newer, neither here nor in the image, which packs the overlay' \
    'install squashfs-tools, or load its module; without an overlay: packages.overlay = ""'
}

# packs_overlays COMMAND...: whether this mksquashfs is new enough.
packs_overlays() {
  local said
  said=$("$@" -version 2>/dev/null) || :
  [[ $said =~ version\ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 404))
}

# pack_overlay FOLDER FILE COMPRESSION [-progress]: what is in it stands at the file's root, with one owner, one
# time, and modes that tell nothing of a umask: the same content gives the same bytes. Large blocks: a
# parallel file system reads a megabyte as fast as a page.
pack_overlay() {
  local -a how=(-comp "$3")
  # xz is a fifth smaller, and takes 30 times as long to pack and 4 times as long to import
  if [[ $3 == zstd ]]; then how+=(-Xcompression-level 3); fi
  if [[ $processors != 0 ]]; then how+=(-processors "$processors"); fi
  if [[ -n $memory ]]; then how+=(-mem "$memory"); fi
  rm -f -- "$2"
  "${packer[@]}" "$1" "$2" "${how[@]}" -b 1M -all-root -action 'chmod(u=rwX,go=rX)@true' -no-xattrs -all-time "$OVERLAY_TIME" \
    -mkfs-time "$OVERLAY_TIME" -noappend "${4:--no-progress}" -quiet
}

# find_way_to_mount: set way to bind or overlay, whichever works here; "" where the file is unpacked.
find_way_to_mount() {
  local each said=
  way=
  case $runtime in apptainer | singularity) ;; *) return ;; esac
  if mountable "$compression"; then return; fi
  for each in zstd lz4 xz gzip; do
    if [[ $each != "$compression" ]] && mountable "$each"; then
      fail "$runtime on this machine cannot mount a SquashFS file packed with $compression" \
        "$each works here; set in configuration.toml: packages.compression = \"$each\""
    fi
  done
  printf '%s\n' "$said" >&2
  fail "$runtime on this machine cannot mount SquashFS files" \
    'see the lines above; without an overlay: packages.overlay = "", then python3 set_up.py install'
}

# mountable COMPRESSION: whether a small file packed so is seen inside; set way to how, or said to why
# not.
mountable() {
  local -r probe=$work/probe.sqsh
  local from
  make_folders "$work/probe$longship_overlay_folder"
  seq 9999 >"$work/probe$longship_overlay_folder/mark"
  for way in bind overlay; do
    from=$work/probe
    if [[ $way == bind ]]; then from+=$longship_overlay_folder; fi
    # not only its folders: what is compressed is read
    if said=$(pack_overlay "$from" "$probe" "$1" 2>&1) &&
      said=$(try_overlay "$probe" "$way" grep -c . "$longship_overlay_folder/mark" 2>&1) &&
      [[ $said == 9999 ]]; then
      return
    fi
  done
  return 1
}

# try_overlay FILE WAY COMMAND...: run a command in the image with that file mounted, and nothing else.
try_overlay() {
  local -a options=()
  add_overlay_file "$1" "$2"
  "$runtime" --quiet exec "${options[@]}" "$base" "${@:3}"
}
