# shellcheck shell=bash
# What is installed on top of the image: requirements files and repositories. requirements_begin and
# requirements_add set it before anything else of this directory runs; a file that reads it names
# this one. Its checksums contain no path, so they are the same on all machines.
#
#   requirements  -r FILE...
#
# and, with names that begin with requirements_:
#
#   sources       [-e] ./NAME[EXTRA]..., repositories that are packages; they are in
#                 repositories_directory
#   source_names  NAME..., the same
#   copied        NAME..., those that are not editable
#   repositories  NAME..., the same as sources, and those with a requirements file or an install
#                 script
#   scripts       NAME SCRIPT..., the install scripts
#   above         -r FILE, for the venv above an overlay alone
#   torch         requirements file of PyTorch, for an image that has none; "" if PyTorch is not
#                 needed
#   wheelhouse    directory that is the only source of packages; "" for the package index
#   offline       the command that needs no network, for hints

# shellcheck source=lib/script/target_facts.bash
source "${BASH_SOURCE[0]%/*}/../script/target_facts.bash"

# requirements_begin TORCH WHEELHOUSE OFFLINE_COMMAND [-r FILE]
requirements_begin() {
  # shellcheck disable=SC2034
  requirements_torch=$1 requirements_wheelhouse=$2 requirements_offline=$3
  requirements=("${@:4}")
  requirements_sources=() requirements_source_names=() requirements_copied=() \
    requirements_repositories=() requirements_scripts=() requirements_above=()
}

# requirements_add NAME SCRIPT [WORD...]: a repository; WORDs are the installer's arguments, SCRIPT
# is run afterwards.
requirements_add() {
  requirements_repositories+=("$1")
  if [[ -n $2 ]]; then requirements_scripts+=("$1" "$2"); fi
  case ${3:-} in
    -r) requirements+=("${@:3}") ;;
    ?*) requirements_sources+=("${@:3}") requirements_source_names+=("$1") ;;
  esac
  if [[ ${3:-} == ./* ]]; then requirements_copied+=("$1"); fi
}

# requirements_check: fail if a file, a repository or its install script is missing.
requirements_check() {
  local name word hint
  local -i at
  for name in ${requirements_repositories[@]+"${requirements_repositories[@]}"}; do
    [[ -d $repositories_directory/$name ]] ||
      fail "repository not found: $repositories_directory/$name" \
        "run: python3 set_up.py $(if [[ -n $requirements_wheelhouse ]]; then echo offline; else echo install; fi)"
  done
  for word in ${requirements[@]+"${requirements[@]}"} ${requirements_above[@]+"${requirements_above[@]}"}; do
    hint='create it, or correct requirements and venv_requirements in [packages] of configuration.toml'
    if [[ $word == "$repositories_directory"/* ]]; then
      hint="set requirements in the repository's table of configuration.toml to a file of the repository"
    fi
    if [[ $word == -r ]]; then continue; fi
    [[ -r $word ]] || fail "requirements file not found: $word" "$hint"
    requirements_check_file "$word"
  done
  for name in ${requirements_source_names[@]+"${requirements_source_names[@]}"}; do
    [[ -f $repositories_directory/$name/pyproject.toml || -f $repositories_directory/$name/setup.py ]] ||
      fail "cannot install repository $name: it has neither pyproject.toml nor setup.py" \
        'set install = "requirements" or "none" in its table of configuration.toml'
  done
  for ((at = 1; at < ${#requirements_scripts[@]}; at += 2)); do
    [[ -r ${requirements_scripts[at]} ]] ||
      fail "script of repository ${requirements_scripts[at - 1]} not found: ${requirements_scripts[at]}" \
        'create it, or correct script in configuration.toml'
  done
}

# requirements_check_file FILE: fail if it is in another format than pip and uv read, or names what
# only its author has.
requirements_check_file() {
  local lines line
  local -r page='docs/how-to/from_conda.md' word='^[[:space:]]*(-e|--editable)?[[:space:]=]*'
  case $(LC_ALL=C od -An -N 2 -tx1 -- "$1") in
    ' ff fe' | ' fe ff')
      fail "requirements file is UTF-16, not UTF-8: $1" \
        "run: $(printf 'iconv -f UTF-16 -t UTF-8 -o %q.utf8 %q && mv %q.utf8 %q' "$1" "$1" "$1" "$1")"
      ;;
  esac
  case $1 in
    *.yml | *.yaml) fail "not a requirements file of pip: $1" "for a conda environment: $page" ;;
    *.lock | *.toml) fail "not a requirements file of pip: $1" \
      "export one: uv export --no-hashes -o requirements.txt; or: poetry export -o requirements.txt" ;;
  esac
  lines=$(requirements_print_file "$1")
  while IFS= read -r line; do
    if [[ $line =~ $word\.{1,2}(/|\[|[[:space:]]|$) ]]; then
      fail "requirements file $1 names a directory: ${line#"${line%%[![:space:]]*}"}" \
        "name the project under [[repositories]] in configuration.toml: docs/how-to/repositories.md"
    elif [[ $line =~ ^[[:space:]]*([^[:space:]@#]+)[[:space:]]*@[[:space:]]*file://(/[^[:space:]]*) &&
      ! -e ${BASH_REMATCH[2]} ]]; then
      fail "requirements file $1 names a file of another machine: ${BASH_REMATCH[0]}" \
        "list a conda environment with: pip list --format=freeze; see $page"
    fi
  done <<<"$lines"
}

# requirements_check_variables: fail if a file names a variable that is not set, as in
# https://me:${TOKEN}@host: pip and uv would say that there is no such package.
requirements_check_variables() {
  local word name
  if [[ -n $requirements_wheelhouse ]]; then return; fi
  for word in ${requirements[@]+"${requirements[@]}"} ${requirements_above[@]+"${requirements_above[@]}"}; do
    if [[ $word == -r ]]; then continue; fi
    # shellcheck disable=SC2016  # a pattern
    while IFS= read -r name; do
      [[ -n ${!name-} ]] || fail "the variable $name of $word is not set" "run: export $name=VALUE"
    done < <(requirements_print_file "$word" | sed -E 's/(^|[[:space:]])#.*//' |
      grep -oE '\$\{[A-Z_][A-Z0-9_]*\}' | tr -d '${}')
  done
}

