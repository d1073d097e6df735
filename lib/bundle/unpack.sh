#!/usr/bin/env bash
# Unpack this bundle on an air-gapped machine; needs bash, coreutils and python3. Files that you have changed
# are kept; the bundle's version is written next to them.
#   bash unpack.sh [TARGET]      put the repository into TARGET (default: ./longship)
#   bash unpack.sh --verify      check every file of the bundle and unpack nothing
set -euo pipefail

# stop MESSAGE HINT
stop() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# usage MESSAGE: a usage error ends with exit code 2, as those of the entry scripts.
usage() {
  printf 'error: %s\nhint: run: bash unpack.sh --help\n' "$1" >&2
  exit 2
}

# own_functions BUNDLE: check the files that this script sources against their checksums.
own_functions() {
  local line
  local -a lines=()
  [[ -f $1/SHA256SUMS ]] || stop "the bundle is incomplete: not found: $1/SHA256SUMS" 'copy the bundle again'
  while IFS= read -r line; do
    if [[ ${line:66} == repository/lib/*/*.bash ]]; then lines+=("$line"); fi
  done <"$1/SHA256SUMS"
  (cd -- "$1" && printf '%s\n' "${lines[@]}" | sha256sum --check --quiet >&2) ||
    stop "the bundle is incomplete or corrupt: $1" 'copy the bundle again: rsync -a --checksum copies only what differs'
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
      printf 'Usage: bash unpack.sh [TARGET]\n       bash unpack.sh --verify\n\n'
      printf 'Verify this bundle, put the repository into TARGET (default: ./longship) and unpack\n'
      printf 'the rest into the directories that its configuration.toml sets.\n\n'
      printf '  --verify  Check every file of the bundle and unpack nothing.\n'
      printf '  --help    Show this message and exit.\n'
      return
      ;;
    --verify) verify=1 ;;
    -*) usage "no such option: $1" ;;
  esac
  (($# <= 1)) || usage "unexpected argument: $2"
  own_functions "$here"
  for file in script/{messages,lock,watch} runtimes/launch bundle/{hands,bundle,unpack} repositories/repository; do
    # shellcheck source=/dev/null
    source "$here/repository/lib/$file.bash"
  done
  on_interrupt "$(printf '%q ' bash "$0" "$@")"
  if [[ -n $verify ]]; then
    step 1/1 'Verifying the bundle'
    verify_bundle "$here"
    # shellcheck disable=SC2154  # bundle.bash's
    note "complete, ${#bundle_sums[@]} files: $here"
    return
  fi
  folder=${1:-longship}
  if (($# == 0)); then # not into the bundle
    if [[ $PWD -ef $here ]]; then folder=$here/../longship; fi
    if [[ $folder -ef $here ]]; then folder+=-clone; fi
  fi
  folder=$(realpath -m -- "$folder")
  check_repository_folder "$here" "$folder"
  python=$(newest_python) ||
    fail 'no Python 3.9 or newer found' 'load its module, then run the same command again'
  step 1/4 'Verifying the bundle'
  verify_bundle "$here"
  make_folders "$folder"
  locked "$folder/.unpack" unpack_repository "$here" "$folder" "$python"
  exec "$python" "$folder/bundle.py" unpack --verified "$here"
}

main "$@"
exit
