# shellcheck shell=bash disable=SC2154  # the emitted script's: see below
# Packing a bundle. The emitted script sets root (the repository), left_out (what of it is not packed),
# offline (the folder that the download modes fill), bundle, work (a folder for what is made for
# bundles), history (1, or empty) and allowed (names that only look like secrets).

# what is not there yet, and what makes it
declare -ga missing_parts=()

declare -ga missing_commands=()

# name in the bundle -> the SHA-256 of what lies there
declare -gA known_sums=()

# names that belong into the bundle
declare -gA wanted_names=()

# the names below offline that belong into it
declare -ga offline_names=()

# need_archive BASE COMMAND: the image's archive, which COMMAND makes; the newer one, as
# build_container.py offline takes it.
need_archive() {
  local archive=$1.tar
  if [[ $1.sif -nt $archive ]]; then archive=$1.sif; fi
  if [[ -f $archive && -f $archive.json ]]; then
    offline_names+=("${archive#"$offline/"}" "${archive#"$offline/"}.json")
  else
    missing_parts+=("image archive $1.tar or .sif; without a container runtime on the target: container.runtime = \"host\"")
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

# need_packages_of_image LOCK IMAGE COMMAND: packages that were chosen without the image cannot be installed
# with it.
need_packages_of_image() {
  if [[ -f $offline/$1 ]] && ! lockfile_matches "$offline/$1" image "$2"; then
    missing_parts+=("packages for the image $2; the downloaded ones are for $(lockfile_value image "$offline/$1")")
    if [[ ${missing_commands[*]-} != *"$3" ]]; then missing_commands+=("$3"); fi
  fi
}

# stop_where_missing: tell all that is missing at once.
stop_where_missing() {
  local part commands
  if ((${#missing_parts[@]} == 0)); then return; fi
  for part in "${missing_parts[@]}"; do note "missing: $part"; done
  printf -v commands '%s; ' "${missing_commands[@]}"
  fail "${#missing_parts[@]} parts of the bundle have not been downloaded" "run: ${commands%; }"
}

# check_bundle_folder: make it, or stop where it is no folder of a bundle's.
check_bundle_folder() {
  local part
  for part in containers pip repos assets; do
    [[ $bundle/ != "$offline/$part/"* ]] || fail "the bundle would contain itself: $bundle" 'name a directory outside of the scratch directory'
  done
  [[ ! -e $bundle || -d $bundle ]] || fail "not a directory: $bundle" 'name a new directory'
  for part in .partial SHA256SUMS; do
    [[ ! -L $bundle/$part ]] || fail "$bundle/$part is a symbolic link" 'remove the link, or name a new directory'
  done
  if [[ -d $bundle && ! -e $bundle/SHA256SUMS && ! -e $bundle/.partial ]]; then
    [[ -z $(ls -A -- "$bundle") ]] || fail "the directory contains files that are not part of a bundle: $bundle" 'name a new directory'
  fi
  mkdir -p -- "$bundle" || fail_writing "$bundle" "cannot create the directory $bundle" 'name a directory that you can write to'
}

# pack_bundle REQUIREMENT...: write what is not there yet, remove what no longer belongs to it; the
# REQUIREMENTs are the scripts' own packages.
pack_bundle() {
  local -r pending=$bundle/.partial
  local -i bytes=0 changed=0
  local name
  mkdir -p -- "$pending/compare" || fail_writing "$bundle" "cannot write to $bundle" 'the line above has the reason'
  if [[ -e $bundle/SHA256SUMS ]]; then at_exit "$pending"; else keep_progress; fi
  step 1/3 'Collecting the files of the bundle'
  read_known_sums
  make_parts "$@"
  list_repository
  plan_part repository "$root" repository/
  list_offline
  plan_part offline "$offline" offline/
  list_own_parts
  plan_part own "$work/parts" ''
  check_nothing_else
  check_case
  for name in "${!known_sums[@]}"; do
    if [[ -z ${wanted_names[$name]:-} ]]; then changed+=1; fi
  done
  if ((changed == 0)) && read_manifest "$bundle/SHA256SUMS"; then
    rm -rf -- "$pending"
    note "up to date: $bundle"
    return
  fi
  step 2/3 "Writing $changed of ${#wanted_names[@]} files"
  keep_progress
  rm -f -- "$bundle/SHA256SUMS" # from now on it is not complete
  remove_gone
  copy_part repository "$root" repository/
  copy_part offline "$offline" offline/
  copy_part own "$work/parts" ''
  step 3/3 'Writing the checksums'
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
  done >"$1.partial" || fail_writing "$bundle" "cannot write to $bundle" 'the line above has the reason'
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
    fail "cannot read some files in $1" "$(printf 'run: chmod -R u+r %q' "$1")"
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
      fail "not part of the bundle: $bundle/$name" 'delete or move that file; or name a new directory'
  done
}

# check_case: stop where two names differ only in case, and the file system of the bundle cannot store both.
check_case() {
  local name
  local -A seen=()
  if [[ ! -e $bundle/.PARTIAL ]]; then return; fi
  for name in "${!wanted_names[@]}"; do
    while :; do # and its directories
      [[ ${seen[${name,,}]:-$name} == "$name" ]] ||
        fail "$bundle is on a case-insensitive file system, which cannot store both $name and ${seen[${name,,}]}" \
          'rename one of them; or pack to another file system'
      seen[${name,,}]=$name
      if [[ $name != */* ]]; then break; fi
      name=${name%/*}
    done
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
    fail_writing "$bundle" "cannot write $bundle/SHA256SUMS" 'the line above has the reason'
  mv -f -T -- "$pending/SHA256SUMS" "$bundle/SHA256SUMS"
}
