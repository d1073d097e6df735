# shellcheck shell=bash disable=SC2154  # the emitted script says: repositories_folder, all_repositories
# After a conflict: on with the update, or back to what was.

# continue_update: go on in all repositories where an update stopped.
continue_update() {
  prepare_git
  find_updates
  in_parallel continue_repository "${found[@]}"
  stop_if_failed
}

# continue_repository NAME
continue_repository() {
  local -r folder=$repositories_folder/$1
  local state
  state=$(git_folder "$folder")/longship-update
  recall step
  if [[ $REPLY != finished && ! -e $state/stopped ]]; then
    update_repository "$1" # it was killed: nothing to go on with
    return
  fi
  if [[ $REPLY != finished ]]; then
    replay "$folder"
    tell_update "$folder" "$1"
  fi
  complete_update "$folder" "$1"
}

# abort_update: take all repositories where an update is under way back to what was before.
abort_update() {
  prepare_git
  find_updates
  in_parallel abort_repository "${found[@]}"
  stop_if_failed
}

# abort_repository NAME
abort_repository() {
  local -r folder=$repositories_folder/$1
  local state
  state=$(git_folder "$folder")/longship-update
  restore_all "$folder"
  rm -rf -- "$state"
  printf '%s is restored to its state before the update\n' "$1" >&2
}

# restore_all FOLDER: with its submodules; those that the update brought go.
restore_all() {
  local path
  remove_own_locks "$(git_folder "$1")"
  for_submodules "$1" restore_submodule
  if [[ ! -e $state/step ]]; then return; fi
  if [[ -e $state/new_submodules ]]; then
    while IFS= read -r -d '' path; do
      # it was not there before; if the user has worked in it meanwhile, it stays
      if [[ -z $(git_in "$1/$path" status --porcelain 2>/dev/null) ]]; then rm -rf -- "${1:?}/$path"; fi
    done <"$state/new_submodules"
  fi
  restore "$1"
}

# restore_submodule FOLDER
restore_submodule() {
  restore_all "$1"
  rm -rf -- "$state"
}

# find_updates: set `found` to the repositories where one is under way.
find_updates() {
  local name own
  found=()
  for name in "${all_repositories[@]}"; do
    if [[ ! -e $repositories_folder/$name/.git ]]; then continue; fi
    own=$(git_folder "$repositories_folder/$name")
    if [[ -e $own/longship-update ]]; then found+=("$name"); fi
  done
  ((${#found[@]})) || fail "no update in progress in $repositories_folder" 'to start one, run: python3 set_up.py update'
}
