"""The verbs of an entry script, such as `submit.py status`: a file each, listed by its directory.

``lib/commands/submit_status.py`` contains the click command `status`, and ``submit_report.py`` in a
directory of ``extras/`` the command `report`, which is gone if the directory is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from lib import ROOT
from lib.script.errors import LongshipError

_DIRECTORIES = ("lib/commands", "extras/*")


def find_verbs(script: str) -> Mapping[str, Path]:
    """Return the files of the verbs of an entry script, which is given without its ending."""
    script = script.replace("-", "_")  # click's name of a command
    found = {path.stem[len(script) + 1 :].replace("_", "-"): path for path in _files(f"{script}_*")}
    return dict(sorted(found.items()))


def find_scripts() -> list[str]:
    """Return the names of the entry scripts that have a command, without their endings."""
    return sorted(path.stem for path in _files("*") if Path(ROOT, path.name).is_file())


def find_command(script: str) -> click.Command:
    """Return the command of an entry script, from its file here or in an extra."""
    for file in _files(script):
        return load_verb(script, file)
    raise LongshipError(
        f"{script}.py belongs to an extra that this clone does not have",
        f"restore its directory: git checkout -- extras; or delete it: rm {script}.py",
    )


def _files(name: str) -> list[Path]:
    return [path for each in _DIRECTORIES for path in Path(ROOT).glob(f"{each}/{name}.py")]


def load_verb(name: str, file: Path) -> click.Command:
    """Return the command of a verb."""
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return getattr(import_module(module), name.replace("-", "_"))


class WithVerbs(click.Command):
    """The command of an entry script that has verbs: a verb as its first word goes to its command.

    It can be typed as an option, such as `doctor.py --site`.
    """

    def shown_verbs(self) -> Iterator[click.Command]:
        """Yield the commands of all verbs that users type, and not jobs."""
        for name, file in find_verbs(str(self.name)).items():
            verb = load_verb(name, file)
            if not verb.hidden:
                yield verb

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the verb of a command line, or its own; options may come first."""
        verbs, before = find_verbs(str(self.name)), self._options_before(args)
        word = args[before] if before < len(args) else ""
        name = word.removeprefix("--")
        verb = load_verb(name, verbs[name]) if name in verbs else None
        if not verb or (verb.hidden and name != word):  # --begin is an option of sbatch
            return super().make_context(info_name, args, parent, **extra)
        return verb.make_context(
            f"{info_name} {word}", [*args[:before], *args[before + 1 :]], parent, **extra
        )

    def _options_before(self, args: list[str]) -> int:
        """Return how many words before the first one are options of this command."""
        options = [each for each in self.params if isinstance(each, click.Option)]
        length = {name: 1 if each.is_flag else 2 for each in options for name in each.opts}
        at = 0
        while at < len(args) and args[at].partition("=")[0] in length:
            at += 1 if "=" in args[at] else length[args[at]]
        return at

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, or the command itself."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs below the options."""
        rows = [(each.name, each.get_short_help_str(90)) for each in self.shown_verbs()]
        if rows:
            with formatter.section("Verbs, each with its own --help"):
                formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)
