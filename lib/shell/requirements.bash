# shellcheck shell=bash disable=SC2154  # lib/packages.py assigns them
# What is to be installed: whether it is all there, and whether a list of pinned packages fits it.
# An array without elements counts as not set before bash 4.4.

# check_requirements: stop where a file is missing.
check_requirements() {
  local word before=
  for word in ${requirements[@]+"${requirements[@]}"}; do
    if [[ $before == -r && ! -r $word && $word != "$repositories_folder"/* ]]; then
      fail "there is no requirements file $word" \
        'make it, or name another one: packages.requirements in configuration.toml, "" for none'
    fi
    before=$word
  done
}

# check_repositories: stop where one is missing, or what it is installed by.
check_repositories() {
  local name word
  local -i at
  for name in ${repository_names[@]+"${repository_names[@]}"}; do
    [[ -d $repositories_folder/$name ]] ||
      fail "there is no repository $repositories_folder/$name" 'python3 set_up.py install'
  done
  for word in ${sources[@]+"${sources[@]}"}; do
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    [[ -f $repositories_folder/$name/pyproject.toml || -f $repositories_folder/$name/setup.py ]] ||
      fail "repository $name cannot be installed: it has no pyproject.toml and no setup.py" \
        'set in its table of configuration.toml: install = "requirements", or "none"'
  done
  for word in ${requirements[@]+"${requirements[@]}"}; do
    [[ $word != "$repositories_folder"/* || -r $word ]] ||
      fail "there is no requirements file $word" \
        "name the repository's own one: requirements = ... in its table of configuration.toml"
  done
  for ((at = 1; at < ${#scripts[@]}; at += 2)); do
    [[ -r ${scripts[at]} ]] ||
      fail "there is no script ${scripts[at]} for repository ${scripts[at - 1]}" \
        'make it, or correct its name: script = ... in configuration.toml'
  done
}

# explain_index TEXT: stop where uv or pip says that it does not reach the package index.
explain_index() {
  local host=''
  if [[ $1 =~ fetch:\ \`?https?://([^/\`]+) || $1 =~ host=\'([^\']+) ]]; then host=" ${BASH_REMATCH[1]}"; fi
  case ${1,,} in
    *'error sending request'* | *newconnectionerror* | *connecttimeout* | *proxyerror* | *'timed out'* | \
      *'connection refused'* | *'connection reset'* | *'network is unreachable'* | *'name resolution'*)
      fail "cannot reach the package index$host" \
        "check the network and the proxy: python3 doctor.py; without a network: $offline_mode"
      ;;
  esac
}

# explain_package TEXT: stop where uv or pip says that the index does not have a package.
explain_package() {
  local -r said=${1//[[:space:]]/ }
  local word name='' file='the requirements'
  if [[ $said =~ Because\ ([^ ]+)\ was\ not\ found\ in\ the\ (package\ registry|provided) ||
    $said =~ there\ is\ no\ version\ of\ ([^ ]+) || $said =~ distribution\ found\ for\ ([^ ]+) ]]; then
    name=${BASH_REMATCH[1]%%[=<>~!]*}
    for word in ${requirements[@]+"${requirements[@]}"}; do
      if [[ -f $word ]] && grep -q -i -e "^${name//[-_.]/[-_.]}" -- "$word"; then file=$word; fi
    done
    fail "the package index does not have ${BASH_REMATCH[1]}" "correct its name or version in $file"
  fi
}

# source_name ./NAME[EXTRA]: NAME.
source_name() {
  local -r path=${1#./}
  printf '%s' "${path%%\[*}"
}

# venv_inputs: one checksum over everything that decides what is installed.
venv_inputs() {
  local word
  local -a words=("$installer" "$torch" ${requirements[@]+"${requirements[@]}"})
  if [[ -n $pins ]]; then words+=("$pins"); fi
  if ((${#sources[@]})); then words+=("$(sources_sum)" "$(plain_sources_sum)"); fi
  if ((${#scripts[@]})); then words+=("${scripts[@]}"); fi
  {
    # files too large to be read: a version's name says what it holds, a site's own image has a date
    printf '%s\n' "$base" "$overlay" "$(if [[ $base == /* ]]; then stat -c '%s %Y' -- "$base" 2>/dev/null; fi)"
    for word in "${words[@]}"; do
      if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
    done
  } | sha256sum | cut -d ' ' -f 1
}

# requirements_sum: one checksum over what is asked for. No path is in it: the same on all machines.
requirements_sum() {
  local word
  for word in ${requirements[@]+"${requirements[@]}"} "$torch"; do
    if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
  done | sha256sum | cut -d ' ' -f 1
}

# print_requirements FILE [DEPTH]: its lines, and those of the files that it includes.
print_requirements() {
  local line
  local -r include='^[[:space:]]*(-r|-c|--requirement|--constraint)[[:space:]=]*([^[:space:]#]+)'
  cat -- "$1"
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ ! $line =~ $include ]]; then continue; fi
    line=${BASH_REMATCH[2]}
    if [[ $line != /* ]]; then line=${1%/*}/$line; fi
    if [[ -f $line ]] && ((${2:-0} < 9)); then print_requirements "$line" "$((${2:-0} + 1))"; fi # not for ever
  done <"$1"
}

# sources_sum: one checksum over what says which packages the repositories need, and how they are
# installed. Their code is not in it: an editable installation sees every change.
sources_sum() {
  local word name
  for word in ${sources[@]+"${sources[@]}"}; do
    printf '%s\n' "$word"
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    (cd -- "$repositories_folder/$name" &&
      sha256sum pyproject.toml setup.py setup.cfg requirements*.txt requirements/*.txt 2>/dev/null) || :
  done | sha256sum | cut -d ' ' -f 1
}

# plain_sources_sum: one checksum over the code of the repositories that are copied into the venv.
plain_sources_sum() {
  local word before=
  for word in "${sources[@]}"; do
    if [[ $word != -e && $before != -e ]]; then
      repository_state "$repositories_folder/$(source_name "$word")"
    fi
    before=$word
  done | sha256sum | cut -d ' ' -f 1
}

# repository_state FOLDER: its commit and its changes, without what a build leaves in it.
repository_state() {
  if git -C "$1" rev-parse HEAD 2>/dev/null; then
    git -C "$1" diff --binary HEAD
    (cd -- "$1" && git ls-files --others --exclude-standard -z -x build -x '*.egg-info' |
      xargs -0 -r sha256sum --)
  else
    (cd -- "$1" && find . \( -name build -o -name '*.egg-info' -o -name __pycache__ \) -prune -o \
      -type f -print0 | sort -z | xargs -0 -r sha256sum --)
  fi
}

# choose_lock: set pins to the group's own list, if there is one for this image.
choose_lock() {
  pins=
  renew='python3 set_up.py update makes it anew; or remove it, to install without'
  if [[ ! -e $lock ]]; then return; fi
  if [[ $(header_value image "$lock") != "$image_address" ]]; then
    note "$lock is for another image, $(header_value image "$lock"): it is not used"
  elif ! list_fits "$lock" requirements "$(requirements_sum)" ||
    ! list_fits "$lock" repositories "$(sources_sum)"; then
    fail "$lock does not fit: the requirements or the repositories have changed since" "$renew"
  else
    pins=$lock
  fi
}

# header_value KEY FILE: what the first lines of a list say, such as `# python: 3.12`.
header_value() {
  sed -n "s/^# $1: //p; /^[^#]/q" "$2"
}

# list_fits FILE KEY SUM: whether it was made from the same.
list_fits() {
  [[ $(header_value "$2" "$1") == "$3" ]]
}

# write_header PYTHON GLIBC: the first lines of a list, which say what it was made for and from.
write_header() {
  printf '# %s: %s\n' python "$1" glibc "$2" platform "linux $arch" image "$image_address" \
    requirements "$(requirements_sum)" repositories "$(sources_sum)"
}

# check_pinned_torch VERSION: stop where the image has a PyTorch and the list another one, or neither.
check_pinned_torch() {
  if [[ -z $torch || $base == host ]]; then return; fi
  if grep -q '^torch==' "$pins"; then
    [[ -z $1 ]] || fail "$pins has a second PyTorch: $base has its own, $1" "$renew"
  elif [[ -z $1 ]]; then
    fail "neither $base nor $pins has a PyTorch" "$renew"
  fi
}

# check_pinned_python: stop where the packages were chosen for another Python.
check_pinned_python() {
  local python
  python=$(inside python3 -c 'import sys; print("{}.{}".format(*sys.version_info))') ||
    fail "there is no python3 in $base" 'use an image that has one'
  [[ $python == "$(header_value python "$pins")" ]] ||
    fail "$pins is for Python $(header_value python "$pins"), and $base has $python" \
      "$renew"
}
