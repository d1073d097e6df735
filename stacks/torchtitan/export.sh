#!/usr/bin/env bash
# Write the newest checkpoint of a run as a model in Hugging Face's format, in the directory of the
# run. Run inside the environment; the arguments, RUN first, go to export.py, which prints the
# directory of the model.
set -euo pipefail

exec python "${LONGSHIP_ROOT:?}/stacks/torchtitan/export.py" "$@"
