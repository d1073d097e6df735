#!/usr/bin/env bash
# Install the programs that the integration tests need, on Debian and its relatives.
#
#   sudo tests/install_tools.sh             everything
#   sudo tests/install_tools.sh apptainer   one tool and what it needs
#   tests/install_tools.sh --list           the tools that can be named
#   tests/install_tools.sh --missing TOOL   the programs of that tool that this machine lacks
#   tests/install_tools.sh --source         the package source of this machine's distribution
#
# It may be run again at any time: a tool that is there already costs nothing.
set -euo pipefail

# One row a tool: its name | the programs that show it is there | the packages that bring it.
# mount.fuse3 and newuidmap are called by Apptainer and podman themselves; a missing one shows up
# only as an odd message in the middle of a test, so they are checked here.
readonly TOOLS='
basics     | git ps curl file less script setsid  | git procps curl ca-certificates file less bsdutils util-linux
python     | python3                              | python3 python3-venv python3-pip
namespaces | unshare nsenter newuidmap ip         | util-linux uidmap iproute2
strace     | strace                               | strace
fuse       | fusermount3 mke2fs fuse2fs           | fuse3 e2fsprogs fuse2fs
apptainer  | apptainer squashfuse fuse-overlayfs fuse2fs mksquashfs newuidmap | apptainer squashfuse fuse-overlayfs fuse2fs squashfs-tools uidmap
podman     | podman runc catatonit slirp4netns newuidmap fuse-overlayfs | podman runc catatonit slirp4netns uidmap fuse-overlayfs
docker     | docker dockerd                       | docker.io
registry   | docker-registry                      | docker-registry
skopeo     | skopeo                               | skopeo
rsync      | rsync                                | rsync
ssh        | ssh scp ssh-keygen sshd              | openssh-client openssh-server
umoci      | umoci                                | umoci
mmdebstrap | mmdebstrap newuidmap                 | mmdebstrap uidmap
shells     | zsh fish                             | zsh fish
slurm      | slurmctld slurmd sbatch munged ip nsenter | slurmctld slurmd slurm-client munge iproute2 util-linux
'

# Debian 12 has no Apptainer. Its unstable suite has; the others belong to the same libraries.
readonly NEWER_PACKAGES=(apptainer squashfuse fuse-overlayfs fuse2fs)
readonly NEWER_SUITE=sid
readonly NEWER_SOURCE=/etc/apt/sources.list.d/longship-tests-newer
readonly NEWER_PIN=/etc/apt/preferences.d/longship-tests-newer

fail() {
    printf 'install_tools.sh: %s\n' "$*" >&2
    exit 1
}

