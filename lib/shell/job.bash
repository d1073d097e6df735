# shellcheck shell=bash
# What a job script sources if sbatch submitted it; the code is in lib/jobs/. This file is the user's:
# without links, so is what is next to it.
LONGSHIP_ROOT=$(cd -P -- "${BASH_SOURCE[0]%/*}/../.." && pwd) || exit
# shellcheck source=lib/jobs/job.bash
source "$LONGSHIP_ROOT/lib/jobs/job.bash"
