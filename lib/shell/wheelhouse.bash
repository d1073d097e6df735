# shellcheck shell=bash disable=SC2154  # lib/wheelhouse.py assigns them
# Python packages on their way to a machine without network: a folder of wheels, with a list of what
# is to be installed and the checksum of every file.

# download_packages [OPTION]...: fetch all wheels for the target; OPTIONs are pip's.
# Uses: start_image, which defines inside COMMAND... for the target's image, if it runs here.
download_packages() {
  check_requirements
  check_repositories
  choose_pins
  unfinished=$downloads/${lock##*/}
  unfinished=${unfinished%.lock}.partial
  trap 'rm -rf -- "$unfinished"; release_locks' EXIT
  rm -rf -- "$unfinished"
  make_folders "$unfinished/target" "$unfinished/built"
  step 1/4 'Find out what the target has'
  runs_here=no
  if image_starts; then
    start_image
    runs_here=yes
  fi
  describe_target "$unfinished/target"
  note "the target has Python $(<"$unfinished/target/python") on $arch"
  step 2/4 'Choose the versions'
  make_fetcher
  choose_download
  step 3/4 'Fetch the wheels'
  fetch_packages fetch "$repositories" ${sources[@]+"${sources[@]}"} -- "$@" ||
    fail_writing "$downloads" "the packages cannot be fetched into $downloads" \
      'see the lines above; the same command goes on where it stopped'
  step 4/4 'Check that all is there'
  if [[ -s $unfinished/missing.txt ]]; then build_wheels "$@"; fi
  list_wheels
  rm -rf -- "$unfinished"
}

# image_starts: whether the target's programs run here.
image_starts() {
  host_arch
  [[ $REPLY == "$arch" ]] && (start_image && inside python3 --version) >/dev/null 2>&1
}

# describe_target FOLDER: write down the target's Python and the packages that its image has.
describe_target() {
  if [[ -n $pins ]]; then
    describe_by_hand "$1" "$(header_value python "$pins")" "$(header_value glibc "$pins")"
  elif [[ $runs_here == yes && ($base != host || -z $configured_python) ]]; then
    describe_inside "$1"
  elif [[ -n $archive && -e $archive ]]; then
    note "reading $archive"
    python3 "$LIBRARY/inside/read_archive.py" "$1" "$archive" ||
      fail "the image's archive $archive cannot be read" \
        "fetch it again: python build_container.py download --force --machine $machine"
  elif [[ -n $configured_python ]]; then
    if [[ $base != host ]]; then
      note "what $image_address has is not known here: everything is fetched, also what it has"
    fi
    describe_by_hand "$1" "$configured_python" ''
  else
    fail "nothing here tells which Python $machine has" \
      "say it in configuration.toml, packages.python = \"3.12\"$(if [[ -n $archive ]]; then
        printf '; or first: python build_container.py download --machine %s' "$machine"
      fi)"
  fi
}

# describe_by_hand FOLDER PYTHON GLIBC: without the packages that an image has.
describe_by_hand() {
  printf '%s' "$2" >"$1/python"
  printf '%s' "$3" >"$1/glibc"
  forget_packages "$1"
}

# make_fetcher: a venv with the pip and the uv that fetch, once on this machine.
make_fetcher() {
  if [[ -x $fetcher/bin/uv ]] && "$fetcher/bin/python" -c ''; then return; fi
  make_folders "${fetcher%/*}"
  rm -rf -- "$fetcher" "$fetcher.partial"
  if ! python3 -m venv "$fetcher.partial" >&2 ||
    ! "$fetcher.partial/bin/python" -m pip --quiet --disable-pip-version-check install --upgrade \
      'pip>=24' -r "$LIBRARY/inside/uv.txt" >&2; then
    rm -rf -- "$fetcher.partial"
    fail_writing "${fetcher%/*}" 'pip and uv cannot be had, which fetch the packages' \
      'see the lines above; is there a network, and a python3 with venv?'
  fi
  mv -T -- "$fetcher.partial" "$fetcher"
}

# choose_download: write what is to be fetched, and what stands above the list of it.
choose_download() {
  if [[ -n $pins ]]; then
    note "the versions are those of $pins"
    sed '/^#/d' "$pins" >"$unfinished/pins.txt"
  else
    pin_packages "$unfinished" "$fetcher/bin/uv" "$fetcher/bin/python"
  fi
  write_header "$(<"$unfinished/target/python")" "$(<"$unfinished/target/glibc")" \
    >"$unfinished/header"
}