# requirements_print_file FILE [DEPTH]: print its lines, and those of the files that it includes.
requirements_print_file() {
  local line
  local -r include='^[[:space:]]*(-r|-c|--requirement|--constraint)[[:space:]=]*([^[:space:]#]+)'
  cat -- "$1"
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ ! $line =~ $include ]]; then continue; fi
    line=${BASH_REMATCH[2]}
    if [[ $line != /* ]]; then line=${1%/*}/$line; fi
    if [[ ! -f $line ]]; then continue; fi # an address
    ((${2:-0} < 9)) ||
      fail "requirements file includes itself: $line" "remove the line: ${BASH_REMATCH[0]}"
    requirements_print_file "$line" "$((${2:-0} + 1))"
  done <"$1"
}

# requirements_print: print the contents of all files, without the credentials in URLs.
requirements_print() {
  local word
  for word in ${requirements[@]+"${requirements[@]}"}; do
    if [[ -f $word ]]; then requirements_print_file "$word"; elif [[ $word != -r ]]; then printf '%s\n' "$word"; fi
  done | strip_passwords
}

# strip_passwords: copy text, without the credentials in URLs. The name of a variable, as in
# https://me:${TOKEN}@host, is none: pip and uv put its value there.
strip_passwords() {
  sed -E -e 's#://(([^/[:space:]:@]+:)?\$\{[A-Z0-9_]+\}@)#:\x01\1#g' \
    -e 's#(://)[^/[:space:]]+@#\1#g' -e 's#:\x01#://#g'
}

# requirements_sums WORD...: print the checksum of each requirements file, and any other word
# itself.
requirements_sums() {
  local word
  for word in "$@"; do
    if [[ -f $word ]]; then requirements_print_file "$word" | sha256sum; else printf '%s\n' "$word"; fi
  done
}

# requirements_sum: print one checksum of all requirements.
requirements_sum() {
  requirements_sums ${requirements[@]+"${requirements[@]}"} "$requirements_torch" | sha256sum | cut -d ' ' -f 1
}

# sources_sum: print one checksum of the packages that the repositories need, and how they are
# installed. Their code is not included: an editable installation sees every change.
sources_sum() {
  local word name
  for word in ${requirements_sources[@]+"${requirements_sources[@]}"}; do
    printf '%s\n' "$word"
    name=${word#./}
    (cd -- "$repositories_directory/${name%%\[*}" 2>/dev/null && # -e is not a directory
      sha256sum pyproject.toml setup.py setup.cfg requirements*.txt requirements/*.txt 2>/dev/null) || :
  done | sha256sum | cut -d ' ' -f 1
}

# sources_code_sum: print one checksum of the code of the repositories that are copied into the
# venv: the commit and all changes, without files of a build.
sources_code_sum() {
  local name
  for name in ${requirements_copied[@]+"${requirements_copied[@]}"}; do
    (cd -- "$repositories_directory/$name" && git rev-parse HEAD &&
      git diff --no-ext-diff --no-textconv --binary HEAD &&
      git ls-files --others --exclude-standard -z -x build -x '*.egg-info' | xargs -0 -r sha256sum --)
  done | sha256sum | cut -d ' ' -f 1
}
