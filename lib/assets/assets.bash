# shellcheck shell=bash
# Assets: models and datasets of the Hugging Face Hub, in the cache that its libraries use. Each has
# a record, which is written last: the commit and the number of files, then the files with their
# SHA-256 in the form of sha256sum. For the transfer to another machine they are plain files,
# DIR/COMMIT/..., because not every copy keeps the cache's links; the record is in the same
# directory. assets_begin sets:
#
#   hub_cache   directory of the cache, hub; the record of an asset is longship/ASSET.asset in it
#   hub_shared  paths.shared_dir, if the cache is in it; "" if not

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

# assets_begin HUB_CACHE [SHARED_DIR]
assets_begin() {
  hub_cache=$1 hub_shared=${2:-}
}

# hub_make: make the directory of the cache; only who builds for a group writes to a shared one.
hub_make() {
  if [[ -n $hub_shared ]]; then shared_make "$hub_shared" cache cache/huggingface; fi
  directory_make "$hub_cache/longship"
}

# hub_open: let the group read a shared cache.
hub_open() {
  if [[ -n $hub_shared ]]; then shared_open "$hub_cache"; fi
}

# asset_commit RECORD: set REPLY to the commit; empty if it has none.
asset_commit() {
  REPLY=
  if [[ -r $1 ]]; then read -r REPLY _ <"$1" || :; fi
}

# asset_files RECORD: print the paths of the files, one per line.
asset_files() {
  tail -n +2 -- "$1" | cut -c 67-
}

# asset_is_complete ASSET DIR: whether all of its files exist. Starts no process, uses no network.
asset_is_complete() {
  local -r record=$hub_cache/longship/$1.asset
  asset_commit "$record"
  asset_has_files "$record" "$hub_cache/hub/$2/snapshots/$REPLY"
}

