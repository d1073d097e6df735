# shellcheck shell=bash disable=SC2154  # set by the caller: state
# Submodules: repositories of their own, which follow the commit that theirs names, with the user's
# changes in them replayed in the same way.

# submodules_of FOLDER: print commit and path of each, NUL-terminated.
submodules_of() {
  git_in "$1" ls-files --stage -z | sed -z -n 's/^160000 \([0-9a-f]*\) 0\t/\1 /p'
}

# update_submodules FOLDER NAME: after it was moved; remembers those that are new.
update_submodules() {
  local -r folder=$1 name=$2
  local entry wanted path before staged
  recall staged
  staged=$REPLY
  while IFS= read -r -d '' entry <&3; do
    wanted=${entry%% *}
    path=${entry#* }
    before=$(git_in "$folder" rev-parse --verify --quiet "$staged:$path" || :)
    if [[ -e $folder/$path/.git && -n $before ]]; then
      if [[ $before != "$wanted" ]]; then update_submodule "$folder" "$path" "$name" "$before" "$wanted"; fi
    elif [[ -z $before && ! -e $folder/$path/.git ]]; then
      printf '%s\0' "$path" >>"$state/new_submodules"
      fetch_submodules "$folder" "$name" "$path"
    fi
  done 3< <(submodules_of "$folder")
}

# fetch_submodules FOLDER NAME [PATH]...: those that are not there yet, with theirs.
fetch_submodules() {
  local said
  if [[ -n $bundles ]]; then
    unpack_submodules "$@"
    return
  fi
  said=$(git_in "$1" submodule --quiet update --init --recursive -- "${@:3}" 2>&1) || {
    printf '%s\n' "$said" >&2
    fail_writing "$1" "$2: cannot fetch its submodules" \
      "$READ_ABOVE"
  }
}

# unpack_submodules FOLDER NAME [PATH]...: the same from what was carried here.
unpack_submodules() {
  local -r folder=$1 name=$2
  local entry key path bundle said
  git_in "$folder" submodule --quiet init -- "${@:3}"
  while IFS= read -r -d '' entry <&4; do
    key=${entry%%$'\n'*}
    path=${entry#*$'\n'}
    bundle=$bundles/$name/$path.bundle
    if [[ -e $folder/$path/.git ]]; then continue; fi
    [[ -e $bundle ]] || fail "$name: bundle not found: $bundle" "$BRING_BUNDLES"
    git_in "$folder" config "${key%.path}.url" "$bundle"
    said=$(git_in "$folder" -c protocol.file.allow=always submodule --quiet update -- "$path" 2>&1) ||
      explain_git "$name" "$bundle" "$said"
    git_in "$folder" submodule --quiet sync -- "$path"
    if [[ -e $folder/$path/.gitmodules ]]; then unpack_submodules "$folder/$path" "$name/$path"; fi
  done 4< <(git_in "$folder" config -z --file .gitmodules --get-regexp '^submodule\..*\.path$')
}

# update_submodule FOLDER PATH NAME BEFORE WANTED: from one commit to the other.
update_submodule() {
  local -r submodule=$1/$2 name=$3/$2 before=$4 wanted=$5
  local own state source
  own=$(git_folder "$submodule")
  state=$own/longship-update
  if [[ -e $state/step ]]; then
    recall step
    if [[ -e $state/stopped ]]; then
      replay "$submodule"
    elif [[ $REPLY != finished ]]; then
      restore "$submodule"
    fi
  fi
  recall step
  if [[ $REPLY != finished ]]; then
    remove_own_locks "$own"
    rm -rf -- "$state"
    check_not_busy "$submodule"
    begin_work "$submodule"
    git_in "$1" submodule --quiet sync -- "$2"
    if ! commit_of "$submodule" "$wanted" >/dev/null; then
      source=origin
      if [[ -n $bundles ]]; then source=$bundles/$name.bundle; fi
      git_in "$submodule" fetch --quiet "$source" '+refs/heads/*:refs/remotes/origin/*' || :
      commit_of "$submodule" "$wanted" >/dev/null || git_in "$submodule" fetch --quiet "$source" "$wanted" ||
        fail "$name: commit not found in $source: $wanted" 'ask the maintainers of the repository'
    fi
    move_repository "$submodule" "$name" "$wanted" '' "$before"
  fi
  update_submodules "$submodule" "$name"
}

# for_submodules FOLDER FUNCTION: call it for each submodule with an update under way.
for_submodules() {
  local -r folder=$1 function=$2
  local entry own state submodule
  while IFS= read -r -d '' entry <&3; do
    submodule=$folder/${entry#* }
    if [[ ! -e $submodule/.git ]]; then continue; fi
    own=$(git_folder "$submodule")
    state=$own/longship-update
    if [[ -e $state ]]; then "$function" "$submodule"; fi
  done 3< <(submodules_of "$folder")
}
