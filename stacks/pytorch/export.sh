#!/usr/bin/env bash
# Write the newest checkpoint of a run as a model in Hugging Face's format, next to it. Run inside
# the environment; the arguments, RUN first, go to export.py, which prints the directory of the
# model.
set -euo pipefail

exec python "${LONGSHIP_ROOT:?}/stacks/pytorch/export.py" "$@"
