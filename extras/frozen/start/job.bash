# shellcheck shell=bash
# What the job script of a job with frozen code sources in the place of lib/shell/job.bash.

# start_job MACHINE ARGUMENT...: unpack this clone on the node, and start the job with it. The start
# unpacks all code into the run directory, whose name it finds.
start_job() {
  local sum staged
  sum=$(sha256sum <"$LONGSHIP_FROZEN") ||
    code_fail "cannot read the code of this job: $LONGSHIP_FROZEN" 'submit the job again'
  [[ ${LONGSHIP_FROZEN##*/} == "code-${sum:0:12}.tar" ]] ||
    code_fail "the code of this job is damaged: $LONGSHIP_FROZEN" \
      "run: $(printf 'rm -f %q' "$LONGSHIP_FROZEN"); then submit the job again"
  # TMPDIR can be a directory of the login node
  staged=$(mktemp -d --tmpdir longship-code.XXXXXXXXXX 2>/dev/null || mktemp -d /tmp/longship-code.XXXXXXXXXX) ||
    code_fail "cannot write to /tmp on $HOSTNAME" 'see the line above'
  if ! tar --extract --force-local --file="$LONGSHIP_FROZEN" --directory="$staged" code/longship; then
    rm -rf -- "$staged"
    code_fail "cannot unpack the code of this job to $staged on $HOSTNAME" 'free some space there'
  fi
  ln -s -- "$LONGSHIP_CLONE/.venv" "$staged/code/longship/.venv"
  export LONGSHIP_ROOT=$staged/code/longship
  # shellcheck source=lib/shell/job.bash
  source "$LONGSHIP_ROOT/lib/shell/job.bash"
  LONGSHIP_STAGED=$staged start_job "$@"
}

# code_fail MESSAGE HINT: end the job; it runs no other code.
code_fail() {
  printf 'error: %s\nhint: %s\n' "$@" >&2
  exit 1
}
