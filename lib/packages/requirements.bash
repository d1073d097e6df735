# shellcheck shell=bash disable=SC2154  # lib/packages/install.py assigns them
# What to install: whether all files exist, and whether a lock file matches it.

# check_requirements: fail if a file is missing.
check_requirements() {
  local word before=
  for word in ${requirements[@]+"${requirements[@]}"}; do
    if [[ $before == -r && ! -r $word && $word != "$repositories_folder"/* ]]; then
      fail "requirements file not found: $word" \
        'create it, or set packages.requirements in configuration.toml ("" for none)'
    fi
    before=$word
  done
}

# check_repositories: fail if a repository or its install script is missing.
check_repositories() {
  local name word
  local -i at
  for name in ${repository_names[@]+"${repository_names[@]}"}; do
    [[ -d $repositories_folder/$name ]] ||
      fail "repository not found: $repositories_folder/$name" \
        "run: python3 set_up.py $(if [[ -n ${wheelhouse:-} ]]; then echo offline; else echo install; fi)"
  done
  for word in ${sources[@]+"${sources[@]}"}; do
    if [[ $word == -e ]]; then continue; fi
    name=$(source_name "$word")
    [[ -f $repositories_folder/$name/pyproject.toml || -f $repositories_folder/$name/setup.py ]] ||
      fail "cannot install repository $name: it has neither pyproject.toml nor setup.py" \
        'set install = "requirements" or "none" in its table of configuration.toml'
  done
  for word in ${requirements[@]+"${requirements[@]}"}; do
    [[ $word != "$repositories_folder"/* || -r $word ]] ||
      fail "requirements file not found: $word" \
        "set requirements in the repository's table of configuration.toml to a file of the repository"
  done
  for ((at = 1; at < ${#scripts[@]}; at += 2)); do
    [[ -r ${scripts[at]} ]] ||
      fail "script of repository ${scripts[at - 1]} not found: ${scripts[at]}" \
        'create it, or correct script in configuration.toml'
  done
}

# explain_index TEXT: fail if the output of uv or pip says that the package index is not reachable.
explain_index() {
  local host=''
  if [[ $1 =~ fetch:\ \`?https?://([^/\`]+) || $1 =~ host=\'([^\']+) ]]; then host=" ${BASH_REMATCH[1]}"; fi
  case ${1,,} in
    *'error sending request'* | *newconnectionerror* | *connecttimeout* | *proxyerror* | *'timed out'* | \
      *'connection refused'* | *'connection reset'* | *'network is unreachable'* | *'name resolution'*)
      fail "cannot reach the package index$host" \
        "check the network and the proxy: python3 doctor.py; without network: $offline_mode"
      ;;
  esac
}

# explain_package TEXT: fail if the output of uv or pip says that the index does not have a package.
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

# venv_inputs: print one checksum of everything that decides what is installed.
venv_inputs() {
  local word
  local -a words=("$installer" "$torch" ${requirements[@]+"${requirements[@]}"})
  if [[ -n $pins ]]; then words+=("$pins"); fi
  if ((${#sources[@]})); then words+=("$(sources_sum)" "$(plain_sources_sum)"); fi
  if ((${#scripts[@]})); then words+=("${scripts[@]}"); fi
  {
    # images are too large to read: a version's name identifies it, a site's own image has a date
    printf '%s\n' "$base" "$overlay" "$(if [[ $base == /* ]]; then stat -c '%s %Y' -- "$base" 2>/dev/null; fi)"
    for word in "${words[@]}"; do
      if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
    done
  } | sha256sum | cut -d ' ' -f 1
}

# requirements_sum: print one checksum of the requirements. It contains no path: the same on all machines.
requirements_sum() {
  local word
  for word in ${requirements[@]+"${requirements[@]}"} "$torch"; do
    if [[ -f $word ]]; then print_requirements "$word" | sha256sum; else printf '%s\n' "$word"; fi
  done | sha256sum | cut -d ' ' -f 1
}

# print_requirements FILE [DEPTH]: print its lines, and those of the files that it includes.
print_requirements() {
  local line
  local -r include='^[[:space:]]*(-r|-c|--requirement|--constraint)[[:space:]=]*([^[:space:]#]+)'
  cat -- "$1"
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ ! $line =~ $include ]]; then continue; fi
    line=${BASH_REMATCH[2]}
    if [[ $line != /* ]]; then line=${1%/*}/$line; fi
    if [[ -f $line ]] && ((${2:-0} < 9)); then print_requirements "$line" "$((${2:-0} + 1))"; fi # files can include each other
  done <"$1"
}

# sources_sum: print one checksum of the packages that the repositories need, and how they are installed. Their
# code is not included: an editable installation sees every change.
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

# plain_sources_sum: print one checksum of the code of the repositories that are copied into the venv.
plain_sources_sum() {
  local word before=
  for word in "${sources[@]}"; do
    if [[ $word != -e && $before != -e ]]; then
      repository_state "$repositories_folder/$(source_name "$word")"
    fi
    before=$word
  done | sha256sum | cut -d ' ' -f 1
}

# repository_state DIR: print its commit and its changes, without files of a build.
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

# choose_lock: set pins to the group's lock file, if it exists for this image.
choose_lock() {
  pins=
  renew='to renew it, run: python3 set_up.py update; or delete it to install without a lock file'
  if [[ ! -e $lock ]]; then return; fi
  if [[ $(header_value image "$lock") != "$image_address" ]]; then
    note "ignoring $lock: it is for the image $(header_value image "$lock")"
  elif ! list_fits "$lock" requirements "$(requirements_sum)" ||
    ! list_fits "$lock" repositories "$(sources_sum)"; then
    fail "the lock file $lock does not match the requirements or repositories, which have changed" "$renew"
  else
    pins=$lock
  fi
}

# header_value KEY FILE: print a value of a lock file's header, such as `# python: 3.12`.
header_value() {
  sed -n "s/^# $1: //p; /^[^#]/q" "$2"
}

# list_fits FILE KEY SUM: whether a lock file has this value.
list_fits() {
  [[ $(header_value "$2" "$1") == "$3" ]]
}

# write_header PYTHON GLIBC: print a lock file's header: its target and its inputs.
write_header() {
  printf '# %s: %s\n' python "$1" glibc "$2" platform "linux $arch" image "$image_address" \
    requirements "$(requirements_sum)" repositories "$(sources_sum)"
}

# check_pinned_torch VERSION: fail if both the image and the lock file have a PyTorch, or neither.
check_pinned_torch() {
  if [[ -z $torch || $base == host ]]; then return; fi
  if grep -q '^torch==' "$pins"; then
    [[ -z $1 ]] || fail "$pins contains a second PyTorch: the image $base has PyTorch $1" "$renew"
  elif [[ -z $1 ]]; then
    fail "neither the image $base nor $pins contains PyTorch" "$renew"
  fi
}

# check_pinned_python: fail if the lock file is for another Python.
check_pinned_python() {
  local python
  python=$(inside python3 -c 'import sys; print("{}.{}".format(*sys.version_info))') ||
    fail "python3 not found in the image $base" 'set container.image to an image that has python3'
  if [[ -n ${wheelhouse:-} && $base == host ]]; then # the connected machine would take its own again
    renew=${renew/run: /set packages.python = \"$python\" in configuration.toml, then run: }
  fi
  [[ $python == "$(header_value python "$pins")" ]] ||
    fail "$pins is for Python $(header_value python "$pins"), but $base has $python" "$renew"
}
