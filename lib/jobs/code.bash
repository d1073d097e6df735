# shellcheck shell=bash
# The code of a run: what each repository contains, and its record in <run>/repositories, commit and local changes.

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
    if [[ -e $2.commit ]]; then # of frozen code, which has been recorded
      touch -c -- "${2%-*}"
      cp -- "$2.commit" "$run/repositories/$1.commit"
      if [[ -e $2.patch ]]; then cp -- "$2.patch" "$run/repositories/$1.patch"; fi
    else
      code_record_repository "$2" "$run/repositories/$1" || :
    fi
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
# commits, index, files, and new files that git does not ignore. FILE.commit also has git's ID of the result, and names
# files that are left out because of a password.
code_record_repository() {
  (code_borrow && code_read "$1" "" && code_describe "$2")
}

# code_describe FILE: write them for what code_read has read.
code_describe() {
  local -a left=()
  if [[ -n $commit ]]; then code_write_patch; fi
  {
    printf 'commit %s\n' "${commit:-unknown: $reason}"
    if [[ -n $commit ]]; then printf 'base %s\n' "$base"; fi
    printf 'tree %s\n' "$tree"
    if [[ -n $id ]]; then printf '%s\n' "content $content" "frozen ${1##*/}"; fi
    if ((${#large[@]})); then printf 'large %q\n' "${large[@]}"; fi
    if ((${#left[@]})); then printf 'left out, because it contains a password: %q\n' "${left[@]}"; fi
  } >"$1.commit"
  rm -f -- "$1.patch"
  if [[ ! -s $borrowed/patch ]]; then return; fi
  (umask 077 && cat -- "$borrowed/patch" >"$1.patch") # new files can contain what others are not to read
}

# what tokens and keys look like, for grep -E and git log -G
declare -g SECRET='hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|BEGIN [A-Z0-9 ]*PRIVATE KEY|(WANDB_API_KEY|[Ww]andb_(api_)?key|api\.wandb\.ai).{0,80}[^0-9a-f][0-9a-f]{40}([^0-9a-f]|$)|https?://[^]/@:"<>{}$*[:space:]'\''[]+:[^]/@:"<>{}$*[:space:]'\''[]+@'

# what no recorded change may contain: secrets, and passwords in URLs
declare -g IN_NO_PATCH="$SECRET"'|://[^]/:@<>{}$*[:space:]]+:[^]/@<>{}$*[:space:]]+@|https?://[^]/:@<>{}$*[:space:]]{20,}@'

# code_write_patch: write all changes since the base, without the files that contain a password; set left to these.
code_write_patch() {
  local file
  code_diff . >"$borrowed/patch"
  grep -a -c -E -e "$IN_NO_PATCH" -- "$borrowed/patch" >/dev/null || return 0
  while IFS= read -r -d '' file; do
    if code_diff ":(literal)$file" | grep -a -c -E -e "$IN_NO_PATCH" >/dev/null; then left+=("$file"); fi
  done < <(code_diff --name-only -z)
  code_diff . "${left[@]/#/:(exclude,literal)}" >"$borrowed/patch"
}

# code_diff [OPTION... | PATHSPEC...]: print the changes since the base as a patch, of submodules only the commit.
code_diff() {
  git_borrowed diff --binary --no-color --no-renames --no-ext-diff --no-textconv "$base" "$tree" "$@"
}

# code_borrow: make $borrowed, a directory of git that is removed when this subshell ends, for code_read.
code_borrow() {
  borrowed=$(mktemp -d "${TMPDIR:-/tmp}/longship-git.XXXXXX") || exit
  trap 'rm -rf -- "$borrowed"' EXIT
  objects=$borrowed/objects content='' id=''
  mkdir -p -- "$objects/info"
}

# code_read DIR DATA: put the files of a repository, as they are now, into the index of $borrowed: what git tracks with
# local changes, and new files that it does not ignore. Set tree to git's ID of this content, base and commit to what
# it follows from; commit is empty, and reason says why, where that is not known. DATA is a directory that is not read.
code_read() {
  git_find_directories "$1"
  commit='' base='' reason='not a git repository'
  if [[ $top != "$1" || ! -e $own ]]; then
    top=$1
  else
    commit=$(git --git-dir="$own" rev-parse --verify HEAD 2>&1) || { reason=${commit##*$'\n'} commit=''; }
  fi
  git_borrow_directory "$2"
  if [[ -n $commit ]]; then
    base=$(git --git-dir="$own" rev-parse --verify --quiet refs/longship/base) || base=$commit
    code_read_changes || return
  fi
  code_read_new && code_read_submodules && tree=$(git_borrowed write-tree --missing-ok)
}

# code_read_changes: changes of what git tracks, also of files that it was told to ignore (skip-worktree), and content
# that a filter keeps elsewhere (LFS): code_read_new adds these files as they are.
code_read_changes() {
  local flag
  for flag in assume-unchanged skip-worktree; do
    git_borrowed ls-files -z -v | LC_ALL=C sed -z -n 's/^[a-zS] //p' |
      git_borrowed update-index -z "--no-$flag" --stdin || return
  done
  git_borrowed ls-files -z -- ':(exclude,attr:!filter)' | git_borrowed update-index -z --force-remove --stdin &&
    code_list_changed D | git_borrowed update-index -z --force-remove --stdin &&
    code_list_changed d | git_borrowed update-index -z --add --replace --stdin
}

# code_list_changed FILTER
code_list_changed() {
  git_borrowed diff-files -z --name-only --ignore-submodules=all --diff-filter="$1"
}

# code_read_new: users write scripts that they do not `git add`. What is large is not code: it is listed in large.
code_read_new() {
  local entry
  local -i size
  local -a small=() directories=()
  large=()
  while IFS= read -r -d '' size && IFS= read -r -d '' entry; do
    if [[ $entry == */ ]]; then
      if code_is_large "$entry"; then large+=("${entry%/}"); else directories+=("$entry"); fi
    elif [[ -L $top/$entry ]] || ((size <= 10000000)) && [[ -r $top/$entry ]]; then
      small+=("$entry")
    else
      large+=("$entry")
    fi
  done < <(code_list_new --directory --no-empty-directory | (cd -- "$top" && xargs -0 -r stat --printf '%s\0%n\0' --))
  {
    if ((${#small[@]})); then printf '%s\0' "${small[@]}"; fi
    if ((${#directories[@]})); then code_list_new -- "${directories[@]}" | sed -z 's|/$||'; fi
  } | git_borrowed update-index -z --add --replace --stdin
}

# code_list_new ARGUMENT...: list files that git neither tracks nor ignores.
code_list_new() {
  git_borrowed --literal-pathspecs ls-files -z --others --exclude-standard "$@"
}

# code_is_large DIR: whether a new directory has more than 1000 files or 10 MB.
code_is_large() {
  local -i number=0 bytes=0 size
  while read -r size; do
    number+=1 bytes+=size
    if ((number > 1000 || bytes > 10000000)); then return; fi
  done < <(code_list_new -- "$1" | (cd -- "$top" && xargs -0 -r stat -c %s --) 2>/dev/null)
  return 1
}

# code_read_submodules: the commit that each of them has now.
code_read_submodules() {
  local path head
  while IFS= read -r -d '' path; do
    head=$(git_find_directories "$top/$path" && git --git-dir="$own" rev-parse --verify HEAD 2>/dev/null) || continue
    git_borrowed update-index --cacheinfo "160000,$head,$path"
  done < <(code_list_submodules)
}

# code_list_submodules: those with files.
code_list_submodules() {
  local entry
  while IFS= read -r -d '' entry; do
    if [[ $entry == 160000* && -e $top/${entry#*$'\t'}/.git ]]; then printf '%s\0' "${entry#*$'\t'}"; fi
  done < <(git_borrowed ls-files -z --stage)
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

# git_borrow_directory DATA: fill $borrowed, a directory of git with the repository's HEAD and index, and with only those
# of its settings that say how files are read: others can start programs (filters, monitors, hooks, transports), in
# submodules too, and the repository can be another user's.
git_borrow_directory() {
  local key value
  mkdir -p -- "$borrowed/refs" "$borrowed/info"
  printf '%s\n' "${commit:-ref: refs/heads/none}" >"$borrowed/HEAD"
  printf '[core]\nrepositoryFormatVersion = 1\n' >"$borrowed/config"
  if [[ -n $1 && $1 == "$top"/* ]]; then printf '/%s/\n' "${1#"$top"/}" >"$borrowed/info/exclude"; fi
  if [[ -z $commit ]]; then return; fi
  printf '%s\n' "$shared/objects" >>"$objects/info/alternates"
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
    cp -- "$shared"/info/attributes "$borrowed/info" || :
    cat -- "$shared"/info/exclude >>"$borrowed/info/exclude" || :
  } 2>/dev/null
}

# git_borrowed ARGUMENT...: run git with that directory, and without any user's settings.
git_borrowed() {
  env -u GIT_CONFIG_GLOBAL -u GIT_CONFIG_SYSTEM -u GIT_CONFIG_COUNT -u GIT_CONFIG_PARAMETERS -u GIT_INDEX_FILE \
    -u GIT_COMMON_DIR -u GIT_NAMESPACE GIT_CONFIG_NOSYSTEM=1 HOME="$borrowed" XDG_CONFIG_HOME="$borrowed" \
    GIT_DIR="$borrowed" GIT_WORK_TREE="$top" GIT_OBJECT_DIRECTORY="$objects" \
    git -C "$top" -c core.hooksPath=/dev/null -c core.fsmonitor=false "$@"
}
