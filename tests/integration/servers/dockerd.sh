#!/usr/bin/env bash
# A docker daemon for the tests, as root, beside any other one on this machine.
#
#   dockerd.sh start FOLDER GROUP   state under FOLDER; GROUP may use it; prints DOCKER_HOST's value
#   dockerd.sh stop FOLDER          ends it; FOLDER stays
#
# It makes no bridge and touches no firewall rules, so containers have the networks "none" and
# "host". FOLDER's path must be short: a socket's path ends at 107 characters.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# is_running PID-FILE: by the process's name too, as the id may belong to another one by now.
is_running() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]]
}

start() {
    local -r folder=$1 group=$2
    local -r host=unix://$folder/socket pid_file=$folder/pid
    local attempt
    mkdir -p -- "$folder"
    chmod 711 -- "$folder"
    if ! is_running "$pid_file"; then
        rm -f -- "$pid_file"
        # setsid: a Ctrl-C at the terminal is for the tests; the daemon is stopped by its pid.
        setsid dockerd --host "$host" --group "$group" --pidfile "$pid_file" \
            --data-root "$folder/data" --exec-root "$folder/run" \
            --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
            --exec-opt native.cgroupdriver=cgroupfs >"$folder/log" 2>&1 </dev/null &
    fi
    for ((attempt = 0; attempt < 600; attempt++)); do
        if docker --host "$host" version >/dev/null 2>&1; then
            printf '%s\n' "$host"
            return
        fi
        sleep 0.2
    done
    printf 'dockerd.sh: the daemon did not come up:\n' >&2
    tail -n 20 -- "$folder/log" >&2
    stop "$folder"
    return 1
}

stop() {
    local -r pid_file=$1/pid
    local pid attempt
    if is_running "$pid_file"; then
        pid=$(cat "$pid_file")
        kill "$pid"
        for ((attempt = 0; attempt < 100; attempt++)); do
            is_running "$pid_file" || break
            sleep 0.1
        done
        if is_running "$pid_file"; then kill -KILL "$pid"; fi
    fi
    # The network namespace of `--network host` stays mounted, and its folder could not be deleted.
    if mountpoint --quiet "$1/run/netns/default"; then umount "$1/run/netns/default"; fi
}

case "${1-} $#" in
    'start 3') start "$2" "$3" ;;
    'stop 2') stop "$2" ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
        exit 2
        ;;
esac
