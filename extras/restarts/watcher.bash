# shellcheck shell=bash
# Restarts without a human. Slurm's job script becomes a watcher, which runs the same script once
# more, as its child: there start_job only sets the variables of the run, and the rest of the script
# starts the step. The watcher ends a step whose log is silent or shows that it cannot continue, and
# decides once after each failed step, by `submit.py decide`; while a step runs, it is bash alone.

# the command of the job script, with its arguments
declare -ga longship_script=()

# not empty after a signal: what asks for the end of the step
declare -g longship_ending=''

# how many spare nodes the job has
declare -gi longship_spares=0

# the faulty nodes that this start of the job has found, separated by commas
declare -g longship_faulty=''

# the job as Slurm's commands take it: the last task of an array that starts has the ID of the whole
# array
declare -g longship_job=''

# watch_keep_spares NODES: let srun use so many nodes, the first ones; the others are spare.
watch_keep_spares() {
  export SLURM_JOB_NUM_NODES=$1 SLURM_NNODES=$1
  unset SLURM_NTASKS SLURM_NPROCS SLURM_TASKS_PER_NODE
  # shellcheck disable=SC2329  # for the job script
  srun() { watch_srun "$@"; }
}

# watch_srun ARGUMENT...: start the ranks on the first nodes, unless the call itself says on which.
# srun would leave out a node on which an earlier step still ends, for a spare one, and MASTER_ADDR
# can be that node.
watch_srun() {
  local each list=''
  local -a hosts
  for each in "$@"; do
    case $each in
      "$LAUNCHER")
        mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
        printf -v list '%s,' "${hosts[@]:0:SLURM_JOB_NUM_NODES}"
        break
        ;;
      -[Nrwx]* | --nodes* | --nodelist* | --relative* | --exclude*) break ;;
    esac
  done
  command srun ${list:+"--nodelist=${list%,}"} "$@"
}

