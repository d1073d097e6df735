# shellcheck shell=bash
# shellcheck disable=SC2154 # folder, subnet and port are slurm.sh's
# What the cluster of slurm.sh is made of: its nodes, partitions and settings.

readonly NODES=(node1 node2 node3)
# The most that a job of a site asks of a node. The GPUs have a type, which the jobs of Roihu name.
readonly CORES_PER_SOCKET=144 GPUS=8

# The sites' partitions, by the longest time of a job; a day where it is not known.
readonly PARTITIONS='
00:15:00  gputest
02:00:00  develbooster dc-gpu-devel
03:00:00  dev-g
04:00:00  lrd_all_serial
20:00:00  prepost
12:00:00  normal gpuinteractive capella-interactive
24:00:00  booster dc-gpu dc-cpu dc-cpu-devel batch devel small large standard debug berzelius-cpu
24:00:00  boost_usr_prod gpu workq acc
36:00:00  gpumedium gpularge
2-00      standard-g
3-00      small-g berzelius
4-04      gpu_p6
5-00      gpu_h100 rome
7-00      accel capella
'
readonly DEFAULT_PARTITION=berzelius # where the job files name none

# address NODE
address() {
    printf '%s.%d\n' "$subnet" $((10 + ${1#node}))
}

# lonely_address NODE: of a network that connects nothing (set aside for documentation): only the
# node itself reaches it.
lonely_address() {
    printf '192.0.2.%d\n' $((10 + ${1#node}))
}

# write_hosts [lonely]: what the nodes know by name. JSC's nodes have a second name, with an i, on
# another network; with `lonely` only these names lead to a node, as where the network of the plain
# names is closed to jobs. What shall see it so mounts the file in place of /etc/hosts, see
# support/jobs.py.
write_hosts() {
    local node
    printf '127.0.0.1 localhost\n%s.1 %s login\n' "$subnet" "$(hostname -s)"
    for node in "${NODES[@]}"; do
        printf '%s %s\n' "$("${1:+lonely_}address" "$node")" "$node"
        printf '%s %si\n' "$(address "$node")" "$node"
    done
}

# write_partitions: the last two are for a job that is preempted, after half a minute of grace.
write_partitions() {
    local longest partition names
    while read -r longest names; do
        for partition in $names; do
            printf 'PartitionName=%s Nodes=ALL DefaultTime=00:30:00 MaxTime=%s Default=%s\n' \
                "$partition" "$longest" \
                "$([[ $partition == "$DEFAULT_PARTITION" ]] && echo YES || echo NO)"
        done
    done <<<"$PARTITIONS"
    printf 'PartitionName=preemptible Nodes=ALL DefaultTime=00:30:00 GraceTime=30\n'
    printf 'PartitionName=urgent Nodes=ALL DefaultTime=00:30:00 PriorityTier=2\n'
}

readonly FREEZER=/sys/fs/cgroup/freezer

# tracking: how Slurm knows the processes of a step. With cgroups, as sites have it, a signal
# reaches the first process of each task; without the freezer of their first version it reaches all,
# the servers of Apptainer's mounts too, which end.
tracking() {
    if [[ -d $FREEZER ]]; then printf cgroup; else printf linuxproc; fi
}

# write_configuration: no other cgroups, which a container may not make; so nothing binds to cores,
# and memory is asked for but not counted. cred_expire is how long a requeued job waits, by default
# 2 minutes. The machine can be busy, or stand still: Slurm must not give up on a job for that.
write_configuration() {
    local node
    cat <<EOF
ClusterName=longship
SlurmctldHost=$(hostname -s)($subnet.1)
SlurmctldPort=$port
SlurmdPort=$port
SlurmUser=root
AuthInfo=socket=$folder/munge/socket,cred_expire=10
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd-%n
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/log/jobs
ProctrackType=proctrack/$(tracking)
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
EnforcePartLimits=ALL
JobRequeue=1
BatchStartTimeout=120
MessageTimeout=30
KillWait=30
MinJobAge=3600
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MpiDefault=none
MailProg=/bin/true
EOF
    for node in "${NODES[@]}"; do
        printf 'NodeName=%s NodeAddr=%s Sockets=2 CoresPerSocket=%d ThreadsPerCore=1 ' \
            "$node" "$(address "$node")" "$CORES_PER_SOCKET"
        printf 'RealMemory=768000 Gres=gpu:gh200:%d Features=thin,fat,h100\n' "$GPUS"
    done
    write_partitions
}
