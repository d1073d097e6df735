# shellcheck shell=bash
# External repositories: worker.py does the work, in a process for each repository. It keeps in a
# repository:
#
#   refs/longship/base          the configured commit that was checked out
#   refs/longship/patched       the same commit with the patches of the group
#   refs/longship/default       the server's default branch
#   refs/longship/tags/         the server's tags, apart from the user's own
#   refs/longship/saved/        the user's files before each update; its parents: the index, and HEAD
#   refs/longship/given-up/     what was resolved in an update that was aborted
#   refs/longship/replaced/     files that an update has replaced and that git stores otherwise
#   refs/longship/wanted        the configured commit, in a repository that `set_up.py download` wrote

# repositories_check_git: stop without git.
repositories_check_git() {
  command -v git >/dev/null ||
    fail 'git not found on this machine' \
      'load its module (module load git), or ask your site for it'
}

# repositories_run ACTION DIR WORKER...: run an action of the worker for all repositories in DIR,
# and hold its lock.
repositories_run() {
  repositories_check_git
  directory_make "$2"
  lock_run "$2" worker_run "${@:3}" "$1"
}
