# shellcheck shell=bash disable=SC2154  # lib/packages/wheelhouse.py assigns them
# The wheelhouse: Python packages for a machine without network, a directory of wheels with a lock file and the
# checksum of every file.

# download_packages [OPTION]...: download all wheels for the target; OPTIONs are pip's.
# Uses: start_image, which defines inside COMMAND... for the target's image, if it runs here.
download_packages() {
  check_requirements
  check_repositories
  choose_lock
  unfinished=$downloads/${lock##*/}
  unfinished=${unfinished%.lock}.partial
  trap 'rm -rf -- "$unfinished"; release_locks' EXIT
  rm -rf -- "$unfinished"
  make_folders "$unfinished/target" "$unfinished/built"
  find_host_python
  step 1/4 'Describing the target'
  runs_here=no
  if image_starts; then
    start_image
    runs_here=yes
  fi
  describe_target "$unfinished/target"
  note "the target has Python $(<"$unfinished/target/python") on $arch"
  step 2/4 'Resolving the versions'
  make_fetcher
  choose_versions "$@"
  step 3/4 'Downloading the wheels'
  fetch_wheels "$@"
  step 4/4 'Checking the wheels'
  if [[ -s $unfinished/missing.txt ]]; then build_wheels "$@"; fi
  list_wheels
  rm -rf -- "$unfinished"
}

# find_host_python: set host_python to the first Python that is new enough; the python3 of login nodes is old.
find_host_python() {
  for host_python in "${LIBRARY%/*}/.venv/bin/python" python3 python3.{14,13,12,11,10,9}; do
    if "$host_python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      return
    fi
  done
  fail 'Python 3.9 or newer not found; it downloads the packages' \
    'install it, or add it to PATH; on a cluster, find its module: module avail python'
}

# image_starts: whether the target's programs run on this machine.
image_starts() {
  host_arch
  [[ $REPLY == "$arch" ]] && (start_image && inside python3 --version) >/dev/null 2>&1
}

# describe_target DIR: write the target's Python version and the packages of its image.
describe_target() {
  if [[ -n $pins ]]; then
    describe_by_hand "$1" "$(header_value python "$pins")" "$(header_value glibc "$pins")"
  elif [[ $runs_here == yes && ($base != host || -z $configured_python) ]]; then
    describe_inside "$1"
  elif describe_by_archive "$1"; then
    return
  elif [[ -n $configured_python ]]; then
    if [[ $base != host ]]; then
      note "the packages in $image_address are unknown: fetching all packages, even those in the image"
    fi
    describe_by_hand "$1" "$configured_python" ''
    if [[ $base != host && ($gpu == cuda || $gpu == rocm) ]]; then
      note "excluding PyTorch: the image is expected to contain the build for $gpu"
      printf 'torch\n' >"$1/excluded.txt"
    fi
  else
    fail "the Python version of $machine is unknown" \
      "set packages.python = \"3.12\" in configuration.toml$(if [[ -n $archive ]]; then
        printf '; or first run: python3 build_container.py download --machine %s' "$machine"
      fi)"
  fi
}

# describe_by_archive DIR: describe the target by its image archive; false if it is missing, or if it cannot be
# read and packages.python is set.
describe_by_archive() {
  local reason
  [[ -n $archive && -e $archive ]] || return 1
  note "reading $archive"
  if reason=$("$host_python" "$LIBRARY/packages/inside/read_archive.py" "$1" "$archive" 2>&1); then return; fi
  [[ -n $configured_python ]] ||
    fail "cannot read the image archive $archive: ${reason##*$'\n'}" \
      "run: python3 build_container.py download --force --machine $machine; or set packages.python = \"3.12\""
  note "cannot read $archive: ${reason##*$'\n'}; using packages.python = \"$configured_python\""
  return 1
}

# describe_by_hand DIR PYTHON GLIBC: describe a target without the packages of its image.
describe_by_hand() {
  printf '%s' "$2" >"$1/python"
  printf '%s' "$3" >"$1/glibc"
  forget_packages "$1"
}

