# shellcheck shell=bash
# Upload the offline runs of W&B that jobs have written, inside the environment, with its own wandb.
#
#   bash sync_wandb.bash once|follow INSTALL RUN...     follow: repeat it until the jobs have ended
#
# INSTALL is the command that installs packages, for a hint.
set -euo pipefail
source "${LONGSHIP_ROOT:?}/lib/script/messages.bash"

# wandb_sync INSTALL RUN...: upload what jobs have written since the last upload, but follow no link
# out of a run. wandb continues where it has ended; its mark gets the time at which the upload has
# begun, as a job can write meanwhile. The file `begun` has that time by the clock of the file
# system, as the jobs' files do.
wandb_sync() {
  local -r install=$1
  local run place file own results target
  local -A changed=()
  for run in "${@:2}"; do
    own=$(realpath -m -- "$run") results=$(realpath -m -- "$run/outputs")
    for place in "$run" "$results"{,/*,/*/*}; do
      for file in "$place"/wandb/offline-run-*/run-*.wandb; do
        if [[ ! -f $file ]]; then continue; fi
        target=$(realpath -- "$file") # not behind a link out of the run
        if [[ $target/ == "$own"/* || $target/ == "$results"/* ]] &&
          [[ ! $target.synced -nt $target ]]; then
          changed[$target]=1
        fi
      done
    done
  done
  if ((${#changed[@]} == 0)); then
    note 'W&B: nothing to upload'
    return
  fi
  touch -- "$begun"
  command -v wandb >/dev/null ||
    fail 'wandb not found inside the environment' \
      "add wandb to the requirements, then run: $install"
  wandb sync --include-synced "${!changed[@]}" || return
  for file in "${!changed[@]}"; do touch -c -r "$begun" -- "$file.synced"; done
}

# jobs_have_ended RUN...
jobs_have_ended() {
  local run
  for run in "$@"; do
    grep -q '^  "ended": ' -- "$run/record.json" || return
  done
}

mode=$1 install=$2 last=
shift 2
export WANDB_DIR=$LONGSHIP_SCRATCH_DIR/cache/wandb
mkdir -p -- "$WANDB_DIR"
begun=$(mktemp -- "$WANDB_DIR/upload.XXXXXX")
trap 'rm -f -- "$begun"' EXIT
until [[ $last ]]; do
  if [[ $mode == once ]] || jobs_have_ended "$@"; then last=yes; fi
  if ! wandb_sync "$install" "$@"; then
    if [[ $last ]]; then
      fail 'wandb cannot upload all runs' \
        'read its output above; for a missing key, run: export WANDB_API_KEY=...'
    fi
    print_messages warning 'wandb cannot upload all runs: the next attempt is in a minute'
  fi
  for ((second = 0; second < 60; second++)); do
    if [[ $last ]] || jobs_have_ended "$@"; then break; fi
    sleep 1
  done
done
