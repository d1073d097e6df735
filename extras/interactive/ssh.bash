# shellcheck shell=bash
# An SSH server of the user's own on a compute node, for editors (VS Code, Cursor, JetBrains), ssh
# and scp. A job script sources this file after start_job, whose variables it reads. sshd is the
# node's, as few images have one; its sessions are inside the environment (inside/ssh_sessions.py).

TASK_PREFIX=() # a command of the site before the launcher; never from the caller's environment

# serve_ssh MACHINE: accept connections with a key of this job until the job ends.
serve_ssh() {
  # MASTER_PORT is for what runs in a session
  local -r name=longship-$1 port=$((10000 + SLURM_JOB_ID % 10000))
  local -r login=$USER@${SLURM_SUBMIT_HOST:-LOGIN_NODE} sessions=$LONGSHIP_ROOT/extras/interactive/inside/ssh_sessions.py
  local python served sshd socket
  sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin && type -P sshd) ||
    fail "sshd not found on $SLURMD_NODENAME" \
      'ask your site for openssh-server on compute nodes; or use JupyterLab, with the jupyter job script of the site'
  # that of code_record.bash is new enough; the node's can be 3.6
  python=${longship_python:-$(type -P python3)}
  socket=longship-$SLURM_JOB_ID-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
  (umask 077 && ssh_make_keys "$name" && ssh_configure_client "$name" "$port" "$login" &&
    ssh_configure_server "$port" "exec ${python@Q} ${sessions@Q} connect $socket") ||
    fail "cannot prepare the SSH server in $RUN_DIR" 'check the reason in the line above'
  printf '%s\n' '' "on your own machine:    scp -r $login:${RUN_DIR@Q}/$name ~/.ssh/" \
    'in its ~/.ssh/config:   Include longship-*/config (once, as the first line)' \
    "in its editor or shell: ssh $name" '' "$(<"$RUN_DIR/$name/config")" '' >&2
  srun --ntasks=1 ${CONTAINER_OPTIONS[@]+"${CONTAINER_OPTIONS[@]}"} ${TASK_PREFIX[@]+"${TASK_PREFIX[@]}"} "$LAUNCHER" \
    python3 "$sessions" serve "$socket" &
  served=$!
  ("$sshd" -D -e -f "$RUN_DIR/ssh/config" || kill "$served") & # if it cannot listen
  wait "$served"
}

# ssh_make_keys NAME: make the key of the server and that of the user, for this job alone.
ssh_make_keys() {
  rm -rf -- "$RUN_DIR/ssh" "${RUN_DIR:?}/$1" # of a requeued job
  mkdir -m 700 -- "$RUN_DIR/ssh" "$RUN_DIR/$1" || return
  ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$RUN_DIR/ssh/host_key" &&
    ssh-keygen -q -t ed25519 -N '' -C "$1, job $SLURM_JOB_ID" -f "$RUN_DIR/$1/key" &&
    chmod 600 -- "$RUN_DIR/ssh/host_key" "$RUN_DIR/$1/key" && # below a default ACL ssh would refuse them
    mv -- "$RUN_DIR/$1/key.pub" "$RUN_DIR/ssh/accepted_keys"
}

# ssh_configure_server PORT SESSION: an ordinary user cannot use PAM, and the directories above the
# project's can be a group's. The python3 of a module needs its libraries.
ssh_configure_server() {
  printf '%s\n' "Port $1" "HostKey \"$RUN_DIR/ssh/host_key\"" "AuthorizedKeysFile \"$RUN_DIR/ssh/accepted_keys\"" \
    "AllowUsers $USER" 'AuthenticationMethods publickey' 'UsePAM no' 'StrictModes no' 'PidFile none' \
    'Subsystem sftp internal-sftp' 'ClientAliveInterval 60' "ForceCommand $2" \
    ${LD_LIBRARY_PATH:+"SetEnv \"LD_LIBRARY_PATH=$LD_LIBRARY_PATH\""} >"$RUN_DIR/ssh/config"
}

# ssh_configure_client NAME PORT LOGIN
ssh_configure_client() {
  local key
  key=$(<"$RUN_DIR/ssh/host_key.pub")
  printf '%s\n' "$1 $key" >"$RUN_DIR/$1/known_hosts" &&
    printf '%s\n' "Host $1" "    HostName $SLURMD_NODENAME" "    Port $2" "    User $USER" "    ProxyJump $3" \
      "    IdentityFile ~/.ssh/$1/key" '    IdentitiesOnly yes' "    HostKeyAlias $1" \
      "    UserKnownHostsFile ~/.ssh/$1/known_hosts" '    StrictHostKeyChecking yes' >"$RUN_DIR/$1/config"
}
