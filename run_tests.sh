#!/usr/bin/env bash
# Run the tests: everything that this machine can run, and at the end what was skipped and why.
#
#   ./run_tests.sh                     skips what needs a program that is missing here
#   ./run_tests.sh --all               fails instead of skipping; what CI runs
#   ./run_tests.sh tests/test_lock.py -k name   any arguments of pytest; paths are relative to the repository
#
# The first run makes the test environment in .venv-tests; PYTHON chooses the Python it is made of.
set -euo pipefail

fail() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

# find_python: the first Python that can make an environment. The first python3 on PATH may be too
# old (login nodes), or lack ensurepip (Debian's, without python3-venv).
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.{14,13,12,11,10,9} /usr/bin/python3; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail 'the tests need Python 3.9 or newer, with its venv module' \
        'sudo tests/install_tools.sh python, or PYTHON=/path/to/python3 ./run_tests.sh'
}

# fingerprint PYTHON: what the environment is made of. A virtual environment holds its own path, so
# one in a clone that was moved is made anew.
fingerprint() {
    "$1" -VV
    pwd
    cat "${requirements[@]}"
}

# make_environment PYTHON: the stamp goes first and is written last, so what was interrupted has none.
make_environment() {
    local -r python=$1
    rm -f -- "$environment/stamp"
    printf 'run_tests.sh: making the test environment %s\n' "$PWD/$environment" >&2
    rm -rf -- "$environment"
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --quiet --disable-pip-version-check \
        "${requirements[@]/#/--requirement=}"
    fingerprint "$python" >"$environment/stamp.partial"
    mv -- "$environment/stamp.partial" "$environment/stamp"
}

case ${1-} in
    -h | --help)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
        exit
        ;;
esac

unset CDPATH # with it, cd prints
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
readonly environment=.venv-tests
readonly requirements=(requirements/host.txt requirements/test.txt)

# Two runs at once make one environment. The lock is on a file that is there anyway.
if command -v flock >/dev/null; then
    exec {lock}<requirements/test.txt
    flock "$lock"
fi
python=$(find_python)
if ! cmp --silent -- "$environment/stamp" <(fingerprint "$python"); then
    make_environment "$python"
fi
if [[ -n ${lock-} ]]; then
    exec {lock}<&- # or every program that a test leaves behind would keep it
fi
exec "$environment/bin/python" -m pytest "$@"
