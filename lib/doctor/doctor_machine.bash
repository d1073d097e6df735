# shellcheck shell=bash disable=SC2154  # lib/doctor/report.bash sets heeded
# What doctor.py asks of the machine itself: Python, user namespaces, FUSE, GPUs.

# diagnose_clone ROOT: which state of this repository it is.
diagnose_clone() {
  local said REPLY
  if said=$(timeout 20 git -C "$1" describe --always --tags --dirty=', with changes' 2>/dev/null); then
    report ok clone "$said, in $1"
  elif ! said=$(LC_ALL=C timeout 20 git -C "$1" rev-parse 2>&1) && trust_hint "$said"; then
    report warning clone "$1 belongs to another user, and git refuses to read it" "$REPLY"
  else
    report ok clone "plain files, no history of git, in $1"
  fi
}

# diagnose_node: where and when this is asked, which is what helpers ask first.
diagnose_node() {
  local system='' job='in no job' user
  user=$(id -un 2>/dev/null) || : # of a user id without a name it says the number
  system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\).*/\1/p' /etc/os-release 2>/dev/null) || :
  if [[ -n ${SLURM_JOB_ID:-} ]]; then job="in job $SLURM_JOB_ID"; fi
  report ok node "$(this_host), ${system:+$system, }Linux $(uname -r), $user, $job, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  if [[ -n ${LOADEDMODULES:-} ]]; then report ok modules "${LOADEDMODULES//:/ }"; fi
}

# diagnose_python ROOT: the one that users and jobs call.
diagnose_python() {
  local version packages=' and its packages'
  version=$(timeout 20 python3 --version 2>&1) || version='no python3'
  if [[ -d $1/.venv ]]; then packages=' and the packages of .venv'; fi
  heed python "$version$packages" check_python "$1"
}

# diagnose_arch WANTED MACHINE: what this node can run; elsewhere than on its own a site's login nodes can be
# of another kind.
diagnose_arch() {
  host_arch
  heeded[architecture]=ok
  if [[ $REPLY == "$1" ]]; then
    report ok architecture "$1: this machine, and what is built for $2"
  else
    heeded[architecture]=other
    report ok architecture "this machine is $REPLY, and $2 computes on $1: programs start in jobs only"
  fi
}

# diagnose_namespaces RUNTIME DEFINITIONS HINT: what an image needs that is started, or built from a
# definition file, by an ordinary user. DEFINITIONS is what the site says of the latter.
diagnose_namespaces() {
  local ids='' name
  case $1 in apptainer | singularity) ;; *) return 0 ;; esac
  if timeout 20 unshare --user --map-root-user true 2>/dev/null; then
    report ok namespaces 'user namespaces are available'
  elif has_setuid_starter "$1"; then
    report ok namespaces "not available to users; $1 is installed setuid and does not need them"
  else
    report problem namespaces "user namespaces are not available, and $1 requires them" \
      'ask your site to set: sysctl user.max_user_namespaces kernel.unprivileged_userns_clone'
  fi
  name=$(id -un 2>/dev/null) || :
  if grep -q -s -E "^($name|$UID):" /etc/subuid && grep -q -s -E "^($name|$UID):" /etc/subgid; then ids=1; fi
  if [[ $2 == forbidden ]]; then
    report ok fakeroot 'the site allows no builds from definition files'
  elif [[ -n $ids ]] && command -v newuidmap >/dev/null; then
    report ok fakeroot "$name has a range of user ids for builds from definition files"
  else
    report ok fakeroot "$name has no range of user ids; images from a registry do not need one${3:+ ($3)}"
  fi
}

# diagnose_fuse RUNTIME: by it an ordinary user mounts images and overlays.
diagnose_fuse() {
  case $1 in apptainer | singularity) ;; *) return 0 ;; esac
  if [[ -r /dev/fuse && -w /dev/fuse ]]; then
    report ok FUSE '/dev/fuse is accessible'
  elif has_setuid_starter "$1"; then
    report ok FUSE "/dev/fuse is not accessible; $1 is installed setuid and does not need it"
  else
    report warning FUSE "/dev/fuse is not accessible: $1 unpacks each image before it starts" \
      'ask your site for: chmod 666 /dev/fuse, or a setuid installation of apptainer'
  fi
}

