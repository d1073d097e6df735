# shellcheck shell=bash
# What a run uses: its GPUs, or cores and memory without GPUs. The first rank of a node starts
# <run>/sampler, a process on the host that ends with the rank. It appends a line for each device
# and sample to <run>/usage/NODE.csv; the totals are those since the run began, so that the last
# line of each device is enough. What is not measured is empty, never 0.
#
#   time                  seconds since 1970
#   device                index of the GPU; `cpu`: the processes of the job step
#   program               the program that measured
#   utilisation           percent; of `cpu`: of one core
#   memory                MiB
#   power                 W
#   temperature           degrees Celsius
#   throttling            as the program reports it: `UNTHROTTLED`, `THROTTLED`, or NVIDIA's bits
#   seconds               total: time in which the utilisation was measured
#   utilisation_seconds   total: the integral of the utilisation over that time
#   peak_memory           total: MiB
#   energy                total: J
#   throttled_seconds     total: time in which power or temperature reduced the clock

declare -g usage_heading='time,device,program,utilisation,memory,power,temperature,throttling,seconds,utilisation_seconds,peak_memory,energy,throttled_seconds'

# the totals, such as `0 energy`, and time and energy counter of the last sample
declare -gA usage_totals=() usage_last=()

# the command of nvidia-smi
declare -ga usage_query=()

# usage_start RUNTIME: as the first rank of a node, start the sampler, without a stream of the rank:
# Slurm waits for their end. Where the rank's process stays that of the runtime, the sampler is its
# child and ends with it, see usage_bind; elsewhere it becomes the program, which must not have a
# child that it has not started. The batch script is no rank, and has no variables with STEP.
usage_start() {
  if [[ -n ${SLURM_STEP_NUM_TASKS:-} && $SLURM_LOCALID == 0 && -f ${RUN_DIR:-}/sampler ]]; then
    case $1 in
      host | enroot) (exec bash "$RUN_DIR/sampler" "$$" "$PPID" </dev/null >/dev/null 2>&1 &) ;;
      *) bash "$RUN_DIR/sampler" "$$" "$PPID" </dev/null >/dev/null 2>&1 & ;;
    esac
  fi
}

# usage_bind RANK STEP [bound]: start again as a process that the kernel ends with its parent, the
# rank (util-linux 2.33). At the end of a step Slurm ends the processes that are left, and if there
# is one, it waits for a second. For the same reason the sampler is one process between two samples,
# and its first one comes after two seconds. Apptainer is written in Go and starts its second
# program from any thread, which the kernel takes for the end of the parent: wait for that.
usage_bind() {
  local program=
  if [[ ${3:-} == bound || $PPID != "$1" ]] || ! setpriv --pdeathsig KILL true; then return; fi
  while read -r program <"/proc/$1/comm" && [[ $program == @(bash|apptainer|singularity) ]]; do usage_sleep 0.02; done
  exec setpriv --pdeathsig KILL bash "$0" "$@" bound
}

# usage_make FILE: create it, so that nobody else can write to it, unless another step of this job
# has.
usage_make() {
  if [[ -e $1 ]]; then return; fi
  file_begin "$1.$$"
  ln -- "$REPLY" "$1" 2>/dev/null || :
  rm -f -- "$REPLY"
}

# usage_sample SECONDS PROCESSES RANK STEP [bound]: measure this node until process RANK ends, with
# the first program that works. STEP is its parent, which has started all ranks of the node;
# PROCESSES is no where they are not its children: docker.
usage_sample() {
  local LC_ALL=C
  exec {usage_idle}<> <(:) # nothing is ever written to it
  usage_bind "${@:3}"
  usage_sleep 2
  mkdir -m 755 -- "$RUN_DIR/usage" 2>/dev/null || [[ -d $RUN_DIR/usage ]]
  usage_make "$RUN_DIR/usage/${SLURMD_NODENAME:-$(uname -n)}.csv"
  exec {usage_file}>>"$RUN_DIR/usage/${SLURMD_NODENAME:-$(uname -n)}.csv"
  until flock --nonblock "$usage_file" || (($? != 1)); do # another step of this job measures
    kill -0 "$3" || return 0
    usage_sleep 2
  done
  usage_continue "$RUN_DIR/usage/${SLURMD_NODENAME:-$(uname -n)}.csv"
  usage_repeat "$3" "$1" dcgmi usage_read_dcgmi
  usage_repeat "$3" "$1" nvidia-smi usage_read_nvidia_smi
  usage_repeat "$3" "$1" amd-smi usage_read_table \
    amd-smi metric --usage --power --temperature --mem-usage --energy --csv
  usage_repeat "$3" "$1" rocm-smi usage_read_table \
    rocm-smi --showuse --showpower --showtemp --showmeminfo vram --showenergycounter --csv
  if [[ $2 != no ]]; then usage_repeat "$3" "$1" proc usage_read_processes "$4"; fi
}

# usage_sleep SECONDS: without a process, which could outlive this one.
usage_sleep() {
  read -r -t "$1" -u "$usage_idle" || :
}

