#!/usr/bin/env bash
# From a fresh clone to a trained model on this machine. What is done is not done again.
set -euo pipefail
cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")"
source lib/shell/messages.bash

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

# make_host_environment: the scripts' own two packages in .venv; the copy of the list is written
# last, so an interrupted call is noticed.
make_host_environment() {
  local python
  cmp -s requirements/host.txt .venv/host.txt && return
  printf 'Make .venv for the scripts\n' >&2
  python=$(newest_python) ||
    fail 'no Python 3.9 or newer was found' 'install one, or load its module'
  rm -f .venv/host.txt # first: what is half deleted must not look complete
  rm -rf .venv
  "$python" -m venv .venv ||
    fail "$python cannot make a venv" 'on Debian and Ubuntu: apt install python3-venv'
  .venv/bin/python -m pip --quiet --disable-pip-version-check install -r requirements/host.txt ||
    fail 'pip cannot install click' 'no network? see the lines above'
  cp requirements/host.txt .venv/host.txt
}

trap 'printf "\n" >&2
      print_messages error interrupted hint "go on with: ./quickstart.sh"
      exit 130' INT

export LONGSHIP_MACHINE=local
make_host_environment
.venv/bin/python3 set_up.py install
.venv/bin/python3 container_run.py python preprocess_data.py
.venv/bin/python3 container_run.py python train.py

cat <<'EOF'

What to do next:
  python3 container_run.py python train.py --help     train longer, wider, on your own text
  python3 container_run.py                            a shell inside the environment
  configuration.toml                                  your project, account and machines
EOF
