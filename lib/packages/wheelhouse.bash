# shellcheck shell=bash
# The wheelhouse: Python packages for a machine without network, a directory of wheels with a lock
# file and a record, written last: the checksum of every file, the lock file too.
# wheelhouse_download sets, with names that begin with wheelhouse_, for the functions of this file:
#
#   downloads, unfinished   the directory, and that of files that are being made
#   fetcher                 venv with pip, build and uv, for downloads
#   archive                 image archive of the target; "" for none
#   python                  packages.python; "" if it is not set
#   host                    the Python of this machine that runs Longship
#   runs_here               yes if the target's programs run on this machine, else no

# shellcheck source=lib/packages/lock_packages.bash
source "${BASH_SOURCE[0]%/*}/lock_packages.bash"

# wheelhouse_verify LOCKFILE: fail if it, or a wheel, is missing or does not match its checksum.
wheelhouse_verify() {
  local -r list=${1%.lock}.sha256
  [[ -e $list ]] || fail "$list not found" "copy it too: it is in the same directory as ${1##*/}"
  note "checking $requirements_wheelhouse"
  checksums_verify "$list" "$requirements_wheelhouse" "copy it again; or, $lockfile_renew"
}

# wheelhouse_download DIR FETCHER HOST_PYTHON ARCHIVE PYTHON [OPTION]...: download all wheels for
# the target; OPTIONs are pip's. Uses: start_image, which defines inside COMMAND... for the target's
# image, if it runs here.
wheelhouse_download() {
  wheelhouse_downloads=$1 wheelhouse_fetcher=$2 wheelhouse_host=$3 wheelhouse_archive=$4 \
    wheelhouse_python=$5 wheelhouse_runs_here=no
  shift 5
  requirements_check
  lockfile_choose
  wheelhouse_unfinished=$wheelhouse_downloads/${lockfile_group##*/}
  wheelhouse_unfinished=${wheelhouse_unfinished%.lock}.partial
  at_exit wheelhouse_discard
  rm -rf -- "$wheelhouse_unfinished"
  directory_make "$wheelhouse_unfinished/target" "$wheelhouse_unfinished/built"
  step 1/4 'Describing the target'
  host_arch
  if [[ $REPLY == "$arch" ]] && (start_image && inside python3 --version) >/dev/null 2>&1; then
    start_image
    wheelhouse_runs_here=yes
  fi
  wheelhouse_describe "$wheelhouse_unfinished/target"
  note "the target has Python $(<"$wheelhouse_unfinished/target/python") on $arch"
  step 2/4 'Resolving the versions'
  wheelhouse_make_fetcher
  wheelhouse_resolve "$@"
  step 3/4 'Downloading the wheels'
  wheelhouse_fetch "$@"
  step 4/4 'Checking the wheels'
  if [[ -s $wheelhouse_unfinished/missing.txt ]]; then wheelhouse_build "$@"; fi
  wheelhouse_list
  wheelhouse_discard
}

# wheelhouse_discard: remove the directory of a download, while the lock is held.
wheelhouse_discard() {
  if [[ -n $wheelhouse_unfinished ]]; then rm -rf -- "$wheelhouse_unfinished"; fi
  wheelhouse_unfinished=
}

# wheelhouse_describe DIR: write the target's Python version and the packages of its image.
wheelhouse_describe() {
  local -ar describe=("$wheelhouse_host" "$longship_library/packages/inside/__main__.py" \
    describe_image.write_description "$1")
  if [[ -n $lockfile ]]; then
    "${describe[@]}" "$(lockfile_value python "$lockfile")" "$(lockfile_value glibc "$lockfile")"
  elif [[ $wheelhouse_runs_here == yes && ($base != host || -z $wheelhouse_python) ]]; then
    target_describe "$1"
  elif wheelhouse_read_archive "$1"; then
    return
  elif [[ -n $wheelhouse_python ]]; then
    "${describe[@]}" "$wheelhouse_python" ''
    if [[ $base == host ]]; then return; fi
    note "the packages in $lockfile_image are unknown: fetching all packages, even those in the image"
    if [[ $gpu == cuda || $gpu == rocm ]]; then
      note "excluding PyTorch: the image is expected to contain the build for $gpu"
      printf 'torch\n' >"$1/excluded.txt"
    fi
  else
    fail "the Python version of $machine is unknown" \
      "set packages.python = \"3.12\" in configuration.toml${wheelhouse_archive:+; or first run: python3 build_container.py download --machine $machine}"
  fi
}

# wheelhouse_read_archive DIR: describe the target by its image archive; false if it is missing.
wheelhouse_read_archive() {
  [[ -n $wheelhouse_archive && -e $wheelhouse_archive ]] || return 1
  note "reading $wheelhouse_archive"
  "$wheelhouse_host" "$longship_library/packages/inside/__main__.py" describe_image.describe_archive "$1" \
    "$wheelhouse_archive" ||
    fail "cannot read the image archive $wheelhouse_archive" \
      "see the line above; run: python3 build_container.py download --force --machine $machine"
}

# wheelhouse_make_fetcher: create a venv with pip, build and the pinned uv for downloads, once on
# this machine.
wheelhouse_make_fetcher() {
  if uv_is_pinned "$wheelhouse_fetcher/bin/uv" &&
    "$wheelhouse_fetcher/bin/python" -I -c 'import build'; then
    return
  fi
  directory_make "${wheelhouse_fetcher%/*}"
  rm -rf -- "$wheelhouse_fetcher" "$wheelhouse_fetcher.partial"
  if ! "$wheelhouse_host" -m venv "$wheelhouse_fetcher.partial" >&2 ||
    ! "$wheelhouse_fetcher.partial/bin/python" -I -m pip --quiet --disable-pip-version-check install --upgrade \
      'pip>=24' 'build>=1' -r "$longship_library/packages/inside/uv.txt" >&2; then
    rm -rf -- "$wheelhouse_fetcher.partial"
    fail_writing "${wheelhouse_fetcher%/*}" 'cannot install pip, build and uv, which download the packages' \
      "check the network, and that Python has venv; pip's output above has the details"
  fi
  mv -T -- "$wheelhouse_fetcher.partial" "$wheelhouse_fetcher"
}

# wheelhouse_resolve [OPTION]...: write the list of packages to download, and its header.
wheelhouse_resolve() {
  local variable
  while IFS= read -r -d '' variable; do # for uv and for builds, which do not take pip's options
    export "${variable?}"
  done < <("$wheelhouse_fetcher/bin/python" "$longship_library/packages/inside/__main__.py" \
    install_packages.print_variables "$@")
  if [[ -n $lockfile ]]; then
    note "using the locked versions of $lockfile"
    requirements_check_variables
    sed '/^#/d' "$lockfile" >"$wheelhouse_unfinished/pins.txt"
  else
    packages_resolve "$wheelhouse_unfinished" "$wheelhouse_fetcher/bin/uv" "$wheelhouse_fetcher/bin/python"
  fi
  {
    lockfile_header "$wheelhouse_unfinished"
    if [[ -n $lockfile ]]; then printf '# lock: %s\n' "$(sha256sum <"$lockfile")"; fi
  } >"$wheelhouse_unfinished/header"
}

# wheelhouse_fetch [OPTION]...: download all existing wheels; missing.txt then lists the other
# packages.
wheelhouse_fetch() {
  local full=
  local -i failed=0
  wheelhouse_run fetch "$repositories_directory" \
    ${requirements_sources[@]+"${requirements_sources[@]}"} -- "$@" || failed=$?
  if ((failed == 4)); then full=': No space left on device'; fi # pip has removed its files by now
  ((failed == 0)) ||
    fail_writing "$wheelhouse_downloads" "cannot download the packages into $wheelhouse_downloads$full" \
      "check the network; pip's output above has the details; run the command again to resume"
}

# wheelhouse_run FUNCTION ARGUMENT...: call a function of inside/target_wheels.py.
wheelhouse_run() {
  local name=${lockfile_group##*/}
  "$wheelhouse_fetcher/bin/python" "$longship_library/packages/inside/__main__.py" "target_wheels.$1" \
    "$wheelhouse_downloads" "${name%.lock}" "$arch" \
    "$wheelhouse_unfinished" "${@:2}"
}

# wheelhouse_build [OPTION]...: build wheels of packages that have only a source; in the image, if
# it runs here.
wheelhouse_build() {
  local -a python=("$wheelhouse_fetcher/bin/python")
  local where='this machine' pip
  # an image can lack it
  pip=$("$wheelhouse_fetcher/bin/python" -I -c 'import pip; print(pip.__path__[0])')
  if [[ $wheelhouse_runs_here == yes ]]; then python=(inside python3) where=$base; fi
  note "building from source, with the Python of $where: $(sed -n 's/^\([^ -][^ ]*\).*/\1/p' \
    "$wheelhouse_unfinished/missing.txt" | paste -s -d ' ')"
  "${python[@]}" "$pip" --quiet --disable-pip-version-check wheel --no-deps --require-hashes \
    --wheel-dir "$wheelhouse_unfinished/built" "$@" -r "$wheelhouse_unfinished/missing.txt" >&2 ||
    note "some packages could not be built; pip's output above has the reason"
}

# wheelhouse_list: print what was downloaded; fail if a wheel is missing.
wheelhouse_list() {
  local -i failed=0
  wheelhouse_run finish "$wheelhouse_runs_here" >"$wheelhouse_unfinished/told" || failed=$?
  case $failed in
    0) cat -- "$wheelhouse_unfinished/told" ;;
    3)
      fail "no wheel for Python $(<"$wheelhouse_unfinished/target/python") on $arch: \
$(<"$wheelhouse_unfinished/told")" \
        'require versions that have one, or add a directory with your own wheels: -- --find-links DIR'
      ;;
    *) fail_writing "$wheelhouse_downloads" "cannot write the lists of $wheelhouse_downloads" \
      "check the directory's permissions" ;;
  esac
}