# fetch_packages MODE WORD...: one step of the download.
fetch_packages() {
  local name=${lock##*/}
  name=${name%.lock}
  "$fetcher/bin/python" "$LIBRARY/inside/fetch_packages.py" "$1" "$downloads" "$name" "$arch" \
    "$unfinished" "${@:2}"
}

# build_wheels [OPTION]...: make wheels of what comes only as source; in the image, if it runs here.
build_wheels() {
  local -a python=("$fetcher/bin/python")
  local where='this machine'
  if [[ $runs_here == yes ]]; then
    python=(inside python3)
    where="$base"
  fi
  note "building from source, with the Python of $where: $(sed -n 's/ \\$//p' "$unfinished/missing.txt" |
    tr '\n' ' ')"
  "${python[@]}" -m pip --quiet --disable-pip-version-check wheel --no-deps --require-hashes \
    --wheel-dir "$unfinished/built" "$@" -r "$unfinished/missing.txt" >&2 ||
    note 'not all of it could be built: see the lines above'
}

# list_wheels: print the table; stop where something is missing.
list_wheels() {
  local -i failed=0
  fetch_packages finish "$runs_here" >"$unfinished/table" || failed=$?
  case $failed in
    0) cat -- "$unfinished/table" ;;
    3) fail "no wheel for Python $(<"$unfinished/target/python") on $arch: $(<"$unfinished/table")" \
      'ask for versions that have one, or put wheels of your own where pip finds them: -- --find-links FOLDER' ;;
    *) fail_writing "$downloads" "the lists of $downloads cannot be written" 'see the lines above' ;;
  esac
}

# check_download: stop where nothing was downloaded, or for something else.
check_download() {
  local -r list=$wheelhouse/${lock##*/}
  local -r again="where there is a network: python set_up.py download --machine $machine; then copy $wheelhouse here"
  [[ -e $list ]] || fail "the packages have not been downloaded: there is no $list" "$again"
  if ! list_fits "$list" image "$image_address" ||
    ! list_fits "$list" requirements "$(requirements_sum)"; then
    fail "what $wheelhouse holds was downloaded for other requirements or another image" "$again"
  fi
  list_fits "$list" repositories "$(sources_sum)" ||
    note "the repositories have changed since; if they need other packages now, $again"
}

# verify_wheelhouse: stop at a file that is not what was downloaded.
verify_wheelhouse() {
  local -r list=${pins%.lock}.sha256
  local bad
  [[ -e $list ]] || fail "there is no $list" "copy it too, it lies beside ${pins##*/}"
  note "checking $wheelhouse"
  # a file per call: all cores work, the largest file sets the time
  # shellcheck disable=SC2016  # expanded by sh
  bad=$(cd -- "$wheelhouse" && LC_ALL=C xargs -d '\n' -P "$(nproc)" -n 1 \
    sh -c 'printf "%s\n" "$1" | sha256sum --check --quiet --status || printf "%s\n" "${1#*  }"' check \
    <"$list" 2>/dev/null) || fail "cannot read $list" 'copy it again'
  if [[ -z $bad ]]; then return; fi
  bad=${bad%%$'\n'*}
  if [[ -e $wheelhouse/$bad ]]; then
    fail "$wheelhouse/$bad is cut short or damaged: its checksum is not the one that was recorded" \
      'copy it again'
  fi
  fail "$wheelhouse/$bad is missing" "copy it too; or, where there is a network: python set_up.py download --machine $machine"
}

# take_uv FILE: unpack the uv of the wheelhouse.
take_uv() {
  local wheel
  make_folders "${1%/*}"
  rm -rf -- "$1.partial"
  for wheel in "$wheelhouse"/uv-*.whl; do
    if grep -qF -- "  ${wheel##*/}" "${pins%.lock}.sha256" &&
      inside python3 -m zipfile -e "$wheel" "$1.partial"; then
      chmod +x "$1.partial"/uv-*.data/scripts/uv
      mv -- "$1.partial"/uv-*.data/scripts/uv "$1"
    fi
  done
  rm -rf -- "$1.partial"
}
