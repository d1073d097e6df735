# shellcheck shell=bash disable=SC2154,SC2034  # set by the caller: state, saved
# The user's changes in a repository, kept in two ways before anything is touched: a commit under
# refs/longship/saved/ of the form that `git stash` makes, and patches in a folder of the project.
#
# What an update has to remember lies in a folder of the repository's own, called state here:
# head, branch, target, ...; a file each.

declare -g ALL_PATCH=0001-all-of-a-history-with-merges.patch

declare -g MOST_SAVED_BYTES=$((100 << 20)) # of an untracked file; larger ones are results, not changes

# remember NAME VALUE: keep a value for the rest of the update.
remember() {
  printf '%s\n' "$2" >"$state/$1.partial"
  mv -- "$state/$1.partial" "$state/$1"
}

# remember_output NAME COMMAND...: keep what it prints; that it failed would be lost in an argument.
remember_output() {
  local printed
  printed=$("${@:2}")
  remember "$1" "$printed"
}

# recall NAME: set REPLY to what was kept, empty where nothing was.
recall() {
  REPLY=
  if [[ -e $state/$1 ]]; then REPLY=$(<"$state/$1"); fi
}

# take_snapshot FOLDER: commits that hold what is there now; remembers head, branch, the index itself,
# and the commits `staged` and `tracked` (all that git knows, as it lies there) and `untracked`.
take_snapshot() {
  local -r folder=$1
  local own head branch
  own=$(git_folder "$folder")
  head=$(commit_of "$folder" HEAD)
  branch=$(git_in "$folder" symbolic-ref --quiet HEAD || :)
  remember head "$head"
  remember branch "$branch"
  cp -p -- "$own/index" "$state/index"
  # a file that `git add -N` announced is in the index without content
  git_in "$folder" diff --name-only --diff-filter=A -z >"$state/announced"
  remember_output staged own_commit "$folder" "$(git_in "$folder" write-tree)" 'the index' -p "$head"
  take_tracked "$folder" "$own"
  take_untracked "$folder" "$own"
}

# take_tracked FOLDER OWN: remember `tracked`; what submodules are at is taken from the index, because
# they are repositories with an update of their own.
take_tracked() {
  git_in "$1" ls-files --stage -z | grep -z '^160000 ' >"$state/submodules" || :
  local -x GIT_INDEX_FILE=$2/longship-index
  cp -p -- "$state/index" "$GIT_INDEX_FILE"
  git_in "$1" add --update -- :/
  git_in "$1" update-index -z --index-info <"$state/submodules"
  recall staged
  remember_output tracked own_commit "$1" "$(git_in "$1" write-tree)" 'the files' -p "$REPLY"
}

# keep_raw FOLDER FROM TO INTO: copy the files which TO has and FROM has not, if a filter of git changes them
# on their way in (notebooks without output, line ends).
keep_raw() {
  local entry path blob
  while IFS= read -r -d '' entry && IFS= read -r -d '' path; do
    read -r _ _ _ blob _ <<<"$entry"
    if [[ ! -f $1/$path || -L $1/$path ||
      $(git_in "$1" hash-object --no-filters -- "$path") == "$blob" ]]; then continue; fi
    entry=$4/$path
    mkdir -p -- "${entry%/*}"
    cp -p -- "$1/$path" "$entry"
  done < <(git_in "$1" diff-tree -r -z --raw --no-abbrev --no-renames --diff-filter=AMT "$2" "$3")
}

# put_back_raw FOLDER: the same files, where an update has not changed what git knows of them.
put_back_raw() {
  local path
  if [[ ! -d $state/raw ]]; then return; fi
  recall tracked
  while IFS= read -r -d '' path; do
    if [[ $(git_in "$1" hash-object --path="$path" -- "$path" 2>/dev/null) == \
      "$(git_in "$1" rev-parse "$REPLY:$path")" ]]; then
      cp -p -- "$state/raw/$path" "$1/$path"
    fi
  done < <(cd -- "$state/raw" && find . -type f -printf '%P\0')
}

# take_untracked FOLDER OWN: remember `untracked`, empty where there is no such file.
take_untracked() {
  local file
  git_in "$1" ls-files --full-name --others --exclude-standard -z >"$state/others"
  while IFS= read -r -d '' file; do
    if [[ $file == *$'\t'*/ ]]; then
      note "$1/${file#*$'\t'} is a git repository itself; left unchanged, and not saved"
    elif ((${file%%$'\t'*} > MOST_SAVED_BYTES)); then
      note "$1/${file#*$'\t'} is larger than 100 MB; left unchanged, and not saved"
    else
      printf '%s\0' "${file#*$'\t'}"
    fi
  done < <(cd -- "$1" && xargs -0 -r stat --printf='%s\t%n\0' -- <"$state/others") >"$state/files"
  remember untracked ''
  if [[ -s $state/files ]]; then
    local -x GIT_INDEX_FILE=$2/longship-untracked
    rm -f -- "$GIT_INDEX_FILE"
    git_in "$1" update-index --add -z --stdin <"$state/files"
    remember_output untracked own_commit "$1" "$(git_in "$1" write-tree)" 'untracked files'
    rm -f -- "$GIT_INDEX_FILE"
  fi
}

