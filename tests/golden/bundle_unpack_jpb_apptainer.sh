#!/usr/bin/env bash
# Longship: bundle_unpack.py, machine jpb (jsc/site.toml)
set -euo pipefail

# name of each file -> its SHA-256, from read_manifest
declare -A bundle_sums=()

# name of each symbolic link -> where it leads, from read_links
declare -A bundle_links=()

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

# read_links FILE: set bundle_links from the list of a bundle; false, with REPLY set to the reason, where
# one would lead out, or another name lies behind one.
read_links() {
  local name target folder
  bundle_links=()
  if [[ ! -e $1 ]]; then return 0; fi
  while IFS=$'\t' read -r target name; do
    printf -v REPLY '%s has a link that no bundle holds: %q' "$1" "$name"
    link_stays_inside "$name" "$target" || return 1
    bundle_links[$name]=$target
  done <"$1"
  if ((${#bundle_links[@]} == 0)); then return 0; fi
  for name in "${!bundle_sums[@]}" "${!bundle_links[@]}"; do
    folder=$name
    while [[ $folder == */* ]]; do
      folder=${folder%/*}
      printf -v REPLY '%s has a link with a file behind it: %q' "$1" "$name"
      [[ -z ${bundle_links[$folder]:-} ]] || return 1
    done
  done
}

# verify_bundle FOLDER: look at every file of it; name each that is bad, missing or unexpected, and
# stop if there is one. Leaves bundle_sums and bundle_links set.
verify_bundle() {
  local -r bundle=$1
  local name work reason
  local -i wrong=0
  open_manifest "$bundle"
  local -A wanted=()
  for name in "${!bundle_sums[@]}"; do wanted[$name]=${bundle_sums[$name]}; done
  list_tree "$bundle"
  bundle_names=()
  for name in "${tree_files[@]}"; do
    if [[ -n ${wanted[$name]:-} ]]; then
      bundle_names+=("$name")
    elif [[ $name != SHA256SUMS && $name != .partial/* && $name != .partial.lock* ]]; then # what a killed packing left
      tell_wrong unexpected "$name"
    fi
  done
  for name in "${tree_links[@]}" "${tree_others[@]}"; do
    tell_wrong 'unexpected, no plain file' "$name"
    unset "wanted[\$name]"
  done
  work=$(mktemp -d) || fail 'there is no room for temporary files' 'make room in /tmp, or set TMPDIR'
  at_exit "$work"
  hash_files "$bundle" "$work"
  while IFS= read -r reason; do
    name=${reason:66}
    if [[ ${wanted[$name]} != "${reason:0:64}" ]]; then tell_wrong bad "$name"; fi
    unset "wanted[\$name]"
  done < <(cat -- "$work"/sums.* 2>/dev/null)
  for name in "${!wanted[@]}"; do
    if [[ -e $bundle/$name ]]; then tell_wrong 'bad, cannot be read' "$name"; else tell_wrong missing "$name"; fi
  done
  rm -rf -- "$work"
  ((wrong == 0)) || fail "$wrong files of the bundle $bundle are not as they were packed" \
    'copy them again (rsync -a --checksum takes only what differs); delete what is unexpected'
  open_links "$bundle"
}

# open_manifest FOLDER: read what belongs to the bundle, or stop.
open_manifest() {
  [[ -d $1 ]] || fail "there is no folder $1" 'name the folder that pack has made'
  read_manifest "$1/SHA256SUMS" || fail "the bundle $1 is not complete: $REPLY" \
    'copy it again; where it was packed: the same pack again'
}

# open_links FOLDER: read its links, or stop.
open_links() {
  read_links "$1/links" || fail "the bundle $1 is not to be trusted: $REPLY" 'pack it again'
}

# tell_wrong WHAT NAME: name a file, and count it.
tell_wrong() {
  printf '%s: %q\n' "$1" "$2" >&2
  wrong+=1
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

# name -> 1 for "SUM NAME" and "-> TARGET NAME" that an earlier unpacking has put there
declare -A unpacked_before=()

# unpack_part BUNDLE PART FOLDER MEMORY: put what lies below one folder of the bundle into FOLDER.
# MEMORY is a folder in there that keeps what was unpacked. Sets unpacked to the number of new files.
unpack_part() {
  local -r bundle=$1 part=$2 folder=$3 memory=$4
  local -a fresh=() there=() kept=()
  local name sum
  unpacked=0
  make_folders "$folder/.unpack.partial"
  at_exit "$folder/.unpack.partial"
  list_existing
  bundle_names=("${there[@]}")
  hash_files "$folder" "$folder/.unpack.partial"
  while IFS= read -r name; do
    sum=${name:0:64} name=${name:66}
    if [[ $sum == "${bundle_sums[$part/$name]}" ]]; then
      continue
    elif [[ -n ${unpacked_before[$sum $name]:-} ]]; then
      fresh+=("$name")
    else
      kept+=("$name")
    fi
  done < <(cat -- "$folder/.unpack.partial"/sums.* 2>/dev/null)
  ((${#there[@]} == $(cat -- "$folder/.unpack.partial"/sums.* /dev/null 2>/dev/null | wc -l))) ||
    fail "some files in $folder cannot be read, so what was changed is not known" \
      "chmod -R u+r $(printf %q "$folder")"
  remember_unpacked "$memory/unpacked.new" "${!unpacked_before[@]}"
  bundle_names=("${fresh[@]}")
  unpacked=${#fresh[@]}
  copy_files "$bundle/$part" "$folder" "$folder/.unpack.partial" -
  unpack_links
  remove_former
  for name in "${kept[@]}"; do put_beside "$name"; done
  remember_unpacked "$memory/unpacked"
  rm -rf -- "$memory/unpacked.new" "$folder/.unpack.partial"
}

# list_existing: set fresh to the names of the part that are not there yet, there to the others.
list_existing() {
  local name memory_file line
  unpacked_before=()
  for memory_file in "$memory/unpacked" "$memory/unpacked.new"; do
    if [[ ! -f $memory_file ]]; then continue; fi
    while IFS= read -r line; do unpacked_before[$line]=1; done <"$memory_file"
  done
  for name in "${!bundle_sums[@]}"; do
    if [[ $name != "$part"/* ]]; then continue; fi
    name=${name#*/}
    check_way "$name"
    if [[ -f $folder/$name && ! -L $folder/$name ]]; then
      there+=("$name")
    elif [[ -e $folder/$name || -L $folder/$name ]]; then
      kept+=("$name")
    else
      fresh+=("$name")
    fi
  done
}

# check_way NAME: stop where a link, or a file, stands in the way to it: it would end up elsewhere.
check_way() {
  local way=$1
  while [[ $way == */* ]]; do
    way=${way%/*}
    if [[ -n ${checked_ways[$folder/$way]:-} ]]; then return; fi
    [[ ! -L $folder/$way ]] || fail "$folder/$way is a link, and $1 belongs below it" 'put a folder in its place'
    [[ ! -e $folder/$way || -d $folder/$way ]] || fail "$folder/$way is no folder, and $1 belongs below it" 'move it away'
    checked_ways[$folder/$way]=1
  done
}

# folders that check_way has seen
declare -A checked_ways=()

# remember_unpacked FILE [LINE]...: write down what is put there now; until that is done, also the
# LINEs of what was there before.
remember_unpacked() {
  local -r file=$1
  local name
  shift
  make_folders "$memory"
  {
    if (($#)); then printf '%s\n' "$@"; fi
    for name in "${!bundle_sums[@]}"; do
      if [[ $name == "$part"/* ]]; then printf '%s %s\n' "${bundle_sums[$name]}" "${name#*/}"; fi
    done
    for name in "${!bundle_links[@]}"; do
      if [[ $name == "$part"/* ]]; then printf -- '-> %s %s\n' "${bundle_links[$name]}" "${name#*/}"; fi
    done
  } >"$file.partial" || fail_writing "$folder" "cannot write $file" 'see the line above'
  mv -f -T -- "$file.partial" "$file"
}

# unpack_links: the symbolic links, which a bundle has in a list.
unpack_links() {
  local name target link found
  for name in "${!bundle_links[@]}"; do
    if [[ $name != "$part"/* ]]; then continue; fi
    target=${bundle_links[$name]}
    name=${name#*/}
    link=$folder/$name
    check_way "$name"
    if [[ -L $link ]]; then
      found=$(readlink -- "$link")
      if [[ $found == "$target" ]]; then continue; fi
    fi
    if [[ -L $link && -n ${unpacked_before["-> $found $name"]:-} ]] || [[ ! -L $link && ! -e $link ]]; then
      make_folders "${link%/*}"
      ln -s -f -T -- "$target" "$folder/.unpack.partial/link" ||
        fail_writing "$folder" "cannot make the link $link" 'see the line above'
      mv -f -T -- "$folder/.unpack.partial/link" "$link"
      unpacked=$((unpacked + 1))
    else
      note "kept as you have it: $link; in the bundle it is a link to $target"
    fi
  done
}

# remove_former: what was unpacked before, is no part of the repository any more, and was not changed;
# its functions would still be found. What was fetched for the environment can belong to another bundle.
remove_former() {
  local line name
  local -a former=()
  if [[ $part != repository ]]; then return; fi
  for line in "${!unpacked_before[@]}"; do
    name=${line#* }
    if [[ $line != '-> '* && -z ${bundle_sums[$part/$name]:-} && -f $folder/$name && ! -L $folder/$name ]] &&
      stays_inside "$name"; then
      former+=("$name")
    fi
  done
  bundle_names=("${former[@]}")
  hash_files "$folder" "$folder/.unpack.partial"
  while IFS= read -r line; do
    name=${line:66}
    if [[ -n ${unpacked_before["${line:0:64} $name"]:-} ]]; then rm -f -- "$folder/$name"; fi
  done < <(cat -- "$folder/.unpack.partial"/sums.* 2>/dev/null)
}

# put_beside NAME: leave the file that somebody has changed; the new one gets a name beside it.
put_beside() {
  local beside=$folder/$1.new
  local -i number=1
  while [[ -e $beside || -L $beside ]]; do
    if [[ ! -L $beside ]] && cmp -s -- "$bundle/$part/$1" "$beside"; then break; fi
    number+=1
    beside=$folder/$1.new$number
  done
  note "kept as you have it: $folder/$1; the bundle's: $beside"
  if [[ -e $beside ]]; then return; fi
  cp --preserve=timestamps -- "$bundle/$part/$1" "$folder/.unpack.partial/beside" ||
    fail_writing "$folder" "cannot write $beside" 'see the line above'
  mv -f -T -- "$folder/.unpack.partial/beside" "$beside"
  unpacked=$((unpacked + 1))
}

# unpack_offline BUNDLE OFFLINE STEP: what the offline modes read.
unpack_offline() {
  step "$3" "Put the image, packages and the rest into $2"
  unpack_part "$1" offline "$2" "$2/.unpacked"
  note "$unpacked new files in $2"
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

bundle='/media/a stick'
offline=/e/scratch/project_465000000/me/longship/offline
on_interrupt 'python3 bundle.py unpack '"'"'/media/a stick'"'"''
step 1/2 'Verify the bundle'
verify_bundle "$bundle"
make_folders "$offline"
locked "$offline/.unpack" unpack_offline "$bundle" "$offline" 2/2
next_step 'cd '"'"'/home/me/long ship'"'"''
next_step 'python3 build_container.py offline'
next_step 'python3 move_built_container_to_active.py'
next_step 'python3 set_up.py offline'
next_step 'python3 container_run.py python train.py'
