"""Images: their source, and their names on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.paths import ROOTED, Paths, check_started, expand, pinned
from lib.configuration.runtimes import known_runtime, runtime_names
from lib.runtimes.runtime import runtime_of
from lib.script.errors import LongshipError, suggest
from lib.script.records import read_record

_REGISTRIES = ("docker", "oras", "library")
ARCHIVES = ("docker-archive", "oci-archive")
SCHEMES = (*_REGISTRIES, *ARCHIVES, "docker-daemon")
# An image as docker names it, without a scheme: ubuntu:22.04, nvcr.io/nvidia/pytorch:25.06-py3.
_REFERENCE = r"[a-z0-9][\w.-]*(:\d+)?(/[\w.-]+)*(:[\w.-]+|@sha256:[0-9a-f]+)"
_BUILD = "python3 build_container.py"
_MOVE = "python3 move_built_container_to_active.py"


class ImageSource(NamedTuple):
    """Source of an image."""

    kind: str  # a scheme, or that of a file: sif, sqsh, definition, dockerfile
    address: str  # with its scheme; an absolute path for a file

    @property
    def ready(self) -> bool:
        """Whether it is an image already, such as those that Olivia and LUMI provide."""
        return self.kind in ("sif", "sqsh")

    @property
    def plain(self) -> str:
        """The address without its scheme."""
        if self.address.startswith("/"):
            return self.address
        return self.address.partition("://")[2] or self.address.partition(":")[2]

    @property
    def file(self) -> str:
        """Path of the file; empty for a registry or a daemon."""
        return self.plain if self.plain.startswith("/") else ""

    @property
    def label(self) -> str:
        """The address, or kind and name of a file: the same for each clone and machine."""
        return f"{self.kind}:{image_name(self)}" if self.file else self.address

    @property
    def runs_programs(self) -> bool:
        """Whether the build runs programs of the image, which needs its architecture."""
        return self.kind in ("definition", "dockerfile")

    @property
    def digest(self) -> str:
        """The digest in its address, with or without a tag; empty for none."""
        return self.plain.partition("@")[2] if self.kind == "docker" else ""


def image_source(settings: Settings) -> ImageSource:
    """Return the source of the image: the configuration, or the stack for the machine's GPU."""

    def absolute(path: str) -> str:
        if path.startswith(ROOTED):
            return expand("container.image", path, settings)
        return os.path.normpath(settings.root / path)

    configured = settings.configuration.container.image
    origin = settings.origins.get("container.image", "")
    of_site = origin.startswith(settings.machine.site_file)
    if configured and not (of_site and settings.stack.images):
        return _parse(configured, origin, absolute)
    vendor = settings.machine.gpu
    if vendor == "auto":
        vendor = "cuda" if os.path.exists("/dev/nvidiactl") else "cpu"
    stack, arch = settings.stack, settings.machine.arch
    image = stack.images.get(vendor, {})
    if not isinstance(image, str):
        image = image.get(arch, "")
    if image:  # the site's own is for stacks that have one for its GPUs
        own = f"stacks/{stack.name}/stack.toml"
        return _parse(configured or image, origin if configured else own, absolute)
    raise LongshipError(
        f"stack {stack.name} has no image for {vendor} on {arch}, which machine "
        f"{settings.machine.name} needs",
        f"see [images] in stacks/{stack.name}/stack.toml; or set container.image in "
        "configuration.toml",
    )


def _parse(text: str, origin: str, absolute: Callable[[str], str]) -> ImageSource:
    scheme = text.partition(":")[0]
    if scheme in _REGISTRIES and text.startswith(f"{scheme}://") and "#" not in text:
        return ImageSource(scheme, text)
    if scheme == "docker-daemon":
        return ImageSource(scheme, text)
    if scheme in ARCHIVES:
        return ImageSource(scheme, f"{scheme}:{absolute(text[len(scheme) + 1 :])}")
    kind = "" if "://" in text else _kind_of_file(text)
    if kind:
        return ImageSource(kind, absolute(text))
    schemes = ("docker://", "oras://", "library://", "docker-archive:", "oci-archive:")
    kinds = (*schemes, "docker-daemon:", "FILE.sif", "FILE.sqsh", "FILE.def", "Dockerfile")
    hint = suggest(text, kinds)
    if scheme not in SCHEMES and re.fullmatch(_REFERENCE, text):
        hint = f'did you mean "docker://{text}"? valid values: {", ".join(kinds)}'
    raise LongshipError(f'{origin}: unknown image source: "{text}"', hint)


