# shellcheck shell=bash
# What doctor.py --job asks on each node: one task, bash alone. A fact is a line: node, name, value.

# diagnose_job_look ADDRESS PORT FIRST NODES FOLDER FILE...: FOLDER is the one for temporary files.
diagnose_job_look() {
  local -r address=$1 port=$2 first=$3 nodes=$4 folder=$5
  job_node=${SLURMD_NODENAME:-$(uname -n)}
  diagnose_job_say here "$(uname -r)"
  if [[ $job_node == "$first" ]]; then diagnose_job_listen "$port" "$nodes" & fi
  local file found
  for file in "${@:6}"; do
    if [[ ! -r $file ]]; then diagnose_job_say unseen "$file"; fi
  done
  found=$(timeout 5 getent ahostsv4 "$address") || :
  diagnose_job_say address "${found%% *}"
  diagnose_job_room "$folder"
  diagnose_job_gpus
  # in a shell of its own: a network that swallows packets would hold it for minutes
  found=$(timeout 12 bash -c "$(declare -f diagnose_job_meet); diagnose_job_meet \"\$@\"" meet \
    "$address" "$port" 2>/dev/null) || :
  diagnose_job_say offset "$found"
  wait
}

# diagnose_job_say NAME VALUE
diagnose_job_say() {
  printf '%s\t%s\t%s\n' "$job_node" "$1" "${2//[$'\t\n']/ }"
}

# diagnose_job_listen PORT CLIENTS: on the first node. The only Python on a host, one in a job.
diagnose_job_listen() {
  local said
  # shellcheck disable=SC2154  # the emitted script's
  if ! said=$(timeout 20 python3 -c "$longship_clock" "$1" "$2" 15 2>&1); then
    diagnose_job_say deaf "${said##*$'\n'}"
  elif [[ -n $said ]]; then
    diagnose_job_say taken "$said"
  fi
}

# diagnose_job_meet ADDRESS PORT: print how far this clock is ahead of the first node's, and how exactly
# that is known: half of the round trip; nanoseconds. Bash 4.4 (LUMI) has no EPOCHREALTIME.
diagnose_job_meet() {
  local before after theirs offset=''
  local -i attempt best=0
  until { exec 3<>"/dev/tcp/$1/$2"; } 2>/dev/null; do # the listener may be about to start
    ((attempt++ < 40)) || return 0
    sleep 0.2
  done
  printf 'connected'
  for ((attempt = 0; attempt < 8; attempt++)); do
    before=$(date +%s%N)
    printf 'time\n' >&3
    IFS= read -r -t 3 theirs <&3
    after=$(date +%s%N)
    [[ $theirs =~ ^[0-9]+$ ]] || return 0
    if [[ -z $offset ]] || (((after - before) / 2 < best)); then
      best=$(((after - before) / 2)) offset=$((before / 2 + after / 2 - theirs))
    fi
  done
  printf ' %d %d' "$offset" "$best"
}

# diagnose_job_room FOLDER: node-local space and memory; a folder in memory (LUMI) counts against the job.
diagnose_job_room() {
  local kind blocks size name value
  if read -r kind blocks size < <(stat -f -c '%T %a %S' -- "$1"); then
    diagnose_job_say room "$((blocks * size >> 30)) $kind"
  fi
  while read -r name value _; do
    if [[ $name == MemAvailable: ]]; then diagnose_job_say memory "$((value >> 20))"; fi
  done </proc/meminfo
}

# diagnose_job_gpus: how many the job has here, how many there are, their driver, and broken memory.
diagnose_job_gpus() {
  local device driver=none errors
  local -i count=0
  for device in /dev/nvidia[0-9]* /sys/class/kfd/kfd/topology/nodes/*/gpu_id; do
    case $device in
      *'*'*) ;;
      */gpu_id) if [[ $(<"$device") != 0 ]]; then count+=1; fi ;; # 0: a processor
      *) count+=1 ;;
    esac
  done
  if [[ -r /proc/driver/nvidia/version ]]; then
    read -r driver </proc/driver/nvidia/version
    [[ ! $driver =~ [0-9]+\.[0-9.]+ ]] || driver="NVIDIA ${BASH_REMATCH[0]}"
    errors=$(timeout 10 nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total \
      --format=csv,noheader,nounits 2>/dev/null) || errors=''
    if [[ $errors == *[1-9]* ]]; then diagnose_job_say ecc "${errors//$'\n'/, }"; fi
  elif [[ -r /sys/module/amdgpu/version ]]; then
    driver="amdgpu $(</sys/module/amdgpu/version)"
  fi
  diagnose_job_say gpus "$count"
  diagnose_job_say asked "${SLURM_GPUS_ON_NODE:-0}"
  diagnose_job_say driver "$driver"
}

# diagnose_job_rank: say where this task is; what goes wrong before the program starts has its number only.
diagnose_job_rank() {
  printf 'job_node %s\n' "${SLURMD_NODENAME:-$(uname -n)}"
  # JSC's Slurm shows a task one GPU, of those that its ranks shall share
  local visible=${CUDA_VISIBLE_DEVICES:-}
  visible=${visible//[!,]/}
  if ((${SLURM_STEP_TASKS_PER_NODE%%[!0-9]*} == 1 && ${#visible} + 1 < ${SLURM_GPUS_ON_NODE:-0})); then
    unset CUDA_VISIBLE_DEVICES
  fi
}