# has_changes FOLDER COMMITS: whether there is anything that no server has.
has_changes() {
  local staged tracked
  recall staged
  staged=$(tree_of "$1" "$REPLY")
  recall tracked
  tracked=$(tree_of "$1" "$REPLY")
  recall untracked
  [[ -n $2 || -n $REPLY || $staged != "$(tree_of "$1" HEAD)" || $tracked != "$staged" ]]
}

# save_changes FOLDER NAME COMMITS: keep the snapshot under a ref and as patches, below "$saved".
save_changes() {
  local -r folder=$1 id=$(date +%Y%m%dT%H%M%S).$$
  local -r ref=refs/longship/saved/$id into=$saved/$2/$id
  local head staged tracked commit
  local -a untracked=()
  recall head
  head=$REPLY
  recall staged
  staged=$REPLY
  recall tracked
  tracked=$REPLY
  recall untracked
  if [[ -n $REPLY ]]; then untracked=(-p "$REPLY"); fi
  commit=$(own_commit "$folder" "$(tree_of "$folder" "$tracked")" \
    "On update: saved by Longship" -p "$head" -p "$staged" ${untracked[@]+"${untracked[@]}"})
  git_in "$folder" update-ref "$ref" "$commit"
  remember saved_ref "$ref"
  remember saved_folder "$into"
  (umask 077 && rm -rf -- "$into.partial" && mkdir -p -- "$into.partial") ||
    fail_writing "$saved" "cannot write $into" 'read the error above'
  write_patches "$folder" "$into.partial" "$3" ||
    fail_writing "$into.partial" "cannot write the patches $into" 'read the error above'
  mv -- "$into.partial" "$into"
}

# save_raw: keep those files next to the patches, too; if only files too large to be saved are in the way, there
# are none.
save_raw() {
  recall saved_folder
  if [[ -z $REPLY || ! -d $state/raw ]]; then return; fi
  (umask 077 && cp -R -p -T -- "$state/raw" "$REPLY/before-filters") ||
    fail_writing "$REPLY" "cannot write $REPLY/before-filters" 'read the error above'
}

# write_patches FOLDER INTO COMMITS: the changes as files that `git apply` reads.
write_patches() {
  local -r folder=$1 into=$2 ref=$(recall saved_ref && printf '%s' "$REPLY")
  if [[ -n $3 ]]; then
    write_series "$folder" "$into/commits" "$ref^1" "$3" || return
  fi
  patch_between "$folder" "$ref^1" "$ref^2" >"$into/staged.patch" || return
  patch_between "$folder" "$ref^2" "$ref" >"$into/unstaged.patch" || return
  if commit_of "$folder" "$ref^3" >/dev/null; then
    patch_between "$folder" "$(git_in "$folder" hash-object -t tree /dev/null)" "$ref^3" \
      >"$into/untracked.patch" || return
  fi
  find "$into" -maxdepth 1 -type f -empty -delete
  cat >"$into/README.txt" <<END
The changes in $folder, as they were before an update.

Exactly as they were, in a second working tree (DIR: a directory that does not exist yet):
  git -C $(printf %q "$folder") worktree add DIR $ref^1
  git -C DIR stash apply --index $ref

On top of the current files, in this order:
$(how_to_apply "$into")
END
}

# how_to_apply INTO: print a command for each of the patches that are there.
how_to_apply() {
  local name
  local -r folder=$(printf %q "${1%.partial}")
  if [[ -e $1/commits/$ALL_PATCH ]]; then
    printf '  git apply --3way %s/commits/%s\n' "$folder" "$ALL_PATCH"
  elif [[ -d $1/commits ]]; then
    # shellcheck disable=SC2016  # for the user's shell
    printf '  for each in %s/commits/*.patch; do git apply --3way --index "$each" &&\n' "$folder"
    # shellcheck disable=SC2016  # for the user's shell
    printf '    git commit --quiet --cleanup=verbatim -F <(sed "1,/^$/d; /^    /!Q; s/^    //" "$each") || break; done\n'
  fi
  for name in staged unstaged untracked; do
    if [[ -e $1/$name.patch ]]; then printf '  git apply --3way %s/%s.patch\n' "$folder" "$name"; fi
  done
}

# write_series FOLDER INTO HEAD COMMITS: a patch for each commit, oldest first; one for all of them
# where they hold a merge, which no patch can.
write_series() {
  local -r folder=$1 into=$2 head=$3
  local -a commits
  local commit name number=0
  read -r -d '' -a commits <<<"$4" || :
  mkdir -p -- "$into"
  if holds_merge "$folder" "${commits[@]}"; then
    recall base
    patch_between "$folder" "$REPLY" "$head" >"$into/$ALL_PATCH"
    return
  fi
  for commit in "${commits[@]}"; do
    number=$((number + 1))
    name=$(git_in "$folder" log -1 --format=%f "$commit")
    printf -v name '%04d-%.52s' "$number" "$name"
    write_commit "$folder" "$commit" >"$into/${name%[-.]}.patch" || return
  done
}

# patch_between FOLDER FROM TO: print one patch.
patch_between() {
  git_in "$1" diff-tree -p -U3 -r --binary --full-index --no-renames --no-ext-diff --no-textconv "$2" "$3"
}

# holds_merge FOLDER COMMIT...: whether one of them has several parents.
holds_merge() {
  [[ -n $(git_in "$1" rev-list --no-walk --merges "${@:2}") ]]
}
