# shellcheck shell=bash
# doctor.py --job: one srun checks every node, another starts all ranks, within a minute.

# The job that is checked; nodes_begin and nodes_ask set it.
declare -ga nodes_all=() # its nodes

declare -ga nodes_answering=() # those that respond

declare -gA nodes_facts=() # what they report, by "NODE NAME"

declare -g nodes_dir='' nodes_child='' # directory for the output of srun; process id of the one that runs

# nodes_begin PATTERN: find the job, inside it or by its id, its nodes, and where its ranks meet.
nodes_begin() {
  [[ -n ${SLURM_JOB_ID:-} ]] || fail 'not in a job: SLURM_JOB_ID is not set' \
    'salloc --nodes=2 OPTION... python3 doctor.py --job; or add it to a job script, before srun'
  command -v srun >/dev/null ||
    fail "srun not found: this may be a container" \
      "on a login node, run: SLURM_JOB_ID=$SLURM_JOB_ID python3 doctor.py --job"
  local list outside=yes
  if [[ -n ${SLURM_JOB_NODELIST:-} ]]; then outside=''; fi
  list=$(timeout 60 squeue --noheader --jobs="$SLURM_JOB_ID" --states=RUNNING --format=%N 2>&1) ||
    [[ $list == *'nvalid job id'* ]] || fail "Slurm does not respond: ${list##*$'\n'}" 'try again later'
  list=${list##*error: Invalid job id specified}
  [[ -n $list ]] || fail "job $SLURM_JOB_ID is not running" 'list your jobs: squeue --me'
  mapfile -t nodes_all < <(scontrol show hostnames "$list")
  export SLURM_JOB_NODELIST=$list SLURM_JOB_NUM_NODES=${#nodes_all[@]}
  # what a job script or an enclosing step has set for its own srun
  unset SLURM_LABELIO SLURM_KILL_BAD_EXIT
  if [[ -n ${SLURM_STEP_ID:-} ]]; then unset "${!SLURM_CPU_BIND@}" SLURM_DISTRIBUTION SLURM_NTASKS_PER_NODE; fi
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
  if [[ -z ${MASTER_ADDR:-} || -z ${MASTER_PORT:-} ]]; then
    set_rendezvous "$1"
    # from outside: the job's own ranks meet at its port
    if [[ -n $outside ]]; then MASTER_PORT=$((MASTER_PORT + 1)); fi
  fi
  nodes_dir=$(mktemp -d "${TMPDIR:-/tmp}/longship-doctor.XXXXXX") ||
    fail_writing "${TMPDIR:-/tmp}" 'cannot write temporary files' 'set TMPDIR to a directory that you can write to'
  trap nodes_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# nodes_end: end srun, which ends its tasks, and remove its output.
nodes_end() {
  local -r code=$?
  trap '' INT TERM
  if [[ -n $nodes_child ]] && kill "$nodes_child" 2>/dev/null; then wait "$nodes_child" || :; fi
  rm -rf -- "$nodes_dir"
  exit "$code"
}

# nodes_run SECONDS NAME COMMAND...: run it in the background, so that Ctrl-C reaches this script. After it has
# printed the finding `end`, it is ended if it hangs.
nodes_run() {
  timeout --kill-after=10 "$1" "${@:3}" </dev/null >"$nodes_dir/$2" 2>"$nodes_dir/$2.errors" &
  nodes_child=$!
  local -i patience=15
  while ((patience)) && kill -0 "$nodes_child" 2>/dev/null; do
    if grep -qsF $'finding\tend\t' "$nodes_dir/$2"; then patience+=-1; fi
    sleep 0.2
  done
  kill "$nodes_child" 2>/dev/null || :
  wait "$nodes_child" 2>/dev/null || :
  nodes_child=''
}

# nodes_ask FILE...: let each node report its facts. It must be able to read every FILE that exists on this node;
# a file that exists nowhere is reported by the command that needs it.
nodes_ask() {
  local node name value
  local -a existing=()
  for name in "$@"; do
    if [[ -e $name ]]; then existing+=("$name"); fi
  done
  local -ra about=("$MASTER_ADDR" "$MASTER_PORT" "${nodes_all[0]}" "${#nodes_all[@]}" "${TMPDIR:-/tmp}")
  nodes_run 25 nodes srun --overlap --nodes="${#nodes_all[@]}" --ntasks="${#nodes_all[@]}" \
    --ntasks-per-node=1 --wait=0 bash -c "$(script_text)" doctor.py look "${about[@]}" "${existing[@]}"
  while IFS=$'\t' read -r node name value; do
    if [[ $name == unseen ]]; then value="${nodes_facts[$node unseen]:+${nodes_facts[$node unseen]}, }$value"; fi
    nodes_facts[$node $name]=$value
  done <"$nodes_dir/nodes"
  for node in "${nodes_all[@]}"; do
    if [[ -n ${nodes_facts[$node driver]:-} ]]; then # the last fact but for the network
      nodes_answering+=("$node")
    else
      # killed: by this script, after its time
      name=$(grep -F "$node:" "$nodes_dir/nodes.errors" | grep -vE 'Killed|Terminated' | tail -n 1) || name=
      report problem nodes "$node does not respond${name:+: $name}" \
        "check it: srun --overlap --nodelist=$node hostname; or exclude it: sbatch --exclude=$node"
    fi
  done
  if ((${#nodes_answering[@]} == ${#nodes_all[@]})); then report ok nodes "$SLURM_JOB_NODELIST: all answer"; fi
  if ((${#nodes_answering[@]} == 0)); then report_end; fi
}

# nodes_compare FACT TOPIC WHAT: report one value on all nodes, or the nodes whose value differs from most others.
nodes_compare() {
  local node value most=''
  local -A having=()
  for node in "${nodes_answering[@]}"; do
    value=${nodes_facts[$node $1]}
    having[$value]=$((${having[$value]:-0} + 1))
    if [[ -z $most ]] || ((${having[$value]} > ${having[$most]})); then most=$value; fi
  done
  if ((${#having[@]} == 1)); then report ok "$2" "$3 $most on all nodes"; fi
  for node in "${nodes_answering[@]}"; do
    if [[ ${nodes_facts[$node $1]} != "$most" ]]; then
      report warning "$2" "$node has $3 ${nodes_facts[$node $1]}, but the other nodes have $most" \
        "exclude it: sbatch --exclude=$node; and tell your site's support"
    fi
  done
}

# ---------- what the nodes report

# rendezvous_diagnose: check name, port and network of the first node, as each node sees them, and the clocks.
rendezvous_diagnose() {
  local node
  local -i passed=1
  for node in "${nodes_answering[@]}"; do address_diagnose "$node" || passed=0; done
  if ((passed)); then
    report ok address "MASTER_ADDR, $MASTER_ADDR, is ${nodes_facts[${nodes_answering[0]:-} address]:-unknown} on all nodes"
  fi
  local -r taken=${nodes_facts[${nodes_all[0]} taken]:-} deaf=${nodes_facts[${nodes_all[0]} deaf]:-}
  if [[ -z ${nodes_facts[${nodes_all[0]} driver]:-} ]]; then
    report warning port "cannot test MASTER_PORT, $MASTER_PORT, without ${nodes_all[0]}" 'fix the problem of nodes first'
    return
  elif [[ -n $taken ]]; then
    report problem port "MASTER_PORT, $MASTER_PORT, is in use on ${nodes_all[0]} by $taken" \
      "end that process, or use another port: export MASTER_PORT=$((MASTER_PORT < 32000 ? MASTER_PORT + 1 : 20000))"
    report warning network 'cannot test the connections to the first node, and the clocks' \
      'free the port first'
    return
  elif [[ -n $deaf ]]; then
    report warning port "MASTER_PORT, $MASTER_PORT, could not be tested: $deaf" 'check python3 on the nodes: srun --overlap python3 --version'
    return
  fi
  report ok port "MASTER_PORT, $MASTER_PORT, is free on ${nodes_all[0]}"
  passed=1
  for node in "${nodes_answering[@]}"; do
    if [[ -z ${nodes_facts[$node offset]:-} ]]; then
      report problem network "$node cannot connect to ${nodes_all[0]}, $MASTER_ADDR port $MASTER_PORT" \
        "check its network and the port: srun --overlap --nodelist=$node ip address; sbatch --exclude=$node"
      passed=0
    fi
  done
  if ((passed)); then report ok network "all nodes reach ${nodes_all[0]} by TCP"; fi
  clocks_diagnose
}

# address_diagnose NODE: compare the address that it has for MASTER_ADDR with the first node's; return 1 if it is
# wrong.
address_diagnose() {
  local -r first=${nodes_facts[${nodes_all[0]} address]:-} own=${nodes_facts[$1 address]}
  local -r hosts="compare its /etc/hosts and name server with the first node's; sbatch --exclude=$1"
  if [[ -z $own ]]; then
    report problem address "$1 cannot resolve MASTER_ADDR, $MASTER_ADDR" "$hosts"
  elif [[ $1 == "${nodes_all[0]}" && $own == 127.* && ${#nodes_all[@]} -gt 1 ]]; then
    report warning address "$1 has the address $own for its own name" \
      'set the interface that Gloo uses: export GLOO_SOCKET_IFNAME=INTERFACE, as ip address shows it'
  elif [[ -n $first && $own != "$first" && $first != 127.* ]]; then
    report problem address "$MASTER_ADDR is $own on $1 and $first on ${nodes_all[0]}" "$hosts"
  else
    return 0
  fi
  return 1
}

# clocks_diagnose: compare each clock with the first node's. Kerberos and certificates tolerate minutes, logs and
# timeouts less; chrony and NTP keep milliseconds.
clocks_diagnose() {
  local node offset
  local -i exact worst=0 most=0 bad=0
  for node in "${nodes_answering[@]}"; do
    read -r _ offset exact <<<"${nodes_facts[$node offset]:-}" || :
    if [[ -z $offset ]]; then continue; fi
    offset=$((offset / 1000000)) exact=$((exact / 1000000 + 1)) # milliseconds
    if ((${offset#-} > 1000 + exact)); then
      report problem clock "$node differs from ${nodes_all[0]} by $offset ms (measured to $exact ms); up to 1 s is tolerated" \
        "tell your site's support, and exclude the node: sbatch --exclude=$node"
      bad=1
    fi
    if ((${offset#-} > worst)); then worst=${offset#-}; fi
    if ((exact > most)); then most=$exact; fi
  done
  if ((!bad)); then report ok clock "at most $worst ms apart, known to $most ms"; fi
}

# resources_diagnose FIX: check files, node-local space, memory and GPUs of each node; FIX, with NODE for its name,
# is for a node that cannot read a file.
resources_diagnose() {
  local node free kind least='' memory=''
  local -i unseen=0
  for node in "${nodes_answering[@]}"; do
    if [[ -n ${nodes_facts[$node unseen]:-} ]]; then
      report problem files "$node cannot read ${nodes_facts[$node unseen]}" "${1//NODE/$node}"
      unseen=1
    fi
    read -r free kind <<<"${nodes_facts[$node room]:-0 not there}"
    if ((free < 1)); then
      report warning temporary "$node has less than 1 GiB left in ${TMPDIR:-/tmp} ($kind)" \
        'set another directory: export TMPDIR=DIR; or delete the files of earlier jobs there'
    fi
    if [[ -z $least ]] || ((free < ${least%% *})); then least="$free GiB ($kind) on $node"; fi
    if [[ -z $memory ]] || ((${nodes_facts[$node memory]} < ${memory%% *})); then
      memory="${nodes_facts[$node memory]} GiB on $node"
    fi
    if [[ -n ${nodes_facts[$node ecc]:-} ]]; then
      report warning gpus "$node: uncorrected GPU memory errors: ${nodes_facts[$node ecc]}" \
        "tell your site's support, and exclude the node: sbatch --exclude=$node"
    fi
  done
  if ((!unseen)); then report ok files 'image, packages and directories are visible on all nodes'; fi
  if [[ ${least:-} == *tmpfs* ]]; then
    report ok temporary "${TMPDIR:-/tmp} is memory, counted against the job: at least $least"
  else
    report ok temporary "${TMPDIR:-/tmp}: at least ${least:-unknown}"
  fi
  report ok memory "free: at least ${memory:-unknown}"
  nodes_compare here kernel kernel
  nodes_compare driver driver driver
  gpus_diagnose_count
}

# gpus_diagnose_count: compare the GPUs of each node with those that the job has there.
gpus_diagnose_count() {
  local node
  local -i asked visible bad=0
  for node in "${nodes_answering[@]}"; do
    asked=${nodes_facts[$node asked]} visible=${nodes_facts[$node gpus]}
    if ((visible < asked)); then
      report problem gpus "$node has $visible visible GPUs, but the job has $asked on it" \
        "tell your site's support that the driver has lost a GPU, and exclude the node: sbatch --exclude=$node"
      bad=1
    fi
  done
  if ((!bad)); then nodes_compare gpus gpus 'GPUs:'; fi
}

# ---------- how the ranks communicate

# ranks_diagnose PROGRAM brief|complete: start the ranks as the job would: a task for each, or one on each node that
# starts a rank for each GPU; without GPUs two. Nodes that do not reach the first one, or cannot read a file, are
# left out.
ranks_diagnose() {
  local -i tasks=1 ranks gpus=${nodes_facts[${nodes_all[0]} asked]:-0} found=0
  local node state topic text fix
  local -a good=()
  local -r taken=${nodes_facts[${nodes_all[0]} taken]:-} deaf=${nodes_facts[${nodes_all[0]} deaf]:-}
  for node in "${nodes_answering[@]}"; do
    if [[ -n ${nodes_facts[$node offset]:-}$deaf && -z ${nodes_facts[$node unseen]:-} ]]; then good+=("$node"); fi
  done
  if [[ -n $taken || ${good[0]:-} != "${nodes_all[0]}" ]]; then
    report warning all_reduce 'not tested' 'fix the problem of the first node first'
    return
  fi
  if ((gpus == 0)); then gpus=${nodes_facts[${nodes_all[0]} gpus]:-0}; fi
  ranks=$((gpus ? gpus : 2))
  if ((${SLURM_NTASKS_PER_NODE:-1} > 1)); then tasks=$SLURM_NTASKS_PER_NODE ranks=1; fi
  local names
  names=$(IFS=, && printf '%s' "${good[*]}")
  nodes_run 100 ranks bash -c "$(script_text)" doctor.py ranks "$names" "${#good[@]}" "$tasks" \
    python "$1" "$ranks" "$gpus" "$2" "$names"
  ranks_report_failures || found=1
  while IFS=$'\t' read -r _ state topic text fix; do
    found=1
    if [[ $state != end ]]; then report "$state" "$topic" "$text" "$fix"; fi
  done < <(grep -F $'finding\t' "$nodes_dir/ranks")
  if ((!found)); then
    text=$(tail -n 1 "$nodes_dir/ranks.errors") || text=
    report problem all_reduce "no rank has reported${text:+: $text}" \
      "test a single rank: srun --overlap --ntasks=1 python3 container_run.py python -c 'import torch'"
  fi
}

# ranks_start NODES COUNT TASKS WORD...: become srun, with TASKS on each of COUNT NODES; the words are further
# options and the command.
ranks_start() {
  exec srun --overlap --label --nodelist="$1" --nodes="$2" --ntasks=$(($2 * $3)) --ntasks-per-node="$3" \
    --wait=0 --kill-on-bad-exit=0 "${@:4}"
}

# ranks_report_failures: report the errors and hints of tasks that could not start; return 1 if there are any. srun
# labels each line with the number of the task; a line without a label is about all tasks.
ranks_report_failures() {
  local number kind text node
  local -A last=() hints=() on=()
  while IFS=$'\t' read -r number kind text; do
    if [[ $kind == error ]]; then
      last[$number]=$text
    elif [[ -n ${last[$number]:-} ]]; then
      node=$(grep -m1 -E "^ *$number: job_node " "$nodes_dir/ranks") || node=
      hints[${last[$number]}]=$text
      on[${last[$number]}]+=${node:+" ${node##* }"}
      last[$number]=''
    fi
  done < <(sed -nE 's/^ *(([0-9]+): )?(error|hint): (.*)/\2\t\3\t\4/p' "$nodes_dir/ranks.errors" |
    sed 's/^\t/all\t/')
  for text in "${!hints[@]}"; do
    node=$(tr ' ' '\n' <<<"${on[$text]# }" | sort -u | paste -s -d ' ')
    report problem all_reduce "${node:+$node: }$text" "${hints[$text]}"
  done
  ((${#hints[@]} == 0))
}

# rank_begin: print the node of this task, as an error before the program starts names only the task.
rank_begin() {
  printf 'job_node %s\n' "${SLURMD_NODENAME:-$(uname -n)}"
  # JSC's Slurm shows a task one GPU, of those that its ranks shall share
  local visible=${CUDA_VISIBLE_DEVICES:-}
  visible=${visible//[!,]/}
  if ((${SLURM_STEP_TASKS_PER_NODE%%[!0-9]*} == 1 && ${#visible} + 1 < ${SLURM_GPUS_ON_NODE:-0})); then
    unset CUDA_VISIBLE_DEVICES
  fi
}

# ---------- what runs on each node: one task, bash alone

# node_report_facts CLOCK ADDRESS PORT FIRST NODES TMPDIR FILE...: print the facts about this node, a line each: node,
# name, value. CLOCK is the text of clock_server.py, for the first node.
node_report_facts() {
  local -r address=$2 port=$3
  local file output
  node_fact here "$(uname -r)"
  if [[ ${SLURMD_NODENAME:-$(uname -n)} == "$4" ]]; then node_serve_clock "$1" "$port" "$5" & fi
  for file in "${@:7}"; do
    if [[ ! -r $file ]]; then node_fact unseen "$file"; fi
  done
  output=$(timeout 5 getent ahostsv4 "$address") || :
  node_fact address "${output%% *}"
  node_report_space "$6"
  node_report_gpus
  # in another shell: a network that drops packets would block it for minutes
  output=$(timeout 12 bash -c "$(declare -f node_measure_offset); node_measure_offset \"\$@\"" offset \
    "$address" "$port" 2>/dev/null) || :
  node_fact offset "$output"
  wait
}

# node_fact NAME VALUE: print a fact.
node_fact() {
  printf '%s\t%s\t%s\n' "${SLURMD_NODENAME:-$(uname -n)}" "$1" "${2//[$'\t\n']/ }"
}

# node_serve_clock CLOCK PORT CLIENTS: the only Python on a host, once per job.
node_serve_clock() {
  local output
  if ! output=$(timeout 20 python3 -c "$1" "$2" "$3" 15 2>&1); then
    node_fact deaf "${output##*$'\n'}"
  elif [[ -n $output ]]; then
    node_fact taken "$output"
  fi
}

# node_measure_offset ADDRESS PORT: print how far this clock is ahead of the first node's, and half of the round
# trip, which bounds the error; in nanoseconds. Bash 4.4 (LUMI) has no EPOCHREALTIME.
node_measure_offset() {
  local before after theirs offset=''
  local -i attempt best=0
  until { exec 3<>"/dev/tcp/$1/$2"; } 2>/dev/null; do # the server may be about to start
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

# node_report_space DIR: report node-local space and memory; a directory in memory (LUMI) counts against the job.
node_report_space() {
  local kind blocks size name value
  if read -r kind blocks size < <(stat -f -c '%T %a %S' -- "$1"); then
    node_fact room "$((blocks * size >> 30)) $kind"
  fi
  while read -r name value _; do
    if [[ $name == MemAvailable: ]]; then node_fact memory "$((value >> 20))"; fi
  done </proc/meminfo
}

# node_report_gpus: report the GPUs of the node and of the job, the driver, and memory errors.
node_report_gpus() {
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
    if [[ $errors == *[1-9]* ]]; then node_fact ecc "${errors//$'\n'/, }"; fi
  elif [[ -r /sys/module/amdgpu/version ]]; then
    driver="amdgpu $(</sys/module/amdgpu/version)"
  fi
  node_fact gpus "$count"
  node_fact asked "${SLURM_GPUS_ON_NODE:-0}"
  node_fact driver "$driver"
}
