#!/usr/bin/env bash
# Make the training data with NeMo's own script: JSON Lines -> Megatron's .bin and .idx, in one task
# with one worker per core. Run inside the environment; the arguments after `all` go to that script.
set -euo pipefail

bash "${LONGSHIP_ROOT:?}/stacks/nemo/check_job.sh" "${1:-all}"

readonly data=${LONGSHIP_SCRATCH_DIR:?}/data
# NeMo writes the .bin from the first line on and the .idx at the end. Both get their final names
# when they are complete, unless the arguments set another --output-prefix. Another job can make
# data at the same time.
mkdir -p -- "$data"
partial=$(mktemp -d -- "$data/nemo.partial-$(uname -n)-XXXXXX")
trap 'rm -rf -- "$partial"' EXIT
python /opt/NeMo/scripts/nlp_language_modeling/preprocess_data_for_megatron.py \
    --tokenizer-library=huggingface --tokenizer-type="$TRAINING_TOKENIZER" --append-eod \
    --output-prefix="$partial/nemo" --workers="$(nproc)" "${@:2}"

for index in "$partial"/*.idx; do
    if [[ ! -e $index ]]; then continue; fi
    name=$(basename -- "$index" .idx)
    rm -f -- "$data/$name.idx" # it must never describe the .bin of another text
    mv -- "$partial/$name.bin" "$data/$name.bin"
    mv -- "$index" "$data/$name.idx"
done
