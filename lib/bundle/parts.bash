# shellcheck shell=bash disable=SC2154,SC2034  # the emitted script's, see pack.bash; bundle_names is hands.bash's
# What belongs into a bundle: this repository with its history, what the download modes have fetched,
# the scripts' own packages. And what never does: secrets.

# what tokens and keys look like, for grep -E and git log -G
declare -g SECRET='hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|BEGIN [A-Z0-9 ]*PRIVATE KEY|(WANDB_API_KEY|[Ww]andb_(api_)?key|api\.wandb\.ai).{0,80}[^0-9a-f][0-9a-f]{40}([^0-9a-f]|$)|https?://[^]/@:"<>{}$*[:space:]'\''[]+:[^]/@:"<>{}$*[:space:]'\''[]+@'

# target, tab, name of every symbolic link: not all file systems that bundles travel on have them
declare -ga packed_links=()

declare -g TEXT_BYTES=1048576 # larger files are data, and data can hold anything that looks like a key

# make_parts REQUIREMENT...: what is made for the bundle alone, in work/parts.
make_parts() {
  local -r parts=$work/parts
  make_folders "$parts/host"
  cmp -s -- "$root/lib/bundle/unpack.sh" "$parts/unpack.sh" ||
    cp -- "$root/lib/bundle/unpack.sh" "$parts/unpack.sh" ||
    fail_writing "$parts" "cannot write to $parts" 'the line above has the reason'
  fetch_host_wheels "$parts/host" "$@"
  bundle_history "$parts/longship.bundle"
}

