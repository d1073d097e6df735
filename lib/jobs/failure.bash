# shellcheck shell=bash disable=SC2154  # the emitted script sets RUN_DIR
# Which rank failed first. When one dies the others report that they miss it, each at length; the
# reason is what the first one said.

# how srun tells the end of a task: node, task, reason
readonly longship_task_ended='^srun: error: ([^ :]+): tasks? ([0-9]+)[^:]*: (.*)$'

# how it labels the lines of one, with the rank that torchrun adds
readonly longship_task_said='^ *([0-9]+): (\[rank ([0-9]+)\] ?)?'

# the first line of what programs, runtimes and Slurm say when they fail
readonly longship_failure='(Traceback \(most recent|error: |FATAL: |ERROR: |[A-Za-z_.]*(Error|Exception): |Segmentation fault|slurmstepd: error|Fatal Python error)'

# first_failure LOG: print in a line who failed first, and below it what it said.
first_failure() {
  local LC_ALL=C # programs write any bytes
  local task='' rank='' text first
  local -a said=() ended=()
  local -i from
  # a requeued job has tried before
  from=$(grep -a -b -F -x -e "longship: run $RUN_DIR" -- "$1" | tail -n 1 | cut -d : -f 1) || from=0
  find_ended_task < <(tail -c "+$((from + 1))" -- "$1" | grep -a -E -e "$longship_task_ended")
  # grep finds it in gigabytes; what the task says next stands between the lines of others
  first=$(tail -c "+$((from + 1))" -- "$1" | grep -a -b -m 1 -E -e "$longship_task_said$longship_failure") || : # nothing; or tail has more to say
  if [[ ${first#*:} =~ $longship_task_said ]]; then
    task=${BASH_REMATCH[1]} rank=${BASH_REMATCH[3]}
    from+=${first%%:*}
    collect_said "${BASH_REMATCH[0]}" < <(tail -c "+$((from + 1))" -- "$1" | grep -a -F -e "${BASH_REMATCH[0]}")
  fi
  if [[ -z $task ]]; then return; fi
  text="task $task failed first${rank:+, rank $rank}${ended[task]:+ ${ended[task]}}"
  printf '%s\n' "$text"
  if ((${#said[@]})); then print_said; fi
}

# find_ended_task: set ended, by task, and task to the first that was not ended because of another one.
find_ended_task() {
  local line
  while IFS= read -r line; do
    if [[ $line =~ $longship_task_ended ]]; then
      ended[BASH_REMATCH[2]]="on ${BASH_REMATCH[1]}: ${BASH_REMATCH[3]}"
      if [[ -z $task || ${ended[task]} == *': Terminated' ]]; then task=${BASH_REMATCH[2]}; fi
    fi
  done
}

# collect_said LABEL: set said to the lines with that label, from where the failure begins.
collect_said() {
  local line
  while ((${#said[@]} < 2000)) && IFS= read -r line; do
    if [[ $line =~ $longship_task_said && ${BASH_REMATCH[0]} == "$1" ]]; then said+=("${line#"$1"}"); fi
  done
}

# print_said: as much as fits a screen. A traceback can be hundreds of lines long, and the error itself is
# its last one: then the middle is left out.
print_said() {
  local -i error
  find_error
  if ((error < 35)); then
    printf '  %s\n' "${said[@]:0:40}"
  else
    printf '  %s\n' "${said[@]:0:8}" "... ($((error - 32)) lines)" "${said[@]:error-24:30}"
  fi
}

# find_error: set error to the line at which a traceback ends, the last one of those that belong together.
find_error() {
  local -i at inside=0
  error=0
  for at in "${!said[@]}"; do
    case ${said[at]} in
      'During handling of the above exception'* | 'The above exception was'*) inside=1 ;;
      Traceback*)
        if ((at && !inside)); then return; fi # another one
        inside=1
        ;;
      '' | [[:space:]]*) ;;
      *)
        if ((inside)); then error=$at; fi
        inside=0
        ;;
    esac
  done
}

# find_who_stopped LOG: set REPLY to cancelled where somebody has ended this job, to requeued where it
# shall start again, to preempted where Slurm decides whether it does, and to nothing otherwise.
find_who_stopped() {
  REPLY=
  [[ -r $1 ]] || return 0
  REPLY=$(grep -a -E "JOB $SLURM_JOB_ID ON [^ ]+ CANCELLED AT" -- "$1" | tail -n 1) || : # nobody has
  case $REPLY in
    '' | *'TIME LIMIT'*) REPLY= ;;
    *REQUEUE*) REPLY=requeued ;;
    *'NODE FAILURE'* | *PREEMPTION*) REPLY=preempted ;;
    *) REPLY=cancelled ;;
  esac
}
