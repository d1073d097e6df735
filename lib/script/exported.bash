# shellcheck shell=bash
# What the caller exports is the program's. An assignment, and `local` too, keeps the mark of an exported
# name, so an exported `image` or `options` would reach the program with a value of ours.

# exported_keep NAME...: put aside what is exported under names that this script uses.
# shellcheck disable=SC2034 # for command_exec, where a script has it
exported_keep() {
  declare -gA longship_kept=()
  # bash warns when it starts that this one is not installed, and would again after each `local LC_ALL`
  local -r longship_name=LC_ALL # a name, as ShellCheck warns of an assignment in a subshell
  if [[ -n ${LC_ALL-} && -n $(export "$longship_name=$LC_ALL" 2>&1) ]]; then set -- LC_ALL "$@"; fi
  while (($#)); do
    # a job script, which sources this, has variables of its own that are not exported
    if [[ -v $1 && $(declare -p "$1") =~ ^declare\ -[A-Za-z]*x ]]; then
      longship_kept[$1]=${!1}
      unset -v "$1"
    fi
    shift
  done
}

# exported_drop PATTERN...: what the configuration unsets is not the program's either.
exported_drop() {
  local longship_name longship_pattern
  for longship_name in "${!longship_kept[@]}"; do
    for longship_pattern in "$@"; do
      # shellcheck disable=SC2053 # a pattern
      if [[ $longship_name == $longship_pattern ]]; then unset -v "longship_kept[$longship_name]"; fi
    done
  done
}

# command_exec COMMAND...: become it, with all that the caller exports and no shell options of ours.
command_exec() {
  local longship_name
  for longship_name in "${!longship_kept[@]}"; do
    # shellcheck disable=SC2163 # the name that it holds; local, as an array of ours may have that name
    local -x "$longship_name=${longship_kept[$longship_name]}" 2>/dev/null # of LC_ALL
  done
  export -n SHELLOPTS BASHOPTS
  exec "$@"
}

# exported_restore: to a job script, which goes on.
exported_restore() {
  local longship_name
  for longship_name in "${!longship_kept[@]}"; do
    unset -v "$longship_name"
    declare -gx "$longship_name=${longship_kept[$longship_name]}" 2>/dev/null
  done
}

# exported_names: print the names of all that the program is to get.
exported_names() {
  compgen -e
  if ((${#longship_kept[@]})); then printf '%s\n' "${!longship_kept[@]}"; fi
}
