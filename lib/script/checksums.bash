# shellcheck shell=bash
# Checksums of files.

# checksums_check DIR: print the paths in DIR that are missing, not regular files, or do not match the
# lines of sha256sum on standard input. One file per process: all cores work, and the largest file
# determines the time.
checksums_check() {
  # shellcheck disable=SC2016  # expanded by sh
  (cd -- "$1" && LC_ALL=C xargs -r -d '\n' -P "$(nproc)" -n 1 \
    sh -c 'file=${1#*  }
[ -f "./$file" ] && printf "%s\n" "$1" | sha256sum --check --quiet --status || printf "%s\n" "$file"' check 2>/dev/null)
}

# checksums_verify LIST DIR HINT: fail if LIST, of sha256sum with the number of files as its last
# line, is not complete, or if a file in DIR is missing or does not match it.
checksums_verify() {
  local bad REPLY
  local -i count
  file_read "$1" || fail "$1 is not a regular file of at most 64 MiB of text" "$3"
  count=$(grep -c '^[0-9a-f]\{64\}  ' -- "$1") || :
  [[ $(tail -n 1 -- "$1") == "# $count files in all" ]] || fail "$1 is truncated" "$3"
  # -c, not -q: a reader that stops early makes the pipe fail, which would mean "none"
  if cut -c 67- -- "$1" | grep -cE '^/|(^|/)\.\.(/|$)' >/dev/null; then
    fail "$1 lists files outside of its directory" 'do not use it: its source is not trustworthy'
  fi
  bad=$(sed '/^#/d' -- "$1" | checksums_check "$2") || fail "cannot read the files of $1" "$3"
  bad=${bad%%$'\n'*}
  if [[ -z $bad ]]; then return; fi
  [[ -e $2/$bad ]] || fail "$2/$bad is missing" "$3"
  fail "$2/$bad is truncated or damaged: its checksum does not match" "$3"
}

# file_checksum FILE: print its SHA-256, as sha256:...
file_checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(progress_run "$1" sha256sum <"$1") || fail "cannot read $1" 'see the error above'
  printf 'sha256:%s' "${sum%% *}"
}
