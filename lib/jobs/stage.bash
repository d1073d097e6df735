# shellcheck shell=bash disable=SC2154,SC2034  # lib/jobs/staging.py assigns stage_roots, stage_image, ...
# Staging: before the ranks start, image and packages come to storage of each node's own, so that the
# ranks ask the shared file system for nothing. It is removed when the job ends, whatever ends it.

# stage_job auto|always: where it cannot be done, the ranks read from the shared file system.
stage_job() {
  local -r how=$1 began=$SECONDS
  local -a files=("$RUN_DIR/launcher") names=(launcher) sums=('')
  local -i bytes=0 unpacked=0
  local stage_folder='' file
  for file in "$stage_image" "$stage_overlay"; do
    [[ -z $file || -r $file ]] || return 0 # the launcher tells what is missing
  done
  if [[ -n $stage_image ]]; then add_staged_file "$stage_image" image "$stage_image_sum"; fi
  if [[ -n $stage_overlay ]]; then
    add_staged_file "$stage_overlay" packages.sqsh "$stage_overlay_sum"
    if [[ $stage_as == unpacked ]]; then unpacked=$((4 * REPLY)); fi # of PyTorch's packages, about
    files+=("$stage_overlay.json") names+=(packages.sqsh.json) sums+=('')
  fi
  if [[ $how == auto ]] && ! staging_pays "$SLURM_JOB_NUM_NODES" "$bytes"; then return; fi
  if choose_stage_folder && hold_stage $((bytes + unpacked)) && fill_stage && hear_nodes; then
    export LONGSHIP_STAGED=$stage_folder
    if [[ $stage_as == packed ]]; then LAUNCHER=$stage_folder/launcher; fi # Pyxis' runs inside
    longship_facts+=(staged "$stage_folder")
    human "$bytes"
    printf 'longship: %s copied to each node in %d s: %s\n' "$REPLY" $((SECONDS - began)) "$stage_folder" >&2
  else
    warn_of "staging failed, image and packages are read from the shared file system: $REPLY" \
      'to disable staging, set jobs.stage = "never" in configuration.toml'
    end_stage
  fi
}

# add_staged_file FILE NAME SUM: set REPLY to its size.
add_staged_file() {
  files+=("$1") names+=("$2") sums+=("$3")
  REPLY=$(stat -L -c %s -- "$1")
  bytes+=REPLY
}

# staging_pays NODES BYTES: whether it saves more than ten seconds of the first import, by the figures of
# benchmarks/model.py. An import reads a fifth of the files, as measured; that the shared file system gives
# 5 GB/s to all nodes together, where others work too, is assumed: 42 ms for a gigabyte and a node. To copy
# a gigabyte to all of them takes 9.7 s, and 20 ms a node. So it pays from some 450 nodes on.
staging_pays() {
  (((42 * $1 - 9700 - 20 * $1) * ($2 / 1000000) > 10000000))
}

# choose_stage_folder: set stage_folder, in the first of the configured folders that is here.
choose_stage_folder() {
  local root
  for root in "${stage_roots[@]}"; do
    [[ -d $root && -w $root ]] || continue
    stage_folder=$root/longship-${USER:-$UID}-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
    return
  done
  REPLY="there is none of jobs.stage_dirs here: ${stage_roots[*]}"
  return 1
}

# the functions of stage_node.bash
declare -g ON_NODE=(on_node say_of_node make_node_folder use_what_comes free_on_node share_packages
  has_setuid_starter helpers_of)

