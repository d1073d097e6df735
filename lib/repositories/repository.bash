# shellcheck shell=bash disable=SC2154  # unpacked is unpack.bash's
# This repository out of a bundle: its files, its history where git is there, and its two packages.

# unpack_repository BUNDLE FOLDER PYTHON: make or renew it.
unpack_repository() {
  step 2/4 "Unpacking the repository to $2"
  unpack_part "$1" repository "$2" "$2/.cache/bundle"
  note "$unpacked new files in $2"
  step 3/4 'Installing the packages of the scripts'
  install_host_wheels "$1" "$2" "$3"
  step 4/4 'Restoring the git history'
  take_history "$1/longship.bundle" "$2"
}

# check_repository_folder BUNDLE FOLDER: stop where it is something else.
check_repository_folder() {
  [[ $2/ != "$1"/* ]] || fail "$2 is in the bundle" "name a directory outside of $1"
  local name foreign=
  if [[ -e $2 && ! -f $2/bundle.py ]]; then
    # an unpacking that was interrupted has written down what it was about to put there
    while IFS= read -r name; do
      if [[ $name != .unpack.* && $name != .cache ]]; then foreign=$name; fi
    done < <(ls -A -- "$2" 2>/dev/null)
    [[ -d $2 && (-z $foreign || -e $2/.cache/bundle) ]] ||
      fail "the directory contains other files than this repository: $2" 'name a new directory: bash unpack.sh TARGET'
  fi
}

# install_host_wheels BUNDLE FOLDER PYTHON: where no earlier call, and no venv, has them already.
install_host_wheels() {
  local -r folder=$2 new=$2/.venv.partial
  local wheel packages entry
  if compgen -G "$folder/.venv/lib/*/site-packages/click/__init__.py" >/dev/null; then return; fi
  packages=lib/$("$3" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
  rm -rf -- "$new"
  mkdir -p -- "$new/$packages" "$folder/.venv/$packages"
  for wheel in "$1"/host/*.whl; do
    "$3" -m zipfile -e "$wheel" "$new/$packages" ||
      fail_writing "$folder" "cannot unpack $wheel" 'the lines above have the reason'
  done
  for entry in "$new/$packages"/*; do # click's folder last: by that they are recognised
    if [[ ${entry##*/} != click && ! -e $folder/.venv/$packages/${entry##*/} ]]; then
      mv -- "$entry" "$folder/.venv/$packages/"
    fi
  done
  mv -T -- "$new/$packages/click" "$folder/.venv/$packages/click"
  rm -rf -- "$new"
}

# take_history FILE FOLDER: a clone like the one that was packed. Its files are there already: those
# that differ from the commit are the changes that were packed with it.
take_history() {
  local -r file=$1 folder=$2 new=$2/.unpack.partial
  local branch='' commit='' sum name reason
  if [[ ! -f $file ]]; then return; fi
  if ! command -v git >/dev/null; then
    note 'git not found: unpacked without history; once git is installed, run the same command again'
    return
  fi
  while read -r sum name; do
    commit=$sum
    if [[ $name != HEAD ]]; then branch=$name; fi
  done < <(git bundle list-heads "$file")
  local -r short=${branch#refs/heads/}
  if [[ ! -e $folder/.git ]]; then
    rm -rf -- "$new"
    at_exit "$new"
    reason=$(make_clone 2>&1) || note "unpacked without history: git failed: ${reason##*$'\n'}"
    rm -rf -- "$new"
  elif ! reason=$(LC_ALL=C git -C "$folder" fetch -q "$file" "+HEAD:refs/remotes/bundle/$short" 2>&1); then
    fail_for_owner "$folder" "$reason"
    note "git cannot fetch the history of the bundle: ${reason##*$'\n'}"
  elif [[ $(git -C "$folder" rev-parse HEAD) != "$commit" ]]; then
    follow_history
  fi
}

# make_clone: of the packed history, for the files that lie there; complete, or not there.
make_clone() {
  git init -q "$new" && git -C "$new" fetch -q "$file" HEAD &&
    git -C "$new" update-ref "${branch:-HEAD}" "$commit" &&
    if [[ -n $branch ]]; then git -C "$new" symbolic-ref HEAD "$branch"; fi &&
    git --git-dir="$new/.git" --work-tree="$folder" reset -q --mixed &&
    mv -T -- "$new/.git" "$folder/.git"
}

# follow_history: move the branch on as the bundle's has moved, unless there is work of its own.
follow_history() {
  if [[ $(git -C "$folder" symbolic-ref -q HEAD) == "$branch" ]] &&
    git -C "$folder" diff --cached --quiet && git -C "$folder" merge-base --is-ancestor HEAD "$commit"; then
    git -C "$folder" update-ref -m 'bundle: unpack' HEAD "$commit"
    git -C "$folder" reset -q --mixed
  else
    note "your branch is unchanged; show the bundle's branch: git log bundle/$short"
  fi
}
