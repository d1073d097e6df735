"""What tokens and keys look like: a pattern for grep -E, git log -G and, `compiled`, Python."""

from __future__ import annotations

import re

# spaces and quotes end a password in a URL, brackets and $ begin a placeholder for one
SECRET = (
    r"hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|glpat-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|BEGIN [A-Z0-9 ]*PRIVATE KEY"
    r"|(WANDB_API_KEY|[Ww]andb_(api_)?key|api\.wandb\.ai).{0,80}[^0-9a-f][0-9a-f]{40}([^0-9a-f]|$)"
    r"""|https?://[^]/@:"<>{}$*[:space:]'[]+:[^]/@:"<>{}$*[:space:]'[]+@"""
)


def compiled(pattern: str) -> re.Pattern[bytes]:
    """Return a pattern that searches in the content of files."""
    return re.compile(pattern.replace("[:space:]", r"\s").encode(), re.MULTILINE)
