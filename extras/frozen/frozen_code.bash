# shellcheck shell=bash
# The code of a job, frozen at its submission. freeze_worker.py keeps the files once per content in
# <scratch_dir>/runs/code, which only the user can read; all jobs of the same content share them:
#
#   NAME-ID                  the files of a repository, longship for this clone; ID is a checksum of them
#   NAME-ID.made             a list of them, as old as the copy: what is newer or not in it, a job has written
#   NAME-ID-COMMIT.commit    commit and base that the files follow from, for the record; with NAME-ID-COMMIT.patch

# code_freeze PYTHON WORKER ACTION STORE ARGUMENT...: let a job run the files that the worker finds or makes in
# STORE, and export where they are: LONGSHIP_ROOT, and LONGSHIP_FROZEN with a NAME-ID-COMMIT for each repository.
code_freeze() {
  local frozen
  frozen=$(exec "$1" -X utf8 "${@:2}") || exit
  export LONGSHIP_FROZEN=$frozen
  frozen=${frozen%% *}
  export LONGSHIP_ROOT=$4/${frozen%-*}
}

# code_live CLONE: let a job run from the clone.
code_live() {
  unset LONGSHIP_CLONE LONGSHIP_FROZEN
  export LONGSHIP_ROOT=$1
  print_messages code "not frozen: the job runs the files of $1 as they are when it starts"
}

# code_enter CLONE: work in the frozen code instead, so that `python train.py` is the frozen file; what git does not track
# is a link to the clone's there.
code_enter() {
  if [[ $PWD -ef $1 ]]; then cd -- "$LONGSHIP_ROOT" || exit; fi
}

# code_return: give the clone links to what the job wrote with relative paths, so that the next job finds it there.
code_return() {
  # shellcheck disable=SC2154  # of code_record.bash
  timeout 20 "$longship_python" -X utf8 "$LONGSHIP_ROOT/extras/frozen/freeze_worker.py" return \
    "$LONGSHIP_ROOT" "$LONGSHIP_CLONE"
}
