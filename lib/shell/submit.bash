# shellcheck shell=bash disable=SC2154  # the emitted script sets options (of sbatch), job (file, arguments)
# Submitting a job: what Slurm would refuse is told before, and what it will cost.

# check_slurm MACHINE: stop where there is none.
check_slurm() {
  command -v sbatch >/dev/null ||
    fail 'there is no Slurm on this machine: no sbatch' \
      "submit on a login node of $1; without Slurm: python3 container_run.py COMMAND"
}

# check_python ROOT: stop where the job would not find a Python for the scripts: it calls python3, as
# PATH has it here.
check_python() {
  local said
  said=$(python3 "$1/submit.py" --help 2>&1 >/dev/null) && return
  said=${said%%$'\n'*}
  fail "the python3 that jobs call cannot run the scripts: ${said#error: }" \
    'python3 -m venv .venv && .venv/bin/pip install -r requirements/host.txt'
}

# check_given SETTING PATH [PATTERN...]: stop where nothing is there.
check_given() {
  local pattern
  if [[ -e $2 ]]; then return; fi
  for pattern in "${@:3}"; do
    if compgen -G "$pattern" >/dev/null; then return; fi
  done
  fail "$1 names what is not there: $2" \
    "make or copy it, or change $1 in configuration.toml; made by another job: --after JOB"
}

# check_cached SETTING NAME FOLDER...: warn where a job, which is offline, would not find what the hub
# has under that name.
check_cached() {
  local folder
  for folder in "${@:3}"; do
    if [[ -e $folder ]]; then return; fi
  done
  warn_of "$1 is $2, which is not in the cache of the hub, and jobs are offline" \
    'name it in [[assets]] of configuration.toml, then: python3 set_up.py install'
}

# keep_text FILE TEXT: write a file, complete or not at all.
keep_text() {
  make_folders "${1%/*}"
  { printf '%s' "$2" >"$1.partial.$$" && mv -- "$1.partial.$$" "$1"; } ||
    fail_writing "${1%/*}" "cannot write $1" 'see the line above'
}

# check_room FOLDER: warn where the job would soon be without room for its files.
check_room() {
  local free size
  read -r free size < <(stat -f -c '%a %S' -- "$1") || return 0
  if ((free * size < 10 << 30)); then
    human $((free * size))
    warn_of_room "$1 has only $REPLY left"
  fi
  if command -v lfs >/dev/null; then check_quota "$1"; fi
}

