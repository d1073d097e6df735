# shellcheck shell=bash disable=SC2154  # the emitted script says: repositories_folder, saved, bundles
# External repositories: cloned once; from then on the state of the code is the user's, and an update
# moves it to the configured commit with the user's changes on top.

declare -ga all_repositories=()

declare -gA repository_url=()

declare -gA repository_ref=()

declare -gA repository_upstream=()

declare -gA repository_patches=()

# add_repository NAME URL REF UPSTREAM PATCHES: one of the configured ones.
# shellcheck disable=SC2034  # not each script looks at all of it
add_repository() {
  all_repositories+=("$1")
  repository_url[$1]=$2
  repository_ref[$1]=$3
  repository_upstream[$1]=$4
  repository_patches[$1]=$5
}

# install_repositories: clone what is missing.
install_repositories() {
  local name missing=
  prepare_git
  make_folders "$repositories_folder"
  for name in "${all_repositories[@]}"; do
    if [[ ! -e $repositories_folder/$name ]]; then missing+=" $name"; fi
  done
  if [[ -n $missing ]]; then step 1/1 "Cloning$missing"; fi # what git says is shown when it is done
  in_parallel install_repository "${all_repositories[@]}"
  stop_if_failed
}

# install_repository NAME: what is there is left alone.
install_repository() {
  local -r folder=$repositories_folder/$1
  local state own
  if [[ ! -e $folder && ! -L $folder ]]; then
    clone_repository "$1"
    return
  fi
  if [[ ! -e $folder/.git ]]; then
    note "$folder is not a git repository; left unchanged"
    return
  fi
  own=$(git_folder "$folder")
  state=$own/longship-update
  check_no_update "$folder"
  if [[ -e $state/step ]]; then
    update_repository "$1" # it was killed while patches were applied
  elif [[ $(settings_of "$1") != "$(cat -- "$own/longship-settings" 2>/dev/null)" ]]; then
    note "$1 is not at the configured version; to update it, run: python3 set_up.py update"
  fi
}

# settings_of NAME: print what decides where it has to be.
settings_of() {
  printf '%s\n' "${repository_url[$1]}" "${repository_ref[$1]}" "$(series_sum "${repository_patches[$1]}")"
}

# clone_repository NAME: complete or not there; without old files' contents, which git fetches when
# they are needed, where the server can do that.
clone_repository() {
  local -r name=$1 folder=$repositories_folder/$1 url=${repository_url[$1]}
  local -r partial=$folder.partial
  local -a blobless=(--filter=blob:none)
  local source said target state
  source=$(source_of "$name")
  if [[ -n $bundles ]]; then blobless=(); fi
  trap 'rm -rf -- "$repositories_folder/$name.partial"' EXIT
  rm -rf -- "$partial"
  said=$(git "${GIT_SETTINGS[@]}" clone --quiet --origin origin --no-checkout ${blobless[@]+"${blobless[@]}"} \
    -- "$source" "$partial" 2>&1) || explain_git "$name" "$source" "$said"
  git_in "$partial" remote set-url origin "$url"
  keep_server_refs "$partial"
  target=$(find_target "$name" "$partial")
  check_out "$name" "$partial" "$target" ||
    fail_writing "$repositories_folder" "cannot create $folder" \
      "$READ_ABOVE"
  if [[ -e $partial/.gitmodules ]]; then fetch_submodules "$partial" "$name"; fi
  add_upstream "$name" "$partial"
  # what an installation from it leaves there is no change of the user's
  mkdir -p -- "$partial/.git/info"
  printf '%s\n' '*.egg-info/' '/build/' '__pycache__/' >>"$partial/.git/info/exclude"
  git_in "$partial" update-ref refs/longship/base "$target"
  state=$partial/.git/longship-update
  start_update "$partial" "$name" "$target" "${repository_patches[$name]}"
  remember step series
  mv -T -- "$partial" "$folder"
  trap - EXIT
  state=$folder/.git/longship-update
  replay "$folder"
  finish_update "$name"
  printf '%s: %s\n' "$name" "$(shown_commit "$folder" HEAD)" >&2
}

# check_out NAME FOLDER COMMIT: on a branch that follows the configured one, else on none.
check_out() {
  local -r ref=${repository_ref[$1]} folder=$2
  if [[ -z $ref ]]; then
    git_in "$folder" checkout --quiet
  elif [[ $(commit_of "$folder" "refs/remotes/origin/$ref") == "$3" ]]; then
    git_in "$folder" checkout --quiet -B "$ref" --track "origin/$ref"
  else
    git_in "$folder" checkout --quiet --detach "$3"
  fi
}

