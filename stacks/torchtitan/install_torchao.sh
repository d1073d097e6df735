#!/usr/bin/env bash
# Install the torchao repository, which this runs in, editable: its setup.py imports PyTorch, so its
# build must see the image's. Without its C++ kernels, which training in float8 does not use.
set -euo pipefail

export USE_CPP=0 USE_SYSTEM_LIBS=1 # the second spares it looking for CUTLASS
exec python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation \
    --use-pep517 --editable .
