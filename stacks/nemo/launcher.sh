#!/usr/bin/env bash
# Run NVIDIA's launcher on a head node, as in AWS's guide: copy it from the image, create its venv
# and configuration, and let it write and submit its own job.
#
#   bash stacks/nemo/launcher.sh PRESET [OVERRIDE...]        gpt3/126m or gpt3/5b
#
#   NEMO_LAUNCHER_DEBUG=1   the launcher's own variable: write all files and submit nothing
#   NEMO_PYTHON             a Python 3.9 or 3.10 (default: the newer one on PATH)
#   NEMO_IMAGE              file of the image (default: the image of this stack's Dockerfile)
set -euo pipefail

root=$(cd -- "${BASH_SOURCE[0]%/*}/../.." && pwd)
readonly root stack=$root/stacks/nemo preset=${1:-}
source "$root/lib/script/messages.bash"

presets=("$stack"/presets/*/*.txt)
presets=("${presets[@]#"$stack/presets/"}")
if [[ -z $preset || ! -f $stack/presets/$preset.txt ]]; then
    printf 'error: unknown preset: "%s"\nhint: run: bash stacks/nemo/launcher.sh PRESET, where PRESET is one of: %s\n' \
        "$preset" "${presets[*]%.txt}" >&2
    exit 2
fi
shift

# The launcher requires Hydra 1.2, which does not run on Python 3.11.
python=${NEMO_PYTHON:-}
for each in python3.10 python3.9; do
    if [[ -z $python ]] && command -v "$each" >/dev/null; then python=$each; fi
done
[[ -n $python ]] ||
  fail 'the launcher requires Python 3.9 or 3.10' 'run: export NEMO_PYTHON=/path/to/python3.10'

# void, because enroot's hook requires a GPU otherwise, and a head node has none.
copied=$(NVIDIA_VISIBLE_DEVICES=void python3 "$root/container_run.py" --stack nemo bash "$stack/copy_launcher.sh")
mapfile -t overrides <<<"$copied"
readonly directory=${overrides[0]}
overrides=("${overrides[@]:1}")

readonly requirements=$stack/launcher_requirements.txt venv=$directory/.venv
if ! cmp -s -- "$requirements" "$venv/requirements.txt"; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --requirement "$requirements"
    cp -- "$requirements" "$venv/requirements.txt"
fi

while IFS= read -r line; do
    if [[ -n $line && $line != '#'* ]]; then overrides+=("$line"); fi
done < <(cat -- "$stack/presets/common.txt" "$stack/presets/$preset.txt")

cd -- "$directory"
exec "$venv/bin/python" launcher_scripts/main.py "${overrides[@]}" "$@"
