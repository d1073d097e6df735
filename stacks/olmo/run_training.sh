#!/usr/bin/env bash
# Train with OLMo: one process per GPU, started by torchrun, or by Slurm if a node has several
# tasks. Run inside the environment; the arguments are passed to OLMo's scripts/train.py last, so
# they override the settings.
set -euo pipefail
source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash"

readonly repository=${LONGSHIP_REPOSITORIES:?}/OLMo
model=$TRAINING_MODEL
if [[ $model != /* ]]; then model=$repository/$model; fi

arguments=()

# text KEY VALUE: set a string; OLMo reads values as YAML, which does not interpret quoted text.
text() {
    arguments+=("--$1='${2//\'/\'\'}'")
}

# number KEY VALUE: set a number; 0 keeps the configuration's.
number() {
    if (($2)); then arguments+=("--$1=$2"); fi
}

# name_data: pass the files as a pattern, which OLMo expands, so thousands of files fit on a command
# line.
name_data() {
    local path paths=
    if [[ -z $TRAINING_DATA ]]; then return; fi
    while IFS= read -r path; do
        paths+="${paths:+,}\"${path//\"/\\\"}\""
    done <<<"$TRAINING_DATA"
    text data.paths "\${path.glob:$paths}"
}

# limit_time: let OLMo write a checkpoint before the time limit and exit with code 0, so that the
# next job of a chain resumes. OLMo does not handle signals; its clock starts with the first step.
limit_time() {
    if [[ -z ${SLURM_JOB_END_TIME:-} ]]; then return; fi # before Slurm 23.02, or without Slurm
    local now
    printf -v now '%(%s)T' -1
    local -ri left=$((SLURM_JOB_END_TIME - now))
    ((left > TRAINING_TIME_MARGIN)) ||
        fail "the job ends in $left seconds, but time_margin is $TRAINING_TIME_MARGIN seconds" \
            'request more time with --time=...; or reduce time_margin in [training] of configuration.toml'
    arguments+=("--time_limit=$((left - TRAINING_TIME_MARGIN))" --canceled_check_interval=10)
    arguments+=(--extra_steps_after_cancel=0) # they would be lost: the next job starts from the checkpoint
}

# exit_if_done STEPS: exit if a checkpoint has all steps, because OLMo would take one more before it
# checks.
exit_if_done() {
    local step
    for step in "$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME"/step*; do
        step=${step##*/step}
        step=${step%-unsharded}
        if [[ ! $step =~ ^[0-9]+$ ]] || ((step < $1)); then continue; fi
        if ((${SLURM_PROCID:-0} == 0)); then
            note "the run $TRAINING_RUN_NAME has completed its $1 steps; to continue, increase steps in [training]"
        fi
        exit 0
    done
}

if ((TRAINING_GLOBAL_BATCH % world_size)); then
    fail "global_batch $TRAINING_GLOBAL_BATCH is not a multiple of the number of ranks, $world_size" \
        'change global_batch in [training] of configuration.toml'
fi

# Arguments can override the directory and the end of a run.
if ((TRAINING_STEPS)) && [[ ! " $*" =~ ' --'(save_folder|load_path|max_duration|stop_at)= ]]; then
    exit_if_done "$TRAINING_STEPS"
fi

text run_name "$TRAINING_RUN_NAME"
text save_folder "${LONGSHIP_CHECKPOINT_DIR:?}/$TRAINING_RUN_NAME"
ranks_link_outputs "$LONGSHIP_CHECKPOINT_DIR/$TRAINING_RUN_NAME"
# Resume from the previous job; its other files in save_folder are not an error.
arguments+=(--try_load_latest_save --save_overwrite)
# AI2's bucket, which its configurations name, would be searched for checkpoints too, and written
# to.
arguments+=(--remote_save_folder=null)
name_data
limit_time
number max_duration "$TRAINING_STEPS"
number stop_at "$TRAINING_STEPS" # OLMo's default is ten steps later
number global_train_batch_size "$TRAINING_GLOBAL_BATCH"
number device_train_microbatch_size "$TRAINING_MICRO_BATCH"
number save_interval "$TRAINING_SAVE_EVERY"
arguments+=("--data.num_workers=$TRAINING_DATA_WORKERS")
if [[ -n $TRAINING_SHARDING ]]; then text fsdp.sharding_strategy "$TRAINING_SHARDING"; fi
number fsdp.hybrid_sharding_num_model_replicas "$TRAINING_REPLICAS"
if [[ -n $TRAINING_ACTIVATION_CHECKPOINTING ]]; then
    text activation_checkpointing "$TRAINING_ACTIVATION_CHECKPOINTING"
fi
flash=false # the configurations of OLMo 2 turn it on, those of OLMo 1 do not
if [[ $TRAINING_FLASH_ATTENTION == true ]]; then flash=true; fi
arguments+=("--model.flash_attention=$flash" "--fused_loss=$flash")
if [[ -n $TRAINING_EVALUATORS ]]; then arguments+=("--evaluators=$TRAINING_EVALUATORS"); fi

export WANDB_MODE=$TRAINING_WANDB
if [[ $WANDB_MODE == disabled ]]; then
    arguments+=(--wandb=null)
else
    text wandb.name "$TRAINING_RUN_NAME"
    text wandb.project "$TRAINING_WANDB_PROJECT"
    if [[ -n $TRAINING_WANDB_ENTITY ]]; then
        text wandb.entity "$TRAINING_WANDB_ENTITY"
    else
        arguments+=(--wandb.entity=null) # OLMo's default is AI2's own
    fi
    # With a key, OLMo regularly asks W&B whether the run was cancelled, and hangs offline.
    if [[ $WANDB_MODE == offline ]]; then unset WANDB_API_KEY; fi
fi

# Checkpoints and the order of the data are on a shared file system, so one rank writes what
# otherwise the first rank of each node would write. OLMo derives FS_LOCAL_RANK from it.
export OLMO_SHARED_FS=1
# Since PyTorch 2.6, torch.load refuses the non-tensor parts of OLMo's checkpoints: states of random
# number generators, and metadata of shards. The files are the run's own, so loading them is safe.
export TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1
# omegaconf 2.4 prints five lines for each of OLMo's three resolvers, in every rank. Older versions
# need a package without a wheel, which download mode cannot fetch.
export PYTHONWARNINGS="ignore:register_new_resolver() is deprecated:UserWarning${PYTHONWARNINGS:+,$PYTHONWARNINGS}"

start_ranks "$LONGSHIP_ROOT/stacks/olmo/record_metrics.py" "$repository/scripts/train.py" "$model" "${arguments[@]}" "$@"
