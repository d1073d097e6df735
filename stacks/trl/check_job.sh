#!/usr/bin/env bash
# Refuse a job whose method does not exist or has no reward functions. submit.py runs this before submission.
#
#   check_job.sh training|all|prepare|shard|merge ARGUMENT...
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

method=$TRAINING_METHOD rewards=$TRAINING_REWARDS
[[ $rewards == @(''|/*) ]] || fail "training.rewards is not an absolute path: $rewards" \
    'write the whole path, such as "{project_dir}/rewards.py"'
while shift && (($#)); do # arguments override settings
    case $1 in
        --method) method=${2:-} ;;
        --method=*) method=${1#*=} ;;
        --rewards) rewards=${2:-} ;;
        --rewards=*) rewards=${1#*=} ;;
    esac
done
[[ $method == @(sft|dpo|grpo) ]] || fail "unknown training.method: $method" 'use one of: sft, dpo, grpo'
if [[ $method == grpo && -z $rewards ]]; then
    fail 'grpo needs a Python file with reward functions' \
        'set rewards in [training] of configuration.toml, or add: -- --rewards FILE.py'
fi
