#!/usr/bin/env bash
# Refuse a job that NeMo cannot run. submit.py runs this before submission, and the data step again.
#
#   check_job.sh training|all|prepare|shard|merge ARGUMENT...
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

[[ ${1:?} == @(training|all) ]] ||
    fail 'NeMo prepares its data in a single task' \
        'use the job script without "parallel" in its name, such as aws/preprocess_data_aws.sbatch'
