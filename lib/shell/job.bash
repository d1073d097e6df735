# shellcheck shell=bash
# What a job script sources if sbatch submitted it; the code is in lib/jobs/, of the clone in which
# this directory really is.
LONGSHIP_ROOT=$(cd -P -- "${BASH_SOURCE[0]%/*}/../.." && pwd) || exit
# shellcheck source=lib/jobs/job.bash
source "$LONGSHIP_ROOT/lib/jobs/job.bash"
