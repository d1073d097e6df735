# shellcheck shell=bash
# The code of a job, frozen at its submission, in <scratch_dir>/runs/code, which only the user can
# enter:
#
#   code-ID.tar   the files of this clone and of the external repositories; ID is its checksum
#   start-ID/     what the job script sources: it unpacks the archive that LONGSHIP_FROZEN names

# code_freeze STORE START CLONE PYTHON WORKER SCRATCH [NAME DIR]...: let a job run the code of CLONE
# as it is now; its script sources START.
code_freeze() {
  local -r partial=$1/.partial.$HOSTNAME.$BASHPID
  local sum
  code_begin "${@:1:3}"
  sum=$(exec "$4" -X utf8 "$5" freeze "$partial" "${@:6}") || { rm -f -- "$partial"; exit 1; }
  code_keep "$1/code-${sum:0:12}.tar" mv -f -T -- "$partial"
  if [[ -e $partial ]]; then rm -f -- "$partial"; fi
  code_prune "$1"
}

# code_again STORE START CLONE RUN: let a job run the code of a run again, whose archive is in the
# run or still in STORE.
code_again() {
  local archive sum=''
  code_begin "${@:1:3}"
  record_value "$4/record.json" code
  archive=$4/${REPLY##*/}
  [[ -n $REPLY ]] ||
    fail "the code of ${4##*/} was not kept: it ran from the clone" \
      'to run the current code, add: --live'
  if [[ ! -e $archive ]]; then archive=$1/${REPLY##*/}; fi
  if is_own "$archive"; then sum=$(sha256sum <"$archive"); fi
  [[ ${archive##*/} == "code-${sum:0:12}.tar" ]] ||
    fail "the code of ${4##*/} has been removed or changed: $archive" \
      'to run the current code, add: --live'
  touch -- "$archive"
  code_keep "$1/${archive##*/}" ln -T -- "$archive"
}

# code_keep ARCHIVE COMMAND...: give an archive the time at which a job needed it, or make it with
# the command.
code_keep() {
  touch -c -- "$1" # first: code_prune looks at it
  if [[ ! -e $1 ]] && ! "${@:2}" "$1"; then
    fail_writing "${1%/*}" "cannot write $1" 'see the line above'
  fi
  export LONGSHIP_FROZEN=$1
  print_messages code "frozen in $1; later changes do not reach this job"
}

# code_begin STORE START CLONE: let the job script source START in the place of lib/shell/job.bash.
code_begin() {
  local sum
  directory_make "$1"
  directory_check_own "$1"
  sum=$(sha256sum <"$2")
  export LONGSHIP_ROOT=$1/start-${sum:0:12}
  submission_keep LONGSHIP_START "$LONGSHIP_ROOT/lib/shell/job.bash" "$(<"$2")"$'\n'
  export LONGSHIP_CLONE=$3
}

# code_prune STORE: delete archives that no submission has used for a month, unless a job in the
# queue may name one: it is older, or Slurm has put it into the queue again, with a new time. A
# submission that takes one meanwhile sets its time first, and finds it again, or makes it.
code_prune() {
  local -a old
  local each jobs first
  mapfile -d '' -t old < <(find "$1" -maxdepth 1 -type f -mtime +30 -print0)
  if ((${#old[@]} == 0)); then return; fi
  first=$(date -d '29 days ago' +%FT%T) # clocks differ
  jobs=$(timeout 20 squeue --me --noheader --Format=SubmitTime:30,RestartCnt:12 |
    awk -v first="$first" '$1 !~ /^2/ || $1 <= first || $2 != 0') || return 0
  if [[ -n $jobs ]]; then return; fi
  for each in "${old[@]}"; do
    mv -f -T -- "$each" "$each.unused" || continue
    find "$each.unused" -mtime +30 -delete
    if [[ -e $each.unused ]]; then mv -f -T -- "$each.unused" "$each"; fi
  done
}

# code_live CLONE: let a job run from the clone.
code_live() {
  unset LONGSHIP_CLONE LONGSHIP_FROZEN
  export LONGSHIP_ROOT=$1
  print_messages code "not frozen: the job runs the files of $1 as they are when it starts"
}

# code_enter CLONE: work in the frozen code instead, so that `python train.py` is the frozen file.
code_enter() {
  if [[ $PWD -ef $1 ]]; then cd -- "$LONGSHIP_ROOT" || exit; fi
}

# code_end: tell what the job has written next to its code, where no later job finds it.
code_end() {
  local -a written
  mapfile -d '' -t written < <(cd -- "$RUN_DIR/code" &&
    timeout 20 find . ! -type d -newercc ../start.bash ! -name '*.pyc' -printf '%P\0')
  if ((${#written[@]} == 0)); then return; fi
  printable "${written[*]:0:5}"
  printf 'longship: written next to the code, and kept in %s: %s (%d in all)\n' \
    "$RUN_DIR/code" "$REPLY" "${#written[@]}" >&2
}
