# shellcheck shell=bash
# The lock file: the versions of all packages with their hashes, one file for each stack and
# architecture, which a group commits. The wheelhouse has one of its own, with the versions that
# were downloaded. Its header has a line `# KEY: VALUE` for each input. lockfile_begin and
# lockfile_choose set, and a file that reads it names this one:
#
#   lockfile        the file that is installed from; "" for the newest versions
#   lockfile_group  the group's file, which need not exist
#   lockfile_image  address of the image, or host
#   lockfile_renew  the hint that renews `lockfile`
#   lockfile_stack  the stack, for hints: the command line can have named it

# shellcheck source=lib/packages/requirements.bash
source "${BASH_SOURCE[0]%/*}/requirements.bash"

# lockfile_begin FILE IMAGE
lockfile_begin() {
  lockfile='' lockfile_group=$1 lockfile_image=$2 lockfile_stack=${1##*/}
  lockfile_stack=${lockfile_stack%_*} # of STACK_ARCH.lock
}

# lockfile_choose: set lockfile and lockfile_renew: the wheelhouse's file, else the group's if it
# exists for this image.
lockfile_choose() {
  if [[ -n $requirements_wheelhouse ]]; then
    lockfile_choose_downloaded
    return
  fi
  lockfile=
  lockfile_renew="to renew it, run: python3 set_up.py update --stack $lockfile_stack; or delete it to install without a lock file"
  if [[ ! -e $lockfile_group ]]; then return; fi
  if ! lockfile_matches "$lockfile_group" image "$lockfile_image"; then
    note "ignoring $lockfile_group: it is for the image $(lockfile_value image "$lockfile_group")"
  elif ! lockfile_matches "$lockfile_group" requirements "$(requirements_sum)" ||
    ! lockfile_matches "$lockfile_group" repositories "$(sources_sum)"; then
    fail "the lock file $lockfile_group does not match the requirements or repositories, which have changed" "$lockfile_renew"
  else
    lockfile=$lockfile_group
    lockfile_matches "$lockfile" packages "$(lockfile_count "$lockfile")" ||
      fail "the lock file $lockfile does not have all of its packages" \
        "restore it: git checkout -- $lockfile; or, $lockfile_renew"
  fi
}

# lockfile_choose_downloaded: fail if the wheelhouse is for something else.
lockfile_choose_downloaded() {
  local -r before='on a machine with network access, run:' \
    after="then copy $requirements_wheelhouse to this machine"
  local -r download="python3 set_up.py download --machine $machine --stack $lockfile_stack"
  lockfile=$requirements_wheelhouse/${lockfile_group##*/}
  lockfile_renew="$before $download; $after"
  [[ -e $lockfile ]] ||
    fail "packages have not been downloaded: $lockfile not found" "$lockfile_renew"
  if ! lockfile_matches "$lockfile" image "$lockfile_image"; then
    if [[ $lockfile_image == host ]]; then
      fail "packages were downloaded for the image $(lockfile_value image "$lockfile"), but no image is active" \
        "run: python3 build_container.py offline --stack $lockfile_stack && python3 move_built_container_to_active.py --stack $lockfile_stack"
    fi
    fail "packages were downloaded for $(lockfile_value image "$lockfile"), not for the image $lockfile_image" \
      "$before python3 build_container.py download --machine $machine --stack $lockfile_stack && $download; $after"
  fi
  lockfile_matches "$lockfile" requirements "$(requirements_sum)" ||
    fail "packages in $requirements_wheelhouse were downloaded for other requirements" \
      "$lockfile_renew"
  if [[ -e $lockfile_group ]] &&
    ! lockfile_matches "$lockfile" lock "$(sha256sum <"$lockfile_group")"; then
    note "$lockfile_group has changed since the download: installing the downloaded versions; for the new ones, $lockfile_renew"
  fi
  lockfile_matches "$lockfile" repositories "$(sources_sum)" ||
    note "the repositories have changed since the download; if they need other packages now, $lockfile_renew"
}

# lockfile_value KEY FILE: print a value of a lock file's header, such as `# python: 3.12`.
lockfile_value() {
  sed -n "s/^# $1: //p; /^[^#]/q" "$2"
}

# lockfile_matches FILE KEY VALUE: whether a lock file's header has this value.
lockfile_matches() {
  [[ $(lockfile_value "$2" "$1") == "$3" ]]
}

# lockfile_count FILE: print the number of packages of a lock file.
lockfile_count() {
  grep -c '^[A-Za-z0-9]' -- "$1" || :
}

# lockfile_header DIR: print a lock file's header: the target that DIR/target describes, and the
# inputs.
lockfile_header() {
  printf '# %s: %s\n' packages "$(lockfile_count "$1/pins.txt")" python "$(<"$1/target/python")" \
    glibc "$(<"$1/target/glibc")" platform "linux $arch" \
    image "$lockfile_image" requirements "$(requirements_sum)" repositories "$(sources_sum)"
}

# lockfile_check OVERLAY: fail if the lock file is for another Python, if both it and the image have
# a PyTorch or neither, or if the wheelhouse is damaged. A venv above an OVERLAY needs no PyTorch.
lockfile_check() {
  local own image_torch
  if [[ -z $lockfile ]]; then return; fi
  own=$(python_in_image)
  own=${own%% *} own=${own%.*}
  # the connected machine would take its own, or the configured one, again
  if [[ -n $requirements_wheelhouse ]]; then
    lockfile_renew=${lockfile_renew/run: /set packages.python = \"$own\" in configuration.toml, then run: }
  fi
  lockfile_matches "$lockfile" python "$own" ||
    fail "$lockfile is for Python $(lockfile_value python "$lockfile"), but $base has $own" \
      "$lockfile_renew"
  if [[ -n $requirements_wheelhouse ]]; then wheelhouse_verify "$lockfile"; fi
  if [[ -z $requirements_torch || $base == host || -n $1 ]]; then return; fi
  image_torch=$(torch_version python3)
  if grep -q '^torch==' "$lockfile"; then
    [[ -z $image_torch ]] ||
      fail "$lockfile contains a second PyTorch: the image $base has PyTorch $image_torch" \
        "$lockfile_renew"
  elif [[ -z $image_torch ]]; then
    fail "neither the image $base nor $lockfile contains PyTorch" "$lockfile_renew"
  fi
}

# python_in_image: print the version of the image's Python, and its path.
python_in_image() {
  inside python3 -I -c 'import platform, sys; print(platform.python_version(), sys.executable)' ||
    fail "python3 not found in the image $base" 'set container.image to an image that has python3'
}

# torch_version PYTHON: print the version of the PyTorch that a Python inside finds; nothing without
# one.
torch_version() {
  inside "$1" -c 'from importlib.metadata import distributions as found
print(next((each.version for each in found(name="torch")), ""))'
}

# lockfile_update DIR UV: resolve all versions again, in DIR, write them to the group's lock file,
# and report the changes. UV is the file that uv is fetched to.
lockfile_update() {
  lockfile_work=$1 venv_uv=$2
  requirements_check
  at_exit lockfile_discard
  rm -rf -- "$lockfile_work"
  directory_make "$lockfile_work"
  step 1/2 "Listing the packages of $base"
  target_describe "$lockfile_work/target"
  step 2/2 'Resolving the versions of the other packages'
  uv_find ''
  packages_resolve "$lockfile_work" "$venv_uv" inside python3
  {
    printf '# Python packages with their hashes for %s; commit this file.\n' "${lockfile_group##*/}"
    printf '# Made by "python3 set_up.py update"; "install" then takes exactly these.\n'
    lockfile_header "$lockfile_work"
    lockfile_print_shared "$lockfile_work/pins.txt"
  } >"$lockfile_group.partial" || fail_writing "${lockfile_group%/*}" "cannot write $lockfile_group" \
    'check the permissions of the directory; the line above has the reason'
  if [[ -e $lockfile_group ]] && ! lockfile_matches "$lockfile_group" image "$lockfile_image"; then
    note "$lockfile_group was for the image $(lockfile_value image "$lockfile_group"); it is now for $lockfile_image"
  fi
  inside python3 "$longship_library/packages/inside/__main__.py" resolve_packages.print_changes "$lockfile_group" "$lockfile_group.partial"
  mv -f -- "$lockfile_group.partial" "$lockfile_group"
  lockfile_warn "$lockfile_work/pins.txt"
  note "the locked versions are in $lockfile_group; commit this file"
  lockfile_discard
}

# lockfile_discard: remove the directory of an update, while the lock is held.
lockfile_discard() {
  if [[ -n $lockfile_work ]]; then rm -rf -- "$lockfile_work" "$lockfile_group.partial"; fi
  lockfile_work=
}

# lockfile_print_shared FILE: print resolved versions for all members: without directories of this
# machine and credentials.
lockfile_print_shared() {
  sed '/^--find-links file:/d' -- "$1" | strip_passwords
}

# lockfile_warn FILE: name the addresses of resolved versions that contain a password.
lockfile_warn() {
  local addresses
  addresses=$(LC_ALL=C comm -13 <(LC_ALL=C sort "$1") <(strip_passwords <"$1" | LC_ALL=C sort))
  if [[ -z $addresses ]]; then return; fi
  # shellcheck disable=SC2016 # the name of a variable
  note "the lock file does not contain the login of ${addresses//$'\n'/, }: in the requirements, write \
its password as "'${VARIABLE}, in capital letters, or put it into ~/.netrc'
}

# packages_resolve DIR UV PYTHON...: resolve the versions for the target that DIR/target describes,
# and write DIR/pins.txt; PYTHON... is a command.
packages_resolve() {
  requirements_check_variables
  "${@:3}" "$longship_library/packages/inside/__main__.py" resolve_packages.resolve "$2" "$1/target" \
    "$arch" "$gpu" "$requirements_torch" "$repositories_directory" "$1/pins.txt" pip \
    ${requirements[@]+"${requirements[@]}"} ${requirements_sources[@]+"${requirements_sources[@]}"} >&2 ||
    fail_writing "$1" 'cannot resolve the versions of the packages' \
      "correct the requirements; uv's output above has the details; without network: $requirements_offline"
}

# target_describe DIR: write the packages of the Python inside.
target_describe() {
  directory_make "$1"
  inside python3 "$longship_library/packages/inside/__main__.py" describe_image.describe_own "$1" "$base" ||
    fail_writing "$1" "cannot list the packages of $base" "read Python's output above"
}
