"""Clones that have their Python packages in an overlay."""

import shutil

import pytest

from lib.configuration.sites import own_arch

OWN = own_arch()
TINY = "longship_tiny==1.0"


class OverlayClone:
    """What a test of overlays asks of a clone."""

    def __init__(self, clone, find):
        self.clone = clone
        self.find = find
        self.folder = clone.scratch / "overlays"

    def __getattr__(self, name):
        return getattr(self.clone, name)

    def overlay(self, *arguments, env=None, **options):
        """Run build_overlay.py to its end."""
        __tracebackhide__ = True
        env = {**self.find, **(env or {})}
        return self.clone.type("build_overlay.py", *arguments, env=env, **options)

    def link(self):
        """Give the path of the overlay for the requirements as they are now."""
        from pathlib import Path

        return Path(self.overlay("--print-path").stdout.rstrip("\n"))

    def require(self, *requirements):
        """Change the requirements file."""
        (self.clone.root / "requirements/tiny.txt").write_text(
            "".join(f"{x}\n" for x in requirements)
        )

    def change(self, old, new):
        """Change the configuration."""
        text = (self.clone.root / "configuration.toml").read_text()
        assert old in text
        self.clone.configure(text.replace(old, new))

    def versions(self):
        """Name the files of all versions."""
        return sorted(path.name for path in self.folder.glob("versions/*.sqsh"))

    def left(self):
        """Name what is left of unfinished work."""
        found = [*self.folder.rglob("*.partial*"), *self.folder.rglob("*.lock*")]
        found += self.clone.scratch.glob("overlays.lock*")
        return found + list(self.clone.scratch.glob("cache/overlays/work*"))


@pytest.fixture(scope="session")
def make_overlay_clone(make_clone, fetcher, wheels):
    """Give a function that makes a clone with an overlay configured, and nothing built."""

    def make(folder, runtime="apptainer", requirements=(TINY,), more="", image=None):
        clone = make_clone(folder, runtime, list(requirements), f'overlay = "myenv"\n{more}', image)
        text = (clone.root / "configuration.toml").read_text()
        clone.configure(text.replace('installer = "pip"', 'installer = "uv"'))
        tools = clone.scratch / f"tools_{OWN}"
        tools.mkdir(parents=True)
        (tools / "fetcher").symlink_to(fetcher)
        shutil.copy(fetcher / "bin/uv", tools / "uv")
        return OverlayClone(clone, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)})

    return make


@pytest.fixture(scope="session")
def with_overlay(make_overlay_clone, tmp_path_factory):
    """Give a function that returns the clone of a runtime with its overlay; leave it as it is."""
    made = {}

    def give(runtime="apptainer"):
        if runtime not in made:
            made[runtime] = make_overlay_clone(
                tmp_path_factory.mktemp(f"overlay-{runtime}"), runtime
            )
            made[runtime].overlay()
        return made[runtime]

    return give


@pytest.fixture
def fresh(make_overlay_clone, tmp_path):
    """Give a clone of the test's own, for apptainer, with an overlay configured and not built."""
    return make_overlay_clone(tmp_path)


@pytest.fixture
def on_host(make_overlay_clone, tmp_path):
    """The same for the runtime host, which is the quickest."""
    return make_overlay_clone(tmp_path, "host")
