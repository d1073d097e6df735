#!/usr/bin/env bash
# Read the data for fine_tune.py, and leave it in the cache. TRL tokenizes it when the training
# starts, so there is nothing to divide among ranks. Run inside the environment; the arguments go to
# prepare_data.py.
set -euo pipefail

readonly part=${1:-all}
case $part in
    all | prepare) shift "$(($# > 0))" ;;
    shard | merge) exit 0 ;; # `prepare` does everything
esac
source "${LONGSHIP_ROOT:?}/stacks/trl/settings.bash"

exec python "$LONGSHIP_ROOT/stacks/trl/prepare_data.py" "${options[@]}"