# check_quota FOLDER: the same of Lustre's quota, in kilobytes: used, quota, limit; 0 for none. They follow
# the folder, on the next line where its name is long. An asterisk marks what is over the quota,
# brackets what is not known exactly.
check_quota() {
  local -r numbers='[[:space:]]\[?([0-9]+)]?\*?[[:space:]]+([0-9]+)[[:space:]]+([0-9]+)[[:space:]]'
  local said used quota
  said=$(timeout 20 lfs quota -q -u "$(id -un)" -- "$1" 2>/dev/null) || return 0
  [[ ${said##*"$1"} =~ $numbers ]] || return 0
  used=${BASH_REMATCH[1]} quota=${BASH_REMATCH[2]}
  if ((quota == 0)); then quota=${BASH_REMATCH[3]}; fi
  ((quota > 0 && used * 100 > quota * 95)) || return 0
  if ((used >= quota)); then
    warn_of_room "your quota on $1 is used up"
  else
    human $(((quota - used) * 1024))
    warn_of_room "of your quota on $1 only $REPLY are left"
  fi
}

# warn_of_room MESSAGE
warn_of_room() {
  warn_of "$1" 'make room there, or set paths.scratch_dir in configuration.toml'
}

# try_job: let Slurm look at the job as if it were submitted.
try_job() {
  local said code=0
  said=$(timeout 60 sbatch --test-only "${options[@]}" "${job[@]}" 2>&1) || code=$?
  ((code)) || return 0
  if ((code == 124)) || [[ $said == *'ontact slurm controller'* || $said == *'imed out'* ]]; then
    fail "Slurm does not answer${said:+: $(slurm_reason "$said")}" 'try again later'
  fi
  if [[ $said == *artition* ]]; then
    fail "Slurm refuses the job: $(slurm_reason "$said")" \
      "partitions here: $(timeout 20 sinfo --noheader --format=%R | paste -sd ' ' | sed 's/ /, /g')"
  fi
  fail "Slurm refuses the job: $(slurm_reason "$said")" \
    'change the options behind the job file, or its #SBATCH lines'
}

# slurm_reason TEXT: what sbatch says last, without its own name.
slurm_reason() {
  local line reason='it does not say why'
  while IFS= read -r line; do
    if [[ $line == *error:* ]]; then reason=${line##*error: }; fi
    if [[ $line == *failure:* ]]; then reason=${line##*failure: }; fi
    if [[ $line == *fatal:* ]]; then reason=${line##*fatal: }; fi
  done <<<"$1"
  printf '%s' "$reason"
}

# ask_about_cost TEXT: a job that costs more than jobs.ask_above is submitted when somebody says yes.
ask_about_cost() {
  local answer
  [[ -t 0 ]] || fail "the job may cost $1, more than jobs.ask_above, and nobody is here to be asked" \
    'say it beforehand: --yes'
  read -r -p 'That is more than jobs.ask_above. Submit it? [y/N] ' answer || answer=
  [[ $answer == [yY]* ]] || fail 'not submitted' 'ask for fewer nodes or less time'
}

# submit_jobs COUNT LOG: submit it, and COUNT - 1 more that go on from each other; print the job ids and
# keep them in `ids`. LOG is the pattern of the log's path.
submit_jobs() {
  local -a after=()
  ids=()
  local id said
  local -i number
  for ((number = 0; number < $1; number++)); do
    said=$(sbatch --parsable "${options[@]}" "${after[@]}" "${job[@]}" 2>&1) || {
      if ((number)); then warn_of "only ${#ids[@]} of $1 jobs are submitted" "to take them back: scancel ${ids[*]}"; fi
      fail "Slurm refuses the job: $(slurm_reason "$said")" 'change its options'
    }
    id=${said##*$'\n'} # warnings stand before it
    id=${id%%;*}       # what follows is the cluster's name
    [[ $id =~ ^[0-9]+$ ]] || fail "sbatch says no job id, but: $said" 'squeue --me; try again'
    ids+=("$id")
    after=("--dependency=afterany:$id")
    export LONGSHIP_CHAINED_AFTER=$id
  done
  printf '%s\n' "${ids[@]}"
  tell_job "${2//'%j'/"${ids[0]}"}" "${ids[@]}"
}

# pin_again RUN: what a job that waits to be started again needs is not pruned meanwhile.
pin_again() {
  local needed id
  for needed in image overlay; do
    record_value "$1/record.json" "$needed"
    if [[ $REPLY != */versions/* ]]; then continue; fi # none, or the site's
    needed=$REPLY
    for id in "${ids[@]}"; do
      keep_text "$(pins_of "$needed")/$id-again" "$needed"$'\n'"$id"$'\n'"$1/launcher"$'\n'
    done
  done
}

# pins_of FILE: print the folder of the pins for a version: beside `versions`.
pins_of() {
  local -r versions=${1%/*}
  printf '%s/pins' "${versions%/versions}"
}

# tell_job LOG ID...: how to look after it.
tell_job() {
  local log=${1//'%A'/"$2"}
  if [[ $log == *%a* ]]; then
    printf 'log: %s, one for each task\n' "${log//'%a'/TASK}" >&2
  else
    printf 'log: %s\nfollow: tail -F %q\n' "$log" "$log" >&2
  fi
  printf 'cancel: scancel %s\nstatus: python3 submit.py status\n' "${*:2}" >&2
}
