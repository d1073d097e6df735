# shellcheck shell=bash
# Workers: Python programs that a script starts for long work with data; see worker.py.

declare -g worker_process=''

# worker_run PYTHON WORKER ARGUMENT...: run a worker in a process group of its own. A signal to this
# script ends the group, and the worker reports the interruption, because it knows the step.
worker_run() {
  local interrupted=''
  trap 'interrupted=1' INT TERM HUP # until worker_stop knows whom to end
  at_exit worker_stop
  set -m
  (set +m && trap '' TTOU && exec "$@" "--resume=${interrupted_command:-}") &
  worker_process=$!
  set +m
  trap 'exit 130' INT TERM HUP
  if [[ -n $interrupted ]]; then exit 130; fi
  wait "$worker_process"
  worker_process=
  on_interrupt "${interrupted_command:-}"
}

# worker_stop: end the worker with all that it has started.
worker_stop() {
  if [[ -n $worker_process ]]; then
    kill -- "-$worker_process" 2>/dev/null || :
    wait "$worker_process" 2>/dev/null || :
  fi
}
