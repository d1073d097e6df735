# shellcheck shell=bash
# Facts about the target that functions of many files read. An emitted script assigns those that it needs before its
# first step, and nothing changes them afterwards. Everything else reaches a function as an argument. A file that
# reads one names this file, so that ShellCheck knows them:
#
#   # shellcheck source=lib/script/facts.bash
#   source "${BASH_SOURCE[0]%/*}/../script/facts.bash"

declare -g machine             # name of the target machine in its site.toml
declare -g arch                # amd64 or arm64
declare -g gpu                 # cuda, rocm or cpu
declare -g runtime             # apptainer, singularity, docker, podman, enroot or host
declare -g base                # image that packages are installed on: its file or tag, or host
declare -g repositories_folder # directory of the external repositories
declare -g LIBRARY             # lib/ of this clone: the programs in inside/
