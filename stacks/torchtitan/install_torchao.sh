#!/usr/bin/env bash
# Install the torchao repository, the current directory, as editable. Without build isolation,
# because its setup.py imports the image's PyTorch; without C++ kernels, which float8 training does
# not use.
set -euo pipefail

export USE_CPP=0 USE_SYSTEM_LIBS=1 # the second skips the search for CUTLASS
exec python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation \
    --use-pep517 --editable .
