# shellcheck shell=bash disable=SC2034  # the hints are those of other files
# Git, with what would make it behave differently for each user switched off.

# No hooks, signatures, editors and questions; no look into submodules, which are handled one by one.
declare -g GIT_SETTINGS=(
  -c core.hooksPath=/dev/null -c commit.gpgSign=false -c gc.auto=0 -c advice.detachedHead=false
  -c submodule.recurse=false -c fetch.recurseSubmodules=false -c apply.whitespace=nowarn
  -c diff.noprefix=false -c diff.mnemonicPrefix=false -c merge.renames=true
  -c rerere.enabled=false -c core.quotePath=false -c core.safecrlf=false -c diff.orderFile=/dev/null)

declare -g READ_ABOVE="read git's output above, then run the command again"

declare -g BRING_BUNDLES='on a machine with network access, run: python3 set_up.py download; then copy the bundles here'

# git_in FOLDER ARGUMENT...
git_in() {
  git -C "$1" "${GIT_SETTINGS[@]}" "${@:2}"
}

# prepare_git: the same environment for everybody.
prepare_git() {
  command -v git >/dev/null || fail 'git not found on this machine' 'load its module (module load git), or ask your site for it'
  local variable
  # inside a hook or an alias of git's they name another repository
  for variable in $(git rev-parse --local-env-vars); do unset "$variable"; done
  # its messages are looked into, names of files are not touched
  if [[ -n ${LC_ALL-} ]]; then export LC_CTYPE=$LC_ALL; fi
  unset LC_ALL
  export LC_MESSAGES=C
  export GIT_TERMINAL_PROMPT=0 GIT_EDITOR=true GIT_MERGE_AUTOEDIT=no
  if ! git var GIT_COMMITTER_IDENT >/dev/null 2>&1; then
    export GIT_COMMITTER_NAME=Longship GIT_COMMITTER_EMAIL=longship@localhost
    export GIT_AUTHOR_NAME=Longship GIT_AUTHOR_EMAIL=longship@localhost
  fi
}

# git_folder FOLDER: print the repository's git directory, which contains its index and HEAD.
git_folder() {
  local reason
  if git_in "$1" rev-parse --absolute-git-dir 2>/dev/null; then return; fi
  reason=$(git_in "$1" rev-parse 2>&1) || :
  fail_for_owner "$1" "$reason"
  fail "$1: git cannot read the repository: ${reason##*$'\n'}" "run: git -C $(printf %q "$1") status"
}

# fail_for_owner FOLDER TEXT: stop if git says in TEXT that the repository belongs to another user.
fail_for_owner() {
  local REPLY
  if trust_hint "$2"; then fail "$1 belongs to another user, and git refuses to read it" "$REPLY"; fi
}

# trust_hint TEXT: set REPLY to the hint, or return 1 if git says something else.
trust_hint() {
  [[ $1 == *'dubious ownership'* || $1 == *'owned by someone else'* ]] || return 1
  REPLY=${1##*git config --global --add safe.directory }
  REPLY="if you trust that user, run: git config --global --add safe.directory ${REPLY%%$'\n'*}"
}

# commit_of FOLDER NAME: print the commit that a name stands for, fail where there is none.
commit_of() {
  git_in "$1" rev-parse --verify --quiet "$2^{commit}"
}

# shown_commit FOLDER COMMIT: print it as a person says it.
shown_commit() {
  git_in "$1" describe --always --tags "$2" 2>/dev/null || printf '%.10s' "$2"
}

# own_commit FOLDER TREE MESSAGE [-p PARENT]...: print a commit that only this program looks at.
own_commit() {
  GIT_AUTHOR_NAME=Longship GIT_AUTHOR_EMAIL=longship@localhost \
    GIT_COMMITTER_NAME=Longship GIT_COMMITTER_EMAIL=longship@localhost \
    git_in "$1" commit-tree "$2" -m "$3" "${@:4}"
}

# tree_of FOLDER COMMIT: print its tree.
tree_of() {
  git_in "$1" rev-parse --verify --quiet "$2^{tree}"
}

# check_not_busy FOLDER: stop where something is under way that an update would mix up.
check_not_busy() {
  local -r folder=$1 again='then run the command again'
  local kind own typed
  own=$(git_folder "$folder") || exit 1
  printf -v typed %q "$folder"
  commit_of "$folder" HEAD >/dev/null ||
    fail "$folder has no commit" \
      "move it away: mv $typed $typed.old; then run: python3 set_up.py install"
  for kind in rebase-merge:rebase rebase-apply:rebase MERGE_HEAD:merge CHERRY_PICK_HEAD:cherry-pick \
    REVERT_HEAD:revert BISECT_LOG:bisect; do
    if [[ -e $own/${kind%:*} ]]; then
      fail "$folder: a ${kind#*:} is in progress" \
        "finish or abort it, see: git -C $typed status; $again"
    fi
  done
  if [[ -n $(git_in "$folder" ls-files --unmerged) ]]; then
    fail "$folder: unresolved conflicts" \
      "resolve them, see: git -C $typed status; $again"
  fi
  for kind in index HEAD "$(git_in "$folder" symbolic-ref --quiet HEAD || printf HEAD)"; do
    if [[ -e $own/$kind.lock ]]; then
      fail "$folder: another git process is running, or was killed" \
        "if none is running: rm $(printf %q "$own/$kind.lock"); $again"
    fi
  done
  if git_in "$folder" ls-files -v | grep -c '^[a-zS]' >/dev/null; then
    fail "$folder: git ignores changes of some files (assume-unchanged, skip-worktree, sparse checkout)" \
      "list them: git -C $typed ls-files -v | grep '^[a-zS]'; then: git update-index --no-assume-unchanged FILE"
  fi
}
