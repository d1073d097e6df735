# shellcheck shell=bash
# options: the settings of [training], as options of fine_tune.py and prepare_data.py.
options=(--method "$TRAINING_METHOD")
if [[ -n $TRAINING_MODEL ]]; then options+=(--model "$TRAINING_MODEL"); fi
if [[ -n $TRAINING_TRAIN_DATASET ]]; then options+=(--train_dataset "$TRAINING_TRAIN_DATASET"); fi
if [[ -n $TRAINING_EVAL_DATASET ]]; then options+=(--eval_dataset "$TRAINING_EVAL_DATASET"); fi
if [[ -n $TRAINING_REWARDS ]]; then options+=(--rewards "$TRAINING_REWARDS"); fi
options+=("$@")
