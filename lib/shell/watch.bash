# shellcheck shell=bash disable=SC2154  # work, source and arch are the emitted script's
# Long steps of other programs: how far they are, and what their failures mean.

# watched COMMAND...: run it, show how it goes, and tell a failure in two lines.
watched() {
  local -r log=$work/log
  "$@" 2>&1 </dev/null | tee -- "$log" | show_progress || explain_failure "$log" "$1"
}

# show_progress: its latest message; on a terminal in one line, with the time and what was fetched.
show_progress() {
  local line='' message='' terminal='' shown='' status
  local -r start=$SECONDS
  if [[ -t 2 ]]; then terminal=1; fi
  while :; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status > 0 && status <= 128)); then break; fi
    if ((status == 0)) && is_message "$line"; then
      message=$REPLY
      if [[ -z $terminal ]]; then printf '      %s\n' "$message" >&2; fi
    fi
    if [[ -n $terminal && $SECONDS != "$shown" ]]; then
      shown=$SECONDS
      human "$(du -s -B1 -- "$work/cache" "$partial" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')"
      printf '\r\e[K      %.54s  %d s, %s' "$message" "$((SECONDS - start))" "$REPLY" >&2
    fi
  done
  if [[ -n $terminal ]]; then printf '\r\e[K' >&2; fi
}

# is_message LINE: whether it tells how far a step is; set REPLY to it.
is_message() {
  local -r layer='^[0-9a-f]{12}: '
  REPLY=${1#INFO:}
  REPLY=${REPLY#\[INFO\]}
  REPLY=${REPLY#"${REPLY%%[! ]*}"}
  case $REPLY in
    '' | 'FATAL'* | 'ERROR'* | 'WARNING'* | *'warn rootless'* | *'level='* | 'Error'* | sha256:*) return 1 ;;
    *quashfs* | *'table size'* | 'Filesystem size'* | 'Number of'* | *'uncompressed'* | 'duplicates'*) return 1 ;;
    compressed* | root* | *'filesystem on'*) return 1 ;; # mksquashfs, which enroot does not silence
  esac
  [[ ! $REPLY =~ $layer ]]
}

# human BYTES: set REPLY to them with a unit, such as 9.4 GB.
human() {
  local -i tenths=$(($1 * 10)) unit=0
  local -ar units=(B kB MB GB TB)
  while ((tenths >= 10000 && unit < 4)); do
    tenths=$(((tenths + 500) / 1000))
    unit+=1
  done
  if ((unit == 0 || tenths >= 1000)); then
    REPLY="$(((tenths + 5) / 10)) ${units[unit]}"
  else
    REPLY="$((tenths / 10)).$((tenths % 10)) ${units[unit]}"
  fi
}

# explain_failure LOG PROGRAM: stop, with the reason and what to type, as far as the log tells.
explain_failure() {
  local text
  text=$(<"$1")
  local -r program=$2 said=${text,,}
  if [[ $said == *'no space left on device'* || $said == *'disk quota exceeded'* ]]; then
    fail "$source: No space left on device" \
      'free some space, or set [paths] in configuration.toml; then run the command again'
  fi
  if [[ -z $input || $input == *.tar ]]; then
    explain_source "$said" "$program"
  elif [[ $said == *'user namespace'* || $said == *newuidmap* || $said == *fakeroot* ]]; then
    tail -n 5 -- "$1" >&2
    fail "this machine does not let you build from $source" "$build_hint"
  fi
  tail -n 30 -- "$1" >&2
  fail_writing "$work" "$program cannot make an image from $source" 'see the lines above'
}

# explain_source TEXT PROGRAM: stop, if the text in lower case says what is wrong with the source.
explain_source() {
  local host=${source#*://}
  host=${host%%/*}
  if [[ $host != *[.:]* && $host != localhost ]]; then host=docker.io; fi
  case $1 in
    *'no match for platform'* | *'no matching manifest'* | *'no image found in'* | *'no child with platform'*)
      fail "$source has no image for $arch" 'name one that has: container.image in configuration.toml'
      ;;
    *'manifest unknown'* | *'manifest_unknown'* | *'name_unknown'* | *'name unknown'*)
      fail "there is no $source" 'check its name and tag: container.image in configuration.toml'
      ;;
    *toomanyrequests* | *'rate limit'*)
      fail "$host lets nobody fetch more for now without a login" "$(login_command "$2" "$host")"
      ;;
    *unauthorized* | *'authentication required'* | *'access denied'* | *'access to the resource is denied'* | *'no basic auth'*)
      fail "$host asks for a login, or has no $source" "$(login_command "$2" "$host")"
      ;;
    *'no such host'* | *'network is unreachable'* | *'connection refused'* | *'i/o timeout'* | *'no route to host'* | \
      *'temporary failure in name resolution'* | *'could not resolve'* | *'tls handshake timeout'* | *'server misbehaving'*)
      fail "$host cannot be reached from here" \
        "where there is a network: python3 build_container.py download --machine $machine; then here: python3 build_container.py offline"
      ;;
    *'server gave http response'*)
      fail "$host has no TLS, without which anybody on the way can replace an image" \
        "name another registry; or trust it, in ~/.config/containers/registries.conf: [[registry]] location = \"$host\" insecure = true"
      ;;
    *x509*)
      fail "$host has no certificate that this machine trusts" 'name the right one: export SSL_CERT_FILE=...'
      ;;
    *'unexpected eof'* | *'invalid tar header'* | *'not an ocilayout'* | *'not a docker archive'* | *'not found in tar'*)
      fail "$source is no complete archive of an image" 'copy it again'
      ;;
  esac
}

# login_command PROGRAM HOST: how a registry's password gets where the program looks for it.
login_command() {
  case $1 in
    apptainer | singularity) printf '%s registry login --username NAME docker://%s' "$1" "$2" ;;
    enroot) printf 'add a line to %s: machine %s login NAME password ...' "\$ENROOT_CONFIG_PATH/.credentials" "$2" ;;
    *) printf '%s login %s' "$1" "$2" ;;
  esac
}