# fetch_host_wheels FOLDER REQUIREMENT...: wheels for every Python that the scripts run with.
fetch_host_wheels() {
  local -r folder=$1
  local -a wanted=()
  local requirement python
  shift
  for requirement in "$@"; do
    if ! compgen -G "$folder/${requirement%%[<>=!~ ]*}-*-py3-none-any.whl" >/dev/null; then
      wanted+=("$requirement")
    fi
  done
  if ((${#wanted[@]} == 0)); then return; fi
  for python in "${pythons[@]}"; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      note "downloading ${wanted[*]}"
      rm -rf -- "$folder.partial"
      "$python" -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: \
        --python-version 3.9 --implementation py --abi none --platform any \
        --dest "$folder.partial" "${wanted[@]}" >&2 ||
        fail_writing "$folder" "cannot download the packages of the scripts: ${wanted[*]}" 'check the network; pip'"'"'s output above has the details'
      mv -f -t "$folder" -- "$folder.partial"/*.whl
      rm -rf -- "$folder.partial"
      return
    fi
  done
  fail "pip not found, to download ${wanted[*]}" 'run: python3 -m venv .venv; then run the same command again'
}

# bundle_history FILE: the commits that lead to what is checked out, and no other branch.
bundle_history() {
  local -r file=$1
  local commit branch heads reason
  check_clone
  commit=$(git -C "$root" rev-parse -q --verify HEAD) || commit=
  if [[ -z $history || -z $commit || $(git -C "$root" rev-parse --is-shallow-repository) == true ]]; then
    if [[ -n $history ]]; then note 'the git history is not packed: this clone has no commits, or is shallow'; fi
    rm -f -- "$file"
    return
  fi
  branch=$(git -C "$root" symbolic-ref -q HEAD) || branch=
  heads="$commit HEAD${branch:+$'\n'$commit $branch}"
  if [[ $(git bundle list-heads "$file" 2>/dev/null | LC_ALL=C sort -k 2) == "$heads" ]]; then return; fi
  check_history
  rm -f -- "$file.partial" "$file.partial.lock"
  reason=$(git -C "$root" bundle create "$file.partial" HEAD ${branch:+"$branch"} 2>&1) ||
    fail_writing "$work" "git cannot pack the history: ${reason##*$'\n'}" 'run: git fsck; or leave out the history: --no-history'
  mv -f -- "$file.partial" "$file"
}

# check_clone: git says what belongs to the repository.
check_clone() {
  local top
  command -v git >/dev/null || fail 'git not found' 'install git, or load its module'
  top=$(LC_ALL=C git -C "$root" rev-parse --show-toplevel 2>&1) || fail_for_owner "$root" "$top"
  [[ $top -ef $root ]] ||
    fail "$root is not a git repository: ${top##*$'\n'}" 'pack from a git clone'
}

# is_allowed NAME: whether the user says that it only looks like a secret.
is_allowed() {
  local each
  for each in ${allowed[@]+"${allowed[@]}"}; do
    if [[ $1 == "$each" ]]; then return; fi
  done
  return 1
}

# check_history: stop where a commit holds what looks like a secret.
check_history() {
  local name
  local -ar but=(-- . ${allowed[@]+"${allowed[@]/#/:(exclude,top,literal)}"})
  local -r instead='remove it from the history (git filter-repo); or leave out the history: --no-history; or accept it: --allow FILE'
  while IFS= read -r -d '' name; do
    ! is_secret_name "$name" || is_allowed "$name" || fail "the git history contains a file named like a secret: $name" "$instead"
  done < <(git -C "$root" log --format= --name-only --no-renames -z HEAD)
  name=$(LC_ALL=C git -C "$root" log -m --no-ext-diff --no-textconv --format='commit %h' --name-only -G"$SECRET" \
    HEAD "${but[@]}" |
    head -n 3 | tr '\n' ' ') || :
  [[ -z $name ]] || fail "the git history contains what looks like a token or key: ${name% }" "$instead"
}

# list_repository: set bundle_names to what git tracks and what it would.
list_repository() {
  local name prefix
  bundle_names=()
  git -C "$root" ls-files -z --cached --others --exclude-standard | LC_ALL=C sort -zu >"$pending/tracked" ||
    fail "git cannot list the files of $root" 'the line above has the reason'
  while IFS= read -r -d '' name; do
    for prefix in "${left_out[@]}"; do
      if [[ $name/ == "$prefix"/* ]]; then continue 2; fi
    done
    add_name "$root" "$name" repository/
  done <"$pending/tracked"
}

# list_offline: set bundle_names to all that the download modes have fetched.
list_offline() {
  local part name
  bundle_names=()
  for name in "${offline_names[@]}"; do add_name "$offline" "$name" offline/; done
  for part in pip repos assets; do
    if [[ ! -d $offline/$part ]]; then continue; fi
    list_tree "$offline/$part"
    for name in "${tree_files[@]}" "${tree_links[@]}"; do
      case $name in
        *.partial | *.partial.* | *.partial/* | *.incomplete | *.lock/owner | *.lock.*/owner) ;; # half done
        *) add_name "$offline" "$part/$name" offline/ ;;
      esac
    done
  done
}

# list_own_parts: set bundle_names to what make_parts has made; the links are known by now.
list_own_parts() {
  local -r file=$work/parts/links
  if ((${#packed_links[@]})); then
    printf '%s\n' "${packed_links[@]}" >"$file.partial"
    if cmp -s -- "$file.partial" "$file"; then rm -f -- "$file.partial"; else mv -f -- "$file.partial" "$file"; fi
  else
    rm -f -- "$file"
  fi
  list_tree "$work/parts"
  bundle_names=("${tree_files[@]}")
}

# add_name FOLDER NAME PREFIX: a file to bundle_names, a link to packed_links.
add_name() {
  local target
  stays_inside "$2" || fail "cannot pack $(printf %q "$1/$2"): the name contains a backslash or a control character" 'rename that file'
  if [[ -L $1/$2 ]]; then
    target=$(readlink -- "$1/$2")
    link_stays_inside "$3$2" "$target" ||
      fail "the link $1/$2 points outside the bundle: $target" 'replace the link by the file that it points to'
    packed_links+=("$target"$'\t'"$3$2")
  elif [[ -f $1/$2 ]]; then
    bundle_names+=("$2")
  elif [[ -d $1/$2 ]]; then
    note "not packed: $1/$2 is a git repository"
  fi
}

# is_secret_name NAME: whether programs keep passwords or keys in files of that name.
is_secret_name() {
  case ${1##*/} in
    .netrc | _netrc | id_rsa* | id_dsa* | id_ecdsa* | id_ed25519* | token | stored_tokens | .env | \
      .git-credentials | .pypirc | credentials | configuration.local.toml) return 0 ;;
  esac
  [[ /$1 == */.ssh/* || /$1 == */.aws/* || /$1 == */.gnupg/* ]]
}

# check_secrets FOLDER: stop where one of bundle_names below it is a secret, or a text that holds one.
check_secrets() {
  local -a found=()
  local name
  local -i index
  if ((${#bundle_names[@]} == 0)); then return; fi
  for name in "${bundle_names[@]}"; do
    if is_secret_name "$name"; then found+=("$name"); fi
  done
  while IFS= read -r name; do found+=("$name"); done < <(cd -- "$1" &&
    for ((index = 0; index < ${#bundle_names[@]}; index += BATCH)); do
      small_files "${bundle_names[@]:index:BATCH}" | LC_ALL=C xargs -0 -r grep -lIE -e "$SECRET" -- || :
    done)
  for name in "${found[@]}"; do
    is_allowed "$name" ||
      fail "$1/$name looks like a token or key" \
        "move that file elsewhere; or, if it is not a secret: --allow $(printf '%q' "$name")"
  done
}

# small_files NAME...: those that can be texts with a secret, each ended by a NUL.
small_files() {
  local line
  while IFS= read -r line; do
    if ((${line%% *} <= TEXT_BYTES)); then printf '%s\0' "${line#* }"; fi
  done < <(stat -c '%s %n' -- "$@")
}
