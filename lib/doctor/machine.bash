# shellcheck shell=bash
# The checks of the machine: this clone, Python, directories, user namespaces, FUSE, GPUs, Slurm.

# clone_diagnose ROOT: report the commit of this repository.
clone_diagnose() {
  local output REPLY
  if output=$(timeout 20 git -C "$1" describe --always --tags --dirty=', with changes' 2>/dev/null); then
    report ok clone "$output, in $1"
  elif ! output=$(LC_ALL=C timeout 20 git -C "$1" rev-parse 2>&1) && trust_hint "$output"; then
    report warning clone "$1 belongs to another user, and git refuses to read it" "$REPLY"
  else
    report ok clone "plain files, no history of git, in $1"
  fi
}

# node_diagnose: report host, system, user, job and time, which whoever helps asks first.
node_diagnose() {
  local system='' job='in no job' user
  user=$(id -un 2>/dev/null) || : # for a user id without a name it prints the number
  system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\).*/\1/p' /etc/os-release 2>/dev/null) || :
  if [[ -n ${SLURM_JOB_ID:-} ]]; then job="in job $SLURM_JOB_ID"; fi
  report ok node "$(host_name), ${system:+$system, }Linux $(uname -r), $user, $job, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  if [[ -n ${LOADEDMODULES:-} ]]; then report ok modules "${LOADEDMODULES//:/ }"; fi
}

# python_diagnose ROOT: check the Python that users and jobs call.
python_diagnose() {
  local version packages=' and its packages'
  version=$(timeout 20 python3 --version 2>&1) || version='no python3'
  if [[ -d $1/.venv ]]; then packages=' and the packages of .venv'; fi
  report_check python "$version$packages" check_python "$1"
}

# arch_diagnose ARCH MACHINE: report what this node can run: a login node may have another architecture.
arch_diagnose() {
  host_arch
  if [[ $REPLY == "$1" ]]; then
    report ok architecture "$1: this machine, and what is built for $2"
  else
    report ok architecture "this machine is $REPLY, and $2 computes on $1: programs start in jobs only"
  fi
}

# ---------- directories

# home_diagnose: check the home directory: every program writes there, and a full one stops logins.
home_diagnose() {
  local -r home=${HOME:-}
  if [[ -z $home || ! -d $home ]]; then
    report problem home "HOME is ${home:-not set}, which is not a directory" "export HOME=\"\$(getent passwd $UID | cut -d : -f 6)\""
    return
  fi
  directory_diagnose home HOME "$home" 536870912
}

# directory_diagnose TOPIC SETTING DIR BYTES: check that it can be used, and has this much space.
directory_diagnose() {
  local text=$3 elsewhere=", or set $2 to another directory"
  if [[ $2 == HOME ]]; then elsewhere=": du -h -d 1 $(printf %q "$3") | sort -h"; fi
  report_check "$1" '' directory_check "$2" "$3"
  if ! report_passed "$1"; then return 0; fi
  directory_nearest "$3"
  if [[ $REPLY != "$3" ]]; then text+=' (created when needed)'; fi
  report_check "$1" "$text$(directory_free_space "$REPLY")" directory_check_room "$REPLY" "$4" "$elsewhere"
}

