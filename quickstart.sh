#!/usr/bin/env bash
# From a fresh clone to a trained model on this machine. Completed steps are skipped on later runs.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh quickstart.sh
set -euo pipefail
unset CDPATH # with it, cd looks elsewhere
cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")"
source lib/script/messages.bash

# show_usage: what this does, and where.
show_usage() {
  cat <<'EOF'
Usage: ./quickstart.sh

Set up PyTorch, tokenize the source code of Python's standard library and train
a small GPT on it, on this machine, without a container or a GPU. Takes a few
minutes. Packages, data and checkpoints go to ~/longship-data; [paths] in
configuration.toml changes that. Completed steps are skipped on later runs.
EOF
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

# make_host_environment: the scripts' own two packages in .venv; the copy of the list is written
# last, so an interrupted call is noticed.
make_host_environment() {
  local python
  cmp -s requirements/host.txt .venv/host.txt && return
  # .venv is the bundle's: without a network there is no other
  if [[ -e .cache/bundle/unpacked ]]; then
    fail 'this clone was unpacked from a bundle, and quickstart.sh requires a network' \
      'set it up without one: python3 set_up.py offline'
  fi
  printf 'Creating .venv for the scripts\n' >&2
  python=$(newest_python) ||
    fail 'Python 3.9 or newer not found' 'install Python, or load its module'
  rm -f .venv/host.txt # first: what is half deleted must not look complete
  rm -rf .venv
  "$python" -m venv .venv ||
    fail "cannot create a venv with $python" 'on Debian and Ubuntu: apt install python3-venv'
  .venv/bin/python -m pip --quiet --disable-pip-version-check install -r requirements/host.txt ||
    fail 'cannot install requirements/host.txt' "check the network; pip's output is above"
  cp requirements/host.txt .venv/host.txt
}

case ${1-} in
  '') ;;
  -h | --help)
    show_usage
    exit
    ;;
  *)
    print_messages error "unknown argument: $1" hint './quickstart.sh --help'
    exit 2
    ;;
esac

trap 'printf "\n" >&2
      print_messages error interrupted hint "resume with: ./quickstart.sh"
      exit 130' INT

export LONGSHIP_MACHINE=local
make_host_environment
LONGSHIP_QUICKSTART=1 .venv/bin/python3 set_up.py install
.venv/bin/python3 container_run.py python preprocess_data.py
.venv/bin/python3 container_run.py python train.py

cat <<'EOF'

Next steps:
  python3 container_run.py --machine local python train.py --help
                        train longer, use a larger model or your own text
  python3 container_run.py --machine local
                        open a shell inside the environment
  configuration.toml    set your project, account and machines
  docs/tutorial.md      from here to a job on two nodes
EOF
