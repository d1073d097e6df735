"""Assets: models, tokenizers and datasets of the Hugging Face Hub, for this and other machines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, check_started
from lib.configuration.schema import AssetEntry, entry_name
from lib.configuration.training import hub_cache
from lib.runtimes.launch import here_lines
from lib.script.command import assign, call, wrapped
from lib.script.errors import LongshipError
from lib.script.quoting import Word
from lib.script.trust import refuse_default_acl

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]*", re.ASCII)


class Asset(AssetEntry):
    """One of the [[assets]], and its names on this machine."""

    @property
    def directory(self) -> str:
        """The directory name that huggingface_hub uses: ``models--openai-community--gpt2``."""
        return "--".join([f"{self.kind}s", *self.repo.split("/")])

    @property
    def record(self) -> str:
        """The name of its record, different for each revision and selection of files."""
        return f"{self.directory}-{hashlib.sha256(repr(tuple(self)[1:]).encode()).hexdigest()[:12]}"


def configured_assets(settings: Settings) -> tuple[Asset, ...]:
    """Return the assets of all layers; stop if one has no valid repo or revision."""
    origin = settings.origins["assets"]
    return tuple(_asset(each, origin) for each in settings.configuration.assets)


def _asset(entry: Mapping[str, Any], origin: str) -> Asset:
    asset = Asset(**entry)
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


def asset_install_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that download missing assets, with ``inside COMMAND...`` defined."""
    assets = configured_assets(settings)
    return (
        [*_fetch_lines(settings, paths, assets), *_ref_lines(settings, paths, assets)]
        if assets
        else []
    )


def asset_download_lines(settings: Settings, here: Paths) -> list[str]:
    """Return the lines that download all assets for another machine.

    They redefine ``inside COMMAND...`` to run on this machine itself, whose paths are `here`.
    """
    assets = configured_assets(settings)
    if not assets:
        return []
    settings = _with_own_cache(settings)
    return [
        *here_lines(settings, here),
        *_fetch_lines(settings, here, assets),
        *(call("asset_export", each.record, each.directory, here.assets) for each in assets),
    ]


def _with_own_cache(settings: Settings) -> Settings:
    """Return the settings without HF_HOME, which is a directory of the target."""
    configuration = settings.configuration
    kept = {name: text for name, text in configuration.environment.set.items() if name != "HF_HOME"}
    environment = configuration.environment._replace(set=kept)
    return settings._replace(configuration=configuration._replace(environment=environment))


def asset_offline_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that copy downloaded assets to the cache of the libraries."""
    assets = configured_assets(settings)
    if not assets:
        return []
    return [
        *_start_lines(settings, paths),
        *(
            wrapped(
                *("asset_import", f"{number}/{len(assets)}", each.record),
                *(each.directory, each.repo, paths.assets),
            )
            for number, each in enumerate(assets, 1)
        ),
        *_ref_lines(settings, paths, assets),
    ]


def _fetch_lines(settings: Settings, paths: Paths, assets: tuple[Asset, ...]) -> list[str]:
    """Return the lines that download them."""
    lines = _start_lines(settings, paths)
    for number, each in enumerate(assets, 1):
        words: list[Word] = [each.record, each.directory, paths.tools / "hub"]
        words += [each.kind, each.repo, each.revision]
        for option, patterns in (("--include", each.include), ("--exclude", each.exclude)):
            words += [word for pattern in patterns for word in (option, pattern)]
        lines.append(wrapped("asset_fetch", f"{number}/{len(assets)}", *words))
    return lines


def _start_lines(settings: Settings, paths: Paths) -> list[str]:
    """Return the lines that set what all functions read."""
    cache = hub_cache(settings.configuration.environment, paths)
    check_started(paths, cache)
    shared = [paths.shared_dir] if paths.is_shared and cache == paths.hub else []
    for each in shared:
        refuse_default_acl(each)
    return [assign("machine", settings.machine.name), call("assets_begin", cache, *shared)]


def _ref_lines(settings: Settings, paths: Paths, assets: tuple[Asset, ...]) -> list[str]:
    """Return the lines with which programs find them by name; main is a repo's first asset."""
    named = [each for each in assets if not _COMMIT.fullmatch(each.revision)]
    names = {(each.directory, each.revision): each for each in named}
    for each in reversed(assets):
        names[each.directory, "main"] = each
    metrics = [each for each in assets if each.kind == "space"]
    home = settings.configuration.environment.set.get("HF_HOME") or paths.cache / "huggingface"
    return [
        *(call("asset_set_ref", each.record, *name) for name, each in names.items()),
        *(call("asset_add_metric", each.record, each.directory, home) for each in metrics),
    ]
