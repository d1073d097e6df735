# shellcheck shell=bash disable=SC2154  # doctor_job.bash and the emitted script set what starts with job_
# doctor.py --job: what else was found on the nodes, and how the ranks talk to each other.

# diagnose_job_places: what each node has for the job: files, node-local space, memory, GPUs.
diagnose_job_places() {
  local node free kind least='' memory=''
  local -i blind=0
  for node in "${job_answering[@]}"; do
    if [[ -n ${job_facts[$node unseen]:-} ]]; then
      report problem files "$node cannot read ${job_facts[$node unseen]}" "${job_unseen//NODE/$node}"
      blind=1
    fi
    read -r free kind <<<"${job_facts[$node room]:-0 not there}"
    if ((free < 1)); then
      report warning temporary "$node has less than 1 GiB left in ${TMPDIR:-/tmp} ($kind)" \
        'set another directory: export TMPDIR=DIR; or delete the files of earlier jobs there'
    fi
    if [[ -z $least ]] || ((free < ${least%% *})); then least="$free GiB ($kind) on $node"; fi
    if [[ -z $memory ]] || ((${job_facts[$node memory]} < ${memory%% *})); then
      memory="${job_facts[$node memory]} GiB on $node"
    fi
    if [[ -n ${job_facts[$node ecc]:-} ]]; then
      report warning gpus "$node: uncorrected GPU memory errors: ${job_facts[$node ecc]}" \
        "tell your site's support, and exclude the node: sbatch --exclude=$node"
    fi
  done
  if ((!blind)); then report ok files 'image, packages and directories are visible on all nodes'; fi
  if [[ ${least:-} == *tmpfs* ]]; then
    report ok temporary "${TMPDIR:-/tmp} is memory, counted against the job: at least $least"
  else
    report ok temporary "${TMPDIR:-/tmp}: at least ${least:-unknown}"
  fi
  report ok memory "free: at least ${memory:-unknown}"
  diagnose_job_alike here kernel kernel
  diagnose_job_alike driver driver driver
  diagnose_job_gpu_count
}

# diagnose_job_gpu_count: what the nodes have against what the job asked for.
diagnose_job_gpu_count() {
  local node
  local -i asked there bad=0
  for node in "${job_answering[@]}"; do
    asked=${job_facts[$node asked]} there=${job_facts[$node gpus]}
    if ((there < asked)); then
      report problem gpus "$node has $there visible GPUs, but the job has $asked on it" \
        "tell your site's support that the driver has lost a GPU, and exclude the node: sbatch --exclude=$node"
      bad=1
    fi
  done
  if ((!bad)); then diagnose_job_alike gpus gpus 'GPUs:'; fi
}

# diagnose_job_ranks PROGRAM: start the ranks as the job would: a task for each, or one on each node that
# starts a rank for each GPU; without GPUs two. Nodes that do not reach the first one, or do not see the
# files, are left out.
diagnose_job_ranks() {
  local -i tasks=1 ranks gpus=${job_facts[${job_nodes[0]} asked]:-0} found=0
  local node state topic text fix
  local -a good=()
  local -r taken=${job_facts[${job_nodes[0]} taken]:-} deaf=${job_facts[${job_nodes[0]} deaf]:-}
  for node in "${job_answering[@]}"; do
    if [[ -n ${job_facts[$node offset]:-}$deaf && -z ${job_facts[$node unseen]:-} ]]; then good+=("$node"); fi
  done
  if [[ -n $taken || ${good[0]:-} != "${job_nodes[0]}" ]]; then
    report warning all_reduce 'not tested' 'fix the problem of the first node first'
    return
  fi
  if ((gpus == 0)); then gpus=${job_facts[${job_nodes[0]} gpus]:-0}; fi
  ranks=$((gpus ? gpus : 2))
  if ((${SLURM_NTASKS_PER_NODE:-1} > 1)); then tasks=$SLURM_NTASKS_PER_NODE ranks=1; fi
  local names
  names=$(IFS=, && printf '%s' "${good[*]}")
  local -a words=("$names" "${#good[@]}" "$tasks" python "$1" "$ranks" "$gpus")
  if [[ $report_form == json ]]; then words+=(complete); else words+=(brief); fi
  diagnose_job_run 100 ranks bash -c "$(this_script)" doctor.py ranks "${words[@]}" "$names"
  diagnose_job_failures
  while IFS=$'\t' read -r text state topic text fix; do
    found=1
    if [[ $state != end ]]; then report "$state" "$topic" "$text" "$fix"; fi
  done < <(grep -F $'finding\t' "$job_folder/ranks")
  if ((!found)); then diagnose_job_silence; fi
}

# diagnose_job_step NODES COUNT TASKS COMMAND...: one step on these nodes, so many of them, with so many
# tasks on each.
diagnose_job_step() {
  local -a options=(--overlap --label --nodelist="$1" --nodes="$2" --ntasks=$(($2 * $3)) --ntasks-per-node="$3")
  if ((${#CONTAINER_OPTIONS[@]})); then options+=("${CONTAINER_OPTIONS[@]}"); fi
  exec srun "${options[@]}" --wait=0 --kill-on-bad-exit=0 bash -c "$(this_script)" doctor.py rank "${@:4}"
}

# diagnose_job_failures: a task that could not start has said so in two lines, with its number before them;
# what has no number goes for all.
diagnose_job_failures() {
  local number kind said node
  local -A last=() hints=() where=()
  while IFS=$'\t' read -r number kind said; do
    number=${number:-all}
    if [[ $kind == error ]]; then
      last[$number]=$said
    elif [[ -n ${last[$number]:-} ]]; then
      node=$(grep -m1 -E "^ *$number: job_node " "$job_folder/ranks") || node=
      hints[${last[$number]}]=$said
      where[${last[$number]}]+=${node:+" ${node##* }"}
      last[$number]=''
    fi
  done < <(sed -nE 's/^ *(([0-9]+): )?(error|hint): (.*)/\2\t\3\t\4/p' "$job_folder/ranks.errors" |
    sed 's/^\t/all\t/')
  for said in "${!hints[@]}"; do
    node=$(tr ' ' '\n' <<<"${where[$said]# }" | sort -u | paste -s -d ' ')
    report problem all_reduce "${node:+$node: }$said" "${hints[$said]}"
    found=1
  done
}

# diagnose_job_silence: nothing has come at all.
diagnose_job_silence() {
  local said
  said=$(tail -n 1 "$job_folder/ranks.errors") || said=
  report problem all_reduce "no rank has reported${said:+: $said}" \
    "test a single rank: srun --overlap --ntasks=1 python3 container_run.py python -c 'import torch'"
}
