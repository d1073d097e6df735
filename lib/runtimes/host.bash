# shellcheck shell=bash
# The runtime host: this machine itself.

# host_arch: set REPLY to this machine's architecture, amd64 or arm64.
host_arch() {
  REPLY=${BASH_VERSINFO[5]%%-*} # not HOSTTYPE: tcsh exports other names
  case $REPLY in
    x86_64) REPLY=amd64 ;;
    aarch64) REPLY=arm64 ;;
  esac
}

# host_check_arch ARCH WHAT: stop if this machine cannot run programs for ARCH.
host_check_arch() {
  host_arch
  [[ $REPLY == "$1" ]] ||
    fail "$2 is for $1, but this machine is $REPLY" "start it in a job, on a compute node"
}
