#!/usr/bin/env bash
# Write the newest checkpoint of a run as a model in Hugging Face's format, next to it. Run inside the
# environment; the arguments go to export.py.
set -euo pipefail

exec python "${LONGSHIP_ROOT:?}/stacks/pytorch/export.py" "$@"
