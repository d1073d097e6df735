#!/usr/bin/env bash
# A Slurm cluster for the tests, as root, beside any other one on this machine: a controller in the
# machine's own network, which is the login node, and three compute nodes.
#
#   slurm.sh start FOLDER   state under FOLDER; any user may submit; prints SLURM_CONF's value
#   slurm.sh stop FOLDER    ends the jobs and the cluster; FOLDER stays
#
# A node is a network, host-name and mount namespace of its own. Its only way out is a switch that
# connects the nodes and the login node: no route, no name server. Names of namespaces, of the one
# interface on the machine, its port and addresses come from a checksum of FOLDER, so that clusters
# in several folders run side by side. FOLDER's path must be short: a socket's path ends at 107
# characters.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# shellcheck source=tests/integration/servers/slurm_configuration.bash
. "$(dirname -- "${BASH_SOURCE[0]}")/slurm_configuration.bash"

# use_folder FOLDER: what is derived from it.
use_folder() {
    folder=$(realpath --canonicalize-missing -- "$1")
    export SLURM_CONF=$folder/slurm.conf
    local checksum
    checksum=$(cksum <<<"$folder" | cut -d' ' -f1)
    name=$(printf 'lgs%08x' "$checksum")
    # 198.18.0.0/15 is set aside for tests of networks: no site's and no cloud's own addresses.
    subnet=198.$((18 + checksum % 2)).$((checksum / 2 % 256))
    # The controller listens at all addresses: below the ports that the kernel gives out, and below
    # those at which the ranks of a job meet.
    port=$((10000 + checksum % 10000))
    readonly folder name subnet port
}

# is_running PROGRAM: by the process's name too, as the id may belong to another one by now. One
# that ended stays in the table (Z) where nobody waits for it, as in many containers.
# PROGRAM is the name of its pid file: munged, slurmctld, slurmd-NODE.
is_running() {
    local pid comm state
    pid=$(cat "$folder/run/$1.pid" 2>/dev/null) &&
        read -r pid comm state _ 2>/dev/null <"/proc/$pid/stat" &&
        [[ $comm == "(${1%%-*})" && $state != [ZX] ]]
}

programs() {
    printf '%s\n' slurmctld "${NODES[@]/#/slurmd-}" munged
}

