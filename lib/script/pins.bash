# shellcheck shell=bash
# Pins protect versions that launchers start. A pin is a file of three lines in pins/: the image or overlay, the
# job that wrote the launcher and its cluster (empty outside a job), and the launcher. RUN.then names a job that starts
# RUN/launcher again: it exports what the run has trained. Every member of a group can write pins.

# version_is_pinned VERSION: succeed if a version is pinned, and set REPLY to the job or the launcher that pins it.
# The pin of a job counts until the job, and that of RUN.then, has ended; any other while its launcher exists, which
# is known of one's own.
version_is_pinned() {
  local pin image job launcher later own=''
  local -r where=${1%/versions/*}/pins
  if [[ -d $where && ! (-r $where && -x $where) ]]; then
    REPLY="a pin in the unreadable $where"
    return
  fi
  # what the runtime starts, if the file only names an image in its store; NUL bytes of others are dropped
  { IFS= read -r -n 4096 own; } 2>/dev/null <"$1" || :
  for pin in "$where"/*; do
    [[ -f $pin ]] || continue
    { IFS= read -r -n 4096 image && IFS= read -r -n 4096 job && IFS= read -r -n 4096 launcher; } 2>/dev/null <"$pin" || {
      REPLY="the damaged pin $pin"
      return
    }
    # compare names: two users can have different paths to one directory
    if [[ ${image##*/} != "${1##*/}" && $image != "${own:-/}" ]]; then
      continue
    fi
    later=${launcher%/launcher}.then
    if [[ -n $job && -O $later && -f $later ]] && job_is_over "$job" "$pin"; then job=$(<"$later")${job#"${job%% *}"}; fi
    if [[ -n $job ]] && job_is_over "$job" "$pin" || [[ -z $job && -O $pin && ! -e $launcher ]]; then
      rm -f -- "$pin"
      continue
    fi
    REPLY=${job:+job ${job/ / of }}
    REPLY=${REPLY:-$launcher}
    return
  done
  return 1
}

# job_is_over "ID [CLUSTER]" PIN: succeed if Slurm reports that the job has ended. It fails if Slurm does not answer,
# or is the Slurm of another cluster: JUWELS and JURECA share their file systems. It also fails if PIN is another
# user's and Slurm hides the jobs of other users: a hidden job looks like one that has ended.
job_is_over() {
  local -r id=${1%% *} cluster=${1#* } hidden=$'PrivateData *=[^\n]*jobs'
  local states settings=''
  if [[ $1 == *' '* || ! -O $2 ]]; then
    settings=$(timeout 20 scontrol show config 2>/dev/null) || return 1
  fi
  if [[ ! -O $2 && $settings =~ $hidden ]]; then return 1; fi
  if [[ $1 == *' '* ]]; then
    [[ $settings =~ ClusterName\ *=\ ([^[:space:]]+) && ${BASH_REMATCH[1]} == "$cluster" ]] || return 1
  fi
  if states=$(timeout 20 squeue --noheader --jobs="$id" --format=%T 2>&1); then
    [[ -z $states ]]
  else
    [[ $states == *'Invalid job id'* ]]
  fi
}
