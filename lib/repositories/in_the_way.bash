# shellcheck shell=bash disable=SC2154  # set by the caller: state
# Files that git does not track, where the new version or a patch brings files of its own.

# make_way FOLDER TARGET: before the move, untracked files that are in the way of the target's become
# part of the changes; an ignored one is the user's to decide about.
make_way() {
  local -r folder=$1 target=$2
  local path own
  local -a in_the_way=()
  recall tracked
  new_paths "$folder" "$REPLY" "$target" >"$state/files"
  while IFS= read -r -d '' path; do
    if is_in_the_way "$folder" "$path"; then in_the_way+=(":(literal)$REPLY"); fi
  done <"$state/files"
  if ((${#in_the_way[@]} == 0)); then return; fi

  others_among --ignored "${in_the_way[@]}" >"$state/others"
  others_among "${in_the_way[@]}" >"$state/files"
  grep -z '/$' "$state/files" >>"$state/others" || : # repositories in this one
  if IFS= read -r -d '' path <"$state/others"; then
    path=$folder/${path%/}
    fail "$path blocks the update and is not tracked by git" \
      "move it away: mv $(printf '%q %q' "$path" "$path.mine"); then run the command again"
  fi
  if [[ ! -s $state/files ]]; then return; fi
  own=$(git_folder "$folder")
  GIT_INDEX_FILE=$own/longship-index git_in "$folder" update-index --add -z --stdin <"$state/files"
  recall staged
  remember_output tracked own_commit "$folder" \
    "$(GIT_INDEX_FILE=$own/longship-index git_in "$folder" write-tree)" 'the files' -p "$REPLY"
  recall tracked
  keep_raw "$folder" HEAD "$REPLY" "$state/raw"
  save_raw
}

# others_among [--ignored] PATHSPEC...: print those files in "$folder" that git does not track.
others_among() {
  local -a which=(--others --exclude-standard)
  if [[ $1 == --ignored ]]; then
    which+=(--ignored)
    shift
  fi
  printf '%s\0' "$@" | xargs -0 git -C "$folder" ls-files -z "${which[@]}" --
}

# is_in_the_way FOLDER PATH: whether something is there already, or is a file where PATH has a folder;
# set REPLY to it.
is_in_the_way() {
  local rest=$2/
  REPLY=
  while [[ -n $rest ]]; do
    REPLY+=${REPLY:+/}${rest%%/*}
    rest=${rest#*/}
    if [[ ! -d $1/$REPLY || -L $1/$REPLY ]]; then break; fi
  done
  [[ -e $1/$REPLY || -L $1/$REPLY ]]
}

# new_paths FOLDER FROM TO: print what comes with the target, with the patches, and with the user's
# commits, which may add what later ones take out again.
new_paths() {
  local patch
  recall commits
  if [[ -n $REPLY ]]; then
    printf '%s\n' "$REPLY" | git_in "$1" diff-tree --stdin --root -r -z --name-only --no-commit-id \
      --no-renames --diff-filter=A
  fi
  git_in "$1" diff-tree -r -z --name-only --no-renames --diff-filter=A "$2" "$3"
  for patch in "$state/patches"/*.patch; do
    if [[ -e $patch ]]; then { git_in "$1" apply --numstat -z "$patch" 2>/dev/null || :; } | sed -z 's/^[^\t]*\t[^\t]*\t//'; fi
  done
}
