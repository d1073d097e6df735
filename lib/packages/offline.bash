# shellcheck shell=bash disable=SC2154,SC2034  # lib/packages/install.py assigns them; lib/packages/venv.bash reads
# Python packages from the wheelhouse that `set_up.py download` has filled, without network.

# choose_download: set pins to the list of the wheelhouse; fail if it is for something else.
choose_download() {
  pins=$wheelhouse/${lock##*/}
  renew="on a machine with network access, run: python3 set_up.py download --machine $machine; then copy $wheelhouse to this machine"
  [[ -e $pins ]] || fail "packages have not been downloaded: $pins not found" "$renew"
  if ! list_fits "$pins" image "$image_address"; then
    if [[ $image_address == host ]]; then
      fail "packages were downloaded for the image $(header_value image "$pins"), but no image is active" \
        'run: python3 build_container.py offline && python3 move_built_container_to_active.py'
    fi
    fail "packages were downloaded for $(header_value image "$pins"), not for the image $image_address" \
      "on a machine with network access, run: python3 build_container.py download --machine $machine && python3 set_up.py download --machine $machine; then copy $wheelhouse to this machine"
  fi
  if ! list_fits "$pins" requirements "$(requirements_sum)"; then
    fail "packages in $wheelhouse were downloaded for other requirements" "$renew"
  fi
  if [[ -e $lock ]] && ! list_fits "$pins" lock "$(sha256sum <"$lock")"; then
    note "$lock has changed since the download: installing the downloaded versions; for the new ones, $renew"
  fi
  list_fits "$pins" repositories "$(sources_sum)" ||
    note "the repositories have changed since the download; if they need other packages now, $renew"
}

# verify_wheelhouse: fail if a file is missing or does not match its checksum.
verify_wheelhouse() {
  local -r list=${pins%.lock}.sha256
  local bad
  [[ -e $list ]] || fail "$list not found" "copy it too: it is in the same directory as ${pins##*/}"
  note "checking $wheelhouse"
  # one file per process: all cores work, and the largest file determines the time
  # shellcheck disable=SC2016  # expanded by sh
  bad=$(cd -- "$wheelhouse" && LC_ALL=C xargs -d '\n' -P "$(nproc)" -n 1 \
    sh -c 'printf "%s\n" "$1" | sha256sum --check --quiet --status || printf "%s\n" "${1#*  }"' check \
    <"$list" 2>/dev/null) || fail "cannot read $list" 'copy it again'
  if [[ -z $bad ]]; then return; fi
  bad=${bad%%$'\n'*}
  if [[ -e $wheelhouse/$bad ]]; then
    fail "$wheelhouse/$bad is truncated or damaged: its checksum does not match" 'copy it again'
  fi
  fail "$wheelhouse/$bad is missing" "copy it too; or, $renew"
}

# unpack_uv FILE: unpack uv from its wheel.
unpack_uv() {
  local wheel
  for wheel in "$wheelhouse"/uv-*.whl; do
    if grep -qF -- "  ${wheel##*/}" "${pins%.lock}.sha256" &&
      inside python3 -m zipfile -e "$wheel" "$1.partial.$$"; then
      chmod +x "$1.partial.$$"/uv-*.data/scripts/uv
      mv -- "$1.partial.$$"/uv-*.data/scripts/uv "$1"
    fi
  done
}
