# shellcheck shell=bash disable=SC2154  # the emitted script sets job_machine, job_unseen, report_form
# doctor.py --job: every node is looked at by one srun, and all ranks by another one, within a minute.

# diagnose_job_find PATTERN: the job, its nodes and where its ranks meet, from inside of it or by its id.
diagnose_job_find() {
  [[ -n ${SLURM_JOB_ID:-} ]] || fail 'not in a job: SLURM_JOB_ID is not set' \
    'salloc --nodes=2 OPTION... python3 doctor.py --job; or add it to a job script, before srun'
  command -v srun >/dev/null ||
    fail "srun not found: this may be a container" \
      "on a login node, run: SLURM_JOB_ID=$SLURM_JOB_ID python3 doctor.py --job"
  local list beside=${SLURM_JOB_NODELIST:+no}
  list=$(timeout 60 squeue --noheader --jobs="$SLURM_JOB_ID" --states=RUNNING --format=%N 2>&1) ||
    [[ $list == *'nvalid job id'* ]] || fail "Slurm does not respond: ${list##*$'\n'}" 'try again later'
  list=${list##*error: Invalid job id specified}
  [[ -n $list ]] || fail "job $SLURM_JOB_ID is not running" 'list your jobs: squeue --me'
  mapfile -t job_nodes < <(scontrol show hostnames "$list")
  export SLURM_JOB_NODELIST=$list SLURM_JOB_NUM_NODES=${#job_nodes[@]}
  # what a job file or a step around this has set for its own srun
  unset SLURM_LABELIO SLURM_KILL_BAD_EXIT
  if [[ -n ${SLURM_STEP_ID:-} ]]; then unset "${!SLURM_CPU_BIND@}" SLURM_DISTRIBUTION SLURM_NTASKS_PER_NODE; fi
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
  if [[ -z ${MASTER_ADDR:-} || -z ${MASTER_PORT:-} ]]; then
    set_rendezvous "$1"
    # by its id, from outside: the job's own ranks meet at its port
    if [[ -z $beside ]]; then MASTER_PORT=$((MASTER_PORT + 1)); fi
  fi
  job_folder=$(mktemp -d "${TMPDIR:-/tmp}/longship-doctor.XXXXXX") ||
    fail_writing "${TMPDIR:-/tmp}" 'cannot write temporary files' 'set TMPDIR to a directory that you can write to'
  job_child=''
  trap diagnose_job_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# diagnose_job_end: srun ends its tasks when it is told to.
diagnose_job_end() {
  local -r code=$?
  trap '' INT TERM
  if [[ -n $job_child ]] && kill "$job_child" 2>/dev/null; then wait "$job_child" || :; fi
  rm -rf -- "$job_folder"
  exit "$code"
}

# diagnose_job_run SECONDS NAME COMMAND...: run it in the background, where Ctrl-C reaches this script. It may
# say when it has said all; what hangs then is ended.
diagnose_job_run() {
  timeout --kill-after=10 "$1" "${@:3}" </dev/null >"$job_folder/$2" 2>"$job_folder/$2.errors" &
  job_child=$!
  local -i patience=15
  while ((patience)) && kill -0 "$job_child" 2>/dev/null; do
    if grep -qsF $'finding\tend\t' "$job_folder/$2"; then patience+=-1; fi
    sleep 0.2
  done
  kill "$job_child" 2>/dev/null || :
  wait "$job_child" 2>/dev/null || :
  job_child=''
}

# diagnose_job_nodes FILE...: what each node says. It must be able to read those of the files that are here;
# what is nowhere is told by what needs it.
diagnose_job_nodes() {
  local node name value
  local -a there=()
  for name in "$@"; do
    if [[ -e $name ]]; then there+=("$name"); fi
  done
  local -ra about=("$MASTER_ADDR" "$MASTER_PORT" "${job_nodes[0]}" "${#job_nodes[@]}" "${TMPDIR:-/tmp}")
  diagnose_job_run 25 nodes srun --overlap --nodes="${#job_nodes[@]}" --ntasks="${#job_nodes[@]}" \
    --ntasks-per-node=1 --wait=0 bash -c "$(this_script)" doctor.py look "${about[@]}" "${there[@]}"
  declare -gA job_facts=()
  while IFS=$'\t' read -r node name value; do
    if [[ $name == unseen ]]; then value="${job_facts[$node unseen]:+${job_facts[$node unseen]}, }$value"; fi
    job_facts[$node $name]=$value
  done <"$job_folder/nodes"
  job_answering=()
  for node in "${job_nodes[@]}"; do
    if [[ -n ${job_facts[$node driver]:-} ]]; then # the last one but for the network
      job_answering+=("$node")
    else
      # killed: by this script, after its time
      name=$(grep -F "$node:" "$job_folder/nodes.errors" | grep -vE 'Killed|Terminated' | tail -n 1) || name=
      report problem nodes "$node does not respond${name:+: $name}" \
        "check it: srun --overlap --nodelist=$node hostname; or exclude it: sbatch --exclude=$node"
    fi
  done
  if ((${#job_answering[@]} == ${#job_nodes[@]})); then report ok nodes "$SLURM_JOB_NODELIST: all answer"; fi
  if ((${#job_answering[@]} == 0)); then end_report; fi
}

# diagnose_job_alike NAME TOPIC WHAT: one value on all nodes; who has another one than most is named.
diagnose_job_alike() {
  local node value most=''
  local -A having=()
  for node in "${job_answering[@]}"; do
    value=${job_facts[$node $1]}
    having[$value]=$((${having[$value]:-0} + 1))
    if [[ -z $most ]] || ((${having[$value]} > ${having[$most]})); then most=$value; fi
  done
  if ((${#having[@]} == 1)); then report ok "$2" "$3 $most on all nodes"; fi
  for node in "${job_answering[@]}"; do
    if [[ ${job_facts[$node $1]} != "$most" ]]; then
      report warning "$2" "$node has $3 ${job_facts[$node $1]}, but the other nodes have $most" \
        "exclude it: sbatch --exclude=$node; and tell your site's support"
    fi
  done
}

# diagnose_job_name NODE: how the node sees the first one's name.
diagnose_job_name() {
  local -r first=${job_facts[${job_nodes[0]} address]:-} own=${job_facts[$1 address]}
  local -r hosts="compare /etc/hosts and the name server there with the first node's; sbatch --exclude=$1"
  if [[ -z $own ]]; then
    report problem address "$1 does not know MASTER_ADDR, $MASTER_ADDR" "$hosts"
  elif [[ $1 == "${job_nodes[0]}" && $own == 127.* && ${#job_nodes[@]} -gt 1 ]]; then
    report warning address "$1 has the address $own for its own name" \
      'set the interface that Gloo uses: export GLOO_SOCKET_IFNAME=INTERFACE, as ip address shows it'
  elif [[ -n $first && $own != "$first" && $first != 127.* ]]; then
    report problem address "$MASTER_ADDR is $own on $1 and $first on ${job_nodes[0]}" "$hosts"
  else
    return 0
  fi
  job_clean=0
}

# diagnose_job_rendezvous: name, port and network of the first node, as each node sees them.
diagnose_job_rendezvous() {
  local node job_clean=1
  for node in "${job_answering[@]}"; do diagnose_job_name "$node"; done
  if ((job_clean)); then
    report ok address "MASTER_ADDR, $MASTER_ADDR, is ${job_facts[${job_answering[0]:-} address]:-unknown} on all nodes"
  fi
  local -r taken=${job_facts[${job_nodes[0]} taken]:-} deaf=${job_facts[${job_nodes[0]} deaf]:-}
  if [[ -z ${job_facts[${job_nodes[0]} driver]:-} ]]; then
    report warning port "cannot test MASTER_PORT, $MASTER_PORT, without ${job_nodes[0]}" 'fix the problem of nodes first'
    return
  elif [[ -n $taken ]]; then
    report problem port "MASTER_PORT, $MASTER_PORT, is in use on ${job_nodes[0]} by $taken" \
      "end that process, or use another port: export MASTER_PORT=$((MASTER_PORT < 32000 ? MASTER_PORT + 1 : 20000))"
    report warning network 'cannot test the connections to the first node, and the clocks' \
      'free the port first'
    return
  elif [[ -n $deaf ]]; then
    report warning port "MASTER_PORT, $MASTER_PORT, could not be tested: $deaf" 'check python3 on the nodes: srun --overlap python3 --version'
    return
  fi
  report ok port "MASTER_PORT, $MASTER_PORT, is free on ${job_nodes[0]}"
  job_clean=1
  for node in "${job_answering[@]}"; do
    if [[ -z ${job_facts[$node offset]:-} ]]; then
      report problem network "$node cannot connect to ${job_nodes[0]}, $MASTER_ADDR port $MASTER_PORT" \
        "check its network and the port: srun --overlap --nodelist=$node ip address; sbatch --exclude=$node"
      job_clean=0
    fi
  done
  if ((job_clean)); then report ok network "all nodes reach ${job_nodes[0]} by TCP"; fi
  diagnose_job_clocks
}

# diagnose_job_clocks: each against the first node's. Kerberos and certificates bear minutes, logs and
# timeouts less; chrony and NTP hold milliseconds.
diagnose_job_clocks() {
  local node offset
  local -i exact worst=0 most=0 bad=0
  for node in "${job_answering[@]}"; do
    read -r _ offset exact <<<"${job_facts[$node offset]:-}" || :
    if [[ -z $offset ]]; then continue; fi
    offset=$((offset / 1000000)) exact=$((exact / 1000000 + 1)) # milliseconds
    if ((${offset#-} > 1000 + exact)); then
      report problem clock "$node differs from ${job_nodes[0]} by $offset ms (measured to $exact ms); up to 1 s is tolerated" \
        "tell your site's support, and exclude the node: sbatch --exclude=$node"
      bad=1
    fi
    if ((${offset#-} > worst)); then worst=${offset#-}; fi
    if ((exact > most)); then most=$exact; fi
  done
  if ((!bad)); then report ok clock "at most $worst ms apart, known to $most ms"; fi
}
