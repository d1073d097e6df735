#!/usr/bin/env bash
# Pretrain with OLMo-core: the GPUs of a replica shard the model, the replicas divide the data. Run
# inside the environment; the arguments are OLMo-core's overrides of its configuration, and come
# after the settings.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

bash "$LONGSHIP_ROOT/stacks/olmo-core/check_job.sh" training "$@"

readonly stack=$LONGSHIP_ROOT/stacks/olmo-core
readonly save_folder=$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME
readonly per_replica=$((TRAINING_GPUS_PER_REPLICA ? TRAINING_GPUS_PER_REPLICA : gpus_per_node))
readonly batch=$((TRAINING_GLOBAL_BATCH ? TRAINING_GLOBAL_BATCH : TRAINING_MICRO_BATCH * world_size))

# For longship_olmo.py, which every configuration of OLMo-core can name.
export PYTHONPATH=$stack${PYTHONPATH:+:$PYTHONPATH}
arguments=(
    --name="$TRAINING_RUN_NAME"
    --save-folder="$save_folder"
    --trainer.callbacks.longship='{"_CLASS_":"longship_olmo.RunCallback"}'
)
if [[ -n $TRAINING_SCRIPT ]]; then start_ranks "$TRAINING_SCRIPT" "${arguments[@]}" "$@"; fi

if ((per_replica == world_size)); then
    arguments+=(--train_module.dp_config.name=fsdp)
else
    arguments+=(--train_module.dp_config.name=hsdp --train_module.dp_config.shard_degree="$per_replica")
fi

compile=false
if ((TRAINING_COMPILE)); then compile=true; fi

start_ranks "$stack/train.py" "${arguments[@]}" \
    --model="$TRAINING_MODEL" \
    --attention="$TRAINING_ATTENTION" \
    --tokenizer="${TRAINING_TOKENIZER:-$LONGSHIP_SCRATCH_DIR/data/olmo-core_train_tokenizer}" \
    --data="$TRAINING_DATA" \
    --validation-data="$TRAINING_VALIDATION_DATA" \
    --sequence-length="$TRAINING_SEQUENCE_LENGTH" \
    --trainer.max_duration.value="$TRAINING_STEPS" \
    --trainer.callbacks.checkpointer.save_interval="$TRAINING_CHECKPOINT_INTERVAL" \
    --trainer.callbacks.lm_evaluator.eval_interval="$TRAINING_VALIDATION_INTERVAL" \
    --trainer.callbacks.lm_evaluator.eval_duration.value="$TRAINING_VALIDATION_STEPS" \
    --data_loader.global_batch_size="$((batch * TRAINING_SEQUENCE_LENGTH))" \
    --data_loader.seed="$TRAINING_SEED" \
    --init_seed="$TRAINING_SEED" \
    --train_module.rank_microbatch_size="$((TRAINING_MICRO_BATCH * TRAINING_SEQUENCE_LENGTH))" \
    --train_module.optim.lr="$TRAINING_LEARNING_RATE" \
    --train_module.scheduler.warmup="$TRAINING_WARMUP_STEPS" \
    --train_module.compile_model="$compile" \
    "$@"
