# shellcheck shell=bash disable=SC2154,SC2034  # lib/packages.py assigns them; lib/shell/venv.bash reads
# Python packages from the folder that `set_up.py download` has filled, without network.

# choose_download: set pins to what was downloaded; stop where that was for something else.
choose_download() {
  pins=$wheelhouse/${lock##*/}
  renew="where there is a network: python3 set_up.py download --machine $machine; then copy $wheelhouse here"
  [[ -e $pins ]] || fail "the packages have not been downloaded: there is no $pins" "$renew"
  if ! list_fits "$pins" image "$image_address"; then
    if [[ $image_address == host ]]; then
      fail "the packages were downloaded for the image $(header_value image "$pins"), and no image is active" \
        'python3 build_container.py offline && python3 move_built_container_to_active.py'
    fi
    fail "the packages were downloaded for $(header_value image "$pins"), not for the image $image_address" \
      "where there is a network: python3 build_container.py download --machine $machine && python3 set_up.py download --machine $machine; then copy $wheelhouse here"
  fi
  if ! list_fits "$pins" requirements "$(requirements_sum)"; then
    fail "what $wheelhouse holds was downloaded for other requirements" "$renew"
  fi
  if [[ -e $lock ]] && ! list_fits "$pins" lock "$(sha256sum <"$lock")"; then
    note "$lock has changed since the download, whose versions are installed; for the new ones, $renew"
  fi
  list_fits "$pins" repositories "$(sources_sum)" ||
    note "the repositories have changed since; if they need other packages now, $renew"
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
  fail "$wheelhouse/$bad is missing" "copy it too; or, $renew"
}

# unpack_uv FILE: from its wheel.
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
