# shellcheck shell=bash disable=SC2154  # the emitted script's: hub_cache (HF_HOME), machine, ...
# Assets: models and datasets of the Hugging Face Hub, in the cache that its libraries use. Each has a record, which
# is written last: the commit and the number of files, then the files with their SHA-256 in the form of sha256sum.
# For the transfer to another machine they are plain files, DIR/COMMIT/..., because not every copy keeps the
# cache's links; the record is in the same directory.
# The emitted script also sets hub_tools and hub_venv (venvs that may have huggingface_hub),
# travelling_assets, and defines inside COMMAND...

# record_of ASSET: set REPLY to the file.
record_of() {
  REPLY=$hub_cache/longship/$1.asset
}

# commit_in RECORD: set REPLY to the commit; empty if it has none.
commit_in() {
  REPLY=
  if [[ -r $1 ]]; then read -r REPLY _ <"$1" || :; fi
}

# files_in RECORD: print the paths of the files, one per line.
files_in() {
  tail -n +2 -- "$1" | cut -c 67-
}

# is_there ASSET DIR: whether all of its files exist. Starts no process, uses no network.
is_there() {
  record_of "$1"
  local -r record=$REPLY
  commit_in "$record"
  holds_files "$record" "$hub_cache/hub/$2/snapshots/$REPLY"
}

# holds_files RECORD DIR: whether DIR contains all files of the record.
holds_files() {
  local line count=
  [[ -r $1 ]] || return 1
  {
    read -r _ count || return 1
    [[ $count == [1-9]* ]] || return 1
    while IFS= read -r line; do
      [[ -e $2/${line:66} ]] || return 1
      count=$((count - 1))
    done
  } <"$1"
  ((count == 0))
}

# fetch_asset NUMBER ASSET DIR KIND REPO REVISION [--include PATTERN | --exclude PATTERN]...: download it from the
# hub, unless it exists.
fetch_asset() {
  if is_there "$2" "$3"; then
    note "$4 $5 is already downloaded"
    return
  fi
  make_folders "$hub_cache/longship"
  locked "$hub_cache/longship/$3" fetch_missing_asset "$@"
}

# fetch_missing_asset NUMBER ASSET DIR KIND REPO REVISION [OPTION]...: the lock is held.
fetch_missing_asset() {
  local -r number=$1 asset=$2 folder=$3 kind=$4 repo=$5 revision=$6
  shift 6
  if is_there "$asset" "$folder"; then return; fi # another process has just done it
  step "$number" "Downloading the $kind $repo, $revision"
  find_hub
  record_of "$asset"
  inside "$hub_python" "$LIBRARY/assets/inside/fetch_assets.py" "$hub_cache/hub" "$REPLY" "$machine" \
    "$kind" "$repo" "$revision" "$@" || exit 1
  record_of "$asset"
  commit_in "$REPLY"
  if [[ $REPLY != "$revision" ]]; then
    note "$revision of $repo is now commit $REPLY; to keep this version, set: revision = \"$REPLY\""
  fi
}

# find_hub: set hub_python to a Python inside that has huggingface_hub: the environment's, the image's,
# or that of a venv created for it.
find_hub() {
  if [[ -n ${hub_python:-} ]]; then return; fi
  for hub_python in ${hub_venv:+"$hub_venv/bin/python"} python3 "$hub_tools/bin/python"; do
    if inside "$hub_python" -c 'import huggingface_hub' >/dev/null 2>&1; then return; fi
  done
  make_folders "${hub_tools%/*}"
  locked "$hub_tools" make_hub_tools
}

# make_hub_tools: create the venv for it; an incomplete one is removed.
make_hub_tools() {
  note 'installing huggingface_hub'
  rm -rf -- "$hub_tools"
  if inside python3 -m venv "$hub_tools" >&2 &&
    inside "$hub_python" -m pip --quiet --disable-pip-version-check \
      install -r "$LIBRARY/assets/inside/hub.txt" >&2; then
    return
  fi
  rm -rf -- "$hub_tools"
  fail_writing "${hub_tools%/*}" 'cannot install huggingface_hub' \
    "check the network; pip's output above has the details; or add huggingface_hub to the requirements"
}

# name_asset ASSET DIR NAME: make a branch, such as main, point to its commit. main is the libraries' default
# revision.
name_asset() {
  local found=''
  local -r ref=$hub_cache/hub/$2/refs/$3
  record_of "$1"
  commit_in "$REPLY"
  local -r commit=$REPLY
  if [[ -r $ref ]]; then IFS= read -r found <"$ref" || :; fi
  if [[ $found == "$commit" ]]; then return; fi
  make_folders "${ref%/*}"
  { printf '%s' "$commit" >"$ref.partial" && mv -f -- "$ref.partial" "$ref"; } ||
    fail_writing "${ref%/*}" "cannot write $ref" 'check the permissions of the directory; the line above has the reason'
}

