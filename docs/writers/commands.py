"""commands.md: every script with its arguments and options, taken from the commands."""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import itertools
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click

from lib import ROOT
from lib.commands.options import plain_options
from lib.commands.verbs import WithVerbs, find_command, find_scripts
from training_run import fail
from writers.markdown import code, page, plain, table

_INTRO = """\
This page lists every script of the repository with all arguments and options, as `--help` does.
Put the options of `container_run.py` before the command: all later arguments are passed to it."""

_COMMON = """\
The variables `LONGSHIP_MACHINE`, `LONGSHIP_STACK` and `LONGSHIP_CONFIGURATION` have the same
effect as the first three options; an option overrides its variable. Output to a terminal is
coloured; `NO_COLOR=1` turns colours off. A printed script needs bash and the programs that it
names, but no Python."""

WITHOUT = "Of the common options, this script accepts only `--version`."

_PAYLOAD = """\
You can replace these two programs with your own. They run inside the environment; the defaults
shown are those without a GPU."""


def commands_page() -> str:
    """Return the page."""
    common = _common_options()
    parts = [_INTRO, "## Options of every Python script", _options_table(common), _COMMON]
    known = {option for each in common for option in each.opts}
    for name, command in click_commands().items():
        parts += _command_parts(f"## {name}", name, command, known)
        for typed, verb in verbs_of(name, command):
            parts += _command_parts(f"### {typed}", typed, verb, known)
    for path in sorted(Path(ROOT).glob("*.sh")):
        parts += [f"## {path.name}", *_shell_parts(path)]
    parts += ["## train.py and preprocess_data.py", _PAYLOAD]
    for name in ("train.py", "preprocess_data.py"):
        parts += [f"### {name}", *_parser_parts(name)]
    return page("Commands", *parts)


def click_commands() -> dict[str, click.Command]:
    """Return the click command of each entry script, by the script's name."""
    return {f"{each}.py": find_command(each) for each in find_scripts()}


def verbs_of(typed: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield what is typed for each verb of a command, and its command; also verbs of verbs."""
    for verb in command.shown_verbs() if isinstance(command, WithVerbs) else ():
        yield f"{typed} {verb.name}", verb
        yield from verbs_of(f"{typed} {verb.name}", verb)


def _common_options() -> list[click.Option]:
    return list(click.command()(plain_options(lambda **_: None)).params)


def _command_parts(heading: str, name: str, command: click.Command, common: set[str]) -> list[str]:
    own = [
        each
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and not common & {*each.opts}
    ]
    arguments = [
        _argument(each)
        for each in command.params
        if isinstance(each, click.Argument) and each.metavar != ""  # that one is for programs
    ]
    some = ["[OPTION...]"] if any(isinstance(each, click.Option) for each in command.params) else []
    usage = " ".join(["python3", name, *some, *arguments])
    parts = [heading, f"```text\n{usage}\n```", *_prose(command.help or "")]
    if own:
        parts.append(_options_table(own))
    if not common <= {each for option in command.params for each in option.opts}:
        parts.append(WITHOUT)
    return [*parts, *_prose(command.epilog or "")]


def _argument(argument: click.Argument) -> str:
    if isinstance(argument.type, click.Choice):
        shown = "|".join(argument.type.choices)
    else:
        shown = (
            argument.metavar or f"{argument.name}{'...' if argument.nargs == -1 else ''}".upper()
        )
    return shown if argument.required or shown.startswith("[") else f"[{shown}]"


def _options_table(options: list[click.Option]) -> str:
    rows = [
        (code(" ".join([*each.opts, *_metavar(each)])), plain(each.help or "")) for each in options
    ]
    return table(("option", "effect"), rows)


def _metavar(option: click.Option) -> list[str]:
    return [] if option.is_flag else [option.metavar or "VALUE"]


def _prose(text: str) -> list[str]:
    """Return the paragraphs of a help text."""
    return [_paragraph(each) for each in inspect.cleandoc(text).split("\n\n") if each]


def _paragraph(text: str) -> str:
    """Return a paragraph, a table of arguments (`name   description`), or an example."""
    if re.match("Examples?: ", text):
        return f"```bash\n{_examples(text)}\n```"
    first, _, listed = text.partition("\n")
    if first != "\b":
        return f"{plain(text)}."
    if re.search(r"^ {1,3}\S", listed, re.MULTILINE):  # not the second line of a description
        return f"```text\n{listed}\n```"
    rows: list[list[str]] = []
    for line in listed.splitlines():
        name, _, about = re.split(r"(  +|$)", line, maxsplit=1)
        if line.startswith(" "):
            rows[-1][1] += f" {line.strip()}"
        else:
            rows.append([name, about])
    return table(("argument", "effect"), [(code(name), plain(about)) for name, about in rows])


def _examples(text: str) -> str:
    """Return the commands of `Example: python3 x.py, on a laptop`, one per line."""
    lines = []
    for each in " ".join(text.split()).partition(": ")[2].split("; "):
        command, comma, where = each.partition(", ")
        lines.append(f"{command}    # {where}" if comma else command)
    return "\n".join(lines)


def _shell_parts(path: Path) -> list[str]:
    """Return the header comment of a script: its purpose, then its usage."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    head = itertools.takewhile(lambda line: line.startswith("#"), lines)
    paragraphs = "\n".join(each.lstrip("#") for each in head).split("\n\n")
    return [
        f"```text\n{inspect.cleandoc(each)}\n```" if each.startswith("   ") else f"{plain(each)}."
        for each in paragraphs
    ]


def payload_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of train.py or preprocess_data.py without importing their packages.

    Only the functions and strings of the file are compiled, and `parse_arguments` runs up to the
    point where it would parse, as on a machine without a GPU.
    """
    tree = ast.parse(Path(ROOT, name).read_text(encoding="utf-8"))
    texts = [each for each in tree.body if isinstance(getattr(each, "value", 0), ast.Constant)]
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    (own,) = (each for each in functions if each.name == "parse_arguments")
    parses = next(n for n, each in enumerate(own.body) if "parse_args" in ast.dump(each))
    own.body[parses:] = [ast.Return(ast.Name("parser", ast.Load()))]
    ast.fix_missing_locations(own)
    names = {
        "__doc__": ast.get_docstring(tree),
        "__name__": name,
        "argparse": argparse,
        "fail": fail,
        "math": math,
        "os": SimpleNamespace(environ={"LONGSHIP_SCRATCH_DIR": "<scratch_dir>"}),
        "suppress": contextlib.suppress,
        "sys": sys,
        "Path": Path,
        "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)),
        "HelpFormatter": argparse.HelpFormatter,
    }
    exec(compile(ast.Module([tree.body[1], *texts, *functions], []), name, "exec"), names)
    return names["parse_arguments"]()


def _parser_parts(name: str) -> list[str]:
    parser = payload_parser(name)
    rows = []
    for action in parser._actions:
        shown = ", ".join(action.option_strings) or "|".join(action.choices or [action.dest])
        if "--help" in action.option_strings:
            continue
        about = (action.help or "").replace(" (default: %(default)s)", "")
        if isinstance(action, argparse.BooleanOptionalAction):  # Python 3.9 appends its value
            about = about.replace(f" (default: {action.default})", "")
        stated = "default" in about or action.default is None
        rows.append((code(shown), plain(about), "" if stated else code(action.default)))
    about = [f"{plain(each)}." for each in (parser.description or "").split("\n\n")[:1]]
    return [*about, table(("option", "meaning", "default"), rows)]
