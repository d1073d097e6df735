# shellcheck shell=bash disable=SC2154  # the emitted script says: repositories_folder, saved
# Updates of external repositories: fetch, save the user's changes, move, replay. What is kept of them in
# a repository itself:
#
#   refs/longship/base          the configured commit that was checked out
#   refs/longship/patched       the same commit with the patches of the group
#   refs/longship/default       the server's default branch
#   refs/longship/tags/         the server's tags, apart from the user's own
#   refs/longship/saved/        the user's changes before each update, as `git stash` keeps them
#   refs/longship/given-up/     the state when an update was aborted
#   refs/longship/wanted        the configured commit, in a repository that `set_up.py download` wrote

# update_repositories: all of them to what is configured.
update_repositories() {
  prepare_git
  make_folders "$repositories_folder"
  step 1/1 "Updating ${all_repositories[*]}"
  in_parallel update_repository "${all_repositories[@]}"
  stop_if_failed
}

# update_repository NAME
update_repository() {
  local -r name=$1 folder=$repositories_folder/$1
  local own state target
  if [[ ! -e $folder && ! -L $folder ]]; then
    clone_repository "$name"
    return
  fi
  [[ -e $folder/.git ]] ||
    fail "$folder is not a git repository" \
      "move it away: mv $(printf '%q %q' "$folder" "$folder.old"); then run the command again"
  own=$(git_folder "$folder")
  state=$own/longship-update
  check_no_update "$folder"
  recall step
  if [[ $REPLY == finished ]]; then
    complete_update "$folder" "$name" # it stopped at a submodule
  else
    if [[ -n $REPLY ]]; then
      note "$name: the last update was interrupted; restarting from the state before it"
    fi
    restore_all "$folder"
  fi
  rm -rf -- "$state"
  check_not_busy "$folder"
  begin_work "$folder"
  follow_url "$name" "$folder"
  fetch_repository "$name" "$folder"
  target=$(find_target "$name" "$folder")
  if is_up_to_date "$name" "$folder" "$target"; then
    printf '%s is up to date: %s\n' "$name" "$(shown_commit "$folder" "$target")" >&2
    rm -rf -- "$state"
    return
  fi
  move_repository "$folder" "$name" "$target" "${repository_patches[$name]}"
  complete_update "$folder" "$name"
}

# complete_update FOLDER NAME: after the repository itself, its submodules.
complete_update() {
  update_submodules "$1" "$2"
  finish_update "$2"
}

# check_no_update FOLDER: stop where an update waits for the user.
check_no_update() {
  if [[ -e $state/stopped ]]; then
    fail "$1: an update is waiting for you to resolve conflicts" \
      "resolve them (see git status) and git add the files, then run: $UPDATE --continue; or cancel: $UPDATE --abort"
  fi
  for_submodules "$1" check_no_update
}

# follow_url NAME FOLDER: a changed URL becomes origin; the old remote keeps its branches under
# another name.
follow_url() {
  local -r url=${repository_url[$1]} folder=$2
  local now name said branch number=1
  now=$(git_in "$folder" config --get remote.origin.url || :)
  add_upstream "$1" "$folder"
  if [[ $now == "$url" ]]; then return; fi
  if [[ -z $bundles ]]; then
    said=$(git_in "$folder" ls-remote --heads -- "$url" 2>&1) || explain_git "$1" "$url" "$said"
  fi
  if [[ -n $now ]]; then
    name=former-origin
    while git_in "$folder" config --get "remote.$name.url" >/dev/null; do
      number=$((number + 1))
      name=former-origin-$number
    done
    said=$(git_in "$folder" remote rename origin "$name" 2>&1) || explain_git "$1" "$now" "$said"
    note "$1: the former remote, $now, is now called $name"
  fi
  git_in "$folder" remote add origin "$url"
  branch=$(git_in "$folder" symbolic-ref --quiet --short HEAD || :)
  if [[ -n $branch && -n $now ]]; then git_in "$folder" config "branch.$branch.remote" origin; fi
}

# fetch_repository NAME FOLDER: a configured commit that is there needs no network.
fetch_repository() {
  local -r name=$1 folder=$2 ref=${repository_ref[$1]}
  local said source
  local -a options=(--quiet) more=()
  if [[ $ref =~ ^[0-9a-f]{40}$ ]] && commit_of "$folder" "$ref" >/dev/null; then return; fi
  if [[ $(git_in "$folder" rev-parse --is-shallow-repository) == true ]]; then options+=(--unshallow); fi
  source=$(source_of "$name")
  if [[ -z $ref ]]; then more+=('+HEAD:refs/longship/default'); fi
  # a bundle is no remote; of a server it must be told which one, for what is fetched later
  if [[ -z $bundles ]]; then source=origin; fi
  said=$(git_in "$folder" fetch "${options[@]}" "$source" '+refs/heads/*:refs/remotes/origin/*' \
    '+refs/tags/*:refs/longship/tags/*' ${more[@]+"${more[@]}"} 2>&1) ||
    explain_git "$name" "$(source_of "$name")" "$said"
  if [[ -n ${repository_upstream[$name]} && -z $bundles ]]; then
    said=$(git_in "$folder" fetch --quiet upstream 2>&1) ||
      explain_git "$name" "${repository_upstream[$name]}" "$said"
  fi
}

