# shellcheck shell=bash disable=SC2154  # lib/shell/job.bash sets LAUNCHER and RUN_DIR
# JupyterLab on a compute node, for one's own browser: behind a token, and encrypted up to the node,
# where other users can listen. A job file sources this after start_job.

TASK_PREFIX=() # what a job of the site puts before the launcher; never the caller's environment

# serve_jupyter [OPTION...]: serve until the job ends; options are those of jupyter lab.
serve_jupyter() {
  local -r node=$SLURMD_NODENAME port=$MASTER_PORT
  make_certificate "$node"
  make_token
  # for whoever reads the log; the token is not in it
  printf '%s\n' '' "on your own machine:  ssh -N -L $port:$node:$port $USER@${SLURM_SUBMIT_HOST:-LOGIN_NODE}" \
    "in its browser:       https://localhost:$port/lab (it asks whether you trust the certificate)" \
    "its token:            cat ${RUN_DIR@Q}/jupyter.token" '' >&2
  srun --ntasks=1 ${CONTAINER_OPTIONS[@]+"${CONTAINER_OPTIONS[@]}"} ${TASK_PREFIX[@]+"${TASK_PREFIX[@]}"} "$LAUNCHER" \
    jupyter lab --no-browser --ip="$node" --port="$port" --port-retries=0 \
    --certfile="$RUN_DIR/jupyter.pem" --keyfile="$RUN_DIR/jupyter.key" \
    --ServerApp.root_dir="$LONGSHIP_ROOT" "$@"
}

# make_certificate NODE: for this job alone.
make_certificate() {
  local said
  said=$(umask 077 && openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=$1" \
    -addext "subjectAltName=DNS:localhost,DNS:$1" \
    -keyout "$RUN_DIR/jupyter.key" -out "$RUN_DIR/jupyter.pem" 2>&1) ||
    fail "openssl cannot create a certificate: ${said##*$'\n'}" 'ask your site for openssl 1.1.1 or newer'
}

# make_token: 48 hex digits, in the environment and in a file that nobody else can read.
make_token() {
  JUPYTER_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
  export JUPYTER_TOKEN
  (umask 077 && printf '%s\n' "$JUPYTER_TOKEN" >"$RUN_DIR/jupyter.token")
}
