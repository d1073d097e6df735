# shellcheck shell=bash
# An overlay that Longship did not build: a user has put a file, or a link to one, at the path of the overlay
# for the requirements, such as the file of the tutorial that the name's form is from. It becomes one of the
# versions and is checked once; with a record it is used like any other overlay.

# shellcheck source=lib/packages/overlay.bash
source "${BASH_SOURCE[0]%/*}/overlay.bash"

declare -g overlay_taken_over='taken over' # instead of the checksum of its inputs: an overlay that Longship did not build

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
    overlay_write_record '' "$overlay_taken_over" "$(date -u -r "$version" +%Y-%m-%dT%H:%M:%SZ)"
  fi
  note "the overlay was not built by Longship and is used unchanged: $active"
  note 'to build it from the requirements instead, run: python3 build_overlay.py --force'
}

# lists the contents of an overlay, in POSIX sh: a directory of packages for each Python, its own Python, and
# programs whose first line names a Python that does not exist
# shellcheck disable=SC2016  # expanded inside
declare -g overlay_look_script='cd "$1" || exit
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
    output=$(overlay_try "$version" "$method" sh -c "$overlay_look_script" sh "$overlay_target" 2>&1) || continue
    if [[ $'\n'$output == *$'\n''packages '* ]]; then break; fi
  done
  if [[ $'\n'$output != *$'\n''packages '* ]]; then
    if [[ -n $output ]]; then printf '%s\n' "$output" >&2; fi
    foreign_overlay_fail "cannot be mounted or does not contain a venv: $overlay_target/lib/python${python%.*}/site-packages not found"
  fi
  own=$(grep -m 1 '^python ' <<<"$output") ||
    foreign_overlay_fail "was built with another image: its Python, $overlay_target/bin/python, does not start in $base"
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