# own_commits FOLDER TARGET EXCLUDED...: print the user's commits, oldest first: those that neither the
# target nor the server's default branch, configured branch and tags have. Other branches there can
# be where the user has pushed them.
own_commits() {
  local -r folder=$1
  local name
  local -a theirs=()
  name=$(sed -n 2p "$(git_folder "$folder")/longship-settings" 2>/dev/null || :)
  for name in refs/longship/base refs/longship/default refs/remotes/origin/HEAD \
    ${name:+"refs/remotes/origin/$name"}; do
    if commit_of "$folder" "$name" >/dev/null; then theirs+=("$name"); fi
  done
  git_in "$folder" rev-list --reverse --topo-order HEAD --not "${@:2}" ${theirs[@]+"${theirs[@]}"} \
    --remotes=upstream --glob=refs/longship/tags
}

# is_up_to_date NAME FOLDER TARGET: whether HEAD is the target, the patches, and the user's commits.
is_up_to_date() {
  local -r folder=$2 target=$3
  local patched
  [[ $(commit_of "$folder" refs/longship/base) == "$target" ]] || return 1
  [[ $(settings_of "$1") == "$(cat -- "$own/longship-settings" 2>/dev/null)" ]] || return 1
  patched=$(commit_of "$folder" refs/longship/patched) || return 1
  git_in "$folder" merge-base --is-ancestor "$patched" HEAD || return 1
  [[ $(git_in "$folder" rev-list HEAD --not "$patched") == \
    "$(own_commits "$folder" "$target" "$patched" | tac)" ]]
}

# move_repository FOLDER NAME TARGET PATCHES [EXCLUDED...]: to the target, with everything replayed.
move_repository() {
  local -r folder=$1 name=$2 target=$3
  start_update "$folder" "$name" "$target" "$4" "${@:5}"
  make_way "$folder" "$target"
  remember step move
  replay "$folder"
  tell_update "$folder" "$name"
}

# start_update FOLDER NAME TARGET PATCHES [EXCLUDED...]: remember all that is needed; nothing has
# been touched yet.
start_update() {
  local -r folder=$1 name=$2 target=$3
  local commits patched
  if [[ ! -e $state/locks ]]; then begin_work "$folder"; fi
  take_snapshot "$folder"
  remember target "$target"
  remember base "$(git_in "$folder" merge-base HEAD "$target" || printf '%s' "$target")"
  if [[ -n $4 ]]; then keep_series "$4"; fi
  commits=$(own_commits "$folder" "$target" "${@:5}")
  remember commits ''
  if has_changes "$folder" "$commits"; then
    recall tracked
    keep_raw "$folder" HEAD "$REPLY" "$state/raw"
    save_changes "$folder" "$name" "$commits"
    save_raw
    # the group's patches are applied anew
    patched=$(commit_of "$folder" refs/longship/patched || printf '%s' "$target")
    commits=$(own_commits "$folder" "$target" "${@:5}" "$patched")
    if [[ -n $commits ]]; then remember_output commits as_picks "$folder" "$commits"; fi
    tell_left_out "$folder" "$name" "$patched"
  fi
}

# tell_left_out FOLDER NAME PATCHED: commits that came from patches which are no longer there.
tell_left_out() {
  local base
  local -i before now
  base=$(commit_of "$1" refs/longship/base) || return 0
  before=$(git_in "$1" rev-list --count "$3" --not "$base")
  now=$(find "$state/patches" -name '*.patch' 2>/dev/null | wc -l)
  if ((before > now)); then
    recall saved_folder
    note "$2: of $before applied patches, $now still exist; all are saved in $REPLY"
  fi
}

# as_picks FOLDER COMMITS: print what is picked: the commits, or one for all where they hold a merge.
as_picks() {
  local -a commits
  read -r -d '' -a commits <<<"$2" || :
  if ! holds_merge "$1" "${commits[@]}"; then
    printf '%s' "$2"
    return
  fi
  recall base
  git_in "$1" commit-tree "$(tree_of "$1" HEAD)" -p "$REPLY" \
    -m "Local changes, ${#commits[@]} commits with merges" \
    -m "$(git_in "$1" log --no-walk=unsorted --format='%h %s' "${commits[@]}")"
}

# tell_update FOLDER NAME: where it was and is, and where the changes are kept.
tell_update() {
  local before
  recall head
  before=$(shown_commit "$1" "$REPLY")
  recall target
  printf '%s: %s -> %s\n' "$2" "$before" "$(shown_commit "$1" "$REPLY")" >&2
  recall saved_folder
  if [[ -n $REPLY ]]; then
    printf '%s: your changes are replayed; saved as they were in %s\n' "$2" "$REPLY" >&2
  fi
}

# finish_update NAME: all is there, submodules too.
finish_update() {
  local -r folder=$repositories_folder/$1
  local own
  own=$(git_folder "$folder")
  recall target
  git_in "$folder" update-ref refs/longship/base "$REPLY"
  recall patched
  git_in "$folder" update-ref refs/longship/patched "$REPLY"
  settings_of "$1" >"$own/longship-settings"
  forget_update "$folder"
}

# forget_update FOLDER: with all submodules.
forget_update() {
  for_submodules "$1" forget_update
  rm -rf -- "$state"
}