# source_of NAME: print what is cloned and fetched from: the server, or what was carried here.
source_of() {
  local -r bundle=$bundles/$1.bundle
  if [[ -z $bundles ]]; then
    printf '%s' "${repository_url[$1]}"
  elif [[ -e $bundle ]]; then
    printf '%s' "$bundle"
  else
    fail "$1: bundle not found: $bundle" "$BRING_BUNDLES"
  fi
}

# keep_server_refs FOLDER: default branch and tags of the server, apart from what the user makes.
keep_server_refs() {
  git_in "$1" update-ref refs/longship/default HEAD
  git_in "$1" for-each-ref --format='create refs/longship/tags/%(refname:strip=2) %(objectname)' refs/tags |
    git_in "$1" update-ref --stdin
}

# add_upstream NAME FOLDER: the original of a fork, as a second remote.
add_upstream() {
  local -r url=${repository_upstream[$1]}
  if [[ -n $url ]] && ! git_in "$2" remote get-url upstream >/dev/null 2>&1; then
    git_in "$2" remote add upstream "$url"
  fi
}

# find_target NAME FOLDER: print the commit that is configured, or fail.
find_target() {
  local -r ref=${repository_ref[$1]} folder=$2
  if [[ -z $ref ]]; then
    commit_of "$folder" refs/longship/default && return
    fail "$1: ${repository_url[$1]} has no default branch" "set its ref in configuration.toml: ref = \"BRANCH\""
  fi
  commit_of "$folder" "refs/longship/tags/$ref" && return
  commit_of "$folder" "refs/remotes/origin/$ref" && return
  if [[ $ref =~ ^[0-9a-f]{7,64}$ ]]; then
    commit_of "$folder" "$ref" && return
    git_in "$folder" fetch --quiet "$(source_of "$1")" "$ref" 2>/dev/null &&
      commit_of "$folder" "$ref" && return
  fi
  no_such_ref "$1"
}

# no_such_ref NAME: stop, and say how to find one that is there.
no_such_ref() {
  if [[ -n $bundles ]]; then
    fail "$1: ref not found in $bundles/$1.bundle: ${repository_ref[$1]}" "$BRING_BUNDLES"
  fi
  fail "$1: tag, branch or commit not found in ${repository_url[$1]}: ${repository_ref[$1]}" \
    "list the refs: git ls-remote $(printf %q "${repository_url[$1]}"); then set ref in configuration.toml"
}

# explain_git NAME URL TEXT: stop, with what git said about a server.
explain_git() {
  local said=${3,,}
  fail_for_owner "$1: $2" "$3"
  case $said in
    *'no space left'* | *'quota exceeded'*)
      fail "$1: No space left on device" \
        'free some space, or set [paths] in configuration.toml; then run the command again'
      ;;
    *'could not resolve'* | *'network is unreachable'* | *'connection refused'* | \
      *'connection timed out'* | *'failed to connect'* | *'no route to host'*)
      fail "$1: cannot reach $2 from this machine" \
        'on a machine with network access, run: python3 set_up.py download; then on this one: python3 set_up.py offline'
      ;;
    *'terminal prompts disabled'* | *'authentication failed'* | *'permission denied'* | \
      *'host key verification'*)
      fail "$1: $2 requires a login that git does not have" \
        "log in once: git ls-remote $(printf %q "$2"); or see: git help credentials, man ssh-add"
      ;;
    *'early eof'* | *'index-pack'* | *'not a v2 bundle'* | *'bad object'* | *'bundle file'*)
      [[ $2 != *.bundle ]] || fail "$1: $2 is damaged" 'copy the bundle again'
      ;;&
    *'does not exist'* | *'not found'* | *'does not appear to be a git repository'*)
      fail "$1: repository not found: $2" 'check its url in configuration.toml'
      ;;
  esac
  printf '%s\n' "$3" >&2
  fail_writing "$repositories_folder" "$1: git cannot fetch $2" \
    "$READ_ABOVE"
}

# stop_if_failed: say which repositories stopped; what each of them needs was said before.
stop_if_failed() {
  if ((${#stopped[@]} == 0)); then return; fi
  if ((${#all_repositories[@]} > ${#stopped[@]})); then
    note "failed: ${stopped[*]}; the other repositories are done"
  fi
  exit 1
}
