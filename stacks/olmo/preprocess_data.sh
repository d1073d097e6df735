#!/usr/bin/env bash
# Make the training data: all of it, or with `shard` the share of this rank. Run inside the environment,
# for `shard` once per rank; the arguments go to preprocess_data.py of this repository. OLMo reads the
# ids of its .bin file as they lie there; the .idx file beside it is for others.
set -euo pipefail

case ${1:-} in
    all | prepare | shard | merge)
        mode=$1
        shift
        ;;
    *) mode=all ;;
esac

tokenizer=${TRAINING_TOKENIZER:?}
if [[ $tokenizer != /* ]]; then tokenizer=${LONGSHIP_REPOSITORIES:?}/OLMo/$tokenizer; fi

exec python "${LONGSHIP_ROOT:?}/preprocess_data.py" "$mode" --name olmo --tokenizer "$tokenizer" "$@"
