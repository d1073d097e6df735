# shellcheck shell=bash
# Facts about the target that functions of many files read. An emitted script assigns those that it
# needs before its first step, and nothing changes them afterwards. Everything else reaches a
# function as an argument. A file that reads one names this file, so that ShellCheck knows them:
#
#   # shellcheck source=lib/script/target_facts.bash
#   source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"
#
# `:` does nothing: these lines only name the variables.

: "${machine=}"             # name of the target machine in its site.toml
: "${arch=}"                # amd64 or arm64
: "${gpu=}"                 # cuda, rocm or cpu
: "${runtime=}"             # apptainer, singularity, docker, podman, enroot or host
: "${base=}"                # image that packages are installed on: its file or tag, or host
: "${overlay_target=}"      # directory where programs find the packages of the overlay
: "${repositories_directory=}" # directory of the external repositories
: "${longship_library=}"             # lib/ of this clone: the programs in inside/
