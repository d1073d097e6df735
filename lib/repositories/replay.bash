# shellcheck shell=bash disable=SC2154,SC2034  # set by the caller: state
# A repository is moved to another commit and the user's changes are replayed on top. What is done is
# remembered in steps, so that a conflict, which git's own commands resolve, is no dead end:
#   move     the working tree holds something between the old and the new commit
#   series   patches/ of this repository are applied
#   commits  the user's commits are picked
#   changes  what was not committed is merged
#   finished all is there; submodules follow

declare -g UPDATE='python3 set_up.py update'

# replay FOLDER: go on at the remembered step.
replay() {
  recall step
  case $REPLY in
    move) replay_move "$1" ;;&
    move | series) replay_series "$1" ;;&
    move | series | commits) replay_commits "$1" ;;&
    move | series | commits | changes) replay_changes "$1" ;;
  esac
}

# replay_move FOLDER: from the tracked changes, as if they were committed, to the target.
replay_move() {
  local -r folder=$1
  local own target
  own=$(git_folder "$folder")
  recall target
  target=$REPLY
  recall tracked
  git_in "$folder" update-ref --no-deref -m 'longship: update' HEAD "$REPLY"
  mv -- "$own/longship-index" "$own/index"
  if ! git_in "$folder" checkout --quiet --no-overwrite-ignore --detach "$target" 2>"$state/said"; then
    take_back "$folder"
    cat -- "$state/said" >&2
    fail_writing "$folder" "cannot move $folder to $(shown_commit "$folder" "$target")" \
      "read git's output above; the repository is unchanged"
  fi
  remember step series
}

