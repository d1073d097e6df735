# shellcheck shell=bash
# The code of a run, in <run>/repositories: commit and local changes of each repository.

# code_record_begin RUN [NAME DIR]...: record the repositories, then the installed packages, while the ranks start:
# on a parallel file system git needs seconds for a large repository.
code_record_begin() {
  code_record "$@" </dev/null >/dev/null 2>&1 &
  longship_recorder=$!
}

# code_record RUN [NAME DIR]...: the ranks' launcher lists the packages; Pyxis may have to unpack the image for it.
code_record() {
  local -r run=$1
  local -a start=()
  mkdir -p -- "$run/repositories"
  shift
  while (($# > 1)); do
    code_record_repository "$2" "$run/repositories/$1" || :
    shift 2
  done
  if ((${#CONTAINER_OPTIONS[@]})); then start=(srun --overlap --nodes=1 --ntasks=1 "${CONTAINER_OPTIONS[@]}"); fi
  if env -u SLURM_LABELIO timeout 600 "${start[@]}" "$run/launcher" python3 \
    "$LONGSHIP_ROOT/lib/jobs/inside/list_packages.py" >"$run/packages.partial"; then
    mv -- "$run/packages.partial" "$run/packages.txt"
  else
    rm -f -- "$run/packages.partial"
  fi
}

# code_record_end RUN: give the recorder 20 more seconds, as whole nodes wait for it.
code_record_end() {
  local attempt
  if [[ -z ${longship_recorder:-} ]]; then return; fi
  for ((attempt = 0; attempt < 200; attempt++)); do
    kill -0 "$longship_recorder" 2>/dev/null || break
    sleep 0.1
  done
  kill "$longship_recorder" 2>/dev/null
  rm -f -- "$1/packages.partial"
  if [[ ! -e $1/packages.txt ]]; then
    printf 'longship: packages.txt not written: python3 could not list the packages in time\n' >&2
  fi
}

# code_record_repository DIR FILE: write FILE.commit, and FILE.patch with all changes since the configured version:
# commits, index and files. FILE.commit names untracked files, and files that are left out because of a password.
code_record_repository() {
  (code_record_changes "$@")
}

# code_record_changes DIR FILE: the same in a subshell, with variables of its own.
code_record_changes() {
  borrowed=$(mktemp -d "${TMPDIR:-/tmp}/longship-git.XXXXXX") || exit
  trap 'rm -rf -- "$borrowed"' EXIT
  git_find_directories "$1"
  commit=$(git --git-dir="$own" rev-parse --verify HEAD 2>&1) || {
    printf 'commit unknown: %s\n' "${commit##*$'\n'}" >"$2.commit"
    exit 0
  }
  base=$(git --git-dir="$own" rev-parse --verify --quiet refs/longship/base) || base=$commit
  git_borrow_directory
  {
    printf 'commit %s\nbase %s\n' "$commit" "$base"
    git_borrowed ls-files --others --exclude-standard | sed 's/^/untracked /'
    code_diff . >"$borrowed/patch"
    if grep -a -c -E -e "$IN_NO_PATCH" -- "$borrowed/patch" >/dev/null; then code_leave_out_passwords; fi
  } >"$2.commit"
  rm -f -- "$2.patch"
  if [[ -s $borrowed/patch ]]; then cat -- "$borrowed/patch" >"$2.patch"; fi
}

# what tokens and keys look like, for grep -E and git log -G
declare -g SECRET='hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|BEGIN [A-Z0-9 ]*PRIVATE KEY|(WANDB_API_KEY|[Ww]andb_(api_)?key|api\.wandb\.ai).{0,80}[^0-9a-f][0-9a-f]{40}([^0-9a-f]|$)|https?://[^]/@:"<>{}$*[:space:]'\''[]+:[^]/@:"<>{}$*[:space:]'\''[]+@'

# what no recorded change may contain: secrets, and passwords in URLs
declare -g IN_NO_PATCH="$SECRET"'|://[^]/:@<>{}$*[:space:]]+:[^]/@<>{}$*[:space:]]+@|https?://[^]/:@<>{}$*[:space:]]{20,}@'

# code_leave_out_passwords: write the patch again without the files that contain one, and print their names.
code_leave_out_passwords() {
  local -a left=()
  local file
  while IFS= read -r -d '' file; do
    if code_diff ":(literal)$file" | grep -a -c -E -e "$IN_NO_PATCH" >/dev/null; then
      left+=(":(exclude,literal)$file")
      printf 'left out, because it contains a password: %q\n' "$file"
    fi
  done < <(code_diff --name-only -z)
  code_diff . "${left[@]}" >"$borrowed/patch"
}

# code_diff [OPTION... | PATHSPEC...]: print the changes since the base as a patch.
code_diff() {
  git_borrowed diff --binary --no-color --no-renames --no-ext-diff --no-textconv --ignore-submodules=dirty "$base" "$@"
}

# git_find_directories DIR: set top to the top directory of its repository, own to the directory of HEAD and index,
# and shared to that of everything else, which several work trees have in common.
git_find_directories() {
  top=$1
  while [[ ! -e $top/.git && $top == /*/* ]]; do top=${top%/*}; done
  own=$top/.git
  if [[ -f $own ]]; then
    own=$(sed -n 's/^gitdir: //p' "$top/.git")
    if [[ $own != /* ]]; then own=$top/$own; fi
  fi
  shared=$own
  if [[ -f $own/commondir ]]; then
    shared=$(<"$own/commondir")
    if [[ $shared != /* ]]; then shared=$own/$shared; fi
  fi
}

# git_borrow_directory: fill $borrowed, a directory of git with the repository's HEAD and index, and with only those
# of its settings that say how files are read: others can start programs (filters, monitors, hooks, transports), in
# submodules too, and the repository can be another user's.
git_borrow_directory() {
  local key value
  mkdir -p -- "$borrowed/refs" "$borrowed/info"
  printf '%s\n' "$commit" >"$borrowed/HEAD"
  printf '[core]\nrepositoryFormatVersion = 1\n' >"$borrowed/config"
  while read -r key value; do
    if [[ $value =~ ^[a-z0-9]*$ ]]; then
      printf '[%s]\n%s = %s\n' "${key%%.*}" "${key#*.}" "${value:-true}" >>"$borrowed/config"
    fi
  done < <(git --git-dir="$own" config --get-regexp \
    '^(core\.(autocrlf|eol|filemode|ignorecase|symlinks)|extensions\.objectformat)$')
  # with its time, by which git knows files that were changed in the same moment
  {
    cp -p -- "$own/index" "$borrowed/index" || :
    cp -- "$own"/sharedindex.* "$borrowed" || :
    cp -- "$shared"/info/{exclude,attributes} "$borrowed/info" || :
  } 2>/dev/null
}

# git_borrowed ARGUMENT...: run git with that directory, and without any user's settings.
git_borrowed() {
  env -u GIT_CONFIG_GLOBAL -u GIT_CONFIG_SYSTEM -u GIT_CONFIG_COUNT -u GIT_CONFIG_PARAMETERS -u GIT_INDEX_FILE \
    -u GIT_COMMON_DIR -u GIT_NAMESPACE GIT_CONFIG_NOSYSTEM=1 HOME="$borrowed" XDG_CONFIG_HOME="$borrowed" \
    GIT_DIR="$borrowed" GIT_WORK_TREE="$top" GIT_OBJECT_DIRECTORY="$shared/objects" \
    git -C "$top" -c core.hooksPath=/dev/null -c core.fsmonitor=false "$@"
}

# code_compare RUN [NAME DIR]...: warn of each repository whose code is not that of the run, which is started again.
code_compare() {
  local -r run=$1 now=$(mktemp -d "${TMPDIR:-/tmp}/longship-code.XXXXXX")
  local name was base hint
  shift
  while (($# > 1)); do
    name=$1 was=$run/repositories/$1
    if [[ -e $was.commit ]] && code_record_repository "$2" "$now/$name" && ! code_is_same "$was" "$now/$name"; then
      base=$(sed -n 's/^base //p' "$was.commit")
      printf -v hint 'restore the recorded code: git -C %q checkout %s' "$2" "$base"
      if [[ -e $was.patch ]]; then printf -v hint '%s && git -C %q apply %q' "$hint" "$2" "$was.patch"; fi
      warn_of "the code of $name differs from that of ${run##*/}: the job uses the current code" "$hint"
    fi
    shift 2
  done
  rm -rf -- "$now"
}

# code_is_same FILE FILE: compare what code_record_repository has written; the second line names the base.
code_is_same() {
  cmp --silent -- <(head -n 2 -- "$1.commit") <(head -n 2 -- "$2.commit") &&
    cmp --silent -- <(cat -- "$1.patch" 2>/dev/null) <(cat -- "$2.patch" 2>/dev/null)
}
