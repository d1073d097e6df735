# shellcheck shell=bash disable=SC2154  # set by the caller: state
# Patches that the group keeps for a repository, in patches/<name>/: applied on top of the configured
# commit, and written from what a user has changed.

# series_sum FOLDER: print one checksum over all patches of a folder, empty where there are none.
series_sum() {
  local -ar files=("$1"/*.patch)
  if [[ -e ${files[0]} ]]; then cat -- "${files[@]}" | sha256sum | cut -d ' ' -f 1; fi
}

# keep_series FOLDER: remember the patches as they are now, for this update.
keep_series() {
  local patch
  mkdir -p -- "$state/patches"
  for patch in "$1"/*.patch; do
    if [[ -e $patch ]]; then cp -- "$patch" "$state/patches"; fi
  done
}

# replay_series FOLDER: apply the remembered patches, and forget each that is in.
replay_series() {
  local -r folder=$1
  local patch
  for patch in "$state/patches"/*.patch; do
    if [[ ! -e $patch ]]; then continue; fi
    if [[ -e $state/stopped ]]; then
      end_patch "$folder" "$patch"
    elif is_in "$folder" "$patch"; then
      note "$folder: ${patch##*/} is already in the new version; save-patches leaves it out"
    elif ! apply_patch "$folder" "$patch"; then
      stop_for_conflict "$folder" "the patch ${patch##*/}"
    fi
    rm -- "$patch"
  done
  remember_output patched commit_of "$folder" HEAD
  remember step commits
}

# is_in FOLDER PATCH: whether upstream has taken it in: it could be undone, and not be applied (a
# line more in a file of equal lines could be both).
is_in() {
  ! git_in "$1" apply --check "$2" 2>/dev/null &&
    git_in "$1" apply --check --reverse "$2" 2>/dev/null
}

# apply_patch FOLDER PATCH: as a commit that is the same for everybody, with a three-way merge.
apply_patch() {
  local -r folder=$1 patch=$2
  local -x GIT_COMMITTER_NAME=Longship GIT_COMMITTER_EMAIL=longship@localhost
  remember_output patched_on commit_of "$folder" HEAD
  if is_mail "$patch"; then
    git_in "$folder" am --quiet --3way -k --keep-cr --no-scissors --committer-date-is-author-date \
      "$patch" >"$state/said" 2>&1
  elif is_commit_file "$patch"; then
    if changes_something "$patch"; then
      git_in "$folder" apply --3way --index "$patch" >"$state/said" 2>&1 || return
    fi
    commit_from_file "$folder" "$patch"
  else
    git_in "$folder" apply --3way --index "$patch" >"$state/said" 2>&1 &&
      commit_plain_patch "$folder" "$patch"
  fi
}

# is_mail PATCH: whether `git format-patch` made it; `git diff` writes no header.
is_mail() {
  [[ $(head -n 1 -- "$1") == 'From '* ]]
}

# commit_plain_patch FOLDER PATCH
commit_plain_patch() {
  local -rx GIT_AUTHOR_NAME=Longship GIT_AUTHOR_EMAIL=longship@localhost
  local -rx GIT_COMMITTER_DATE='2000-01-01T00:00:00Z' GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
  git_in "$1" commit --quiet --no-verify -m "${2##*/}"
}

# end_patch FOLDER PATCH: after a stop, commit what the user resolved, unless that is done.
end_patch() {
  local -r folder=$1 patch=$2
  check_resolved "$folder"
  if git_in "$folder" diff-index --cached --quiet HEAD && ! git_in "$folder" diff-files --quiet; then
    fail "$folder: your changes for the patch ${2##*/} are not staged" \
      "git add the files, then run: $UPDATE --continue; or cancel: $UPDATE --abort"
  fi
  if is_commit_file "$patch"; then
    recall patched_on
    if [[ $REPLY == "$(commit_of "$folder" HEAD)" ]]; then
      if git_in "$folder" diff-index --cached --quiet HEAD; then
        note "$folder: the patch ${2##*/} was left out"
      else
        commit_from_file "$folder" "$patch"
      fi
    fi
  elif [[ -e $(git_folder "$folder")/rebase-apply ]]; then
    if git_in "$folder" diff-index --cached --quiet HEAD; then
      git_in "$folder" am --quiet --skip
      note "$folder: the patch ${2##*/} was left out"
    else
      git_in "$folder" am --quiet --continue
    fi
  elif ! git_in "$folder" diff-index --cached --quiet HEAD; then
    commit_plain_patch "$folder" "$2"
  fi
  rm -f -- "$state/stopped"
}

# save_all_series: the changes in all repositories, for the group.
save_all_series() {
  prepare_git
  in_parallel save_series "${all_repositories[@]}"
  stop_if_failed
  next_step 'git add patches stacks && git commit'
}