# diagnose_gpu KIND PER_NODE: what the driver says.
diagnose_gpu() {
  local said name driver=''
  local -i count
  cuda_of_driver='' amd_driver=
  if [[ $1 == cpu ]]; then
    report ok GPU 'this machine has none'
  elif command -v nvidia-smi >/dev/null && [[ $1 != rocm ]]; then
    if ! said=$(timeout 30 nvidia-smi 2>&1); then
      said=${said%%$'\n'*}
      report problem GPU "nvidia-smi: ${said:-no response within 30 seconds}" \
        "tell your site's support, and exclude this node: python3 submit.py JOB --exclude=$(this_host)"
      return
    fi
    cuda_of_driver=unknown
    # since driver 610 it is the CUDA UMD Version
    if [[ $said =~ CUDA\ (UMD\ )?Version:\ *([0-9]+\.[0-9]+) ]]; then cuda_of_driver=${BASH_REMATCH[2]}; fi
    if [[ $said =~ NVIDIA-SMI\ ([0-9.]+) ]]; then driver=${BASH_REMATCH[1]}; fi
    said=$(timeout 30 nvidia-smi -L 2>/dev/null | grep ^GPU) || :
    count=$(grep -c . <<<"$said") || :
    name=${said%%$'\n'*}
    name=${name#GPU *: }
    report ok GPU "$count x ${name%% (UUID*}, driver ${driver:-unknown}, for CUDA up to $cuda_of_driver"
  elif [[ -e /dev/kfd && $1 != cuda ]]; then
    amd_driver=$(cat /sys/module/amdgpu/version 2>/dev/null) || amd_driver="of Linux $(uname -r)"
    count=$(grep -l -s -E 'simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties | wc -l)
    report ok GPU "$count of AMD, driver $amd_driver"
  elif [[ -n ${SLURM_JOB_GPUS:-}${SLURM_GPUS_ON_NODE:-} ]]; then
    report problem GPU 'the job has GPUs, but this node has no GPU driver' \
      "tell your site's support, and exclude this node: python3 submit.py JOB --exclude=$(this_host)"
  elif [[ $2 != 0 ]]; then
    report ok GPU "none on this node; compute nodes have $2"
  else
    report ok GPU 'none on this machine'
  fi
}

# what is asked inside, by POSIX sh: the GPUs, the image's CUDA, and whether it brings the libraries with
# which its programs run on an older driver
# shellcheck disable=SC2016  # expanded inside
declare -g ASK_ABOUT_GPU='echo "seen=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)"
cuda=${CUDA_VERSION:-$(cat /usr/local/cuda/version.json 2>/dev/null | tr -d " \n" | sed "s/.*\"cuda\":{[^}]*\"version\":\"//; s/\".*//")}
echo "cuda=$cuda"
if [ -r /dev/kfd ] && [ -w /dev/kfd ]; then echo kfd=yes; fi
echo "rocm=${ROCM_VERSION:-$(cat /opt/rocm/.info/version 2>/dev/null)}"
ls /usr/local/cuda/compat/lib*/libcuda.so* /usr/local/cuda/compat/libcuda.so* >/dev/null 2>&1 && echo compatible=yes
exit 0'

# diagnose_gpu_inside: whether programs inside see it, and whether the driver is new enough for them.
# The emitted script defines inside_now.
diagnose_gpu_inside() {
  local said
  [[ -n $cuda_of_driver$amd_driver && ${heeded[inside]} == ok ]] || return 0
  said=$(in_time 60 inside_now sh -c "$ASK_ABOUT_GPU" 2>/dev/null </dev/null) || :
  if [[ -n $amd_driver ]]; then
    tell_rocm_inside "$said"
  elif [[ ! $said =~ seen=[1-9] ]]; then
    gpu_is_not_seen 'python3 container_run.py nvidia-smi'
  else
    tell_cuda_inside "$said"
  fi
}

# gpu_is_not_seen COMMAND: which may say why.
gpu_is_not_seen() {
  report problem 'GPU inside' 'the GPUs of this node are not visible in the image' "run: $1"
}

# tell_cuda_inside ANSWER: a driver runs what is made for older versions, and since CUDA 11 for any of the
# same major version.
tell_cuda_inside() {
  local -r older='an image of an older release: container.image in configuration.toml'
  local seen cuda=''
  if [[ $1 =~ cuda=([0-9]+\.[0-9]+) ]]; then cuda=${BASH_REMATCH[1]}; fi
  [[ $1 =~ seen=([0-9]+) ]]
  seen=${BASH_REMATCH[1]}
  if [[ -z $cuda || $cuda_of_driver == unknown ]]; then
    report ok 'GPU inside' "$seen visible; the image has CUDA ${cuda:-of a version that it does not say}"
  elif ((${cuda_of_driver%.*} >= ${cuda%.*})); then
    report ok 'GPU inside' "$seen visible; the image has CUDA $cuda"
  elif [[ $1 == *compatible=yes* ]]; then
    report warning 'GPU inside' \
      "the image has CUDA $cuda, but the driver supports $cuda_of_driver: this works on data-center GPUs only" "$older"
  else
    report problem 'GPU inside' "the image has CUDA $cuda, but the driver supports only $cuda_of_driver" "$older"
  fi
}

# tell_rocm_inside ANSWER: without a judgement. AMD supports neighbouring releases of both (LUMI: images
# older than its driver may fail), but a driver does not say which release it is of.
tell_rocm_inside() {
  local rocm=''
  if [[ $1 != *kfd=yes* ]]; then
    gpu_is_not_seen 'python3 container_run.py rocminfo'
    return
  fi
  if [[ $1 =~ rocm=([0-9][0-9.]*) ]]; then rocm=${BASH_REMATCH[1]}; fi
  report ok 'GPU inside' "visible; the image has ROCm ${rocm:-of a version that it does not say}, the driver is $amd_driver"
}
