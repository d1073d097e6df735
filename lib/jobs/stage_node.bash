# shellcheck shell=bash
# Staging on a node: these functions travel as the text of a step (stage.bash).

# on_node FOLDER BYTES AS RUNTIME RANKS: what runs on each node until the job ends; it says when there is
# a folder, and when what has come there can be used.
on_node() {
  make_node_folder "$1" "$2" || return
  printf 'ready\n'
  use_what_comes "$3" "$4" "$5" || return
  printf 'ready\n'
  exec sleep infinity
}

# say_of_node TEXT: why it cannot be done here.
say_of_node() {
  printf '%s: %s\n' "${SLURMD_NODENAME:-$HOSTNAME}" "$1"
  return 1
}

# make_node_folder FOLDER BYTES: nobody else's, with room, and where programs may be started.
make_node_folder() {
  local said
  said=$(mkdir -m 700 -- "$1" 2>&1) || say_of_node "${said##*: }" || return
  cd -- "$1" || return
  free_on_node
  if ((REPLY < $2)); then
    say_of_node "${1%/*} has $((REPLY >> 20)) MB free, but $(($2 >> 20)) MB are needed"
    return
  fi
  printf '#!/bin/sh\n' >try && chmod +x try
  ./try 2>/dev/null || say_of_node "cannot start programs in ${1%/*}" || return
  rm try
}

# use_what_comes AS RUNTIME RANKS: the checksums come last, with a full stop behind them.
use_what_comes() {
  local said wanted=''
  until [[ $wanted == *. ]]; do
    sleep 0.2
    wanted=$(cat sums 2>/dev/null)
  done
  said=$(sha256sum --check --quiet --strict <<<"${wanted%$'\n'.}" 2>&1) ||
    say_of_node "${said%%$'\n'*}" || return
  [[ -e packages.sqsh ]] || return 0
  if [[ $1 == unpacked ]]; then
    said=$(unsquashfs -no-progress -dest packages packages.sqsh 2>&1) ||
      say_of_node "${said##*$'\n'}" || return
    rm packages.sqsh
  elif (($3 > 1)); then
    share_packages "$2"
  fi
}

# free_on_node: set REPLY to the bytes that the working folder may take; memory is the ranks' own, so it
# is a quarter of that.
free_on_node() {
  local -i free most
  free=$(stat -f -c '%a * %S' .)
  if [[ $(stat -f -c %T .) == tmpfs ]]; then
    most=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
    if ((0 < ${SLURM_MEM_PER_NODE:-0} && SLURM_MEM_PER_NODE < most / 1024)); then
      most=$((SLURM_MEM_PER_NODE * 1024))
    fi
    if ((most * 256 < free)); then free=$((most * 256)); fi
  fi
  REPLY=$free
}

# share_packages RUNTIME: one mount for all ranks of the node, which then share its cache: with four of them
# a third of the memory and a quarter of the time less (benchmarks/staging.py). What the kernel mounts for
# a setuid runtime shares the pages of the file anyway.
share_packages() {
  local program
  if has_setuid_starter "$1"; then return; fi
  mkdir mounted
  for program in "$REPLY/squashfuse_ll" squashfuse_ll squashfuse; do
    if "$program" -o ro "$PWD/packages.sqsh" mounted 2>/dev/null; then
      if [[ -d mounted/user-software ]]; then # the way `overlay`: the packages lie where they are seen
        ln -s mounted/user-software packages
      else
        ln -s mounted packages
      fi
      return
    fi
  done
}
