# shellcheck shell=bash
# Re-runs: what a recorded run has started is started again.

# rerun_pin RUN: keep what a pending re-run of RUN needs from being pruned, on another cluster of
# the site too.
rerun_pin() {
  local needed id cluster
  record_value "$1/record.json" cluster
  cluster=$REPLY
  for needed in image overlay; do
    record_value "$1/record.json" "$needed"
    if [[ $REPLY != */versions/* ]]; then continue; fi # none, or the site's
    needed=$REPLY
    # shellcheck disable=SC2154  # of lib/jobs/submit.bash
    for id in "${submitted_ids[@]}"; do
      file_write "${needed%/versions/*}/pins/$id-again" "$needed"$'\n'"$id${cluster:+ $cluster}"$'\n'"$1/launcher"$'\n'
    done
  done
}
