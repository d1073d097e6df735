# shellcheck shell=bash
# An overlay that Longship did not build: a user has put a file, or a link to one, at the path of
# the overlay for the requirements, such as the file of the tutorial that the name's form is from.
# It becomes one of the versions and is checked once; with a record it is used like any other
# overlay.

# shellcheck source=lib/packages/overlay.bash
source "${BASH_SOURCE[0]%/*}/overlay.bash"

# instead of the checksum of its inputs: an overlay that Longship did not build
declare -g overlay_taken_over='taken over'

# foreign_overlay_take: use a foreign overlay; false if it was built by Longship, or is missing.
foreign_overlay_take() {
  [[ -f $overlay_active ]] || return 1
  overlay_version=${overlay_active%/*}/$(readlink -- "$overlay_active")
  # as overlay_name_version names them
  if [[ $overlay_version =~ _[0-9a-f]{12}\.sqsh$ ]]; then return 1; fi
  foreign_overlay_check
  if record_is_complete "$overlay_version.json"; then
    overlay_add_base "$overlay_version.json"
  else
    step 1/1 "Checking $(readlink -f -- "$overlay_version")"
    overlay_write_record '' "$overlay_taken_over" "$(date -u -r "$overlay_version" +%Y-%m-%dT%H:%M:%SZ)" \
      "$(file_checksum "$overlay_version")"
  fi
  note "the overlay was not built by Longship and is used unchanged: $overlay_active"
  note 'to build it from the requirements instead, run: python3 build_overlay.py --force'
}

# foreign_overlay_check: fail if the image cannot use it; set overlay_method to the one that mounts
# it. Python puts only directories that exist on its search path.
foreign_overlay_check() {
  local -r has_packages='import sys
sys.exit(sys.prefix != sys.argv[1] or not any(each.startswith(f"{sys.prefix}/lib/python") and
  each.endswith("/site-packages") for each in sys.path))'
  local -r anew='build a new overlay: python3 build_overlay.py --force'
  local output
  case $runtime in
    apptainer | singularity) ;;
    *) fail "$runtime cannot mount the overlay $(readlink -f -- "$overlay_version"), which was not \
built by Longship" "$anew" ;;
  esac
  for overlay_method in bind overlay; do
    if output=$(overlay_try "$overlay_version" "$overlay_method" "$overlay_target/bin/python" -I -c "$has_packages" "$overlay_target" 2>&1); then
      return
    fi
  done
  if [[ -n $output ]]; then printf '%s\n' "$output" >&2; fi
  fail "overlay $(readlink -f -- "$overlay_version") contains no venv for Python $overlay_python of the image $base" \
    "set container.image to the image that it was built with; or $anew"
}
