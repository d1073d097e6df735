# shellcheck shell=bash
# Assets: models and datasets of the Hugging Face Hub, which `hf download` puts into the cache that
# its libraries use. Each has a record, which is written last: the commit, then the sizes of the
# files, the checksums, of DIR/COMMIT/FILE, and their number. For the transfer to another machine they
# are plain files of these names, because not every copy keeps the cache's links, next to the record.
# assets_begin sets:
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
  file_read "$1" || REPLY=
  REPLY=${REPLY%%$'\n'*}
  REPLY=${REPLY#'# '}
}

# asset_has_files RECORD DIR: whether DIR has all files of the record, and unchanged.
asset_has_files() {
  asset_commit "$1"
  [[ $REPLY =~ ^[0-9a-f]{40}$ && -d $2/$REPLY && -z $(asset_list_bad "$1" "$2/$REPLY") ]]
}

# asset_list_bad RECORD FILES: print the files of the record that are not in the directory FILES, or
# have another size, or, if they are newer than the record, another checksum.
asset_list_bad() {
  local -x LC_ALL=C
  local file newer bad now
  printf -v now '%(%s)T' -1
  sed -n 's|^[^#][^/]*/[^/]*/||p' -- "$1" | while IFS= read -r file; do
    if [[ ! -e $2/$file ]]; then printf '%s\n' "$file"; fi
  done
  comm -13 <(cd -- "$2" && find -L . -type f -printf '%s %P\n' | sort) \
    <(sed -n 's/^# size //p' -- "$1" | sort) | cut -d ' ' -f 2-
  newer=$(cd -- "$2" && find -L . -type f -newer "$1" -printf '%P\n')
  if [[ -z $newer ]]; then return; fi
  bad=$(sed -n 's|^\([0-9a-f]* \{2\}\)[^/]*/[^/]*/|\1|p' -- "$1" |
    awk 'FNR == NR { newer[$0]; next } substr($0, 67) in newer' <(printf '%s\n' "$newer") - |
    checksums_check "$2")
  # unchanged ones are read once, not each time
  if [[ -z $bad ]]; then touch -c -d "@$now" -- "$1" 2>/dev/null || :; else printf '%s\n' "$bad"; fi
}

