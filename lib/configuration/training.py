"""The settings of a stack, [training], and the variables with them that its scripts read."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.paths import ROOTED, Paths, expand
from lib.configuration.schema import EnvironmentKeys
from lib.configuration.stacks import Setting
from lib.script.errors import LongshipError

# ORGANISATION/NAME, but not a file with an extension.
_REPO = r"[A-Za-z0-9][\w.-]*/(?![\w.-]*\.(?:json|ya?ml|jsonl|py|toml)$)[\w.-]+"
_WILDCARD = r"[*?\[]"


class Training(NamedTuple):
    """The settings of a stack, and the value of each; paths are absolute."""

    settings: Mapping[str, Setting]
    values: Mapping[str, Any]

    @classmethod
    def read(cls, settings: Settings, paths: Paths) -> Training:
        """Take each value from the configuration, or the stack's default."""
        given, known = settings.configuration.training, settings.stack.settings
        roots = {each: str(getattr(paths, each)) for each in ("project_dir", "scratch_dir")}
        values = {name: given.get(name, setting.default) for name, setting in known.items()}

        def expanded(name: str, text: str) -> str:
            if not text.startswith(ROOTED):  # a name on the Hugging Face Hub
                return text
            return expand(f"training.{name}", text, settings, roots)

        for name, value in values.items():
            if known[name].kind == "path":
                values[name] = expanded(name, value)
            elif known[name].kind == "paths":
                values[name] = tuple(expanded(name, each) for each in value)
        return cls(known, values)

    def variables(self) -> dict[str, str]:
        """Return the variables of the scripts: ``TRAINING_TOKENIZER`` for ``training.tokenizer``.

        A list has one entry per line, because a path can contain any other character.
        """
        return {
            f"TRAINING_{name.upper()}": "\n".join(value) if isinstance(value, tuple) else str(value)
            for name, value in self.values.items()
        }

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield setting and path for every path on this machine."""
        for name, value in self.values.items():
            if self.settings[name].kind in ("path", "paths"):
                for each in value if isinstance(value, tuple) else (value,):
                    if each.startswith("/"):
                        yield name, each

    def directories(self) -> Iterator[tuple[str, str]]:
        """Yield setting and directory, or single file, that must be visible inside.

        One of `paths` can be a pattern, or the common beginning of files, such as Megatron's
        ``.bin`` and ``.idx``: then it is their directory.
        """
        for name, path in self.paths():
            if self.settings[name].kind == "path":
                yield name, path
            else:
                directory = os.path.dirname(re.split(_WILDCARD, path)[0])
                yield name, directory if directory != "/" else path

    def patterns(self, step: str = "training") -> Iterator[tuple[str, ...]]:
        """Yield setting and path of what a step needs, and the patterns of a setting of `paths`."""
        for name, path in self.paths():
            if self.settings[name].step not in (step, "both"):
                continue
            several = self.settings[name].kind == "paths"
            patterns = [f"{glob.escape(path)}*", *([path] if re.search(_WILDCARD, path) else [])]
            yield (f"training.{name}", path, *(patterns if several else []))

    def repos(self, cache: Path, step: str = "training") -> Iterator[tuple[str, str, Path, Path]]:
        """Yield setting, name, and its two directories in the hub's cache, of what a step needs."""
        hub = cache / "hub"
        for name, setting in self.settings.items():
            repo = str(self.values[name]).partition(":")[0]
            needed = setting.kind == "path" and setting.step in (step, "both")
            if needed and re.fullmatch(_REPO, repo):
                stored = repo.replace("/", "--")
                places = (hub / f"models--{stored}", hub / f"datasets--{stored}")
                yield f"training.{name}", repo, *places

    def check_parallel(self, gpus: int, nodes: int) -> None:
        """Stop if the parallel sizes do not divide the GPUs of all nodes (0: unknown)."""
        sizes = {}
        for name, setting in self.settings.items():
            size = self.values[name]
            if setting.kind == "parallel" and size and not setting.within:
                sizes[name] = size
            outer = (self.values[setting.within] or gpus // nodes) if setting.within else 0
            if outer and size and outer % size:
                raise LongshipError(
                    f"training.{name} = {size} does not divide {setting.within} = {outer}",
                    "change one of them in configuration.toml",
                )
        product = math.prod(sizes.values())
        if gpus and gpus % product:
            shown = " x ".join(f"training.{name} = {size}" for name, size in sizes.items())
            raise LongshipError(
                f"{gpus} GPUs cannot be divided into groups of {product}: {shown}",
                "change one of them in configuration.toml, or the number of nodes: --nodes=...",
            )


def hub_cache(environment: EnvironmentKeys, paths: Paths) -> Path:
    """Return the cache of the hub: HF_HOME of the environment inside.

    Variables are set as they are written: the libraries would expand ~, and a script would not.
    """
    for other in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"):
        if other in environment.set:
            raise LongshipError(
                f"environment.set has {other}: models and datasets are not downloaded to it",
                "set HF_HOME in its place, to the directory that contains hub/",
            )
    given = environment.set.get("HF_HOME") or str(paths.hub)
    if not given.startswith("/"):
        raise LongshipError(
            f'environment.set has HF_HOME = "{given}", which is not an absolute path',
            'write the whole path, without ~ and variables: HF_HOME = "/..."',
        )
    return Path(given)
