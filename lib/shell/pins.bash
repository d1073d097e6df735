# shellcheck shell=bash disable=SC2154  # the emitted script says which image or overlay: active
# Who still needs a version. container_run.py --launcher leaves a file of three lines in pins/: the
# image or overlay, the job that it was written in, if any, and the launcher.

# is_pinned VERSION: whether a launcher that is still needed names it; set REPLY to who needs it. A
# launcher of a job is needed while the job runs, any other one while it is there.
is_pinned() {
  local pin image job launcher
  for pin in "${active%/*}"/pins/*; do
    [[ -f $pin ]] || continue
    { IFS= read -r image && IFS= read -r job && IFS= read -r launcher; } <"$pin" || continue
    # by its name: two users can name the same folder in two ways
    if [[ ${image##*/} != "${1##*/}" ]] && ! { holds_tag "$1" && [[ $image == "$(tag_in "$1")" ]]; }; then
      continue
    fi
    if [[ -n $job ]] && job_is_over "$job" || [[ -z $job && ! -e $launcher ]]; then
      rm -f -- "$pin"
      continue
    fi
    REPLY=${job:+job $job}
    REPLY=${REPLY:-$launcher}
    return
  done
  return 1
}

# job_is_over ID: whether Slurm is sure of it; a Slurm that does not answer is not.
job_is_over() {
  local states
  if states=$(timeout 20 squeue --noheader --jobs="$1" --format=%T 2>&1); then
    [[ -z $states ]]
  else
    [[ $states == *'Invalid job id'* ]]
  fi
}
