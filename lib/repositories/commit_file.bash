# shellcheck shell=bash disable=SC2154  # set by the caller: state
# A commit as a file, in the form in which `git show` prints one: whose it is, the message, each line behind
# four blanks, and the changes, which `git apply` reads. A mail, as `git format-patch` writes it, loses or breaks
# what commits may have: messages with a diff or a line `From ...`, `[WIP]`, nothing changed, odd authors.
#
#   author NAME <EMAIL> SECONDS ZONE
#   encoding NAME                       of the message, where git has recorded it
#   no newline at the end of the message

declare -g NO_NEWLINE='no newline at the end of the message'

# write_commit FOLDER COMMIT: print it.
write_commit() {
  local -r folder=$1 commit=$2
  local -x LC_ALL=C
  local line parent
  parent=$(git_in "$folder" rev-parse --verify --quiet "$commit^") ||
    parent=$(git_in "$folder" hash-object -t tree /dev/null)
  {
    while IFS= read -r line && [[ -n $line ]]; do
      case $line in author\ * | encoding\ *) printf '%s\n' "$line" ;; esac
    done
    line=$(sed 's/^/    /' && printf .)
    line=${line%.}
    if [[ -n $line && $line != *$'\n' ]]; then printf '%s\n' "$NO_NEWLINE" && line+=$'\n'; fi
    printf '\n%s\n' "$line"
  } < <(git_in "$folder" cat-file commit "$commit")
  patch_between "$folder" "$parent" "$commit"
}

# is_commit_file FILE: whether write_commit made it.
is_commit_file() {
  [[ $(head -n 1 -- "$1") == 'author '*' <'*'> '* ]]
}

# changes_something FILE: whether there is a change in it, which `git apply` insists on.
changes_something() {
  grep -q -a -e '^diff --git ' -e '^--- ' -- "$1"
}

# commit_from_file FOLDER FILE: what is staged, with author and message of the file; the same commit for
# everybody.
commit_from_file() {
  local -x LC_ALL=C
  local line='' headers='' author='' newline=1
  while IFS= read -r line && [[ -n $line ]]; do
    case $line in
      author\ *) author=${line#author } ;;&
      author\ * | encoding\ *) headers+=$line$'\n' ;;
      "$NO_NEWLINE") newline= ;;
    esac
  done <"$2"
  # encoding stands behind the committer
  line="committer Longship <longship@localhost> ${author##*> }"
  headers=${headers/$'\n'/$'\n'"$line"$'\n'}
  line=$(sed -n '1,/^$/d; /^    /!q; s/^    //p' "$2" && printf .)
  line=${line%.}
  if [[ -z $newline ]]; then line=${line%$'\n'}; fi
  put_commit "$1" "$headers" "$line"
}

# commit_like FOLDER COMMIT: what is staged, with author and message of a commit.
commit_like() {
  local -x LC_ALL=C
  local line headers='' committer
  committer=$(git_in "$1" var GIT_COMMITTER_IDENT)
  {
    while IFS= read -r line && [[ -n $line ]]; do
      case $line in
        author\ *) headers+=$line$'\n'"committer $committer"$'\n' ;;
        encoding\ *) headers+=$line$'\n' ;;
      esac
    done
    line=$(cat && printf .)
  } < <(git_in "$1" cat-file commit "$2")
  put_commit "$1" "$headers" "${line%.}"
}

# put_commit FOLDER HEADERS MESSAGE: move HEAD to a commit of what is staged, byte for byte: git's own commands
# clean messages and authors.
put_commit() {
  local tree commit
  tree=$(git_in "$1" write-tree)
  commit=$(printf 'tree %s\nparent %s\n%s\n%s' "$tree" "$(commit_of "$1" HEAD)" "$2" "$3" |
    git_in "$1" hash-object -t commit -w --stdin --literally)
  git_in "$1" update-ref -m 'longship: update' HEAD "$commit"
}

# is_like FOLDER COMMIT: whether HEAD has author and message of a commit.
is_like() {
  cmp --silent <(text_of_commit "$1" HEAD) <(text_of_commit "$1" "$2")
}

# text_of_commit FOLDER COMMIT: print what a replayed commit keeps of the first one.
text_of_commit() {
  git_in "$1" cat-file commit "$2" | sed -e '1,/^$/{/^author /b' -e '/^encoding /b' -e '/^$/b' -e 'd}'
}
