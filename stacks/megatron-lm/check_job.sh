#!/usr/bin/env bash
# Refuse a training that --then would evaluate, but whose model export.sh cannot write. submit.py
# runs this before submission.
#
#   check_job.sh training|all|prepare|shard|merge ARGUMENT...
#
# These are the arguments that turn Megatron's default, GPT-2, into a Llama; export.py compares the
# whole model.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

if [[ ${1:?} != training || -z ${LONGSHIP_THEN:-} ]]; then exit; fi

given=" ${*//=/ } "
given=${given//--use-rotary-position-embeddings/--position-embedding-type rope} # its older name
readonly given
# the model is in a file
if [[ $given == *' --yaml-cfg '* || $given == *' --use-checkpoint-args '* ]]; then exit; fi
for needed in --swiglu '--normalization RMSNorm' '--position-embedding-type rope' --disable-bias-linear; do
    [[ $given == *" $needed "* ]] ||
        fail "--then $LONGSHIP_THEN requires a Llama, but the arguments of the training do not contain $needed" \
            'add the arguments of a Llama in stacks/megatron-lm/README.md after --, or leave out --then'
done
[[ -n $TRAINING_DATA$TRAINING_TOKENIZER || $given == *' --tokenizer-model '* ]] ||
    fail "--then $LONGSHIP_THEN requires a tokenizer, which mock data do not have" \
        'set data in [training] of configuration.toml to the output of preprocess_data_*.sbatch, or leave out --then'
