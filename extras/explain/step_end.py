"""How the last job step in a log ended: what `doctor.py explain --json` says for programs."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from extras.explain.log_scan import Finding, Scan


def step_end(scan: Scan, allocated: Collection[str]) -> dict[str, Any]:
    """Return how the last attempt in a log ended, which was searched; nodes are those of the job.

    ``topic`` is that of the first message which can be why it ended ("" for none), ``restart`` is
    `never` if another attempt would fail again, or `node` if a node is to blame, ``step`` is the
    last one of the training that the log names (or None), ``nodes`` are those to blame, and
    ``reasons`` the topics of the messages that are evidence against them. What several nodes print
    is evidence against none: they share the image, the file system and the network.
    """
    suspects = [each for each in scan.findings if each.message.restart == "node"]
    reasons = {}
    for topic in (each.message.topic for each in suspects):
        nodes = {_node_of(each, scan, allocated) for each in scan.of_topic(topic)} - {""}
        if len(nodes) == 1:
            reasons[nodes.pop()] = topic
    first: Finding | None = (suspects or scan.findings or [None])[0]
    return {
        "topic": first.message.topic if first else "",
        "restart": first.message.restart if first else "",
        "step": scan.step,
        "nodes": sorted(reasons),
        "reasons": reasons,
    }


def _node_of(finding: Finding, scan: Scan, allocated: Collection[str]) -> str:
    """Return the node that the line names, or that of its task."""
    if "DUE TO NODE FAILURE" in finding.line_text:  # the node that prints it is another one
        return ""
    words = re.findall(r"[\w.-]+", finding.line_text)
    named = next((each for each in map(str, words) if each in allocated), "")
    return named or scan.first.node_of(finding.label[0].decode())  # a rank is no task
