#!/usr/bin/env bash
# Longship: set_up_overlay.py, machine jpb (jsc/site.toml)
set -euo pipefail

readonly ALL_PATCH=0001-all-of-a-history-with-merges.patch

readonly MOST_SAVED_BYTES=$((100 << 20)) # of an untracked file; larger ones are results, not changes

# remember NAME VALUE: keep a value for the rest of the update.
remember() {
  printf '%s\n' "$2" >"$state/$1.partial"
  mv -- "$state/$1.partial" "$state/$1"
}

# remember_output NAME COMMAND...: keep what it prints; that it failed would be lost in an argument.
remember_output() {
  local printed
  printed=$("${@:2}")
  remember "$1" "$printed"
}

# recall NAME: set REPLY to what was kept, empty where nothing was.
recall() {
  REPLY=
  if [[ -e $state/$1 ]]; then REPLY=$(<"$state/$1"); fi
}

# take_snapshot FOLDER: commits that hold what is there now; remembers head, branch, the index itself,
# and the commits `staged` and `tracked` (all that git knows, as it lies there) and `untracked`.
take_snapshot() {
  local -r folder=$1
  local own head branch
  own=$(git_folder "$folder")
  head=$(commit_of "$folder" HEAD)
  branch=$(git_in "$folder" symbolic-ref --quiet HEAD || :)
  remember head "$head"
  remember branch "$branch"
  cp -p -- "$own/index" "$state/index"
  # a file that `git add -N` announced is in the index without content
  git_in "$folder" diff --name-only --diff-filter=A -z >"$state/announced"
  remember_output staged own_commit "$folder" "$(git_in "$folder" write-tree)" 'the index' -p "$head"
  take_tracked "$folder" "$own"
  take_untracked "$folder" "$own"
}

# take_tracked FOLDER OWN: remember `tracked`; what submodules are at is taken from the index, because
# they are repositories with an update of their own.
take_tracked() {
  git_in "$1" ls-files --stage -z | grep -z '^160000 ' >"$state/submodules" || :
  local -x GIT_INDEX_FILE=$2/longship-index
  cp -p -- "$state/index" "$GIT_INDEX_FILE"
  git_in "$1" add --update -- :/
  git_in "$1" update-index -z --index-info <"$state/submodules"
  recall staged
  remember_output tracked own_commit "$1" "$(git_in "$1" write-tree)" 'the files' -p "$REPLY"
}

# keep_raw FOLDER: what a filter of git's would change on its way in (notebooks without output, line
# ends), as it lies there.
keep_raw() {
  local path blob
  local -r head=$(commit_of "$1" HEAD)
  recall tracked
  while IFS= read -r -d '' path; do
    if [[ ! -f $1/$path || -L $1/$path ]]; then continue; fi
    blob=$(git_in "$1" rev-parse "$REPLY:$path")
    if [[ $(git_in "$1" hash-object --no-filters -- "$path") != "$blob" ]]; then
      mkdir -p -- "$state/raw/$path"
      rmdir -- "$state/raw/$path"
      cp -p -- "$1/$path" "$state/raw/$path"
    fi
  done < <(git_in "$1" diff-tree -r -z --name-only --no-renames --diff-filter=AMT "$head" "$REPLY")
}

# put_back_raw FOLDER: the same files, where an update has not changed what git knows of them.
put_back_raw() {
  local path
  if [[ ! -d $state/raw ]]; then return; fi
  recall tracked
  while IFS= read -r -d '' path; do
    if [[ $(git_in "$1" hash-object --path="$path" -- "$path" 2>/dev/null) == \
      "$(git_in "$1" rev-parse "$REPLY:$path")" ]]; then
      cp -p -- "$state/raw/$path" "$1/$path"
    fi
  done < <(cd -- "$state/raw" && find . -type f -printf '%P\0')
}

# take_untracked FOLDER OWN: remember `untracked`, empty where there is no such file.
take_untracked() {
  local file
  git_in "$1" ls-files --full-name --others --exclude-standard -z >"$state/others"
  while IFS= read -r -d '' file; do
    if [[ $file == *$'\t'*/ ]]; then
      note "$1/${file#*$'\t'} is a repository of its own; it is left as it is"
    elif ((${file%%$'\t'*} > MOST_SAVED_BYTES)); then
      note "$1/${file#*$'\t'} is large; it is left as it is, and not saved"
    else
      printf '%s\0' "${file#*$'\t'}"
    fi
  done < <(cd -- "$1" && xargs -0 -r stat --printf='%s\t%n\0' -- <"$state/others") >"$state/files"
  remember untracked ''
  if [[ -s $state/files ]]; then
    local -x GIT_INDEX_FILE=$2/longship-untracked
    rm -f -- "$GIT_INDEX_FILE"
    git_in "$1" update-index --add -z --stdin <"$state/files"
    remember_output untracked own_commit "$1" "$(git_in "$1" write-tree)" 'untracked files'
    rm -f -- "$GIT_INDEX_FILE"
  fi
}

# has_changes FOLDER COMMITS: whether there is anything that no server has.
has_changes() {
  local staged tracked
  recall staged
  staged=$(tree_of "$1" "$REPLY")
  recall tracked
  tracked=$(tree_of "$1" "$REPLY")
  recall untracked
  [[ -n $2 || -n $REPLY || $staged != "$(tree_of "$1" HEAD)" || $tracked != "$staged" ]]
}

# save_changes FOLDER NAME COMMITS: keep the snapshot under a ref and as patches, below "$saved".
save_changes() {
  local -r folder=$1 id=$(date +%Y%m%dT%H%M%S).$$
  local -r ref=refs/longship/saved/$id into=$saved/$2/$id
  local head staged tracked commit
  local -a untracked=()
  recall head
  head=$REPLY
  recall staged
  staged=$REPLY
  recall tracked
  tracked=$REPLY
  recall untracked
  if [[ -n $REPLY ]]; then untracked=(-p "$REPLY"); fi
  commit=$(own_commit "$folder" "$(tree_of "$folder" "$tracked")" \
    "On update: saved by Longship" -p "$head" -p "$staged" ${untracked[@]+"${untracked[@]}"})
  git_in "$folder" update-ref "$ref" "$commit"
  remember saved_ref "$ref"
  remember saved_folder "$into"
  (umask 077 && rm -rf -- "$into.partial" && mkdir -p -- "$into.partial") ||
    fail_writing "$saved" "cannot write $into" 'see the line above'
  write_patches "$folder" "$into.partial" "$3" ||
    fail_writing "$into.partial" "cannot write the patches $into" 'see the line above'
  if [[ -d $state/raw ]]; then cp -R -p -- "$state/raw" "$into.partial/as-they-lay-there"; fi
  mv -- "$into.partial" "$into"
}

# write_patches FOLDER INTO COMMITS: the changes as files that `git apply` and `git am` read.
write_patches() {
  local -r folder=$1 into=$2 ref=$(recall saved_ref && printf '%s' "$REPLY")
  if [[ -n $3 ]]; then
    write_series "$folder" "$into/commits" "$ref^1" "$3" || return
  fi
  patch_between "$folder" "$ref^1" "$ref^2" >"$into/staged.patch" || return
  patch_between "$folder" "$ref^2" "$ref" >"$into/unstaged.patch" || return
  if commit_of "$folder" "$ref^3" >/dev/null; then
    patch_between "$folder" "$(git_in "$folder" hash-object -t tree /dev/null)" "$ref^3" \
      >"$into/untracked.patch" || return
  fi
  find "$into" -maxdepth 1 -type f -empty -delete
  cat >"$into/README.txt" <<END
The changes in $folder, as they were before an update.

Exactly as it was, beside what is there now (any folder that does not exist yet):
  git -C $(printf %q "$folder") worktree add FOLDER $ref^1
  git -C FOLDER stash apply --index $ref

On top of what is there now, in this order:
$(how_to_apply "$into")
END
}

# how_to_apply INTO: print a command for each of the patches that are there.
how_to_apply() {
  local name
  local -r folder=$(printf %q "${1%.partial}")
  if [[ -e $1/commits/$ALL_PATCH ]]; then
    printf '  git apply --3way %s/commits/%s\n' "$folder" "$ALL_PATCH"
  elif [[ -d $1/commits ]]; then
    printf '  git am --3way %s/commits/*.patch\n' "$folder"
  fi
  for name in staged unstaged untracked; do
    if [[ -e $1/$name.patch ]]; then printf '  git apply --3way %s/%s.patch\n' "$folder" "$name"; fi
  done
}

# write_series FOLDER INTO HEAD COMMITS: a patch for each commit, oldest first; one for all of them
# where they hold a merge, which no patch can.
write_series() {
  local -r folder=$1 into=$2 head=$3
  local -a commits
  local commit number=0
  read -r -d '' -a commits <<<"$4" || :
  mkdir -p -- "$into"
  if holds_merge "$folder" "${commits[@]}"; then
    recall base
    patch_between "$folder" "$REPLY" "$head" >"$into/$ALL_PATCH"
    return
  fi
  for commit in "${commits[@]}"; do
    number=$((number + 1))
    # `-k` keeps a subject such as "[WIP] x", and --full-index what a three-way merge needs
    git_in "$folder" format-patch --quiet -k --full-index --binary --no-signature --zero-commit \
      --no-renames --no-attach --no-thread --no-cover-letter --no-ext-diff --no-textconv -U3 \
      --no-base --no-notes --no-signoff --suffix=.patch \
      --start-number "$number" --output-directory "$into" -1 "$commit" || return
  done
}

# patch_between FOLDER FROM TO: print one patch.
patch_between() {
  git_in "$1" diff-tree -p -U3 -r --binary --full-index --no-renames --no-ext-diff --no-textconv "$2" "$3"
}

# holds_merge FOLDER COMMIT...: whether one of them has several parents.
holds_merge() {
  [[ -n $(git_in "$1" rev-list --no-walk --merges "${@:2}") ]]
}

# No hooks, signatures, editors and questions; no look into submodules, which are handled one by one.
readonly GIT_SETTINGS=(
  -c core.hooksPath=/dev/null -c commit.gpgSign=false -c gc.auto=0 -c advice.detachedHead=false
  -c submodule.recurse=false -c fetch.recurseSubmodules=false -c apply.whitespace=nowarn
  -c diff.noprefix=false -c diff.mnemonicPrefix=false -c merge.renames=true
  -c rerere.enabled=false -c core.quotePath=false -c core.safecrlf=false -c diff.orderFile=/dev/null)

# git_in FOLDER ARGUMENT...
git_in() {
  git -C "$1" "${GIT_SETTINGS[@]}" "${@:2}"
}

