# shellcheck shell=bash
# How apptainer or singularity is installed on this machine.

# sif_has_setuid RUNTIME: whether it can mount images by the kernel, without user namespaces.
sif_has_setuid() {
  local name value
  while IFS='=' read -r name value; do
    if [[ $name == LIBEXECDIR ]]; then
      [[ -u $value/$1/bin/starter-suid ]]
      return
    fi
  done < <("$1" buildcfg 2>/dev/null)
  return 1
}
