# shellcheck shell=bash
# External repositories: worker.py does the work, in a process for each repository. docs/reference/files.md lists the
# refs that it keeps in them.

# repositories_check_git: stop without git.
repositories_check_git() {
  command -v git >/dev/null || fail 'git not found on this machine' 'load its module (module load git), or ask your site for it'
}

# repositories_run ACTION DIR WORKER...: run an action of the worker for all repositories, and hold the lock of DIR.
repositories_run() {
  repositories_check_git
  lock_run "$2" worker_run "${@:3}" "$1"
}

# trust_hint TEXT: set REPLY to the hint if git says that a repository belongs to another user; otherwise return 1.
trust_hint() {
  [[ $1 == *'dubious ownership'* || $1 == *'owned by someone else'* ]] || return 1
  REPLY=${1##*git config --global --add safe.directory }
  REPLY="if you trust that user, run: git config --global --add safe.directory ${REPLY%%$'\n'*}"
}
