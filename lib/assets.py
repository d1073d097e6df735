"""Models, tokenizers and datasets of the Hugging Face hub: fetched, and taken to other machines.

They go into the cache that the environment uses. On their way to a machine without network they are
plain files below ``offline/assets``, with a record that names their commit and has their checksums.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lib.command import assign, call, wrapped
from lib.configuration import entry_name
from lib.container import here_lines
from lib.entries import ASSET
from lib.errors import LongshipError
from lib.packages import wanted_venv
from lib.paths import Paths
from lib.settings import Settings
from lib.training import hub_cache

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]*", re.ASCII)


class Asset(NamedTuple):
    """One of the [[assets]].

    Parameters
    ----------
    repo : str
        Its name on the hub.
    kind : str
        ``model`` or ``dataset``.
    revision : str
        A commit, or a branch or tag.
    include, exclude : tuple of str
        Patterns of the files that are wanted, and of those that are not.
    """

    repo: str
    kind: str = ASSET["kind"].default
    revision: str = ASSET["revision"].default
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder that huggingface_hub gives it: ``models--openai-community--gpt2``."""
        return "--".join([f"{self.kind}s", *self.repo.split("/")])

    @property
    def record(self) -> str:
        """The name of its record; another revision or other patterns have another one."""
        return f"{self.folder}-{hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:12]}"

    @property
    def refs(self) -> tuple[str, ...]:
        """The names besides the commit under which it is to be found."""
        return () if _COMMIT.fullmatch(self.revision) else (self.revision,)


def configured_assets(settings: Settings) -> tuple[Asset, ...]:
    """Return the assets of all layers.

    Raises
    ------
    LongshipError
        If one has no repo, or a repo or revision that the hub cannot have.
    """
    origin = settings.origins["assets"]
    return tuple(_asset(each, origin) for each in settings.configuration.assets)


def _asset(entry: Mapping[str, Any], origin: str) -> Asset:
    asset = Asset(**{"repo": "", **{key: entry[key] for key in entry if key != "name"}})
    if not _REPO.fullmatch(asset.repo) or "--" in asset.repo or ".." in asset.repo:
        raise LongshipError(
            f'{origin}: repo of asset "{entry_name(entry)}" is not a name on the hub: '
            f'"{asset.repo}"',
            'write it like this: repo = "openai-community/gpt2"',
        )
    if not _REVISION.fullmatch(asset.revision) or ".." in asset.revision:
        raise LongshipError(
            f'{origin}: revision of asset {asset.repo} is not valid: "{asset.revision}"',
            "set revision to a commit, branch or tag of the asset",
        )
    return asset


def install_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that fetch what is missing, with ``inside COMMAND...`` defined.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.

    Returns
    -------
    list of str
        Lines of bash; none where no asset is configured.
    """
    assets = configured_assets(settings)
    if not assets:
        return []
    return [*_fetch_lines(settings, paths, assets), *_name_lines(assets)]


def download_lines(settings: Settings, here: Paths) -> list[str]:
    """Return the lines that fetch all for another machine.

    They define ``inside COMMAND...`` anew, as this machine itself.

    Parameters
    ----------
    settings : Settings
        All layers put together, for the machine that will use them.
    here : Paths
        Where things lie on the machine that downloads.

    Returns
    -------
    list of str
        Lines of bash; none where no asset is configured.
    """
    assets = configured_assets(settings)
    if not assets:
        return []
    settings = _with_own_cache(settings)
    return [
        *here_lines(settings, here),
        *_fetch_lines(settings, here, assets),
        assign("travelling_assets", here.assets),
        *(call("export_asset", each.record, each.folder) for each in assets),
    ]


def _with_own_cache(settings: Settings) -> Settings:
    """Return the settings without HF_HOME, which names a folder of the target."""
    configuration = settings.configuration
    kept = {name: text for name, text in configuration.environment.set.items() if name != "HF_HOME"}
    environment = replace(configuration.environment, set=kept)
    return replace(settings, configuration=replace(configuration, environment=environment))


def offline_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that put what was downloaded elsewhere where the libraries look for it.

    Parameters
    ----------
    settings : Settings
        All layers put together.
    paths : Paths
        Where things lie.

    Returns
    -------
    list of str
        Lines of bash; none where no asset is configured.
    """
    assets = configured_assets(settings)
    if not assets:
        return []
    return [
        *_cache_lines(settings, paths),
        assign("travelling_assets", paths.assets),
        *(
            call("import_asset", f"{number}/{len(assets)}", each.record, each.folder, each.repo)
            for number, each in enumerate(assets, 1)
        ),
        *_name_lines(assets),
    ]


def _cache_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that say where the cache is, and for which machine."""
    cache = hub_cache(settings, paths)
    return [assign("hub_cache", cache), assign("machine", settings.machine.name)]


def _fetch_lines(settings: Settings, paths: Paths, assets: tuple[Asset, ...]) -> list[str]:
    """Return the lines that fetch them, and before that say which Pythons may be able to."""
    lines = [
        *_cache_lines(settings, paths),
        assign("hub_venv", wanted_venv(settings, paths) or ""),
        assign("hub_tools", paths.tools / "hub"),
    ]
    for number, each in enumerate(assets, 1):
        words = [each.record, each.folder, each.kind, each.repo, each.revision]
        for option, patterns in (("--include", each.include), ("--exclude", each.exclude)):
            words += [word for pattern in patterns for word in (option, pattern)]
        lines.append(wrapped("fetch_asset", f"{number}/{len(assets)}", *words))
    return lines


def _name_lines(assets: tuple[Asset, ...]) -> list[str]:
    """Return the lines that let names lead to the commits: without one, to a repo's first asset."""
    names = {(each.folder, ref): each for each in assets for ref in each.refs}
    for each in reversed(assets):
        names[each.folder, "main"] = each
    return [call("name_asset", each.record, *name) for name, each in names.items()]
