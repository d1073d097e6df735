# shellcheck shell=bash
# What makes imports from an overlay fast, added while it is built: the module index, one of its
# files, and the parts of the files that an import reads, in its record; lib/runtimes/overlay.bash
# reads them ahead.

# shellcheck source=lib/packages/overlay.bash
source "${BASH_SOURCE[0]%/*}/../../lib/packages/overlay.bash"

# module_index_copy PACKAGES: copy the program that reads the index into the directory of the
# packages.
module_index_copy() {
  cp -- "${longship_library%/lib}/extras/overlay_speed/inside/module_index.py" "$1/longship_module_index.py"
}

# module_index_write PACKAGES: write the index of the compiled packages.
module_index_write() {
  inside "$overlay_prefix/bin/python" "$longship_library/packages/inside/__main__.py" \
    "${longship_library%/lib}/extras/overlay_speed/inside/module_index.write" "$overlay_prefix${1#"$overlay_tree"}" ||
    fail_writing "$overlay_tree" "cannot write the module index of $overlay_prefix" \
      "read Python's output above"
}

# overlay_find_reads FILE: record the parts of the new overlay and of the image that an import of
# the packages reads, if that is known. It writes no file: its home and temporary directories are in
# memory.
overlay_find_reads() {
  local -a options=(--contain --cleanenv)
  local file output overlay_reads='' image_reads=''
  if [[ -z $overlay_method ]]; then return; fi
  step "$overlay_steps/$overlay_steps" 'Recording what an import reads'
  for file in "$1" "$base"; do
    # what is in memory afterwards, the import has read
    { sync -- "$file" && dd if="$file" iflag=nocache count=0; } &>/dev/null || :
  done
  overlay_add_file "$1" "$overlay_target" "$overlay_method"
  bind_format "$1" /longship/overlay ro
  bind_format "$base" /longship/image ro
  bind_format "$longship_library/packages/inside" /longship/inside ro
  bind_format "${longship_library%/lib}/extras/overlay_speed/inside" /longship/extra ro
  output=$(requirements_print | "$runtime" --quiet exec "${options[@]}" "$base" "$overlay_target/bin/python" \
    /longship/inside /longship/extra/import_reads.print_parts /longship/overlay /longship/image) || {
    note "launches will not read ahead: cannot record what an import reads; $runtime's output above has the reason"
    return 0
  }
  { read -r overlay_reads && read -r image_reads; } <<<"$output" || :
  overlay_values+=('overlay_reads' "$overlay_reads" 'image_reads' "$image_reads")
}
