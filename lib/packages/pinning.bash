# shellcheck shell=bash disable=SC2154  # lib/packages/install.py assigns them
# The lock file: one for each stack and architecture, which a group commits.

# renew_lock: resolve all versions again, and report the changes.
# Uses: inside COMMAND..., which runs a command in the image.
renew_lock() {
  check_requirements
  check_repositories
  trap 'rm -rf -- "$unfinished" "$lock.partial"; release_locks' EXIT
  rm -rf -- "$unfinished"
  make_folders "$unfinished"
  step 1/2 "Listing the packages of $base"
  describe_inside "$unfinished/target"
  step 2/2 'Resolving the versions of the other packages'
  find_uv fetch_uv ||
    fail 'uv is not available; it resolves the versions' "check the network; pip's output above has the details"
  pin_packages "$unfinished" "$uv" inside python3
  {
    printf '# Python packages with their hashes for %s; commit this file.\n' "${lock##*/}"
    printf '# Made by "python3 set_up.py update"; "install" then takes exactly these.\n'
    write_header "$(<"$unfinished/target/python")" "$(<"$unfinished/target/glibc")"
    shared_pins "$unfinished/pins.txt"
  } >"$lock.partial" || fail_writing "${lock%/*}" "cannot write $lock" 'check the permissions of the directory; the line above has the reason'
  if [[ -e $lock ]] && ! list_fits "$lock" image "$image_address"; then
    note "$lock was for the image $(header_value image "$lock"); it is now for $image_address"
  fi
  inside python3 "$LIBRARY/packages/inside/pin_packages.py" changes "$lock" "$lock.partial"
  mv -- "$lock.partial" "$lock"
  note "the locked versions are in $lock; commit this file"
  rm -rf -- "$unfinished"
}

# shared_pins FILE: print resolved versions for all members: without directories of this machine and credentials.
shared_pins() {
  sed '/^--find-links file:/d' -- "$1" | without_passwords
}

# pin_packages DIR UV PYTHON...: resolve the versions for the target that DIR/target describes, and write
# DIR/pins.txt; PYTHON... is a command.
pin_packages() {
  local -r folder=$1 its_uv=$2
  local said
  if said=$("${@:3}" "$LIBRARY/packages/inside/pin_packages.py" "$its_uv" "$folder/target" "$arch" "$gpu" "$torch" \
    "$repositories_folder" "$folder/pins.txt" \
    pip ${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"} 2>&1); then
    printf '%s' "${said:+$said$'\n'}" >&2
    return
  fi
  printf '%s\n' "$said" >&2
  explain_index "$said"
  explain_package "$said"
  fail_writing "$folder" 'cannot resolve the versions of the packages' \
    "correct the requirements; uv's output above has the details; without network: $offline_mode"
}

# describe_inside DIR: write the packages of the Python inside. Without an image, the venv shares none of them.
describe_inside() {
  make_folders "$1"
  inside python3 "$LIBRARY/packages/inside/describe_image.py" "$1" ||
    fail_writing "$1" "cannot list the packages of $base" "read Python's output above"
  if [[ $base == host ]]; then forget_packages "$1"; fi
}

# forget_packages DIR: keep only the Python version of a description.
forget_packages() {
  rm -rf -- "$1/wheels"
  mkdir -- "$1/wheels"
  : >"$1/packages.txt"
}
