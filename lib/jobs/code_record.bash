# shellcheck shell=bash
# The record of the code and the packages of a job, in <run>/repositories and <run>/packages.txt.

# code_record_begin PYTHON RUN [NAME DIR]...: record the repositories, then the installed packages,
# while the ranks start: on a parallel file system git needs seconds for a large repository.
code_record_begin() {
  # shellcheck disable=SC2034  # for extras
  longship_python=$1
  code_record "$@" </dev/null >/dev/null 2>&1 &
  longship_recorder=$!
}

# code_record PYTHON RUN [NAME DIR]...: the ranks' launcher lists the packages; Pyxis may have to
# unpack the image for it.
code_record() {
  local -r run=$2
  local -a start=()
  "$1" -I -X utf8 "$LONGSHIP_ROOT/lib/jobs/record_worker.py" record "${@:2}" || :
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
  timeout 20 tail -s 0.1 --pid="$longship_recorder" -f /dev/null ||
    kill "$longship_recorder" 2>/dev/null
  rm -f -- "$1/packages.partial"
  if [[ ! -e $1/packages.txt ]]; then
    printf 'longship: packages.txt not written: python3 could not list the packages in time\n' >&2
  fi
}
