#!/usr/bin/env bash
# A machine with nothing on it but bash, git and Python: where a newcomer starts. Needs root.
#
#   tests/bare_machine.sh make SUITE FOLDER        make one of Debian's or Ubuntu's suite, `own` for this machine's
#   tests/bare_machine.sh run FOLDER COMMAND...    run a command there as an ordinary user, in a fresh clone of HEAD
#   tests/bare_machine.sh remove FOLDER
#
# The machine is a root file system that a process enters; it has this machine's kernel and network.
# Its user has a home folder that was never used, with the clone in it; both stay from one `run` to
# the next. What says how this machine reaches its package index (pip's settings, certificates,
# folders with wheels) is shown there too, read-only, and nothing else. The packages are kept as an
# archive in $LONGSHIP_TEST_CACHE (default /var/cache/longship-tests), so `make` fetches them once a
# week.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly packages=bash,ca-certificates,git,python3,python3-venv
readonly user=newcomer clone='/home/newcomer/a clone'
readonly cache=${LONGSHIP_TEST_CACHE:-/var/cache/longship-tests}

fail() {
    printf 'bare_machine.sh: %s\n' "$*" >&2
    exit 1
}

# make SUITE FOLDER: the packages come from the source that this machine's own come from.
make() {
    local suite=$1
    local -r folder=$2
    local source archive partial
    source=$(tests/install_tools.sh --source)
    [[ -n $source ]] || fail 'needs a Debian or Ubuntu, whose package source it is made from'
    if [[ $suite == own ]]; then
        # not of /etc/os-release: a package of a newer suite may have changed that
        suite=$(sed -nE -e 's/^Suites: +([^ ]+).*/\1/p' \
            -e 's/^deb +(\[[^]]*\] +)?[^ ]+ +([^ ]+).*/\2/p' <<<"$source")
    else
        source=$(sed -E -e "s/^Suites:.*/Suites: $suite/" \
            -e "s/^(deb +(\[[^]]*\] +)?[^ ]+) +[^ ]+/\1 $suite/" <<<"$source")
    fi
    # The week, for the updates of a suite.
    archive=$cache/bare-$suite-$( (cat tests/bare_machine.sh && printf '%s\n' "$source" &&
        date +%G-%V) | sha256sum | cut -c 1-12).tar
    mkdir -p -- "$folder" "$cache"
    if [[ ! -e $archive ]]; then
        # this process is number 1 of its namespace, as others are of theirs
        partial=$archive.$RANDOM
        make_archive "$suite" "$source" "$folder" "$partial"
        find "$cache" -name "bare-$suite-*" -mtime +0 -delete # those of other weeks, and of killed runs
        mv -- "$partial" "$archive"
    fi
    tar --extract --numeric-owner --file "$archive" --directory "$folder"
    chroot "$folder" useradd --create-home --shell /bin/bash "$user"
    git_clone "$folder$clone"
    chroot "$folder" chown -R "$user:" "$clone"
}

# make_archive SUITE SOURCE FOLDER ARCHIVE: what it is made from and its log are next to the folder.
make_archive() {
    local -r suite=$1 source=$2 folder=$3 archive=$4
    local form=.list
    local -a options=()
    if [[ $source == *Suites:* ]]; then form=.sources; fi
    # `apt` of the machine may need a proxy; mmdebstrap's own does not read the machine's settings.
    mapfile -t options < <(apt-config dump Acquire::http | grep -v '"";$' || :)
    options+=('Acquire::Check-Valid-Until "false"') # a mirror of Debian's unstable suite may be late
    printf '%s\n' "$source" >"$folder.source$form"
    mmdebstrap --quiet --mode=root --variant=minbase --format=tar --include="$packages" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        "${options[@]/#/--aptopt=}" "$suite" "$archive" "$folder.source$form" >"$folder.log" 2>&1 ||
        { cat "$folder.log" >&2 && rm -f -- "$archive" &&
          fail "cannot make a root file system of $suite"; }
}

# git_clone FOLDER: git refuses a repository of another user unless a configuration file allows it.
git_clone() {
    local settings
    settings=$(mktemp)
    printf '[safe]\n\tdirectory = *\n' >"$settings"
    GIT_CONFIG_GLOBAL=$settings git clone --quiet --no-local -- "$PWD" "$1"
    rm -f -- "$settings"
}

