# shellcheck shell=bash
# What job scripts source; the code is in lib/jobs/.
# shellcheck source=lib/jobs/ssh.bash
source "${BASH_SOURCE[0]%/shell/*}/jobs/ssh.bash"
