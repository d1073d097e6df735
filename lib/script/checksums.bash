# shellcheck shell=bash
# Checksums of files.

# checksums_check DIR: print the paths in DIR that are missing, or do not match the lines of
# sha256sum on standard input. One file per process: all cores work, and the largest file determines
# the time.
checksums_check() {
  # shellcheck disable=SC2016  # expanded by sh
  (cd -- "$1" && LC_ALL=C xargs -r -d '\n' -P "$(nproc)" -n 1 \
    sh -c 'printf "%s\n" "$1" | sha256sum --check --quiet --status || printf "%s\n" "${1#*  }"' check 2>/dev/null)
}

# file_checksum FILE: print its SHA-256, as sha256:...
file_checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(progress_run "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the error above'
  printf 'sha256:%s' "${sum%% *}"
}
