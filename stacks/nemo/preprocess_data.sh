#!/usr/bin/env bash
# Make the training data by NeMo's own script: JSON lines -> Megatron's .bin and .idx, in one task with
# a worker on each core. Run inside the environment; the arguments behind `all` go to that script.
set -euo pipefail

bash "${LONGSHIP_ROOT:?}/stacks/nemo/check_job.sh" "${1:-all}"

readonly data=${LONGSHIP_SCRATCH_DIR:?}/data
# NeMo writes a .bin from its first line on, and the .idx when all are done: under their names when
# both are whole. Where the arguments name a place of their own there is nothing to move.
readonly partial=$data/nemo.partial
rm -rf -- "$partial"
mkdir -p -- "$partial"
python /opt/NeMo/scripts/nlp_language_modeling/preprocess_data_for_megatron.py \
    --tokenizer-library=huggingface --tokenizer-type="$TRAINING_TOKENIZER" --append-eod \
    --output-prefix="$partial/nemo" --workers="$(nproc)" "${@:2}"

for index in "$partial"/*.idx; do
    if [[ ! -e $index ]]; then continue; fi
    name=$(basename -- "$index" .idx)
    rm -f -- "$data/$name.idx" # it must never stand beside the .bin of another text
    mv -- "$partial/$name.bin" "$data/$name.bin"
    mv -- "$index" "$data/$name.idx"
done
rm -rf -- "$partial"
