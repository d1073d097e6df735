# shellcheck shell=bash
# The checks of the software: runtime, image, overlay, venv and repositories.

# shellcheck source=lib/script/facts.bash
source "${BASH_SOURCE[0]%/*}/../script/facts.bash"
# shellcheck source=lib/packages/overlay.bash
source "${BASH_SOURCE[0]%/*}/../packages/overlay.bash"
# shellcheck source=lib/repositories/repositories.bash
source "${BASH_SOURCE[0]%/*}/../repositories/repositories.bash"

# runtime_diagnose RUNTIME REASON: check the program that starts the image; REASON is why it was chosen, if there
# was a choice.
runtime_diagnose() {
  local version
  version=$(run_with_timeout 20 program_version "$1" 2>/dev/null </dev/null) || :
  report_check runtime "${version:-$1}${2:+, $2}" runtime_check "$1"
}

# runtime_check RUNTIME: fail if it is not installed, or does not work.
runtime_check() {
  program_check "$1"
  timeout 20 "$1" --version >/dev/null 2>&1 || timeout 20 "$1" version >/dev/null 2>&1 ||
    fail "$1 is installed but does not work" "run: $1 version"
}

# image_diagnose FILE BUILT: check that the active image is complete and unchanged; BUILT is where a new image
# is built. The emitted script defines image_check_active.
image_diagnose() {
  report_check image '' image_check_active
  if report_passed image; then
    record_value "$1.json" date
    report_check image "$1${REPLY:+, built $REPLY}" image_check_record "$1"
  fi
  if [[ -e $2 && -e $2.json ]]; then
    report warning image 'a new image is ready to activate' 'python3 move_built_container_to_active.py'
  fi
}

# image_check_record FILE: fail if a version differs from its record; the checksum is not computed. A site's image
# has no record.
image_check_record() {
  if [[ $1 != */versions/* ]]; then return; fi
  image_damage "$1"
  if [[ $REPLY == "$WRITTEN_TO" ]]; then
    fail "the image $1 may be damaged: $REPLY" \
      "compare its checksum: python3 move_built_container_to_active.py --use ${1##*/}"
  fi
  [[ -z $REPLY ]] || fail "the image $1 is damaged: $REPLY" "$BUILD_ANEW"
}

# image_can_start: whether the image has passed its checks, if there is one, and is for this machine's CPUs.
image_can_start() {
  host_arch
  [[ $REPLY == "$arch" ]] && ! report_failed image
}

# inside_diagnose: check that the image starts as container_run.py starts it. The emitted script defines
# inside_run COMMAND....
inside_diagnose() {
  local version
  if ! image_can_start; then return 0; fi
  report_check inside '' inside_run python3 -s -c ''
  if ! report_passed inside; then return 0; fi
  version=$(run_with_timeout 60 inside_run python3 -I -c 'import platform; print(platform.python_version(), "for", platform.machine())' \
    2>/dev/null </dev/null) || :
  report ok inside "Python $version starts"
}

# mount_diagnose COMPRESSION OVERLAY: report which SquashFS files the runtime can mount, tested with small ones. A
# failure is a problem if an OVERLAY is configured.
mount_diagnose() {
  local -r compression=$1
  local work each state=warning can='' cannot='' over='; --overlay does not work'
  if [[ -n $2 ]]; then state=problem; fi
  if ! image_can_start; then return 0; fi
  if ! overlay_can_pack mksquashfs; then
    report ok mount 'not tried: no mksquashfs 4.4 on this machine; overlays are packed by the one of the image'
    return
  fi
  work=$(mktemp -d "${TMPDIR:-/tmp}/longship-doctor.XXXXXX" 2>/dev/null) || return 0 # directory_diagnose reports it
  for each in zstd lz4 xz gzip; do
    if run_with_timeout 30 overlay_can_mount "$work" "$each" >/dev/null 2>&1 </dev/null; then can+=" $each"; else cannot+=" $each"; fi
  done
  if run_with_timeout 30 mount_lay_over >/dev/null 2>&1 </dev/null; then over='; --overlay works'; fi
  rm -rf -- "$work"
  if [[ " $can " == *" $compression "* ]]; then
    report ok mount "$runtime mounts overlays packed with$can${cannot:+, not with$cannot}$over"
  elif [[ -z $can ]]; then
    report "$state" mount "$runtime cannot mount SquashFS files on this machine" \
      'use a venv instead: set packages.overlay = "", then run: python3 set_up.py install'
  else
    can=${can# }
    report "$state" mount "$runtime mounts no overlay packed with $compression, but with $can" \
      "set packages.compression = \"${can%% *}\" in configuration.toml, then run: python3 build_overlay.py"
  fi
}

# mount_lay_over: test whether a file can be laid over the whole image; overlay_can_mount has made what is packed.
mount_lay_over() {
  overlay_pack "$work/probe" "$work/over.sqsh" gzip -processors 1 -no-progress && overlay_try "$work/over.sqsh" overlay true
}

# overlay_diagnose FILE BASE: check the overlay as each launch does, and compare it with its record.
overlay_diagnose() {
  report_check overlay '' overlay_check "$@"
  if ! report_passed overlay; then return 0; fi
  record_value "$1.json" date
  report_check overlay "$1${REPLY:+, built $REPLY}" overlay_check_record "$1"
}

# overlay_check_record FILE: fail if the overlay differs from its record; the checksum is not computed.
overlay_check_record() {
  image_damage "$1"
  [[ -z $REPLY ]] || fail "the overlay $1 may be damaged: $REPLY" 'python3 build_overlay.py'
}

# venv_diagnose VENV BASE: check that it is complete, and belongs to the image or overlay that it is used with.
venv_diagnose() {
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg ]] && report_passed inside; then
    report_check packages "$1, which is not Longship's and is used as it is" venv_check_foreign "$1"
  else
    report_check packages "$1" venv_check_complete "$@"
  fi
}

# venv_check_complete VENV BASE: fail if a launch would, or if a package is missing, or its Python does not start.
venv_check_complete() {
  venv_check "$@"
  venv_find_lost "$1"
  if [[ -z $REPLY ]] && report_passed inside; then
    run_with_timeout 60 inside_run "$1/bin/python" -I -c '' >/dev/null 2>&1 </dev/null || REPLY='a Python that starts'
  fi
  [[ -z $REPLY ]] || fail "the venv $1 lacks $REPLY" 'run: python3 set_up.py install'
}

# venv_check_foreign VENV: fail if it has no packages for the image's Python.
venv_check_foreign() {
  local -r fix='set container.image to the image that the venv was made with; or build a new venv: python3 set_up.py install'
  local version
  version=$(inside_run "$1/bin/python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) ||
    fail "the Python of the venv $1 does not start in the image" "$fix"
  [[ -d $1/lib/python$version/site-packages ]] ||
    fail "the venv $1 has no packages for Python $version of the image" "$fix"
}

# repositories_diagnose NAMES WORKER...: report where each repository is, and whether the user's changes are saved.
repositories_diagnose() {
  local name
  report_check git '' repositories_check_git
  if ! report_passed git; then return 0; fi
  for name in $1; do
    report_check repository - "${@:2}" check "--name=$name"
  done
}
