# shellcheck shell=bash
# Model cards: checksums of what a run has read, and the files of a card.

# card_begin DIR: make the directory of a card; an existing one can have a card that was edited, but
# not the empty one of an interrupted command.
card_begin() {
  rmdir -- "$1" 2>/dev/null || :
  [[ ! -e $1 && ! -L $1 ]] ||
    fail "the directory exists: $1" 'remove or rename it; or choose another directory: --output DIR'
  directory_make "${1%/*}/"
  mkdir -m 700 -- "$1" || fail "cannot create $1" 'choose another directory: --output DIR'
}

# card_hash_files TIME FILE...: set card_hashes to the SHA-256 of each file, or to the reason if it
# may not be that of TIME, in seconds since 1970: programs can set the time of a modification, but
# not that of a change, here of the file and of a link to it.
card_hash_files() {
  local file sum
  declare -ga card_hashes=()
  if (($# > 1)); then note "computing the SHA-256 of $(($# - 1)) files"; fi
  for file in "${@:2}"; do
    if [[ -f $file ]] && sum=$(sha256sum <"$file") &&
      (($(stat -c %Z -- "$file") < $1 && $(stat -L -c %Z -- "$file") < $1)); then
      card_hashes+=("\`${sum%% *}\`")
    else
      card_hashes+=('not recorded: the file has changed since, or cannot be read')
    fi
  done
}

# card_write DIR TEXT PACKAGES INSTALL: write the packages, their CycloneDX list, and README.md, in
# which checksums and files replace the marks. The list is of the packages that the run recorded:
# the environment, whose program makes it, may have changed since.
card_write() {
  local -r make_list=(python3 -I -m cyclonedx_py requirements --output-reproducible -)
  local text=$2 listed='not recorded' each code
  if [[ -n $3 ]]; then
    file_write "$1/packages.txt" "$3"
    listed='[packages.txt](packages.txt), [bom.json](bom.json) (CycloneDX)'
    file_begin "$1/bom.json"
    set +e # with `if`, it would go on after an error
    (set -e; card_inside "${make_list[@]}" <<<"$3" >"$REPLY")
    code=$?
    set -e
    if ((code == 0)); then
      file_publish "$REPLY" "$1/bom.json"
    else
      rm -f -- "$REPLY"
      listed='[packages.txt](packages.txt); as CycloneDX not recorded: cyclonedx-bom did not run'
      print_messages warning 'no CycloneDX list: see the lines above' \
        hint "add cyclonedx-bom to the requirements, then run: $4"
    fi
  fi
  for each in ${card_hashes[@]+"${card_hashes[@]}"} "$listed"; do text=${text/'``'/"$each"}; done
  file_write "$1/README.md" "$text"
  printf '%s\n' "$1/README.md"
  next_step "read and complete $1/README.md before you publish it"
}