# usage_continue FILE: begin the file, or continue its totals: of an earlier step, or of a requeued
# job.
usage_continue() {
  local line name
  local -a names row
  if [[ ! -s $1 ]]; then printf '%s\n' "$usage_heading" >&"$usage_file"; fi
  # a sampler was killed amid a line
  if [[ -n $(tail -c 1 -- "$1") ]]; then printf '\n' >&"$usage_file"; fi
  IFS=, read -r -a names <<<"$usage_heading"
  while IFS= read -r line; do
    IFS=, read -r -a row <<<"$line,end"
    if ((${#row[@]} != ${#names[@]} + 1)) || [[ ${row[*]:8:5} != +([0-9 ]) ]]; then continue; fi
    for name in 8 9 10 11 12; do usage_totals[${row[1]} ${names[name]}]=${row[name]}; done
  done < <(tail -n 64 -- "$1")
}

# usage_repeat RANK SECONDS PROGRAM COMMAND...: record what a command prints, again and again until
# it fails or the rank ends: a line for each device, with index, utilisation, memory, power, energy
# counter in mJ, temperature and throttling. It runs so rarely that it takes 0.4 % of a core, not
# counting the start: AMD's programs start a Python each time. Fields 14 to 17 of stat are the time
# of this process and its children, in hundredths of a second.
usage_repeat() {
  local stat line
  local -a fields
  local -i pause used before=-1
  while kill -0 "$1" && "${@:4}"; do
    while IFS= read -r line; do usage_record "$3" "$line"; done <<<"$REPLY"
    read -r stat </proc/self/stat
    read -r -a fields <<<"${stat##*) }"
    used=$((fields[11] + fields[12] + fields[13] + fields[14]))
    pause=$((before < 0 ? 0 : (used - before) * 250 / 100))
    before=$used
    if ((pause < $2)); then pause=$2; fi
    while ((pause-- > 0)) && kill -0 "$1"; do usage_sleep 1; done
  done
}

# usage_record PROGRAM LINE: append a sample, with the totals of its device.
usage_record() {
  local device i line
  local -a row
  if [[ $2 == 'GPU '* ]]; then read -r -a row <<<"${2#GPU}"; else IFS=, read -r -a row <<<"${2//[[:space:]]/}"; fi
  device=${row[0]:-}
  if [[ $device != cpu && $device != +([0-9]) ]]; then return 0; fi # a heading
  for i in 1 2 3 4 5; do
    if [[ ${row[i]:-} =~ ^[0-9]+([.][0-9]+)?$ ]]; then printf -v row[i] '%.0f' "${row[i]}"; else row[i]=; fi
  done
  if [[ ! ${row[6]:-} =~ ^(0x[0-9A-Fa-f]+|[0-9]+|(UN)?THROTTLED)$ ]]; then row[6]=; fi
  printf -v row[0] '%(%s)T' -1
  usage_add "$device" "${row[@]:0:7}"
  printf -v line '%s,' "${row[0]}" "$device" "$1" "${row[@]:1:3}" "${row[@]:5:2}" "${usage_totals[$device seconds]:-0}"
  for i in utilisation_seconds peak_memory energy; do line+=${usage_totals[$device $i]:-},; done
  printf '%s\n' "$line${usage_totals[$device throttled_seconds]:-}" >&"$usage_file"
}

# usage_add DEVICE TIME UTILISATION MEMORY POWER ENERGY_COUNTER TEMPERATURE THROTTLING: add a sample
# to the totals of its device. NVIDIA's bits 0xec are limits of power or temperature; the others
# slow nothing down.
usage_add() {
  local -r seconds=$(($2 - ${usage_last[$1 time]:-$2})) before=${usage_last[$1 counter]:-}
  usage_last[$1 time]=$2 usage_last[$1 counter]=$6
  if ((${4:-0} > ${usage_totals[$1 peak_memory]:--1})); then usage_totals[$1 peak_memory]=$4; fi
  if ((seconds == 0)); then return; fi
  if [[ -n $6 && -n $before ]] && (($6 >= before)); then
    usage_increase "$1 energy" "$((($6 - before) / 1000))"
  elif [[ -n $5 ]]; then
    usage_increase "$1 energy" "$(($5 * seconds))"
  fi
  if [[ -z $3 ]]; then return; fi
  usage_increase "$1 seconds" "$seconds"
  usage_increase "$1 utilisation_seconds" "$(($3 * seconds))"
  case $8 in
    '') ;;
    *THROTTLED) usage_increase "$1 throttled_seconds" "$([[ $8 == UN* ]] && echo 0 || echo "$seconds")" ;;
    *) usage_increase "$1 throttled_seconds" "$((($8 & 0xec) ? seconds : 0))" ;;
  esac
}

# usage_increase TOTAL AMOUNT
usage_increase() {
  usage_totals[$1]=$((${usage_totals[$1]:-0} + $2))
}

