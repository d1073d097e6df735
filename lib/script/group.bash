# shellcheck shell=bash
# Several users of one folder: what one of them makes, the others can read, and replace where the folder
# lets them.

# publish_file PARTIAL FILE: give it its name, readable for whoever may read the folder.
publish_file() {
  share_with_group "${2%/*}" "$1"
  mv -T -- "$1" "$2" || fail_writing "${2%/*}" "cannot write $2" 'see the line above'
}

# set_group_permissions FOLDER: what is made from now on can be written to by the group, if the folder can and
# hands its group on. Otherwise it would be the user's first group, which can be everybody.
set_group_permissions() {
  local mode
  mode=$(stat -c %A -- "$1")
  if [[ ${mode:5:2} == ws ]]; then umask g=rwx; fi
}

# share_with_group FOLDER PATH...: who may read or write the folder may do so with these, whatever this
# user's umask; what is another user's is left as it is.
share_with_group() {
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