# table_row TOOL: that tool's row, or nothing.
table_row() {
    local -r tool=$1
    local name rest
    while IFS='|' read -r name rest; do
        if [[ ${name// /} == "$tool" ]]; then
            printf '%s\n' "$rest"
        fi
    done <<<"$TOOLS"
}

tool_names() {
    local name rest
    while IFS='|' read -r name rest; do
        name=${name// /}
        [[ -z $name ]] || printf '%s\n' "$name"
    done <<<"$TOOLS"
}

# missing_of TOOL: what of that tool this machine lacks; nothing if it is complete.
missing_of() {
    local -r tool=$1
    local row program
    local -a programs
    row=$(table_row "$tool")
    [[ -n $row ]] || fail "no tool called '$tool'; there are: $(tool_names | paste -sd' ')"
    read -ra programs <<<"${row%|*}"
    for program in "${programs[@]}"; do
        command -v "$program" >/dev/null || printf '%s\n' "$program"
    done
    # Debian's python3 comes without the part of venv that puts pip into one.
    if [[ $tool == python ]] && ! /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null; then
        printf 'python3-venv\n'
    fi
}

# own_source: the package source of this machine's own distribution, as it stands in the first
# paragraph of its file, or as the first line of the older form.
own_source() {
    local file
    for file in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
        if [[ -e $file ]]; then
            # A stanza is a paragraph; comments may stand in it.
            awk 'BEGIN { RS = ""; FS = "\n" }
                /(^|\n)URIs:/ { for (i = 1; i <= NF; i++) if ($i !~ /^#/) print $i; exit }' "$file"
            return
        fi
    done
    [[ ! -e /etc/apt/sources.list ]] || grep -m 1 '^deb ' /etc/apt/sources.list || true
}

# add_newer_source: a second package source beside the machine's own one. It is that source with
# another suite, so it comes from wherever this machine gets its packages. At priority 10 nothing
# is taken from it that is not asked for.
add_newer_source() {
    local source
    source=$(own_source)
    case $source in
        *Suites:*) sed -E "s/^Suites:.*/Suites: $NEWER_SUITE/" <<<"$source" >"$NEWER_SOURCE.sources" ;;
        *) sed -E "s/^(deb +(\[[^]]*\] +)?[^ ]+) +[^ ]+/\1 $NEWER_SUITE/" <<<"$source" >"$NEWER_SOURCE.list" ;;
    esac
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 10\n' "$NEWER_SUITE" >"$NEWER_PIN"
}

# install_packages PACKAGE...: at most two installations, as much of the time goes into starting
# apt.
install_packages() {
    local package
    local -a usual=() newer=()
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update
    for package; do
        if [[ " ${NEWER_PACKAGES[*]} " == *" $package "* ]]; then
            newer+=("$package")
        else
            usual+=("$package")
        fi
    done
    # Without unsafe-io dpkg waits for the disk after every file: a test machine needs no such care.
    local -ar install=(apt-get install --yes --no-install-recommends
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0
        -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--force-confold)
    if [[ ! -e $NEWER_PIN ]] && has_all "${newer[@]}"; then
        usual+=("${newer[@]}")
    elif ((${#newer[@]} > 0)); then
        is_debian || fail "this distribution has no ${newer[*]}: install them by hand"
        add_newer_source
        quietly apt-get update
        # First, as what they bring along (a newer uidmap, say) serves the others too. As the target
        # release they may take their own dependencies from there, a newer libc among them; asked
        # for as package/suite, apt finds no solution.
        quietly "${install[@]}" --target-release "$NEWER_SUITE" "${newer[@]}"
    fi
    if ((${#usual[@]} > 0)); then
        quietly "${install[@]}" "${usual[@]}"
    fi
}

# quietly COMMAND...: its output is shown only when it fails.
quietly() {
    local output status=0
    output=$("$@" 2>&1 </dev/null) || status=$?
    if ((status != 0)); then
        printf '%s\n' "$output" >&2
        fail "failed ($status): $*"
    fi
}

is_debian() (
    # shellcheck disable=SC1091
    . /etc/os-release && [[ ${ID-} == debian ]]
)

# has_all PACKAGE...: whether this machine's package sources have them all.
has_all() {
    local package
    for package; do
        [[ -n $(apt-cache show --quiet "$package" 2>/dev/null) ]] || return 1
    done
}

main() {
    local tool row lacking
    local -a tools=() packages=() wanted=()
    case ${1-} in
        --list) tool_names; return ;;
        --missing) missing_of "${2:?a tool}" | paste -sd' '; return ;;
        --source) own_source; return ;;
    esac
    tools=("$@")
    if ((${#tools[@]} == 0)); then
        mapfile -t tools < <(tool_names)
    fi
    for tool in "${tools[@]}"; do
        lacking=$(missing_of "$tool")
        if [[ -n $lacking ]]; then
            row=$(table_row "$tool")
            read -ra packages <<<"${row#*|}"
            wanted+=("${packages[@]}")
        fi
    done
    if ((${#wanted[@]} > 0)); then
        ((EUID == 0)) ||
          fail "to install ${wanted[*]} it must run as root: sudo tests/install_tools.sh $*"
        command -v apt-get >/dev/null ||
          fail "no apt-get here: install ${wanted[*]} with this machine's own package manager"
        printf 'install_tools.sh: installing %s\n' "${wanted[*]}"
        install_packages "${wanted[@]}"
    fi
    # Ordinary users mount images through it; some virtual machines leave it to root alone.
    if ((EUID == 0)) && [[ -c /dev/fuse && $(stat -c %a /dev/fuse) != 666 ]]; then
        chmod 666 /dev/fuse
    fi
}

PATH=$PATH:/usr/sbin:/sbin
main "$@"