# save_series NAME: write the changes of a repository to its folder in patches/.
save_series() {
  local -r name=$1 folder=$repositories_folder/$1 patches=${repository_patches[$1]}
  local state own base commits
  if [[ ! -e $folder/.git ]]; then
    note "repository not found: $folder"
    return
  fi
  own=$(git_folder "$folder")
  state=$own/longship-update
  check_no_update "$folder"
  if [[ -e $state/step ]]; then
    fail "$folder: an update was interrupted" 'run: python3 set_up.py update; then: python3 set_up.py save-patches'
  fi
  remove_own_locks "$own"
  rm -rf -- "$state"
  check_not_busy "$folder"
  base=$(commit_of "$folder" refs/longship/base) ||
    fail "$folder was not cloned by set_up.py, so the start of your changes is unknown" \
      'run: python3 set_up.py update'
  check_series_is_in "$name" "$own" "$patches"
  begin_work "$folder"
  take_snapshot "$folder"
  commits=$(changed_commits "$folder" "$base")
  if [[ -n $commits ]]; then
    write_series "$folder" "$state/new" "${commits##*$'\n'}" "$commits"
  fi
  put_series "$name" "$own" "$patches"
  tell_submodules "$folder" "$name"
  rm -rf -- "$state"
}

# tell_submodules FOLDER NAME: a patch cannot hold what is in another repository.
tell_submodules() {
  local entry path
  while IFS= read -r -d '' entry <&3; do
    path=${entry#* }
    if [[ ! -e $1/$path/.git ]]; then continue; fi
    if [[ ${entry%% *} != "$(commit_of "$1/$path" HEAD)" ||
      -n $(git_in "$1/$path" status --porcelain) ]]; then
      note "$2: the patches do not contain your changes in the submodule $path"
    fi
  done 3< <(submodules_of "$1")
}

# changed_commits FOLDER BASE: print the commits on top of it, and one more for what is not committed.
changed_commits() {
  local -r folder=$1 base=$2
  local tree head
  head=$(commit_of "$folder" HEAD)
  remember base "$(git_in "$folder" merge-base "$base" "$head" || printf '%s' "$base")"
  git_in "$folder" rev-list --reverse --topo-order "$head" --not "$base" --remotes --glob=refs/longship/tags
  tree=$(whole_tree "$folder")
  if [[ $tree != "$(tree_of "$folder" HEAD)" ]]; then
    # no time of its own, or the same changes would be another patch each time
    GIT_AUTHOR_DATE=$(git_in "$folder" log -1 --format=%aI) git_in "$folder" commit-tree "$tree" -p "$head" -m 'Changes that were not committed'
  fi
}

# whole_tree FOLDER: print a tree with everything, untracked files as well.
whole_tree() {
  local -r folder=$1
  local own tracked
  own=$(git_folder "$folder")
  local -x GIT_INDEX_FILE=$own/longship-index
  recall tracked
  tracked=$REPLY
  recall untracked
  git_in "$folder" read-tree "$tracked"
  if [[ -n $REPLY ]]; then
    git_in "$folder" ls-tree -r -z "$REPLY" | git_in "$folder" update-index --add -z --index-info
  fi
  git_in "$folder" write-tree
  rm -f -- "$GIT_INDEX_FILE"
}

# check_series_is_in NAME OWN PATCHES: patches that somebody else has added must not be overwritten.
check_series_is_in() {
  [[ $(sed -n 3p "$2/longship-settings") == "$(series_sum "$3")" ]] ||
    fail "$3 has changed since it was applied to $repositories_folder/$1" \
      'run: python3 set_up.py update; then: python3 set_up.py save-patches'
}

# put_series NAME OWN PATCHES: the new patches take the place of the old ones.
put_series() {
  local -r name=$1 own=$2 patches=$3
  local file plural=es
  local -a new
  new=("$state/new"/*.patch)
  if [[ ! -e ${new[0]} ]]; then new=(); fi
  if ((${#new[@]} == 0)) && [[ -z $(series_sum "$patches") ]]; then
    note "$name has no local changes"
    return
  fi
  mkdir -p -- "$patches" || fail_writing "$patches" "cannot write $patches" 'read the error above'
  rm -rf -- "$patches/.partial"
  mkdir -- "$patches/.partial"
  if ((${#new[@]})); then
    cp -- "${new[@]}" "$patches/.partial" ||
      fail_writing "$patches" "cannot write $patches" 'read the error above'
    mv -- "$patches/.partial"/*.patch "$patches"
  fi
  rmdir -- "$patches/.partial"
  for file in "$patches"/*.patch; do
    if [[ ! -e $state/new/${file##*/} ]]; then rm -f -- "$file"; fi
  done
  { head -n 2 -- "$own/longship-settings" && series_sum "$patches"; } >"$own/longship-settings.partial"
  mv -- "$own/longship-settings.partial" "$own/longship-settings"
  git_in "$repositories_folder/$name" update-ref refs/longship/patched HEAD
  if ((${#new[@]} == 1)); then plural=; fi
  printf '%s: %d patch%s in %s\n' "$name" "${#new[@]}" "$plural" "$patches" >&2
}
