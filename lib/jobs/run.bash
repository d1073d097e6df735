# shellcheck shell=bash
# Start and end of a run: part of <run>/start.bash, which a job script sources. The functions use
# the variables of job.bash and of Slurm. A run directory contains:
#
#   record.json         inputs, nodes, start time, exit code, price per hour, GPU-hours, utilisation
#                       and energy; tokens per second, and how they compare with an earlier run as
#                       `throughput`; with restarts, a line of `attempts` for each failed step and
#                       what followed, and `stuck` if the last one made no step, or none more than the one before
#   launcher            the launcher script, which each rank starts
#   start.bash          the functions that the job script sources
#   sampler             the script that the first rank of each node starts to measure it
#   usage/              the samples of each node, NODE.csv
#   outputs             link to the directory of the training's results, once the training has
#                       started
#   data.json           the files that the training has read, where the program names them
#   exported            link to its newest checkpoint in Hugging Face's format, once a job evaluates
#                       it
#   report-RUN.html     the page of submit.py report RUN
#   card/               the model card of submit.py card RUN
#   job.sbatch          the job script at submission; job.salloc for an interactive job
#   arguments           the arguments of the job, each followed by a zero byte
#   options             the sbatch options, one per line, quoted for a shell
#   configuration.json  the complete configuration, to be given to --configuration
#   slurm.txt           the output of `scontrol show job`
#   code/               the frozen code: a copy of each repository, longship of this clone
#   code-ID.tar         the archive that the copies are from
#   packages.txt        the Python packages of the environment, with versions
#   repositories/       for each repository NAME.commit, and NAME.patch with all local changes; of frozen code also
#                       NAME.stays: what git ignores, and stays where it is
#   environment.toml    the environment definition file, on a machine whose srun reads one (Alps)
#   jupyter/            token and TLS files of JupyterLab; only the user can enter this and the next
#                       two
#   ssh/                host key, accepted key and configuration of an SSH server
#   longship-MACHINE/   its key, known_hosts and config for the user's own machine

# functions of the extras, which the end of the job calls
declare -ga longship_at_end=()

# job_set NAME VALUE: set a variable that the job script reads.
job_set() {
  printf -v "$1" '%s' "$2"
}

