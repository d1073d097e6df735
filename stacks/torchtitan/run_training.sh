#!/usr/bin/env bash
# Pretrain with TorchTitan: the GPUs of a replica shard the model (FSDP2) and can split its layers (tensor
# parallelism); the replicas divide the data. Run inside the environment; the arguments go to TorchTitan,
# after the settings.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

bash "$LONGSHIP_ROOT/stacks/torchtitan/check_job.sh" training "$@"

readonly gpus_per_replica=$((TRAINING_GPUS_PER_REPLICA ? TRAINING_GPUS_PER_REPLICA : gpus_per_node))
readonly tokenizer=${TRAINING_TOKENIZER:-$LONGSHIP_SCRATCH_DIR/data/torchtitan_train_tokenizer.json}

options=()
if [[ -n $TRAINING_CONFIG ]]; then options+=(--job.config_file="$TRAINING_CONFIG"); fi
if ((TRAINING_GLOBAL_BATCH_SIZE)); then
    options+=(--training.global_batch_size="$TRAINING_GLOBAL_BATCH_SIZE")
fi
if ((TRAINING_COMPILE)); then options+=(--training.compile); else options+=(--training.no_compile); fi

# For longship_titan.py.
export PYTHONPATH=$LONGSHIP_ROOT/stacks/torchtitan${PYTHONPATH:+:$PYTHONPATH}
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}

# Shard degree -1 is the rest of the GPUs, also if the arguments add pipeline or context parallelism.
start_ranks -m torchtitan.train \
    --job.dump_folder="$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME" \
    --job.print_args \
    --experimental.custom_import=longship_titan \
    --experimental.custom_args_module=longship_titan \
    --model.name="$TRAINING_MODEL" \
    --model.flavor="$TRAINING_FLAVOR" \
    --model.tokenizer_path="$tokenizer" \
    --training.dataset=megatron \
    --training.dataset_files="$TRAINING_DATA" \
    --validation.dataset_files="$TRAINING_VALIDATION_DATA" \
    --validation.freq="$TRAINING_VALIDATION_INTERVAL" \
    --validation.steps="$TRAINING_VALIDATION_STEPS" \
    --training.steps="$TRAINING_STEPS" \
    --training.seq_len="$TRAINING_SEQUENCE_LENGTH" \
    --training.local_batch_size="$TRAINING_LOCAL_BATCH_SIZE" \
    --training.seed="$TRAINING_SEED" \
    --training.mixed_precision_param=bfloat16 \
    --training.mixed_precision_reduce=float32 \
    --parallelism.data_parallel_replicate_degree="$((world_size / gpus_per_replica))" \
    --parallelism.data_parallel_shard_degree=-1 \
    --parallelism.tensor_parallel_degree="$TRAINING_TENSOR_PARALLEL" \
    --activation_checkpoint.mode=selective \
    --activation_checkpoint.selective_ac_option=op \
    --optimizer.lr="$TRAINING_LEARNING_RATE" \
    --lr_scheduler.warmup_steps="$TRAINING_WARMUP_STEPS" \
    --checkpoint.enable_checkpoint \
    --checkpoint.async_mode=async \
    --checkpoint.interval="$TRAINING_CHECKPOINT_INTERVAL" \
    --metrics.log_freq=1 \
    --metrics.enable_tensorboard \
    --metrics.disable_color_printing \
    "${options[@]}" "$@"
