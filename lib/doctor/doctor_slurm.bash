# shellcheck shell=bash
# What doctor.py asks of Slurm.

# diagnose_slurm EXPECTED ACCOUNT PARTITION...: it answers, has the site's partitions, and knows the account.
# EXPECTED is empty where a machine may have none.
diagnose_slurm() {
  local said partition missing=''
  if ! command -v sinfo >/dev/null; then
    if [[ -n $1 ]]; then
      report warning Slurm 'Slurm not found on this machine: sinfo is missing' "submit on a login node of $1"
    else
      report ok Slurm 'none on this machine'
    fi
    return
  fi
  if ! said=$(timeout 10 sinfo --noheader --format=%R 2>&1); then
    if [[ -z $1 && $said == *'configuration source'* ]]; then
      report ok Slurm 'Slurm commands are installed, but no cluster is configured'
      return
    fi
    if [[ -n $said ]]; then said=": $(slurm_reason "$said")"; fi
    report problem Slurm "Slurm does not respond${said:- within 10 seconds}" \
      'try again later; check the status page of your site, and: scontrol ping'
    return
  fi
  for partition in "${@:3}"; do
    if ! grep -q -x -F -e "$partition" <<<"$said"; then missing+=", $partition"; fi
  done
  if [[ -n $missing ]]; then
    report warning Slurm "$1 has no partition ${missing#, }; it has $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')" \
      "correct the partitions in site.toml and in the #SBATCH directives"
  else
    report ok Slurm "answers; partitions: $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')"
  fi
  diagnose_account "$2"
}

# diagnose_account ACCOUNT: where Slurm tells which ones a user has.
diagnose_account() {
  local said
  command -v sacctmgr >/dev/null || return 0
  said=$(timeout 10 sacctmgr --noheader --parsable2 show associations "user=$(id -un)" format=account 2>/dev/null |
    sort -u) || return 0
  if [[ -z $said ]]; then return 0; fi
  if [[ -z $1 ]]; then
    report ok account "none is configured; your accounts: $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')"
  elif grep -q -x -i -F -e "$1" <<<"$said"; then
    report ok account "$1 is one of your accounts"
  else
    report problem account "account $1 is not one of your accounts: $(paste -sd ' ' <<<"$said" | sed 's/ /, /g')" \
      "project.account = \"${said%%$'\n'*}\" in configuration.toml"
  fi
}