def _kind_of_file(text: str) -> str:
    ending = text.rpartition(".")[2]
    if ending in ("sif", "sqsh"):
        return ending
    if ending == "def":
        return "definition"
    words = re.split(r"[.]", text.rpartition("/")[2].lower())
    return "dockerfile" if {"dockerfile", "containerfile"} & {words[0], words[-1]} else ""


def image_name(source: ImageSource) -> str:
    """Name an image after its source: ``pytorch_25.06-py3``; a Dockerfile after its directory.

    The name has only characters that a file name and a tag can contain.
    """
    path = source.plain.rstrip("/")
    last = path.rpartition("/")[2]
    if source.kind == "dockerfile" and last.lower() in ("dockerfile", "containerfile"):
        last = path.split("/")[-2]
    last = re.sub(r"(?i)\.(sif|tar|def|sqsh|dockerfile)$", "", last)
    return re.sub(r"[^a-z0-9._-]+", "_", last.lower()).strip("._-")


def image_tag(source: ImageSource, arch: str) -> str:
    """Name an image for docker and podman: ``longship/pytorch_25.06-py3:amd64``."""
    return f"longship/{image_name(source)}:{arch}"


def active_image(runtime: str, source: ImageSource, paths: Paths) -> Path:
    """Return the path of the active image, such as ``pytorch_25.06-py3_amd64.sif``."""
    return paths.containers / f"{image_name(source)}_{paths.arch}.{known_runtime(runtime).ending}"


def image_to_start(runtime: str, source: ImageSource, paths: Paths) -> str:
    """Return the file or tag that a runtime starts.

    A ready image of the site is used in its place until a copy of it has been activated.
    """
    check_usable(runtime, source)
    active = active_image(runtime, source, paths)
    check_started(paths, active)
    _check_origin(active, source)
    if runtime_of(runtime).IN_STORE:
        if os.path.isfile(active):
            check_started(paths, pinned(active))
            return active.read_text(encoding="utf-8").strip()
        return image_tag(source, paths.arch)
    if source.ready and not os.path.lexists(active):
        return str(pinned(Path(source.address)))
    return str(pinned(active))


def _check_origin(active: Path, source: ImageSource) -> None:
    """Stop if the active image has the name of the configured one but another source.

    Images of two registries can have one name. Paths are not compared: each member of a group has
    a clone, and all use the same image.
    """
    if source.kind not in _REGISTRIES or not os.path.islink(active):
        return
    record = read_record(Path(f"{os.path.realpath(active)}.json"), f"{_BUILD} --force && {_MOVE}")
    origin = record.get("source", source.address)
    if origin.startswith(tuple(f"{each}://" for each in _REGISTRIES)) and origin != source.address:
        raise LongshipError(
            f"the active image {active.name} was built from {origin}, not from {source.address}",
            f"run: {_BUILD} && {_MOVE}",
        )


def can_use(runtime: str, source: ImageSource) -> bool:
    """Tell whether a runtime can use a source."""
    return source.kind in runtime_of(runtime).SOURCES


def check_usable(runtime: str, source: ImageSource) -> None:
    """Stop if a runtime cannot use a source, and name one that can."""
    if not can_use(runtime, source):
        able = [each for each in runtime_names() if can_use(each, source)]
        hint = "set container.image in configuration.toml to another image"
        if able:
            choose = "choose a runtime that can, in configuration.toml"
            hint = f'{choose}: container.runtime = "{able[0]}"'
        raise LongshipError(f"{runtime} cannot build from {source.address}", hint)