# shown_files: print what says how packages are reached, as far as it is there.
shown_files() {
    local path words
    words="${PIP_FIND_LINKS-} ${PIP_CERT-} ${SSL_CERT_FILE-} ${SSL_CERT_DIR-} ${REQUESTS_CA_BUNDLE-}"
    words+=" ${CURL_CA_BUNDLE-} ${GIT_SSL_CAINFO-} /etc/pip.conf /etc/resolv.conf /etc/hosts"
    words+=" $(cat /etc/pip.conf "$HOME/.config/pip/pip.conf" 2>/dev/null | tr '=,' '  ')"
    for path in $words; do
        path=${path#file://}
        path=${path%/simple}
        if [[ $path == /?* && -e $path ]]; then printf '%s\n' "$path"; fi
    done | sort -u
}

# enter FOLDER COMMAND...: in a mount and process namespace of its own, which end with the command.
enter() {
    local -r folder=$1
    local path
    shift
    mount --make-rprivate /
    mount -t proc proc "$folder/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$folder/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$folder/dev"
    mkdir -m 1777 "$folder/dev/shm"
    mkdir "$folder/dev/pts"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$folder/dev/pts"
    ln -s pts/ptmx "$folder/dev/ptmx"
    ln -s /proc/self/fd "$folder/dev/fd"
    ln -s fd/0 "$folder/dev/stdin"
    ln -s fd/1 "$folder/dev/stdout"
    ln -s fd/2 "$folder/dev/stderr"
    for path in null zero full random urandom tty; do
        : >"$folder/dev/$path"
        mount --bind "/dev/$path" "$folder/dev/$path"
    done
    while IFS= read -r path; do
        if [[ -d $path ]]; then
            mkdir -p -- "$folder$path"
        else
            mkdir -p -- "$folder${path%/*}"
            [[ -e $folder$path ]] || : >"$folder$path"
        fi
        mount --bind -- "$path" "$folder$path"
        mount -o remount,bind,ro -- "$folder$path" 2>/dev/null || :
    done < <(shown_files)
    if [[ -e $HOME/.config/pip/pip.conf ]]; then
        chroot "$folder" install -D -o "$user" -m 644 /dev/stdin "/home/$user/.config/pip/pip.conf" \
            <"$HOME/.config/pip/pip.conf"
        chroot "$folder" chown -R "$user:" "/home/$user/.config"
    fi
    local name
    local -a variables=(HOME="/home/$user" USER="$user" LOGNAME="$user" LANG=C.UTF-8 TERM=dumb
        PATH=/usr/local/bin:/usr/bin:/bin)
    while IFS= read -r name; do
        case $name in
            CI | PIP_* | UV_* | SSL_CERT_* | *_CA_BUNDLE | GIT_SSL_CAINFO | *_proxy | *_PROXY)
                variables+=("$name=${!name}")
                ;;
        esac
    done < <(compgen -e)
    # No exec: as process 1 of its namespace this bash collects what the command leaves behind.
    # shellcheck disable=SC2016
    chroot --userspec="$user:$user" "$folder" env -i "${variables[@]}" \
        sh -c 'cd "$1" && shift && exec "$@"' sh "$clone" "$@"
}

main() {
    local -r action=${1-}
    ((EUID == 0)) || fail 'must run as root'
    shift || :
    case $action in
        # In a mount namespace of their own: whatever ends them, nothing stays mounted.
        make) exec unshare --mount --pid --fork --kill-child "$0" make_here "$@" ;;
        make_here) make "$1" "$2" ;;
        run) exec unshare --mount --pid --fork --kill-child "$0" enter "$@" ;;
        enter) enter "$@" ;;
        remove) rm -rf --one-file-system -- "$1" "$1".{log,source.list,source.sources} ;;
        *) fail 'usage: bare_machine.sh make SUITE FOLDER | run FOLDER COMMAND... | remove FOLDER' ;;
    esac
}

PATH=$PATH:/usr/sbin:/sbin
main "$@"
