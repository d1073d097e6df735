# shellcheck shell=bash
# The proxy through which compute nodes reach the network, for git and for builds, which run outside
# of the container; programs inside get it from site.toml. In a shell on a node: source
# olivia/proxy.bash
export http_proxy=http://10.63.2.48:3128/
export https_proxy=$http_proxy
export no_proxy=localhost,127.0.0.1,.local,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16
