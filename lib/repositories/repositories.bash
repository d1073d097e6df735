# shellcheck shell=bash
# External repositories: worker.py does what is to be done with one of them, in a process for each.
# It keeps in a repository itself:
#
#   refs/longship/base          the configured commit that was checked out
#   refs/longship/patched       the same commit with the patches of the group
#   refs/longship/default       the server's default branch
#   refs/longship/tags/         the server's tags, apart from the user's own
#   refs/longship/saved/        the user's changes before each update, as `git stash` keeps them
#   refs/longship/given-up/     the state when an update was aborted
#   refs/longship/wanted        the configured commit, in a repository that `set_up.py download` wrote

declare -ga all_repositories=()

declare -ga repositories_worker=() # its command line, up to the action

declare -ga repositories_action=()

# repositories_begin PYTHON WORKER OPTION...: what works on them, and where.
repositories_begin() {
  repositories_worker=("$1" -X utf8 "${@:2}")
}

# repository_add NAME URL REF UPSTREAM PATCHES: one of the configured ones.
repository_add() {
  all_repositories+=("$1")
  repositories_worker+=(--configured "$@")
}

# repositories_check_git: stop without git.
repositories_check_git() {
  command -v git >/dev/null || fail 'git not found on this machine' 'load its module (module load git), or ask your site for it'
}

# repositories_run ACTION FOLDER...: install, update, continue, abort or save-patches, for the repositories in
# FOLDER; or download, into the FOLDERs of the bundles and of the mirrors they are made from. Stop if one failed: what
# each needs was said before.
repositories_run() {
  local -a names=("${all_repositories[@]}") missing=() stopped=()
  local name updates
  repositories_check_git
  case $1 in install | update | download) directory_make "${@:2}" ;; esac
  case $1 in
    install)
      for name in "${names[@]}"; do
        if [[ ! -e $2/$name ]]; then missing+=("$name"); fi
      done
      if ((${#missing[@]})); then step 1/1 "Cloning ${missing[*]}"; fi # what git says is shown when it is done
      ;;
    update) step 1/1 "Updating ${names[*]}" ;;
    download) step 1/1 "Fetching ${names[*]}" ;;
    continue | abort)
      updates=$("${repositories_worker[@]}" list-updates)
      [[ -n $updates ]] || fail "no update in progress in $2" 'to start one, run: python3 set_up.py update'
      read -r -a names <<<"$updates"
      ;;
  esac
  repositories_action=("$1")
  if [[ $1 == download ]]; then repositories_action=(--into "$2" --mirrors "$3" download); fi
  in_parallel repository_run "${names[@]}"
  if ((${#stopped[@]})); then
    if ((${#all_repositories[@]} > ${#stopped[@]})); then
      note "failed: ${stopped[*]}; the other repositories are done"
    fi
    exit 1
  fi
  if [[ $1 == save-patches ]]; then next_step 'git add patches stacks && git commit'; fi
}

# repository_run NAME: in the place of this process, as a signal to it is meant for the worker.
repository_run() {
  exec "${repositories_worker[@]}" "${repositories_action[@]}" "$1"
}