# replay_commits FOLDER: pick the remembered commits, one after the other.
replay_commits() {
  local -r folder=$1
  local commit rest
  while recall commits && [[ -n $REPLY ]]; do
    commit=${REPLY%%$'\n'*}
    rest=${REPLY#"$commit"}
    if [[ -e $state/stopped ]]; then
      end_pick "$folder" "$commit"
    else
      remember_output picked_on commit_of "$folder" HEAD
      recall commits
      pick "$folder" "$commit" --allow-empty ||
        stop_for_conflict "$folder" "your commit $(commit_title "$folder" "$commit")"
    fi
    remember commits "${rest#$'\n'}"
  done
  remember_output replayed commit_of "$folder" HEAD
  remember step changes
}

# commit_title FOLDER COMMIT: print its short name and subject.
commit_title() {
  git_in "$1" show --no-patch --format='%h "%s"' "$2"
}

# pick FOLDER COMMIT OPTION...: cherry-pick it; a commit whose changes are there already is left out.
# Fails where the user has to resolve something.
pick() {
  local -r folder=$1 commit=$2
  if git_in "$folder" -c commit.cleanup=verbatim cherry-pick "${@:3}" "$commit" >"$state/said" 2>&1; then
    # with the bytes of its message: git changes their encoding to that of the configuration
    if [[ ${3-} == --allow-empty ]] && ! is_like "$folder" "$commit"; then
      git_in "$folder" update-ref --no-deref HEAD HEAD^
      commit_like "$folder" "$commit"
    fi
    return
  fi
  if [[ -n $(git_in "$folder" ls-files --unmerged) ]]; then return 1; fi
  if [[ -e $(git_folder "$folder")/CHERRY_PICK_HEAD ]] && git_in "$folder" diff-index --quiet HEAD; then
    git_in "$folder" cherry-pick --quit
    note "$folder: $(commit_title "$folder" "$commit") is already in the new version"
    return
  fi
  cat -- "$state/said" >&2
  fail_writing "$folder" "$folder: git cannot cherry-pick $(commit_title "$folder" "$commit")" \
    "read git's output above; to cancel the update, run: $UPDATE --abort"
}

# end_pick FOLDER COMMIT: after a stop, commit what the user resolved, unless that is done.
end_pick() {
  local -r folder=$1
  check_resolved "$folder"
  if [[ -e $(git_folder "$folder")/CHERRY_PICK_HEAD ]]; then
    if git_in "$folder" diff-index --cached --quiet HEAD; then
      git_in "$folder" cherry-pick --quit
    else
      commit_like "$folder" "$2" # git's own command would take out lines that begin with #
      git_in "$folder" cherry-pick --quit
      rm -f -- "$(git_folder "$folder")/MERGE_MSG"
    fi
  fi
  recall picked_on
  if [[ $REPLY == "$(commit_of "$folder" HEAD)" ]]; then
    recall saved_folder
    note "$folder: your commit $(commit_title "$folder" "$2") was left out; it is saved in $REPLY"
  fi
  rm -f -- "$state/stopped"
}

# check_resolved FOLDER: stop where conflicts are left.
check_resolved() {
  local files
  files=$(conflicts "$1")
  if [[ -n $files ]]; then
    fail "$1: unresolved conflicts in $files" \
      "resolve them and git add the files, then run: $UPDATE --continue; or cancel: $UPDATE --abort"
  fi
  files=$(files_with_markers "$1")
  if [[ -n $files ]]; then
    fail "$1: conflict markers left in $files" \
      "remove them and git add the files, then run: $UPDATE --continue; or cancel: $UPDATE --abort"
  fi
}

# files_with_markers FOLDER: print the files that had conflicts and are staged with the marks of them.
files_with_markers() {
  local file all=
  if [[ ! -e $state/conflicts ]]; then return; fi
  while IFS= read -r -d '' file; do
    if git_in "$1" show ":$file" 2>/dev/null | grep -c -a -e '^<<<<<<< ' -e '^>>>>>>> ' >/dev/null; then
      all+=${all:+, }$file
    fi
  done <"$state/conflicts"
  printf '%s' "$all"
}

# conflicts FOLDER: print the files with conflicts.
conflicts() {
  local file all=
  while IFS= read -r -d '' file; do all+=${all:+, }$file; done < \
    <(git_in "$1" diff --name-only --diff-filter=U -z)
  printf '%s' "$all"
}

# stop_for_conflict FOLDER WHAT: leave it to the user, as git would.
stop_for_conflict() {
  local files where
  files=$(conflicts "$1")
  if [[ -z $files ]]; then sed 's/^/  /' "$state/said" >&2; fi
  git_in "$1" diff --name-only --diff-filter=U -z >"$state/conflicts"
  touch -- "$state/stopped"
  recall saved_folder
  where=${REPLY:+; your changes are saved in $REPLY}
  fail "$1: cannot apply $2 to the new version${files:+: conflicts in $files}" \
    "resolve them and git add the files, then run: $UPDATE --continue; or cancel: $UPDATE --abort$where"
}

# replay_changes FOLDER: what was staged, and then what was not, on top of the new HEAD.
replay_changes() {
  local -r folder=$1
  local file
  if [[ ! -e $state/stopped ]]; then
    local -i merged=1
    merge_changes "$folder" || merged=0
    put_back_raw "$folder" # now: what the user does before --continue is the user's
    ((merged)) || stop_for_conflict "$folder" 'your uncommitted changes'
    recall new_index
    git_in "$folder" read-tree -m "$REPLY"
  else
    check_resolved "$folder"
    index_after_conflict "$folder"
    rm -f -- "$state/stopped"
  fi
  while IFS= read -r -d '' file; do # what `git add -N` did
    git_in "$folder" add -N -f -- ":(literal)$file" 2>/dev/null || :
  done <"$state/announced"
  git_in "$folder" update-index -q --refresh >/dev/null || :
  finish_replay "$folder"
}

# merge_changes FOLDER: three-way merges, first of the index, then of the files; remember `new_index`,
# the tree that is to be staged in the end. Fails with conflict markers in the files.
merge_changes() {
  local -r folder=$1
  local head staged tracked
  recall head
  head=$REPLY
  recall staged
  staged=$REPLY
  recall tracked
  tracked=$REPLY
  if [[ $(tree_of "$folder" "$staged") != "$(tree_of "$folder" "$head")" ]] &&
    ! merge_into_index "$folder" "$staged"; then
    # not even what was staged merges: all at once, for one conflict instead of two
    git_in "$folder" reset --quiet --hard
    remember new_index "$(tree_of "$folder" HEAD)"
    tracked=$(own_commit "$folder" "$(tree_of "$folder" "$tracked")" 'all' -p "$head")
    merge_into_index "$folder" "$tracked"
    return
  fi
  remember_output new_index git_in "$folder" write-tree
  [[ $(tree_of "$folder" "$tracked") == "$(tree_of "$folder" "$staged")" ]] ||
    merge_into_index "$folder" "$tracked"
}

# merge_into_index FOLDER COMMIT: what it changes, merged into index and files.
merge_into_index() {
  local status=0
  pick "$1" "$2" --no-commit || status=1
  rm -f -- "$(git_folder "$1")/MERGE_MSG"
  return "$status"
}

# index_after_conflict FOLDER: as it was, but resolved files that had been staged are staged; where
# the user has committed meanwhile, the index is left alone.
index_after_conflict() {
  local -r folder=$1
  local head staged
  recall replayed
  if [[ $REPLY != "$(commit_of "$folder" HEAD)" ]]; then return; fi
  recall head
  head=$REPLY
  recall staged
  staged=$REPLY
  git_in "$folder" diff-tree -r -z --name-only --no-renames "$head" "$staged" >"$state/files"
  recall new_index
  git_in "$folder" read-tree -m "$REPLY"
  if [[ $REPLY != "$(tree_of "$folder" HEAD)" ]]; then return; fi
  git_in "$folder" update-index --add --remove -z --stdin <"$state/files"
}

# finish_replay FOLDER: the branch that the user was on moves along.
finish_replay() {
  recall branch
  if [[ -n $REPLY ]]; then
    git_in "$1" update-ref -m 'longship: update' "$REPLY" HEAD
    git_in "$1" symbolic-ref -m 'longship: update' HEAD "$REPLY"
  fi
  remember step finished
}
