# shellcheck shell=bash
# Files and directories that nobody else can change, whatever umask, default ACL and links: each has
# its final mode before its content. A mode that is set explicitly also limits what an ACL gives to
# others.

# directory_make DIR...: make directories, with missing parents, that only the user can enter; stop
# at one that cannot be made or entered.
directory_make() {
  local directory reason
  for directory in "$@"; do
    [[ -d $directory && -x $directory ]] && continue
    reason=$({ directory_create "$directory" && cd -- "$directory"; } 2>&1) ||
      fail_writing "$directory" "cannot use the directory $directory: ${reason##*: }" \
        'set [paths] in configuration.toml to a directory that you can write to, or change the permissions'
  done
}

# directory_create DIR: mkdir's own -p gives only the last directory a mode.
directory_create() {
  local parent=${1%/*}
  if [[ $1 != */* ]]; then parent=.; fi
  if [[ ! -d ${parent:-/} ]]; then directory_create "$parent" || return; fi
  mkdir -m 700 -- "$1" || [[ -d $1 ]] # another process has made it meanwhile
}

# roots_make SCRATCH DIR...: make the user's directories, and those in SCRATCH in which programs
# write what runs; stop at one that others can change.
roots_make() {
  local -a written=("$1"/{cache,venvs})
  local directory
  for directory in "$1"/tools_{amd64,arm64}; do
    if [[ -d $directory ]]; then written+=("$directory"); fi
  done
  set -- "$@" "$1/runs" "${written[@]}"
  directory_make "$@"
  directory_check_own "$@"
  directory_check_closed "$1" "${written[@]}"
  if [[ -n ${SLURM_JOB_ID:-} ]]; then temporary_choose /tmp; else temporary_choose "$1/tmp"; fi
}

