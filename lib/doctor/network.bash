# shellcheck shell=bash
# The checks of network and secrets: no password and no token is shown.

# shellcheck source=lib/runtimes/launch.bash
source "${BASH_SOURCE[0]%/*}/../runtimes/launch.bash"

# certificates_diagnose: check the files that the environment names: if one is missing, each download fails with
# an error about something else.
certificates_diagnose() {
  local variable path named='' bad=''
  for variable in "${longship_certificates[@]}"; do
    path=${!variable:-}
    if [[ -z $path ]]; then
      continue
    elif [[ ! -e $path ]]; then
      bad='does not exist'
    elif [[ ! -r $path ]]; then
      bad='cannot be read'
    elif [[ -f $path ]] && ! grep -q -s 'BEGIN.* CERTIFICATE' -- "$path"; then
      bad='contains no certificate'
    else
      named+=", $variable"
      continue
    fi
    report problem certificates "$variable is set to $path, which $bad" \
      "unset $variable, or set it to the certificate bundle of your site"
  done
  if [[ -n $bad ]]; then return; fi
  if [[ -n $named ]]; then named="named by ${named#, }"; fi
  report ok certificates "${named:-those of the system}"
}

# proxy_diagnose: report the configured proxies, and check that they accept connections.
proxy_diagnose() {
  local variable other shown='' address
  for variable in http_proxy https_proxy all_proxy; do
    other=${variable^^}
    if [[ -n ${!variable:-} && -n ${!other:-} && ${!variable} != "${!other}" ]]; then
      report warning proxy "$variable and $other differ: some programs read the first, others the second" \
        "export $other=\"\$$variable\""
    fi
    address=${!variable:-${!other:-}}
    if [[ -z $address || $shown == *" $(url_without_login "$address")"* ]]; then continue; fi
    shown+=" $(url_without_login "$address")"
    if ! proxy_accepts_connection "$address"; then
      report problem proxy "no response from $(url_without_login "$address"), set in $variable" \
        "correct the value, or run: unset $variable $other"
      return
    fi
  done
  shown=${shown# }
  report ok proxy "${shown:-none set}"
}

# url_without_login URL: print it without user and password, whatever characters these contain.
url_without_login() {
  if [[ $1 == *@* ]]; then
    case $1 in *://*) printf '%s://***@%s' "${1%%://*}" "${1##*@}" ;; *) printf '***@%s' "${1##*@}" ;; esac
  else
    printf '%s' "$1"
  fi
}

# proxy_accepts_connection URL
proxy_accepts_connection() {
  local host=${1#*://}
  local port
  host=${host##*@}
  host=${host%%/*}
  port=${host##*:}
  if [[ $port == "$host" ]]; then
    case $1 in https:*) port=443 ;; socks*) port=1080 ;; *) port=80 ;; esac
  fi
  host=${host%:*}
  host=${host#[}
  # shellcheck disable=SC2016  # expanded by the inner bash
  timeout 5 bash -c ': <>"/dev/tcp/$1/$2"' bash "${host%]}" "$port" 2>/dev/null
}

# network_diagnose OFFLINE URL...: check that the servers of packages and images respond. No network is needed if
# OFFLINE, the directory of downloads from another machine, contains files.
network_diagnose() {
  local url code state number
  local -a urls=() answers=() reached=()
  while IFS= read -r url; do urls+=("$url"); done < <(pip_index)
  urls+=("${@:2}")
  for url in ${urls[@]+"${urls[@]}"}; do # in parallel: offline each waits for its timeout
    exec {number}< <(state=0 && code=$(url_http_status "$url" 2>/dev/null) || state=$? && printf '%s %s\n' "$state" "$code")
    answers+=("$number")
  done
  for number in ${answers[@]+"${!answers[@]}"}; do
    read -r state code <&"${answers[number]}" || :
    url=$(url_without_login "${urls[number]}")
    if [[ $code =~ ^[2-4] ]]; then # a request to log in is a response too
      reached+=("$url")
    elif ((state == 60 || state == 77)); then
      report problem network "the certificate of $url is not trusted on this machine" \
        "export SSL_CERT_FILE=FILE, with the certificate bundle of your site or proxy"
    elif [[ -n ${SLURM_JOB_ID:-} ]]; then
      report ok network "$url is not reachable (normal in a job)"
    elif compgen -G "$1/*/*" >/dev/null; then
      report ok network "$url is not reachable; the offline files are in $1"
    else
      report warning network "$url is not reachable" \
        'behind a proxy: export https_proxy=...; offline: run python3 bundle.py pack DIR on a machine with network access'
    fi
  done
  if ((${#reached[@]})); then report ok network "answers: ${reached[*]}"; fi
}

# pip_index: print the URL of pip's index; nothing if pip is told to use none.
pip_index() {
  local file
  if [[ -n ${PIP_NO_INDEX:-} ]]; then return 0; fi
  for file in "${PIP_CONFIG_FILE:-}" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf" \
    "${HOME:-}/.pip/pip.conf" /etc/pip.conf; do
    if [[ -z ${PIP_INDEX_URL:-} && -r $file ]]; then
      PIP_INDEX_URL=$(sed -n -E 's/^ *index[-_]url *[=:] *//p' "$file" | tail -n 1)
    fi
  done
  printf '%s\n' "${PIP_INDEX_URL:-https://pypi.org/simple/}"
}

# What url_http_status does without curl, in Python.
declare -g ASK_SERVER='import ssl, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.stdin.read().strip(), timeout=8).status)
except urllib.error.HTTPError as error:
    print(error.code)
except urllib.error.URLError as error:
    sys.exit(60 if isinstance(error.reason, ssl.SSLError) else 7)'

# url_http_status URL: print it; the exit codes are curl's. The URL can contain a password, so it is not passed as
# an argument, which every user of a login node can see.
url_http_status() {
  local url=${1//\\/\\\\}
  if command -v curl >/dev/null; then
    printf 'url = "%s"\n' "${url//\"/\\\"}" |
      timeout 15 curl --silent --output /dev/null --max-time 8 --write-out '%{http_code}' --config -
  else
    printf '%s\n' "$1" | timeout 15 python3 -c "$ASK_SERVER"
  fi
}

# tokens_diagnose FILE...: check that only their owner can read them.
tokens_diagnose() {
  local file mode seen=''
  local -i count=0 bad=0
  for file in "$@"; do
    if [[ ! -e $file || $seen == *"/$file/"* ]]; then continue; fi
    seen+="/$file/"
    count+=1
    mode=$(stat -L -c %a -- "$file")
    if [[ ! -r $file ]]; then
      report problem tokens "cannot read $file" "check its owner: ls -l $(printf %q "$file")"
    elif [[ $mode != *00 ]]; then
      report problem tokens "$file can be read by others (mode $mode)" "chmod 600 $(printf %q "$file")"
    elif [[ ! -s $file ]]; then
      report warning tokens "$file is empty" "write the token into it, or run: rm $(printf %q "$file")"
    else
      continue
    fi
    bad+=1
  done
  if ((bad == 0 && count)); then report ok tokens "readable only by you; files: $count"; fi
  if ((count == 0)); then report ok tokens 'no token files'; fi
}

# secrets_diagnose NAME...: report which of the variables that are passed on by name are set.
secrets_diagnose() {
  local name named=''
  for name in "$@"; do
    if [[ -n ${!name:-} ]]; then named+=", $name"; fi
  done
  if [[ -n $named ]]; then named="set, and passed on: ${named#, }"; fi
  report ok secrets "${named:-not set: $*}"
}