# asset_is_complete ASSET DIR: whether the cache has all of it.
asset_is_complete() {
  asset_has_files "$hub_cache/longship/$1.asset" "$hub_cache/hub/$2/snapshots"
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
  local -r number=$1 asset=$2 cached=$hub_cache/hub/$3 tools=$4 kind=$5 repo=$6 revision=$7
  local commit=$7 hint="read hf's output above; if it is gated or private, run: export HF_TOKEN=...;"
  hint+=" without network, run elsewhere: python3 set_up.py download --machine $machine;"
  hint+=' then here: python3 set_up.py offline'
  # Ctrl-C ends it at once: Python would wait for its threads, and each of them for the hub
  local -r hf='import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from huggingface_hub.cli.hf import main
raise SystemExit(main())'
  if asset_is_complete "$asset" "$3"; then return; fi # another process has just done it
  step "$number" "Downloading the $kind $repo, $revision"
  asset_remove_bad "$asset" "$cached/snapshots"
  if ! inside "$tools/bin/python" -I -c 'from huggingface_hub.errors import IncompleteSnapshotError' >/dev/null 2>&1; then
    directory_make "${tools%/*}"
    lock_run "$tools" hub_make_tools "$tools"
  fi
  inside env HF_HUB_DISABLE_UPDATE_CHECK=1 "$tools/bin/python" -I -c "$hf" download "$repo" \
    "--repo-type=$kind" "--revision=$revision" "--cache-dir=$hub_cache/hub" "${@:8}" >&2 ||
    fail_writing "$hub_cache" "cannot download the $kind $repo, $revision" "$hint"
  if [[ ! $revision =~ ^[0-9a-f]{40}$ ]]; then file_read "$cached/refs/$revision" && commit=${REPLY%%$'\n'*}; fi
  # with a list of all files, huggingface_hub calls a selection incomplete when it is offline
  if (($# > 7)); then rm -f -- "$cached/trees/$commit.json"; fi
  asset_record "$hub_cache/longship/$asset.asset" "$cached/snapshots/$commit" "$3/$commit" "$repo"
  if [[ $commit != "$revision" ]]; then
    note "$revision of $repo is now commit $commit; to keep this version, set: revision = \"$commit\""
  fi
}

# asset_remove_bad ASSET SNAPSHOTS: remove the damaged files: huggingface_hub takes what exists unread.
asset_remove_bad() {
  local file
  asset_commit "$hub_cache/longship/$1.asset"
  local -r files=$2/$REPLY
  if [[ -z $REPLY || ! -d $files ]]; then return; fi
  while IFS= read -r file; do
    if [[ ! -e $files/$file ]]; then continue; fi
    note "$files/$file is damaged; downloading it again"
    asset_remove_file "$files/$file"
  done < <(asset_list_bad "$hub_cache/longship/$1.asset" "$files")
}

# asset_remove_file FILE: remove the file that a link of the cache leads to; one of a group can lead
# anywhere.
asset_remove_file() {
  local top path
  top=$(readlink -f -- "$hub_cache/hub")
  path=$(readlink -f -- "$1")
  if [[ $path == "$top"/* ]] && rm -f -- "$path"; then return; fi
  fail "cannot remove the damaged file $1" \
    'remove it, or ask its owner to; then run the command again'
}

# hub_make_tools DIR: create the venv for huggingface_hub; an incomplete one is removed.
hub_make_tools() {
  note 'installing huggingface_hub'
  rm -rf -- "$1"
  if inside python3 -I -m venv "$1" >&2 &&
    inside "$1/bin/python" -I -m pip --quiet --disable-pip-version-check \
      install -r "$longship_library/assets/inside/hub.txt" >&2; then
    return
  fi
  rm -rf -- "$1"
  fail_writing "${1%/*}" 'cannot install huggingface_hub' \
    "check the network, and that python3 is 3.10 or newer; pip's output above has the details"
}

# asset_record RECORD FILES NAME REPO: write the record of the files, with NAME as their directory.
asset_record() {
  local sums='' sizes
  if [[ -d $2 ]]; then # hf makes none for no file
    sums=$(cd -- "$2" && find -L . -type f -printf '%P\0' |
      xargs -0 -r -n 1 -P "$(nproc)" sha256sum -- | sed "s|  |  $3/|" | LC_ALL=C sort -k 2) ||
      fail "cannot read the files of $4 in $2" 'see the line above; then run the command again'
  fi
  [[ -n $sums ]] || fail "include and exclude select no file of $4" \
    'correct include and exclude in [[assets]] of configuration.toml'
  # sha256sum escapes names with a newline or a backslash
  [[ $'\n'$sums != *$'\n\\'* ]] || fail "$4 has a file name with a newline or a backslash" \
    'add it to exclude in [[assets]] of configuration.toml'
  asset_check_blobs "$2" "$sums"
  sizes=$(cd -- "$2" && find -L . -type f -printf '# size %s %P\n' | LC_ALL=C sort -k 4)
  file_write "$1" "# ${3#*/}"$'\n'"$sizes"$'\n'"$sums"$'\n'"# $(wc -l <<<"$sums") files in all"$'\n'
}

# asset_check_blobs FILES SUMS: fail if a large file, which the cache names after its SHA-256, has
# another one: of an earlier download, which huggingface_hub takes unread.
asset_check_blobs() {
  local -x LC_ALL=C
  local file bad=''
  while IFS= read -r file; do
    bad=${file#*  }
    asset_remove_file "$1/$bad"
  done < <(find "$1" -type l -printf '%l  %P\n' | sed -n 's|^.*/\([0-9a-f]\{64\}  .*\)|\1|p' | sort |
    comm -23 - <(printf '%s\n' "$2" | sed 's|  [^/]*/[^/]*/|  |' | sort))
  [[ -z $bad ]] || fail "$1/$bad is damaged, and was removed" \
    'run the command again, which downloads it again'
}

# asset_set_ref ASSET DIR NAME: make a branch, such as main, point to its commit. main is the
# libraries' default revision.
asset_set_ref() {
  local -r ref=$hub_cache/hub/$2/refs/$3
  asset_commit "$hub_cache/longship/$1.asset"
  local -r commit=$REPLY
  if file_read "$ref" && [[ $REPLY == "$commit" ]]; then return; fi
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
  if ! cmp -s -- "$record" "$copy" || ! asset_has_files "$copy" "$3/$2"; then
    directory_make "$3/$2"
    lock_run "$3/$2" asset_install_files "$record" "$hub_cache/hub/$2/snapshots" "$3/$2" "$copy"
  fi
}

# asset_import NUMBER ASSET DIR REPO COPIES: copy it from COPIES into the cache, if it is complete
# and unchanged.
asset_import() {
  local -r number=$1 asset=$2 directory=$3 repo=$4 copies=$5
  local -r record=$copies/$asset.asset own=$hub_cache/longship/$asset.asset
  local -r again="copy it again; or, on a machine with network access, run: python3 set_up.py download --machine $machine; then copy $copies to this machine"
  if [[ ! -e $record ]]; then
    if asset_is_complete "$asset" "$directory"; then return; fi
    fail "asset $repo has not been downloaded: $record not found" "$again"
  fi
  if cmp -s -- "$record" "$own" && asset_is_complete "$asset" "$directory"; then
    note "$repo is already installed"
    return
  fi
  step "$number" "Checking $repo and copying it into the cache"
  checksums_verify "$record" "$copies" "$again"
  asset_commit "$record"
  [[ $REPLY =~ ^[0-9a-f]{40}$ ]] || fail "$record is damaged" "$again"
  hub_make
  directory_make "$hub_cache/hub/$directory/snapshots"
  lock_run "$hub_cache/longship/$directory" asset_install_files "$record" "$copies/$directory" \
    "$hub_cache/hub/$directory/snapshots" "$own"
  hub_open
}

# asset_install_files RECORD FROM TO COPY: link or copy the files to TO, complete ones only; then
# copy the record to COPY.
asset_install_files() {
  local -r record=$1 partial=$3.partial
  asset_commit "$record"
  local -r from=$2/$REPLY to=$3/$REPLY
  # hard links, or copies on another file system
  asset_copy_files "$record" "$from" "$partial" --link 2>/dev/null ||
    asset_copy_files "$record" "$from" "$partial" --reflink=auto ||
    fail_writing "$3" "cannot copy the files of $from" "read cp's output above"
  # another selection of the same commit may exist: its files stay
  if [[ -d $to ]]; then cp -rlf -- "$partial/." "$to"; else mv -T -- "$partial" "$to"; fi ||
    fail_writing "$3" "cannot write the files in $to" 'read the line above'
  rm -rf -- "$partial"
  file_write "$4" "$(<"$record")"$'\n'
}

# asset_copy_files RECORD FROM TO OPTION: copy them to the new directory TO, with an option of cp.
asset_copy_files() {
  rm -rf -- "$3"
  mkdir -- "$3" && sed -n 's|^[^#][^/]*/[^/]*/||p' -- "$1" | tr '\n' '\0' |
    (cd -- "$2" && xargs -0 -r cp -L "$4" --parents -t "$3" --)
}