# export_asset ASSET DIR: copy it as plain files to "$travelling_assets".
export_asset() {
  local -r copy=$travelling_assets/$1.asset
  record_of "$1"
  local -r record=$REPLY
  commit_in "$record"
  local -r commit=$REPLY
  make_folders "$travelling_assets/$2"
  if ! cmp -s -- "$record" "$copy" || ! holds_files "$copy" "$travelling_assets/$2/$commit"; then
    locked "$travelling_assets/$2" take_files "$record" "$hub_cache/hub/$2/snapshots/$commit" \
      "$travelling_assets/$2/$commit" "$copy"
  fi
}

# import_asset NUMBER ASSET DIR REPO: copy it from there into the cache, if it is complete and unchanged.
import_asset() {
  local -r number=$1 asset=$2 folder=$3 repo=$4
  local -r record=$travelling_assets/$asset.asset
  local -r again="on a machine with network access, run: python3 set_up.py download --machine $machine; then copy $travelling_assets to this machine"
  if [[ ! -e $record ]]; then
    if is_there "$asset" "$folder"; then return; fi
    fail "asset $repo has not been downloaded: $record not found" "$again"
  fi
  record_of "$asset"
  local -r own=$REPLY
  if cmp -s -- "$record" "$own" && is_there "$asset" "$folder"; then
    note "$repo is already installed"
    return
  fi
  step "$number" "Checking $repo and copying it into the cache"
  commit_in "$record"
  local -r files=$travelling_assets/$folder/$REPLY target=$hub_cache/hub/$folder/snapshots/$REPLY
  check_files "$record" "$files" "$repo"
  make_folders "${own%/*}" "${target%/*}"
  locked "$hub_cache/longship/$folder" take_files "$record" "$files" "$target" "$own"
}

# check_files RECORD DIR REPO: fail if a file is missing or does not match the record, and name it. All cores are
# used: split starts a process for each, by $SHELL.
check_files() {
  local commit count bad
  read -r commit count <"$1" || :
  # -c, not -q: a reader that stops early makes the pipe fail, which would mean "none"
  if [[ ! $commit =~ ^[0-9a-f]{40}$ ]] || files_in "$1" | grep -cE '^/|(^|/)\.\.(/|$)' >/dev/null; then
    fail "record $1 lists files outside of its directory" 'do not use it: its source is not trustworthy'
  fi
  [[ ${count:-0} == "$(files_in "$1" | wc -l)" ]] || fail "record $1 is truncated" 'copy it again'
  [[ -d $2 ]] || fail "files of $3 not found: $2" 'copy that directory too'
  bad=$(cd -- "$2" && tail -n +2 -- "$1" | LC_ALL=C SHELL=/bin/sh split --elide-empty-files -n "r/$(nproc)" \
    --filter='sha256sum --check --quiet 2>/dev/null' 2>/dev/null) && return
  bad=${bad%%: FAILED*}
  [[ -e $2/$bad ]] || fail "file of $3 not found: $2/$bad" 'copy it again'
  fail "file of $3 is damaged, its checksum does not match: $2/$bad" 'copy it again'
}

# take_files RECORD FROM TO COPY: link or copy the files to TO, all or none; then copy the record to COPY.
take_files() {
  local -r record=$1 from=$2 to=$3 copy=$4
  local -r partial=$to.partial.$$
  local file
  rm -rf -- "$to".partial.*
  link_files "$record" "$from" "$partial" || {
    rm -rf -- "$partial"
    fail_writing "${to%/*}" "cannot copy the files of $from" "read cp's output above"
  }
  if [[ -d $to ]]; then
    # another selection of the same commit exists: its files stay
    while IFS= read -r file; do
      if [[ ! -e $to/$file ]]; then
        make_folders "$(dirname -- "$to/$file")"
        mv -f -- "$partial/$file" "$to/$file"
      fi
    done < <(files_in "$record")
    rm -rf -- "$partial"
  else
    mv -T -- "$partial" "$to"
  fi
  { cp -- "$record" "$copy.partial" && mv -f -- "$copy.partial" "$copy"; } ||
    fail_writing "${copy%/*}" "cannot write $copy" 'check the permissions of the directory; the line above has the reason'
}

# link_files RECORD FROM TO: make hard links, or copies on another file system.
link_files() {
  local option
  for option in --link --reflink=auto; do
    rm -rf -- "$3"
    make_folders "$3"
    if files_in "$1" | tr '\n' '\0' |
      (cd -- "$2" && xargs -0 -r cp -L "$option" --parents -t "$3" --) 2>"$3.log"; then
      rm -f -- "$3.log"
      return
    fi
  done
  cat -- "$3.log" >&2
  rm -f -- "$3.log"
  return 1
}
