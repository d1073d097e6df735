# shellcheck shell=bash disable=SC2154,SC2034  # lib/packages/overlay.py assigns them
# An overlay that Longship did not build: a user has put a file, or a link to one, at the path of the overlay
# for the requirements, such as the file of the tutorial that the name's form is from. It becomes one of the
# versions and is checked once; with a record it is used like any other overlay. It is not copied, and the target
# of a link is never changed or deleted.

declare -g TAKEN_OVER='taken over' # instead of the checksum of an overlay's inputs

# keep_foreign_overlay: keep the user's file as one of the versions, whatever is built later.
keep_foreign_overlay() {
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
  link_to "$version"
}

# take_over_overlay: use a foreign overlay; false if it was built by Longship, or is missing.
take_over_overlay() {
  [[ -f $active ]] || return 1
  version=${active%/*}/$(readlink -- "$active")
  if [[ $version =~ _[0-9a-f]{12}\.sqsh$ ]]; then return 1; fi # as name_version names them
  remove_work
  check_foreign_overlay
  if is_record "$version.json"; then
    add_base "$version.json"
  else
    step 1/1 "Checking $(readlink -f -- "$version")"
    write_foreign_record
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

# check_foreign_overlay: fail if the image cannot use it; set way to the method that mounts it.
check_foreign_overlay() {
  local said='' own
  case $runtime in
    apptainer | singularity) ;;
    *) refuse_overlay "was not built by Longship, and $runtime cannot mount it" ;;
  esac
  for way in bind overlay; do
    said=$(try_overlay "$version" "$way" sh -c "$LOOK_AT_OVERLAY" sh "$longship_overlay_folder" 2>&1) || continue
    if [[ $'\n'$said == *$'\n''packages '* ]]; then break; fi
  done
  if [[ $'\n'$said != *$'\n''packages '* ]]; then
    if [[ -n $said ]]; then printf '%s\n' "$said" >&2; fi
    refuse_overlay "cannot be mounted or does not contain a venv: $longship_overlay_folder/lib/python${python%.*}/site-packages not found"
  fi
  own=$(grep -m 1 '^python ' <<<"$said") ||
    refuse_overlay "was built with another image: its Python, $longship_overlay_folder/bin/python, does not start in $base"
  grep -qx "packages ${own#* }" <<<"$said" ||
    refuse_overlay "is for Python $(sed -n 's/^packages //p' <<<"$said" | paste -s -d ' '), but the image $base has ${own#* }"
  if said=$(grep -m 1 '^gone ' <<<"$said"); then
    note "the overlay's programs need ${said#* }, which does not exist: start them with python -m NAME"
  fi
}

# refuse_overlay MESSAGE: fail; the file stays unchanged.
refuse_overlay() {
  fail "overlay $(readlink -f -- "$version") $1" \
    'set container.image to the image that it was built with; or build a new overlay: python3 build_overlay.py --force'
}

# write_foreign_record: write the same facts as for an overlay of Longship, if they are known.
write_foreign_record() {
  write_facts "$version.json.partial" base "$base" image '' python "$python" \
    interpreter "$interpreter" mounted_by "$way" wanted "$TAKEN_OVER" \
    requirements "$(print_all_requirements | without_passwords | listed_requirements)" \
    bytes "$(stat -L -c %s -- "$version")" modified "$(image_mark "$version")" sha256 "$(checksum "$version")" \
    date "$(date -u -r "$version" +%Y-%m-%dT%H:%M:%SZ)" host "$(this_host)"
  put_shared "$version.json.partial" "$version.json"
}
