#!/usr/bin/env bash
# Longship: bundle_verify.py, machine jpb (jsc/site.toml)
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

# checksum FILE: its SHA-256, as sha256:...
checksum() {
  local sum
  # shellcheck disable=SC2094  # it is read only
  sum=$(with_progress "$1" '' sha256sum <"$1") || fail "cannot read $1" 'see the line above'
  printf 'sha256:%s' "${sum%% *}"
}

# what this process holds, and the processes that keep it fresh
declare -a held_locks=()

declare -a lock_hearts=()

# remove_lock FOLDER: give it another name first, as only that takes one step.
remove_lock() {
  local -r other=$1.new.$(this_host).gone.$$
  if mv -T -- "$1" "$other" 2>/dev/null; then
    rm -rf -- "$other" 2>/dev/null || : # another member's lock can be moved away, but not be emptied
  else
    rm -rf -- "$1"
  fi
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
on_interrupt 'python3 bundle.py verify'
step 1/1 'Verify the bundle'
verify_bundle "$bundle"
note "complete, ${#bundle_sums[@]} files: $bundle"
next_step 'python3 bundle.py unpack '"'"'/media/a stick'"'"''
