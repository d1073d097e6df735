# shellcheck shell=bash
# Pins: which versions are still needed. A launcher leaves a file of three lines in pins/: the image or overlay, the
# job that it was written in, if any, with the name of its cluster, and the launcher.

# version_is_pinned VERSION: whether a launcher that is still needed names it; set REPLY to its job, or to the launcher. A
# launcher of a job is needed while the job runs, any other one while it exists.
version_is_pinned() {
  local pin image job launcher
  for pin in "${1%/versions/*}"/pins/*; do
    [[ -f $pin ]] || continue
    { IFS= read -r image && IFS= read -r job && IFS= read -r launcher; } 2>/dev/null <"$pin" || {
      REPLY="the damaged pin $pin"
      return
    }
    # by its name: two users can name the same folder in two ways
    if [[ ${image##*/} != "${1##*/}" ]] && ! { docker_has_tag "$1" && [[ $image == "$(docker_tag_in "$1")" ]]; }; then
      continue
    fi
    if [[ -n $job ]] && job_is_over "$job" || [[ -z $job && ! -e $launcher ]]; then
      rm -f -- "$pin"
      continue
    fi
    REPLY=${job:+job ${job/ / of }}
    REPLY=${REPLY:-$launcher}
    return
  done
  return 1
}

# job_is_over "ID [CLUSTER]": whether Slurm is sure of it; one that does not answer, or is another cluster's
# (JUWELS and JURECA share their file systems), is not.
job_is_over() {
  local -r id=${1%% *} cluster=${1#* }
  local states settings
  if [[ $1 == *' '* ]]; then
    settings=$(timeout 20 scontrol show config 2>/dev/null) || return 1
    [[ $settings =~ ClusterName\ *=\ ([^[:space:]]+) && ${BASH_REMATCH[1]} == "$cluster" ]] || return 1
  fi
  if states=$(timeout 20 squeue --noheader --jobs="$id" --format=%T 2>&1); then
    [[ -z $states ]]
  else
    [[ $states == *'Invalid job id'* ]]
  fi
}