# asset_has_files RECORD DIR: whether DIR contains all files of the record.
asset_has_files() {
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

# asset_fetch NUMBER ASSET DIR TOOLS KIND REPO REVISION [--include PATTERN | --exclude PATTERN]...:
# download it from the hub, unless it exists; TOOLS is the venv that is created for huggingface_hub.
asset_fetch() {
  if asset_is_complete "$2" "$3"; then
    note "$5 $6 is already downloaded"
    return
  fi
  hub_make
  lock_run "$hub_cache/longship/$3" asset_fetch_locked "$@"
  hub_open
}

# asset_fetch_locked NUMBER ASSET DIR TOOLS KIND REPO REVISION [OPTION]...: the lock is held.
asset_fetch_locked() {
  local -r number=$1 asset=$2 directory=$3 tools=$4 kind=$5 repo=$6 revision=$7 record=$hub_cache/longship/$2.asset
  shift 7
  if asset_is_complete "$asset" "$directory"; then return; fi # another process has just done it
  step "$number" "Downloading the $kind $repo, $revision"
  if ! inside "$tools/bin/python" -c 'import huggingface_hub' >/dev/null 2>&1; then
    directory_make "${tools%/*}"
    lock_run "$tools" hub_make_tools "$tools"
  fi
  inside "$tools/bin/python" "$longship_library/assets/inside/fetch_assets.py" "$hub_cache/hub" "$record" "$machine" \
    "$kind" "$repo" "$revision" "$@" || exit 1
  asset_commit "$record"
  if [[ $REPLY != "$revision" ]]; then
    note "$revision of $repo is now commit $REPLY; to keep this version, set: revision = \"$REPLY\""
  fi
}

# hub_make_tools DIR: create the venv for huggingface_hub; an incomplete one is removed.
hub_make_tools() {
  note 'installing huggingface_hub'
  rm -rf -- "$1"
  if inside python3 -m venv "$1" >&2 &&
    inside "$1/bin/python" -m pip --quiet --disable-pip-version-check \
      install -r "$longship_library/assets/inside/hub.txt" >&2; then
    return
  fi
  rm -rf -- "$1"
  fail_writing "${1%/*}" 'cannot install huggingface_hub' \
    "check the network; pip's output above has the details"
}

# asset_set_ref ASSET DIR NAME: make a branch, such as main, point to its commit. main is the
# libraries' default revision.
asset_set_ref() {
  local found=''
  local -r ref=$hub_cache/hub/$2/refs/$3
  asset_commit "$hub_cache/longship/$1.asset"
  local -r commit=$REPLY
  if [[ -r $ref ]]; then IFS= read -r found <"$ref" || :; fi
  if [[ $found == "$commit" ]]; then return; fi
  hub_make
  directory_make "${ref%/*}"
  file_write "$ref" "$commit"
}

# asset_add_metric ASSET DIR HF_HOME: copy the code of a metric to where the library evaluate,
# offline, looks for what it has loaded before: a directory with a name of 64 characters. It takes
# the newest.
asset_add_metric() {
  local -r name=${2##*--}.py modules=$3/modules/evaluate_modules/metrics/${2#spaces--}
  asset_commit "$hub_cache/longship/$1.asset"
  local -r files=$hub_cache/hub/$2/snapshots/$REPLY to=$modules/${REPLY}000000000000000000000000
  if [[ ! -e $files/$name ]]; then return; fi # another kind of Space
  if [[ ! -e $to/$name ]]; then
    directory_make "$modules"
    rm -rf -- "$to.partial"
    if ! mkdir -- "$to.partial" || ! cp -L -- "$files"/*.py "$to.partial" ||
      ! mv -T -- "$to.partial" "$to"; then
      fail_writing "$modules" "cannot write $to" \
        'check the permissions of the directory; the line above has the reason'
    fi
  fi
  touch -c -- "$to/$name" 2>/dev/null || : # in a HF_HOME of a group it can be another member's
}

# asset_export ASSET DIR COPIES: copy it as plain files to the directory COPIES.
asset_export() {
  local -r record=$hub_cache/longship/$1.asset copy=$3/$1.asset
  asset_commit "$record"
  local -r commit=$REPLY
  directory_make "$3/$2"
  if ! cmp -s -- "$record" "$copy" || ! asset_has_files "$copy" "$3/$2/$commit"; then
    lock_run "$3/$2" asset_install_files "$record" "$hub_cache/hub/$2/snapshots/$commit" \
      "$3/$2/$commit" "$copy"
  fi
}

# asset_import NUMBER ASSET DIR REPO COPIES: copy it from COPIES into the cache, if it is complete
# and unchanged.
asset_import() {
  local -r number=$1 asset=$2 directory=$3 repo=$4 copies=$5
  local -r record=$copies/$asset.asset own=$hub_cache/longship/$asset.asset
  local -r again="on a machine with network access, run: python3 set_up.py download --machine $machine; then copy $copies to this machine"
  if [[ ! -e $record ]]; then
    if asset_is_complete "$asset" "$directory"; then return; fi
    fail "asset $repo has not been downloaded: $record not found" "$again"
  fi
  if cmp -s -- "$record" "$own" && asset_is_complete "$asset" "$directory"; then
    note "$repo is already installed"
    return
  fi
  step "$number" "Checking $repo and copying it into the cache"
  asset_commit "$record"
  local -r files=$copies/$directory/$REPLY target=$hub_cache/hub/$directory/snapshots/$REPLY
  asset_check_files "$record" "$files" "$repo"
  hub_make
  directory_make "${target%/*}"
  lock_run "$hub_cache/longship/$directory" asset_install_files "$record" "$files" "$target" "$own"
  hub_open
}

# asset_check_files RECORD DIR REPO: fail if a file is missing or does not match the record, and
# name it.
asset_check_files() {
  local commit count bad
  read -r commit count <"$1" || :
  # -c, not -q: a reader that stops early makes the pipe fail, which would mean "none"
  if [[ ! $commit =~ ^[0-9a-f]{40}$ ]] ||
    asset_files "$1" | grep -cE '^/|(^|/)\.\.(/|$)' >/dev/null; then
    fail "record $1 lists files outside of its directory" \
      'do not use it: its source is not trustworthy'
  fi
  [[ ${count:-0} == "$(asset_files "$1" | wc -l)" ]] ||
    fail "record $1 is truncated" 'copy it again'
  [[ -d $2 ]] || fail "files of $3 not found: $2" 'copy that directory too'
  bad=$(tail -n +2 -- "$1" | checksums_check "$2") ||
    fail "cannot read the record $1" 'copy it again'
  bad=${bad%%$'\n'*}
  if [[ -z $bad ]]; then return; fi
  [[ -e $2/$bad ]] || fail "file of $3 not found: $2/$bad" 'copy it again'
  fail "file of $3 is damaged, its checksum does not match: $2/$bad" 'copy it again'
}

# asset_install_files RECORD FROM TO COPY: link or copy the files to TO, all or none; then copy the
# record to COPY.
asset_install_files() {
  local -r record=$1 from=$2 to=$3 copy=$4
  local -r partial=$to.partial.$$
  local file
  rm -rf -- "$to".partial.*
  # hard links, or copies on another file system
  asset_copy_files "$record" "$from" "$partial" --link 2>/dev/null ||
    asset_copy_files "$record" "$from" "$partial" --reflink=auto || {
    rm -rf -- "$partial"
    fail_writing "${to%/*}" "cannot copy the files of $from" "read cp's output above"
  }
  if [[ -d $to ]]; then
    # another selection of the same commit exists: its files stay
    while IFS= read -r file; do
      if [[ ! -e $to/$file ]]; then
        directory_make "$(dirname -- "$to/$file")"
        mv -f -- "$partial/$file" "$to/$file"
      fi
    done < <(asset_files "$record")
    rm -rf -- "$partial"
  else
    mv -T -- "$partial" "$to"
  fi
  file_write "$copy" "$(<"$record")"$'\n'
}

# asset_copy_files RECORD FROM TO OPTION: copy them to the new directory TO, with an option of cp.
asset_copy_files() {
  rm -rf -- "$3"
  mkdir -- "$3" && asset_files "$1" | tr '\n' '\0' |
    (cd -- "$2" && xargs -0 -r cp -L "$4" --parents -t "$3" --)
}
