# shellcheck shell=bash
# What users say about nodes: see nodes.py.

# where the end of a job writes
declare -g longship_nodes=''

# nodes_share DIR: let all who can enter the shared directory above say something, if it is the
# user's own; nobody changes what another user has written.
nodes_share() {
  if [[ -O ${1%/*} && -w ${1%/*} ]]; then pins_make "$1"; fi
}

# nodes_write DIR MACHINE NODE TIME REASON RUN: say that a node is faulty; without a REASON, that it
# is in order again.
nodes_write() {
  local -r own=$1/$2.$UID
  directory_make "$1"
  [[ -d $own ]] || mkdir -m 755 -- "$own" || [[ -d $own ]] ||
    fail_writing "$1" "cannot create $own" 'see the line above'
  is_own "$own" || fail "$own belongs to another user, or others can write to it" \
    "ask the owner of $1 to delete it"
  record_write "$own/$3.json" time "$4" reason "$5" run "$6"
}

# nodes_end: say what this job has found, once. An error in it ends nothing else.
nodes_end() {
  local -r file=$RUN_DIR/faulty_nodes run=${RUN_DIR##*/}
  local node time reason REPLY
  if [[ ! -r $file ]]; then return; fi
  record_value "$RUN_DIR/record.json" machine
  while IFS=$'\t' read -r node time reason; do
    if [[ ! $node =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; then continue; fi
    (nodes_write "$longship_nodes" "$REPLY" "$node" "$time" "$reason" "${run%%-*}") || return 0
    printf 'longship: %s will be excluded from submissions (%s): python3 doctor.py nodes\n' \
      "$node" "$reason" >&2
  done <"$file"
  rm -f -- "$file"
}
