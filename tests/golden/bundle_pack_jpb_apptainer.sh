#!/usr/bin/env bash
# Longship: bundle_pack.py, machine jpb (jsc/site.toml)
set -euo pipefail

# name of each file -> its SHA-256, from read_manifest
declare -A bundle_sums=()

# what list_tree has found
declare -a tree_files=() tree_links=() tree_others=()

# stays_inside NAME: whether it names a file below a folder, in a way that SHA256SUMS can hold.
stays_inside() {
  case /$1/ in
    *//* | */./* | */../*) return 1 ;;
  esac
  [[ $1 != *[[:cntrl:]\\]* ]]
}

# link_stays_inside NAME TARGET: whether a link of that name leads to something below the first
# folder of NAME. Only leading .. are followed: behind the name of another link they lead elsewhere.
link_stays_inside() {
  local folder=${1#*/} target=$2
  while [[ $target == .. || $target == ../* || $target == ./* ]]; do
    if [[ $target != ./* ]]; then
      [[ $folder == */* ]] || return 1
      folder=${folder%/*}
    fi
    if [[ $target == .. ]]; then return 0; fi
    target=${target#*/}
  done
  stays_inside "$1" && stays_inside "${target%/}"
}

# list_tree FOLDER: set tree_files, tree_links and tree_others to the names below it.
list_tree() {
  local LC_ALL=C
  tree_files=() tree_links=() tree_others=()
  list_folder "$1" ''
}

# list_folder FOLDER PREFIX: add what lies below one folder of it.
list_folder() {
  local entry
  [[ -r $1/$2. && -x $1/$2. ]] || fail "cannot look into the folder $1/$2" "chmod u+rx it"
  for entry in "$1/$2"* "$1/$2".[!.]* "$1/$2"..?*; do
    if [[ -L $entry ]]; then
      tree_links+=("${entry#"$1/"}")
    elif [[ -d $entry ]]; then
      # ext4 has this one at its root, for nobody but root
      if [[ ${entry#"$1/"} != lost+found ]]; then list_folder "$1" "${entry#"$1/"}/"; fi
    elif [[ -f $entry ]]; then
      tree_files+=("${entry#"$1/"}")
    elif [[ -e $entry ]]; then
      tree_others+=("${entry#"$1/"}")
    fi
  done
}

# read_manifest FILE: set bundle_sums from a manifest; false, with REPLY set to the reason, where it is
# not complete or names what no bundle holds.
read_manifest() {
  local LC_ALL=C line='' name=''
  local -i count=0
  bundle_sums=()
  REPLY="there is no $1"
  [[ -f $1 && ! -L $1 ]] || return 1
  while IFS= read -r line; do
    if [[ $line == '# '* ]]; then break; fi
    name=${line:66}
    if [[ ${line:64:2} != '  ' || ${line:0:64} == *[!0-9a-f]* ]]; then
      printf -v REPLY '%s has a line that is no checksum: %q' "$1" "$line"
      return 1
    elif ! stays_inside "$name" || [[ -n ${bundle_sums[$name]:-} ]]; then
      printf -v REPLY '%s has a name that no bundle holds: %q' "$1" "$name"
      return 1
    fi
    bundle_sums[$name]=${line:0:64}
    count+=1
    line=
  done <"$1"
  REPLY="$1 is cut short"
  [[ $line == "# $count files in all" ]]
}

readonly BIG_FILE=4194304 # bytes; such a file is dealt out and copied by itself

readonly BATCH=1000 # names for one call of a program

declare -a bundle_names=()

declare -a hand_workers=()

declare -a temporary_folders=()

# at_exit FOLDER...: end what still works and remove temporary folders, however this script ends.
at_exit() {
  temporary_folders=("$@")
  trap 'end_hands; rm -rf -- "${temporary_folders[@]}"; release_locks' EXIT
}

# hash_files ROOT WORK: the SHA-256 of each of bundle_names, into the files WORK/sums.*.
hash_files() {
  rm -f -- "$2"/sums.*
  if ((${#bundle_names[@]} == 0)); then return; fi
  deal_files "$1" "$2"
  work_hands "$2" hash_hand "$1"
}

# copy_files SOURCE TARGET WORK PREFIX: copy each of bundle_names below SOURCE to the same name below
# TARGET; each is there completely or not at all. Unless PREFIX is -, the SHA-256 of what was copied
# goes into WORK/sums.*, with the name behind PREFIX, before a file gets its name. WORK lies on the file
# system of TARGET; what is half done lies in WORK/new.
copy_files() {
  local reason
  rm -f -- "$3"/sums.*
  if ((${#bundle_names[@]} == 0)); then return; fi
  deal_files "$1" "$3"
  if work_hands "$3" copy_hand "$1" "$2" "$4"; then return; fi
  reason=$(tail -q -n 1 -- "$3"/error.* 2>/dev/null | tail -n 1) || :
  fail_writing "$2" "cannot copy ${1##*/} into $2: ${reason#*: }" 'see that line; then run the same command again'
}

# deal_files ROOT WORK: share out bundle_names to one list in WORK for each core: by size, small ones
# in batches of one folder. A line is + and the name of a big file, or - and that of another.
deal_files() {
  local -r root=$1 work=$2
  local -a load=() big=() batch=() batches=() weights=()
  local -i cores hand=0 each index size weight=0
  local line folder=
  cores=$(nproc)
  rm -f -- "$work"/hand.* "$work"/error.*
  for ((each = 0; each < cores; each++)); do load[each]=0; done
  while IFS= read -r line; do
    size=${line%% *}
    line=${line#* }
    if ((size >= BIG_FILE)); then
      big+=("$size $line")
      continue
    elif ((${#batch[@]} >= BATCH || weight > BIG_FILE)) || [[ ${line%/*} != "$folder" ]]; then
      end_batch
      folder=${line%/*}
    fi
    batch+=("$line")
    weight+=$((size + 65536)) # opening a small file takes as long as reading that much
  done < <(cd -- "$root" && for ((index = 0; index < ${#bundle_names[@]}; index += BATCH)); do
    stat -c '%s %n' -- "${bundle_names[@]:index:BATCH}"
  done)
  end_batch
  while IFS= read -r line; do
    give_hand "${line%% *}" "+${line#* }"
  done < <(if ((${#big[@]})); then printf '%s\n' "${big[@]}" | sort -rn; fi)
  for ((index = 0; index < ${#batches[@]}; index++)); do
    give_hand "${weights[index]}" "${batches[index]}"
  done
}

# end_batch: of deal_files, if there is one.
end_batch() {
  local lines
  if ((${#batch[@]})); then
    printf -v lines '\n-%s' "${batch[@]}"
    batches+=("${lines:1}")
    weights+=("$weight")
  fi
  batch=() weight=0
}

# give_hand BYTES LINES: to the core with the least work so far.
give_hand() {
  hand=0
  for ((each = 1; each < cores; each++)); do
    if ((load[each] < load[hand])); then hand=each; fi
  done
  load[hand]=$((load[hand] + $1))
  printf '%s\n' "$2" >>"$work/hand.$hand"
}

# work_hands WORK FUNCTION [ARGUMENT]...: call FUNCTION ARGUMENT... LIST RESULT for each list, all at
# once; false where one failed, with its messages in WORK/error.*.
work_hands() {
  local -r work=$1
  local list worker
  local -i failed=0
  shift
  hand_workers=()
  for list in "$work"/hand.*; do
    (
      # shellcheck disable=SC2046  # process ids
      trap 'kill $(jobs -p) 2>/dev/null; exit 1' TERM
      "$@" "$list" "$work/sums.${list##*.}" 2>"$work/error.${list##*.}"
    ) &
    hand_workers+=($!)
  done
  show_hands "$work"
  for worker in "${hand_workers[@]}"; do wait "$worker" || failed=1; done
  hand_workers=()
  return "$failed"
}

# show_hands WORK: on a terminal, how many files are done, until all are.
show_hands() {
  local -r start=$SECONDS
  if [[ ! -t 2 ]]; then return; fi
  while kill -0 "${hand_workers[@]}" 2>/dev/null; do
    printf '\r\e[K      %d of %d files, %d s' "$(cat -- "$1"/sums.* 2>/dev/null | wc -l)" \
      "${#bundle_names[@]}" "$((SECONDS - start))" >&2
    sleep 0.2
  done
  printf '\r\e[K' >&2
}

# end_hands: end them and wait until they are gone; they do not hear Ctrl-C.
end_hands() {
  if ((${#hand_workers[@]})); then
    kill "${hand_workers[@]}" 2>/dev/null || :
    wait "${hand_workers[@]}" 2>/dev/null || :
  fi
}

# waited COMMAND...: run it in a way that lets end_hands end it; not at all once the script is gone.
waited() {
  kill -0 "$$" 2>/dev/null || exit 1
  "$@" &
  wait $!
}

# from_folder FOLDER COMMAND...: become COMMAND in a folder, where names need no path.
from_folder() {
  cd -- "$1" && exec "${@:2}"
}

# hash_hand ROOT LIST RESULT: those of one core.
hash_hand() {
  local -a mine=()
  local -i index
  mapfile -t mine <"$2"
  mine=("${mine[@]#?}")
  for ((index = 0; index < ${#mine[@]}; index += BATCH)); do
    # what cannot be read has no line, and whoever asked looks for that
    waited from_folder "$1" sha256sum -- "${mine[@]:index:BATCH}" || :
  done >"$3"
}

# copy_hand SOURCE TARGET PREFIX LIST RESULT: those of one core, in batches of one folder.
copy_hand() {
  local -r source=$1 target=$2 prefix=$3 result=$5 own=${5%/*}/new/${5##*.}
  local -a mine=() batch=()
  local -i index=0 most
  local name folder kind plain=
  mapfile -t mine <"$4"
  rm -rf -- "$own"
  mkdir -p -- "$own" || exit 1
  while ((index < ${#mine[@]})); do
    name=${mine[index]:1} kind=${mine[index]:0:1} batch=() folder=''
    if [[ $name == */* ]]; then folder=${name%/*}/; fi
    most=BATCH
    if [[ $kind == + ]]; then most=8; fi # soon under their names
    while ((index < ${#mine[@]} && ${#batch[@]} < most)); do
      name=${mine[index]##*/}
      if [[ $name == "${mine[index]}" ]]; then name=${name:1}; fi
      if [[ ${mine[index]} != "$kind$folder$name" ]]; then break; fi
      batch+=("$name")
      index+=1
    done
    if [[ $kind == + ]]; then copy_big_files; else copy_small_files; fi || exit 1
    finish_batch || exit 1
  done
}

# copy_small_files: those of the batch.
copy_small_files() {
  waited from_folder "$source/$folder" \
    cp --reflink=auto --preserve=timestamps -- "${batch[@]}" "$own/" || return 1
  if [[ $prefix != - ]]; then waited from_folder "$own" sha256sum -- "${batch[@]}" >"$own-sums"; fi
}

# copy_big_files: those of the batch, past the cache of the system where the file system can: that
# takes a quarter of the time, and does not push everything else out of memory. They are read by
# sha256sum at the same time.
copy_big_files() {
  local name hashing=
  local -r before=$(batch_facts)
  if [[ $prefix != - ]]; then
    from_folder "$source/$folder" sha256sum -- "${batch[@]}" >"$own-sums" &
    hashing=$!
  fi
  if [[ -n $plain ]] ||
    ! waited from_folder "$source/$folder" cp --reflink=always -- "${batch[@]}" "$own/" 2>/dev/null; then
    plain=1 # the others will not share their blocks either
    for name in "${batch[@]}"; do
      waited dd if="$source/$folder$name" of="$own/$name" bs=8M oflag=direct status=none 2>/dev/null ||
        waited cp -- "$source/$folder$name" "$own/$name" || return 1
      if [[ -x $source/$folder$name ]]; then chmod +x -- "$own/$name" || return 1; fi
    done
  fi
  from_folder "$source/$folder" cp --attributes-only --preserve=timestamps -- "${batch[@]}" "$own/" &
  wait $! || return 1
  if [[ -n $hashing ]]; then wait "$hashing" || return 1; fi
  if [[ $(batch_facts) != "$before" ]]; then
    printf ': one of %s was written to while it was copied\n' "${batch[*]}" >&2
    return 1
  fi
}

# batch_facts: what changes when a file of the batch is written to.
batch_facts() {
  (from_folder "$source/$folder" stat -c '%s %.9Y' -- "${batch[@]}")
}

# finish_batch: record the checksums of what was copied, and give it its name.
finish_batch() {
  local line
  if [[ $prefix != - ]]; then
    while IFS= read -r line; do
      printf '%s  %s\n' "${line:0:64}" "$prefix$folder${line:66}"
    done <"$own-sums" >>"$result" || return 1
  fi
  if [[ ! -d $target/$folder ]]; then mkdir -p -- "$target/$folder" || return 1; fi
  (from_folder "$own" mv -f -t "$target/$folder" -- "${batch[@]}")
}

# checksum FILE: its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the line above'
  printf 'sha256:%s' "${sum%% *}"
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

# what is not there yet, and what makes it
declare -a missing_parts=()

declare -a missing_commands=()

# name in the bundle -> the SHA-256 of what lies there
declare -A known_sums=()

# names that belong into the bundle
declare -A wanted_names=()

# the names below offline that belong into it
declare -a offline_names=()

# need_archive BASE COMMAND: the image's archive, which COMMAND makes; the newer one, as
# build_container.py offline takes it.
need_archive() {
  local archive=$1.tar
  if [[ $1.sif -nt $archive ]]; then archive=$1.sif; fi
  if [[ -f $archive && -f $archive.json ]]; then
    offline_names+=("${archive#"$offline/"}" "${archive#"$offline/"}.json")
  else
    missing_parts+=("the archive of the image, $1.tar or .sif")
    missing_commands+=("$2")
  fi
}

# need_file PATTERN COMMAND: one file at least below offline whose name fits.
need_file() {
  if ! compgen -G "$offline/$1" >/dev/null; then
    missing_parts+=("$offline/$1")
    if [[ ${missing_commands[*]-} != *"$2" ]]; then missing_commands+=("$2"); fi
  fi
}

# stop_where_missing: tell all that is missing at once.
stop_where_missing() {
  local part commands
  if ((${#missing_parts[@]} == 0)); then return; fi
  for part in "${missing_parts[@]}"; do note "missing: $part"; done
  printf -v commands '%s; ' "${missing_commands[@]}"
  fail "${#missing_parts[@]} parts of the bundle are not here yet" "${commands%; }"
}

# check_bundle_folder: make it, or stop where it is no folder of a bundle's.
check_bundle_folder() {
  local part
  for part in containers pip repos assets; do
    [[ $bundle/ != "$offline/$part/"* ]] || fail "$bundle lies in a folder that is packed" 'name another folder'
  done
  [[ ! -e $bundle || -d $bundle ]] || fail "$bundle is no folder" 'name another one, or a new one'
  for part in .partial SHA256SUMS; do
    [[ ! -L $bundle/$part ]] || fail "$bundle/$part is a symbolic link" 'remove it, or name a new folder'
  done
  if [[ -d $bundle && ! -e $bundle/SHA256SUMS && ! -e $bundle/.partial ]]; then
    [[ -z $(ls -A -- "$bundle") ]] || fail "the folder $bundle holds other things than a bundle" 'name a new folder'
  fi
  mkdir -p -- "$bundle" || fail_writing "$bundle" "cannot make the folder $bundle" 'name another one'
}

# pack_bundle REQUIREMENT...: write what is not there yet, remove what no longer belongs to it; the
# REQUIREMENTs are the scripts' own packages.
pack_bundle() {
  local -r pending=$bundle/.partial
  local -i bytes=0 changed=0
  local name
  mkdir -p -- "$pending/compare" || fail_writing "$bundle" "cannot write into $bundle" 'see the line above'
  if [[ -e $bundle/SHA256SUMS ]]; then at_exit "$pending"; else keep_progress; fi
  step 1/3 'Look at what belongs to it'
  read_known_sums
  make_parts "$@"
  list_repository
  plan_part repository "$root" repository/
  list_offline
  plan_part offline "$offline" offline/
  list_own_parts
  plan_part own "$work/parts" ''
  check_nothing_else
  for name in "${!known_sums[@]}"; do
    if [[ -z ${wanted_names[$name]:-} ]]; then changed+=1; fi
  done
  if ((changed == 0)) && read_manifest "$bundle/SHA256SUMS"; then
    rm -rf -- "$pending"
    note "nothing has changed: $bundle"
    return
  fi
  step 2/3 "Write $changed of ${#wanted_names[@]} files"
  keep_progress
  rm -f -- "$bundle/SHA256SUMS" # from now on it is not complete
  remove_gone
  copy_part repository "$root" repository/
  copy_part offline "$offline" offline/
  copy_part own "$work/parts" ''
  step 3/3 'Write the checksums'
  write_manifest
  rm -rf -- "$pending"
  human "$bytes"
  note "${#wanted_names[@]} files, $REPLY: $bundle"
}

# keep_progress: what is written stays for the next packing, however this one ends.
keep_progress() {
  at_exit "$pending/new" "$pending/compare"
}

# read_known_sums: from the last complete bundle, and from the packing that was interrupted.
read_known_sums() {
  local file line
  for file in "$pending/known" "$pending"/sums.* "$bundle/SHA256SUMS"; do
    if [[ ! -f $file ]]; then continue; fi
    while IFS= read -r line; do # a last line without an end is cut off, and left out
      if [[ $line != '# '* ]] && stays_inside "${line:66}"; then known_sums[${line:66}]=${line:0:64}; fi
    done <"$file"
  done
  rm -f -- "$pending"/sums.*
  keep_sums "$pending/known"
}

# keep_sums FILE: write known_sums down.
keep_sums() {
  local name
  for name in "${!known_sums[@]}"; do
    printf '%s  %s\n' "${known_sums[$name]}" "$name"
  done >"$1.partial" || fail_writing "$bundle" "cannot write into $bundle" 'see the line above'
  mv -f -T -- "$1.partial" "$1"
}

# plan_part PART SOURCE PREFIX: of bundle_names below SOURCE, keep those that are not in the bundle as
# they are, checked for secrets, in pending/todo-PART.
plan_part() {
  local -A there=()
  local -a todo=() doubtful=()
  local line name size
  while IFS= read -r line; do there[${line#*$'\t'}]=${line%%$'\t'*}; done < <(facts_of "$bundle/$3")
  while IFS= read -r line; do
    name=${line#*$'\t'}
    line=${line%%$'\t'*}
    size=${line%% *}
    bytes+=$size
    wanted_names[$3$name]=1
    if [[ -z ${known_sums[$3$name]:-} || ${there[$name]:-} != "$size "* ]]; then
      todo+=("$name")
    elif [[ ${there[$name]% *} != "${line% *}" ]]; then
      doubtful+=("$name")
    elif [[ ${there[$name]:(-7):1} != "${line:(-7):1}" ]]; then # the owner may execute it, or not
      chmod --reference="$2/$name" -- "$bundle/$3$name" 2>/dev/null || :
    fi
  done < <(facts_of "$2")
  compare_doubtful "$2" "$3"
  bundle_names=("${todo[@]}")
  changed+=${#todo[@]}
  if ((${#todo[@]})); then printf '%s\n' "${todo[@]}"; fi >"$pending/todo-$1"
  if [[ $1 != own ]]; then check_secrets "$2"; fi
}

# facts_of FOLDER: size, time of the last change and mode of those of bundle_names that lie below it.
facts_of() {
  local -i index
  cd -- "$1" 2>/dev/null || return 0
  for ((index = 0; index < ${#bundle_names[@]}; index += BATCH)); do
    stat --printf '%s %.9Y %A\t%n\n' -- "${bundle_names[@]:index:BATCH}" 2>/dev/null || :
  done
}

# compare_doubtful SOURCE PREFIX: those of another time but the same size may hold the same: add the
# others to todo.
compare_doubtful() {
  local name line
  local -A same=()
  if ((${#doubtful[@]} == 0)); then return; fi
  bundle_names=("${doubtful[@]}")
  hash_files "$1" "$pending/compare"
  while IFS= read -r line; do same[${line:66}]=${line:0:64}; done < <(cat -- "$pending"/compare/sums.*)
  ((${#same[@]} == ${#doubtful[@]})) ||
    fail "some files in $1 cannot be read" "$(printf 'chmod -R u+r %q' "$1")"
  hash_files "$bundle/$2" "$pending/compare"
  while IFS= read -r line; do
    name=${line:66}
    if [[ ${same[$name]:-} == "${line:0:64}" && ${known_sums[$2$name]} == "${line:0:64}" ]]; then
      touch -r "$1/$name" -- "$bundle/$2$name"
      unset "same[\$name]"
    fi
  done < <(cat -- "$pending"/compare/sums.*)
  todo+=("${!same[@]}")
}

# check_nothing_else: stop where the folder holds what no packing has put there.
check_nothing_else() {
  local name
  list_tree "$bundle"
  for name in "${tree_files[@]}" "${tree_links[@]}" "${tree_others[@]}"; do
    case $name in SHA256SUMS | .partial/* | .partial.lock*) continue ;; esac
    [[ -n ${wanted_names[$name]:-}${known_sums[$name]:-} && ! -L $bundle/$name ]] ||
      fail "$bundle/$name is no part of the bundle" 'remove it, or name a new folder'
  done
}

# remove_gone: what no longer belongs to it.
remove_gone() {
  local name
  for name in "${!known_sums[@]}"; do
    if [[ -n ${wanted_names[$name]:-} ]]; then continue; fi
    unset "known_sums[\$name]"
    if [[ -f $bundle/$name ]]; then
      rm -f -- "$bundle/$name"
      if [[ $name == */* ]]; then
        (cd -- "$bundle" && rmdir -p --ignore-fail-on-non-empty -- "${name%/*}") || :
      fi
    fi
  done
}

# copy_part PART SOURCE PREFIX: write what plan_part has found.
copy_part() {
  local line
  mapfile -t bundle_names <"$pending/todo-$1"
  copy_files "$2" "$bundle/$3" "$pending" "$3"
  while IFS= read -r line; do known_sums[${line:66}]=${line:0:64}; done < <(cat -- "$pending"/sums.* 2>/dev/null)
  keep_sums "$pending/known"
}

# write_manifest: the last file; with it the bundle is complete.
write_manifest() {
  keep_sums "$pending/manifest"
  {
    LC_ALL=C sort -k 2 -- "$pending/manifest"
    printf '# %d files in all\n' "${#known_sums[@]}"
  } >"$pending/SHA256SUMS" ||
    fail_writing "$bundle" "cannot write $bundle/SHA256SUMS" 'see the line above'
  mv -f -T -- "$pending/SHA256SUMS" "$bundle/SHA256SUMS"
}

# what tokens and keys look like, for grep -E and git log -G
readonly SECRET='hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|BEGIN [A-Z0-9 ]*PRIVATE KEY|(WANDB_API_KEY|[Ww]andb_(api_)?key|api\.wandb\.ai).{0,80}[^0-9a-f][0-9a-f]{40}([^0-9a-f]|$)|https?://[^]/@:"<>{}$*[:space:]'\''[]+:[^]/@:"<>{}$*[:space:]'\''[]+@'

# target, tab, name of every symbolic link: not all file systems that bundles travel on have them
declare -a packed_links=()

readonly TEXT_BYTES=1048576 # larger files are data, and data can hold anything that looks like a key

# make_parts REQUIREMENT...: what is made for the bundle alone, in work/parts.
make_parts() {
  local -r parts=$work/parts
  make_folders "$parts/host"
  cmp -s -- "$root/lib/unpack.sh" "$parts/unpack.sh" ||
    cp -- "$root/lib/unpack.sh" "$parts/unpack.sh" ||
    fail_writing "$parts" "cannot write into $parts" 'see the line above'
  fetch_host_wheels "$parts/host" "$@"
  bundle_history "$parts/longship.bundle"
}

# fetch_host_wheels FOLDER REQUIREMENT...: wheels for every Python that the scripts run with.
fetch_host_wheels() {
  local -r folder=$1
  local -a wanted=()
  local requirement python
  shift
  for requirement in "$@"; do
    if ! compgen -G "$folder/${requirement%%[<>=!~ ]*}-*-py3-none-any.whl" >/dev/null; then
      wanted+=("$requirement")
    fi
  done
  if ((${#wanted[@]} == 0)); then return; fi
  for python in "${pythons[@]}"; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      note "fetching ${wanted[*]}"
      rm -rf -- "$folder.partial"
      "$python" -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: \
        --python-version 3.9 --implementation py --abi none --platform any \
        --dest "$folder.partial" "${wanted[@]}" >&2 ||
        fail_writing "$folder" "pip cannot fetch ${wanted[*]}, which the scripts need there" 'see the lines above'
      mv -f -t "$folder" -- "$folder.partial"/*.whl
      rm -rf -- "$folder.partial"
      return
    fi
  done
  fail "no Python here has pip, which fetches ${wanted[*]}" 'python3 -m venv .venv, then the same command again'
}

# bundle_history FILE: the commits that lead to what is checked out, and no other branch.
bundle_history() {
  local -r file=$1
  local commit branch heads reason
  check_clone
  commit=$(git -C "$root" rev-parse -q --verify HEAD) || commit=
  if [[ -z $history || -z $commit || $(git -C "$root" rev-parse --is-shallow-repository) == true ]]; then
    if [[ -n $history ]]; then note 'the history is not packed: this clone has none, or not all of it'; fi
    rm -f -- "$file"
    return
  fi
  branch=$(git -C "$root" symbolic-ref -q HEAD) || branch=
  heads="$commit HEAD${branch:+$'\n'$commit $branch}"
  if [[ $(git bundle list-heads "$file" 2>/dev/null | LC_ALL=C sort -k 2) == "$heads" ]]; then return; fi
  check_history
  rm -f -- "$file.partial" "$file.partial.lock"
  reason=$(git -C "$root" bundle create "$file.partial" HEAD ${branch:+"$branch"} 2>&1) ||
    fail_writing "$work" "git cannot pack the history: ${reason##*$'\n'}" 'see git fsck; or leave it out: --no-history'
  mv -f -- "$file.partial" "$file"
}

# check_clone: git says what belongs to the repository.
check_clone() {
  local top
  command -v git >/dev/null || fail 'git is not here, and it says what belongs to this repository' 'install git'
  top=$(git -C "$root" rev-parse --show-toplevel 2>&1) && [[ $top -ef $root ]] ||
    fail "$root is no clone of git's: ${top##*$'\n'}" 'pack from the clone that the group works with'
}

# is_allowed NAME: whether the user says that it only looks like a secret.
is_allowed() {
  local each
  for each in ${allowed[@]+"${allowed[@]}"}; do
    if [[ $1 == "$each" ]]; then return; fi
  done
  return 1
}

# check_history: stop where a commit holds what looks like a secret.
check_history() {
  local name
  local -ar but=(-- . ${allowed[@]+"${allowed[@]/#/:(exclude,top,literal)}"})
  local -r instead='take it out of the history (git filter-repo), or: --no-history, --allow FILE'
  while IFS= read -r -d '' name; do
    ! is_secret_name "$name" || is_allowed "$name" || fail "the history has a file $name" "$instead"
  done < <(git -C "$root" log --format= --name-only --no-renames -z HEAD)
  name=$(LC_ALL=C git -C "$root" log -m --no-ext-diff --no-textconv --format='commit %h' --name-only -G"$SECRET" \
    HEAD "${but[@]}" |
    head -n 3 | tr '\n' ' ') || :
  [[ -z $name ]] || fail "the history has what looks like a token or a key: ${name% }" "$instead"
}

# list_repository: set bundle_names to what git tracks and what it would.
list_repository() {
  local name prefix
  bundle_names=()
  git -C "$root" ls-files -z --cached --others --exclude-standard | LC_ALL=C sort -zu >"$pending/tracked" ||
    fail "git cannot list the files of $root" 'see the line above'
  while IFS= read -r -d '' name; do
    for prefix in "${left_out[@]}"; do
      if [[ $name/ == "$prefix"/* ]]; then continue 2; fi
    done
    add_name "$root" "$name" repository/
  done <"$pending/tracked"
}

# list_offline: set bundle_names to all that the download modes have fetched.
list_offline() {
  local part name
  bundle_names=()
  for name in "${offline_names[@]}"; do add_name "$offline" "$name" offline/; done
  for part in pip repos assets; do
    if [[ ! -d $offline/$part ]]; then continue; fi
    list_tree "$offline/$part"
    for name in "${tree_files[@]}" "${tree_links[@]}"; do
      case $name in
        *.partial | *.partial.* | *.partial/* | *.incomplete | *.lock/owner | *.lock.*/owner) ;; # half done
        *) add_name "$offline" "$part/$name" offline/ ;;
      esac
    done
  done
}

# list_own_parts: set bundle_names to what make_parts has made; the links are known by now.
list_own_parts() {
  local -r file=$work/parts/links
  if ((${#packed_links[@]})); then
    printf '%s\n' "${packed_links[@]}" >"$file.partial"
    if cmp -s -- "$file.partial" "$file"; then rm -f -- "$file.partial"; else mv -f -- "$file.partial" "$file"; fi
  else
    rm -f -- "$file"
  fi
  list_tree "$work/parts"
  bundle_names=("${tree_files[@]}")
}

# add_name FOLDER NAME PREFIX: a file to bundle_names, a link to packed_links.
add_name() {
  local target
  stays_inside "$2" || fail "$(printf '%q cannot be packed: its name' "$1/$2") has a newline, a backslash or another \
character that lists of checksums cannot hold" 'rename it'
  if [[ -L $1/$2 ]]; then
    target=$(readlink -- "$1/$2")
    link_stays_inside "$3$2" "$target" ||
      fail "$1/$2 is a link that leads out of what is packed: $target" 'replace it by what it leads to'
    packed_links+=("$target"$'\t'"$3$2")
  elif [[ -f $1/$2 ]]; then
    bundle_names+=("$2")
  elif [[ -d $1/$2 ]]; then
    note "not packed: $1/$2 is a repository of its own"
  fi
}

# is_secret_name NAME: whether programs keep passwords or keys in files of that name.
is_secret_name() {
  case ${1##*/} in
    .netrc | _netrc | id_rsa* | id_dsa* | id_ecdsa* | id_ed25519* | token | stored_tokens | .env | \
      .git-credentials | .pypirc | credentials | configuration.local.toml) return 0 ;;
  esac
  [[ /$1 == */.ssh/* || /$1 == */.aws/* || /$1 == */.gnupg/* ]]
}

# check_secrets FOLDER: stop where one of bundle_names below it is a secret, or a text that holds one.
check_secrets() {
  local -a found=()
  local name
  local -i index
  for name in "${bundle_names[@]}"; do
    if is_secret_name "$name"; then found+=("$name"); fi
  done
  while IFS= read -r name; do found+=("$name"); done < <(cd -- "$1" &&
    for ((index = 0; index < ${#bundle_names[@]}; index += BATCH)); do
      small_files "${bundle_names[@]:index:BATCH}" | LC_ALL=C xargs -0 -r grep -lIE -e "$SECRET" -- || :
    done)
  for name in "${found[@]}"; do
    is_allowed "$name" ||
      fail "$1/$name looks like a token or a key, and those never travel in a bundle" \
        "take it out; if it is none: --allow $(printf '%q' "$name")"
  done
}

# small_files NAME...: those that can be texts with a secret, each ended by a NUL.
small_files() {
  local line
  while IFS= read -r line; do
    if ((${line%% *} <= TEXT_BYTES)); then printf '%s\0' "${line#* }"; fi
  done < <(stat -c '%s %n' -- "$@")
}

# with_progress FROM TO PROGRAM...: run what reads the file FROM: as its standard input, or, if TO is not
# empty, to write the file TO.
with_progress() {
  local -i code=0
  if [[ ! -t 2 ]]; then
    "${@:3}"
    return
  fi
  # the end of the program, also of this script, is the end of what file 4 leads to
  {
    "${@:3}" 3<&- 4>&- || code=$?
  } 3<&0 4> >(show_position "$1" "$2")
  wait "$!" 2>/dev/null || :
  return "$code"
}

# show_position FROM TO: by the size of TO, else by the place in file 3, until standard input ends.
show_position() {
  local key place bytes of status
  bytes=$(stat -L -c %s -- "$1")
  human "$bytes"
  of=$REPLY
  while status=0 && { read -r -t 0.5 || status=$?; } && ((status > 128)); do
    place=0
    if [[ -n $2 ]]; then
      place=$(stat -c %s -- "$2" 2>/dev/null) || place=0
    else
      while read -r key REPLY; do if [[ $key == pos: ]]; then place=$REPLY; fi; done </proc/self/fdinfo/3
    fi
    human "$place"
    printf '\r\e[K      %s of %s, %d %%' "$REPLY" "$of" $((place * 100 / (bytes > 0 ? bytes : 1))) >&2
  done
  printf '\r\e[K' >&2
}

# human BYTES: set REPLY to them with a unit, such as 9.4 GB.
human() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}

root='/home/me/long ship'
offline=/home/me/longship/scratch/offline
bundle='/media/a stick'
work=/home/me/longship/scratch/cache/bundle
history=1
allowed=()
left_out=(.git .venv .cache configuration.local.toml)
pythons=('/home/me/long ship/.venv/bin/python' /usr/bin/python3 python3)
on_interrupt 'python3 bundle.py pack '"'"'/media/a stick'"'"''

need_archive /home/me/longship/scratch/offline/containers/pytorch_25.06-py3_arm64 'python3 build_container.py download --machine jpb'
need_file pip/pytorch_arm64.lock 'python3 set_up.py download --machine jpb'
stop_where_missing
check_bundle_folder
make_folders "$work"
locked "$work/pack" locked "$bundle/.partial" pack_bundle 'click>=8.1' 'tomli>=2'
next_step 'rsync -a '"'"'/media/a stick'"'"' jpb:; then there: bash '"'"'a stick/unpack.sh'"'"''
