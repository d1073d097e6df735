# shellcheck shell=bash
# What is built once and started by many: images, overlays and venvs. ACTIVE, an argument of these
# functions, is a link to one of the versions, which are next to each other and never changed.
# Activating another one is a single rename: jobs keep the version that they started with, and after
# a kill either the old or the new one is active.
#
# Pins protect versions that launchers start. A pin is a file of three lines in pins/: the image or
# overlay, the job that wrote the launcher and its cluster (empty outside a job), and the launcher.
# RUN.then names a job that starts RUN/launcher again: it exports what the run has trained. Every
# member of a group can write pins.

# store_link ACTIVE VERSION: the swap itself; VERSION is a path in a directory next to ACTIVE.
store_link() {
  { ln -sfn -- "${2#"${1%/*}/"}" "$1.partial" && mv -f -T -- "$1.partial" "$1"; } ||
    fail_writing "${1%/*}" "cannot activate ${2##*/} as $1" 'see the error above'
}

# store_active ACTIVE: print the name of the active version; nothing where no version is active.
store_active() {
  if [[ -L $1 ]]; then basename -- "$(readlink -- "$1")"; fi
}

# store_activate ACTIVE VERSION KIND: activate a version; KIND, use or rollback, goes into the
# history.
store_activate() {
  local -r name=${2##*/} history=${2%/*}/${1##*/}.history
  local from before REPLY
  from=$(store_active "$1")
  if [[ $from == "$name" ]]; then return; fi
  file_read "$history" || [[ ! -e $history ]] ||
    fail "cannot read $history" "look at: ls -l $(printf %q "$history")"
  before=$REPLY
  # before it becomes true: a line that never became true does not count
  file_write "$history" "$before$(date -u +%Y-%m-%dT%H:%M:%SZ) $3 ${from:--} $name"$'\n'
  store_link "$1" "$2"
}

# store_previous ACTIVE: set REPLY to the version that was active before the active one; empty where
# none is known.
store_previous() {
  local kind from to previous=''
  local -r now=$(store_active "$1")
  file_read "${1%/*}/versions/${1##*/}.history" || REPLY=
  while read -r _ kind from to; do
    if [[ $to == "$now" && $kind == use ]]; then previous=${from#-}; fi
  done <<<"$REPLY"
  REPLY=$previous
}

# store_keep_foreign ACTIVE: make a file that Longship did not build, or a link to one, a version
# too. The target of a link is never changed or deleted.
store_keep_foreign() {
  if [[ ! -f $1 || -L $1 && $(readlink -- "$1") == versions/* ]]; then return; fi
  local name=${1##*/} kept
  kept=${1%/*}/versions/${name%.*}_$(date -u -r "$1" +%Y%m%dT%H%M%S)
  name=_unrecorded.${name##*.}
  until [[ ! -e $kept$name || $kept$name -ef $1 ]]; do kept+=+; done
  kept+=$name
  if [[ -L $1 ]]; then
    ln -sfn -- "$(readlink -f -- "$1")" "$kept"
  elif [[ ! -e $kept ]] && ! ln -- "$1" "$kept" 2>/dev/null; then
    cp --reflink=auto -- "$1" "$kept.partial" && mv -- "$kept.partial" "$kept"
  fi || store_fail_to_write "$kept"
  store_link "$1" "$kept"
}

# store_fail_to_write FILE: stop where a file cannot be written, and leave no part of it.
store_fail_to_write() {
  rm -f -- "$1.partial"
  fail_writing "${1%/*}" "cannot write $1" 'see the error above'
}

# the versions that store_find_unused found, and the bytes that store_delete has freed
declare -ga store_unused=()

declare -g store_freed=0

# store_find_unused ACTIVE VERSION...: set store_unused to the versions that are neither active nor
# pinned.
store_find_unused() {
  local -r now=$(store_active "$1")
  local version
  store_unused=()
  for version in "${@:2}"; do
    if [[ ! -e $version || ${version##*/} == "$now" ]]; then
      continue
    elif store_is_pinned "$version"; then
      note "kept, pinned by $REPLY: ${version##*/}"
    else
      store_unused+=("$version")
    fi
  done
}

# store_delete FUNCTION: delete store_unused, each with its record, unless it was pinned meanwhile.
# FUNCTION VERSION deletes the version itself and sets REPLY to the bytes that this frees, or is
# false and says why.
store_delete() {
  local version
  for version in ${store_unused[@]+"${store_unused[@]}"}; do
    if store_is_pinned "$version" || ! "$1" "$version"; then continue; fi
    rm -f -- "$version.json"
    printf 'deleted: %s\n' "${version##*/}" >&2
    store_freed=$((store_freed + REPLY))
  done
}

# store_print_freed: report what was freed.
store_print_freed() {
  bytes_format "$store_freed"
  printf 'freed: %s\n' "$REPLY" >&2
}

# store_is_pinned VERSION: succeed if a version is pinned, and set REPLY to the job or the launcher
# that pins it. The pin of a job counts until the job, and that of RUN.then, has ended; any other
# while its launcher exists, which is known of one's own.
store_is_pinned() {
  local LC_ALL=C # a path can have any bytes
  local pin image job launcher later own
  local -r line=$'([^\n]*)\n'
  local -r where=${1%/versions/*}/pins
  if [[ -d $where && ! (-r $where && -x $where) ]]; then
    REPLY="a pin in the unreadable $where"
    return
  fi
  # what the runtime starts, if the file only names an image in its store
  file_read "$1" 4096 || :
  own=${REPLY%%$'\n'*}
  for pin in "$where"/*; do
    [[ -f $pin ]] || continue
    file_read "$pin" 16384 && [[ $REPLY =~ ^$line$line$line$ ]] || {
      REPLY="the damaged pin $pin"
      return
    }
    image=${BASH_REMATCH[1]} job=${BASH_REMATCH[2]} launcher=${BASH_REMATCH[3]}
    # compare names: two users can have different paths to one directory
    if [[ ${image##*/} != "${1##*/}" && $image != "${own:-/}" ]]; then
      continue
    fi
    later=${launcher%/launcher}.then
    if [[ -n $job && -O $later ]] && job_is_over "$job" "$pin" && file_read "$later"; then
      job=${REPLY%$'\n'}${job#"${job%% *}"}
    fi
    if [[ -n $job ]] && job_is_over "$job" "$pin" ||
      [[ -z $job && -O $pin && ! -e $launcher ]]; then
      rm -f -- "$pin"
      continue
    fi
    REPLY=${job:+job ${job/ / of }}
    REPLY=${REPLY:-$launcher}
    return
  done
  return 1
}

# job_is_over "ID [CLUSTER]" PIN: succeed if Slurm reports that the job has ended. It fails if Slurm
# does not answer, or is the Slurm of another cluster: JUWELS and JURECA share their file systems.
# It also fails if PIN is another user's and Slurm hides the jobs of other users: a hidden job looks
# like one that has ended.
job_is_over() {
  local -r id=${1%% *} cluster=${1#* } hidden=$'PrivateData *=[^\n]*jobs'
  local states settings=''
  if [[ $1 == *' '* || ! -O $2 ]]; then
    settings=$(timeout 20 scontrol show config 2>/dev/null) || return 1
  fi
  if [[ ! -O $2 && $settings =~ $hidden ]]; then return 1; fi
  if [[ $1 == *' '* ]]; then
    [[ $settings =~ ClusterName\ *=\ ([^[:space:]]+) && ${BASH_REMATCH[1]} == "$cluster" ]] ||
      return 1
  fi
  if states=$(timeout 20 squeue --noheader --jobs="$id" --format=%T 2>&1); then
    [[ -z $states ]]
  else
    [[ $states == *'Invalid job id'* ]]
  fi
}