# directory_check_closed ABOVE DIR...: stop if others can enter ABOVE and a directory in it into which
# programs write what runs: they do so with the user's umask.
directory_check_closed() {
  local mode directory
  if ! directory_is_reachable "$1"; then return 0; fi
  while read -r mode directory; do
    if ((16#$mode & 8#077)); then
      fail "other users can enter $directory, in which programs write what you run" \
        "delete what others may have changed in it, and run: chmod go= $(printf %q "$directory")"
    fi
  done < <(exec stat -L -c '%f %n' -- "${@:2}")
}

# directory_is_reachable DIR: whether others can enter a directory: it, and those above it, are not
# closed by the user.
directory_is_reachable() {
  local path owner mode
  local -a paths=()
  path=$(cd -P -- "$1" && pwd -P) || return
  while [[ $path == /?* ]]; do
    paths+=("$path")
    path=${path%/*}
  done
  while read -r owner mode; do
    if [[ $owner == "$UID" ]] && ((!(16#$mode & 8#077))); then return 1; fi
  done < <(exec stat -c '%u %f' -- "${paths[@]}")
}

# temporary_choose DIR: replace a TMPDIR that does not exist, or in which others can exchange files,
# by DIR.
temporary_choose() {
  local owner=-1 mode=0
  if [[ -z ${TMPDIR:-} ]]; then return 0; fi
  read -r owner mode < <(exec stat -L -c '%u %f' -- "$TMPDIR" 2>/dev/null) || :
  if [[ $owner == "$UID" || $owner == 0 ]] && ((!(16#$mode & 8#022) || 16#$mode & 8#1000)); then return 0; fi
  warn_of "TMPDIR, $TMPDIR, does not exist, or other users can exchange your files in it: using $1" \
    'export TMPDIR with a directory of your own, to which nobody else can write'
  if [[ $1 != /tmp ]]; then
    directory_make "$1"
    directory_check_own "$1"
  fi
  export TMPDIR=$1
}

# directory_check_own DIR...: stop at one that another user owns or can change, or to which a link of
# another user than root leads.
directory_check_own() {
  local found owner mode directory
  local -a links=()
  for directory in "$@"; do links_find "$directory"; done
  found=$(stat -L -c '%u %f %n' -- "$@" && { ((!${#links[@]})) || stat -c '%u %f %n' -- "${links[@]}"; }) ||
    fail "cannot check who can write to ${*@Q}" 'see the line above'
  found+=$'\n'
  while [[ -n $found ]]; do # no here-string, for which old versions of bash make a file in TMPDIR
    directory=${found%%$'\n'*} found=${found#*$'\n'}
    owner=${directory%% *} directory=${directory#* }
    mode=${directory%% *} directory=${directory#* }
    if [[ $owner != "$UID" ]] && ((owner != 0 || (16#$mode & 8#170000) != 8#120000)); then
      fail "$directory belongs to $(id -un -- "$owner" 2>/dev/null || echo "user $owner"), who would decide what you run" \
        'set [paths] in configuration.toml to directories of your own; what a group builds once can be in paths.shared_dir'
    elif ((16#$mode & 8#022 && (16#$mode & 8#170000) != 8#120000)); then
      fail "other users can write to $directory, and would decide what you run" \
        "delete what others may have changed in it, and run: chmod go-w $(printf %q "$directory"); if that has no effect, \
set [paths] to a file system with permissions"
    fi
  done
}

# links_find PATH: add to links each link on the way to a path, and those on the way to where they
# lead. The kernel follows no more than 40: the path of a longer chain cannot be opened.
links_find() {
  local place='' rest=${1#/}/ target followed=0
  while [[ -n $rest ]] && ((followed < 40)); do
    case ${rest%%/*} in
      '' | .) ;;
      ..) place=${place%/*} ;;
      *) place+=/${rest%%/*} ;;
    esac
    rest=${rest#*/}
    if [[ -L $place ]]; then
      links+=("$place")
      followed=$((followed + 1))
      target=$(readlink -- "$place") || return
      if [[ $target == /* ]]; then place=; else place=${place%/*}; fi
      rest=$target/$rest
    fi
  done
}

# shared_make ROOT NAME...: make the directories in ROOT that contain what the user builds for a
# group: only the user writes to them, and who can enter ROOT reads them.
shared_make() {
  local name
  [[ -d $1 ]] || fail "the shared directory does not exist: $1" \
    "run: mkdir -m 750 $(printf %q "$1"); then let your group read it: chgrp GROUP $(printf %q "$1")"
  [[ -O $1 ]] || fail "$1 belongs to $(stat -c %U -- "$1"), who builds what it contains" \
    'to build your own, set paths.shared_dir = "" in configuration.local.toml'
  directory_check_own "$1"
  umask 022
  for name in "${@:2}"; do
    [[ -d $1/$name ]] || mkdir -m 755 -- "$1/$name" || [[ -d $1/$name ]] ||
      fail_writing "$1" "cannot create the directory $1/$name" 'see the line above'
  done
}

# shared_open DIR: let who can enter the directory above read it and what it contains, which only
# the user can change. -depth: nobody can enter it before all files in it have their mode.
shared_open() {
  find "$1" -depth ! -type l -exec chmod u=rwX,go=rX -- {} + ||
    fail "cannot change the permissions of $1" 'see the line above'
}

# pins_make DIR: who can enter the directory above can pin what it contains; nobody removes the pin
# of another user.
pins_make() {
  [[ -d $1 ]] || mkdir -m 1777 -- "$1" || [[ -d $1 ]] ||
    fail_writing "${1%/*}" "cannot create the directory $1" 'see the line above'
}

# is_own PATH...: whether each is a file or directory of the user, no link, and nobody else can
# write to it.
is_own() {
  local owner mode
  while read -r owner mode; do
    mode=$((16#$mode))
    ((owner == UID && !(mode & 8#022) && ((mode & 8#170000) == 8#040000 || (mode & 8#170000) == 8#100000))) || return
  done < <(stat -c '%u %f' -- "$@" 2>/dev/null || printf '%s\n' "$UID 0")
}

# file_begin FILE [MODE]: set REPLY to a new file, for its content; what a killed process has left
# of it is replaced.
file_begin() {
  REPLY=$1.partial
  install -m "${2:-644}" -T -- /dev/null "$REPLY" ||
    fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# file_publish PARTIAL FILE: rename a complete file to its final name. -f: on a terminal mv would
# ask before it replaces a file.
file_publish() {
  mv -f -T -- "$1" "$2" || fail_writing "${2%/*}" "cannot write $2" 'see the line above'
}

# file_write FILE TEXT [MODE]: write a file, complete or not at all; who can enter its directory can
# read it, unless MODE is another one than 644.
file_write() {
  local REPLY
  file_begin "$1" "${@:3}"
  printf '%s' "$2" >"$REPLY" || {
    rm -f -- "$REPLY"
    fail_writing "${1%/*}" "cannot write $1" 'see the line above'
  }
  file_publish "$REPLY" "$1"
}
