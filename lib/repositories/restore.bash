# shellcheck shell=bash disable=SC2154  # set by the caller: state, saved, repositories_folder
# The way back: a repository as it was before an update, whatever step that is at.

# restore FOLDER: keep what is there now, and take the repository back.
restore() {
  save_what_is_there "$1"
  take_back "$1"
}

# take_back FOLDER: exactly as it was before the update, whatever step it is at.
take_back() {
  local -r folder=$1
  local own step tracked
  own=$(git_folder "$folder")
  remove_own_locks "$own"
  recall step
  step=$REPLY
  git_in "$folder" cherry-pick --quit 2>/dev/null || :
  rm -rf -- "$own/rebase-apply" "$own/CHERRY_PICK_HEAD" "$own/MERGE_MSG"
  recall tracked
  tracked=$REPLY
  # killed on its way, it may hold files of the target that the index does not know of
  if [[ $step == move ]]; then
    remove_left_over "$folder" "$tracked"
    git_in "$folder" read-tree "$tracked"
  fi
  if ! { git_in "$folder" read-tree --reset -u "$tracked" && restore_head "$folder" &&
    cp -p -- "$state/index" "$own/index"; }; then
    fail_writing "$folder" "cannot restore $folder" \
      'read the output above, then run: python3 set_up.py update --abort'
  fi
  put_back_raw "$folder"
  git_in "$folder" update-index -q --refresh >/dev/null || :
  remember step restored
}

# begin_work FOLDER: an empty state, with a list of the locks of git's that are there already: those that come
# are this program's.
begin_work() {
  rm -rf -- "$state"
  mkdir -- "$state"
  list_locks "$(git_folder "$1")" >"$state/locks"
}

# list_locks OWN: print git's locks; a submodule has its own.
list_locks() {
  find "$1" \( -path "$1/modules" -o -path "$1/objects" -o -path "$1/longship-update" \) -prune -o \
    -name '*.lock' -print0
}

# remove_own_locks OWN: what a git was killed with, that this program had started.
remove_own_locks() {
  local lock
  local -A known=()
  rm -f -- "$1"/longship-*.lock # nobody else's
  if [[ ! -e $state/locks ]]; then return; fi
  while IFS= read -r -d '' lock; do known[$lock]=1; done <"$state/locks"
  while IFS= read -r -d '' lock; do
    if [[ -z ${known[$lock]:-} ]] && ! is_open "$lock"; then rm -f -- "$lock"; fi
  done < <(list_locks "$1")
}

# is_open FILE: whether a process of this user has it open: a git that was started since.
is_open() {
  local file
  for file in /proc/[0-9]*/fd/*; do
    if [[ $file -ef $1 ]]; then return; fi
  done
  return 1
}

# remove_left_over FOLDER TRACKED: new files of the target that a killed move has left; no file of the
# user's was in their place, or there would have been no move.
remove_left_over() {
  local path blob
  recall target
  while IFS= read -r -d '' path; do
    if [[ ! -f $1/$path && ! -L $1/$path ]]; then continue; fi
    blob=$(git_in "$1" rev-parse "$REPLY:$path")
    if [[ -L $1/$path || ! -s $1/$path ||
      $(git_in "$1" hash-object --path="$path" -- "$path" 2>/dev/null) == "$blob" ]]; then
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

# save_what_is_there FOLDER: what the user has done since the update began is not lost either.
save_what_is_there() {
  local -r folder=$1 ref=refs/longship/given-up/$(date +%Y%m%dT%H%M%S).$$
  local -r raw=$saved/given-up/${ref##*/}/${folder#"$repositories_folder/"}
  local own tree
  own=$(git_folder "$folder")
  remove_own_locks "$own"
  recall step
  if [[ ! -e $state/stopped && $REPLY == restored ]]; then return; fi
  local -x GIT_INDEX_FILE=$own/longship-index
  if ! { git_in "$folder" read-tree HEAD && git_in "$folder" add --update -- :/; }; then
    fail_writing "$folder" "$folder: cannot save the current state" \
      "$READ_ABOVE"
  fi
  git_in "$folder" add --all --ignore-errors -- :/ 2>/dev/null || : # a file that nobody may read
  tree=$(git_in "$folder" write-tree)
  rm -f -- "$GIT_INDEX_FILE"
  git_in "$folder" update-ref "$ref" \
    "$(own_commit "$folder" "$tree" 'given up' -p "$(commit_of "$folder" HEAD)")"
  note "$folder: the state before this command is saved: git show $ref"
  (umask 077 && keep_raw "$folder" HEAD "$tree" "$raw")
  if [[ -d $raw ]]; then note "$folder: files that git filters change are saved in $raw"; fi
}
