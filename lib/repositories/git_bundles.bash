# shellcheck shell=bash disable=SC2154  # the emitted script says: mirrors, bundles
# External repositories on their way to a machine without network: a git bundle each, with all
# branches and tags, and one for each submodule of the configured commit.

# download_repositories: make or renew the bundles.
download_repositories() {
  prepare_git
  make_folders "$bundles" "$mirrors"
  step 1/1 "Fetching ${all_repositories[*]}"
  in_parallel download_repository "${all_repositories[@]}"
  stop_if_failed
}

# download_repository NAME
download_repository() {
  local -r name=$1 url=${repository_url[$1]} mirror=$mirrors/$1.git
  local said target
  if [[ ! -e $mirror ]]; then
    rm -rf -- "$mirror.partial"
    said=$(git "${GIT_SETTINGS[@]}" clone --quiet --bare -- "$url" "$mirror.partial" 2>&1) ||
      explain_git "$name" "$url" "$said"
    mv -T -- "$mirror.partial" "$mirror"
  fi
  said=$(git_in "$mirror" fetch --quiet --prune -- "$url" '+refs/heads/*:refs/heads/*' \
    '+refs/tags/*:refs/tags/*' '+HEAD:refs/longship/default' 2>&1) || explain_git "$name" "$url" "$said"
  git_in "$mirror" update-ref --no-deref HEAD refs/longship/default
  target=$(find_mirrored "$name" "$mirror")
  git_in "$mirror" update-ref refs/longship/wanted "$target"
  make_bundle "$mirror" "$bundles/$name.bundle" HEAD --branches --tags refs/longship/wanted
  if [[ -n $(git_in "$mirror" ls-tree --name-only "$target" .gitmodules) ]]; then
    download_submodules "$name" "$target"
  fi
  printf '%s: %s, %s\n' "$name" "$(shown_commit "$mirror" "$target")" "$bundles/$name.bundle" >&2
}

# find_mirrored NAME MIRROR: print the configured commit.
find_mirrored() {
  local -r ref=${repository_ref[$1]} mirror=$2
  if [[ -z $ref ]]; then
    commit_of "$mirror" HEAD
    return
  fi
  commit_of "$mirror" "refs/tags/$ref" && return
  commit_of "$mirror" "refs/heads/$ref" && return
  if [[ $ref =~ ^[0-9a-f]{7,64}$ ]]; then
    commit_of "$mirror" "$ref" && return
    git_in "$mirror" fetch --quiet -- "${repository_url[$1]}" "$ref" 2>/dev/null &&
      commit_of "$mirror" "$ref" && return
  fi
  no_such_ref "$1"
}

# make_bundle REPOSITORY FILE REF...: complete or not there; left as it is where it holds the same.
make_bundle() {
  local -r repository=$1 file=$2
  local state
  state=$(git_in "$repository" show-ref --head | sha256sum)
  if [[ -e $file && $(cat -- "$file.state" 2>/dev/null) == "$state" ]]; then return; fi
  make_folders "${file%/*}"
  git_in "$repository" bundle create --quiet "$file.partial" "${@:3}" || {
    rm -f -- "$file.partial"
    fail_writing "${file%/*}" "cannot write $file" "$READ_ABOVE"
  }
  mv -- "$file.partial" "$file"
  printf '%s\n' "$state" >"$file.state"
}

# download_submodules NAME COMMIT: git itself finds and fetches them, in a working tree for that.
download_submodules() {
  local -r name=$1 work=$mirrors/$1.work
  local path said own
  if [[ ! -e $work ]]; then
    rm -rf -- "$work.partial"
    git "${GIT_SETTINGS[@]}" clone --quiet --no-checkout -- "$mirrors/$name.git" "$work.partial"
    mv -T -- "$work.partial" "$work"
  fi
  git_in "$work" remote set-url origin "${repository_url[$name]}"
  git_in "$work" fetch --quiet "$mirrors/$name.git" refs/longship/wanted
  git_in "$work" checkout --quiet --force --detach "$2"
  said=$(git_in "$work" submodule --quiet sync --recursive 2>&1 &&
    git_in "$work" submodule --quiet update --init --recursive --force 2>&1) || {
    printf '%s\n' "$said" >&2
    fail "$name: cannot fetch its submodules" "$READ_ABOVE"
  }
  # shellcheck disable=SC2016 # git sets it
  while IFS= read -r -d '' path <&3; do
    own=$work/$path
    git_in "$own" update-ref refs/longship/wanted HEAD
    make_bundle "$own" "$bundles/$name/$path.bundle" HEAD refs/longship/wanted --branches --remotes --tags
  done 3< <(git_in "$work" submodule --quiet foreach --recursive 'printf "%s\\0" "$displaypath"')
}
