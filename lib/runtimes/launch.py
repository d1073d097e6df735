"""What a runtime is given: the image, the binds and the GPU. The rest is the contract's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lib.configuration.sites import Machine
from lib.runtimes.contract import Bind
from lib.script.command import assign, call
from lib.script.quoting import Expansion

IMAGE = Expansion('"$image"')


class Launch(NamedTuple):
    """One way to start programs inside.

    Parameters
    ----------
    root : pathlib.Path
        The repository.
    runtime : str
        The program: ``apptainer``, ``singularity``, ``docker``, ``podman``, ``enroot`` or ``host``.
    image : str
        A SIF file, or a tag; empty for ``host``.
    image_hint : str
        What makes a missing image.
    arch : str
        ``amd64`` or ``arm64``: what the image must be for.
    gpu : str
        ``cuda``, ``rocm``, ``cpu`` or ``auto``.
    options : tuple of str
        More options of the runtime.
    binds : tuple of Bind
        Folders that must be there.
    site_binds : tuple of Bind
        Folders that are shown where they exist.
    patched_files : tuple of Bind
        Single files that are shown in place of the image's own.
    pip_sources : bool
        Show pip's configuration and folders too.
    overlay : str
        The file with the Python packages; empty for none.
    secrets : tuple of str
        Variables that no runtime may write down.
    """

    root: Path
    runtime: str
    image: str
    image_hint: str
    arch: str
    gpu: str
    options: tuple[str, ...]
    binds: tuple[Bind, ...]
    site_binds: tuple[Bind, ...]
    patched_files: tuple[Bind, ...]
    pip_sources: bool
    overlay: str = ""
    secrets: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """What a venv is made on top of: its Python belongs to this image, or to the host."""
        return self.image or "host"

    def overlay_lines(self, function: str) -> list[str]:
        """Return the lines that check the overlay and show it inside, by a runtime's function.

        Parameters
        ----------
        function : str
            Of the runtime.
        """
        if not self.overlay:
            return []
        return [
            assign("overlay", self.overlay),
            call("check_overlay", self.base),
            call(function),
        ]

    def bind_lines(self) -> list[str]:
        """Return the lines that add the binds to the array ``options``."""
        return [
            *(_bind("add_bind_if_there", each) for each in self.site_binds),
            *(_bind("add_bind", each) for each in self.binds),
            *(call("add_patched_file", each.source, each.target) for each in self.patched_files),
            call("add_host_files"),
            *([call("add_pip_sources")] if self.pip_sources else []),
        ]


def module_lines(machine: Machine, runtime: str) -> list[str]:
    """Return the line that loads the site's modules, where the runtime comes from them."""
    return [call("load_modules", runtime, *machine.modules)] if machine.modules else []


def _bind(function: str, bind: Bind) -> str:
    target = [] if bind.target == bind.source and not bind.read_only else [bind.target]
    return call(function, bind.source, *target, *(["ro"] if bind.read_only else []))
