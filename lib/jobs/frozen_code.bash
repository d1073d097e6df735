# shellcheck shell=bash
# The code of a job: frozen at its submission, and its record in <run>/repositories. freeze_worker.py keeps the files
# once per content in <scratch_dir>/runs/code, which only the user can read; all jobs of the same content share them:
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

# code_record_begin PYTHON RUN [NAME DIR]...: record the repositories, then the installed packages, while the ranks
# start: on a parallel file system git needs seconds for a large repository.
code_record_begin() {
  # shellcheck disable=SC2034  # for extras
  longship_python=$1
  code_record "$@" </dev/null >/dev/null 2>&1 &
  longship_recorder=$!
}

# code_record PYTHON RUN [NAME DIR]...: the ranks' launcher lists the packages; Pyxis may have to unpack the image for it.
code_record() {
  local -r run=$2
  local -a start=()
  "$1" -X utf8 "$LONGSHIP_ROOT/lib/jobs/freeze_worker.py" record "${@:2}" || :
  if ((${#CONTAINER_OPTIONS[@]})); then start=(srun --overlap --nodes=1 --ntasks=1 "${CONTAINER_OPTIONS[@]}"); fi
  file_begin "$run/packages"
  if env -u SLURM_LABELIO timeout 600 "${start[@]}" "$run/launcher" python3 \
    "$LONGSHIP_ROOT/lib/jobs/inside/list_packages.py" >"$REPLY"; then
    file_publish "$REPLY" "$run/packages.txt"
  else
    rm -f -- "$REPLY"
  fi
}

# code_record_end RUN: give the recorder 20 more seconds, as whole nodes wait for it.
code_record_end() {
  if [[ -z ${longship_recorder:-} ]]; then return; fi
  timeout 20 tail -s 0.1 --pid="$longship_recorder" -f /dev/null || kill "$longship_recorder" 2>/dev/null
  rm -f -- "$1/packages.partial"
  if [[ ! -e $1/packages.txt ]]; then
    printf 'longship: packages.txt not written: python3 could not list the packages in time\n' >&2
  fi
}

# code_enter CLONE: work in the frozen code instead, so that `python train.py` is the frozen file; what git does not track
# is a link to the clone's there.
code_enter() {
  if [[ $PWD -ef $1 ]]; then cd -- "$LONGSHIP_ROOT" || exit; fi
}

# code_return: give the clone links to what the job wrote with relative paths, so that the next job finds it there.
code_return() {
  timeout 20 "$longship_python" -X utf8 "$LONGSHIP_ROOT/lib/jobs/freeze_worker.py" return \
    "$LONGSHIP_ROOT" "$LONGSHIP_CLONE"
}
