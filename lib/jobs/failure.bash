# shellcheck shell=bash
# The rank that failed first. When one dies the others report that they lost it, each at length; the cause is in the
# output of the first.

# how srun reports the end of a task: node, task, reason
readonly longship_task_ended='^srun: error: ([^ :]+): tasks? ([0-9]+)[^:]*: (.*)$'

# the label of a task's lines, with the rank that torchrun adds
readonly longship_task_label='^ *([0-9]+): (\[rank ([0-9]+)\] ?)?'

# the first line that programs, runtimes and Slurm print when they fail
readonly longship_failure='(Traceback \(most recent|error: |FATAL: |ERROR: |[A-Za-z_.]*(Error|Exception): |Segmentation fault|slurmstepd: error|Fatal Python error)'

# failure_describe LOG RUN: print in a line who failed first, and under it the output of that rank.
failure_describe() {
  local LC_ALL=C # programs write any bytes
  local task='' rank='' first
  local -a output=() ended=()
  local -i from
  # a requeued job has tried before
  from=$(grep -a -b -F -x -e "longship: run $2" -- "$1" | tail -n 1 | cut -d : -f 1) || from=0
  failure_find_task < <(tail -c "+$((from + 1))" -- "$1" | grep -a -E -e "$longship_task_ended")
  # grep finds it in gigabytes; the lines of other tasks are between those of this one
  first=$(tail -c "+$((from + 1))" -- "$1" | grep -a -b -m 1 -E -e "$longship_task_label$longship_failure") || : # not found, or tail was stopped
  if [[ ${first#*:} =~ $longship_task_label ]]; then
    task=${BASH_REMATCH[1]} rank=${BASH_REMATCH[3]}
    from+=${first%%:*}
    failure_collect_output "${BASH_REMATCH[0]}" < <(tail -c "+$((from + 1))" -- "$1" | grep -a -F -e "${BASH_REMATCH[0]}")
  fi
  if [[ -z $task ]]; then return; fi
  printf '%s\n' "task $task failed first${rank:+, rank $rank}${ended[task]:+ ${ended[task]}}"
  if ((${#output[@]})); then failure_print_output; fi
}

# failure_find_task: set ended, by task, and task to the first that did not end because of another one.
failure_find_task() {
  local line
  while IFS= read -r line; do
    if [[ $line =~ $longship_task_ended ]]; then
      ended[BASH_REMATCH[2]]="on ${BASH_REMATCH[1]}: ${BASH_REMATCH[3]}"
      if [[ -z $task || ${ended[task]} == *': Terminated' ]]; then task=${BASH_REMATCH[2]}; fi
    fi
  done
}

# failure_collect_output LABEL: set output to the lines with that label, from the beginning of the failure.
failure_collect_output() {
  local line
  while ((${#output[@]} < 2000)) && IFS= read -r line; do
    if [[ $line =~ $longship_task_label && ${BASH_REMATCH[0]} == "$1" ]]; then output+=("${line#"$1"}"); fi
  done
}

# failure_print_output: print as much as fits a screen. A traceback can have hundreds of lines, of which the last one
# is the error: then the middle is left out.
failure_print_output() {
  local -i error
  failure_find_error
  if ((error < 35)); then
    printf '  %s\n' "${output[@]:0:40}"
  else
    printf '  %s\n' "${output[@]:0:8}" "... ($((error - 32)) lines)" "${output[@]:error-24:30}"
  fi
}

# failure_find_error: set error to the line at which the last traceback ends of those that belong together.
failure_find_error() {
  local -i at inside=0
  error=0
  for at in "${!output[@]}"; do
    case ${output[at]} in
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
