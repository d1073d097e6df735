# shellcheck shell=bash
# Read by run_evaluation.sh and preprocess_data.sh after ranks.bash: the settings of [training] as
# `options` of `lm-eval run`, and `model`, which a first argument without a dash replaces.
# shellcheck disable=SC2034  # for run_evaluation.sh
model=$TRAINING_MODEL
if [[ ${1:--} != -* ]]; then
    model=$1
    shift
fi

options=(--tasks "$TRAINING_TASKS")
for argument; do # lm-eval would evaluate both
    if [[ $argument =~ ^(-t|--tasks(=.*)?)$ ]]; then options=(); fi
done
if [[ -n $TRAINING_TASKS_DIR ]]; then options+=(--include_path "$TRAINING_TASKS_DIR"); fi
if ((TRAINING_LIMIT)); then options+=(--limit "$TRAINING_LIMIT"); fi
if [[ -n $TRAINING_FEW_SHOT ]]; then options+=(--num_fewshot "$TRAINING_FEW_SHOT"); fi
options+=("$@")
