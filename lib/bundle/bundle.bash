# shellcheck shell=bash
# The worker of bundles, a Python program: see worker.py.

# bundle_work COMMAND PROGRAM...: run the worker. A signal to this script ends it, and it reports the interruption,
# because it knows the step; COMMAND resumes.
bundle_work() {
  trap 'exit 130' INT TERM HUP
  "${@:2}" "--resume=$1" &
  # shellcheck disable=SC2064 # $! now
  trap "bundle_stop $!" EXIT
  wait $!
  trap lock_release_all EXIT
  on_interrupt "$1"
}

# bundle_stop PROCESS: end the worker, and give back what it needed.
bundle_stop() {
  kill "$1" 2>/dev/null || :
  wait "$1" 2>/dev/null || :
  lock_release_all
}
