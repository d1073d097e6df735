# shellcheck shell=bash disable=SC2154  # lib/packages.py assigns them
# The list of pinned packages, one for a stack and an architecture, which a group commits.

# renew_lock: choose all versions anew, and say what has changed.
# Uses: inside COMMAND..., which runs a command in the image.
renew_lock() {
  check_requirements
  check_repositories
  trap 'rm -rf -- "$unfinished" "$lock.partial"; release_locks' EXIT
  rm -rf -- "$unfinished"
  make_folders "$unfinished"
  step 1/2 "See which packages $base has"
  describe_inside "$unfinished/target"
  step 2/2 'Choose the versions of the others'
  find_uv fetch_uv ||
    fail 'there is no uv, which chooses the versions' \
      'see the lines above; it comes from the package index'
  pin_packages "$unfinished" "$uv" inside python3
  {
    printf '# Python packages with their hashes for %s; commit this file.\n' "${lock##*/}"
    printf '# Made by "python3 set_up.py update"; "install" then takes exactly these.\n'
    write_header "$(<"$unfinished/target/python")" "$(<"$unfinished/target/glibc")"
    cat -- "$unfinished/pins.txt"
  } >"$lock.partial" || fail_writing "${lock%/*}" "cannot write $lock" 'see the line above'
  if [[ -e $lock ]] && ! list_fits "$lock" image "$image_address"; then
    note "$lock was made for the image $(header_value image "$lock"); now it is for $image_address"
  fi
  inside python3 "$LIBRARY/inside/pin_packages.py" changes "$lock" "$lock.partial"
  mv -- "$lock.partial" "$lock"
  note "the locked versions are in $lock; commit this file"
  rm -rf -- "$unfinished"
}

# pin_packages FOLDER UV PYTHON...: choose versions for the target that FOLDER/target describes, and
# write FOLDER/pins.txt; PYTHON... is a command.
pin_packages() {
  local -r folder=$1 its_uv=$2
  local said
  if said=$("${@:3}" "$LIBRARY/inside/pin_packages.py" "$its_uv" "$folder/target" "$arch" "$gpu" "$torch" \
    "$repositories_folder" "$folder/pins.txt" \
    pip ${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"} 2>&1); then
    printf '%s' "${said:+$said$'\n'}" >&2
    return
  fi
  printf '%s\n' "$said" >&2
  explain_index "$said"
  explain_package "$said"
  fail_writing "$folder" 'the versions of the packages cannot be chosen' \
    "see the lines above; mend the requirements, and run the same command again; without a network: $offline_mode"
}

# describe_inside FOLDER: write down what the Python inside has. Where there is no image the venv
# shares nothing with it.
describe_inside() {
  make_folders "$1"
  inside python3 "$LIBRARY/inside/describe_image.py" "$1" ||
    fail_writing "$1" "python3 cannot tell what $base has" 'see the lines above'
  if [[ $base == host ]]; then forget_packages "$1"; fi
}

# forget_packages FOLDER: leave of a description only what the Python is.
forget_packages() {
  rm -rf -- "$1/wheels"
  mkdir -- "$1/wheels"
  : >"$1/packages.txt"
}