# set_rendezvous PATTERN: export MASTER_ADDR and MASTER_PORT. In the pattern {node} is the name of
# the first node, {address} its IP address.
set_rendezvous() {
  local node='' address=''
  read -r node < <(scontrol show hostnames "$SLURM_JOB_NODELIST") || :
  if [[ $1 == *'{address}'* ]]; then
    # the job of a shell can run on a login node that does not know it, and then it is not needed
    read -r address _ < <(getent ahostsv4 "$node") || ((SLURM_JOB_NUM_NODES == 1)) ||
      fail "the first node has no IP address: $node" "on that node, run: getent ahostsv4 $node"
    address=${address:-$node}
  fi
  MASTER_ADDR=${1//'{node}'/"$node"}
  MASTER_ADDR=${MASTER_ADDR//'{address}'/"$address"}
  # below the ports that Linux assigns automatically, and another one for each job of a node
  MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
  export MASTER_ADDR MASTER_PORT
}

# job_set_shape GPUS_PER_NODE: export NUM_NODES and GPUS_PER_NODE.
job_set_shape() {
  export NUM_NODES=$SLURM_JOB_NUM_NODES GPUS_PER_NODE=$1
  if [[ -n ${SLURM_GPUS:-} ]] && ((${SLURM_GPUS##*:} != NUM_NODES * GPUS_PER_NODE)); then
    fail "Slurm distributed $SLURM_GPUS GPUs unevenly over $NUM_NODES nodes" \
      'request --gpus-per-node, or all GPUs of the nodes'
  fi
  # since Slurm 22.05 srun does not take it from the job
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
}

# job_label_output: begin each line of the log with its task. If one task fails, Slurm ends the
# others, which would wait for it until the time limit.
job_label_output() {
  export SLURM_LABELIO=1 SLURM_KILL_BAD_EXIT=1
}

# job_check_previous JOB STEP BEFORE: stop the next job of a chain if the previous one was cancelled,
# or has failed without a step more than the one before it; these are their last steps, empty where
# none is known. Slurm forgets a job after minutes: it is asked only if the record of the job has no
# end.
job_check_previous() {
  local state='not recorded: it never started' why='' record
  for record in "${RUN_DIR%/*}/$1"-*/record.json; do
    record_value "$record" cluster
    if [[ ! -e $record || $REPLY != "${SLURM_CLUSTER_NAME:-}" ]] || ! is_own "${record%/*}"; then continue; fi
    record_value "$record" exit_code
    state=$REPLY
    record_value "$record" stopped
    case $REPLY in
      cancelled | requeued) state=CANCELLED ;; # a requeued one was cancelled before it started again
      preempted) state= ;;                     # only Slurm knows whether it was to start again
    esac
    record_value "$record" stuck # by its watcher
    why=${REPLY:+after two starts without a step more}
  done
  if [[ -z $state ]]; then # killed, or its node is lost
    state=$(scontrol show job --oneliner "$1" 2>/dev/null) || state=
    state=${state#* JobState=}
    state=${state%% *}
  fi
  case $state in
    0 | COMPLETED | PREEMPTED | NODE_FAIL | BOOT_FAIL) return ;; # it has not failed
    CANCELLED | not*) ;;
    *)
      if [[ -z $2 ]]; then
        why='without a step'
      elif (($2 <= ${3:--1})); then
        why="at step $2, no step more than the job before it"
      elif [[ -z $why ]]; then
        return
      fi
      if [[ $state == [1-9]* ]]; then state=FAILED; fi
      ;;
  esac
  fail "job $1, which this job resumes, ended in state ${state:-unknown}${why:+ $why}" \
    "read the explanation at the end of its log; then run: python3 submit.py rerun $1"
}

# run_begin LOG [NAME VALUE]...: write what is known at the start to the record, and complete it
# when the job ends. LOG has the errors; it is empty for an interactive job.
run_begin() {
  longship_log=$1
  longship_facts=("${@:2}" started "$(run_time)" nodelist "$SLURM_JOB_NODELIST" arguments "${JOB_ARGUMENTS[*]@Q}")
  printf 'longship: run %s\n' "$RUN_DIR" >&2
  (run_keep_submission)
  unset "${!LONGSHIP_JOB_@}" # not for what the job itself submits
  run_write_record
  run_exit_at_term
  at_exit run_end
  at_exit_chain
}

# run_exit_at_term: exit after srun has ended, which gets the same signal, unless the job script
# itself has said what to do.
run_exit_at_term() {
  if [[ -z $(builtin trap -p TERM) ]]; then trap 'exit 143' TERM; fi
}

# run_keep_submission: keep what the job is started again with.
run_keep_submission() {
  local -r script=$RUN_DIR/job.$([[ -n $longship_log ]] && printf sbatch || printf salloc)
  # a shell's is not a file for sbatch
  if [[ -f $0 ]]; then
    file_begin "$script"
    cp -- "$0" "$REPLY"
    file_publish "$REPLY" "$script"
  fi
  file_begin "$RUN_DIR/arguments"
  if ((${#JOB_ARGUMENTS[@]})); then printf '%s\0' "${JOB_ARGUMENTS[@]}" >"$REPLY"; fi
  file_publish "$REPLY" "$RUN_DIR/arguments"
  if [[ -n ${LONGSHIP_JOB_OPTIONS:-} ]]; then file_write "$RUN_DIR/options" "$LONGSHIP_JOB_OPTIONS"$'\n'; fi
}

# run_has_begun: whether this shell only needs the variables of a run: its watcher starts a step, or
# another job runs something in its environment.
run_has_begun() {
  # shellcheck disable=SC2031  # the watcher sets it in a subshell
  if [[ -z ${LONGSHIP_WATCHED:-} ]]; then return 1; fi
  unset LONGSHIP_WATCHED # not for what the script itself submits
  run_exit_at_term
}

# run_set_fact NAME VALUE: of the record.
run_set_fact() {
  local -i index
  for ((index = 0; index < ${#longship_facts[@]}; index += 2)); do
    if [[ ${longship_facts[index]} == "$1" ]]; then longship_facts[index + 1]=$2; return; fi
  done
  longship_facts+=("$1" "$2")
}

# run_write_record: the file is complete at any moment.
run_write_record() {
  record_write "$RUN_DIR/record.json" "${longship_facts[@]}"
}

# run_time: print the time as in all records.
run_time() {
  date -u +%Y-%m-%dT%H:%M:%SZ
}

# run_end: complete the record, however the job ended; an error in it changes no exit code. The end
# comes first: after scancel and at the time limit Slurm kills this shell soon, and the next job of
# a chain reads how this one has ended.
run_end() {
  local -r code=${at_exit_code:?}
  local failed='' unwritten='' each
  longship_facts+=(ended "$(run_time)" exit_code "$code")
  run_find_reason "$longship_log"
  if ! (run_write_record); then
    unwritten=1
    print_messages error "the record $RUN_DIR/record.json cannot be completed: the job exited with code $code"
  fi
  code_record_end "$RUN_DIR"
  if [[ ${longship_facts[-2]} != stopped ]] && run_is_preempted; then # the log did not say why
    run_set_fact stopped preempted
    printf 'longship: Slurm preempts this job\n' >&2 # for doctor.py
  fi
  if ((code != 0)) && [[ -r $longship_log ]]; then failed=$(run_explain "$longship_log"); fi
  if [[ $'\n'$failed =~ $'\n''first to fail: '([^$'\n']*) ]]; then longship_facts+=(failed "${BASH_REMATCH[1]}"); fi
  run_find_reason "$longship_log" # again, as Slurm's line can come after its signal
  for each in ${longship_at_end[@]+"${longship_at_end[@]}"}; do "$each"; done # none, in an old bash
  if [[ -z $unwritten ]]; then
    (run_write_record)
  else
    (run_write_record) 2>/dev/null # the error is reported above
  fi
  # doctor.py recognises the first line, and does not explain its own words
  if [[ -n $failed ]]; then printf '%s\n' 'longship: explanation of the failure' "$failed" >&2; fi
  node_caches_remove # last: it waits for nodes
}

# run_explain LOG: print who failed first, and what doctor.py knows about the messages of the log.
run_explain() {
  exec timeout 60 python3 "$LONGSHIP_ROOT/doctor.py" explain --quiet "$1" 2>/dev/null
}

# run_is_preempted: whether Slurm has signalled this job to start another one. It says so in the log
# only after the grace time.
run_is_preempted() {
  local job=${RUN_DIR##*/}
  job=${job%%-*} # 4711_3 for a task of an array
  grep -q ' PreemptTime=[0-9]' < <(exec timeout 60 scontrol show job --oneliner "$job" 2>/dev/null)
}

# run_find_reason LOG: record as `stopped` that somebody has cancelled this job, that it reached its
# time limit (timed out), that it is to start again (requeued), or that Slurm decides that
# (preempted). The log of a requeued job contains its earlier starts too.
run_find_reason() {
  REPLY=
  [[ -r $1 ]] || return 0
  REPLY=$(tac -- "$1" | grep -a -m 1 -E "^longship: run |JOB $SLURM_JOB_ID ON [^ ]+ CANCELLED AT") || :
  case $REPLY in
    '' | 'longship: run '*) ;;
    *'TIME LIMIT'*) run_set_fact stopped 'timed out' ;;
    *REQUEUE*) run_set_fact stopped requeued ;;
    *'NODE FAILURE'* | *PREEMPTION*) run_set_fact stopped preempted ;;
    *) run_set_fact stopped cancelled ;;
  esac
}
