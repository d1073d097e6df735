# shellcheck shell=bash
# Frozen code: a job runs the files of this clone and of the external repositories as they were at submission. They are
# kept once per content in <scratch_dir>/runs/code-UID, which only the user can read; all jobs of the same content share it:
#
#   NAME-ID                  the files of a repository, longship for this clone; ID is the beginning of git's ID of them
#   NAME-ID.made             a list of them, as old as the copy: what is newer or not in it, a job has written
#   NAME-ID-COMMIT.commit    commit and base that the files follow from, for the record; with NAME-ID-COMMIT.patch
#
# Nothing is written to the repositories, which can be another user's: git works in a directory of its own.

# code_freeze STORE NAME DIR [NAME DIR]...: keep the code of a job, of which the first one is this clone, and export
# where it is: LONGSHIP_ROOT and LONGSHIP_CLONE, and LONGSHIP_FROZEN with a NAME-ID-COMMIT for each.
code_freeze() {
  local -r directory=$1-$UID
  local frozen='' id
  command -v git >/dev/null || fail 'cannot freeze the code: git not found on this machine' \
    'load its module (module load git); or to run the files as they are when the job starts, add: --live'
  if [[ $3 == "$directory"/* && -n ${LONGSHIP_CLONE:-} ]]; then # a job submits this one
    print_messages code "frozen: the code of this job, $LONGSHIP_ROOT"
    return
  fi
  code_make_directory "$directory"
  export LONGSHIP_CLONE=$3
  shift
  while (($#)); do
    if [[ -e $2 ]]; then
      id=$(code_keep "$directory" "$1" "$2") || exit
      frozen+=${id:+$id }
    fi
    shift 2
  done
  code_export "$directory" "$frozen"
}

# code_live CLONE: let a job run from the clone.
code_live() {
  unset LONGSHIP_CLONE LONGSHIP_FROZEN
  export LONGSHIP_ROOT=$1
  print_messages code "not frozen: the job runs the files of $1 as they are when it starts"
}

# code_export STORE FROZEN: tell the job, and the user; remove what is no longer needed.
code_export() {
  local -a names
  read -r -a names <<<"$2"
  names=("${names[@]%-*}")
  export LONGSHIP_ROOT=$1/${names[0]} LONGSHIP_FROZEN=${2% }
  touch -c -- "${names[@]/#/"$1/"}"
  code_prune "$1" || :
  print_messages code "frozen in $1: ${names[*]}; later changes do not reach this job"
}

# code_make_directory STORE: untracked files can contain what nobody else is to read.
code_make_directory() {
  if [[ ! -d $1 ]]; then (umask 077 && directory_make "$1") || exit; fi
  is_own "$1" || fail "other users can write to $1, which will contain what your jobs run" \
    "run: mv $(printf '%q %q' "$1" "$1.old")"
}

# code_keep STORE NAME DIR...: keep the files of a repository, and print NAME-ID-COMMIT; nothing for an external one
# that cannot be frozen.
code_keep() {
  (code_borrow && code_keep_files "$@")
}

# code_keep_files STORE NAME DIR...: the same in a subshell, with variables of its own.
code_keep_files() {
  local -a large=() # set by code_read
  code_read "$3" "${1%/*/*}" || code_refuse "$2" "git cannot read $3"
  if code_is_whole "$2" "$3"; then code_store "$@"; fi
}

# code_is_whole NAME DIR: name large files that git does not track. In this clone they become links; an external
# repository is frozen by mounting the copy over it, where a link to itself leads nowhere.
code_is_whole() {
  local files
  if ((${#large[@]} == 0)); then return; fi
  printf -v files '%s, ' "${large[@]:0:5}"
  files=${files%, }${large[5]:+, ...}
  if [[ $1 == longship ]]; then
    note "not frozen but linked to, as git does not track them and they are large: $files"
  else
    warn_of "$1 is not frozen: git neither tracks nor ignores these large files in $2: $files" \
      'move them to another directory, or add them to its .gitignore if the job does not need them'
    return 1
  fi
}

# code_store STORE NAME DIR...: copy what code_read has read, and print NAME-ID-COMMIT.
code_store() {
  partial=$1/.partial.${borrowed##*.}
  trap 'rm -rf -- "$borrowed" "$partial" "$partial.made"' EXIT
  if ! code_complete "$2" || ! code_copy "$1/$2-$id" || ! code_describe "$1/$2-$id-${commit:0:12}"; then
    fail_writing "$1" "cannot copy the code of $2 to $1" 'check the reason in the line above'
  fi
  printf '%s\n' "$2-$id-${commit:0:12}"
}

# code_refuse NAME REASON: stop, as the code of a job is not what it has to be.
code_refuse() {
  fail "cannot freeze the code of $1: $2" 'to run the files as they are when the job starts, add: --live'
}

# code_complete NAME: add to the index what git does not track, but a job needs: the files of submodules; of an external
# repository what its installation has built in it; of this clone, where the frozen code is the working directory of a
# job, links to data, outputs and .venv. Set content to git's ID without the links, and id to the beginning of that of all.
code_complete() {
  built=()
  code_add_submodules || return
  cp -- "$borrowed/index" "$borrowed/index.source"
  if [[ $1 != longship ]]; then code_add_built || return; fi
  content=$(git_borrowed write-tree --missing-ok) || return
  mv -- "$borrowed/index.source" "$borrowed/index" # the built files have no objects
  id=$content
  if [[ $1 == longship ]]; then code_add_links && id=$(git_borrowed write-tree --missing-ok) || return; fi
  id=${id:0:12}
}

# code_add_submodules: replace each submodule by its files.
code_add_submodules() {
  local path files
  local -a paths
  mapfile -d '' -t paths < <(code_list_submodules)
  for path in "${paths[@]}"; do
    files=$(code_read_submodule "$path") || return
    git_borrowed update-index --force-remove -- "$path" && git_borrowed read-tree --prefix="$path/" "$files" || return
  done
}

# code_read_submodule PATH: print git's ID of its files; in a subshell.
code_read_submodule() {
  borrowed=$(mktemp -d "$borrowed/submodule.XXXXXX") &&
    code_read "$top/$1" '' && code_add_submodules && git_borrowed write-tree --missing-ok
}

# code_add_built: compiled extensions, generated modules and metadata, which git ignores.
code_add_built() {
  local path number
  local -a hashes
  while IFS= read -r -d '' path; do
    if [[ $path != *$'\n'* ]]; then built+=("$path"); fi # each is a line below
  done < <(git_borrowed ls-files -z --others --ignored --exclude-standard -- \
    '*.so' '*.so.*' '*.py' '*.egg-info/*' ':(exclude,glob)**/site-packages/**')
  if ((${#built[@]} == 0)); then return; fi
  mapfile -t hashes < <(printf '%s\n' "${built[@]}" | git_borrowed hash-object --no-filters --stdin-paths)
  ((${#hashes[@]} == ${#built[@]})) || return
  for number in "${!hashes[@]}"; do
    printf '100644 %s\t%s\0' "${hashes[number]}" "${built[number]}"
  done | git_borrowed update-index -z --index-info
}

# code_add_links: links to what git ignores in the clone, to what is large, and to what a relative link leads to outside.
code_add_links() {
  local path last=/ number
  local -a paths=() files=() hashes
  while IFS= read -r -d '' path; do
    path=${path%/}
    case $path in "$last"/* | *__pycache__ | *.pyc) continue ;; esac
    paths+=("$path") last=$path
  done < <(git_borrowed ls-files -z --others --ignored --exclude-standard --directory)
  while IFS= read -r -d '' path; do
    path=${path#*$'\t'}
    if [[ $(readlink -- "$top/$path") == *..* && $(realpath -m -- "$top/$path") != "$(realpath -- "$top")"/* ]]; then
      paths+=("$path")
    fi
  done < <(git_borrowed ls-files -z --stage | sed -z -n '/^120000/p')
  paths+=("${large[@]}")
  if ((${#paths[@]} == 0)); then return; fi
  mkdir -p -- "$borrowed/links"
  for number in "${!paths[@]}"; do
    files+=("$borrowed/links/$number")
    printf %s "$top/${paths[number]}" >"${files[number]}"
  done
  mapfile -t hashes < <(printf '%s\n' "${files[@]}" | git_borrowed hash-object -w --no-filters --stdin-paths)
  ((${#hashes[@]} == ${#paths[@]})) || return
  for number in "${!hashes[@]}"; do
    printf '120000 %s\t%s\0' "${hashes[number]}" "${paths[number]}"
  done | git_borrowed update-index -z --index-info
}

# code_copy TARGET: write the files of the index and the built ones to a directory, complete under this name; of a copy
# from which files were removed, as sites do with old files, only these. Nobody changes the files by mistake: they are
# read-only.
code_copy() {
  local -r source=$top target=$1
  local place=$1 top
  if [[ ! -d $target ]]; then place=$partial && mkdir -- "$place" || return; fi
  top=$place
  umask go-w
  git_borrowed ls-files -z --deleted | git_borrowed checkout-index -z --stdin || return
  if ((${#built[@]})); then
    printf '%s\0' "${built[@]}" | (cd -- "$source" && xargs -0 cp --parents -p -n -t "$place" --) || return
  fi
  if [[ $place == "$target" ]]; then return; fi
  find "$place" -type f -exec chmod a-w {} +
  {
    git_borrowed ls-files -z
    if ((${#built[@]})); then printf '%s\0' "${built[@]}"; fi
  } >"$place.made" && mv -- "$place.made" "$target.made" || return
  mv -T -- "$place" "$target" 2>/dev/null || [[ -d $target ]] # another submission has made it
}

# code_restore STORE RUN NAME DIR [NAME DIR]...: as code_freeze, with the code of a run; stop if it is not available.
code_restore() {
  local -r directory=$1-$UID run=$2
  local frozen='' id
  code_make_directory "$directory"
  export LONGSHIP_CLONE=$4
  shift 2
  while (($#)); do
    if [[ $1 == longship || -e $run/repositories/$1.commit ]]; then
      id=$(code_restore_one "$directory" "$1" "$2" "$run") || exit
      frozen+=${id:+$id }
    fi
    shift 2
  done
  code_export "$directory" "$frozen"
}

# code_restore_one STORE NAME DIR RUN: print NAME-ID-COMMIT of a repository in the record of a run.
code_restore_one() {
  local -r was=$4/repositories/$2
  local frozen
  grep -a -q '^tree ' -- "$was.commit" 2>/dev/null || fail "the record of ${4##*/} does not have the code of $2: \
an older version wrote it, or the job ended early" "run it with the current code: python3 submit.py rerun ${4##*/} --live"
  frozen=$(sed -n 's/^frozen //p' -- "$was.commit")
  if [[ -n $frozen ]] && code_is_complete "$1/${frozen%-*}"; then
    cp -- "$was".{commit,patch} "$1" 2>/dev/null || :
    printf '%s\n' "$frozen"
  else
    (code_borrow && code_restore_files "$@" "$was")
  fi
}

# code_is_complete TARGET: whether no file of a copy is missing.
code_is_complete() {
  (cd -- "$1" && xargs -0 -r stat -- <"$1.made") >/dev/null 2>&1
}

# code_restore_files STORE NAME DIR RUN RECORD: make the copy again, from the repository as it is or from its commits.
code_restore_files() {
  local -r name=$2 directory=$3 record=$5
  local wanted
  local -a large=()
  code_recorded tree && wanted=$REPLY
  [[ -d $directory ]] || code_refuse "$name" "it no longer exists: $directory"
  code_read "$directory" "${1%/*/*}" || code_refuse "$name" "git cannot read $directory"
  if [[ $tree != "$wanted" ]]; then code_apply_record; fi
  [[ $tree == "$wanted" ]] || code_refuse "$name" \
    "its record is not complete: $(sed -n 's/^left out/some files are left out/p' -- "$record.commit" | paste -sd ' ')"
  if ! code_is_whole "$name" "$directory"; then return; fi
  code_complete "$name" && code_recorded content || exit
  [[ -z $REPLY || $REPLY == "$content" ]] ||
    code_refuse "$name" "compiled files or submodules in $directory have changed since ${4##*/}"
  code_store "$1" "$name"
}

# code_recorded KEY: set REPLY to a value of the record.
code_recorded() {
  REPLY=$(sed -n "s/^$1 //p" -- "$record.commit")
}

# code_apply_record: replace the index by the recorded commit and changes.
code_apply_record() {
  code_recorded base && base=$REPLY
  code_recorded commit && commit=$REPLY
  [[ -n $base ]] || code_refuse "$name" "$directory has changed, and was not recorded from a git repository"
  git_borrowed cat-file -e "$base^{commit}" 2>/dev/null || code_refuse "$name" "commit $base is no longer in $directory"
  git_borrowed read-tree "$base"
  if [[ -e $record.patch ]]; then
    git_borrowed apply --cached --whitespace=nowarn "$record.patch" || code_refuse "$name" "git cannot apply $record.patch"
  fi
  tree=$(git_borrowed write-tree --missing-ok)
}

# code_prune STORE: remove copies that no job has used for 30 days, but not those with files that a job wrote. A job that
# waits since longer may still need one.
code_prune() {
  local copy queued submitted
  local -a copies
  local -r limit=$(($(date +%s) - 30 * 86400))
  mapfile -d '' -t copies < <(find "$1" -mindepth 1 -maxdepth 1 -type d -mtime +30 -print0)
  if ((${#copies[@]} == 0)); then return; fi
  queued=$(timeout 20 squeue --me --noheader --format=%V) || return
  for submitted in $queued; do
    if (($(date -d "$submitted" +%s) < limit)); then return; fi
  done
  for copy in "${copies[@]}"; do
    if [[ $copy == */.partial.* ]] || code_is_unwritten "$copy"; then
      rm -rf -- "$copy" "$copy.made" "$copy"-*.{commit,patch}
    fi
  done
}

# code_is_unwritten COPY: whether jobs have certainly written no file into a copy: not if its list is missing, or if
# the file system takes too long to answer.
code_is_unwritten() {
  local written
  written=$(code_list_written "$1" | tr '\0' '\n') && [[ -z $written ]]
}

# code_list_written COPY: list the files that jobs wrote into a copy, also with an old time (cp -p, tar); false if the
# list may be incomplete.
code_list_written() {
  local path
  local -A frozen=()
  [[ -r $1.made ]] || return 1
  while IFS= read -r -d '' path; do frozen[$path]=1; done <"$1.made"
  # a slash before those that are not newer
  while IFS= read -r -d '' path; do
    if [[ -z ${frozen[${path#/}]:-} || $path != /* ]]; then printf '%s\0' "${path#/}"; fi
  done < <(exec timeout 20 find "$1" ! -type d ! -name '*.pyc' \( -newer "$1.made" -o -printf / \) -printf '%P\0')
  wait "$!"
}

# code_return_files: give the clone links to what the job wrote with relative paths, so that the next job finds it there.
code_return_files() {
  local path name last=''
  if [[ -z ${LONGSHIP_CLONE:-} ]]; then return; fi
  while IFS= read -r -d '' path; do
    name=${path%%/*}
    if [[ $name == "$last" || $LONGSHIP_CLONE/$name -ef $LONGSHIP_ROOT/$name ]]; then continue; fi
    last=$name
    if ln -s -T -- "$LONGSHIP_ROOT/$name" "$LONGSHIP_CLONE/$name" 2>/dev/null; then
      printf 'longship: %s is now a link to what the job wrote in %s\n' "$LONGSHIP_CLONE/$name" "$LONGSHIP_ROOT" >&2
    else
      printf 'longship: the job wrote %s/%s, not into the clone\n' "$LONGSHIP_ROOT" "$path" >&2
    fi
  done < <(code_list_written "$LONGSHIP_ROOT")
}
