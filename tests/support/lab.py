"""A clone per test with one image to build, from a registry that the tests filled."""

import json
import os
import re
from pathlib import Path

import pytest

from support.repository import Clone, toml


class Lab(Clone):
    """A clone with folders of its own, for one runtime and one image."""

    def use(self, image, runtime="apptainer", scratch=None, more=""):
        """Configure both; `scratch` instead of the usual folder. Return the clone."""
        self.runtime = runtime
        self.scratch = scratch or self.root.parent / "a scratch"
        self.containers = self.scratch / "containers"
        self.configure(
            f'machine = "local"\n[paths]\nproject_dir = {toml(self.scratch / "project")}\n'
            f'scratch_dir = {toml(self.scratch)}\ncheckpoint_dir = ""\n[container]\n'
            f"runtime = {toml(runtime)}\nimage = {toml(image)}\n"
            f'[packages]\nrequirements = ""\n{more}'
        )
        return self

    def build_and_move(self, *arguments):
        """Build the image and put it in use; return the file name of the version."""
        self.build(*arguments)
        self.move()
        return self.active()

    def active(self):
        """Give the file name of the version in use, None where there is none."""
        links = [path for path in self.containers.iterdir() if path.is_symlink()]
        assert len(links) <= 1, links
        return os.path.basename(os.readlink(links[0])) if links else None

    def versions(self):
        """Name the files of all versions."""
        found = (self.containers / "versions").glob("*.*")
        return sorted(path.name for path in found if path.suffix not in (".json", ".history"))

    def record(self, folder="containers/build"):
        """Read the only record in a folder below the scratch folder."""
        (file,) = (self.scratch / folder).glob("*.json")
        return json.loads(file.read_text())

    def left(self):
        """Name what is left of unfinished work."""
        return [
            str(path.relative_to(self.scratch))
            for path in self.scratch.rglob("*")
            if "partial" in path.name or ".lock" in path.name or path.name == "tmp"
        ]


def is_told(done, message, hint, code=1):
    """Check that it ended with one line that says what is wrong and one that says what to type."""
    lines = done.stderr.splitlines() or [""]
    assert done.returncode == code, done.stderr
    assert lines[-2].startswith("error: ") and message in lines[-2], done.stderr
    assert lines[-1].startswith("hint: ") and hint in lines[-1], done.stderr
    # A warning with its hint may stand before it, as that of a disk that is getting full.
    own = re.sub(r"^warning: .*\nhint: .*\n", "", done.stderr, flags=re.MULTILINE).splitlines()
    assert sum(line.startswith(("error: ", "hint: ")) for line in own) == 2, done.stderr


def fill(disk, leave=0):
    """Fill a small disk up to so many bytes; return the file that does."""
    ballast = disk / "ballast"
    found = os.statvfs(disk)
    left = found.f_bavail * found.f_frsize - leave
    size = 1 << 20
    with open(ballast, "wb", buffering=0) as file:
        while left > 0 and size:
            try:
                left -= file.write(bytes(min(size, left)))
            except OSError:
                size //= 2
    return ballast


@pytest.fixture
def lab(request, root, require, tmp_path, container_settings, clean_environment):
    """Give a function that makes the test's clone, for an image and a runtime."""

    def make(image, runtime="apptainer", **options):
        environment = clean_environment
        if runtime in ("docker", "podman"):
            environment = request.getfixturevalue(f"{runtime}_environment")
        else:
            require("apptainer")
        container_settings(Path(environment["HOME"]))
        clone = Lab(root, tmp_path / "a clone", environment)
        (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
        return clone.use(image, runtime, **options)

    return make
