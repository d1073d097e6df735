# shellcheck shell=bash disable=SC2154,SC2034  # set by the emitted script, or for other functions
# What doctor.py asks of runtime, image, overlay, venv and repositories.

# diagnose_runtime RUNTIME WHY: the program that starts the image; why it was chosen, if that was open.
diagnose_runtime() {
  local said
  if [[ $1 == host ]]; then
    report ok runtime "host (no container)${2:+: $2}"
    return
  fi
  said=$(in_time 20 program_version "$1" 2>/dev/null </dev/null) || :
  heed runtime "${said:-$1}${2:+, $2}" check_runtime "$1"
}

# check_runtime RUNTIME: stop where it is not there, or does not work.
check_runtime() {
  check_program "$1"
  timeout 20 "$1" --version >/dev/null 2>&1 || timeout 20 "$1" version >/dev/null 2>&1 ||
    fail "$1 is installed but does not work" "run: $1 version"
}

# diagnose_image FILE BUILT: complete, and what was recorded. The emitted script defines
# check_image_as_always. BUILT is what build_container.py makes.
diagnose_image() {
  heed image '' check_image_as_always
  if [[ ${heeded[image]} == ok ]]; then
    record_value "$1.json" date
    heed image "$1${REPLY:+, built $REPLY}" check_recorded_image "$1"
  fi
  if [[ -e $2 && -e $2.json ]]; then
    report warning image 'a new image is ready to activate' 'python3 move_built_container_to_active.py'
  fi
}

