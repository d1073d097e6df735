# shellcheck shell=bash disable=SC2154  # lib/packages/overlay.py assigns them
# The record of an overlay: its images, its inputs and its contents.

# add_base RECORD: add this image to those that the overlay is for; a job can run the same one under another name.
add_base() {
  local bases
  record_value "$1" base
  bases=$REPLY
  if ! is_base "$base" "$bases"; then
    json_text "$base"
    change_record "$1" base "$bases"'\n'"$REPLY"
  fi
  date_record "$1"
}

# date_record RECORD: make it no older than the image, see check_overlay.
date_record() {
  if [[ $base == /* && $base -nt $1 ]]; then touch -- "$1"; fi
  if [[ $base == /* && $base -nt $1 ]]; then touch -r "$base" -- "$1"; fi # its time is in the future
}

# change_record FILE NAME TEXT: replace one of its values, not the last one; TEXT is in JSON.
change_record() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "  \"$2\": "* ]]; then line="  \"$2\": \"$3\","; fi
    printf '%s\n' "$line"
  done <"$1" >"$1.partial" || fail_writing "${1%/*}" "cannot write $1" 'check the permissions of the directory; the line above has the reason'
  put_shared "$1.partial" "$1"
}

# without_passwords: copy text, without the credentials in URLs.
without_passwords() {
  sed -E 's#(://)[^/@[:space:]]+@#\1#g'
}

# print_all_requirements: print the requirements, files by their contents.
print_all_requirements() {
  local word
  for word in ${requirements[@]+"${requirements[@]}"}; do
    if [[ -f $word ]]; then
      print_requirements "$word"
    elif [[ $word != -r ]]; then
      printf '%s\n' "$word"
    fi
  done
}

# listed_requirements: join them in one line, without comments.
listed_requirements() {
  sed -e 's/ *#.*//' -e '/^ *$/d' | paste -s -d ' '
}

# write_overlay_record: write the record that launches and lists read.
write_overlay_record() {
  write_facts "$version.json.partial" base "$base" image "$image_id" python "$python" \
    interpreter "$interpreter" mounted_by "${way:-unpacking}" wanted "$wanted" \
    requirements "$(listed_requirements <"$work/requirements.txt")" \
    packages "$(grep -c '^[^-].*==' "$work/pins.txt")" compression "$compression" \
    bytes "$(stat -c %s -- "$version")" modified "$(image_mark "$version")" sha256 "$(checksum "$version")" \
    date "$(date -u +%Y-%m-%dT%H:%M:%SZ)" host "$(this_host)"
  put_shared "$version.json.partial" "$version.json"
  date_record "$version.json"
}
