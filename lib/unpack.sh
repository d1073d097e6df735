#!/usr/bin/env bash
# Set up this repository on a machine without network, from the folder that this file lies in: it
# needs bash, coreutils and python3. What somebody has changed since the last time is kept.
#   bash unpack.sh [FOLDER]      FOLDER is where the repository goes; ./longship unless given
#   bash unpack.sh --verify      check every file of the bundle, and unpack nothing
set -euo pipefail

# stop MESSAGE HINT
stop() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# own_functions BUNDLE: what this script is made of, and the checksums that say whether it is whole.
own_functions() {
  local line
  local -a lines=()
  [[ -f $1/SHA256SUMS ]] || stop "the bundle $1 is not complete: it has no SHA256SUMS" 'copy it again'
  while IFS= read -r line; do
    if [[ ${line:66} == repository/lib/shell/*.bash ]]; then lines+=("$line"); fi
  done <"$1/SHA256SUMS"
  (cd -- "$1" && printf '%s\n' "${lines[@]}" | sha256sum --check --quiet >&2) ||
    stop "the bundle $1 is not complete" 'copy it again: rsync -a --checksum takes only what differs'
}

# newest_python: print the first Python that is new enough for the scripts.
newest_python() {
  local python
  for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  return 1
}

main() {
  local here folder python file verify=
  here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
  case ${1:-} in
    -h | --help)
      printf 'Usage: bash unpack.sh [FOLDER]\n       bash unpack.sh --verify\n\n'
      printf 'Verify this bundle and put the repository into FOLDER (./longship unless given),\n'
      printf 'and what it needs without network into the folders of its configuration.toml.\n'
      printf 'With --verify: check every file of the bundle, and unpack nothing.\n'
      return
      ;;
    --verify) verify=1 ;;
    -*) stop "no such option: $1" 'bash unpack.sh [FOLDER]' ;;
  esac
  (($# <= 1)) || stop 'one folder at most' 'bash unpack.sh [FOLDER]'
  own_functions "$here"
  for file in messages lock watch launch hands bundle unpack repository; do
    # shellcheck source=/dev/null
    source "$here/repository/lib/shell/$file.bash"
  done
  on_interrupt "$(printf '%q ' bash "$0" "$@")"
  if [[ -n $verify ]]; then
    step 1/1 "Verify $here"
    verify_bundle "$here"
    # shellcheck disable=SC2154  # bundle.bash's
    note "complete, ${#bundle_sums[@]} files: $here"
    return
  fi
  folder=${1:-longship}
  if [[ -z ${1:-} && $PWD -ef $here ]]; then folder=$here/../longship; fi # not into the bundle
  folder=$(realpath -m -- "$folder")
  check_repository_folder "$here" "$folder"
  python=$(newest_python) ||
    fail 'no Python 3.9 or newer was found, which the scripts need' 'load its module, then the same command again'
  step 1/4 "Verify $here"
  verify_bundle "$here"
  make_folders "$folder"
  locked "$folder/.unpack" unpack_repository "$here" "$folder" "$python"
  exec "$python" "$folder/bundle.py" unpack --verified "$here"
}

main "$@"
exit
