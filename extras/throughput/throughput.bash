# shellcheck shell=bash
# The speed of a run, compared with an earlier one.

# throughput_end: add the speed of this run to its record, and print how it compares; a slow file
# system does not delay the end for long.
throughput_end() {
  local -a found # names and values
  mapfile -d '' -t found < <(timeout 10 python3 "$LONGSHIP_ROOT/submit.py" compare "$RUN_DIR" \
    2>/dev/null)
  longship_facts+=(${found[@]+"${found[@]}"})
  if ((${#found[@]} > 2)); then printf 'longship: %s\n' "${found[3]}" >&2; fi
}