# is_complete: every daemon runs, and every node waits for jobs or works.
is_complete() {
    local program
    for program in $(programs); do
        is_running "$program" || return 1
    done
    (($(timeout 5 sinfo --noheader --Node --responding --partition "$DEFAULT_PARTITION" \
        --states idle,alloc,mix,comp,resv 2>/dev/null | wc -l) == ${#NODES[@]}))
}

# directory_make: everything is read by those who submit, but the key.
directory_make() {
    local number
    umask 022
    mkdir -p -- "$folder"/{dev,log,munge,run,state} "${NODES[@]/#/$folder/spool-}"
    chmod a+rx -- "$folder"
    # Without File= of a device a job gets no CUDA_VISIBLE_DEVICES. These are like /dev/null.
    for ((number = 0; number < GPUS; number++)); do
        [[ -c $folder/dev/gpu$number ]] || mknod -- "$folder/dev/gpu$number" c 1 3
    done
    [[ -s $folder/munge/key ]] || (umask 077 && head -c 128 /dev/urandom >"$folder/munge/key")
    write_hosts >"$folder/hosts"
    write_hosts lonely >"$folder/hosts-lonely"
    write_configuration >"$SLURM_CONF"
    printf 'AutoDetect=off\nName=gpu Type=gh200 File=%s\n' "$folder/dev/gpu[0-$((GPUS - 1))]" \
        >"$folder/gres.conf"
    # No cgroup is made; this keeps Slurm from looking for the version that the machine has.
    printf 'CgroupPlugin=cgroup/v1\n' >"$folder/cgroup.conf"
}

# make_network: the switch has a namespace too, out of reach of the machine's firewall rules.
make_network() {
    local node
    ip netns add "$name-switch"
    ip -n "$name-switch" link add switch up type bridge
    ip link add "$name" type veth peer name login netns "$name-switch"
    ip -n "$name-switch" link set login master switch up
    ip address add "$subnet.1/24" dev "$name"
    ip link set "$name" up
    for node in "${NODES[@]}"; do
        ip netns add "$name-$node"
        # JSC's name: its jobs tell Gloo and NCCL to use ib0.
        ip -n "$name-$node" link add ib0 type veth peer name "$node" netns "$name-switch"
        ip -n "$name-switch" link set "$node" master switch up
        ip -n "$name-$node" link set lo up
        ip -n "$name-$node" address add "$(address "$node")/24" dev ib0
        ip -n "$name-$node" address add "$(lonely_address "$node")/32" dev lo
        ip -n "$name-$node" link set ib0 up
    done
}

# become_node NODE: in namespaces made for it; /dev/shm stands for its local disk. Its cgroups are
# its own, as Slurm names them after node and job, which another cluster has too.
become_node() {
    hostname "$1"
    if [[ -d $FREEZER ]]; then
        mkdir -p -- "$FREEZER/$name-$1"
        mount --bind -- "$FREEZER/$name-$1" "$FREEZER"
    fi
    mount --bind "$folder/hosts" /etc/hosts
    mount -t tmpfs -o mode=1777 longship-tests /dev/shm
    # sshd needs terminals of the group tty, as real machines have them
    mount -t devpts -o gid=tty,mode=620,ptmxmode=666 longship-tests /dev/pts
    exec slurmd -N "$1"
}

start_daemons() {
    local node
    # --force: whoever may write to the folders above FOLDER is trusted.
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
        --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged" \
        --seed-file="$folder/munge/seed"
    # -c: jobs of an earlier cluster that was killed do not come back.
    slurmctld -c
    for node in "${NODES[@]}"; do
        # slave: what is mounted or unmounted on the machine later is so on the node too, but what
        # is mounted on the node stays there.
        nsenter --net="/run/netns/$name-$node" \
            unshare --uts --mount --propagation slave -- "$0" node "$folder" "$node"
    done
}

start() {
    local -r deadline=$((SECONDS + 120))
    if ! is_complete; then
        stop
        if ip -4 route show | grep -qF "$subnet."; then
            printf 'slurm.sh: %s.0/24 is in use already: take another FOLDER\n' "$subnet" >&2
            return 1
        fi
        directory_make
        make_network
        start_daemons </dev/null >"$folder/log/start" 2>&1 || true
    fi
    while ((SECONDS < deadline)); do
        if is_complete; then
            # `sacct -c` opens it for writing too.
            chmod 666 -- "$folder/log/jobs"
            printf '%s\n' "$SLURM_CONF"
            return
        fi
        sleep 0.2
    done
    printf 'slurm.sh: the cluster did not come up:\n' >&2
    tail -n 20 -- "$folder"/log/* >&2
    stop
    return 1
}

# end_jobs: first of all, as they outlive the daemons.
end_jobs() {
    local attempt
    local -a jobs=()
    for ((attempt = 0; attempt < 50; attempt++)); do
        mapfile -t jobs < <(timeout 5 squeue --noheader --format %A 2>/dev/null | sort -u)
        ((${#jobs[@]} > 0)) || return 0
        ((attempt % 10)) || timeout 5 scancel "${jobs[@]}" 2>/dev/null || true
        sleep 0.2
    done
}

# end_daemon PROGRAM
end_daemon() {
    local pid attempt
    is_running "$1" || return 0
    pid=$(cat "$folder/run/$1.pid")
    kill "$pid"
    for ((attempt = 0; attempt < 100; attempt++)); do
        is_running "$1" || return 0
        sleep 0.1
    done
    kill -KILL "$pid"
}

# delete_namespace NAME: with whatever still runs in it, when a daemon was killed.
delete_namespace() {
    local attempt
    local -a pids=()
    [[ -e /run/netns/$1 ]] || return 0
    for ((attempt = 0; attempt < 50; attempt++)); do
        mapfile -t pids < <(ip netns pids "$1")
        ((${#pids[@]} > 0)) || break
        kill -KILL "${pids[@]}" 2>/dev/null || true
        sleep 0.1
    done
    ip netns delete "$1"
}

# delete_cgroups NODE: they are folders whose files are not deleted.
delete_cgroups() {
    if [[ -d $FREEZER/$name-$1 ]]; then
        find "$FREEZER/$name-$1" -depth -type d -exec rmdir -- {} + 2>/dev/null || true
    fi
}

stop() {
    local program node
    if is_running slurmctld; then end_jobs; fi
    for program in $(programs); do
        end_daemon "$program"
    done
    for node in "${NODES[@]}" switch; do
        delete_namespace "$name-$node"
        delete_cgroups "$node"
    done
    # Its other end is in the switch's namespace, which the kernel takes down a moment later.
    if ip link show "$name" >/dev/null 2>&1; then ip link delete "$name" 2>/dev/null || true; fi
}

case "${1-} $#" in
    'start 2') use_folder "$2"; start ;;
    'stop 2') use_folder "$2"; stop ;;
    'node 3') use_folder "$2"; become_node "$3" ;; # how `start` calls it in a node's namespaces
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
        exit 2
        ;;
esac
