#!/usr/bin/env bash
# Longship: doctor.py, machine jpb (jsc/site.toml)
set -euo pipefail

# helpers_of RUNTIME: set REPLY to the folder with the programs that it starts itself.
helpers_of() {
  local name value
  REPLY=
  while IFS='=' read -r name value; do
    if [[ $name == LIBEXECDIR ]]; then REPLY=$value/$1/bin; fi
  done < <("$1" buildcfg 2>/dev/null)
}

# has_setuid_starter RUNTIME: whether the kernel mounts images for it, and it needs no user namespaces.
has_setuid_starter() {
  helpers_of "$1"
  [[ -u $REPLY/starter-suid ]]
}

# diagnose_folder TOPIC SETTING FOLDER BYTES: whether it can be used, and has so much room.
diagnose_folder() {
  local text=$3 room_elsewhere=", or set $2 to another place"
  if [[ $2 == HOME ]]; then room_elsewhere=": du -h -d 1 $(printf %q "$3") | sort -h"; fi
  heed "$1" '' try_folder "$2" "$3"
  if [[ ${heeded[$1]} != ok ]]; then return 0; fi
  what_is_there "$3"
  if [[ $REPLY != "$3" ]]; then text+=' (made when it is needed)'; fi
  heed "$1" "$text$(room_left "$REPLY")" check_room "$REPLY" "$4"
}

