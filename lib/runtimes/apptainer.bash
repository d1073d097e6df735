# shellcheck shell=bash
# How apptainer or singularity is installed on this machine.

# helpers_of RUNTIME: set REPLY to the directory of its helper programs.
helpers_of() {
  local name value
  REPLY=
  while IFS='=' read -r name value; do
    if [[ $name == LIBEXECDIR ]]; then REPLY=$value/$1/bin; fi
  done < <("$1" buildcfg 2>/dev/null)
}

# has_setuid_starter RUNTIME: whether it can mount images by the kernel, without user namespaces.
has_setuid_starter() {
  helpers_of "$1"
  [[ -u $REPLY/starter-suid ]]
}