# make_fetcher: create a venv with pip and uv for downloads, once on this machine.
make_fetcher() {
  if [[ -x $fetcher/bin/uv ]] && "$fetcher/bin/python" -c ''; then return; fi
  make_folders "${fetcher%/*}"
  rm -rf -- "$fetcher" "$fetcher.partial"
  if ! "$host_python" -m venv "$fetcher.partial" >&2 ||
    ! "$fetcher.partial/bin/python" -m pip --quiet --disable-pip-version-check install --upgrade \
      'pip>=24' -r "$LIBRARY/packages/inside/uv.txt" >&2; then
    rm -rf -- "$fetcher.partial"
    fail_writing "${fetcher%/*}" 'cannot install pip and uv, which download the packages' \
      "check the network, and that Python has venv; pip's output above has the details"
  fi
  mv -T -- "$fetcher.partial" "$fetcher"
}

# choose_versions [OPTION]...: write the list of packages to download, and its header.
choose_versions() {
  if [[ -n $pins ]]; then
    note "using the locked versions of $pins"
    sed '/^#/d' "$pins" >"$unfinished/pins.txt"
  else
    local -r python=$fetcher/bin/python
    pin_packages "$unfinished" "$fetcher/bin/uv" \
      "$python" "$LIBRARY/packages/inside/pip_options.py" "$@" -- "$python"
  fi
  {
    write_header "$(<"$unfinished/target/python")" "$(<"$unfinished/target/glibc")"
    if [[ -n $pins ]]; then printf '# lock: %s\n' "$(sha256sum <"$pins")"; fi
  } >"$unfinished/header"
}

# fetch_wheels [OPTION]...: download all existing wheels; missing.txt then lists the other packages.
fetch_wheels() {
  local full=
  local -i failed=0
  fetch_packages fetch "$repositories_folder" ${sources[@]+"${sources[@]}"} -- "$@" || failed=$?
  if ((failed == 4)); then full=': No space left on device'; fi # pip has removed its files by now
  ((failed == 0)) ||
    fail_writing "$downloads" "cannot download the packages into $downloads$full" \
      "check the network; pip's output above has the details; run the command again to resume"
}

# fetch_packages MODE ARGUMENT...: run one step of the download.
fetch_packages() {
  local name=${lock##*/}
  name=${name%.lock}
  "$fetcher/bin/python" "$LIBRARY/packages/inside/fetch_packages.py" "$1" "$downloads" "$name" "$arch" \
    "$unfinished" "${@:2}"
}

# build_wheels [OPTION]...: build wheels of packages that have only a source; in the image, if it runs here.
build_wheels() {
  local -a python=("$fetcher/bin/python")
  local where='this machine' pip
  pip=$("$fetcher/bin/python" -c 'import pip; print(pip.__path__[0])') # an image can lack it
  if [[ $runs_here == yes ]]; then
    python=(inside python3)
    where="$base"
  fi
  note "building from source, with the Python of $where: $(sed -n 's/^\([^ -][^ ]*\).*/\1/p' \
    "$unfinished/missing.txt" | paste -s -d ' ')"
  "${python[@]}" "$pip" --quiet --disable-pip-version-check wheel --no-deps --require-hashes \
    --wheel-dir "$unfinished/built" "$@" -r "$unfinished/missing.txt" >&2 ||
    note "some packages could not be built; pip's output above has the reason"
}

# list_wheels: print the table; fail if a wheel is missing.
list_wheels() {
  local -i failed=0
  fetch_packages finish "$runs_here" >"$unfinished/table" || failed=$?
  case $failed in
    0) cat -- "$unfinished/table" ;;
    3) fail "no wheel for Python $(<"$unfinished/target/python") on $arch: $(<"$unfinished/table")" \
      'require versions that have one, or add a directory with your own wheels: -- --find-links DIR' ;;
    *) fail_writing "$downloads" "cannot write the lists of $downloads" "check the directory's permissions" ;;
  esac
}
