# shellcheck shell=bash
# Several users of one folder: what one of them makes, the others can read, and replace where the folder
# lets them.

# file_publish PARTIAL FILE: give it its name, readable for whoever may read the folder.
file_publish() {
  group_share "${2%/*}" "$1"
  mv -T -- "$1" "$2" || fail_writing "${2%/*}" "cannot write $2" 'see the line above'
}

# group_set_permissions FOLDER: what is made from now on can be written to by the group, if the folder can and
# hands its group on. Otherwise it would be the user's first group, which can be everybody.
group_set_permissions() {
  local mode
  mode=$(stat -c %A -- "$1")
  if [[ ${mode:5:2} == ws ]]; then umask g=rwx; fi
}

# group_share FOLDER PATH...: who may read or write the folder may do so with these, whatever this
# user's umask; what is another user's is left as it is.
group_share() {
  local mode path
  mode=$(stat -c %A -- "$1")
  for path in "${@:2}"; do
    # its group, not the user's first one
    chgrp --reference="$1" -- "$path" 2>/dev/null || continue
    if [[ ${mode:4:1} == r ]]; then chmod g+rX -- "$path"; fi
    if [[ ${mode:5:1} == w ]]; then chmod g+wX -- "$path"; fi
    if [[ ${mode:7:1} == r ]]; then chmod o+rX -- "$path"; fi
  done
}
