"""How an image is made: what a runtime is told of it."""

from __future__ import annotations

from typing import NamedTuple

from lib.images import ImageSource
from lib.quoting import Expansion

# The emitted script has these; what is being made has another name than what is complete.
ADDRESS = Expansion('"$address"')
PARTIAL = Expansion('"$partial"')


class Recipe(NamedTuple):
    """What to make an image from, and for whom.

    Parameters
    ----------
    runtime : str
        The program: ``apptainer``, ``singularity``, ``docker``, ``podman`` or ``enroot``.
    source : ImageSource
        Where it comes from.
    arch : str
        ``amd64`` or ``arm64``.
    tag : str
        What it is called in the store of docker or podman: ``longship/pytorch_25.06-py3:amd64``.
    """

    runtime: str
    source: ImageSource
    arch: str
    tag: str
