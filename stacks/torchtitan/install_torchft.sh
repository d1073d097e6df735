#!/usr/bin/env bash
# Install the torchft repository, the current directory, as editable. Its compiled part comes from the wheel,
# because building it requires Rust and protoc, which no image has.
set -euo pipefail

readonly found='
import importlib.metadata
try:
    files = importlib.metadata.files("torchft-nightly")
except importlib.metadata.PackageNotFoundError:
    files = []
print(*(file.locate() for file in files if file.match("torchft/_torchft*.so")))'
compiled=$(python -c "$found")
if [[ -z $compiled ]]; then
    echo "note: skipping torchft: no wheel for $(uname -m)" >&2
    exit
fi
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

cp -- "$compiled" torchft/ # where torchft's own build also puts it; git ignores it
rm -rf -- "${packages:?}/torchft"
ln -s -- "$PWD/torchft" "$packages/torchft"
