# shellcheck shell=bash
# Directories of several users: who may read or write a directory can read or replace its files.

# file_publish PARTIAL FILE: rename a complete file to its final name; who may read its directory can read it. -f:
# on a terminal mv would ask before it replaces a file that this user cannot write to.
file_publish() {
  group_share "${2%/*}" "$1"
  mv -f -T -- "$1" "$2" || fail_writing "${2%/*}" "cannot write $2" 'see the line above'
}

# group_make ROOT DIR...: make directories that the group of ROOT shares. It can write to all new files if it may write to
# ROOT, and ROOT is setgid. Without setgid, new files have the user's primary group, which can contain everybody.
group_make() {
  local mode
  mode=$(stat -c %A -- "$1")
  if [[ ${mode:5:2} == ws ]]; then umask g=rwx; fi
  directory_make "${@:2}"
  group_share "$@"
}

# group_share DIR PATH...: give paths the group of a directory, and who may read or write it the same
# permission, whatever the umask. Paths of other users are left unchanged.
group_share() {
  local mode path
  mode=$(stat -c %A -- "$1")
  for path in "${@:2}"; do
    chgrp --reference="$1" -- "$path" 2>/dev/null || continue
    if [[ ${mode:4:1} == r ]]; then chmod g+rX -- "$path"; fi
    if [[ ${mode:5:1} == w ]]; then chmod g+wX -- "$path"; fi
    if [[ ${mode:7:1} == r ]]; then chmod o+rX -- "$path"; fi
  done
}
