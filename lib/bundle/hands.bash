# shellcheck shell=bash
# Work on many files by all cores: dealt out into a list for each, hashed or copied by a process for
# each. What is worked on stands in bundle_names, below a folder.

declare -g BIG_FILE=4194304 # bytes; such a file is dealt out and copied by itself

declare -g BATCH=1000 # names for one call of a program

declare -ga bundle_names=()

declare -ga hand_workers=()

declare -ga temporary_folders=()

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
  fail_writing "$2" "cannot copy ${1##*/} to $2: ${reason#*: }" 'fix the reason given, then run the same command again'
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
    printf ': one of %s was modified while it was copied\n' "${batch[*]}" >&2
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
