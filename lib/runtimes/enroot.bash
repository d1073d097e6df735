# shellcheck shell=bash
# The runtime enroot.

# enroot_hide_gpus: on a machine without GPUs, let images start that require one, as NVIDIA's do: enroot's hook would
# fail. Only this launch gets the variable: an exported one would reach jobs and hide their GPUs.
enroot_hide_gpus() {
  if [[ ! -e /dev/nvidiactl ]]; then options=(env NVIDIA_VISIBLE_DEVICES=void "${options[@]}"); fi
}

# sqsh_check FILE HINT: stop if the image is missing or not an image. Its architecture is checked at the build:
# that takes too long for each launch.
sqsh_check() {
  local magic=''
  image_check_readable "$1" "$2"
  IFS= read -r -n 4 magic <"$1" 2>/dev/null || :
  [[ $magic == hsqs ]] || fail "not a SquashFS image: $1" "$2"
}

# sqsh_arch FILE: print the architecture of the programs in an image, as enroot records none; print nothing if
# the file is incomplete. Symbolic links are skipped: older versions of unsquashfs do not follow them.
sqsh_arch() {
  local file code
  while IFS= read -r file; do
    code=$(unsquashfs -cat "$1" "$file" 2>/dev/null | head -c 20 | od -An -v -tx1 | tr -d ' \n')
    case $code in
      7f454c46*3e00) printf amd64 && return ;;
      7f454c46*b700) printf arm64 && return ;;
    esac
  done < <(unsquashfs -lln "$1" 2>/dev/null | awk '$1 ~ /^-r.x/ && sub(/^.* squashfs-root\//, "")' |
    grep -E '(^|/)(bin|sbin)/[^/]+$' 2>/dev/null | head -n 50)
}

# enroot_add_bind SOURCE TARGET MODE: add a bind as enroot reads it: a line of fstab, with colons between the fields.
enroot_add_bind() {
  local path
  local -a fields=()
  for path in "$1" "$2"; do
    path=${path//\\/\\134}
    path=${path// /\\040}
    path=${path//$'\t'/\\011}
    path=${path//$'\n'/\\012}
    path=${path//:/\\072}
    fields+=("$path")
  done
  options+=(--mount "${fields[0]}:${fields[1]}:none:x-create=auto,rbind,$3")
}