# directory_nearest PATH: set REPLY to the path, or to its nearest parent that exists.
directory_nearest() {
  REPLY=$1
  until [[ -e $REPLY || -L $REPLY ]]; do
    REPLY=${REPLY%/*}
    REPLY=${REPLY:-/}
  done
}

# directory_check SETTING DIR: fail if files cannot be written or programs cannot be started in it or, before it
# exists, in its nearest parent.
directory_check() {
  local -r elsewhere="set $1 to another directory"
  local existing reason
  directory_nearest "$2"
  existing=$REPLY
  [[ -e $existing ]] || fail "$2: the link $existing is dangling" "$elsewhere, or run: rm $(printf %q "$existing")"
  [[ -d $existing ]] || fail "$2: $existing is not a directory" "$elsewhere, or run: rm $(printf %q "$existing")"
  # not local: the trap runs when the function has ended
  probe=$(mktemp -- "$existing/.longship-doctor.XXXXXX" 2>&1) ||
    fail_writing "$existing" "cannot write to $existing: ${probe##*: }" "$elsewhere"
  trap 'rm -f -- "$probe"' EXIT
  reason=$({ printf '#!/bin/sh\n' >"$probe" && chmod u+x -- "$probe"; } 2>&1) ||
    fail_writing "$existing" "cannot write to $existing: ${reason##*: }" "$elsewhere"
  reason=$("$probe" 2>&1) ||
    fail "cannot start programs in $existing: ${reason##*: }" \
      "$elsewhere; to check for noexec, run: findmnt --target $(printf %q "$existing")"
}

# directory_free_space DIR: print the free space, if it can be determined.
directory_free_space() {
  local free size
  read -r free size < <(timeout 20 stat -f -c '%a %S' -- "$1" 2>/dev/null) || return 0
  bytes_format $((free * size))
  printf ', %s free' "$REPLY"
}

# caches_diagnose CACHES: warn of a link through which caches would fill the home directory.
caches_diagnose() {
  local home folder target
  home=$(readlink -f -- "${HOME:-/nowhere}") || home=/nowhere
  target=$(readlink -m -- "${1%/*}")
  if [[ $target/ == "$home"/* ]]; then
    report ok caches "$1, in the home directory, like scratch_dir"
    return
  fi
  for folder in "$1" "$1"/*; do
    target=$(readlink -m -- "$folder")
    if [[ $target/ == "$home"/* ]]; then
      report warning caches "$folder leads to $target: caches would fill the home directory" \
        "rm $(printf %q "$folder"); the next command creates it again"
      return
    fi
  done
  report ok caches "$1, outside the home directory"
}

# leftovers_diagnose ROOT PROJECT SCRATCH: report stale locks and unfinished files.
leftovers_diagnose() {
  local path
  local -a dirs=() unfinished=() locks=()
  local -i kilobytes=0 stale=0
  for path in "$1/requirements" "$2" "$3" "$3"/{containers,containers/build,containers/versions,overlays} \
    "$3"/{overlays/versions,overlays/unpacked,offline,offline/containers,cache,venvs}; do
    if [[ -d $path ]]; then dirs+=("$path"); fi
  done
  while IFS= read -r -d '' path; do
    case $path in
      *.lock) locks+=("$path") ;;
      *) unfinished+=("$path") ;;
    esac
  done < <(((${#dirs[@]} == 0)) || timeout 30 find "${dirs[@]}" -mindepth 1 -maxdepth 1 \
    \( -type d -name '*.lock' -o -name '*.partial*' -mmin +60 \) -print0 2>/dev/null)
  for path in ${locks[@]+"${locks[@]}"}; do
    if lock_is_stale "$path"; then
      stale+=1
      report warning locks "$(lock_owner "$path") no longer runs, but its lock exists: $path, of $(lock_time "$path")" \
        "rm -r $(printf %q "$path"); or let the next command take it over"
    else
      report ok locks "$(lock_owner "$path") holds the lock $path, last seen $(lock_time "$path")"
      return # unfinished files may be its own
    fi
  done
  if ((${#unfinished[@]})); then
    kilobytes=$(timeout 30 du -skc -- "${unfinished[@]}" 2>/dev/null | tail -n 1 | cut -f 1) || :
    bytes_format $((kilobytes << 10))
    report warning leftovers "${#unfinished[@]} unfinished for over an hour, $REPLY: ${unfinished[*]}" \
      "rm -r$(printf ' %q' "${unfinished[@]}")"
  elif ((stale == 0)); then
    report ok leftovers 'no locks and no unfinished files'
  fi
}

# lock_time LOCK: print when its owner was last seen.
lock_time() {
  date -r "$1" '+%F %H:%M' 2>/dev/null || printf 'a moment ago'
}

# ---------- what apptainer and singularity require

# namespaces_diagnose RUNTIME: check that an ordinary user can start an image.
namespaces_diagnose() {
  if timeout 20 unshare --user --map-root-user true 2>/dev/null; then
    report ok namespaces 'user namespaces are available'
  elif sif_has_setuid "$1"; then
    report ok namespaces "not available to users; $1 is installed setuid and does not need them"
  else
    report problem namespaces "user namespaces are not available, and $1 requires them" \
      'ask your site to set: sysctl user.max_user_namespaces kernel.unprivileged_userns_clone'
  fi
}

# fakeroot_diagnose HINT: report whether an ordinary user can build an image from a definition file.
fakeroot_diagnose() {
  local name
  name=$(id -un 2>/dev/null) || :
  if grep -q -s -E "^($name|$UID):" /etc/subuid && grep -q -s -E "^($name|$UID):" /etc/subgid &&
    command -v newuidmap >/dev/null; then
    report ok fakeroot "$name has a range of user ids for builds from definition files"
  else
    report ok fakeroot "$name has no range of user ids; images from a registry do not need one${1:+ ($1)}"
  fi
}

# fuse_diagnose RUNTIME: check that an ordinary user can mount images and overlays.
fuse_diagnose() {
  if [[ -r /dev/fuse && -w /dev/fuse ]]; then
    report ok FUSE '/dev/fuse is accessible'
  elif sif_has_setuid "$1"; then
    report ok FUSE "/dev/fuse is not accessible; $1 is installed setuid and does not need it"
  else
    report warning FUSE "/dev/fuse is not accessible: $1 unpacks each image before it starts" \
      'ask your site for: chmod 666 /dev/fuse, or a setuid installation of apptainer'
  fi
}

# ---------- GPUs

# The drivers that gpu_diagnose has found: the newest CUDA that NVIDIA's supports, and AMD's version.
declare -g driver_cuda='' driver_amd=''

# gpu_diagnose KIND PER_NODE: report GPUs and driver: cuda, rocm, or auto for either.
gpu_diagnose() {
  local output name driver=''
  local -i count
  local exclude="tell your site's support, and exclude this node: python3 submit.py JOB --exclude="
  exclude+=$(host_name)
  if command -v nvidia-smi >/dev/null && [[ $1 != rocm ]]; then
    if ! output=$(timeout 30 nvidia-smi 2>&1); then
      output=${output%%$'\n'*}
      report problem GPU "nvidia-smi: ${output:-no response within 30 seconds}" "$exclude"
      return
    fi
    driver_cuda=unknown
    # since driver 610 it is the CUDA UMD Version
    if [[ $output =~ CUDA\ (UMD\ )?Version:\ *([0-9]+\.[0-9]+) ]]; then driver_cuda=${BASH_REMATCH[2]}; fi
    if [[ $output =~ NVIDIA-SMI\ ([0-9.]+) ]]; then driver=${BASH_REMATCH[1]}; fi
    output=$(timeout 30 nvidia-smi -L 2>/dev/null | grep ^GPU) || :
    count=$(grep -c . <<<"$output") || :
    name=${output%%$'\n'*}
    name=${name#GPU *: }
    report ok GPU "$count x ${name%% (UUID*}, driver ${driver:-unknown}, for CUDA up to $driver_cuda"
  elif [[ -e /dev/kfd && $1 != cuda ]]; then
    driver_amd=$(cat /sys/module/amdgpu/version 2>/dev/null) || driver_amd="of Linux $(uname -r)"
    count=$(grep -l -s -E 'simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties | wc -l)
    report ok GPU "$count of AMD, driver $driver_amd"
  elif [[ -n ${SLURM_JOB_GPUS:-}${SLURM_GPUS_ON_NODE:-} ]]; then
    report problem GPU 'the job has GPUs, but this node has no GPU driver' "$exclude"
  elif [[ $2 != 0 ]]; then
    report ok GPU "none on this node; compute nodes have $2"
  else
    report ok GPU 'none on this machine'
  fi
}

# What POSIX sh prints inside the container: the GPUs that are visible, the image's CUDA or ROCm, and whether
# the image brings the libraries with which its programs run on an older driver.
# shellcheck disable=SC2016  # expanded inside
declare -g ASK_ABOUT_GPU='echo "seen=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)"
cuda=${CUDA_VERSION:-$(cat /usr/local/cuda/version.json 2>/dev/null | tr -d " \n" | sed "s/.*\"cuda\":{[^}]*\"version\":\"//; s/\".*//")}
echo "cuda=$cuda"
if [ -r /dev/kfd ] && [ -w /dev/kfd ]; then echo kfd=yes; fi
echo "rocm=${ROCM_VERSION:-$(cat /opt/rocm/.info/version 2>/dev/null)}"
ls /usr/local/cuda/compat/lib*/libcuda.so* /usr/local/cuda/compat/libcuda.so* >/dev/null 2>&1 && echo compatible=yes
exit 0'

# gpu_diagnose_inside: check that programs inside the container see the GPUs, and that the driver is new
# enough for them. The emitted script defines inside_run.
gpu_diagnose_inside() {
  local output seen=0 program=nvidia-smi
  if [[ -z $driver_cuda$driver_amd ]] || ! report_passed inside; then return 0; fi
  output=$(run_with_timeout 60 inside_run sh -c "$ASK_ABOUT_GPU" 2>/dev/null </dev/null) || :
  if [[ -n $driver_amd ]]; then
    program=rocminfo
    if [[ $output == *kfd=yes* ]]; then seen=1; fi
  elif [[ $output =~ seen=([0-9]+) ]]; then
    seen=${BASH_REMATCH[1]}
  fi
  if ((seen == 0)); then
    report problem 'GPU inside' 'the GPUs of this node are not visible in the image' \
      "run: python3 container_run.py $program"
  elif [[ -n $driver_amd ]]; then
    # no judgement: AMD supports neighbouring releases of both (LUMI: images older than its driver may
    # fail), but a driver does not tell its release
    [[ $output =~ rocm=([0-9][0-9.]*) ]] || :
    report ok 'GPU inside' \
      "visible; the image has ROCm ${BASH_REMATCH[1]:-of a version that it does not say}, the driver is $driver_amd"
  else
    gpu_compare_cuda "$seen" "$output"
  fi
}

# gpu_compare_cuda COUNT OUTPUT: compare the image's CUDA with the driver's: a driver runs programs for older
# versions and, since CUDA 11, for any version of the same major number.
gpu_compare_cuda() {
  local -r older='an image of an older release: container.image in configuration.toml'
  local cuda=''
  if [[ $2 =~ cuda=([0-9]+\.[0-9]+) ]]; then cuda=${BASH_REMATCH[1]}; fi
  if [[ -z $cuda || $driver_cuda == unknown ]]; then
    report ok 'GPU inside' "$1 visible; the image has CUDA ${cuda:-of a version that it does not say}"
  elif ((${driver_cuda%.*} >= ${cuda%.*})); then
    report ok 'GPU inside' "$1 visible; the image has CUDA $cuda"
  elif [[ $2 == *compatible=yes* ]]; then
    report warning 'GPU inside' \
      "the image has CUDA $cuda, but the driver supports $driver_cuda: this works on data-center GPUs only" "$older"
  else
    report problem 'GPU inside' "the image has CUDA $cuda, but the driver supports only $driver_cuda" "$older"
  fi
}

# ---------- Slurm

# slurm_diagnose EXPECTED ACCOUNT PARTITION...: check that Slurm responds, has the site's partitions, and knows
# the account. EXPECTED is the machine; empty if it may have no Slurm.
slurm_diagnose() {
  local output partition missing=''
  if ! command -v sinfo >/dev/null; then
    if [[ -n $1 ]]; then
      report warning Slurm 'Slurm not found on this machine: sinfo is missing' "submit on a login node of $1"
    else
      report ok Slurm 'none on this machine'
    fi
    return
  fi
  if ! output=$(timeout 10 sinfo --noheader --format=%R 2>&1); then
    if [[ -z $1 && $output == *'configuration source'* ]]; then
      report ok Slurm 'Slurm commands are installed, but no cluster is configured'
      return
    fi
    if [[ -n $output ]]; then output=": $(slurm_last_error "$output")"; fi
    report problem Slurm "Slurm does not respond${output:- within 10 seconds}" \
      'try again later; check the status page of your site, and: scontrol ping'
    return
  fi
  for partition in "${@:3}"; do
    if ! grep -q -x -F -e "$partition" <<<"$output"; then missing+=", $partition"; fi
  done
  if [[ -n $missing ]]; then
    report warning Slurm "$1 has no partition ${missing#, }; it has ${output//$'\n'/, }" \
      "correct the partitions in site.toml and in the #SBATCH directives"
  else
    report ok Slurm "answers; partitions: ${output//$'\n'/, }"
  fi
  account_diagnose "$2"
}

# account_diagnose ACCOUNT: compare it with the user's accounts, if Slurm lists them.
account_diagnose() {
  local output
  command -v sacctmgr >/dev/null || return 0
  output=$(timeout 10 sacctmgr --noheader --parsable2 show associations "user=$(id -un)" format=account 2>/dev/null |
    sort -u) || return 0
  if [[ -z $output ]]; then return 0; fi
  if [[ -z $1 ]]; then
    report ok account "none is configured; your accounts: ${output//$'\n'/, }"
  elif grep -q -x -i -F -e "$1" <<<"$output"; then
    report ok account "$1 is one of your accounts"
  else
    report problem account "account $1 is not one of your accounts: ${output//$'\n'/, }" \
      "project.account = \"${output%%$'\n'*}\" in configuration.toml"
  fi
}
