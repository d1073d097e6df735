#!/usr/bin/env bash
# Make the training data by NeMo's own script: JSON lines -> Megatron's .bin and .idx, in one task with
# a worker on each core. Run inside the environment; the arguments behind `all` go to that script.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/inside/ranks.bash"

[[ ${1:-all} == all ]] ||
    fail 'NeMo makes its data in one task' 'use a job file without "parallel" in its name: aws/preprocess_data_aws.sbatch'

mkdir -p -- "${LONGSHIP_SCRATCH_DIR:?}/data"
exec python /opt/NeMo/scripts/nlp_language_modeling/preprocess_data_for_megatron.py \
    --tokenizer-library=huggingface --tokenizer-type="$TRAINING_TOKENIZER" --append-eod \
    --output-prefix="$LONGSHIP_SCRATCH_DIR/data/nemo" --workers="$(nproc)" "${@:2}"
