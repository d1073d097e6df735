"""Findings about NCCL's network, from its log (NCCL_DEBUG=INFO): the fast one, or plain sockets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rank_findings import Finding

# Only what the channels go through counts: NCCL opens a network before it knows whether it is used.
_CHANNEL = re.compile(r"\bvia NET/([\w ]+?)/\d")
_NETWORK = re.compile(r"\bUsing network ([\w ]+)")
_REASONS = (
    (
        re.compile(r"NET/OFI.*(?:[Cc]ould not find any optimal provider|No eligible providers)"),
        "aws-ofi-nccl finds no network on this node: bind the site's libfabric and its devices, "
        "and set FI_PROVIDER (cxi, efa)",
    ),
    (
        re.compile(r"NCCL_NET_PLUGIN set by environment to none|NCCL_IB_DISABLE set .*to 1"),
        "the environment disables the fast network: unset NCCL_NET_PLUGIN, NCCL_IB_DISABLE",
    ),
    (
        re.compile(r"Failed to open libibverbs"),
        "the image lacks libibverbs, which InfiniBand requires: add rdma-core to the image",
    ),
    (
        re.compile(r"NET/IB : No device found"),
        "no InfiniBand device is visible in the container: check NCCL_IB_HCA, and bind "
        "/dev/infiniband; on Slingshot and EFA: the plugin aws-ofi-nccl (libnccl-net.so) is not "
        "found, check binds and LD_LIBRARY_PATH of the site's job scripts",
    ),
)
_SOCKETS = "compare the job with those of the site: binds, NCCL_*, FI_PROVIDER, aws-ofi-nccl"


def network_of(log: str) -> str:
    """Return what NCCL uses between nodes, according to its log: IB, Socket, AWS Libfabric, ..."""
    used = _CHANNEL.findall(log) or _NETWORK.findall(log)
    sockets = [each for each in used if each == "Socket"]
    return (sockets or used or [""])[0].strip()


def network_findings(logs: Mapping[str, tuple[str, str]]) -> list[Finding]:
    """Return NCCL's network, or the nodes that fell back to sockets.

    `logs` contains, for each node, the results of `network_of` and `network_fix`.
    """
    kinds = {kind for kind, _ in logs.values()} - {""}
    if not kinds:
        fix = "check /etc/nccl.conf and ~/.nccl.conf for NCCL_DEBUG and NCCL_DEBUG_FILE"
        return [Finding("warning", "network", "NCCL does not report which network it uses", fix)]
    found = [
        Finding("problem", "network", f"{node}: NCCL uses plain sockets", fix)
        for node, (kind, fix) in logs.items()
        if kind == "Socket"
    ]
    if found:
        return found
    return [Finding("ok", "network", f"NCCL uses {', '.join(sorted(kinds))}")]


def network_fix(log: str) -> str:
    """Return the fix for NCCL on sockets, from the reason in its log."""
    for pattern, fix in _REASONS:
        if pattern.search(log):
            return fix
    return _SOCKETS