# what_is_there FOLDER: set REPLY to it, or to the nearest one around it that is there.
what_is_there() {
  REPLY=$1
  until [[ -e $REPLY || -L $REPLY ]]; do
    REPLY=${REPLY%/*}
    REPLY=${REPLY:-/}
  done
}

# try_folder SETTING FOLDER: stop where files cannot be written or programs not be started in it, or,
# where it is not there yet, in the one around it.
try_folder() {
  local -r elsewhere="set $1 to another place"
  local there reason
  what_is_there "$2"
  there=$REPLY
  [[ -e $there ]] || fail "$2: the link $there leads nowhere" "$elsewhere, or: rm $(printf %q "$there")"
  [[ -d $there ]] || fail "$2: $there is no folder" "$elsewhere, or: rm $(printf %q "$there")"
  # not local: the trap runs when the function has ended
  probe=$(mktemp -- "$there/.longship-doctor.XXXXXX" 2>&1) ||
    fail_writing "$there" "$there cannot be written to: ${probe##*: }" "$elsewhere"
  trap 'rm -f -- "$probe"' EXIT
  reason=$({ printf '#!/bin/sh\n' >"$probe" && chmod u+x -- "$probe"; } 2>&1) ||
    fail_writing "$there" "$there cannot be written to: ${reason##*: }" "$elsewhere"
  reason=$("$probe" 2>&1) ||
    fail "no program starts in $there: ${reason##*: }" \
      "$elsewhere; is it mounted noexec? findmnt --target $(printf %q "$there")"
}

# room_left FOLDER: print how much, where it can be known.
room_left() {
  local free size
  read -r free size < <(timeout 20 stat -f -c '%a %S' -- "$1" 2>/dev/null) || return 0
  human $((free * size))
  printf ', %s free' "$REPLY"
}

# diagnose_caches CACHES: they would fill a home folder, whatever link leads there.
diagnose_caches() {
  local home folder lies
  home=$(readlink -f -- "${HOME:-/nowhere}") || home=/nowhere
  lies=$(readlink -m -- "${1%/*}")
  if [[ $lies/ == "$home"/* ]]; then
    report ok caches "$1, in the home folder as scratch_dir is"
    return
  fi
  for folder in "$1" "$1"/*; do
    lies=$(readlink -m -- "$folder")
    if [[ $lies/ == "$home"/* ]]; then
      report warning caches "$folder leads to $lies: caches would fill the home folder" \
        "rm $(printf %q "$folder"); it is made anew"
      return
    fi
  done
  report ok caches "$1, outside of the home folder"
}

# diagnose_leftovers ROOT PROJECT SCRATCH: locks without an owner, and what was not finished.
diagnose_leftovers() {
  local path
  local -a where=() unfinished=() locks=()
  local -i kilobytes=0 stale=0
  for path in "$1/requirements" "$2" "$3" "$3"/{containers,containers/build,containers/versions,overlays} \
    "$3"/{overlays/versions,overlays/unpacked,offline,offline/containers,cache,venvs}; do
    if [[ -d $path ]]; then where+=("$path"); fi
  done
  while IFS= read -r -d '' path; do
    case $path in
      *.lock) locks+=("$path") ;;
      *) unfinished+=("$path") ;;
    esac
  done < <(((${#where[@]} == 0)) || timeout 30 find "${where[@]}" -mindepth 1 -maxdepth 1 \
    \( -type d -name '*.lock' -o -name '*.partial*' -mmin +60 \) -print0 2>/dev/null)
  for path in ${locks[@]+"${locks[@]}"}; do
    if lock_is_stale "$path"; then
      stale+=1
      report warning locks "$(lock_owner "$path") is gone, its lock is left: $path, of $(lock_time "$path")" \
        "rm -r $(printf %q "$path"); the next command would also take it over"
    else
      report ok locks "$(lock_owner "$path") is at work: $path, since $(lock_time "$path")"
      return # what is not finished may be its own
    fi
  done
  if ((${#unfinished[@]})); then
    kilobytes=$(timeout 30 du -skc -- "${unfinished[@]}" 2>/dev/null | tail -n 1 | cut -f 1) || :
    human $((kilobytes << 10))
    report warning leftovers "${#unfinished[@]} unfinished for over an hour, $REPLY: ${unfinished[*]}" \
      "rm -r$(printf ' %q' "${unfinished[@]}")"
  elif ((stale == 0)); then
    report ok leftovers 'no lock and no unfinished file'
  fi
}

# lock_time LOCK: print when it was made; its owner's file tells when he last was alive.
lock_time() {
  date -r "$1" '+%F %H:%M' 2>/dev/null || printf 'a moment ago'
}

# diagnose_home: programs write there whatever they are told, and a full one stops logins.
diagnose_home() {
  local -r home=${HOME:-}
  if [[ -z $home || ! -d $home ]]; then
    report problem home "HOME is ${home:-not set}, which is no folder" "export HOME=\"\$(getent passwd $UID | cut -d : -f 6)\""
    return
  fi
  diagnose_folder home HOME "$home" 536870912
}

# diagnose_clone ROOT: which state of this repository it is.
diagnose_clone() {
  local said
  if said=$(timeout 20 git -C "$1" describe --always --tags --dirty=', with changes' 2>/dev/null); then
    report ok clone "$said, in $1"
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
    report ok namespaces 'an ordinary user may make user namespaces'
  elif has_setuid_starter "$1"; then
    report ok namespaces "none for ordinary users; $1 is installed setuid and needs none"
  else
    report problem namespaces "an ordinary user may make no user namespace, and $1 starts no image without" \
      'ask the site: sysctl user.max_user_namespaces kernel.unprivileged_userns_clone'
  fi
  name=$(id -un 2>/dev/null) || :
  if grep -q -s -E "^($name|$UID):" /etc/subuid && grep -q -s -E "^($name|$UID):" /etc/subgid; then ids=1; fi
  if [[ $2 == forbidden ]]; then
    report ok fakeroot 'the site allows no builds from definition files'
  elif [[ -n $ids ]] && command -v newuidmap >/dev/null; then
    report ok fakeroot "$name has a range of user ids for builds from definition files"
  else
    report ok fakeroot "$name has no range of user ids; the image of a registry needs none${3:+ ($3)}"
  fi
}

# diagnose_fuse RUNTIME: by it an ordinary user mounts images and overlays.
diagnose_fuse() {
  case $1 in apptainer | singularity) ;; *) return 0 ;; esac
  if [[ -r /dev/fuse && -w /dev/fuse ]]; then
    report ok FUSE '/dev/fuse can be used'
  elif has_setuid_starter "$1"; then
    report ok FUSE "/dev/fuse cannot be used; $1 is installed setuid and needs none"
  else
    report warning FUSE "/dev/fuse cannot be used: $1 unpacks each image before it starts" \
      'ask the site: chmod 666 /dev/fuse, or apptainer installed setuid'
  fi
}

# diagnose_gpu KIND PER_NODE: what the driver says.
diagnose_gpu() {
  local said name driver=''
  local -i count
  cuda_of_driver='' amd_driver=
  if [[ $1 == cpu ]]; then
    report ok GPU 'the machine has none'
  elif command -v nvidia-smi >/dev/null && [[ $1 != rocm ]]; then
    if ! said=$(timeout 30 nvidia-smi 2>&1); then
      said=${said%%$'\n'*}
      report problem GPU "nvidia-smi: ${said:-no answer for 30 seconds}" \
        "name this node to the site; go on without it: python3 submit.py JOB --exclude=$(this_host)"
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
    report problem GPU 'the job has been given GPUs, and no driver is seen on this node' \
      "name this node to the site; go on without it: python3 submit.py JOB --exclude=$(this_host)"
  elif [[ $2 != 0 ]]; then
    report ok GPU "none on this node; a compute node has $2"
  else
    report ok GPU 'none on this machine'
  fi
}

# what is asked inside, by POSIX sh: the GPUs, the image's CUDA, and whether it brings the libraries with
# which its programs run on an older driver
# shellcheck disable=SC2016  # expanded inside
readonly ASK_ABOUT_GPU='echo "seen=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)"
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
  report problem 'GPU inside' 'the image does not see the GPUs of this node' "see what it says: $1"
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
    report ok 'GPU inside' "$seen seen; the image has CUDA ${cuda:-of a version that it does not say}"
  elif ((${cuda_of_driver%.*} >= ${cuda%.*})); then
    report ok 'GPU inside' "$seen seen; the image has CUDA $cuda"
  elif [[ $1 == *compatible=yes* ]]; then
    report warning 'GPU inside' \
      "the image has CUDA $cuda, the driver is for up to $cuda_of_driver: it works on GPUs of data centers only" "$older"
  else
    report problem 'GPU inside' "the image has CUDA $cuda, and the driver is for up to $cuda_of_driver" "$older"
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
  report ok 'GPU inside' "seen; the image has ROCm ${rocm:-of a version that it does not say}, the driver is $amd_driver"
}

# diagnose_certificates: of what the environment names; a file that is not there ends each download with
# words about something else.
diagnose_certificates() {
  local variable path named='' bad=''
  for variable in "${CERTIFICATES[@]}"; do
    path=${!variable:-}
    if [[ -z $path ]]; then
      continue
    elif [[ ! -e $path ]]; then
      bad='is not there'
    elif [[ ! -r $path ]]; then
      bad='cannot be read'
    elif [[ -f $path ]] && ! grep -q -s 'BEGIN.* CERTIFICATE' -- "$path"; then
      bad='holds no certificate'
    else
      named+=", $variable"
      continue
    fi
    report problem certificates "$variable names $path, which $bad" \
      "unset $variable, or name the bundle of the site in it"
  done
  if [[ -n $bad ]]; then return; fi
  if [[ -n $named ]]; then named="named by ${named#, }"; fi
  report ok certificates "${named:-those of the system}"
}

# diagnose_proxy: what the environment says, and whether something listens there.
diagnose_proxy() {
  local variable other shown='' address
  for variable in http_proxy https_proxy all_proxy; do
    other=${variable^^}
    if [[ -n ${!variable:-} && -n ${!other:-} && ${!variable} != "${!other}" ]]; then
      report warning proxy "$variable and $other name different ones: programs differ in which they read" \
        "export $other=\"\$$variable\""
    fi
    address=${!variable:-${!other:-}}
    if [[ -z $address || $shown == *" $(shown_url "$address")"* ]]; then continue; fi
    shown+=" $(shown_url "$address")"
    if ! takes_connection "$address"; then
      report problem proxy "nothing answers at $(shown_url "$address"), which $variable names" \
        "correct it, or: unset $variable $other"
      return
    fi
  done
  shown=${shown# }
  report ok proxy "${shown:-none set}"
}

# shown_url URL: print it without what logs in to a server, whatever odd characters that has.
shown_url() {
  if [[ $1 == *@* ]]; then
    case $1 in *://*) printf '%s://***@%s' "${1%%://*}" "${1##*@}" ;; *) printf '***@%s' "${1##*@}" ;; esac
  else
    printf '%s' "$1"
  fi
}

# takes_connection URL: whether its host takes a connection.
takes_connection() {
  local host=${1#*://}
  local port
  host=${host##*@}
  host=${host%%/*}
  port=${host##*:}
  if [[ $port == "$host" ]]; then
    case $1 in https:*) port=443 ;; socks*) port=1080 ;; *) port=80 ;; esac
  fi
  host=${host%:*}
  host=${host#[}
  # shellcheck disable=SC2016  # expanded by the inner bash
  timeout 5 bash -c ': <>"/dev/tcp/$1/$2"' bash "${host%]}" "$port" 2>/dev/null
}

# diagnose_reach OFFLINE URL...: whether what packages and images come from answers. OFFLINE is the folder
# of what was carried here: where it has something, no way out is needed.
diagnose_reach() {
  local url code state number
  local -a urls=() answers=() reached=()
  while IFS= read -r url; do urls+=("$url"); done < <(package_index)
  urls+=("${@:2}")
  for url in ${urls[@]+"${urls[@]}"}; do # all at once: without a way out each takes its time
    exec {number}< <(state=0 && code=$(first_answer "$url" 2>/dev/null) || state=$? && printf '%s %s\n' "$state" "$code")
    answers+=("$number")
  done
  for number in ${answers[@]+"${!answers[@]}"}; do
    read -r state code <&"${answers[number]}" || :
    url=$(shown_url "${urls[number]}")
    if [[ $code =~ ^[2-4] ]]; then # that a login is asked for is an answer too
      reached+=("$url")
    elif ((state == 60 || state == 77)); then
      report problem network "the certificate of $url is not trusted here" \
        "export SSL_CERT_FILE=FILE: the site's bundle, which has the one of its proxy"
    elif [[ -n ${SLURM_JOB_ID:-} ]]; then
      report ok network "$url is out of reach, as it may be in a job"
    elif compgen -G "$1/*/*" >/dev/null; then
      report ok network "$url is out of reach; what was carried here lies in $1"
    else
      report warning network "$url cannot be reached from here" \
        'a proxy? export https_proxy=...; without a network: python3 bundle.py pack DIR where there is one'
    fi
  done
  if ((${#reached[@]})); then report ok network "answers: ${reached[*]}"; fi
}

# package_index: print what pip would ask; nothing where it is told to ask none.
package_index() {
  local file
  if [[ -n ${PIP_NO_INDEX:-} ]]; then return 0; fi
  for file in "${PIP_CONFIG_FILE:-}" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf" \
    "${HOME:-}/.pip/pip.conf" /etc/pip.conf; do
    if [[ -z ${PIP_INDEX_URL:-} && -r $file ]]; then
      PIP_INDEX_URL=$(sed -n -E 's/^ *index[-_]url *[=:] *//p' "$file" | tail -n 1)
    fi
  done
  printf '%s\n' "${PIP_INDEX_URL:-https://pypi.org/simple/}"
}

# the same without curl, in Python
readonly ASK_SERVER='import ssl, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.stdin.read().strip(), timeout=8).status)
except urllib.error.HTTPError as error:
    print(error.code)
except urllib.error.URLError as error:
    sys.exit(60 if isinstance(error.reason, ssl.SSLError) else 7)'

# first_answer URL: print the number that it answers with; the exit codes are curl's. It can hold a
# password, so it is no argument, which everybody on a login node can see.
first_answer() {
  local url=${1//\\/\\\\}
  if command -v curl >/dev/null; then
    printf 'url = "%s"\n' "${url//\"/\\\"}" |
      timeout 15 curl --silent --output /dev/null --max-time 8 --write-out '%{http_code}' --config -
  else
    printf '%s\n' "$1" | timeout 15 python3 -c "$ASK_SERVER"
  fi
}

# diagnose_tokens FILE...: readable by their owner alone.
diagnose_tokens() {
  local file mode seen=''
  local -i count=0 bad=0
  for file in "$@"; do
    if [[ ! -e $file || $seen == *"/$file/"* ]]; then continue; fi
    seen+="/$file/"
    count+=1
    mode=$(stat -L -c %a -- "$file")
    if [[ ! -r $file ]]; then
      report problem tokens "$file cannot be read by you" "ls -l $(printf %q "$file"); is it yours?"
    elif [[ $mode != *00 ]]; then
      report problem tokens "$file can be read by others (mode $mode)" "chmod 600 $(printf %q "$file")"
    elif [[ ! -s $file ]]; then
      report warning tokens "$file is empty" "write the token into it, or: rm $(printf %q "$file")"
    else
      continue
    fi
    bad+=1
  done
  if ((bad == 0 && count)); then report ok tokens "readable for you alone, files: $count"; fi
  if ((count == 0)); then report ok tokens 'in no file'; fi
}

# diagnose_secrets NAME...: which of the variables that are passed on by name are set.
diagnose_secrets() {
  local name named=''
  for name in "$@"; do
    if [[ -n ${!name:-} ]]; then named+=", $name"; fi
  done
  if [[ -n $named ]]; then named="set, and passed on: ${named#, }"; fi
  report ok secrets "${named:-not set: $*}"
}

# diagnose_slurm EXPECTED ACCOUNT PARTITION...: it answers, has the site's partitions, and knows the account.
# EXPECTED is empty where a machine may have none.
diagnose_slurm() {
  local said partition missing=''
  if ! command -v sinfo >/dev/null; then
    if [[ -n $1 ]]; then
      report warning Slurm 'there is no Slurm on this machine: no sinfo' "submit on a login node of $1"
    else
      report ok Slurm 'none on this machine'
    fi
    return
  fi
  if ! said=$(timeout 10 sinfo --noheader --format=%R 2>&1); then
    if [[ -z $1 && $said == *'configuration source'* ]]; then
      report ok Slurm 'its programs are here, and no cluster is configured for them'
      return
    fi
    if [[ -n $said ]]; then said=": $(slurm_reason "$said")"; fi
    report problem Slurm "it does not answer${said:- within 10 seconds}" \
      'try again later, and see the status page of the site; scontrol ping'
    return
  fi
  for partition in "${@:3}"; do
    if ! grep -q -x -F -e "$partition" <<<"$said"; then missing+=", $partition"; fi
  done
  if [[ -n $missing ]]; then
    report warning Slurm "$1 has no partition ${missing#, }; it has $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')" \
      "correct partitions in the site.toml, and the #SBATCH lines of the jobs"
  else
    report ok Slurm "answers; partitions: $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')"
  fi
  diagnose_account "$2"
}

# diagnose_account ACCOUNT: where Slurm tells which ones a user has.
diagnose_account() {
  local said
  command -v sacctmgr >/dev/null || return 0
  said=$(timeout 10 sacctmgr --noheader --parsable2 show associations "user=$(id -un)" format=account 2>/dev/null |
    sort -u) || return 0
  if [[ -z $said ]]; then return 0; fi
  if [[ -z $1 ]]; then
    report ok account "none is configured; yours: $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')"
  elif grep -q -x -i -F -e "$1" <<<"$said"; then
    report ok account "$1 is one of yours"
  else
    report problem account "$1 is none of yours, which are $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')" \
      "project.account = \"${said%%$'\n'*}\" in configuration.toml"
  fi
}

# diagnose_runtime RUNTIME WHY: the program that starts the image; why it was chosen, if that was open.
diagnose_runtime() {
  local said
  if [[ $1 == host ]]; then
    report ok runtime "host, which is no container${2:+: $2}"
    return
  fi
  said=$(in_time 20 program_version "$1" 2>/dev/null </dev/null) || :
  heed runtime "${said:-$1}${2:+, $2}" check_runtime "$1"
}

# check_runtime RUNTIME: stop where it is not there, or does not work.
check_runtime() {
  check_program "$1"
  timeout 20 "$1" --version >/dev/null 2>&1 || timeout 20 "$1" version >/dev/null 2>&1 ||
    fail "$1 is here, but it does not work" "see what it says: $1 version"
}

# diagnose_image FILE BUILT: complete, and what was recorded. The emitted script defines
# check_image_as_always. BUILT is what build_container.py makes.
diagnose_image() {
  heed image '' check_image_as_always
  if [[ ${heeded[image]} == ok ]]; then
    record_value "$1.json" date
    heed image "$1${REPLY:+, built $REPLY}" check_recorded_size image "$1" \
      'python3 build_container.py --force && python3 move_built_container_to_active.py'
  fi
  if [[ -e $2 && -e $2.json ]]; then
    report warning image 'a new image waits to be put in use' 'python3 move_built_container_to_active.py'
  fi
}

# check_recorded_size WHAT FILE HINT: stop where a file has another size than its record says; its
# checksum would take minutes.
check_recorded_size() {
  local bytes
  if holds_tag "$2"; then return 0; fi # the size is the one in the store
  record_value "$2.json" bytes
  if [[ -z $REPLY ]]; then return 0; fi
  bytes=$(stat -L -c %s -- "$2") || fail "the $1 $2 is missing" "$3"
  [[ $bytes == "$REPLY" ]] || fail "the $1 $2 has $bytes bytes, and its record says $REPLY" "$3"
}

# diagnose_inside: whether the image starts as container_run.py starts it. The emitted script defines
# inside_now COMMAND....
diagnose_inside() {
  local said
  heeded[inside]=
  [[ ${heeded[image]:-ok} == ok && ${heeded[architecture]} == ok ]] || return 0
  heed inside '' inside_now python3 -I -c ''
  [[ ${heeded[inside]} == ok ]] || return 0
  said=$(in_time 60 inside_now python3 -I -c 'import platform; print(platform.python_version(), "for", platform.machine())' \
    2>/dev/null </dev/null) || :
  report ok inside "Python $said starts"
}

# diagnose_mount RUNTIME IMAGE COMPRESSION OVERLAY: which SquashFS files the runtime mounts, tried with
# small ones. It matters where an OVERLAY is configured.
diagnose_mount() {
  local runtime=$1 base=$2 work each can='' cannot='' over='; --overlay does not work'
  local state=warning
  local -a packer=(mksquashfs)
  if [[ -n $4 ]]; then state=problem; fi
  [[ ${heeded[image]} == ok && ${heeded[architecture]} == ok ]] || return 0
  if ! packs_overlays "${packer[@]}"; then
    report ok mount 'not tried: no mksquashfs 4.4 on this machine; overlays are packed by the one of the image'
    return
  fi
  processors=1 memory=
  work=$(mktemp -d "${TMPDIR:-/tmp}/longship-doctor.XXXXXX" 2>/dev/null) || return 0 # which diagnose_folder tells
  for each in zstd lz4 xz gzip; do
    if in_time 30 mountable "$each" >/dev/null 2>&1 </dev/null; then can+=" $each"; else cannot+=" $each"; fi
  done
  if in_time 30 lays_over >/dev/null 2>&1 </dev/null; then over='; --overlay works'; fi
  rm -rf -- "$work"
  if [[ " $can " == *" $3 "* ]]; then
    report ok mount "$1 mounts overlays packed with$can${cannot:+, not with$cannot}$over"
  elif [[ -z $can ]]; then
    report "$state" mount \
      "$1 mounts no SquashFS file here" \
      'use no overlay: packages.overlay = "", then python3 set_up.py install'
  else
    can=${can# }
    report "$state" mount \
      "$1 mounts no overlay packed with $3, but with $can" \
      "packages.compression = \"${can%% *}\" in configuration.toml, then python3 build_overlay.py"
  fi
}

# lays_over: whether a file can be laid over the whole image; mountable has made what is packed.
lays_over() {
  pack_overlay "$work/probe" "$work/over.sqsh" gzip && try_overlay "$work/over.sqsh" overlay true
}

# diagnose_venv VENV BASE: the packages belong to the image or overlay that they are used with.
diagnose_venv() {
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg && ${heeded[inside]:-} == ok ]]; then
    heed packages "$1, which is not Longship's and is used as it is" check_foreign_venv "$1"
  else
    heed packages "$1" check_venv "$1" "$2"
  fi
}

# check_foreign_venv VENV: stop where the image's Python is not the one that it has packages for.
check_foreign_venv() {
  local found
  found=$(inside_now "$1/bin/python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) ||
    fail "the Python of the venv $1 does not start in the image" \
      'name the image that it was made with, container.image; or have one built: python3 set_up.py install'
  [[ -d $1/lib/python$found/site-packages ]] ||
    fail "the venv $1 has no packages for Python $found, the image's" \
      'name the image that it was made with, container.image; or have one built: python3 set_up.py install'
}

# holds_tag FILE: whether it names a tag, and of which program: set REPLY to it.
holds_tag() {
  REPLY=${1##*.}
  [[ $REPLY == docker || $REPLY == podman ]]
}

# program_version PROGRAM: in one line.
program_version() {
  case $1 in
    enroot) printf 'enroot version %s' "$(enroot version 2>/dev/null)" ;;
    *) "$1" --version 2>/dev/null | head -n 1 ;;
  esac || :
}

# record_value RECORD NAME: set REPLY to one of its values, as JSON has it; empty where there is none.
record_value() {
  local -a lines=()
  REPLY=
  [[ -r $1 ]] || return 0
  mapfile -t lines <"$1"
  value_in "$2" ${lines[@]+"${lines[@]}"}
}

# value_in NAME LINE...: the same, of a record's lines.
value_in() {
  local line
  REPLY=
  for line in "${@:2}"; do
    if [[ $line == "  \"$1\": \""* ]]; then
      line=${line#*\": \"}
      REPLY=${line%\"*}
      return
    fi
  done
}

# json_text TEXT: set REPLY to the text as JSON has it between quotes.
json_text() {
  local LC_ALL=C
  local text=${1//\\/\\\\} code character
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
    for code in {1..31}; do
      printf -v code '%02x' "$code"
      printf -v character '%b' "\\x$code"
      text=${text//"$character"/"\\u00$code"}
    done
  fi
  REPLY=$text
}

# json_string TEXT: set REPLY to it as JSON has it between quotes; what reads it expects UTF-8.
json_string() {
  valid_text "$1"
  json_text "$REPLY"
}

# valid_text TEXT: set REPLY to it, with U+FFFD for bytes that are no UTF-8.
valid_text() {
  local LC_ALL=C
  local rest=$1 valid=''
  if [[ ! $rest =~ $UTF8 ]]; then
    while [[ -n $rest ]]; do
      if [[ ${rest:0:1} =~ $UTF8 ]]; then
        valid+=${rest:0:1} rest=${rest:1}
      elif [[ ${rest:0:2} =~ $UTF8 ]]; then
        valid+=${rest:0:2} rest=${rest:2}
      elif [[ ${rest:0:3} =~ $UTF8 ]]; then
        valid+=${rest:0:3} rest=${rest:3}
      elif [[ ${rest:0:4} =~ $UTF8 ]]; then
        valid+=${rest:0:4} rest=${rest:4}
      else
        valid+=$'\xef\xbf\xbd' rest=${rest:1}
      fi
    done
    rest=$valid
  fi
  REPLY=$rest
}

# json_list 'NAME...' TEXT...: objects of so many values each. NAME# is a number, true or false, and null
# where it is something else; NAME= is a text as a record has it, escaped already.
json_list() {
  local -r number='^(-?(0|[1-9][0-9]*)(\.[0-9]+)?|true|false)$'
  local -a names
  local comma='' name
  read -r -a names <<<"$1"
  shift
  printf '['
  while (($#)); do
    printf '%s\n  {' "$comma"
    comma=
    for name in "${names[@]}"; do
      case $name in
        *'#') if [[ $1 =~ $number ]]; then REPLY=$1; else REPLY=null; fi ;;
        *=) valid_text "$1" ;;
        *) json_string "$1" ;;
      esac
      if [[ $name != *'#' ]]; then REPLY="\"$REPLY\""; fi
      printf '%s"%s": %s' "$comma" "${name%[#=]}" "$REPLY"
      comma=', '
      shift
    done
    printf '}'
    comma=,
  done
  printf '\n]'
}

# check_program NAME: stop where the runtime is missing.
check_program() {
  command -v "$1" >/dev/null ||
    fail "$1 is not on this machine" \
      'choose another one: container.runtime in configuration.toml, or load its module'
}

# check_sif FILE ARCH HINT: stop where the image is missing, is none, or is for another
# architecture. A SIF file tells it behind its first line: magic, version, architecture.
check_sif() {
  local -r file=$1 arch=$2 hint=$3
  [[ -e $file ]] || fail "the image $file is missing" "$hint"
  [[ -r $file ]] || fail "the image $file cannot be read" \
    "ask its owner for: chmod a+r $(printf %q "$file")"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "$file is no SIF image" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] || fail "the image $file is for $found, and $arch is needed" "$hint"
}

# host_arch: set REPLY to this machine's architecture, in the words used everywhere here.
host_arch() {
  REPLY=${BASH_VERSINFO[5]%%-*} # not HOSTTYPE, which tcsh exports in words of its own
  case $REPLY in
    x86_64) REPLY=amd64 ;;
    aarch64) REPLY=arm64 ;;
  esac
}

# check_host_arch ARCH WHAT: stop where this machine cannot run programs for ARCH.
check_host_arch() {
  host_arch
  [[ $REPLY == "$1" ]] ||
    fail "$2 is for $1, and this machine is $REPLY" "start it on a compute node, in a job"
}

# check_venv FOLDER BASE: stop where the venv is missing or was made on top of something else.
check_venv() {
  local base=
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg ]]; then return 0; fi # the user's own, used as it is
  [[ -e $1/longship-base ]] ||
    fail "the Python packages are not installed: no $1" 'python3 set_up.py install'
  IFS= read -r base <"$1/longship-base" || :
  [[ $base == "$2" ]] ||
    fail "the Python packages in $1 belong to $base, not to $2" 'python3 set_up.py install'
}

# make_folders FOLDER...: make the configured folders, or say which one cannot be made.
make_folders() {
  local folder reason
  for folder in "$@"; do
    [[ -d $folder ]] && continue
    reason=$(mkdir -p -- "$folder" 2>&1) ||
      fail_writing "$folder" "cannot make the folder $folder: ${reason##*: }" \
        'set [paths] in configuration.toml to a place that you can write to'
  done
}

# what is shown inside already, by its path there
declare -A bound=()

# add_bind SOURCE [TARGET [ro]]: show a folder or file of the host inside, once. It becomes one CSV
# record, the only form in which a path may hold commas, colons and quotes.
add_bind() {
  local -r source=$1 target=${2:-$1}
  [[ -z ${bound[$target]:-} ]] || return 0
  bound[$target]=$source
  [[ -e $source ]] ||
    fail "there is no $source to bind" 'see container.binds in configuration.toml'
  if [[ -n ${bind_in_words_of:-} ]]; then # enroot, Pyxis
    "$bind_in_words_of" "$source" "$target" "${3:-rw}"
    return
  fi
  options+=(--mount
    "type=bind,\"src=${source//\"/\"\"}\",\"dst=${target//\"/\"\"}\"${3:+,$3}")
}

# what names a file or folder with certificates, to one program or another
readonly CERTIFICATES=(SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT
  GIT_SSL_CAINFO AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS)

# add_host_files: show what the caller's environment names: certificates and the temporary folder.
add_host_files() {
  local variable path
  for variable in "${CERTIFICATES[@]}"; do
    path=${!variable:-}
    if [[ $path == /* && -e $path ]]; then add_bind "$path" "$path" ro; fi
  done
  if [[ ${TMPDIR:-/tmp}/ != /tmp/* && -d ${TMPDIR:-} ]]; then add_bind "$TMPDIR"; fi
}

# add_pip_sources: show pip's configuration and the folders that it searches.
add_pip_sources() {
  local -
  set -f # words of pip's configuration are no patterns
  local path text='' lines
  for path in /etc/pip.conf /etc/xdg/pip/pip.conf "${PIP_CONFIG_FILE:-}" \
    "${HOME:-}/.pip/pip.conf" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf"; do
    [[ -f $path && -r $path ]] || continue
    if [[ $path != "${HOME:-/}"/* ]]; then add_bind "$path" "$path" ro; fi
    mapfile -t lines <"$path"
    text+=" ${lines[*]}"
  done
  text+=" ${PIP_FIND_LINKS:-} ${PIP_INDEX_URL:-} ${PIP_EXTRA_INDEX_URL:-} ${UV_FIND_LINKS:-}"
  for path in ${text//[=,]/ }; do
    path=${path#file://}
    path=${path%/simple} # an index has its files beside it
    if [[ $path == /* && -d $path ]]; then add_bind "$path" "$path" ro; fi
  done
}

# add_home: Apptainer shows the home folder of the passwd file; HOME may be another one.
add_home() {
  local -r home=${HOME:-}
  if [[ ! -d $home ]]; then return 0; fi
  unset HOME # bash then expands ~ from the passwd file
  local -r own=~
  export HOME=$home
  if [[ $home != "$own" ]]; then options+=(--home "$home"); fi
}

# add_nvidia_gpus: only where the node has one; elsewhere --nv only warns.
add_nvidia_gpus() {
  if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi
}

# UTF-8 by the bytes that may follow each other (the Unicode standard, table 3-7)
readonly UTF8=$'^([\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|'\
$'[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|'\
$'[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*$'

readonly LOCK_PATIENCE=60 # seconds without a sign of life from another host

# this_host: its name; not HOSTNAME, which a job can inherit from the node that it was sent from.
this_host() {
  printf '%s' "$(</proc/sys/kernel/hostname)"
}

# lock_owner LOCK: who holds it, in words.
lock_owner() {
  local host='' process=''
  read -r host process _ 2>/dev/null <"$1/owner" || :
  printf '%s' "${process:+process $process on }${host:-another process}"
}

# process_start PID: when it started, which tells it from a later process with the same number.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  printf '%s' "${stat[19]:-}"
}

# lock_is_stale LOCK: whether its owner is gone. On this host that can be seen; elsewhere its sign
# of life is compared with a file written now, by the clock of the file system.
lock_is_stale() {
  local host='' process='' start='' found now seen
  read -r host process start 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(this_host)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    # where /proc hides other users' processes (hidepid), only the sign of life is left
    if [[ -n $found || -O $1/owner || -r /proc/1/stat ]]; then return 0; fi
  fi
  now=$(touch -- "$1.now" && stat -c %Y -- "$1.now") || return 1
  rm -f -- "$1.now"
  seen=$(stat -c %Y -- "$1/owner" 2>/dev/null || stat -c %Y -- "$1" 2>/dev/null) || return 1
  ((now - seen > LOCK_PATIENCE))
}

# print_messages [KIND TEXT]...: a line each, on standard error, at once: jobs share a log.
print_messages() {
  local REPLY told=''
  while (($#)); do
    paint 2 "$1:"
    told+="$REPLY $2"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# paint FILE WORD: set REPLY to the word, in its colour where that file (1 or 2) is a terminal which
# shows colours, unless NO_COLOR says that the user wants none: https://no-color.org. Without `return`: in
# a trap that would have the status of what was interrupted.
paint() {
  local colour
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    case $2 in
      error: | problem) colour=31 ;;                            # red
      warning: | warning) colour=33 ;;                          # yellow
      ok) colour=32 ;;                                          # green
      hint: | next: | follow: | cancel: | status:) colour=36 ;; # cyan
      *) colour=1 ;;                                            # bold
    esac
    REPLY=$'\e['${colour}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing FOLDER MESSAGE HINT: the same after something could not be written; a full disk is
# the reason that programs tell least clearly. Some take back what they were writing (uv, a package
# a core), so a disk counts as full before the last byte.
fail_writing() {
  local free=16777216 size=1 files_free=1 files=0
  read -r free size files_free files < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${files:-0} > 0 && ${files_free:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'make room there, or set [paths] in configuration.toml; then run the same command again'
  fi
  fail "$2" "$3"
}

# warn_of MESSAGE HINT: tell what will go wrong sooner or later, and what to type.
warn_of() {
  print_messages warning "$1" hint "$2"
}

readonly OVERLAY_MOUNTED_AT=/user-software

# add_overlay_file FILE WAY: bind the file where that works, else lay it over the whole image.
add_overlay_file() {
  if [[ $2 == overlay ]]; then
    options+=(--overlay "$1:ro")
  else
    options+=(--mount
      "type=bind,\"src=${1//\"/\"\"}\",dst=$OVERLAY_MOUNTED_AT,image-src=/,ro")
  fi
}

readonly OVERLAY_TIME=315532800 # of all files in it: 1980-01-01, the oldest that a zip file can hold

# packs_overlays COMMAND...: whether this mksquashfs is new enough.
packs_overlays() {
  local said
  said=$("$@" -version 2>/dev/null) || :
  [[ $said =~ version\ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 404))
}

# pack_overlay FOLDER FILE COMPRESSION [-progress]: what is in it stands at the file's root, with one owner, one
# time, and modes that tell nothing of a umask: the same content gives the same bytes. Large blocks: a
# parallel file system reads a megabyte as fast as a page.
pack_overlay() {
  local -a how=(-comp "$3")
  # xz is a fifth smaller, and takes 30 times as long to pack and 4 times as long to import
  if [[ $3 == zstd ]]; then how+=(-Xcompression-level 3); fi
  if [[ $processors != 0 ]]; then how+=(-processors "$processors"); fi
  if [[ -n $memory ]]; then how+=(-mem "$memory"); fi
  rm -f -- "$2"
  "${packer[@]}" "$1" "$2" "${how[@]}" -b 1M -all-root -action 'chmod(u=rwX,go=rX)@true' -no-xattrs -all-time "$OVERLAY_TIME" \
    -mkfs-time "$OVERLAY_TIME" -noappend "${4:--no-progress}" -quiet
}

# mountable COMPRESSION: whether a small file packed so is seen inside; set way to how, or said to why
# not.
mountable() {
  local -r probe=$work/probe.sqsh
  local from
  make_folders "$work/probe$OVERLAY_MOUNTED_AT"
  seq 9999 >"$work/probe$OVERLAY_MOUNTED_AT/mark"
  for way in bind overlay; do
    from=$work/probe
    if [[ $way == bind ]]; then from+=$OVERLAY_MOUNTED_AT; fi
    # not only its folders: what is compressed is read
    if said=$(pack_overlay "$from" "$probe" "$1" 2>&1) &&
      said=$(try_overlay "$probe" "$way" grep -c . "$OVERLAY_MOUNTED_AT/mark" 2>&1) &&
      [[ $said == 9999 ]]; then
      return
    fi
  done
  return 1
}

# try_overlay FILE WAY COMMAND...: run a command in the image with that file mounted, and nothing else.
try_overlay() {
  local -a options=()
  add_overlay_file "$1" "$2"
  "$runtime" --quiet exec "${options[@]}" "$base" "${@:3}"
}

# start_report text|json
start_report() {
  report_form=$1
  findings=() # state, topic, text and fix of each
  values=()   # key, value and origin of each
}

# report STATE TOPIC TEXT [FIX]: ok, warning or problem; what is not ok has a fix.
report() {
  local REPLY
  set -- "$1" "$2" "${3//[[:cntrl:]]/?}" "${4:-}"
  findings+=("$1" "$2" "$3" "$4")
  if [[ $report_form == json ]]; then return; fi
  paint 1 "$1"
  printf '%s%*s  %-13s  ' "$REPLY" $((7 - ${#1})) '' "$2"
  report_words "$3"
  if [[ -n $4 ]]; then printf '%9sfix: %s\n' '' "$4"; fi # whole, to be copied
}

# report_words TEXT: wrapped at the 80th column, behind state and topic.
report_words() {
  local -a words
  local word
  local -i column=24
  read -r -d '' -a words <<<"$1" || :
  for word in ${words[@]+"${words[@]}"}; do
    if ((column > 24 && column + 1 + ${#word} > 80)); then
      printf '\n%24s%s' '' "$word"
      column=24+${#word}
    elif ((column > 24)); then
      printf ' %s' "$word"
      column+=1+${#word}
    else
      printf '%s' "$word"
      column+=${#word}
    fi
  done
  printf '\n'
}

# report_value KEY VALUE ORIGIN: how one key is configured, and where.
report_value() {
  if [[ $report_form == text ]]; then
    if ((${#values[@]} == 0)); then printf '\n%-25s %-22s %s\n' configured from value; fi
    printf '%-25s %-22s %s\n' "$1" "$3" "${2//[[:cntrl:]]/?}"
  fi
  values+=("$@")
}

# end_report: say how much is wrong, and what comes next; the exit code is 1 where there is a problem.
end_report() {
  local -i index problems=0 warnings=0
  local problem='' warning=''
  for ((index = 0; index < ${#findings[@]}; index += 4)); do
    case ${findings[index]} in
      problem) problems+=1 problem=${problem:-${findings[index + 3]}} ;;
      warning) warnings+=1 warning=${warning:-${findings[index + 3]}} ;;
    esac
  done
  if [[ $report_form == json ]]; then
    printf '{"problems": %d, "warnings": %d, "findings": ' "$problems" "$warnings"
    json_list 'state topic text fix' ${findings[@]+"${findings[@]}"}
    printf ', "values": '
    json_list 'key value origin' ${values[@]+"${values[@]}"}
    printf '}\n'
  else
    if ((${#values[@]})); then printf '\n'; fi
    if ((problems + warnings)); then
      paint 1 next:
      printf 'problems: %d, warnings: %d\n%s %s\n' "$problems" "$warnings" "$REPLY" "${problem:-$warning}"
      printf 'for somebody who helps: the same command with --json\n'
    else
      printf 'all is well\n'
    fi
  fi
  ((problems == 0)) || exit 1
}

# what `heed` has found last, by topic: ok, warning or problem
declare -A heeded=()

# heed TOPIC TEXT COMMAND...: run a check of other scripts. What it stops with is a problem, what it
# warns of a warning, each with its hint; if it has nothing to say, TEXT is ok.
heed() {
  local said line state='' text=''
  local -i code=0 found=0
  said=$(in_time 60 "${@:3}" 2>&1 >/dev/null </dev/null) || code=$?
  heeded[$1]=ok
  while IFS= read -r line; do
    case $line in
      'error: '*) state=problem text=${line#*: } ;;
      'warning: '*) state=warning text=${line#*: } ;;
      'hint: '*)
        if [[ -n $state ]]; then
          report "$state" "$1" "$text" "${line#*: }"
          heeded[$1]=$state
          found+=1 state=
        fi
        ;;
    esac
  done <<<"$said"
  if ((code == 124 && found == 0)); then
    report problem "$1" 'no answer for a minute' 'does a file system hang? see the status page of the site'
    heeded[$1]=problem
  elif ((code != 0 && found == 0)); then
    report problem "$1" "${said##*$'\n'}" 'send this to whoever helps: python3 doctor.py --json'
    heeded[$1]=problem
  elif [[ -n $2 && ${heeded[$1]} == ok ]]; then
    report ok "$1" "$2"
  fi
}

# in_time SECONDS COMMAND...: run a function for at most so long; 124 if it took longer.
in_time() {
  (
    code=0
    set -m # each of the two has a process group, so that nothing that it has started is left
    ("${@:2}") &
    job=$!
    (sleep "$1" && kill -KILL -- "-$job") >/dev/null 2>&1 &
    watch=$!
    wait "$job" 2>/dev/null || code=$?
    kill -KILL -- "-$watch" 2>/dev/null || :
    wait "$watch" 2>/dev/null || :
    if ((code == 137)); then code=124; fi
    exit "$code"
  )
}

# check_python ROOT: stop where the job would not find a Python for the scripts: it calls python3, as
# PATH has it here.
check_python() {
  local said
  said=$(python3 "$1/submit.py" --help 2>&1 >/dev/null) && return
  said=${said%%$'\n'*}
  fail "the python3 that jobs call cannot run the scripts: ${said#error: }" \
    'python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt'
}

# check_room FOLDER [BYTES]: warn where there would soon be no room for files.
check_room() {
  local free size files_free files
  read -r free size files_free files < <(timeout 20 stat -f -c '%a %S %d %c' -- "$1") || return 0
  if ((free * size < ${2:-10737418240})); then
    human $((free * size))
    warn_of_room "$1 has only $REPLY left"
  fi
  # some file systems have no limit, and say 0
  if ((files > 0 && files_free < 20000)); then warn_of_room "$1 takes only $files_free more files"; fi
  if command -v lfs >/dev/null; then check_quotas "$1"; fi
}

# check_quotas FOLDER: the same of Lustre's: of the user, of the folder's group, and of its project, as
# LUMI has them.
check_quotas() {
  local group project=''
  check_quota "$1" -u "$(id -un)"
  group=$(stat -c %G -- "$1") && check_quota "$1" -g "$group"
  read -r project _ < <(timeout 20 lfs project -d -- "$1" 2>/dev/null) || :
  if [[ $project =~ ^[1-9][0-9]*$ ]]; then check_quota "$1" -p "$project"; fi
}

# check_quota FOLDER OF WHOM: kilobytes used, quota, limit, and grace; then files in the same way; 0 for
# none. They follow the folder, on the next line where its name is long. An asterisk marks what is over
# the quota, brackets what is not known exactly.
check_quota() {
  local -r used='[[:space:]]\[?([0-9]+)]?\*?' number='[[:space:]]+([0-9]+)'
  local said
  said=$(timeout 20 lfs quota -q "$2" "$3" -- "$1" 2>/dev/null) || return 0
  [[ ${said##*"$1"} =~ $used$number$number([[:space:]]+[^[:space:]]+[[:space:]]*$used$number$number)? ]] ||
    return 0
  set -- "$1" "$3" "${BASH_REMATCH[@]}"
  warn_of_quota "$1" "the quota of $2" "${@:4:3}"
  if [[ -n $8 ]]; then warn_of_quota "$1" "the quota of $2 for files" "${@:8:3}" files; fi
}

# warn_of_quota FOLDER WHAT USED QUOTA LIMIT [files]
warn_of_quota() {
  local -i quota=$4
  if ((quota == 0)); then quota=$5; fi
  ((quota > 0 && $3 * 100 > quota * 95)) || return 0
  if (($3 >= quota)); then
    warn_of_room "$2 on $1 is used up"
  elif [[ -n ${6:-} ]]; then
    warn_of_room "of $2 on $1 only $((quota - $3)) are left"
  else
    human $(((quota - $3) * 1024))
    warn_of_room "of $2 on $1 only $REPLY are left"
  fi
}

# warn_of_room MESSAGE
warn_of_room() {
  warn_of "$1" "make room there${room_elsewhere-, or set paths.scratch_dir in configuration.toml}"
}

# slurm_reason TEXT: what sbatch says last, without its own name.
slurm_reason() {
  local line reason='it does not say why'
  while IFS= read -r line; do
    if [[ $line == *error:* ]]; then reason=${line##*error: }; fi
    if [[ $line == *failure:* ]]; then reason=${line##*failure: }; fi
    if [[ $line == *fatal:* ]]; then reason=${line##*fatal: }; fi
  done <<<"$1"
  printf '%s' "$reason"
}

# human BYTES: set REPLY to them with a unit, such as 9.4 GB.
human() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}

start_report text
diagnose_node
diagnose_clone '/home/me/long ship'
diagnose_python '/home/me/long ship'
report ok configuration 'tests/golden/configuration.toml, stacks/pytorch/stack.toml and 6 sites can be read'
report ok machine 'jpb, JUPITER Booster (jsc/site.toml): named by command line; no site'"'"'s mark is here'
report ok jobs '16 job files in jsc/, all for machines of it'
diagnose_arch arm64 jpb
diagnose_folder project paths.project_dir /e/project1/project_465000000/me/longship 1073741824
diagnose_folder scratch paths.scratch_dir /e/scratch/project_465000000/me/longship 10737418240
report problem folders 'compute nodes of jpb do not see /home/me/long ship' 'move it below /e'
diagnose_home
diagnose_folder temporary TMPDIR "${TMPDIR:-/tmp}" 1073741824
diagnose_caches /e/scratch/project_465000000/me/longship/cache
diagnose_leftovers '/home/me/long ship' /e/project1/project_465000000/me/longship /e/scratch/project_465000000/me/longship
diagnose_runtime apptainer ''
diagnose_namespaces apptainer allowed ''
diagnose_fuse apptainer
diagnose_gpu cuda 4
check_image_as_always() {
image=/e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
check_sif "$image" arm64 'python3 build_container.py && python3 move_built_container_to_active.py'
}
diagnose_image /e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif /e/scratch/project_465000000/me/longship/containers/build/pytorch_25.06-py3_arm64.sif
inside_now() {

# Nothing of the host's compilers and Python reaches the program.
unset BASH_ENV ENV LD_PRELOAD LESSOPEN CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH \
  CMAKE_PREFIX_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV \
  "${!CONDA_@}" "${!_CE_@}" HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE \
  MY_HOST_ONLY "${!MY_HOST_@}"

# What the program finds inside, in every runtime: POSIX sh.
# shellcheck disable=SC2016 # expanded inside, not here
contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT='"'"'/home/me/long ship'"'"'
export LONGSHIP_MACHINE=jpb
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/e/project1/project_465000000/me/longship
export LONGSHIP_SCRATCH_DIR=/e/scratch/project_465000000/me/longship
export LONGSHIP_CHECKPOINT_DIR=/e/scratch/project_465000000/me/longship/checkpoints
export LONGSHIP_REPOSITORIES=/e/project1/project_465000000/me/longship/repos
export XDG_CACHE_HOME="$LONGSHIP_SCRATCH_DIR"/cache/xdg
export HF_HOME="$LONGSHIP_SCRATCH_DIR"/cache/huggingface
export PIP_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/pip
export UV_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/uv
export TORCH_HOME="$LONGSHIP_SCRATCH_DIR"/cache/torch
export TORCH_EXTENSIONS_DIR="$LONGSHIP_SCRATCH_DIR"/cache/torch_extensions
export TORCHINDUCTOR_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/inductor
export TRITON_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/triton
export CUDA_CACHE_PATH="$LONGSHIP_SCRATCH_DIR"/cache/cuda
export NUMBA_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/numba
export MPLCONFIGDIR="$LONGSHIP_SCRATCH_DIR"/cache/matplotlib
export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-$LONGSHIP_SCRATCH_DIR/cache/miopen}"
export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-$LONGSHIP_SCRATCH_DIR/cache/miopen}"
unset HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE
export OMP_NUM_THREADS=8
export GREETING='"'"'it'"'"'"'"'"'"'"'"'s "$HOME"'"'"'
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
command -v -- "$1" >/dev/null || {
  echo "error: there is no command \"$1\" inside" >&2
  echo "hint: a Python package? add it to the requirements, then: python3 set_up.py install" >&2
  exit 127
}
exec "$@"'

check_program apptainer
image=/e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
check_sif "$image" arm64 'python3 build_container.py && python3 move_built_container_to_active.py'
check_host_arch arm64 "the image $image"
options=()
add_home
add_bind '/home/me/long ship'
add_bind /e/project1/project_465000000/me/longship
add_bind /e/scratch/project_465000000/me/longship
add_bind /data /data ro
add_host_files
add_pip_sources
add_nvidia_gpus

inside() {
  apptainer --quiet exec "${options[@]}" "$image" /bin/sh -c "${decode-}$contract" longship "$@"
}
inside "$@"
}
diagnose_inside
diagnose_gpu_inside
diagnose_mount apptainer /e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif zstd ''
diagnose_venv /e/scratch/project_465000000/me/longship/venv_pytorch_arm64 /e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
diagnose_proxy
diagnose_certificates
diagnose_reach /e/scratch/project_465000000/me/longship/offline https://nvcr.io/v2/
diagnose_tokens /home/me/.cache/huggingface/token "${HOME:-}"/.cache/huggingface/token \
  "${HOME:-}"/.netrc "${HOME:-}"/.git-credentials
diagnose_secrets HF_TOKEN WANDB_API_KEY
diagnose_slurm jpb project_465000000 booster
report_value machine '"jpb"' 'command line'
report_value stack '"pytorch"' default
report_value repositories '[]' default
report_value assets '[]' default
report_value training '{}' default
report_value project.name '"nordic-llm"' '/home/me/long ship/tests/golden/configuration.toml'
report_value project.account '"project_465000000"' '/home/me/long ship/tests/golden/configuration.toml'
report_value paths.project_dir '"/e/project1/{account}/{user}/longship"' jsc/site.toml
report_value paths.scratch_dir '"/e/scratch/{account}/{user}/longship"' jsc/site.toml
report_value paths.checkpoint_dir '""' default
report_value container.runtime '"auto"' default
report_value container.image '""' default
report_value container.binds '["/data:/data:ro"]' '/home/me/long ship/tests/golden/configuration.toml'
report_value container.patched_files '{}' default
report_value packages.requirements '"requirements/environment.txt"' default
report_value packages.installer '"uv"' default
report_value packages.python '""' default
report_value packages.overlay '""' default
report_value packages.compression '"zstd"' default
report_value packages.processors 0 default
report_value packages.memory '""' default
report_value packages.work_dir '""' default
report_value environment.unset '["MY_HOST_ONLY", "MY_HOST_*"]' '/home/me/long ship/tests/golden/configuration.toml'
# shellcheck disable=SC2016 # shown as it is configured
report_value environment.set '{ OMP_NUM_THREADS = "8", GREETING = "it'"'"'s \"$HOME\"" }' '/home/me/long ship/tests/golden/configuration.toml'
report_value environment.secrets '["HF_TOKEN", "WANDB_API_KEY"]' default
report_value environment.token_files '{ HF_TOKEN = "~/.cache/huggingface/token" }' default
report_value jobs.ask_above 0 default
report_value jobs.stage '"auto"' default
report_value jobs.stage_dirs '["/dev/shm"]' default
end_report
