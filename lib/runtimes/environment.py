"""The environment that a script works with, resolved once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, check_started, is_below, pinned
from lib.configuration.sites import Machine
from lib.configuration.training import Training
from lib.runtimes.contract import Bind, configured_binds, patched_files
from lib.runtimes.image import ImageSource, active_image, image_source, image_to_start
from lib.runtimes.packages import MOUNTED_AT, Packages, seen_at
from lib.runtimes.runtime import Runtime, runtime_of
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word

IMAGE = Expansion('"$image"')


class _Given(NamedTuple):
    """The values that an environment is resolved from."""

    settings: Settings
    paths: Paths
    runtime: str
    purpose: str = "run"
    held: Mapping[str, str] = {}
    more_binds: tuple[Bind, ...] = ()
    at_rank: tuple[str, ...] = ()  # functions of bash that each rank calls with the runtime


class Environment(_Given):
    """Settings, paths and runtime, and the image, overlay, venv and binds that follow from them.

    What a script does not use is not looked for; what it uses is looked for once.

    The purpose is ``run``: a command on this machine; ``ranks``: a launcher; ``job``: a launcher
    that srun starts in a job; or ``set_up``: an installation, outside the venv.
    """

    @property
    def machine(self) -> Machine:
        """The target machine."""
        return self.settings.machine

    @property
    def for_ranks(self) -> bool:
        """Whether ranks start it, many at once, which install nothing."""
        return self.purpose in ("ranks", "job")

    @property
    def in_pyxis(self) -> bool:
        """Whether srun starts the container, so that a launcher runs inside it."""
        return self.purpose == "job" and self.machine.pyxis != "no" and self.runtime == "enroot"

    @property
    def module(self) -> Runtime:
        """The module of its runtime, or in a job of that which starts the runtime's images."""
        return runtime_of("pyxis" if self.in_pyxis else self.runtime)

    @cached_property
    def training(self) -> Training:
        """The settings of the stack."""
        return Training.read(self.settings, self.paths)

    @cached_property
    def source(self) -> ImageSource:
        """The source of the image."""
        return image_source(self.settings)

    @cached_property
    def image(self) -> str:
        """File or tag of the image; empty for ``host``."""
        if "image" in self.held:
            return self._checked(self.held["image"])
        if self.runtime == "host":
            return ""
        self.check_image_directory()
        return self._checked(image_to_start(self.runtime, self.source, self.paths))

    def check_image_directory(self, *, activates: bool = False) -> None:
        """Stop if the site starts only images of another directory, as Jean Zay does.

        No image is activated there: the configuration names one of that directory.
        """
        directory = self.machine.image_directory
        inside = self.settings.configuration.container.image.startswith(f"{directory}/")
        if not directory or (inside and not activates):
            return
        active = active_image(self.runtime, self.source, self.paths)
        build = self.settings.command("python3", "build_container.py")
        copy = call(*self.machine.image_copy, active.parent / "build" / active.name)
        image = f'container.image = "{directory}/{active.name}"'
        raise LongshipError(
            f"{self.machine.description} starts only images in {directory}",
            f"run: {build}; then: {copy}; then set {image} in configuration.toml",
        )

    @property
    def image_hint(self) -> str:
        """The hint for a missing or unusable image."""
        if not self.image:
            return ""
        if self.source.ready and self.machine.image_copy:
            return f"run: {call(*self.machine.image_copy)} FILE; or set container.image"
        if self.source.ready:
            return "ask the site's support; or set container.image in configuration.toml"
        scripts = ("build_container.py", "move_built_container_to_active.py")
        return "run: " + " && ".join(self.settings.command("python3", each) for each in scripts)

    @property
    def base(self) -> str:
        """What packages are installed on: their Python belongs to this image, or to the host."""
        return self.image or "host"

    @cached_property
    def packages(self) -> Packages:
        """The configured packages, whether they are installed or not."""
        return Packages(self.settings, self.paths)

    @cached_property
    def overlay(self) -> str:
        """File of the overlay, the target of its link; empty for none."""
        if "overlay" in self.held:
            return self._checked(self.held["overlay"])
        overlay = self.packages.overlay
        if overlay:
            self._checked(str(overlay))
            self._checked(seen_at(str(pinned(overlay)), self.runtime))
        return self._checked(str(pinned(overlay))) if overlay else ""

    def _checked(self, file: str) -> str:
        """Return a file that nobody can change but who builds it."""
        check_started(self.paths, Path(file))
        return file

    @cached_property
    def venv(self) -> str:
        """Directory of the active version of the venv; empty for none."""
        if "venv" in self.held:
            return self.held["venv"]
        venv = self.packages.venv
        return str(pinned(venv)) if venv else ""

    def afresh(self) -> Environment:
        """Return the same environment, which looks again for what is active now."""
        return self._replace()  # nothing that was found is kept

    @property
    def files(self) -> dict[str, str]:
        """Image, overlay and venv by these names, to be held."""
        return {"image": self.image, "overlay": self.overlay, "venv": self.venv}

    @property
    def package_directories(self) -> list[str]:
        """Directories with packages on top of the image, the lowest first."""
        overlay = [seen_at(self.overlay, self.runtime)] if self.overlay else []
        return [*overlay, *([self.venv] if self.venv else [])]

    @cached_property
    def _configured_binds(self) -> tuple[tuple[Bind, ...], tuple[Bind, ...]]:
        return configured_binds(self.settings, self.paths, self.training)

    @property
    def binds(self) -> tuple[Bind, ...]:
        """Directories that must exist."""
        return (*self._configured_binds[0], *self.more_binds)

    @property
    def site_binds(self) -> tuple[Bind, ...]:
        """Directories that are bound where they exist."""
        venv = [] if self.purpose == "set_up" else self.venv_binds
        return (*self._configured_binds[1], *venv)

    @property
    def venv_binds(self) -> list[Bind]:
        """The bind of a venv outside the configured directories."""
        if not self.venv or any(is_below(self.venv, str(each)) for each in self.paths.trees):
            return []
        return [Bind(self.venv, self.venv)]

    def check_binds(self) -> None:
        """Stop if a configured bind is wrong, also for runtimes that bind nothing."""
        _ = (self.binds, self.patched_files)

    @cached_property
    def patched_files(self) -> tuple[Bind, ...]:
        """Files that are bound over files of the image."""
        return patched_files(self.settings, self.paths)