# usage_read_dcgmi: set REPLY to a sample; where NVIDIA's daemon runs, it measures anyway. Its
# profiling fields would take the counters from Nsight.
usage_read_dcgmi() {
  local found
  found=$(dcgmi discovery --list) || return
  found=${found%% GPU*}
  usage_choose_gpus "${found//[!0-9]/}"
  REPLY=$(dcgmi dmon -e 203,252,155,156,150,112 --count 1 ${REPLY:+-i "$REPLY"})
}

# usage_read_nvidia_smi: set REPLY to a sample; the driver decides which fields exist, which is
# asked once; gpu_name, no number, replaces a missing one.
usage_read_nvidia_smi() {
  local found known name query=index
  if ((${#usage_query[@]} == 0)); then
    found=$(nvidia-smi --list-gpus) && known=$(nvidia-smi --help-query-gpu) || return
    for name in utilization.gpu memory.used power.draw total_energy_consumption temperature.gpu clocks_event_reasons.active; do
      if [[ $known != *"\"$name\""* ]]; then name=${name/clocks_event/clocks_throttle}; fi
      if [[ $known != *"\"$name\""* ]]; then name=gpu_name; fi
      query+=,$name
    done
    usage_choose_gpus "$(grep -c '^GPU ' <<<"$found")"
    usage_query=(nvidia-smi --query-gpu="$query" "--format=csv,noheader,nounits" ${REPLY:+--id="$REPLY"})
  fi
  REPLY=$("${usage_query[@]}")
}

# usage_choose_gpus VISIBLE: set REPLY to the GPUs of this job, if a node without cgroups shows
# those of others too.
usage_choose_gpus() {
  REPLY=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}
  local -r commas=${REPLY//[!,]/}
  if (($1 <= ${#commas} + 1)); then REPLY=; fi
}

# usage_read_table COMMAND...: set REPLY to a sample from a table whose columns differ between
# versions. The second die of an MI250X has no power of its own: its energy is in that of the first.
usage_read_table() {
  local table
  table=$("$@") || return
  usage_choose_gpus "$(grep -c -E '^(card)?[0-9]+,' <<<"$table")"
  REPLY=$(awk -F , -v gpus=",$REPLY," '
    function number(column, factor) {
      return column && $column ~ /^[0-9]+([.][0-9]+)?$/ ? sprintf("%.3f", $column * factor) : ""
    }
    { gsub(/"[^"]*"/, ""); sub(/\r$/, "") }
    /^(device|gpu),/ { for (i = 2; i <= NF; i++) {
      if ($i ~ /^(GPU use \(%\)|gfx_activity)$/) use = i
      if ($i ~ /^(VRAM Total Used Memory \(B\)|used_vram)$/) { memory = i; mib = $i ~ /B/ ? 1 / 1048576 : 1 }
      if ($i ~ /(Package Power \(W\)|^socket_power)$/) power = i
      if ($i ~ /^(Accumulated Energy \(uJ\)|total_energy_consumption)$/) { energy = i; mj = $i ~ /uJ/ ? 0.001 : 1000 }
      if ($i ~ /(junction\) \(C\)|^hotspot)$/) heat = i
      if ($i == "throttle_status") throttling = i
    } }
    /^(card)?[0-9]+,/ {
      sub(/^card/, "")
      watts = number(power, 1)
      if (gpus == ",," || index(gpus, "," $1 ","))
        print $1 "," number(use, 1) "," number(memory, mib) "," watts "," (watts > 0 ? number(energy, mj) : "") "," \
          number(heat, 1) "," (throttling ? $throttling : "")
    }' <<<"$table")
}

# usage_read_processes STEP: set REPLY to the load and memory of all processes that a process has
# started, with their ended children. Memory is counted in pages, times in hundredths of a second,
# which ps would round to seconds. A process can end while it is read.
usage_read_processes() {
  local found page pages used now load=''
  found=$({ cat /proc/uptime /proc/[0-9]*/stat 2>/dev/null || :; } | awk -v step="$1" -v own="$$" '
    NR == 1 { now = $1 * 100; next }
    {
      id = $1
      sub(/^.*\) /, "")
      parent[id] = $2; time[id] = $12 + $13 + $14 + $15; memory[id] = $22
    }
    END {
      for (id in parent) {
        for (up = id; up in parent && up != step && up != own; up = parent[up]);
        if (up == step && id != step) { pages += memory[id]; used += time[id] }
      }
      printf "%.0f %.0f %.0f\n", now, pages, used
    }') && page=$(getconf PAGESIZE) || return
  read -r now pages used <<<"$found"
  local -r before=${usage_last[used]:-$used} then=${usage_last[at]:-$now}
  if ((used >= before && now > then)); then load=$(((used - before) * 100 / (now - then))); fi
  usage_last[used]=$used usage_last[at]=$now
  REPLY=cpu,$load,$((pages * page / 1048576))
}

# usage_end: add what the run has used to its record; a slow file system does not delay the end for
# long.
usage_end() {
  local -a used
  mapfile -d '' -t used < <(timeout 20 python3 "$LONGSHIP_ROOT/submit.py" end "$RUN_DIR" 2>/dev/null)
  longship_facts+=("${used[@]}")
}
