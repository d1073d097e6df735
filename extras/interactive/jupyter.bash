# shellcheck shell=bash
# JupyterLab on a compute node for the user's browser, with a token and TLS, as other users of the
# node can listen. A job script sources this file after start_job, whose variables it reads.

TASK_PREFIX=() # a command of the site before the launcher; never from the caller's environment

# serve_jupyter [OPTION...]: serve until the job ends, with options of jupyter lab.
serve_jupyter() {
  local -r node=$SLURMD_NODENAME port=$MASTER_PORT
  mkdir -m 700 -- "$RUN_DIR/jupyter" || [[ -d $RUN_DIR/jupyter ]] # of a requeued job
  jupyter_make_certificate "$node"
  jupyter_make_token
  # for the log, which does not contain the token
  printf '%s\n' '' "on your own machine:  ssh -N -L $port:$node:$port $USER@${SLURM_SUBMIT_HOST:-LOGIN_NODE}" \
    "in its browser:       https://localhost:$port/lab (it asks whether you trust the certificate)" \
    "its token:            cat ${RUN_DIR@Q}/jupyter/token" '' >&2
  srun --ntasks=1 ${CONTAINER_OPTIONS[@]+"${CONTAINER_OPTIONS[@]}"} ${TASK_PREFIX[@]+"${TASK_PREFIX[@]}"} "$LAUNCHER" \
    jupyter lab --no-browser --ip="$node" --port="$port" --port-retries=0 \
    --certfile="$RUN_DIR/jupyter/pem" --keyfile="$RUN_DIR/jupyter/key" \
    --ServerApp.root_dir="${LONGSHIP_CLONE:-$LONGSHIP_ROOT}" "$@"
}

# jupyter_make_certificate NODE: for this job alone.
jupyter_make_certificate() {
  local output
  output=$(umask 077 && openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=$1" \
    -addext "subjectAltName=DNS:localhost,DNS:$1" \
    -keyout "$RUN_DIR/jupyter/key" -out "$RUN_DIR/jupyter/pem" 2>&1) ||
    fail "openssl cannot create a certificate: ${output##*$'\n'}" \
      'ask your site for openssl 1.1.1 or newer'
}

# jupyter_make_token: export JUPYTER_TOKEN, 48 hex digits, and write it to a file in a directory
# that nobody else can enter.
jupyter_make_token() {
  JUPYTER_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
  export JUPYTER_TOKEN
  file_write "$RUN_DIR/jupyter/token" "$JUPYTER_TOKEN"$'\n' 600
}
