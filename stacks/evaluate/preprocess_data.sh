#!/usr/bin/env bash
# Download the data and metrics of the tasks into the cache, for nodes without network: a model that
# computes nothing takes one example of each task. Run inside the environment, with --online; the
# arguments go to `lm-eval run`.
set -euo pipefail

case ${1:-} in
    all | prepare) shift ;;
    shard | merge) exit 0 ;; # `prepare` does everything
esac
source "${LONGSHIP_ROOT:?}/stacks/evaluate/settings.bash"

exec python -m lm_eval run --model dummy "${options[@]}" --limit 1
