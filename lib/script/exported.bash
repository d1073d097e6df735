# shellcheck shell=bash
# Variables that the caller exports reach the program unchanged. An assignment, even by `local`,
# keeps the export flag of a name: an exported `image` or `options` would reach the program with
# this script's value.

# exported_keep: save and unset the exported variables that could have the name of one of this
# script's: those in lower case, but for proxies, which programs read, and REPLY.
# shellcheck disable=SC2034 # scripts that start a program read it
exported_keep() {
  declare -gA longship_kept=()
  local longship_each
  # of a locale that is not installed, bash warns when it starts, and again after each `local
  # LC_ALL`
  local -r longship_name=LC_ALL # in a variable: ShellCheck warns of assignments in a subshell
  set -- REPLY
  if [[ -n ${LC_ALL-} && -n $(export "$longship_name=$LC_ALL" 2>&1) ]]; then set -- REPLY LC_ALL; fi
  # by their first letter: `compgen -e` would need a process in each rank
  for longship_each in "$@" "${!a@}" "${!b@}" "${!c@}" "${!d@}" "${!e@}" "${!f@}" "${!g@}" "${!h@}" \
    "${!i@}" "${!j@}" "${!k@}" "${!l@}" "${!m@}" "${!n@}" "${!o@}" "${!p@}" "${!q@}" "${!r@}" \
    "${!s@}" "${!t@}" "${!u@}" "${!v@}" "${!w@}" "${!x@}" "${!y@}" "${!z@}"; do
    case $longship_each in longship_* | *_proxy) continue ;; esac
    # a job script, which sources this file, also has variables that are not exported
    if [[ -v $longship_each && $(declare -p "$longship_each") =~ ^declare\ -[A-Za-z]*x ]]; then
      longship_kept[$longship_each]=${!longship_each}
      unset -v "$longship_each"
    fi
  done
}

# exported_drop PATTERN...: forget saved variables that the configuration unsets.
exported_drop() {
  local longship_name longship_pattern
  for longship_name in "${!longship_kept[@]}"; do
    for longship_pattern in "$@"; do
      # shellcheck disable=SC2053 # a pattern
      if [[ $longship_name == $longship_pattern ]]; then unset -v "longship_kept[$longship_name]"; fi
    done
  done
}

# command_exec COMMAND...: become the command, with the caller's exported variables and without the
# options of this shell.
command_exec() {
  local longship_name
  for longship_name in "${!longship_kept[@]}"; do
    # `local`: a global array of this script may have the same name
    # shellcheck disable=SC2163 # exports the variable of this name
    local -x "$longship_name=${longship_kept[$longship_name]}" 2>/dev/null # the warning of LC_ALL
  done
  export -n SHELLOPTS BASHOPTS
  exec "$@"
}

# exported_restore: export the saved variables again, for a job script that continues.
exported_restore() {
  local longship_name
  for longship_name in "${!longship_kept[@]}"; do
    unset -v "$longship_name"
    declare -gx "$longship_name=${longship_kept[$longship_name]}" 2>/dev/null
  done
}

# exported_names: print the names of all variables that the program inherits.
exported_names() {
  compgen -e
  if ((${#longship_kept[@]})); then printf '%s\n' "${!longship_kept[@]}"; fi
}