# hold_stage BYTES: a step beside the ranks', with a task on each node, which lasts as long as the job. The
# daemon of Slurm runs its tasks' epilog, so even where all is killed, what is on the node goes too.
hold_stage() {
  {
    printf '#!/bin/bash\nmounted=%q\n' "$stage_folder/mounted"
    # shellcheck disable=SC2016  # for the epilog
    printf '%s\n' 'if [[ -d $mounted ]]; then fusermount3 -uz "$mounted" || fusermount -uz "$mounted"; fi 2>/dev/null'
    # Slurm may still be writing there, of a broadcast that has been ended.
    printf 'for attempt in {1..30}; do rm -rf -- %q 2>/dev/null && break; sleep 0.1; done\n' "$stage_folder"
  } | (umask go-w && cat >"$RUN_DIR/unstage") # nobody else may change what runs
  chmod +x -- "$RUN_DIR/unstage"
  # what is meant for the ranks is not for it
  exec {longship_stage_answers}< <(exec env -u SLURM_LABELIO -u SLURM_KILL_BAD_EXIT -u SLURM_CPUS_PER_TASK -u SRUN_CPUS_PER_TASK \
    srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpu-bind=none --mem=0 --gres=none \
    --quiet --task-epilog="$RUN_DIR/unstage" \
    bash -c "$(declare -f "${ON_NODE[@]}"); on_node \"\$@\"" longship \
    "$stage_folder" "$1" "$stage_as" "$stage_runtime" "${SLURM_NTASKS_PER_NODE:-1}" \
    </dev/null 2>>"$RUN_DIR/stage.log")
  longship_stage_keeper=$!
  hear_nodes
}

# hear_nodes: wait until all of them are ready; else set REPLY to what the first of them says.
hear_nodes() {
  local -i ready=0
  while ((ready < SLURM_JOB_NUM_NODES)); do
    IFS= read -r -t 600 -u "$longship_stage_answers" || REPLY="not all nodes answer; see $RUN_DIR/stage.log"
    [[ $REPLY == ready ]] || return 1
    ready+=1
  done
}

# fill_stage: Slurm copies each file from node to node; the checksums are the last.
fill_stage() {
  local said checking
  local -i at
  exec {checking}< <(stage_checksums) # of the same bytes, meanwhile
  for at in "${!files[@]}"; do
    send_to_nodes "${files[at]}" "${names[at]}" || return
  done
  cat <&"$checking" >"$RUN_DIR/stage.sums" || return
  send_to_nodes "$RUN_DIR/stage.sums" sums
}

# send_to_nodes FILE NAME: else set REPLY to the reason.
send_to_nodes() {
  said=$(sbcast --force "$1" "$stage_folder/$2" 2>&1) && return
  REPLY="sbcast: ${said##*error: }"
  return 1
}

# stage_checksums: what each file must be, and a full stop.
stage_checksums() {
  local sum
  local -i at
  for at in "${!files[@]}"; do
    sum=${sums[at]#sha256:}
    if [[ -z $sum ]]; then read -r sum _ < <(sha256sum <"${files[at]}"); fi
    printf '%s  %s\n' "$sum" "${names[at]}"
  done
  printf '.'
}

# end_stage: before the job ends, so that its nodes are clean when the next one starts.
end_stage() {
  if [[ -z ${longship_stage_keeper:-} ]]; then return; fi
  kill "$longship_stage_keeper" 2>/dev/null || :
  while IFS= read -r -t 30 -u "${longship_stage_answers:-0}"; do :; done # until all tasks have ended
  longship_stage_keeper=
}

# use_staged_image: for a rank: what the job's start has put on this node.
use_staged_image() {
  if [[ -n ${LONGSHIP_STAGED:-} ]]; then image=$LONGSHIP_STAGED/image; fi
}

# use_staged_packages: the same; 1 where there is nothing staged. All was checked when it was copied.
use_staged_packages() {
  [[ -n ${LONGSHIP_STAGED:-} ]] || return
  if [[ -e $LONGSHIP_STAGED/packages ]]; then
    add_bind "$LONGSHIP_STAGED/packages" "$longship_overlay_folder" ro
  else
    overlay=$LONGSHIP_STAGED/packages.sqsh
    mapfile -t overlay_record <"$overlay.json"
    mount_overlay
  fi
}