# prepare_git: the same environment for everybody.
prepare_git() {
  command -v git >/dev/null || fail 'git is not installed here' 'module load git, or ask the site for it'
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

# git_folder FOLDER: print where the repository keeps what is its own: index, HEAD, what is under way.
git_folder() {
  git_in "$1" rev-parse --absolute-git-dir
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
  local -r folder=$1 again='then the same command again'
  local kind own typed
  own=$(git_folder "$folder") || exit 1
  printf -v typed %q "$folder"
  commit_of "$folder" HEAD >/dev/null ||
    fail "$folder has no commit" \
      "move it away: mv $typed $typed.old; then: python3 set_up.py install"
  for kind in rebase-merge:rebase rebase-apply:rebase MERGE_HEAD:merge CHERRY_PICK_HEAD:cherry-pick \
    REVERT_HEAD:revert BISECT_LOG:bisect; do
    if [[ -e $own/${kind%:*} ]]; then
      fail "$folder: a ${kind#*:} is under way there" \
        "finish it, or take it back: git -C $typed status; $again"
    fi
  done
  if [[ -n $(git_in "$folder" ls-files --unmerged) ]]; then
    fail "$folder: there are conflicts that nobody has resolved" \
      "git -C $typed status; $again"
  fi
  for kind in index HEAD "$(git_in "$folder" symbolic-ref --quiet HEAD || printf HEAD)"; do
    if [[ -e $own/$kind.lock ]]; then
      fail "$folder: another git works there, or was killed" \
        "if none does: rm $(printf %q "$own/$kind.lock"); $again"
    fi
  done
  if git_in "$folder" ls-files -v | grep -c '^[a-zS]' >/dev/null; then
    fail "$folder: git is told to look away from changed files (assume-unchanged, skip-worktree, sparse)" \
      "find them: git ls-files -v | grep '^[a-zS]'; git update-index --no-assume-unchanged FILE"
  fi
}

# value_in NAME LINE...: the same, of a record's lines.
value_in() {
  local line
  REPLY=
  for line in "${@:2}"; do
    if [[ $line == "  \"$1\": \""* ]]; then
      line=${line#*\": \"}
      REPLY=${line%\"*}
      return
    fi
  done
}

# make_way FOLDER TARGET: before the move, untracked files that are in the way of the target's become
# part of the changes; an ignored one is the user's to decide about.
make_way() {
  local -r folder=$1 target=$2
  local path own
  local -a in_the_way=()
  recall tracked
  new_paths "$folder" "$REPLY" "$target" >"$state/files"
  while IFS= read -r -d '' path; do
    if is_in_the_way "$folder" "$path"; then in_the_way+=(":(literal)$REPLY"); fi
  done <"$state/files"
  if ((${#in_the_way[@]} == 0)); then return; fi

  others_among --ignored "${in_the_way[@]}" >"$state/others"
  others_among "${in_the_way[@]}" >"$state/files"
  grep -z '/$' "$state/files" >>"$state/others" || : # repositories in this one
  if IFS= read -r -d '' path <"$state/others"; then
    path=$folder/${path%/}
    fail "$path has to make way, and git does not look after it" \
      "move it away: mv $(printf '%q %q' "$path" "$path.mine"); then the same command again"
  fi
  if [[ ! -s $state/files ]]; then return; fi
  own=$(git_folder "$folder")
  GIT_INDEX_FILE=$own/longship-index git_in "$folder" update-index --add -z --stdin <"$state/files"
  recall staged
  remember_output tracked own_commit "$folder" \
    "$(GIT_INDEX_FILE=$own/longship-index git_in "$folder" write-tree)" 'the files' -p "$REPLY"
}

# others_among [--ignored] PATHSPEC...: print those files in "$folder" that git does not track.
others_among() {
  local -a which=(--others --exclude-standard)
  if [[ $1 == --ignored ]]; then
    which+=(--ignored)
    shift
  fi
  printf '%s\0' "$@" | xargs -0 git -C "$folder" ls-files -z "${which[@]}" --
}

# is_in_the_way FOLDER PATH: whether something is there already, or is a file where PATH has a folder;
# set REPLY to it.
is_in_the_way() {
  local rest=$2/
  REPLY=
  while [[ -n $rest ]]; do
    REPLY+=${REPLY:+/}${rest%%/*}
    rest=${rest#*/}
    if [[ ! -d $1/$REPLY || -L $1/$REPLY ]]; then break; fi
  done
  [[ -e $1/$REPLY || -L $1/$REPLY ]]
}

# new_paths FOLDER FROM TO: print what comes with the target, with the patches, and with the user's
# commits, which may add what later ones take out again.
new_paths() {
  local patch
  recall commits
  if [[ -n $REPLY ]]; then
    printf '%s\n' "$REPLY" | git_in "$1" diff-tree --stdin --root -r -z --name-only --no-commit-id \
      --no-renames --diff-filter=A
  fi
  git_in "$1" diff-tree -r -z --name-only --no-renames --diff-filter=A "$2" "$3"
  for patch in "$state/patches"/*.patch; do
    if [[ -e $patch ]]; then git_in "$1" apply --numstat -z "$patch" | sed -z 's/^[^\t]*\t[^\t]*\t//'; fi
  done
}

# json_text TEXT: set REPLY to the text as JSON has it between quotes.
json_text() {
  local LC_ALL=C
  local text=${1//\\/\\\\} code character
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
    for code in {1..31}; do
      printf -v code '%02x' "$code"
      printf -v character '%b' "\\x$code"
      text=${text//"$character"/"\\u00$code"}
    done
  fi
  REPLY=$text
}

# check_program NAME: stop where the runtime is missing.
check_program() {
  command -v "$1" >/dev/null ||
    fail "$1 is not on this machine" \
      'choose another one: container.runtime in configuration.toml, or load its module'
}

# check_sif FILE ARCH HINT: stop where the image is missing, is none, or is for another
# architecture. A SIF file tells it behind its first line: magic, version, architecture.
check_sif() {
  local -r file=$1 arch=$2 hint=$3
  [[ -e $file ]] || fail "the image $file is missing" "$hint"
  [[ -r $file ]] || fail "the image $file cannot be read" \
    "ask its owner for: chmod a+r $(printf %q "$file")"
  local LC_ALL=C magic code found
  { IFS= read -r -d '' _ && IFS= read -r -d '' magic &&
    IFS= read -r -d '' _ && IFS= read -r -d '' code; } <"$file" 2>/dev/null || magic=
  [[ $magic == SIF_MAGIC ]] || fail "$file is no SIF image" "$hint"
  case $code in
    02) found=amd64 ;;
    04) found=arm64 ;;
    *) found="an unknown architecture (code $code)" ;;
  esac
  [[ $found == "$arch" ]] || fail "the image $file is for $found, and $arch is needed" "$hint"
}

# host_arch: set REPLY to this machine's architecture, in the words used everywhere here.
host_arch() {
  REPLY=${BASH_VERSINFO[5]%%-*} # not HOSTTYPE, which tcsh exports in words of its own
  case $REPLY in
    x86_64) REPLY=amd64 ;;
    aarch64) REPLY=arm64 ;;
  esac
}

# check_host_arch ARCH WHAT: stop where this machine cannot run programs for ARCH.
check_host_arch() {
  host_arch
  [[ $REPLY == "$1" ]] ||
    fail "$2 is for $1, and this machine is $REPLY" "start it on a compute node, in a job"
}

# make_folders FOLDER...: make the configured folders, or say which one cannot be made.
make_folders() {
  local folder reason
  for folder in "$@"; do
    [[ -d $folder ]] && continue
    reason=$(mkdir -p -- "$folder" 2>&1) ||
      fail_writing "$folder" "cannot make the folder $folder: ${reason##*: }" \
        'set [paths] in configuration.toml to a place that you can write to'
  done
}

# what is shown inside already, by its path there
declare -A bound=()

# add_bind SOURCE [TARGET [ro]]: show a folder or file of the host inside, once. It becomes one CSV
# record, the only form in which a path may hold commas, colons and quotes.
add_bind() {
  local -r source=$1 target=${2:-$1}
  [[ -z ${bound[$target]:-} ]] || return 0
  bound[$target]=$source
  [[ -e $source ]] ||
    fail "there is no $source to bind" 'see container.binds in configuration.toml'
  if [[ -n ${bind_in_words_of:-} ]]; then # enroot, Pyxis
    "$bind_in_words_of" "$source" "$target" "${3:-rw}"
    return
  fi
  options+=(--mount
    "type=bind,\"src=${source//\"/\"\"}\",\"dst=${target//\"/\"\"}\"${3:+,$3}")
}

# what names a file or folder with certificates, to one program or another
readonly CERTIFICATES=(SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT
  GIT_SSL_CAINFO AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS)

# add_host_files: show what the caller's environment names: certificates and the temporary folder.
add_host_files() {
  local variable path
  for variable in "${CERTIFICATES[@]}"; do
    path=${!variable:-}
    if [[ $path == /* && -e $path ]]; then add_bind "$path" "$path" ro; fi
  done
  if [[ ${TMPDIR:-/tmp}/ != /tmp/* && -d ${TMPDIR:-} ]]; then add_bind "$TMPDIR"; fi
}

# add_pip_sources: show pip's configuration and the folders that it searches.
add_pip_sources() {
  local -
  set -f # words of pip's configuration are no patterns
  local path text='' lines
  for path in /etc/pip.conf /etc/xdg/pip/pip.conf "${PIP_CONFIG_FILE:-}" \
    "${HOME:-}/.pip/pip.conf" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf"; do
    [[ -f $path && -r $path ]] || continue
    if [[ $path != "${HOME:-/}"/* ]]; then add_bind "$path" "$path" ro; fi
    mapfile -t lines <"$path"
    text+=" ${lines[*]}"
  done
  text+=" ${PIP_FIND_LINKS:-} ${PIP_INDEX_URL:-} ${PIP_EXTRA_INDEX_URL:-} ${UV_FIND_LINKS:-}"
  for path in ${text//[=,]/ }; do
    path=${path#file://}
    path=${path%/simple} # an index has its files beside it
    if [[ $path == /* && -d $path ]]; then add_bind "$path" "$path" ro; fi
  done
}

# add_home: Apptainer shows the home folder of the passwd file; HOME may be another one.
add_home() {
  local -r home=${HOME:-}
  if [[ ! -d $home ]]; then return 0; fi
  unset HOME # bash then expands ~ from the passwd file
  local -r own=~
  export HOME=$home
  if [[ $home != "$own" ]]; then options+=(--home "$home"); fi
}

# add_nvidia_gpus: only where the node has one; elsewhere --nv only warns.
add_nvidia_gpus() {
  if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi
}

readonly LOCK_PATIENCE=60 # seconds without a sign of life from another host

# what this process holds, and the processes that keep it fresh
declare -a held_locks=()

declare -a lock_hearts=()

# locked PATH FUNCTION [ARGUMENT...]: run a function while holding the lock of PATH.
locked() {
  acquire_lock "$1.lock"
  trap release_locks EXIT
  "${@:2}"
  release_lock
  if ((${#held_locks[@]} == 0)); then trap - EXIT; else trap release_locks EXIT; fi
}

# acquire_lock LOCK: move a folder of ours to that name, or wait for whoever has it.
acquire_lock() {
  local -r lock=$1 own=$1.new.$(this_host).$$
  local told='' reason
  local -i failed=0
  until reason=$(make_lock "$own" "$lock" 2>&1); do
    rm -rf -- "$own"
    if [[ ! -d $lock ]]; then
      failed+=1 # or it was given back just now
      ((failed < 5)) || fail_writing "${lock%/*}" "cannot make the lock $lock: ${reason##*: }" \
        'set [paths] in configuration.toml to a place that you can write to'
      continue
    fi
    failed=0
    if lock_is_stale "$lock"; then
      take_over_lock "$lock"
      continue
    fi
    [[ -n $told ]] || note "waiting for $(lock_owner "$lock"), which works on the same ($lock)"
    told=1
    sleep 1
  done
  held_locks+=("$lock")
  # The sign of life ends with this process, however it ends. A process that is killed right after
  # its start would still run the trap of this one.
  trap - EXIT
  (while sleep 5 && kill -0 "$$" 2>/dev/null; do touch -c "$lock/owner"; done) >/dev/null 2>&1 &
  lock_hearts+=($!)
  remove_dead_locks "$lock"
}

# make_lock FOLDER LOCK: make a folder that says who has it, and move it to the lock's name.
make_lock() {
  local host start
  host=$(this_host)
  start=$(process_start "$$")
  mkdir -- "$1" && printf '%s %s %s\n' "$host" "$$" "$start" >"$1/owner" && mv -T -- "$1" "$2"
}

# remove_lock FOLDER: give it another name first, as only that takes one step.
remove_lock() {
  local -r other=$1.new.$(this_host).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another member's lock can be moved away, but not be emptied
  else
    rm -rf -- "$1"
  fi
}

# remove_dead_locks LOCK: what was killed while it made or removed one; its name says whose it is.
remove_dead_locks() {
  local folder host
  for folder in "$1".new.*; do
    host=${folder##*.new.}
    host=${host%.*}
    if [[ ! -d $folder ]]; then continue; fi
    if [[ $host == "$(this_host)" && -O $folder && ! -e /proc/${folder##*.} ]] || lock_is_stale "$folder"; then
      rm -rf -- "$folder" 2>/dev/null || : # another member's stays
    fi
  done
}

# release_lock: give back what `locked` got last.
release_lock() {
  local last=${#held_locks[@]}
  last=$((last - 1))
  if [[ -n ${lock_hearts[last]:-} ]]; then kill "${lock_hearts[last]}" 2>/dev/null || :; fi
  remove_lock "${held_locks[last]}"
  unset "lock_hearts[last]" "held_locks[last]"
}

# release_locks: give back all, at the end.
release_locks() {
  while ((${#held_locks[@]})); do release_lock; done
}

# this_host: its name; not HOSTNAME, which a job can inherit from the node that it was sent from.
this_host() {
  printf '%s' "$(</proc/sys/kernel/hostname)"
}

# lock_owner LOCK: who holds it, in words.
lock_owner() {
  local host='' process=''
  read -r host process _ 2>/dev/null <"$1/owner" || :
  printf '%s' "${process:+process $process on }${host:-another process}"
}

# process_start PID: when it started, which tells it from a later process with the same number.
process_start() {
  local stat=
  IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || :
  read -r -a stat <<<"${stat##*) }"
  printf '%s' "${stat[19]:-}"
}

# lock_is_stale LOCK: whether its owner is gone. On this host that can be seen; elsewhere its sign
# of life is compared with a file written now, by the clock of the file system.
lock_is_stale() {
  local host='' process='' start='' found now seen
  read -r host process start 2>/dev/null <"$1/owner" || :
  if [[ $host == "$(this_host)" ]]; then
    found=$(process_start "$process")
    if [[ $found == "$start" ]]; then return 1; fi
    # where /proc hides other users' processes (hidepid), only the sign of life is left
    if [[ -n $found || -O $1/owner || -r /proc/1/stat ]]; then return 0; fi
  fi
  now=$(touch -- "$1.now" && stat -c %Y -- "$1.now") || return 1
  rm -f -- "$1.now"
  seen=$(stat -c %Y -- "$1/owner" 2>/dev/null || stat -c %Y -- "$1" 2>/dev/null) || return 1
  ((now - seen > LOCK_PATIENCE))
}

# take_over_lock LOCK: remove a stale lock. Only one process may look and remove at a time, or the
# second one would remove the lock that the first has made meanwhile.
take_over_lock() {
  local -r lock=$1
  if mkdir -- "$lock.removal" 2>/dev/null; then
    if lock_is_stale "$lock"; then
      note "taking over the lock of $(lock_owner "$lock"), which is gone"
      remove_lock "$lock"
    fi
    rmdir -- "$lock.removal"
  elif lock_is_stale "$lock.removal"; then
    rmdir -- "$lock.removal" 2>/dev/null || :
  else
    sleep 1
  fi
}

# print_messages [KIND TEXT]...: a line each, on standard error, at once: jobs share a log.
print_messages() {
  local REPLY told=''
  while (($#)); do
    paint 2 "$1:"
    told+="$REPLY $2"$'\n'
    shift 2
  done
  printf '%s' "$told" >&2
}

# paint FILE WORD: set REPLY to the word, in its colour where that file (1 or 2) is a terminal which
# shows colours, unless NO_COLOR says that the user wants none: https://no-color.org. Without `return`: in
# a trap that would have the status of what was interrupted.
paint() {
  local colour
  REPLY=$2
  if [[ -t $1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
    case $2 in
      error: | problem) colour=31 ;;                            # red
      warning: | warning) colour=33 ;;                          # yellow
      ok) colour=32 ;;                                          # green
      hint: | next: | follow: | cancel: | status:) colour=36 ;; # cyan
      *) colour=1 ;;                                            # bold
    esac
    REPLY=$'\e['${colour}m$2$'\e[0m'
  fi
}

# fail MESSAGE HINT: say what is wrong and what to type, and stop.
fail() {
  print_messages error "$1" hint "$2"
  exit 1
}

# fail_writing FOLDER MESSAGE HINT: the same after something could not be written; a full disk is
# the reason that programs tell least clearly. Some take back what they were writing (uv, a package
# a core), so a disk counts as full before the last byte.
fail_writing() {
  local free=16777216 size=1 files_free=1 files=0
  read -r free size files_free files < <(stat -f -c '%a %S %d %c' -- "$1" 2>/dev/null) || :
  if ((${free:-16777216} * ${size:-1} < 1 << 24 || (${files:-0} > 0 && ${files_free:-1} == 0))) ||
    [[ $2 == *'quota exceeded'* || $2 == *'No space left'* ]]; then
    fail "${2%: No space left on device}: No space left on device" \
      'make room there, or set [paths] in configuration.toml; then run the same command again'
  fi
  fail "$2" "$3"
}

# note TEXT: tell something that is no error.
note() {
  print_messages note "$1"
}

# step NUMBER/COUNT TEXT: say what is done now, and remember it for an interruption.
step() {
  local REPLY
  current_step="step $1, $2"
  paint 2 "[$1] $2"
  printf '%s\n' "$REPLY" >&2
}

# on_interrupt COMMAND: after Ctrl-C name the step and the command that goes on.
on_interrupt() {
  interrupted_command=$1
  trap 'trap - INT TERM
        printf "\n" >&2
        print_messages error "interrupted at ${current_step:-the start}" \
          hint "nothing is lost; go on with: $interrupted_command"
        exit 130' INT TERM
}

# next_step COMMAND: say what to type now.
next_step() {
  print_messages next "$1"
}

readonly OVERLAY_MOUNTED_AT=/user-software

# the record's lines, read once: a rank asks the shared file system as little as it can
declare -a overlay_record=()

# check_overlay BASE: stop where the overlay is missing or belongs to another image.
check_overlay() {
  { mapfile -t overlay_record <"$overlay.json"; } 2>/dev/null || missing_overlay
  local bases
  value_in base "${overlay_record[@]}"
  bases=$REPLY
  if ! is_base "$1" "$bases"; then
    value_in python "${overlay_record[@]}"
    fail "the overlay $overlay belongs to ${bases//'\n'/, } with Python $REPLY, not to $1" \
      'python3 build_overlay.py'
  fi
  [[ $1 == host || ! $1 -nt $overlay.json ]] ||
    fail "the image $1 is newer than the overlay $overlay" 'python3 build_overlay.py'
  # without an image it is the machine's own Python that may have been replaced
  [[ $1 != host ]] || check_overlay_python
}

# is_base IMAGE BASES: whether it is one of those in a record, as JSON has them.
is_base() {
  json_text "$1"
  [[ "\\n$2\\n" == *"\\n$REPLY\\n"* ]]
}

# missing_overlay: say why there is none.
missing_overlay() {
  if [[ -e $overlay && -e $overlay.json ]]; then
    fail "the overlay $overlay cannot be read" \
      "ask its owner for: chmod a+r $(printf '%q %q' "$overlay" "$overlay.json")"
  fi
  if [[ -e $overlay ]]; then
    fail "the overlay $overlay was not made by Longship" 'python3 build_overlay.py, which takes it over'
  fi
  fail "there is no overlay $overlay" 'python3 build_overlay.py'
}

# check_overlay_python: stop where the host has another Python now than when it was built.
check_overlay_python() {
  local found
  value_in interpreter "${overlay_record[@]}"
  found=$("$REPLY" -c 'import platform; print(platform.python_version())' 2>/dev/null) || found=none
  value_in python "${overlay_record[@]}"
  [[ $found == "$REPLY" ]] ||
    fail "the overlay $overlay is for Python $REPLY, and this machine has $found" \
      'python3 build_overlay.py'
}

# mount_overlay: let Apptainer mount it, in the way that was found to work when it was built.
mount_overlay() {
  value_in mounted_by "${overlay_record[@]}"
  add_overlay_file "$overlay" "$REPLY"
}

# add_overlay_file FILE WAY: bind the file where that works, else lay it over the whole image.
add_overlay_file() {
  if [[ $2 == overlay ]]; then
    options+=(--overlay "$1:ro")
  else
    options+=(--mount
      "type=bind,\"src=${1//\"/\"\"}\",dst=$OVERLAY_MOUNTED_AT,image-src=/,ro")
  fi
}

readonly MOST_AT_ONCE=8 # login nodes are shared

declare -a parallel_jobs=()

# in_parallel FUNCTION WORD...: run FUNCTION WORD for each WORD, at once; what each prints is shown in
# one piece. Set `stopped` to the WORDs whose function failed; the others are finished all the same.
in_parallel() {
  local -r function=$1
  local -i number=0 status
  shift
  stopped=()
  parallel_jobs=()
  parallel_logs=$(mktemp -d)
  # a process that is killed right after its start would run it too
  trap 'if ((BASHPID == $$)); then stop_parallel; release_locks; fi' EXIT
  for _ in "$@"; do
    if ((number >= MOST_AT_ONCE)); then wait "${parallel_jobs[number - MOST_AT_ONCE]}" || :; fi
    number+=1
    set -m # in a process group of its own, to be ended as a whole
    (set +m && "$function" "${!number}") >"$parallel_logs/$number" 2>&1 </dev/null &
    set +m
    parallel_jobs+=($!)
  done
  if [[ -t 2 ]]; then show_parallel; fi
  number=0
  for _ in "$@"; do
    status=0
    wait "${parallel_jobs[number]}" || status=$?
    number+=1
    show_log "$parallel_logs/$number"
    if ((status)); then
      stopped+=("${!number}")
      tell_failure "${!number}" "$parallel_logs/$number"
    fi
  done
  parallel_jobs=()
  trap release_locks EXIT
  rm -rf -- "$parallel_logs"
}

# show_parallel: how many are done, until all are.
show_parallel() {
  local -r start=$SECONDS
  local -i working=1
  local job
  while ((working)); do
    working=0
    for job in "${parallel_jobs[@]}"; do
      if kill -0 "$job" 2>/dev/null; then working+=1; fi
    done
    printf '\r\e[K      %d of %d done, %d s' $((${#parallel_jobs[@]} - working)) "${#parallel_jobs[@]}" \
      $((SECONDS - start)) >&2
    sleep 0.2
  done
  printf '\r\e[K' >&2
}

# show_log LOG: on standard error, where its messages may have a colour again.
show_log() {
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    case $line in
      'error: '* | 'warning: '* | 'hint: '* | 'note: '*) print_messages "${line%%: *}" "${line#*: }" ;;
      *) printf '%s\n' "$line" >&2 ;;
    esac
  done <"$1"
}

# tell_failure WORD LOG: where a program failed that nobody had thought of, or was killed.
tell_failure() {
  if [[ $(tail -n 1 -- "$2") != 'hint: '* ]]; then
    print_messages error "$1: stopped in the middle" hint 'see the lines above; then the same command again'
  fi
}

# stop_parallel: what was started ends with this process, the programs that it runs too.
stop_parallel() {
  local job
  for job in ${parallel_jobs[@]+"${parallel_jobs[@]}"}; do
    kill -- "-$job" 2>/dev/null || :
    wait "$job" 2>/dev/null || :
  done
  rm -rf -- "$parallel_logs"
}

readonly UPDATE='python3 set_up.py update'

# replay FOLDER: go on at the remembered step.
replay() {
  recall step
  case $REPLY in
    move) replay_move "$1" ;;&
    move | series) replay_series "$1" ;;&
    move | series | commits) replay_commits "$1" ;;&
    move | series | commits | changes) replay_changes "$1" ;;
  esac
}

# replay_move FOLDER: from the tracked changes, as if they were committed, to the target.
replay_move() {
  local -r folder=$1
  local own target
  own=$(git_folder "$folder")
  recall target
  target=$REPLY
  recall tracked
  git_in "$folder" update-ref --no-deref -m 'longship: update' HEAD "$REPLY"
  mv -- "$own/longship-index" "$own/index"
  if ! git_in "$folder" checkout --quiet --no-overwrite-ignore --detach "$target" 2>"$state/said"; then
    take_back "$folder"
    cat -- "$state/said" >&2
    fail_writing "$folder" "$folder cannot be moved to $(shown_commit "$folder" "$target")" \
      'see the lines above; it is as it was'
  fi
  remember step series
}

# replay_commits FOLDER: pick the remembered commits, one after the other.
replay_commits() {
  local -r folder=$1
  local commit rest
  while recall commits && [[ -n $REPLY ]]; do
    commit=${REPLY%%$'\n'*}
    rest=${REPLY#"$commit"}
    if [[ -e $state/stopped ]]; then
      end_pick "$folder" "$commit"
    else
      remember_output picked_on commit_of "$folder" HEAD
      recall commits
      pick "$folder" "$commit" --allow-empty ||
        stop_for_conflict "$folder" "your commit $(commit_title "$folder" "$commit")"
    fi
    remember commits "${rest#$'\n'}"
  done
  remember_output replayed commit_of "$folder" HEAD
  remember step changes
}

# commit_title FOLDER COMMIT: print its short name and subject.
commit_title() {
  git_in "$1" show --no-patch --format='%h "%s"' "$2"
}

# pick FOLDER COMMIT OPTION...: cherry-pick it; a commit whose changes are there already is left out.
# Fails where the user has to resolve something.
pick() {
  local -r folder=$1 commit=$2
  if git_in "$folder" cherry-pick "${@:3}" "$commit" >"$state/said" 2>&1; then return; fi
  if [[ -n $(git_in "$folder" ls-files --unmerged) ]]; then return 1; fi
  if [[ -e $(git_folder "$folder")/CHERRY_PICK_HEAD ]] && git_in "$folder" diff-index --quiet HEAD; then
    git_in "$folder" cherry-pick --quit
    note "$folder: $(commit_title "$folder" "$commit") is in the new version already"
    return
  fi
  cat -- "$state/said" >&2
  fail_writing "$folder" "$folder: git cannot pick $(commit_title "$folder" "$commit")" \
    'see the lines above; go back to what was: python3 set_up.py update --abort'
}

# end_pick FOLDER COMMIT: after a stop, commit what the user resolved, unless that is done.
end_pick() {
  local -r folder=$1
  check_resolved "$folder"
  if [[ -e $(git_folder "$folder")/CHERRY_PICK_HEAD ]]; then
    if git_in "$folder" diff-index --cached --quiet HEAD; then
      git_in "$folder" cherry-pick --quit
    else
      git_in "$folder" cherry-pick --continue >/dev/null
    fi
  fi
  recall picked_on
  if [[ $REPLY == "$(commit_of "$folder" HEAD)" ]]; then
    recall saved_folder
    note "$folder: your commit $(commit_title "$folder" "$2") was left out; it is kept in $REPLY"
  fi
  rm -f -- "$state/stopped"
}

# check_resolved FOLDER: stop where conflicts are left.
check_resolved() {
  local files
  files=$(conflicts "$1")
  if [[ -n $files ]]; then
    fail "$1: there are still conflicts in $files" \
      "resolve them, git add them, then: python3 set_up.py update --continue; or: --abort"
  fi
}

# conflicts FOLDER: print the files with conflicts.
conflicts() {
  local file all=
  while IFS= read -r -d '' file; do all+=${all:+, }$file; done < \
    <(git_in "$1" diff --name-only --diff-filter=U -z)
  printf '%s' "$all"
}

# stop_for_conflict FOLDER WHAT: leave it to the user, as git would.
stop_for_conflict() {
  local files where
  files=$(conflicts "$1")
  if [[ -z $files ]]; then sed 's/^/  /' "$state/said" >&2; fi
  touch -- "$state/stopped"
  recall saved_folder
  where=${REPLY:+; your changes as patches: $REPLY}
  fail "$1: $2 does not fit the new version${files:+, with conflicts in $files}" \
    "resolve and git add them there, then: $UPDATE --continue; back to what was: $UPDATE --abort$where"
}

# replay_changes FOLDER: what was staged, and then what was not, on top of the new HEAD.
replay_changes() {
  local -r folder=$1
  local file
  if [[ ! -e $state/stopped ]]; then
    merge_changes "$folder" || stop_for_conflict "$folder" 'what you have not committed'
    recall new_index
    git_in "$folder" read-tree -m "$REPLY"
  else
    check_resolved "$folder"
    index_after_conflict "$folder"
    rm -f -- "$state/stopped"
  fi
  while IFS= read -r -d '' file; do # what `git add -N` did
    git_in "$folder" add -N -f -- ":(literal)$file" 2>/dev/null || :
  done <"$state/announced"
  put_back_raw "$folder"
  git_in "$folder" update-index -q --refresh >/dev/null || :
  finish_replay "$folder"
}

# merge_changes FOLDER: three-way merges, first of the index, then of the files; remember `new_index`,
# the tree that is to be staged in the end. Fails with conflict markers in the files.
merge_changes() {
  local -r folder=$1
  local head staged tracked
  recall head
  head=$REPLY
  recall staged
  staged=$REPLY
  recall tracked
  tracked=$REPLY
  if [[ $(tree_of "$folder" "$staged") != "$(tree_of "$folder" "$head")" ]] &&
    ! merge_into_index "$folder" "$staged"; then
    # not even what was staged merges: all at once, for one conflict instead of two
    git_in "$folder" reset --quiet --hard
    remember new_index "$(tree_of "$folder" HEAD)"
    tracked=$(own_commit "$folder" "$(tree_of "$folder" "$tracked")" 'all' -p "$head")
    merge_into_index "$folder" "$tracked"
    return
  fi
  remember_output new_index git_in "$folder" write-tree
  [[ $(tree_of "$folder" "$tracked") == "$(tree_of "$folder" "$staged")" ]] ||
    merge_into_index "$folder" "$tracked"
}

# merge_into_index FOLDER COMMIT: what it changes, merged into index and files.
merge_into_index() {
  local status=0
  pick "$1" "$2" --no-commit || status=1
  rm -f -- "$(git_folder "$1")/MERGE_MSG"
  return "$status"
}

# index_after_conflict FOLDER: as it was, but resolved files that had been staged are staged; where
# the user has committed meanwhile, the index is left alone.
index_after_conflict() {
  local -r folder=$1
  local head staged
  recall replayed
  if [[ $REPLY != "$(commit_of "$folder" HEAD)" ]]; then return; fi
  recall head
  head=$REPLY
  recall staged
  staged=$REPLY
  git_in "$folder" diff-tree -r -z --name-only --no-renames "$head" "$staged" >"$state/files"
  recall new_index
  git_in "$folder" read-tree -m "$REPLY"
  if [[ $REPLY != "$(tree_of "$folder" HEAD)" ]]; then return; fi
  git_in "$folder" update-index --add --remove -z --stdin <"$state/files"
}

# finish_replay FOLDER: the branch that the user was on moves along.
finish_replay() {
  recall branch
  if [[ -n $REPLY ]]; then
    git_in "$1" update-ref -m 'longship: update' "$REPLY" HEAD
    git_in "$1" symbolic-ref -m 'longship: update' HEAD "$REPLY"
  fi
  remember step finished
}

declare -a all_repositories=()

declare -A repository_url=()

declare -A repository_ref=()

declare -A repository_upstream=()

declare -A repository_patches=()

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
  if [[ -n $missing ]]; then step 1/1 "Clone$missing"; fi # what git says is shown when it is done
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
    note "$folder is no git repository; it is left alone"
    return
  fi
  own=$(git_folder "$folder")
  state=$own/longship-update
  check_no_update "$folder"
  if [[ -e $state/step ]]; then
    update_repository "$1" # it was killed while patches were applied
  elif [[ $(settings_of "$1") != "$(cat -- "$own/longship-settings" 2>/dev/null)" ]]; then
    note "$1 is not what is configured now; to move it there: python3 set_up.py update"
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
    fail_writing "$repositories_folder" "$folder cannot be made" \
      'see the lines above; then the same command again'
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
    fail "$1: there is no $bundle" \
      'where there is a network: python3 set_up.py download; then copy it here'
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
    fail "$1: ${repository_url[$1]} has no default branch" "say which one: ref = ... in configuration.toml"
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
    fail "$1: $bundles/$1.bundle has no tag, branch or commit ${repository_ref[$1]}" \
      'where there is a network: python3 set_up.py download; then copy it here'
  fi
  fail "$1: ${repository_url[$1]} has no tag, branch or commit ${repository_ref[$1]}" \
    "what it has: git ls-remote $(printf %q "${repository_url[$1]}"); then ref = ... in configuration.toml"
}

# explain_git NAME URL TEXT: stop, with what git said about a server.
explain_git() {
  local said=${3,,}
  case $said in
    *'no space left'* | *'quota exceeded'*)
      fail "$1: No space left on device" \
        'make room there, or set [paths] in configuration.toml; then the same command again'
      ;;
    *'could not resolve'* | *'network is unreachable'* | *'connection refused'* | \
      *'connection timed out'* | *'failed to connect'* | *'no route to host'*)
      fail "$1: $2 cannot be reached from here" \
        'where there is a network: python3 set_up.py download; then here: python3 set_up.py offline'
      ;;
    *'terminal prompts disabled'* | *'authentication failed'* | *'permission denied'* | \
      *'host key verification'*)
      fail "$1: $2 asks for a login that git does not have" \
        "log in once: git ls-remote $(printf %q "$2"); see git help credentials, or ssh-add"
      ;;
    *'early eof'* | *'index-pack'* | *'not a v2 bundle'* | *'bad object'* | *'bundle file'*)
      [[ $2 != *.bundle ]] || fail "$1: $2 is damaged" 'copy it again'
      ;;&
    *'does not exist'* | *'not found'* | *'does not appear to be a git repository'*)
      fail "$1: there is no repository $2" 'check its url in configuration.toml'
      ;;
  esac
  printf '%s\n' "$3" >&2
  fail_writing "$repositories_folder" "$1: git cannot fetch $2" \
    'see the lines above; then the same command again'
}

# stop_if_failed: say which repositories stopped; what each of them needs was said before.
stop_if_failed() {
  if ((${#stopped[@]} == 0)); then return; fi
  if ((${#all_repositories[@]} > ${#stopped[@]})); then
    note "stopped: ${stopped[*]}; the other repositories are finished"
  fi
  exit 1
}

# check_requirements: stop where a file is missing.
check_requirements() {
  local word before=
  for word in ${requirements[@]+"${requirements[@]}"}; do
    if [[ $before == -r && ! -r $word && $word != "$repositories_folder"/* ]]; then
      fail "there is no requirements file $word" \
        'make it, or name another one: packages.requirements in configuration.toml, "" for none'
    fi
    before=$word
  done
}

# check_repositories: stop where one is missing, or what it is installed by.
check_repositories() {
  local name word
  local -i at
  for name in ${repository_names[@]+"${repository_names[@]}"}; do
    [[ -d $repositories_folder/$name ]] ||
      fail "there is no repository $repositories_folder/$name" 'python3 set_up.py install'
  done
  for word in ${sources[@]+"${sources[@]}"}; do
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    [[ -f $repositories_folder/$name/pyproject.toml || -f $repositories_folder/$name/setup.py ]] ||
      fail "repository $name cannot be installed: it has no pyproject.toml and no setup.py" \
        'set in its table of configuration.toml: install = "requirements", or "none"'
  done
  for word in ${requirements[@]+"${requirements[@]}"}; do
    [[ $word != "$repositories_folder"/* || -r $word ]] ||
      fail "there is no requirements file $word" \
        "name the repository's own one: requirements = ... in its table of configuration.toml"
  done
  for ((at = 1; at < ${#scripts[@]}; at += 2)); do
    [[ -r ${scripts[at]} ]] ||
      fail "there is no script ${scripts[at]} for repository ${scripts[at - 1]}" \
        'make it, or correct its name: script = ... in configuration.toml'
  done
}

# source_name ./NAME[EXTRA]: NAME.
source_name() {
  local -r path=${1#./}
  printf '%s' "${path%%\[*}"
}

# venv_inputs: one checksum over everything that decides what is installed.
venv_inputs() {
  local word
  local -a words=("$installer" "$torch" ${requirements[@]+"${requirements[@]}"})
  if [[ -n $pins ]]; then words+=("$pins"); fi
  if ((${#sources[@]})); then words+=("$(sources_sum)" "$(plain_sources_sum)"); fi
  if ((${#scripts[@]})); then words+=("${scripts[@]}"); fi
  {
    # files too large to be read: a version's name says what it holds, a site's own image has a date
    printf '%s\n' "$base" "$overlay" "$(if [[ $base == /* ]]; then stat -c '%s %Y' -- "$base" 2>/dev/null; fi)"
    for word in "${words[@]}"; do
      if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
    done
  } | sha256sum | cut -d ' ' -f 1
}

# requirements_sum: one checksum over what is asked for. No path is in it: the same on all machines.
requirements_sum() {
  local word
  for word in ${requirements[@]+"${requirements[@]}"} "$torch"; do
    if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
  done | sha256sum | cut -d ' ' -f 1
}

# print_requirements FILE [DEPTH]: its lines, and those of the files that it includes.
print_requirements() {
  local line
  local -r include='^[[:space:]]*(-r|-c|--requirement|--constraint)[[:space:]=]*([^[:space:]#]+)'
  cat -- "$1"
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ ! $line =~ $include ]]; then continue; fi
    line=${BASH_REMATCH[2]}
    if [[ $line != /* ]]; then line=${1%/*}/$line; fi
    if [[ -f $line ]] && ((${2:-0} < 9)); then print_requirements "$line" "$((${2:-0} + 1))"; fi # not for ever
  done <"$1"
}

# sources_sum: one checksum over what says which packages the repositories need, and how they are
# installed. Their code is not in it: an editable installation sees every change.
sources_sum() {
  local word name
  for word in ${sources[@]+"${sources[@]}"}; do
    printf '%s\n' "$word"
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    (cd -- "$repositories_folder/$name" &&
      sha256sum pyproject.toml setup.py setup.cfg requirements*.txt requirements/*.txt 2>/dev/null) || :
  done | sha256sum | cut -d ' ' -f 1
}

# plain_sources_sum: one checksum over the code of the repositories that are copied into the venv.
plain_sources_sum() {
  local word before=
  for word in "${sources[@]}"; do
    if [[ $word != -e && $before != -e ]]; then
      repository_state "$repositories_folder/$(source_name "$word")"
    fi
    before=$word
  done | sha256sum | cut -d ' ' -f 1
}

# repository_state FOLDER: its commit and its changes, without what a build leaves in it.
repository_state() {
  if git -C "$1" rev-parse HEAD 2>/dev/null; then
    git -C "$1" diff --binary HEAD
    (cd -- "$1" && git ls-files --others --exclude-standard -z -x build -x '*.egg-info' |
      xargs -0 -r sha256sum --)
  else
    (cd -- "$1" && find . \( -name build -o -name '*.egg-info' -o -name __pycache__ \) -prune -o \
      -type f -print0 | sort -z | xargs -0 -r sha256sum --)
  fi
}

# choose_lock: set pins to the group's own list, if there is one for this image.
choose_lock() {
  pins=
  renew='python3 set_up.py update makes it anew; or remove it, to install without'
  if [[ ! -e $lock ]]; then return; fi
  if [[ $(header_value image "$lock") != "$image_address" ]]; then
    note "$lock is for another image, $(header_value image "$lock"): it is not used"
  elif ! list_fits "$lock" requirements "$(requirements_sum)" ||
    ! list_fits "$lock" repositories "$(sources_sum)"; then
    fail "$lock does not fit: the requirements or the repositories have changed since" "$renew"
  else
    pins=$lock
  fi
}

# header_value KEY FILE: what the first lines of a list say, such as `# python: 3.12`.
header_value() {
  sed -n "s/^# $1: //p; /^[^#]/q" "$2"
}

# list_fits FILE KEY SUM: whether it was made from the same.
list_fits() {
  [[ $(header_value "$2" "$1") == "$3" ]]
}

# check_pinned_torch VERSION: stop where the image has a PyTorch and the list another one, or neither.
check_pinned_torch() {
  if [[ -z $torch || $base == host ]]; then return; fi
  if grep -q '^torch==' "$pins"; then
    [[ -z $1 ]] || fail "$pins has a second PyTorch: $base has its own, $1" "$renew"
  elif [[ -z $1 ]]; then
    fail "neither $base nor $pins has a PyTorch" "$renew"
  fi
}

# check_pinned_python: stop where the packages were chosen for another Python.
check_pinned_python() {
  local python
  python=$(inside python3 -c 'import sys; print("{}.{}".format(*sys.version_info))') ||
    fail "there is no python3 in $base" 'use an image that has one'
  [[ $python == "$(header_value python "$pins")" ]] ||
    fail "$pins is for Python $(header_value python "$pins"), and $base has $python" \
      "$renew"
}

# restore FOLDER: keep what is there now, and take the repository back.
restore() {
  save_what_is_there "$1"
  take_back "$1"
}

# take_back FOLDER: exactly as it was before the update, whatever step it is at.
take_back() {
  local -r folder=$1
  local own step tracked
  own=$(git_folder "$folder")
  remove_own_locks "$own"
  recall step
  step=$REPLY
  git_in "$folder" cherry-pick --quit 2>/dev/null || :
  rm -rf -- "$own/rebase-apply" "$own/CHERRY_PICK_HEAD" "$own/MERGE_MSG"
  recall tracked
  tracked=$REPLY
  # killed on its way, it may hold files of the target that the index does not know of
  if [[ $step == move ]]; then
    remove_left_over "$folder" "$tracked"
    git_in "$folder" read-tree "$tracked"
  fi
  if ! { git_in "$folder" read-tree --reset -u "$tracked" && restore_head "$folder" &&
    cp -p -- "$state/index" "$own/index"; }; then
    fail_writing "$folder" "$folder cannot be taken back to what it was" \
      'see the lines above; then: python3 set_up.py update --abort'
  fi
  put_back_raw "$folder"
  git_in "$folder" update-index -q --refresh >/dev/null || :
  remember step restored
}

# remove_own_locks OWN: what a git was killed with, that this program had started.
remove_own_locks() {
  recall branch
  rm -f -- "$1/index.lock" "$1/HEAD.lock" "$1"/longship-*.lock ${REPLY:+"$1/$REPLY.lock"}
  if [[ -d $1/refs/longship ]]; then find "$1/refs/longship" -name '*.lock' -delete; fi
}

# remove_left_over FOLDER TRACKED: new files of the target that a killed move has left; no file of the
# user's was in their place, or there would have been no move.
remove_left_over() {
  local path blob
  recall target
  while IFS= read -r -d '' path; do
    if [[ ! -f $1/$path && ! -L $1/$path ]]; then continue; fi
    blob=$(git_in "$1" rev-parse "$REPLY:$path")
    if [[ -L $1/$path || ! -s $1/$path ||
      $(git_in "$1" hash-object --path="$path" -- "$path" 2>/dev/null) == "$blob" ]]; then
      rm -f -- "$1/$path"
    fi
  done < <(git_in "$1" diff-tree -r -z --name-only --no-renames --diff-filter=A "$2" "$REPLY")
}

# restore_head FOLDER: the commit, and the branch it was on.
restore_head() {
  local head
  recall head
  head=$REPLY
  recall branch
  if [[ -n $REPLY ]]; then
    git_in "$1" update-ref -m 'longship: abort' "$REPLY" "$head"
    git_in "$1" symbolic-ref -m 'longship: abort' HEAD "$REPLY"
  else
    git_in "$1" update-ref --no-deref -m 'longship: abort' HEAD "$head"
  fi
}

# save_what_is_there FOLDER: what the user has done since the update began is not lost either.
save_what_is_there() {
  local -r folder=$1 ref=refs/longship/given-up/$(date +%Y%m%dT%H%M%S).$$
  local own tree
  own=$(git_folder "$folder")
  remove_own_locks "$own"
  recall step
  if [[ ! -e $state/stopped && $REPLY == restored ]]; then return; fi
  local -x GIT_INDEX_FILE=$own/longship-index
  if ! { git_in "$folder" read-tree HEAD && git_in "$folder" add --update -- :/; }; then
    fail_writing "$folder" "$folder: what is there now cannot be saved" \
      'see the lines above; then the same command again'
  fi
  git_in "$folder" add --all --ignore-errors -- :/ 2>/dev/null || : # a file that nobody may read
  tree=$(git_in "$folder" write-tree)
  rm -f -- "$GIT_INDEX_FILE"
  git_in "$folder" update-ref "$ref" \
    "$(own_commit "$folder" "$tree" 'given up' -p "$(commit_of "$folder" HEAD)")"
  note "$folder: what is there now is kept: git show $ref"
}

# restore_all FOLDER: with its submodules; those that the update brought go.
restore_all() {
  local path
  if [[ ! -e $state/step ]]; then return; fi
  for_submodules "$1" restore_submodule
  if [[ -e $state/new_submodules ]]; then
    while IFS= read -r -d '' path; do
      # it was not there before; if the user has worked in it meanwhile, it stays
      if [[ -z $(git_in "$1/$path" status --porcelain 2>/dev/null) ]]; then rm -rf -- "${1:?}/$path"; fi
    done <"$state/new_submodules"
  fi
  restore "$1"
}

# restore_submodule FOLDER
restore_submodule() {
  restore_all "$1"
  rm -rf -- "$state"
}

# series_sum FOLDER: print one checksum over all patches of a folder, empty where there are none.
series_sum() {
  local -ar files=("$1"/*.patch)
  if [[ -e ${files[0]} ]]; then cat -- "${files[@]}" | sha256sum | cut -d ' ' -f 1; fi
}

# keep_series FOLDER: remember the patches as they are now, for this update.
keep_series() {
  local patch
  mkdir -p -- "$state/patches"
  for patch in "$1"/*.patch; do
    if [[ -e $patch ]]; then cp -- "$patch" "$state/patches"; fi
  done
}

# replay_series FOLDER: apply the remembered patches, and forget each that is in.
replay_series() {
  local -r folder=$1
  local patch
  for patch in "$state/patches"/*.patch; do
    if [[ ! -e $patch ]]; then continue; fi
    if [[ -e $state/stopped ]]; then
      end_patch "$folder" "$patch"
    elif is_in "$folder" "$patch"; then
      note "$folder: ${patch##*/} is in the new version already; save-patches leaves it out"
    elif ! apply_patch "$folder" "$patch"; then
      stop_for_conflict "$folder" "the patch ${patch##*/}"
    fi
    rm -- "$patch"
  done
  remember_output patched commit_of "$folder" HEAD
  remember step commits
}

# is_in FOLDER PATCH: whether upstream has taken it in: it could be undone, and not be applied (a
# line more in a file of equal lines could be both).
is_in() {
  ! git_in "$1" apply --check "$2" 2>/dev/null &&
    git_in "$1" apply --check --reverse "$2" 2>/dev/null
}

# apply_patch FOLDER PATCH: as a commit that is the same for everybody, with a three-way merge.
apply_patch() {
  local -r folder=$1 patch=$2
  local -x GIT_COMMITTER_NAME=Longship GIT_COMMITTER_EMAIL=longship@localhost
  if is_mail "$patch"; then
    git_in "$folder" am --quiet --3way -k --keep-cr --no-scissors --committer-date-is-author-date \
      "$patch" >"$state/said" 2>&1
  else
    git_in "$folder" apply --3way --index "$patch" >"$state/said" 2>&1 &&
      commit_plain_patch "$folder" "$patch"
  fi
}

# is_mail PATCH: whether `git format-patch` made it; `git diff` writes no header.
is_mail() {
  [[ $(head -n 1 -- "$1") == 'From '* ]]
}

# commit_plain_patch FOLDER PATCH
commit_plain_patch() {
  local -rx GIT_AUTHOR_NAME=Longship GIT_AUTHOR_EMAIL=longship@localhost
  local -rx GIT_COMMITTER_DATE='2000-01-01T00:00:00Z' GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
  git_in "$1" commit --quiet --no-verify -m "${2##*/}"
}

# end_patch FOLDER PATCH: after a stop, commit what the user resolved, unless that is done.
end_patch() {
  local -r folder=$1
  check_resolved "$folder"
  if git_in "$folder" diff-index --cached --quiet HEAD && ! git_in "$folder" diff-files --quiet; then
    fail "$folder: what you have changed for the patch ${2##*/} is not staged" \
      'git add it, then: python3 set_up.py update --continue; or: --abort'
  fi
  if [[ -e $(git_folder "$folder")/rebase-apply ]]; then
    if git_in "$folder" diff-index --cached --quiet HEAD; then
      git_in "$folder" am --quiet --skip
      note "$folder: the patch ${2##*/} was left out"
    else
      git_in "$folder" am --quiet --continue
    fi
  elif ! git_in "$folder" diff-index --cached --quiet HEAD; then
    commit_plain_patch "$folder" "$2"
  fi
  rm -f -- "$state/stopped"
}

# submodules_of FOLDER: print commit and path of each, NUL-terminated.
submodules_of() {
  git_in "$1" ls-files --stage -z | sed -z -n 's/^160000 \([0-9a-f]*\) 0\t/\1 /p'
}

# update_submodules FOLDER NAME: after it was moved; remembers those that are new.
update_submodules() {
  local -r folder=$1 name=$2
  local entry wanted path before staged
  recall staged
  staged=$REPLY
  while IFS= read -r -d '' entry <&3; do
    wanted=${entry%% *}
    path=${entry#* }
    before=$(git_in "$folder" rev-parse --verify --quiet "$staged:$path" || :)
    if [[ -e $folder/$path/.git && -n $before ]]; then
      if [[ $before != "$wanted" ]]; then update_submodule "$folder" "$path" "$name" "$before" "$wanted"; fi
    elif [[ -z $before && ! -e $folder/$path/.git ]]; then
      printf '%s\0' "$path" >>"$state/new_submodules"
      fetch_submodules "$folder" "$name" "$path"
    fi
  done 3< <(submodules_of "$folder")
}

# fetch_submodules FOLDER NAME [PATH]...: those that are not there yet, with theirs.
fetch_submodules() {
  local said
  if [[ -n $bundles ]]; then
    unpack_submodules "$@"
    return
  fi
  said=$(git_in "$1" submodule --quiet update --init --recursive -- "${@:3}" 2>&1) || {
    printf '%s\n' "$said" >&2
    fail_writing "$1" "$2: its submodules cannot be fetched" \
      'see the lines above; then the same command again'
  }
}

# unpack_submodules FOLDER NAME [PATH]...: the same from what was carried here.
unpack_submodules() {
  local -r folder=$1 name=$2
  local entry key path bundle said
  git_in "$folder" submodule --quiet init -- "${@:3}"
  while IFS= read -r -d '' entry <&4; do
    key=${entry%%$'\n'*}
    path=${entry#*$'\n'}
    bundle=$bundles/$name/$path.bundle
    if [[ -e $folder/$path/.git ]]; then continue; fi
    [[ -e $bundle ]] || fail "$name: there is no $bundle" \
      'where there is a network: python3 set_up.py download; then copy it here'
    git_in "$folder" config "${key%.path}.url" "$bundle"
    said=$(git_in "$folder" -c protocol.file.allow=always submodule --quiet update -- "$path" 2>&1) ||
      explain_git "$name" "$bundle" "$said"
    git_in "$folder" submodule --quiet sync -- "$path"
    if [[ -e $folder/$path/.gitmodules ]]; then unpack_submodules "$folder/$path" "$name/$path"; fi
  done 4< <(git_in "$folder" config -z --file .gitmodules --get-regexp '^submodule\..*\.path$')
}

# update_submodule FOLDER PATH NAME BEFORE WANTED: from one commit to the other.
update_submodule() {
  local -r submodule=$1/$2 name=$3/$2 before=$4 wanted=$5
  local own state source
  own=$(git_folder "$submodule")
  state=$own/longship-update
  if [[ -e $state/step ]]; then
    recall step
    if [[ -e $state/stopped ]]; then
      replay "$submodule"
    elif [[ $REPLY != finished ]]; then
      restore "$submodule"
    fi
  fi
  recall step
  if [[ $REPLY != finished ]]; then
    rm -rf -- "$state"
    check_not_busy "$submodule"
    git_in "$1" submodule --quiet sync -- "$2"
    if ! commit_of "$submodule" "$wanted" >/dev/null; then
      source=origin
      if [[ -n $bundles ]]; then source=$bundles/$name.bundle; fi
      git_in "$submodule" fetch --quiet "$source" '+refs/heads/*:refs/remotes/origin/*' || :
      commit_of "$submodule" "$wanted" >/dev/null || git_in "$submodule" fetch --quiet "$source" "$wanted" ||
        fail "$name: $source has no commit $wanted" 'ask whoever keeps the repository'
    fi
    move_repository "$submodule" "$name" "$wanted" '' "$before"
  fi
  update_submodules "$submodule" "$name"
}

# for_submodules FOLDER FUNCTION: call it for each submodule with an update under way.
for_submodules() {
  local -r folder=$1 function=$2
  local entry own state submodule
  while IFS= read -r -d '' entry <&3; do
    submodule=$folder/${entry#* }
    if [[ ! -e $submodule/.git ]]; then continue; fi
    own=$(git_folder "$submodule")
    state=$own/longship-update
    if [[ -e $state ]]; then "$function" "$submodule"; fi
  done 3< <(submodules_of "$folder")
}

# update_repository NAME
update_repository() {
  local -r name=$1 folder=$repositories_folder/$1
  local own state target
  if [[ ! -e $folder && ! -L $folder ]]; then
    clone_repository "$name"
    return
  fi
  [[ -e $folder/.git ]] ||
    fail "$folder is no git repository" \
      "move it away: mv $(printf '%q %q' "$folder" "$folder.old"); then the same command again"
  own=$(git_folder "$folder")
  state=$own/longship-update
  check_no_update "$folder"
  recall step
  if [[ $REPLY == finished ]]; then
    complete_update "$folder" "$name" # it stopped at a submodule
  elif [[ -n $REPLY ]]; then
    note "$name: the last update was interrupted; it begins again from what was there before"
    restore_all "$folder"
  fi
  rm -rf -- "$state"
  check_not_busy "$folder"
  follow_url "$name" "$folder"
  fetch_repository "$name" "$folder"
  target=$(find_target "$name" "$folder")
  if is_up_to_date "$name" "$folder" "$target"; then
    printf '%s is up to date: %s\n' "$name" "$(shown_commit "$folder" "$target")" >&2
    return
  fi
  move_repository "$folder" "$name" "$target" "${repository_patches[$name]}"
  complete_update "$folder" "$name"
}

# complete_update FOLDER NAME: after the repository itself, its submodules.
complete_update() {
  update_submodules "$1" "$2"
  finish_update "$2"
}

# check_no_update FOLDER: stop where an update waits for the user.
check_no_update() {
  if [[ -e $state/stopped ]]; then
    fail "$1: an update stopped there, and waits for you" \
      "resolve and git add (git status tells what), then: $UPDATE --continue; or: $UPDATE --abort"
  fi
  for_submodules "$1" check_no_update
}

# follow_url NAME FOLDER: a changed URL becomes origin; the old remote keeps its branches under
# another name.
follow_url() {
  local -r url=${repository_url[$1]} folder=$2
  local now name said branch number=1
  now=$(git_in "$folder" config --get remote.origin.url || :)
  add_upstream "$1" "$folder"
  if [[ $now == "$url" ]]; then return; fi
  if [[ -z $bundles ]]; then
    said=$(git_in "$folder" ls-remote --heads -- "$url" 2>&1) || explain_git "$1" "$url" "$said"
  fi
  if [[ -n $now ]]; then
    name=former-origin
    while git_in "$folder" config --get "remote.$name.url" >/dev/null; do
      number=$((number + 1))
      name=former-origin-$number
    done
    said=$(git_in "$folder" remote rename origin "$name" 2>&1) || explain_git "$1" "$now" "$said"
    note "$1: the remote of before, $now, is called $name now"
  fi
  git_in "$folder" remote add origin "$url"
  branch=$(git_in "$folder" symbolic-ref --quiet --short HEAD || :)
  if [[ -n $branch && -n $now ]]; then git_in "$folder" config "branch.$branch.remote" origin; fi
}

# fetch_repository NAME FOLDER: a configured commit that is there needs no network.
fetch_repository() {
  local -r name=$1 folder=$2 ref=${repository_ref[$1]}
  local said source
  local -a options=(--quiet) more=()
  if [[ $ref =~ ^[0-9a-f]{40}$ ]] && commit_of "$folder" "$ref" >/dev/null; then return; fi
  if [[ $(git_in "$folder" rev-parse --is-shallow-repository) == true ]]; then options+=(--unshallow); fi
  source=$(source_of "$name")
  if [[ -z $ref ]]; then more+=('+HEAD:refs/longship/default'); fi
  # a bundle is no remote; of a server it must be told which one, for what is fetched later
  if [[ -z $bundles ]]; then source=origin; fi
  said=$(git_in "$folder" fetch "${options[@]}" "$source" '+refs/heads/*:refs/remotes/origin/*' \
    '+refs/tags/*:refs/longship/tags/*' ${more[@]+"${more[@]}"} 2>&1) ||
    explain_git "$name" "$(source_of "$name")" "$said"
  if [[ -n ${repository_upstream[$name]} && -z $bundles ]]; then
    said=$(git_in "$folder" fetch --quiet upstream 2>&1) ||
      explain_git "$name" "${repository_upstream[$name]}" "$said"
  fi
}

# own_commits FOLDER TARGET EXCLUDED...: print the user's commits, oldest first: those that neither the
# target nor the server's default branch, configured branch and tags have. Other branches there can
# be where the user has pushed them.
own_commits() {
  local -r folder=$1
  local name
  local -a theirs=()
  name=$(sed -n 2p "$(git_folder "$folder")/longship-settings" 2>/dev/null || :)
  for name in refs/longship/base refs/longship/default refs/remotes/origin/HEAD \
    ${name:+"refs/remotes/origin/$name"}; do
    if commit_of "$folder" "$name" >/dev/null; then theirs+=("$name"); fi
  done
  git_in "$folder" rev-list --reverse --topo-order HEAD --not "${@:2}" ${theirs[@]+"${theirs[@]}"} \
    --remotes=upstream --glob=refs/longship/tags
}

# is_up_to_date NAME FOLDER TARGET: whether HEAD is the target, the patches, and the user's commits.
is_up_to_date() {
  local -r folder=$2 target=$3
  local patched
  [[ $(commit_of "$folder" refs/longship/base) == "$target" ]] || return 1
  [[ $(settings_of "$1") == "$(cat -- "$own/longship-settings" 2>/dev/null)" ]] || return 1
  patched=$(commit_of "$folder" refs/longship/patched) || return 1
  git_in "$folder" merge-base --is-ancestor "$patched" HEAD || return 1
  [[ $(git_in "$folder" rev-list HEAD --not "$patched") == \
    "$(own_commits "$folder" "$target" "$patched" | tac)" ]]
}

# move_repository FOLDER NAME TARGET PATCHES [EXCLUDED...]: to the target, with everything replayed.
move_repository() {
  local -r folder=$1 name=$2 target=$3
  start_update "$folder" "$name" "$target" "$4" "${@:5}"
  make_way "$folder" "$target"
  remember step move
  replay "$folder"
  tell_update "$folder" "$name"
}

# start_update FOLDER NAME TARGET PATCHES [EXCLUDED...]: remember all that is needed; nothing has
# been touched yet.
start_update() {
  local -r folder=$1 name=$2 target=$3
  local commits patched
  rm -rf -- "$state"
  mkdir -- "$state"
  take_snapshot "$folder"
  remember target "$target"
  remember base "$(git_in "$folder" merge-base HEAD "$target" || printf '%s' "$target")"
  if [[ -n $4 ]]; then keep_series "$4"; fi
  commits=$(own_commits "$folder" "$target" "${@:5}")
  remember commits ''
  if has_changes "$folder" "$commits"; then
    keep_raw "$folder"
    save_changes "$folder" "$name" "$commits"
    # the group's patches are applied anew
    patched=$(commit_of "$folder" refs/longship/patched || printf '%s' "$target")
    commits=$(own_commits "$folder" "$target" "${@:5}" "$patched")
    if [[ -n $commits ]]; then remember_output commits as_picks "$folder" "$commits"; fi
    tell_left_out "$folder" "$name" "$patched"
  fi
}

# tell_left_out FOLDER NAME PATCHED: commits that came from patches which are no longer there.
tell_left_out() {
  local base
  local -i before now
  base=$(commit_of "$1" refs/longship/base) || return 0
  before=$(git_in "$1" rev-list --count "$3" --not "$base")
  now=$(find "$state/patches" -name '*.patch' 2>/dev/null | wc -l)
  if ((before > now)); then
    recall saved_folder
    note "$2: of $before patches, $now are there now; what was applied is kept in $REPLY"
  fi
}

# as_picks FOLDER COMMITS: print what is picked: the commits, or one for all where they hold a merge.
as_picks() {
  local -a commits
  read -r -d '' -a commits <<<"$2" || :
  if ! holds_merge "$1" "${commits[@]}"; then
    printf '%s' "$2"
    return
  fi
  recall base
  git_in "$1" commit-tree "$(tree_of "$1" HEAD)" -p "$REPLY" \
    -m "Local changes, ${#commits[@]} commits with merges" \
    -m "$(git_in "$1" log --no-walk=unsorted --format='%h %s' "${commits[@]}")"
}

# tell_update FOLDER NAME: where it was and is, and where the changes are kept.
tell_update() {
  local before
  recall head
  before=$(shown_commit "$1" "$REPLY")
  recall target
  printf '%s: %s -> %s\n' "$2" "$before" "$(shown_commit "$1" "$REPLY")" >&2
  recall saved_folder
  if [[ -n $REPLY ]]; then
    printf '%s: your changes are replayed; as they were: %s\n' "$2" "$REPLY" >&2
  fi
}

# finish_update NAME: all is there, submodules too.
finish_update() {
  local -r folder=$repositories_folder/$1
  local own
  own=$(git_folder "$folder")
  recall target
  git_in "$folder" update-ref refs/longship/base "$REPLY"
  recall patched
  git_in "$folder" update-ref refs/longship/patched "$REPLY"
  settings_of "$1" >"$own/longship-settings"
  forget_update "$folder"
}

# forget_update FOLDER: with all submodules.
forget_update() {
  for_submodules "$1" forget_update
  rm -rf -- "$state"
}

readonly VENV_KEPT_DAYS=14 # a replaced venv stays longer than any site's longest job (Olivia: 7 d)

# install_venv CHOOSE BRING_UV [CHECK]: make "$venv" lead to a venv with all that is wanted. CHOOSE
# sets pins to the list of packages with their hashes, "" where there is none, and renew to what
# makes it anew; BRING_UV FILE makes a uv; CHECK looks at what is to be installed. All are functions.
# Uses: inside COMMAND..., which runs a command in the image, and what lib/packages.py assigns.
install_venv() {
  check_venv_place
  check_requirements
  check_repositories
  "$1"
  local -r inputs=$(venv_inputs)
  local found=
  if [[ -e $venv/longship-base ]]; then IFS= read -r found <"$venv/longship-inputs" || :; fi
  if [[ $found == "$inputs" ]]; then
    note "the Python packages are up to date: $venv"
    return
  fi

  local -r venvs=${venv%/*}/venvs
  make_folders "$venvs"
  remove_unfinished_venvs "$venvs"
  new_venv=$venvs/${venv##*/venv_}-$(date +%Y%m%dT%H%M%S)-${inputs:0:12}
  trap 'discard_unfinished_venv; release_locks' EXIT
  ${3:+"$3"}
  step 1/3 "Make the venv $new_venv"
  local image_torch=
  if [[ -n $torch && $base != host && -z $overlay ]]; then image_torch=$(inside python3 -c "$TORCH_VERSION"); fi
  if [[ -n $pins ]]; then
    check_pinned_python
    if [[ -z $overlay ]]; then check_pinned_torch "$image_torch"; fi
  fi
  choose_installer "$image_torch" "$2"
  make_venv "$new_venv" "$base" "$installer"
  if [[ -n $overlay ]]; then put_above_overlay; fi
  step 2/3 'Install the packages'
  if [[ -n $pins ]]; then install_pins; else install_packages "$image_torch"; fi
  run_scripts
  step 3/3 'Put it in use'
  put_venv_in_use "$inputs"
  remove_replaced_venvs "$venvs" "$new_venv"
}

# choose_installer IMAGE_TORCH BRING_UV: set installer, and uv where that is it.
choose_installer() {
  if [[ -n $overlay && -z $pins ]]; then
    installer=pip # uv does not see what the overlay has, pip does
  elif [[ -n $1 && -z $pins ]]; then
    # it is the build for the image's GPUs; uv does not see what an image has, pip does
    note "the image's own PyTorch $1 stays; pip installs on top of it"
    installer=pip
  elif [[ $installer == uv ]]; then
    uv=$(find_uv "$uv" "$2") || installer=pip
  fi
}

# put_venv_in_use INPUTS: call the new one complete, and let the link lead to it.
put_venv_in_use() {
  printf '%s\n' "$1" >"$new_venv/longship-inputs"
  printf '%s\n' "${overlay:-$base}" >"$new_venv/longship-base" # the last file: with it the venv is complete
  if [[ -e $venv/longship-base ]]; then
    touch -- "$venv/." 2>/dev/null || : # from now on the old one counts as replaced, unless it is another's
  elif [[ -e $venv/pyvenv.cfg ]]; then
    note "the venv that was in use is not Longship's and stays: $(readlink -f -- "$venv")"
  fi
  ln -s -- "venvs/${new_venv##*/}" "$venv.partial.$$"
  mv -T -- "$venv.partial.$$" "$venv"
}

# check_venv_place: stop where a folder lies in the place of the link; a venv of the user's own is
# used there too, but it must not be moved, as its programs hold its path.
check_venv_place() {
  if [[ ! -d $venv || -L $venv ]]; then return; fi
  fail "$venv is a folder that Longship did not make, where its link to a venv belongs" \
    "to keep it in use, change nothing; to have one built: $(printf 'mv %q %q' "$venv" "$venv.old")"
}

# discard_unfinished_venv: leave nothing half-written, whatever ended the installation.
discard_unfinished_venv() {
  if [[ ! -e $new_venv/longship-base ]]; then rm -rf -- "$new_venv"; fi
}

# make_venv FOLDER BASE INSTALLER: on top of the image's packages; alone where there is no image.
make_venv() {
  local -a sharing=(--system-site-packages) # not `options`: that is the runtime's, in `inside`
  if [[ $2 == host ]]; then sharing=(); fi
  if [[ $3 == uv ]]; then sharing+=(--without-pip); fi # uv brings it, in a tenth of the time
  inside python3 -m venv ${sharing[@]+"${sharing[@]}"} "$1" ||
    fail_writing "${1%/*}" "python3 cannot make the venv $1" \
      'see the lines above; on Debian and Ubuntu: apt install python3-venv'
}

# put_above_overlay: let the new venv see the overlay's packages, below its own, and start its scripts.
put_above_overlay() {
  inside "$new_venv/bin/python" "$LIBRARY/inside/put_above.py" "$seen_at" ||
    fail_writing "$new_venv" "the venv $new_venv cannot be put above the overlay" 'see the lines above'
}

# install_packages IMAGE_TORCH: what is asked for, at the versions that are newest now.
install_packages() {
  local -a wanted=(${requirements[@]+"${requirements[@]}"} ${sources[@]+"${sources[@]}"})
  if [[ -n $overlay ]]; then # it has all but the repositories
    if ((${#sources[@]})); then run_installer "$torch" "${sources[@]}"; fi
    return
  fi
  if [[ -n $1 ]]; then
    printf 'torch==%s\n' "$1" >"$new_venv/longship-constraints.txt"
    wanted+=(-c "$new_venv/longship-constraints.txt")
  elif [[ -n $torch ]]; then
    wanted+=(-r "$torch")
  fi
  # a venv without its own pip would hand `pip install` to the pip of the host or the image
  if [[ $installer == uv ]]; then wanted+=(pip); fi
  if ((${#wanted[@]})); then run_installer "$torch" "${wanted[@]}"; fi
}

# install_pins: exactly the packages that "$pins" names, then the repositories, which it does not.
install_pins() {
  [[ -n $overlay ]] || run_installer "$pins" --no-deps --require-hashes -r "$pins"
  if ((${#sources[@]})); then run_installer "$pins" --no-deps "${sources[@]}"; fi
}

# run_installer TORCH OPTION...: TORCH is the file that names PyTorch.
run_installer() {
  local folder=
  if ((${#sources[@]})); then folder=$repositories_folder; fi
  inside "$new_venv/bin/python" "$LIBRARY/inside/install_packages.py" "$wheelhouse" \
    "$folder" "$installer" "$uv" "$@" ||
    fail_writing "$new_venv" "the packages cannot be installed into $new_venv" \
      "see the lines above, and run the same command again; without a network: $offline_mode"
}

# run_scripts: what repositories need besides, each script in its repository's folder.
run_scripts() {
  local -i at
  for ((at = 0; at < ${#scripts[@]}; at += 2)); do
    note "running ${scripts[at + 1]} in $repositories_folder/${scripts[at]}"
    inside "$new_venv/bin/python" "$LIBRARY/inside/install_packages.py" "$wheelhouse" \
      "$repositories_folder/${scripts[at]}" run "${scripts[at + 1]}" ||
      fail_writing "$new_venv" "the script ${scripts[at + 1]} of repository ${scripts[at]} failed" \
        'see the lines above; mend it, and run the same command again'
  done
}

# prints nothing where there is no PyTorch
readonly TORCH_VERSION='
import importlib.metadata
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    pass'

# find_uv FILE BRING_UV: print the path of a uv that runs inside; BRING_UV makes FILE where there is
# none.
find_uv() {
  local -r uv=$1
  local found
  if found=$(inside sh -c 'command -v uv'); then
    printf '%s\n' "$found"
    return
  fi
  if [[ ! -x $uv ]]; then
    make_folders "${uv%/*}"
    rm -rf -- "$uv.partial.$$"
    "$2" "$uv"
    rm -rf -- "$uv.partial.$$"
  fi
  if [[ ! -x $uv ]]; then
    note 'uv cannot be had here; pip installs the packages'
    return 1
  fi
  printf '%s\n' "$uv"
}

# fetch_uv FILE: from the package index.
fetch_uv() {
  note 'fetching uv'
  if inside python3 -m venv "$1.partial.$$" >&2 &&
    inside "$1.partial.$$/bin/python" -m pip --quiet --disable-pip-version-check \
      install -r "$LIBRARY/inside/uv.txt" >&2; then
    mv -- "$1.partial.$$/bin/uv" "$1"
  fi
}

# remove_unfinished_venvs FOLDER: what a killed installation left. The lock is held: none is alive.
remove_unfinished_venvs() {
  local each
  for each in "$1/${venv##*/venv_}-"[0-9]*/; do # the lock is that of this stack and architecture
    if [[ -d $each && ! -e $each/longship-base ]]; then rm -rf -- "$each" 2>/dev/null || :; fi # unless it is another member's
  done
}

# remove_replaced_venvs FOLDER CURRENT: those that no job can be using any more. A folder's time is
# the moment when it was replaced.
remove_replaced_venvs() {
  local old
  while IFS= read -r -d '' old; do
    rm -rf -- "$old" 2>/dev/null || : # another member's stays
  done < <(find "$1" -mindepth 1 -maxdepth 1 -type d -name "${venv##*/venv_}-[0-9]*" ! -path "$2" -mtime "+$VENV_KEPT_DAYS" -print0)
}

LIBRARY='/home/me/long ship/lib'
on_interrupt 'python3 set_up.py install'
make_folders /e/project1/project_465000000/me/longship \
  /e/scratch/project_465000000/me/longship

# Nothing of the host's compilers and Python reaches the program.
unset BASH_ENV ENV LD_PRELOAD LESSOPEN CC CXX CFLAGS CXXFLAGS CPATH CMAKE_LIBRARY_PATH \
  CMAKE_PREFIX_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV \
  "${!CONDA_@}" "${!_CE_@}" HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE

# What the program finds inside, in every runtime: POSIX sh.
# shellcheck disable=SC2016 # expanded inside, not here
contract='export PYTHONNOUSERSITE=1
export LONGSHIP_ROOT='"'"'/home/me/long ship'"'"'
export LONGSHIP_MACHINE=jpb
export LONGSHIP_STACK=pytorch
export LONGSHIP_PROJECT_DIR=/e/project1/project_465000000/me/longship
export LONGSHIP_SCRATCH_DIR=/e/scratch/project_465000000/me/longship
export LONGSHIP_CHECKPOINT_DIR=/e/scratch/project_465000000/me/longship/checkpoints
export LONGSHIP_REPOSITORIES=/e/project1/project_465000000/me/longship/repos
export XDG_CACHE_HOME="$LONGSHIP_SCRATCH_DIR"/cache/xdg
export HF_HOME="$LONGSHIP_SCRATCH_DIR"/cache/huggingface
export PIP_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/pip
export UV_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/uv
export TORCH_HOME="$LONGSHIP_SCRATCH_DIR"/cache/torch
export TORCH_EXTENSIONS_DIR="$LONGSHIP_SCRATCH_DIR"/cache/torch_extensions
export TORCHINDUCTOR_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/inductor
export TRITON_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/triton
export CUDA_CACHE_PATH="$LONGSHIP_SCRATCH_DIR"/cache/cuda
export NUMBA_CACHE_DIR="$LONGSHIP_SCRATCH_DIR"/cache/numba
export MPLCONFIGDIR="$LONGSHIP_SCRATCH_DIR"/cache/matplotlib
export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-$LONGSHIP_SCRATCH_DIR/cache/miopen}"
export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-$LONGSHIP_SCRATCH_DIR/cache/miopen}"
unset HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE
if [ -z "${HF_TOKEN:-}" ] && [ -r /home/me/.cache/huggingface/token ]; then
  IFS= read -r HF_TOKEN </home/me/.cache/huggingface/token || :
  export HF_TOKEN
fi
command -v -- "$1" >/dev/null || {
  echo "error: there is no command \"$1\" inside" >&2
  echo "hint: a Python package? add it to the requirements, then: python3 build_overlay.py" >&2
  exit 127
}
exec "$@"'

check_program apptainer
image=/e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
check_sif "$image" arm64 'python3 build_container.py && python3 move_built_container_to_active.py'
check_host_arch arm64 "the image $image"
options=()
add_home
add_bind '/home/me/long ship'
add_bind /e/project1/project_465000000/me/longship
add_bind /e/scratch/project_465000000/me/longship
add_host_files
add_pip_sources
overlay=/e/scratch/project_465000000/me/longship/overlays/myenv_998211f8576b_arm64.sqsh
check_overlay /e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
mount_overlay
add_nvidia_gpus

inside() {
  apptainer --quiet exec "${options[@]}" "$image" /bin/sh -c "${decode-}$contract" longship "$@"
}

repositories_folder=/e/project1/project_465000000/me/longship/repos
add_repository torchtitan https://github.com/pytorch/torchtitan.git v0.2.0 '' '/home/me/long ship/patches/torchtitan'
saved=/e/project1/project_465000000/me/longship/saved_changes
bundles=''
locked /e/project1/project_465000000/me/longship/repos install_repositories
offline_mode='python3 build_overlay.py offline'
base=/e/scratch/project_465000000/me/longship/containers/pytorch_25.06-py3_arm64.sif
torch='/home/me/long ship/requirements/torch.txt'
image_address=docker://nvcr.io/nvidia/pytorch:25.06-py3
lock='/home/me/long ship/requirements/pytorch_arm64.lock'
requirements=(-r '/home/me/long ship/tests/golden/requirements.txt')
repositories_folder=/e/project1/project_465000000/me/longship/repos
repository_names=(torchtitan)
sources=(-e ./torchtitan)
scripts=()
venv=/e/scratch/project_465000000/me/longship/venv_pytorch_arm64
overlay=/e/scratch/project_465000000/me/longship/overlays/myenv_998211f8576b_arm64.sqsh
seen_at=/user-software
installer=uv
uv=/e/scratch/project_465000000/me/longship/tools_arm64/uv
wheelhouse=''
locked "$venv" install_venv choose_lock fetch_uv
next_step 'python3 submit.py jsc/preprocess_data_jpb.sbatch'