# watch_run RESTARTS SPARES SILENCE LOG MESSAGES: run the rest of the job script until no decision
# starts it again, and exit with its code. SILENCE is in seconds, 0 for never; MESSAGES is for grep
# -E.
watch_run() {
  local name code
  longship_spares=$2
  longship_job=${RUN_DIR##*/}
  longship_job=${longship_job%%-*} # 4711_3 for a task of an array
  mapfile -d '' -t longship_script <"/proc/$$/cmdline"
  # scancel, the time limit and --signal=B: signal this shell alone
  for name in TERM HUP USR1 USR2; do
    # shellcheck disable=SC2064 # one for each name
    trap "longship_ending=yes; kill -s $name \"\$longship_child\" 2>/dev/null || :" "$name"
  done
  while :; do
    watch_attempt "$3" "$4" "$5" && code=0 || code=$?
    if [[ -n $longship_ending ]]; then break; fi
    if (($1)) && run_is_preempted; then # the stacks write a checkpoint then, and exit with code 0
      printf 'longship: preempted: requeued\n' >&2
      watch_requeue
      break
    fi
    if ((code == 0)) || ! watch_decide "$code" "$1" "$4"; then break; fi
    if [[ -n $longship_ending ]]; then break; fi # a signal can come while it decides
    printf 'longship: run %s\n' "$RUN_DIR" >&2 # doctor.py explains what follows it
  done
  exit "$code"
}

# watch_attempt SILENCE LOG MESSAGES: run the script once, with the signals and input that it would
# have alone; return its exit code. A step that had to be ended has failed, even if it then writes a
# checkpoint and exits with code 0, and the next job of a chain must not take code 143 for the time
# limit.
watch_attempt() {
  local code=0 own=0 observer=''
  (
    trap - INT QUIT
    # shellcheck disable=SC2030  # for the script alone
    export LONGSHIP_WATCHED=$RUN_DIR
    command_exec "${longship_script[@]}"
  ) <&0 &
  longship_child=$!
  if [[ -f $2 ]]; then
    local +x watch_ended
    exec {watch_ended}<> <(:) # a pipe: the observer writes to it that it ends the steps
    watch_log "$@" &
    observer=$!
  fi
  while :; do # a signal interrupts wait, not the script
    wait "$longship_child" && code=0 || code=$?
    if ! kill -0 "$longship_child" 2>/dev/null; then break; fi
  done
  # if it ended at the same moment, its own exit code is still available
  wait "$longship_child" 2>/dev/null && own=0 || own=$?
  if ((own != 127)); then code=$own; fi
  if [[ -n $observer ]]; then
    kill "$observer" 2>/dev/null || :
    if [[ $code == @(0|143) ]] && read -r -t 0 -u "$watch_ended"; then code=1; fi
    exec {watch_ended}>&-
  fi
  return "$code"
}

# watch_log SILENCE LOG MESSAGES: end a step whose log has not grown for SILENCE seconds, or that
# still runs some time after a line that matches MESSAGES. A size that cannot be read is no silence.
watch_log() {
  local size='' now searched message='' pause=$(($1 ? $1 / 10 : 60))
  local -i quiet=0 # not by the clock, which goes on while Slurm suspends a job
  exec {watch_idle}<> <(:) # nothing is ever written to it
  pause=$((pause < 1 ? 1 : pause > 60 ? 60 : pause))
  searched=$(exec timeout 60 stat -c %s -- "$2") || searched=0 # for an earlier attempt
  while :; do
    read -r -t "$pause" -u "$watch_idle" || :
    now=$(exec timeout 60 stat -c %s -- "$2" 2>/dev/null) || now=
    quiet+=$pause
    if [[ -n $message ]]; then
      printable "${message:0:500}"
      if watch_end_steps "the ranks cannot continue: $REPLY"; then message='' size='' searched=${now:-$searched}; fi
    elif [[ -z $now || $now != "$size" ]]; then
      message=$(timeout 60 tail -c "+$((searched + 1))" -- "$2" | LC_ALL=C grep -a -m 1 -E -e "$3") || : # no such line
      # a line can be incomplete
      size=$now quiet=0 searched=$((now - 1000 > searched ? now - 1000 : searched))
    elif (($1 && quiet >= $1)); then
      if watch_end_steps "no output for $1 seconds"; then size=''; fi
    fi
  done
}

# watch_end_steps REASON: say who hangs, and end the steps of this job: TERM, after 30 s KILL; fail
# if Slurm does not answer.
watch_end_steps() {
  local -a steps
  local signal output
  output=$(exec timeout 60 squeue --steps --noheader --format=%i --jobs="$longship_job" 2>/dev/null) || return
  mapfile -t steps < <(grep -E '\.[0-9]+$' <<<"$output")
  if ((${#steps[@]} == 0)); then return 0; fi # the script itself works
  printf 'longship: %s: ending %s\n' "$1" "${steps[*]}" >&2
  printf '\n' >&"$watch_ended"
  watch_ask_nccl
  for signal in TERM KILL; do
    scancel --signal="$signal" "${steps[@]}" || :
    read -r -t 30 -u "$watch_idle" || :
  done
}

# watch_ask_nccl: print what NCCL's RAS, which the first rank of a node serves, knows of the ranks.
# Its protocol is text.
watch_ask_nccl() {
  local -r address=${NCCL_RAS_ADDR:-localhost:28028} deadline=$((SECONDS + 30))
  local line ras
  { exec {ras}<>"/dev/tcp/${address%:*}/${address##*:}"; } 2>/dev/null || return 0 # no NCCL, or an old one
  printf 'verbose status\n' >&"$ras" || :
  while ((SECONDS < deadline)) && IFS= read -r -t 10 -u "$ras" line; do
    printable "$line"
    printf 'longship: NCCL: %s\n' "$REPLY" >&2
  done
  exec {ras}>&-
}

# watch_decide CODE RESTARTS LOG: say what follows from a failed step, and record it; fail if this
# shell does not start the step again.
watch_decide() {
  local -a decided # action, line, lines of all attempts, nodes to replace, nodes to exclude
  mapfile -d '' -t decided < <(watch_ask_nodes | timeout 300 python3 "$LONGSHIP_ROOT/submit.py" decide "$RUN_DIR" "$1" "$2" "$longship_spares" "$longship_faulty")
  if [[ -n $longship_ending ]]; then return 1; fi
  if ((${#decided[@]} != 5)); then
    print_messages error 'not restarted: submit.py decide failed' hint "run: python3 doctor.py explain $RUN_DIR"
    return 1
  fi
  local -r action=${decided[0]} nodes=${decided[3]}
  run_set_fact attempts "${decided[2]}"
  if [[ $action == stuck ]]; then run_set_fact stuck yes; fi
  (run_write_record) || :
  if [[ $action == again ]]; then
    printf '%s\n' 'longship: explanation of the failure' "$(run_explain "$3")" >&2
  fi
  printf 'longship: %s\n' "${decided[1]}" >&2
  if [[ -z $nodes ]]; then
    [[ $action == again ]]
    return
  fi
  longship_faulty+=${longship_faulty:+,}$nodes
  if [[ -n ${decided[4]} ]]; then watch_exclude_later; fi
  if [[ $action == again ]] && watch_replace_nodes "$nodes"; then return; fi
  if [[ -n ${decided[4]} ]]; then watch_requeue "$longship_faulty"; fi
  return 1
}

# watch_ask_nodes: print what Slurm says of each node of this job that it has taken out, and what the
# GPU tools of the others say, as faulty_nodes of watcher.py reads it. A node that hangs does not
# answer.
watch_ask_nodes() {
  local node state names
  local -a asked=()
  while read -r node state; do
    case $state in
      down* | drain* | fail* | *'*') printf '%s\tslurm %s\n' "$node" "$state" ;; # *: no contact
      *) asked+=("$node") ;;
    esac
  done < <(timeout 60 sinfo --all --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%N %T' | sort -u)
  if ((${#asked[@]} == 0)); then return; fi
  printf -v names '%s,' "${asked[@]}"
  (
    # a step of its own, whatever the job script sets for those of its ranks
    for state in "${!SLURM_@}" "${!SRUN_@}"; do
      if [[ $state != SLURM_@(CONF|CLUSTERS|JOB_ID) ]]; then unset "$state"; fi
    done
    exec timeout --kill-after=5 60 srun --overlap --no-kill --kill-on-bad-exit=0 --mpi=none --input=none \
      --nodes="${#asked[@]}" --ntasks="${#asked[@]}" --ntasks-per-node=1 --nodelist="${names%,}" \
      bash -c "$(declare -f watch_tell_gpus); watch_tell_gpus" 2>/dev/null
  ) || : # of a node that does not answer
}

# watch_tell_gpus: on a node, print what its own tool says of the GPUs, and how that ended.
watch_tell_gpus() {
  local -a ask
  local line tool said code=0
  for line in 'nvidia-smi --query-gpu=mig.mode.current,ecc.errors.uncorrected.volatile.total --format=csv,noheader' \
    'rocm-smi --showrasinfo'; do
    read -r -a ask <<<"$line"
    tool=${ask[0]}
    if type -P "$tool" >/dev/null; then break; fi
    tool=
  done
  if [[ -n $tool ]]; then
    said=$(timeout --kill-after=5 20 "${ask[@]}" 2>&1) || code=$?
    while IFS= read -r line; do printf '%s\tsaid %s\n' "$SLURMD_NODENAME" "$line"; done <<<"$said"
  fi
  printf '%s\tended %s %s\n' "$SLURMD_NODENAME" "$tool" "$code"
}

# watch_excluded JOB NODES: print the nodes that a job excludes, and NODES, one per line.
watch_excluded() {
  local facts
  tr , '\n' <<<"$2"
  facts=$(exec timeout 20 scontrol show job --oneliner "$1" 2>/dev/null) || return
  facts=${facts#* ExcNodeList=}
  facts=${facts%% *}
  if [[ $facts != '(null)' ]]; then scontrol show hostnames "$facts"; fi
}

# watch_replace_nodes NODES: give them back to Slurm, which then starts the step on spare ones.
watch_replace_nodes() {
  local node kept='' output
  while read -r node; do
    if [[ ,$1, == *,$node,* ]]; then longship_spares+=-1; else kept+=,$node; fi
  done < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  output=$(cd -- "$RUN_DIR" && exec scontrol update JobId="$longship_job" NodeList="${kept#,}" 2>&1) || {
    print_messages warning "Slurm does not take back $1: ${output##*error: }" \
      hint 'train without spare nodes: --spare-nodes=0'
    return 1
  }
  rm -f -- "$RUN_DIR"/slurm_job_*_resize.* # scontrol's, with these variables
  export SLURM_JOB_NODELIST=${kept#,} SLURM_NODELIST=${kept#,}
}

# watch_requeue [NODES]: put the job back into the queue, without some nodes. Slurm starts it after
# its processes have ended: this shell has until KillWait. Only pending jobs can exclude nodes, so the
# job is held until it does; and the TERM that Slurm then sends must not end what lets it.
watch_requeue() {
  (
    trap '' TERM HUP USR1 USR2
    output=$(exec scontrol "requeue${1:+hold}" "$longship_job" 2>&1) || {
      print_messages error "Slurm does not requeue the job: ${output##*error: }" \
        hint "run: python3 submit.py rerun $longship_job${1:+ --exclude=$1}"
      exit 1
    }
    if [[ -z ${1:-} ]]; then exit; fi
    watch_exclude "$1" "$longship_job"
    output=$(exec scontrol release "$longship_job" 2>&1) ||
      print_messages error "the job stays held: ${output##*error: }" hint "run: scontrol release $longship_job"
  ) || return
  for _ in {1..30}; do
    if [[ -n $longship_ending ]]; then break; fi # Slurm's TERM
    sleep 1
  done
}

# watch_exclude_later: exclude the faulty nodes from the later jobs of the chain, which have the name
# of this one; they are pending.
watch_exclude_later() {
  local id dependency name chain=,$SLURM_JOB_ID,
  while IFS='|' read -r id dependency name; do # in the order of their submission
    if [[ $name != "$SLURM_JOB_NAME" || ! $dependency =~ ^afterany:([0-9]+) ]]; then continue; fi
    if [[ $chain == *,${BASH_REMATCH[1]},* ]]; then
      chain+=$id,
      watch_exclude "$longship_faulty" "$id"
    fi
  done < <(timeout 60 squeue --me --states=PENDING --sort=i --noheader --format='%i|%E|%j')
}

# watch_exclude NODES JOB: let a pending job not get nodes, in addition to those that it excludes, and
# check it. A name that Slurm does not know is left out: with it the whole list is refused.
watch_exclude() {
  local known names output='' missing=$1 try
  for try in 0 1 2 3; do
    sleep "$try" # a job that was requeued a moment ago can refuse
    known=$(exec timeout 20 sinfo --all --noheader --Node --format=%N) || continue
    names=$(watch_excluded "$2" "$1") || continue
    names=$(sort -u <<<"$names" | grep -F -x -f <(printf '%s\n' "$known")) || continue
    output=$(exec timeout 20 scontrol update JobId="$2" ExcNodeList="${names//$'\n'/,}" 2>&1) || continue
    missing=$(grep -v -F -x -f <(watch_excluded "$2" '') <<<"$names") || return 0
  done
  print_messages warning "cannot exclude ${missing//$'\n'/,}: ${output##*error: }" \
    hint "run: scontrol update JobId=$2 ExcNodeList=$1"
}
