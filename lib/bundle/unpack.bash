# shellcheck shell=bash disable=SC2154,SC2034  # bundle_names, bundle_sums: bundle.bash's
# Unpacking a bundle, after it was verified. What was unpacked before and is as it was gets replaced;
# what somebody has changed since is kept, and the new one is put beside it. Needs bash and coreutils;
# git and python3 where this says so.

# name -> 1 for "SUM NAME" and "-> TARGET NAME" that an earlier unpacking has put there
declare -gA unpacked_before=()

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
    fail "cannot read some files in $folder, to compare them with the bundle" \
      "run: chmod -R u+r $(printf %q "$folder")"
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
    [[ ! -L $folder/$way ]] || fail "cannot unpack $1: $folder/$way is a symbolic link" 'replace the link by a directory, then run the same command again'
    [[ ! -e $folder/$way || -d $folder/$way ]] || fail "cannot unpack $1: $folder/$way is not a directory" 'move that file, then run the same command again'
    checked_ways[$folder/$way]=1
  done
}

# folders that check_way has seen
declare -gA checked_ways=()

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
  } >"$file.partial" || fail_writing "$folder" "cannot write $file" 'the line above has the reason'
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
        fail_writing "$folder" "cannot create the link $link" 'the line above has the reason'
      mv -f -T -- "$folder/.unpack.partial/link" "$link"
      unpacked=$((unpacked + 1))
    else
      note "kept your modified $link; the bundle's version is a link to $target"
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
  note "kept your modified $folder/$1; the bundle's version is $beside"
  if [[ -e $beside ]]; then return; fi
  cp --preserve=timestamps -- "$bundle/$part/$1" "$folder/.unpack.partial/beside" ||
    fail_writing "$folder" "cannot write $beside" 'the line above has the reason'
  mv -f -T -- "$folder/.unpack.partial/beside" "$beside"
  unpacked=$((unpacked + 1))
}

# unpack_offline BUNDLE OFFLINE STEP: what the offline modes read.
unpack_offline() {
  step "$3" "Unpacking the image, packages, repositories and assets to $2"
  unpack_part "$1" offline "$2" "$2/.unpacked"
  note "$unpacked new files in $2"
}
