# shellcheck shell=bash disable=SC2154,SC2034  # lib/overlay_builds.py assigns them
# An overlay that was not made here: somebody has put a file, or a link to one, where the overlay
# for the requirements is looked for, such as the one of the tutorial that gave the name its form. It
# becomes one of the versions and is looked into once; with a record it is an overlay like any other.
# It is not copied, and what a link leads to is never changed or deleted.

declare -g TAKEN_OVER='taken over' # in place of the checksum of what an overlay was built from

# keep_foreign_overlay: whatever is built later, what was put there stays as one of the versions.
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
  fi || fail_writing "${version%/*}" "cannot write $version" 'see the line above'
  link_to "$version"
}

# take_over_overlay: false where what is there was built here, or nothing is.
take_over_overlay() {
  [[ -f $active ]] || return 1
  version=${active%/*}/$(readlink -- "$active")
  if [[ $version =~ _[0-9a-f]{12}\.sqsh$ ]]; then return 1; fi # as name_version names them
  remove_work
  check_foreign_overlay
  if is_record "$version.json"; then
    add_base "$version.json"
  else
    step 1/1 "Take over $(readlink -f -- "$version")"
    write_foreign_record
  fi
  note "the overlay was not made by Longship and is used as it is: $active"
  note 'its packages are what they were; to have it built from the requirements: python3 build_overlay.py --force'
}

# what an overlay holds, in POSIX sh: a folder of packages for each Python, the Python of its own, and
# programs whose first line names a Python that is not there
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

# check_foreign_overlay: stop where the image cannot use it; set way to how it is mounted.
check_foreign_overlay() {
  local said='' own
  case $runtime in
    apptainer | singularity) ;;
    *) refuse_overlay "was not made by Longship, and $runtime mounts no such file" ;;
  esac
  for way in bind overlay; do
    said=$(try_overlay "$version" "$way" sh -c "$LOOK_AT_OVERLAY" sh "$longship_overlay_folder" 2>&1) || continue
    if [[ $'\n'$said == *$'\n''packages '* ]]; then break; fi
  done
  if [[ $'\n'$said != *$'\n''packages '* ]]; then
    if [[ -n $said ]]; then printf '%s\n' "$said" >&2; fi
    refuse_overlay "cannot be mounted, or holds no venv: there is no $longship_overlay_folder/lib/python${python%.*}/site-packages"
  fi
  own=$(grep -m 1 '^python ' <<<"$said") ||
    refuse_overlay "was made with another image: its Python, $longship_overlay_folder/bin/python, does not start in $base"
  grep -qx "packages ${own#* }" <<<"$said" ||
    refuse_overlay "is for Python $(sed -n 's/^packages //p' <<<"$said" | paste -s -d ' '), and the image has ${own#* }: $base"
  if said=$(grep -m 1 '^gone ' <<<"$said"); then
    note "its programs look for ${said#* }, which is not there: start them as python -m NAME"
  fi
}

# refuse_overlay MESSAGE: it stays where it is.
refuse_overlay() {
  fail "the overlay $(readlink -f -- "$version") $1" \
    'name the image that it was made with, container.image; or have one built: python3 build_overlay.py --force'
}

# write_foreign_record: the same facts as of one that was built here, as far as they can be known.
write_foreign_record() {
  write_facts "$version.json.partial" base "$base" image '' python "$python" \
    interpreter "$interpreter" mounted_by "$way" wanted "$TAKEN_OVER" \
    requirements "$(print_all_requirements | without_passwords | listed_requirements)" \
    bytes "$(stat -L -c %s -- "$version")" modified "$(image_mark "$version")" sha256 "$(checksum "$version")" \
    date "$(date -u -r "$version" +%Y-%m-%dT%H:%M:%SZ)" host "$(this_host)"
  put_shared "$version.json.partial" "$version.json"
}