def bind_lines(env: Environment) -> list[str]:
    """Return the lines that add the binds to the array ``options``."""
    return [
        *(_bind("bind_add_if_exists", each) for each in env.site_binds),
        *(_bind("bind_add", each) for each in env.binds),
        *(call("patched_file_add", each.source, each.target) for each in env.patched_files),
        call("bind_host_files"),
        # ranks do not read pip's configuration from the home directory
        *([] if env.for_ranks else [call("bind_pip_sources")]),
    ]


def overlay_lines(env: Environment, function: str, *arguments: Word) -> list[str]:
    """Return the lines that check the overlay and mount it, by a function of the runtime.

    Its arguments are the overlay, the mount point, if there is a container, and further ones.
    """
    if not env.overlay:
        return []
    target = [] if env.runtime == "host" else [MOUNTED_AT]
    return [check_overlay(env), call(function, env.overlay, *target, *arguments)]


def check_overlay(env: Environment) -> str:
    """Return the line that checks the overlay."""
    return call("overlay_check", env.overlay, env.base, env.settings.stack.name)


def command_line(env: Environment) -> str:
    """Return the line that sets the command to ``"$@"``, or to an interactive shell."""
    shell = env.paths.root / "lib/runtimes/inside/interactive.bash"
    return call("command_set", shell, Expansion('"$@"'))


def module_lines(machine: Machine, runtime: str) -> list[str]:
    """Return the line that loads the site's modules, where the runtime comes from them."""
    return [call("modules_load", runtime, *machine.modules)] if machine.modules else []


def _bind(function: str, bind: Bind) -> str:
    target = [] if bind.target == bind.source and not bind.read_only else [bind.target]
    return call(function, bind.source, *target, *(["ro"] if bind.read_only else []))
