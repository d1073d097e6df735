"""What a runtime is: the constants and functions of its module, which is found by its name.

A new one is a pair of files, NAME.py and NAME.bash, in a directory of extras/, and no other change.
The functions of NAME.bash begin with a prefix of the runtime's; the lines of NAME.py name them. Its
program is called as the runtime, and ``NAME version`` succeeds if it works on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from lib.configuration.runtimes import known_runtime
from lib.script.command import call
from lib.script.quoting import Expansion, Word

_Environment = Any  # of lib/runtimes/environment.py, which imports this module
ARGUMENTS = Expansion('"$@"')


class Runtime(Protocol):
    """The module of a runtime."""

    # its names in the configuration, and the endings of their images' files; in one line
    ENDINGS: Mapping[str, str]
    # kinds of image sources that it can use (lib/runtimes/image.py)
    SOURCES: tuple[str, ...]
    # whether the file of an image only contains its name in a store of the runtime
    IN_STORE: bool
    # whether a daemon starts the programs, so that they are no children of what a rank starts
    DAEMON: bool

    def build(self, env: _Environment, tag: str, work: Path) -> list[str]:
        """Return the lines that build the image in a directory; a store calls it by the tag."""

    def answers(self, env: _Environment) -> list[Word]:
        """Return the command that answers the questions of `image_ask` (image.bash)."""

    def check(self, env: _Environment) -> list[str]:
        """Return the lines that check the image, on any machine where its file is visible."""

    def options(self, env: _Environment) -> list[str]:
        """Return the lines that collect the runtime's options in the array ``options``."""

    def command_prefix(self, env: _Environment) -> list[Word]:
        """Return the arguments before the user's command."""

    def start_probe(self, program: str, image: str) -> list[str]:
        """Return the command that succeeds if this runtime can start this image."""


def runtime_of(name: str) -> Runtime:
    """Return the module of a runtime."""
    return cast(Runtime, import_module(known_runtime(name).module))


def answer_lines(env: _Environment) -> list[str]:
    """Return the line that lets ``image_ask`` ask this runtime about its images."""
    command = runtime_of(env.runtime).answers(env)
    return [f"image_ask() {{ {call(*command, ARGUMENTS)}; }}"] if command else []
