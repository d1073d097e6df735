#!/usr/bin/env bash
# Unpack this bundle on an air-gapped machine; needs bash, coreutils and python3. Files of the
# repository that you have changed are kept; the bundle's version is written next to them.
#   bash unpack.sh [TARGET]      put the repository into TARGET (default: ./longship)
#   bash unpack.sh --verify      check every file of the bundle and unpack nothing
set -euo pipefail
unset CDPATH # with it, cd prints

# stop CODE MESSAGE HINT
stop() {
  printf 'error: %s\nhint: %s\n' "$2" "$3" >&2
  exit "$1"
}

# check_program BUNDLE: compare the files that this script runs with their checksums.
check_program() {
  (cd -- "$1" && [[ -f SHA256SUMS && ! -L SHA256SUMS ]] && while IFS= read -r line; do
    if [[ $line == *'  repository/'@(lib|extras/bundle)/* ]]; then
      [[ -f ${line#*  } ]] || exit # sha256sum would wait for a FIFO
      printf '%s\n' "$line"
    fi
  done < <(head -c 64M -- SHA256SUMS) | sha256sum --check --quiet >&2) ||
    stop 1 "the bundle is incomplete or corrupt: $1" \
      'copy the bundle again: rsync -a --checksum copies only what differs'
}

# newest_python: print the first Python that is new enough for the scripts.
newest_python() {
  local python
  for python in python3{,.14,.13,.12,.11,.10,.9}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  stop 1 'no Python 3.9 or newer found' 'load its module, then run the same command again'
}

main() {
  local here directory=${1:-longship} python name
  local -a worker
  here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
  if (($# > 1)) || [[ ${1:-} == -* && ${1:-} != --verify ]]; then
    head -n 5 -- "$here/unpack.sh" | tail -n 4 | cut -c 3-
    [[ $1 == -h || $1 == --help ]] || stop 2 "unexpected arguments: $*" 'run: bash unpack.sh --help'
    return
  fi
  check_program "$here"
  python=$(newest_python)
  worker=("$python" -I "$here/repository/extras/bundle/worker.py")
  for name in messages at_exit lock worker; do
    # shellcheck source=/dev/null
    source "$here/repository/lib/script/$name.bash"
  done
  on_interrupt "$(printf '%q ' bash "$0" "$@")"
  if [[ ${1:-} == --verify ]]; then
    worker_run "${worker[@]}" verify "$here"
    return
  fi
  if (($# == 0)); then # not into the bundle
    if [[ $PWD -ef $here ]]; then directory=$here/../longship; fi
    if [[ $directory -ef $here ]]; then directory+=-clone; fi
  fi
  directory=$(realpath -m -- "$directory")
  worker_run "${worker[@]}" verify "$here" "$directory"
  lock_run "$directory/.cache/bundle/unpack" worker_run "${worker[@]}" unpack-repository "$here" "$directory"
  exec "$python" "$directory/bundle.py" unpack "$here"
}

main "$@"
exit
