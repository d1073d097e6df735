# shellcheck shell=bash
# A bundle: one folder with all that a machine without network needs, and SHA256SUMS, which names
# every file of it. What reads a bundle needs bash and coreutils, nothing else.

# name of each file -> its SHA-256, from read_manifest
declare -gA bundle_sums=()

# name of each symbolic link -> where it leads, from read_links
declare -gA bundle_links=()

# what list_tree has found
declare -ga tree_files=() tree_links=() tree_others=()

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
  [[ -r $1/$2. && -x $1/$2. ]] || fail "cannot read the directory $1/$2" "run: chmod u+rx $(printf %q "$1/$2")"
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
  REPLY="not found: $1"
  [[ -f $1 && ! -L $1 ]] || return 1
  while IFS= read -r line; do
    if [[ $line == '# '* ]]; then break; fi
    name=${line:66}
    if [[ ${line:64:2} != '  ' || ${line:0:64} == *[!0-9a-f]* ]]; then
      printf -v REPLY '%s: not a checksum line: %q' "$1" "$line"
      return 1
    elif ! stays_inside "$name" || [[ -n ${bundle_sums[$name]:-} ]]; then
      printf -v REPLY '%s: invalid name: %q' "$1" "$name"
      return 1
    fi
    bundle_sums[$name]=${line:0:64}
    count+=1
    line=
  done <"$1"
  REPLY="$1 is truncated"
  [[ $line == "# $count files in all" ]]
}

# read_links FILE: set bundle_links from the list of a bundle; false, with REPLY set to the reason, where
# one would lead out, or another name lies behind one.
read_links() {
  local name target folder
  bundle_links=()
  if [[ ! -e $1 ]]; then return 0; fi
  while IFS=$'\t' read -r target name; do
    printf -v REPLY '%s: invalid link: %q' "$1" "$name"
    link_stays_inside "$name" "$target" || return 1
    bundle_links[$name]=$target
  done <"$1"
  if ((${#bundle_links[@]} == 0)); then return 0; fi
  for name in "${!bundle_sums[@]}" "${!bundle_links[@]}"; do
    folder=$name
    while [[ $folder == */* ]]; do
      folder=${folder%/*}
      printf -v REPLY '%s: path through a link: %q' "$1" "$name"
      [[ -z ${bundle_links[$folder]:-} ]] || return 1
    done
  done
}

# list_parts FOLDER: the same of a bundle: of what its packing has put there. What else lies beside it, and
# what Python has compiled in it, is nobody's to judge: nothing of it is unpacked.
list_parts() {
  local LC_ALL=C name
  local -A parts=()
  tree_files=() tree_links=() tree_others=()
  for name in "${!bundle_sums[@]}"; do parts[${name%%/*}]=1; done
  for name in "${!parts[@]}"; do
    if [[ -L $1/$name ]]; then
      tree_links+=("$name")
    elif [[ -d $1/$name ]]; then
      list_folder "$1" "$name/"
    elif [[ -f $1/$name ]]; then
      tree_files+=("$name")
    elif [[ -e $1/$name ]]; then
      tree_others+=("$name")
    fi
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
  list_parts "$bundle"
  bundle_names=()
  for name in "${tree_files[@]}"; do
    if [[ -n ${wanted[$name]:-} ]]; then
      bundle_names+=("$name")
    elif [[ $name != */__pycache__/* ]]; then
      tell_wrong unexpected "$name"
    fi
  done
  if [[ -e $bundle/.partial ]]; then tell_wrong 'left by an interrupted pack' .partial; fi
  for name in "${tree_links[@]}" "${tree_others[@]}"; do
    tell_wrong 'unexpected, not a regular file' "$name"
    unset "wanted[\$name]"
  done
  work=$(mktemp -d) || fail 'cannot create a temporary directory' 'free space in /tmp, or set TMPDIR to another directory'
  at_exit "$work"
  hash_files "$bundle" "$work"
  while IFS= read -r reason; do
    name=${reason:66}
    if [[ ${wanted[$name]} != "${reason:0:64}" ]]; then tell_wrong corrupt "$name"; fi
    unset "wanted[\$name]"
  done < <(cat -- "$work"/sums.* 2>/dev/null)
  for name in "${!wanted[@]}"; do
    if [[ -e $bundle/$name ]]; then tell_wrong unreadable "$name"; else tell_wrong missing "$name"; fi
  done
  rm -rf -- "$work"
  ((wrong == 0)) || fail "$wrong files of the bundle do not match their checksums: $bundle" \
    'delete the corrupt and unexpected files; then copy the bundle again (rsync -a --checksum), or run the same pack again'
  open_links "$bundle"
}

# open_manifest FOLDER: read what belongs to the bundle, or stop.
open_manifest() {
  [[ -d $1 ]] || fail "bundle not found: $1" 'name the directory that bundle.py pack has written'
  read_manifest "$1/SHA256SUMS" || fail "the bundle is incomplete: $REPLY" \
    'copy the bundle again; or, where it was packed, run the same pack again'
}

# open_links FOLDER: read its links, or stop.
open_links() {
  read_links "$1/links" || fail "the bundle is not trustworthy: $REPLY" 'delete it, then pack it again'
}

# tell_wrong WHAT NAME: name a file, and count it.
tell_wrong() {
  printf '%s: %q\n' "$1" "$2" >&2
  wrong+=1
}

