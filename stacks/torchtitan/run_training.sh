#!/usr/bin/env bash
# Pretrain with TorchTitan: the GPUs of a replica shard the model (FSDP2) and can split its layers
# (tensor parallelism); the replicas divide the data. Run inside the environment; the arguments go
# to TorchTitan, after the settings.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

bash "$LONGSHIP_ROOT/stacks/torchtitan/check_job.sh" training "$@"

readonly gpus_per_replica=$((TRAINING_GPUS_PER_REPLICA ? TRAINING_GPUS_PER_REPLICA : gpus_per_node))
readonly tokenizer=${TRAINING_TOKENIZER:-$LONGSHIP_SCRATCH_DIR/data/torchtitan_train_tokenizer.json}

options=()
if ((TRAINING_GLOBAL_BATCH_SIZE)); then
    options+=(--training.global_batch_size="$TRAINING_GLOBAL_BATCH_SIZE")
fi
if ((TRAINING_COMPILE)); then options+=(--compile.enable); else options+=(--compile.no_enable); fi
if [[ -n $TRAINING_VALIDATION_DATA ]]; then options+=(--validator.enable); fi

# For longship_titan.py.
export PYTHONPATH=$LONGSHIP_ROOT/stacks/torchtitan${PYTHONPATH:+:$PYTHONPATH}
export PYTORCH_ALLOC_CONF=${PYTORCH_ALLOC_CONF:-expandable_segments:True}

# Shard degree -1 is the rest of the GPUs, also if the arguments add pipeline or context
# parallelism. The structured log is a file per rank, which a parallel file system does not need.
# export.py reads configuration.json.
start_ranks -m torchtitan.train \
    --module=longship_titan \
    --config=configuration \
    --dump_folder="$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME" \
    --hf_assets_path="${tokenizer%/*.json}" \
    --tokenizer.path="$tokenizer" \
    --learning_rate="$TRAINING_LEARNING_RATE" \
    --lr_scheduler.warmup_steps="$TRAINING_WARMUP_STEPS" \
    --dataloader.files="$TRAINING_DATA" \
    --validator.dataloader.files="$TRAINING_VALIDATION_DATA" \
    --validator.freq="$TRAINING_VALIDATION_INTERVAL" \
    --validator.steps="$TRAINING_VALIDATION_STEPS" \
    --training.steps="$TRAINING_STEPS" \
    --training.seq_len="$TRAINING_SEQUENCE_LENGTH" \
    --training.local_batch_size="$TRAINING_LOCAL_BATCH_SIZE" \
    --training.disable_cuda_graphs \
    --parallelism.data_parallel_replicate_degree="$((world_size / gpus_per_replica))" \
    --parallelism.data_parallel_shard_degree=-1 \
    --parallelism.tensor_parallel_degree="$TRAINING_TENSOR_PARALLEL" \
    --parallelism.spmd_backend=partial_dtensor \
    --checkpoint.enable \
    --checkpoint.no_last_save_model_only \
    --checkpoint.async_mode=async \
    --checkpoint.interval="$TRAINING_CHECKPOINT_INTERVAL" \
    --metrics.log_freq=1 \
    --metrics.enable_tensorboard \
    --metrics.disable_color_printing \
    --profiler.no_enable_profiling \
    --debug.seed="$TRAINING_SEED" \
    --debug.print_config \
    --debug.save_config_file=configuration.json \
    --debug.no_enable_structured_logging \
    "${options[@]}" "$@"
