# shellcheck shell=bash disable=SC2154  # set by the caller: state
# The way back: a repository as it was before an update, whatever step that is at.

# restore FOLDER: exactly as it was before the update, whatever step it is at.
restore() {
  local -r folder=$1
  local own step tracked
  own=$(git_folder "$folder")
  recall step
  step=$REPLY
  save_what_is_there "$folder" "$own"
  git_in "$folder" cherry-pick --quit 2>/dev/null || :
  rm -rf -- "$own/rebase-apply" "$own/CHERRY_PICK_HEAD" "$own/MERGE_MSG" "$own/index.lock"
  recall tracked
  tracked=$REPLY
  # killed on its way, it may hold files of the target that the index does not know of
  if [[ $step == move ]]; then
    remove_left_over "$folder" "$tracked"
    git_in "$folder" read-tree "$tracked"
  fi
  git_in "$folder" read-tree --reset -u "$tracked" ||
    fail_writing "$folder" "$folder cannot be taken back to what it was" \
      'see the lines above; then: python set_up.py update --abort'
  restore_head "$folder"
  cp -p -- "$state/index" "$own/index"
  git_in "$folder" update-index -q --refresh >/dev/null || :
  remember step restored
}

# remove_left_over FOLDER TRACKED: new files of the target that a killed move has left; no file of the
# user's was in their place, or there would have been no move.
remove_left_over() {
  local path blob
  recall target
  while IFS= read -r -d '' path; do
    if [[ ! -f $1/$path && ! -L $1/$path ]]; then continue; fi
    blob=$(git_in "$1" rev-parse "$REPLY:$path")
    if [[ -L $1/$path || $(git_in "$1" hash-object --path="$path" -- "$path" 2>/dev/null) == "$blob" || ! -s $1/$path ]]; then
      rm -f -- "$1/$path"
    fi
  done < <(git_in "$1" diff-tree -r -z --name-only --no-renames --diff-filter=A "$2" "$REPLY")
}

# restore_head FOLDER: the commit, and the branch it was on.
restore_head() {
  local head
  recall head
  head=$REPLY
  recall branch
  if [[ -n $REPLY ]]; then
    git_in "$1" update-ref -m 'longship: abort' "$REPLY" "$head"
    git_in "$1" symbolic-ref -m 'longship: abort' HEAD "$REPLY"
  else
    git_in "$1" update-ref --no-deref -m 'longship: abort' HEAD "$head"
  fi
}

# save_what_is_there FOLDER OWN: what the user has done to resolve a conflict is not lost either.
save_what_is_there() {
  recall step
  if [[ ! $REPLY =~ ^(series|commits|changes)$ ]]; then return; fi
  local -x GIT_INDEX_FILE=$2/longship-index
  local commit
  git_in "$1" read-tree HEAD
  git_in "$1" add --all 2>/dev/null || :
  commit=$(own_commit "$1" "$(git_in "$1" write-tree)" 'given up' -p "$(commit_of "$1" HEAD)")
  git_in "$1" update-ref "refs/longship/given-up/$(date +%Y%m%dT%H%M%S).$$" "$commit"
  rm -f -- "$GIT_INDEX_FILE"
}
