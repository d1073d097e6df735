#!/usr/bin/env bash
# Print the directory of a run's newest model, with LoRA after merging the adapters into it. Run inside the
# environment; the arguments, RUN first, go to export.py.
set -euo pipefail

exec python "${LONGSHIP_ROOT:?}/stacks/trl/export.py" "$@"
