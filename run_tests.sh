#!/usr/bin/env bash
# Run the tests. The output ends with the failures, then the skipped tests, with
# one line for each missing program.
#
#   ./run_tests.sh          fast: no container, no cluster, no network;
#                           about 5 minutes on 2 cores
#   ./run_tests.sh --all    fast and real: containers, Slurm, registry, git, pip;
#                           half an hour. Every program must be installed:
#                           sudo tests/install_tools.sh
#   ./run_tests.sh --slow   all of these, every kill point, long histories and
#                           whole frameworks: hours
#   ./run_tests.sh tests/script/test_lock.py -k name
#                           any arguments of pytest; paths are relative to the
#                           repository. Named tests run whatever their tier
#
# The first run creates the test environment in .venv-tests, with the Python that
# the variable PYTHON names (default: python3).
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

# make_environment PYTHON: the stamp goes first and is written last, so what was interrupted has
# none.
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

# select_tests ARGUMENT...: the tier, and as many processes as there are cores, but where single
# tests are looked at. Login nodes have a hundred cores and other users.
select_tests() {
    local argument tier=fast named=''
    options=()
    for argument; do
        case $argument in
            --all | --slow) tier=${argument#--} ;;
            -n | -n?* | --numprocesses* | --pdb | -s | --collect-only | --co) named+=' workers' ;;&
            -m | -m?* | --markers | --fixtures*) named+=' tier' ;;&
            *)
                if [[ $argument != -* && -e ${argument%%::*} ]]; then named+=' tier workers'; fi
                options+=("$argument")
                ;;
        esac
    done
    case $tier in
        fast) if [[ $named != *tier* ]]; then options=(-m 'not real and not slow' "${options[@]}"); fi ;;
        all) options=(--no-skip -m 'not slow' "${options[@]}") ;;
        slow) options=(--no-skip "${options[@]}") ;;
    esac
    if [[ $named != *workers* ]]; then
        # in the order of tests/support/tiers.py
        options=(--numprocesses=auto --maxprocesses=8 --dist=loadgroup --no-loadscope-reorder "${options[@]}")
    fi
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
select_tests "$@"
exec "$environment/bin/python" -m pytest "${options[@]}"
