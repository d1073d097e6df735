# shellcheck shell=bash
# What git says about a repository of another user.

# fail_for_owner FOLDER TEXT: stop if git says in TEXT that the repository belongs to another user.
fail_for_owner() {
  local REPLY
  if trust_hint "$2"; then fail "$1 belongs to another user, and git refuses to read it" "$REPLY"; fi
}

# trust_hint TEXT: set REPLY to the hint, or return 1 if git says something else.
trust_hint() {
  [[ $1 == *'dubious ownership'* || $1 == *'owned by someone else'* ]] || return 1
  REPLY=${1##*git config --global --add safe.directory }
  REPLY="if you trust that user, run: git config --global --add safe.directory ${REPLY%%$'\n'*}"
}
