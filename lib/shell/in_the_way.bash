# shellcheck shell=bash disable=SC2154  # set by the caller: state
# Files that git does not track, where the new version or a patch brings files of its own.

# make_way FOLDER TARGET: before the move, untracked files that are in the way of the target's become
# part of the changes; an ignored one is the user's to decide about.
make_way() {
  local -r folder=$1 target=$2
  local path own
  local -a in_the_way=() kept=()
  recall tracked
  new_paths "$folder" "$REPLY" "$target" >"$state/files"
  while IFS= read -r -d '' path; do
    if is_in_the_way "$folder" "$path"; then in_the_way+=(":(literal)$REPLY"); fi
  done <"$state/files"
  if ((${#in_the_way[@]} == 0)); then return; fi

  git_in "$folder" ls-files -z --others --ignored --exclude-standard -- "${in_the_way[@]}" >"$state/files"
  while IFS= read -r -d '' path; do kept+=("$path"); done <"$state/files"
  if ((${#kept[@]})); then
    path=$folder/${kept[0]}
    fail "$folder: the new version has its own ${kept[0]}, where yours is ignored by git" \
      "move it away: mv $(printf '%q %q' "$path" "$path.mine"); then the same command again"
  fi
  git_in "$folder" ls-files -z --others --exclude-standard -- "${in_the_way[@]}" >"$state/files"
  if [[ ! -s $state/files ]]; then return; fi
  own=$(git_folder "$folder")
  GIT_INDEX_FILE=$own/longship-index git_in "$folder" update-index --add -z --stdin <"$state/files"
  recall staged
  remember tracked "$(own_commit "$folder" \
    "$(GIT_INDEX_FILE=$own/longship-index git_in "$folder" write-tree)" 'the files' -p "$REPLY")"
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

# new_paths FOLDER FROM TO: print what comes with the target, or with the patches.
new_paths() {
  local patch
  git_in "$1" diff-tree -r -z --name-only --no-renames --diff-filter=A "$2" "$3"
  for patch in "$state/patches"/*.patch; do
    if [[ -e $patch ]]; then git_in "$1" apply --numstat -z "$patch" | sed -z 's/^[^\t]*\t[^\t]*\t//'; fi
  done
}
