#!/usr/bin/env bash
# Pretrain a GPT model with NeMo 1 and a model configuration of NVIDIA's launcher. The launcher
# itself is not used. Run inside the environment:
#
#   run_training.sh [PRESET] [OVERRIDE...]      a preset of presets/, such as gpt3/5b; training.model.micro_batch_size=2
#
# Configuration and results are in CHECKPOINT_DIR/results/<model>/, laid out as by the launcher.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

preset=()
if [[ -f $LONGSHIP_ROOT/stacks/nemo/presets/${1:-}.txt ]]; then
    while IFS= read -r line; do
        case $line in
            '' | '#'*) ;;
            training.run.*) ;;                  # for the launcher's own job
            training.trainer.num_nodes=*) ;;    # set from the job
            *) preset+=("$line") ;;
        esac
    done <"$LONGSHIP_ROOT/stacks/nemo/presets/$1.txt"
    if ((${SLURM_PROCID:-0} == 0)); then note "$1 replaces settings of [training]: ${preset[*]}"; fi
    shift
fi
readonly launcher=${LONGSHIP_REPOSITORIES:?}/NeMo-Framework-Launcher/launcher_scripts

# quoted TEXT: quote any value for Hydra's grammar.
quoted() { printf "'%s'" "${1//\'/\\\'}"; }

results=${LONGSHIP_CHECKPOINT_DIR:?}/${TRAINING_RESULTS:?}
if ((TRAINING_UNIQUE_RESULTS)); then results+=-${SLURM_JOB_ID:-$(date +%Y%m%d-%H%M%S)-$$}; fi
readonly results

overrides=(
    training="$TRAINING_MODEL"
    launcher_scripts_path="$(quoted "$launcher")"
    base_results_dir="$(quoted "$results")"
    data_dir="$(quoted "$LONGSHIP_SCRATCH_DIR/data")"
    training.trainer.num_nodes="${NUM_NODES:-1}"
    training.trainer.devices="${GPUS_PER_NODE:-1}"
    training.trainer.max_steps="$TRAINING_STEPS"
    training.model.tokenizer.library=huggingface
    training.model.tokenizer.type="$(quoted "$TRAINING_TOKENIZER")"
    # ++, because the files of Llama's models do not have these keys
    ++training.model.tokenizer.vocab_file=null
    ++training.model.tokenizer.merge_file=null
)
if [[ -n $TRAINING_DATA ]]; then
    blend=
    while IFS= read -r entry; do blend+=,$(quoted "$entry"); done <<<"$TRAINING_DATA"
    overrides+=(training.model.data.data_prefix="[${blend#,}]")
else
    overrides+=(training.model.data.data_impl=mock training.model.data.data_prefix=[])
fi
if ((TRAINING_VALIDATION_INTERVAL)); then
    # shellcheck disable=SC2034  # for start_ranks: NeMo's handler of it writes a checkpoint
    checkpoint_signal=TERM
    interval=$TRAINING_VALIDATION_INTERVAL
    if ((interval > TRAINING_STEPS)); then interval=$TRAINING_STEPS; fi
    overrides+=(training.trainer.val_check_interval="$interval" training.exp_manager.resume_if_exists=True)
else
    overrides+=(
        training.trainer.val_check_interval="$TRAINING_STEPS" training.trainer.limit_val_batches=0.0
        training.exp_manager.create_checkpoint_callback=False training.exp_manager.resume_if_exists=False
    )
fi
# unless_zero KEY NUMBER: override a value of the model's file, unless the number is 0.
unless_zero() { if (($2)); then overrides+=("training.model.$1=$2"); fi; }
unless_zero tensor_model_parallel_size "$TRAINING_TENSOR_PARALLEL"
unless_zero pipeline_model_parallel_size "$TRAINING_PIPELINE_PARALLEL"
unless_zero micro_batch_size "$TRAINING_MICRO_BATCH"
unless_zero global_batch_size "$TRAINING_GLOBAL_BATCH"

# A wrong override ends the run here, before any rank starts.
configuration=$(python "$LONGSHIP_ROOT/stacks/nemo/compose.py" "$launcher/conf" "${overrides[@]}" "${preset[@]}" "$@")
readonly configuration
ranks_link_outputs "${configuration%/*}"

# NeMo records the commit of its current directory, which belongs to root in the image.
if [[ -d /opt/NeMo ]]; then cd /opt/NeMo; fi
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=/opt/NeMo
# As in the launcher: kernels in order for tensor parallelism, and less memory for NCCL.
export CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_NVLS_ENABLE=0 TORCH_NCCL_AVOID_RECORD_STREAMS=1

start_ranks /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py \
    --config-path="${configuration%/*}" --config-name="${configuration##*/}"