# check_recorded_image FILE: stop where it is not what was built, as far as can be seen without its
# checksum. Records belong to versions; the site's image has none.
check_recorded_image() {
  if [[ $1 != */versions/* ]]; then return; fi
  image_damage "$1"
  if [[ $REPLY == "$WRITTEN_TO" ]]; then
    fail "the image $1 may be damaged: $REPLY" \
      "compare its checksum: python3 move_built_container_to_active.py --use ${1##*/}"
  fi
  [[ -z $REPLY ]] || fail "the image $1 is damaged: $REPLY" "$BUILD_ANEW"
}

# diagnose_inside: whether the image starts as container_run.py starts it. The emitted script defines
# inside_now COMMAND....
diagnose_inside() {
  local said
  heeded[inside]=
  [[ ${heeded[image]:-ok} == ok && ${heeded[architecture]} == ok ]] || return 0
  heed inside '' inside_now python3 -s -c ''
  [[ ${heeded[inside]} == ok ]] || return 0
  said=$(in_time 60 inside_now python3 -I -c 'import platform; print(platform.python_version(), "for", platform.machine())' \
    2>/dev/null </dev/null) || :
  report ok inside "Python $said starts"
}

# diagnose_mount RUNTIME IMAGE COMPRESSION OVERLAY: which SquashFS files the runtime mounts, tried with
# small ones. It matters where an OVERLAY is configured.
diagnose_mount() {
  local runtime=$1 base=$2 work each can='' cannot='' over='; --overlay does not work'
  local state=warning
  local -a packer=(mksquashfs)
  if [[ -n $4 ]]; then state=problem; fi
  [[ ${heeded[image]} == ok && ${heeded[architecture]} == ok ]] || return 0
  if ! packs_overlays "${packer[@]}"; then
    report ok mount 'not tried: no mksquashfs 4.4 on this machine; overlays are packed by the one of the image'
    return
  fi
  processors=1 memory=
  work=$(mktemp -d "${TMPDIR:-/tmp}/longship-doctor.XXXXXX" 2>/dev/null) || return 0 # which diagnose_folder reports
  for each in zstd lz4 xz gzip; do
    if in_time 30 mountable "$each" >/dev/null 2>&1 </dev/null; then can+=" $each"; else cannot+=" $each"; fi
  done
  if in_time 30 lays_over >/dev/null 2>&1 </dev/null; then over='; --overlay works'; fi
  rm -rf -- "$work"
  if [[ " $can " == *" $3 "* ]]; then
    report ok mount "$1 mounts overlays packed with$can${cannot:+, not with$cannot}$over"
  elif [[ -z $can ]]; then
    report "$state" mount \
      "$1 mounts no SquashFS file here" \
      'use a venv instead: set packages.overlay = "", then run: python3 set_up.py install'
  else
    can=${can# }
    report "$state" mount \
      "$1 mounts no overlay packed with $3, but with $can" \
      "set packages.compression = \"${can%% *}\" in configuration.toml, then run: python3 build_overlay.py"
  fi
}

# lays_over: whether a file can be laid over the whole image; mountable has made what is packed.
lays_over() {
  pack_overlay "$work/probe" "$work/over.sqsh" gzip && try_overlay "$work/over.sqsh" overlay true
}

# diagnose_overlay: what a launch checks, and the size. The emitted script defines check_overlay_as_always
# and sets overlay.
diagnose_overlay() {
  heed overlay '' check_overlay_as_always
  if [[ ${heeded[overlay]} != ok ]]; then return 0; fi
  record_value "$overlay.json" date
  heed overlay "$overlay${REPLY:+, built $REPLY}" check_recorded_overlay
}

# check_recorded_overlay: stop where it is not what was built, as far as can be seen without its checksum.
check_recorded_overlay() {
  image_damage "$overlay"
  [[ -z $REPLY ]] || fail "the overlay $overlay may be damaged: $REPLY" 'python3 build_overlay.py'
}

# diagnose_venv VENV BASE: the packages belong to the image or overlay that they are used with.
diagnose_venv() {
  if [[ ! -e $1/longship-base && -e $1/pyvenv.cfg && ${heeded[inside]:-} == ok ]]; then
    heed packages "$1, which is not Longship's and is used as it is" check_foreign_venv "$1"
  else
    heed packages "$1" check_whole_venv "$@"
  fi
}

# check_whole_venv VENV BASE: what a launch checks; and that it has all packages, and a Python that starts.
check_whole_venv() {
  check_venv "$@"
  lost_from_venv "$1"
  if [[ -z $REPLY && ${heeded[inside]:-} == ok ]]; then
    in_time 60 inside_now "$1/bin/python" -I -c '' >/dev/null 2>&1 </dev/null || REPLY='a Python that starts'
  fi
  [[ -z $REPLY ]] || fail "the venv $1 lacks $REPLY" 'run: python3 set_up.py install'
}

# check_foreign_venv VENV: stop where the image's Python is not the one that it has packages for.
check_foreign_venv() {
  local found
  found=$(inside_now "$1/bin/python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) ||
    fail "the Python of the venv $1 does not start in the image" \
      'set container.image to the image that the venv was made with; or build a new venv: python3 set_up.py install'
  [[ -d $1/lib/python$found/site-packages ]] ||
    fail "the venv $1 has no packages for Python $found of the image" \
      'set container.image to the image that the venv was made with; or build a new venv: python3 set_up.py install'
}

# diagnose_repositories: each as configured and as an update would want it.
diagnose_repositories() {
  local name
  heed git '' prepare_git
  if [[ ${heeded[git]} != ok ]]; then return 0; fi
  prepare_git
  for name in "${all_repositories[@]}"; do
    heed repository '' check_one_repository "$name"
    if [[ ${heeded[repository]} == ok ]]; then tell_repository "$name"; fi
  done
}

# check_one_repository NAME: stop where it is missing or in a state that no update begins from.
check_one_repository() {
  local -r folder=$repositories_folder/$1
  local state own
  [[ -e $folder || -L $folder ]] || fail "$1 not found: $folder" 'python3 set_up.py install'
  [[ -e $folder/.git ]] ||
    fail "$folder is not a git repository" \
      "move it away: mv $(printf '%q %q' "$folder" "$folder.old"); then run: python3 set_up.py install"
  own=$(git_folder "$folder") || exit 1
  state=$own/longship-update
  check_no_update "$folder"
  if [[ -e $state/target ]]; then
    fail "$folder: an update was interrupted" 'run: python3 set_up.py update'
  fi
  check_not_busy "$folder"
}

# tell_repository NAME: where it is, and whether what the user has changed is kept anywhere else.
tell_repository() {
  local -r folder=$repositories_folder/$1
  local own patched commits files text
  own=$(git_folder "$folder")
  text="$1 is at $(shown_commit "$folder" HEAD)"
  if [[ $(settings_of "$1") != "$(cat -- "$own/longship-settings" 2>/dev/null)" ]] ||
    ! git_in "$folder" merge-base --is-ancestor refs/longship/base HEAD 2>/dev/null; then
    report warning repository "$text, not at the configured version" 'python3 set_up.py update'
    return
  fi
  # what the group's patches have made of it is no change of the user's
  patched=$(commit_of "$folder" refs/longship/patched) || patched=refs/longship/base
  commits=$(git_in "$folder" rev-list HEAD --not refs/longship/base "$patched" --remotes --glob=refs/longship/tags)
  files=$(timeout 30 git --no-optional-locks -C "$folder" status --porcelain 2>/dev/null) || :
  if [[ -z $commits$files ]]; then
    report ok repository "$text, unchanged"
  elif changes_are_saved "$folder" "${repository_patches[$1]}"; then
    report ok repository "$text, with changes that are in ${repository_patches[$1]}"
  else
    report warning repository "$text, with changes that are not saved in patches/" 'python3 set_up.py save-patches'
  fi
}

# changes_are_saved FOLDER PATCHES: whether the patches are newer than the changed files and the commits
# of the user.
changes_are_saved() {
  local -a patches=("$2"/*.patch)
  local newest path
  [[ -e ${patches[0]} ]] || return 1
  newest=$(stat -c %Y -- "${patches[@]}" | sort -n | tail -n 1)
  while IFS= read -r -d '' path; do
    if [[ -e $1/$path ]] && (($(stat -c %Y -- "$1/$path") > newest)); then return 1; fi
  done < <(git_in "$1" ls-files --modified --others --exclude-standard --full-name -z
    git_in "$1" diff --cached --name-only -z)
  path=$(git_in "$1" log -1 --format=%ct HEAD)
  ((path <= newest))
}
