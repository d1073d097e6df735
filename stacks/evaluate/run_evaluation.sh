#!/usr/bin/env bash
# Evaluate a model on this node's GPUs. Run inside the environment; a first argument without a dash
# is the model, the others go to `lm-eval run`.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"
source "$LONGSHIP_ROOT/stacks/evaluate/settings.bash"

# check_model: fail unless the model can be the value of an option that is a list with commas.
check_model() {
    [[ -n $model ]] || fail 'no model to evaluate' \
        'give its directory: -- DIR, or set model in [training] of configuration.toml'
    [[ $model != *,* ]] ||
      fail "lm-eval cannot read a path with a comma: $model" 'rename the directory'
    if [[ $model == /* || $model == .* ]]; then
        [[ -f $model/config.json ]] || fail "not a model in Hugging Face's format: $model has no config.json" \
            'export the checkpoint: python3 container_run.py bash stacks/STACK/export.sh RUN'
    fi
}

# results_directory: print where the results of the model go: into its directory or, for one of the
# hub, next to the runs.
results_directory() {
    if [[ -d $model ]]; then
        printf '%s/evaluation' "$model"
    else
        printf '%s/evaluation/%s' "${LONGSHIP_CHECKPOINT_DIR:?}" "${model//\//__}"
    fi
}

check_model
output=$(results_directory)/results.json # lm-eval adds the time to the name
printf 'results: %s\n' "${output%.json}_DATE.json" >&2
options=(--output_path "$output" --batch_size "$TRAINING_BATCH_SIZE" "${options[@]}")
arguments=pretrained=$model,dtype=$TRAINING_DTYPE
case $TRAINING_ENGINE in
    hf) start_ranks -m lm_eval run --model hf --model_args "$arguments" "${options[@]}" ;;
    vllm)
        exec python -m lm_eval run --model vllm \
            --model_args "$arguments,tensor_parallel_size=$gpus_per_node" "${options[@]}"
        ;;
    *) fail "training.engine: expected hf or vllm, got $TRAINING_ENGINE" 'change it in configuration.toml' ;;
esac
