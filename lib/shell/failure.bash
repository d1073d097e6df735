# shellcheck shell=bash disable=SC2154  # the emitted script sets RUN_DIR
# Which rank failed first. When one dies the others report that they miss it, each at length; the
# reason is what the first one said.

# how srun tells the end of a task: node, task, reason
readonly TASK_ENDED='^srun: error: ([^ :]+): tasks? ([0-9]+)[^:]*: (.*)$'

# how it labels the lines of one, with the rank that torchrun adds
readonly TASK_SAID='^ *([0-9]+): (\[rank ([0-9]+)\] ?)?'

# the first line of what programs, runtimes and Slurm say when they fail
readonly FAILURE='(Traceback \(most recent|error: |FATAL: |ERROR: |[A-Za-z_.]*(Error|Exception): |Segmentation fault|slurmstepd: error|Fatal Python error)'

# first_failure LOG: print in a line who failed first, and below it what it said.
first_failure() {
  local LC_ALL=C # programs write any bytes
  local task='' rank='' text
  local -a said=() ended=()
  local -i from
  # a requeued job has tried before
  from=$(grep -a -b -F -x -e "longship: run $RUN_DIR" -- "$1" | tail -n 1 | cut -d : -f 1) || from=0
  find_ended_task < <(tail -c "+$((from + 1))" -- "$1" | grep -a -E -e "$TASK_ENDED")
  # grep finds it in gigabytes; what the task says next stands between the lines of others
  collect_said < <(tail -c "+$((from + 1))" -- "$1" | grep -a -E -m 1 -A 5000 -e "$TASK_SAID$FAILURE")
  if [[ -z $task ]]; then return; fi
  text="task $task failed first${rank:+, rank $rank}${ended[task]:+ ${ended[task]}}"
  printf '%s\n' "$text"
  if ((${#said[@]})); then printf '%s\n' "${said[@]}"; fi
}

# find_ended_task: set ended, by task, and task to the first that was not ended because of another one.
find_ended_task() {
  local line
  while IFS= read -r line; do
    if [[ $line =~ $TASK_ENDED ]]; then
      ended[BASH_REMATCH[2]]="on ${BASH_REMATCH[1]}: ${BASH_REMATCH[3]}"
      if [[ -z $task || ${ended[task]} == *': Terminated' ]]; then task=${BASH_REMATCH[2]}; fi
    fi
  done
}

# collect_said: the first line is of the one that failed first; set task, rank and said.
collect_said() {
  local line first=''
  while IFS= read -r line; do
    [[ $line =~ $TASK_SAID ]] || continue
    first=${first:-${BASH_REMATCH[0]}}
    if [[ ${BASH_REMATCH[0]} == "$first" ]] && ((${#said[@]} < 40)); then
      task=${BASH_REMATCH[1]} rank=${BASH_REMATCH[3]}
      said+=("  ${line#"$first"}")
    fi
  done
}
