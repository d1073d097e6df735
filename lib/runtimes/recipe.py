"""What a runtime needs to build an image."""

from __future__ import annotations

from typing import NamedTuple

from lib.runtimes.image import ImageSource
from lib.script.quoting import Expansion

# Variables of the emitted script; an unfinished image has another name than a complete one.
ADDRESS = Expansion('"$address"')
PARTIAL = Expansion('"$partial"')


class Recipe(NamedTuple):
    """Source, runtime and architecture of an image to build.

    Parameters
    ----------
    runtime : str
        The program: ``apptainer``, ``singularity``, ``docker``, ``podman`` or ``enroot``.
    source : ImageSource
        The image's source.
    arch : str
        ``amd64`` or ``arm64``.
    tag : str
        Its name in the store of docker or podman: ``longship/pytorch_25.06-py3:amd64``.
    """

    runtime: str
    source: ImageSource
    arch: str
    tag: str
