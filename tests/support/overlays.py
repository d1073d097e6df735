"""Clones that have their Python packages in an overlay."""

import functools
import shutil
from pathlib import Path

import pytest

from lib.configuration.sites import own_arch
from support import processes
from support.repository import Clone

OWN = own_arch()
TINY = "longship_tiny==1.0"


class OverlayClone(Clone):
    """What a test of overlays asks of a clone."""

    find = {}  # variables by which pip finds packages

    @property
    def folder(self):
        """Where overlays are."""
        return self.scratch / "overlays"

    def overlay(self, *arguments, env=None, **options):
        """Run build_overlay.py to its end."""
        __tracebackhide__ = True
        return self.type(
            "build_overlay.py", *arguments, env={**self.find, **(env or {})}, **options
        )

    def link(self):
        """Give the path of the overlay for the requirements as they are now."""
        return Path(self.overlay("--print-path").stdout.rstrip("\n"))

    def require(self, *requirements):
        """Change the requirements file."""
        text = "".join(f"{each}\n" for each in requirements)
        (self.root / "requirements/tiny.txt").write_text(text)

    def versions(self):
        """Name the files of all versions."""
        return sorted(path.name for path in self.folder.glob("versions/*.sqsh"))

    def left(self):
        """Name what is left of unfinished work."""
        found = [*self.folder.rglob("*.partial*"), *self.folder.rglob("*.lock*")]
        found += self.scratch.glob("overlays.lock*")
        return found + list(self.scratch.glob("cache/overlays/longship-*"))


def path_with_refusal(folder, words):
    """Give a PATH with the real Apptainer, which refuses calls that contain these words."""
    program = folder / "programs/apptainer"
    program.parent.mkdir()
    real = shutil.which("apptainer", path=processes.PATH)
    program.write_text(
        f'#!/bin/bash\nif [[ "$*" == *{words}* ]]; then echo refused >&2; exit 255; fi\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    return f"{program.parent}:{processes.PATH}"


@pytest.fixture(scope="session")
def make_overlay_clone(make_clone, fetcher, wheels):
    """Give a function that makes a clone with an overlay configured, and nothing built."""

    def make(folder, runtime="apptainer", requirements=(TINY,), more="", image=None):
        more = f'overlay = "myenv"\n{more}'
        clone = make_clone(folder, runtime, list(requirements), more, image, OverlayClone)
        clone.change('installer = "pip"', 'installer = "uv"')
        tools = clone.scratch / f"tools_{OWN}"
        tools.mkdir(parents=True)
        (tools / "fetcher").symlink_to(fetcher)
        shutil.copy(fetcher / "bin/uv", tools / "uv")
        clone.find = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        return clone

    return make


@pytest.fixture(scope="session")
def with_overlay(make_overlay_clone, tmp_path_factory):
    """Give a function that returns the clone of a runtime with its overlay; leave it as it is."""

    @functools.cache
    def give(runtime="apptainer"):
        clone = make_overlay_clone(tmp_path_factory.mktemp(f"overlay-{runtime}"), runtime)
        clone.overlay()
        return clone

    return give


@pytest.fixture
def fresh(make_overlay_clone, tmp_path):
    """Give a clone of the test's own, for apptainer, with an overlay configured and not built."""
    return make_overlay_clone(tmp_path)


@pytest.fixture
def on_host(make_overlay_clone, tmp_path):
    """The same for the runtime host, which is the quickest."""
    return make_overlay_clone(tmp_path, "host")
