# shellcheck shell=bash
# The code of a job, frozen at its submission, in <scratch_dir>/runs/code, which only the user can
# enter:
#
#   code-ID.tar   the files of this clone and of the external repositories; ID is its checksum, of
#                 32 digits: nobody can make another file of the same one

# code_freeze STORE CLONE PYTHON WORKER SCRATCH [NAME DIR]...: let a job run the code of CLONE as it
# is now. An archive that is there already can be damaged: it gets its content again.
code_freeze() {
  local -r partial=$1/.partial.$HOSTNAME.$BASHPID
  local sum archive
  code_begin "$1" "$2"
  sum=$(exec "$3" -I -X utf8 "$4" freeze "$partial" "${@:5}") || { rm -f -- "$partial"; exit 1; }
  archive=$1/code-${sum:0:32}.tar
  touch -c -- "$archive" # first: code_prune looks at it
  if cmp -s -- "$partial" "$archive"; then rm -f -- "$partial"; else file_publish "$partial" "$archive"; fi
  code_use "$archive"
  code_prune "$1"
}

# code_again STORE CLONE RUN: let a job run the code of a run again, whose archive is in the run or
# still in STORE.
code_again() {
  local archive
  code_begin "$1" "$2"
  record_value "$3/record.json" code
  archive=$3/${REPLY##*/}
  [[ -n $REPLY ]] ||
    fail "the code of ${3##*/} was not kept: it ran from the clone" \
      'to run the current code, add: --live'
  if [[ ! -e $archive ]]; then archive=$1/${REPLY##*/}; fi
  { is_own "$archive" && code_is_whole "$archive" "$archive"; } ||
    fail "the code of ${3##*/} has been removed or changed: $archive" \
      'to run the current code, add: --live'
  if [[ ! $archive -ef $1/${archive##*/} ]]; then
    ln -f -T -- "$archive" "$1/${archive##*/}" || fail_writing "$1" "cannot write to $1" 'see the line above'
  fi
  code_use "$1/${archive##*/}"
}

# code_use ARCHIVE: let the job take its code from an archive.
code_use() {
  touch -- "$1"
  export LONGSHIP_FROZEN=$1
  print_messages code "frozen in $1; later changes do not reach this job"
}

# code_begin STORE CLONE: let the job take its code from an archive when it starts.
code_begin() {
  directory_make "$1"
  directory_check_own "$1"
  submission_use_code ''
  export LONGSHIP_CLONE=$2 LONGSHIP_TAKE_CODE=code_take LONGSHIP_CLONE_OWNER
  LONGSHIP_CLONE_OWNER=$(stat -L -c %u -- "$2")
  export -f code_take code_is_whole code_fail
}

# code_take: unpack this clone on the node, and set LONGSHIP_ROOT to it; the start unpacks all code
# into the run directory, whose name it finds. The archive is copied before it is checked: nobody can
# replace the copy. It is in /tmp: a TMPDIR that sbatch has passed on may not exist on the node.
code_take() {
  local owner
  { LONGSHIP_STAGED=$(mktemp -d /tmp/longship-code.XXXXXXXXXX) && [[ -f $LONGSHIP_FROZEN ]] &&
    cp -- "$LONGSHIP_FROZEN" "$LONGSHIP_STAGED/archive"; } ||
    code_fail "cannot copy the code of this job to /tmp on $HOSTNAME: $LONGSHIP_FROZEN" \
      "if it is missing, submit the job again; if /tmp is full, free some space there"
  code_is_whole "$LONGSHIP_STAGED/archive" "$LONGSHIP_FROZEN" ||
    code_fail "the code of this job is damaged: $LONGSHIP_FROZEN" 'submit the job again'
  tar --extract --force-local --file="$LONGSHIP_STAGED/archive" --directory="$LONGSHIP_STAGED" code/longship ||
    code_fail "cannot unpack the code of this job to $LONGSHIP_STAGED on $HOSTNAME" 'free some space there'
  LONGSHIP_ROOT=$LONGSHIP_STAGED/code/longship
  export LONGSHIP_STAGED
  if [[ ! -e $LONGSHIP_CLONE/.venv ]]; then return; fi
  while read -r owner; do
    [[ $owner == "$LONGSHIP_CLONE_OWNER" || $owner == 0 ]] ||
      code_fail "$LONGSHIP_CLONE belongs to another user than at the submission" 'submit the job again'
  done < <(stat -L -c %u -- "$LONGSHIP_CLONE" "$LONGSHIP_CLONE/.venv")
  ln -s -f -n -- "$LONGSHIP_CLONE/.venv" "$LONGSHIP_ROOT/.venv"
}

# code_is_whole FILE NAME: whether the checksum of a file is the ID in the name of an archive; runs of
# before have one of 12 digits.
code_is_whole() {
  local sum id=${2##*/code-}
  id=${id%.tar}
  sum=$(sha256sum <"$1") && [[ ${#id} -ge 12 && ${sum%% *} == "$id"* ]]
}

# code_fail MESSAGE HINT: end the job; it runs no other code.
code_fail() {
  if [[ -n $LONGSHIP_STAGED ]]; then rm -rf -- "$LONGSHIP_STAGED"; fi
  printf 'error: %s\nhint: %s\n' "$@" >&2
  exit 1
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
  unset LONGSHIP_CLONE LONGSHIP_FROZEN LONGSHIP_TAKE_CODE
  submission_use_code "$1"
  print_messages code "not frozen: the job runs the files of $1 as they are when it starts"
}

# code_enter CLONE: work in the frozen code instead, so that `python train.py` is the frozen file.
code_enter() {
  unset LONGSHIP_STAGED
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
