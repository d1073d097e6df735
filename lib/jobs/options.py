"""sbatch options, read as sbatch does: command line, environment, header of a job script."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lib.script.errors import LongshipError, closest, suggest

# Options with a value, in `sbatch --help` of Slurm 22.05 or the manual of 25.05. Others pass too:
# those of plugins (SPANK), such as --uenv, and of newer versions.
_VALUE_NAMES = """
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint
    container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline
    delay-boot dependency distribution error exclude export export-file extra extra-node-info gid
    gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input
    job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
    reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min
    tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap
"""
# Options without one; some of them take an optional one after `=`.
_FLAG_NAMES = """
    contiguous exclusive get-user-env help hold ignore-pbs nice no-kill no-requeue
    overcommit oversubscribe parsable propagate quiet reboot requeue resv-ports
    spread-job stepmgr test-only usage use-min-nodes verbose version wait x11
"""
_WITH_VALUE, _FLAGS = _VALUE_NAMES.split(), _FLAG_NAMES.split()
OPTIONS = [*_WITH_VALUE, *_FLAGS]

_SHORT = {
    **{"A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint"},
    **{"c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile"},
    **{"G": "gpus", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters"},
    **{"m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition"},
    **{"q": "qos", "S": "core-spec", "t": "time", "w": "nodelist", "x": "exclude"},
    **{"H": "hold", "h": "help", "k": "no-kill", "O": "overcommit", "Q": "quiet"},
    **{"s": "oversubscribe", "V": "version", "v": "verbose", "W": "wait"},
}
# What sbatch takes for another option.
_ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}
# Variables of sbatch and salloc, after SBATCH_ and SALLOC_, for the options that lib/jobs reads.
_VARIABLE_NAMES = """
    account constraint error exclusive export gpus gpus-per-node gpus-per-task gres job-name
    mem-per-cpu mem-per-gpu output partition qos reservation
"""
_VARIABLES = {each.upper().replace("-", "_"): each for each in _VARIABLE_NAMES.split()}
_VARIABLES.update(ARRAY_INX="array", MEM_PER_NODE="mem", TIMELIMIT="time")


class Option(NamedTuple):
    """An sbatch option: its long name, and its value (None for a flag)."""

    name: str
    value: str | None

    @property
    def word(self) -> str:
        """The option as one argument of a command line."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def split_typed(
    words: Sequence[str], own: Sequence[str] = ()
) -> tuple[list[Option], tuple[str, ...]]:
    """Separate sbatch options from arguments of the job, which follow ``--``.

    The others are options of the command itself, for suggestions.
    """
    before, after = list(words), []
    if "--" in before:
        place = before.index("--")
        before, after = before[:place], before[place + 1 :]
    _check_place(after, own)
    return read_options(before, own=own), tuple(after[1:] if after[:1] == ["--"] else after)


def _check_place(arguments: Sequence[str], own: Sequence[str]) -> None:
    """Stop at an option of the command among the arguments of the job, up to a second ``--``."""
    known = [f"--{each}" for each in own]
    for each in itertools.takewhile(lambda word: word != "--", arguments):
        if each.partition("=")[0] in known:
            raise LongshipError(
                f"{each} after -- is an argument of the job, and not an option of this command",
                f"put {each} before --; or, if the job is to get it, write -- -- in place of --",
            )


def read_options(
    words: Sequence[str], *, strict: bool = True, own: Sequence[str] = ()
) -> list[Option]:
    """Read the options of a command line, as getopt does for sbatch.

    Whether an unknown option takes the next word as its value only sbatch knows. If not strict, it
    does: in a header no argument of the job can follow.
    """
    found = []
    left = list(words)
    while left:
        text = left.pop(0)
        if text.startswith("--") and len(text) > 2:
            name, equals, value = text[2:].partition("=")
            options = [(_full_name(name, own), value if equals else None)]
        elif text.startswith("-") and len(text) > 1:
            options = _short_options(text)
        else:
            raise LongshipError(
                f'unexpected argument: "{text}"',
                f"put job arguments after `--`, such as: -- {text}",
            )
        for name, value in options:
            if value is None and name in _WITH_VALUE:
                if not left:
                    raise LongshipError(f"missing value: {text}", f"write --{name}=VALUE")
                value = left.pop(0)
            elif value is None and name not in _FLAGS and left and not left[0].startswith("-"):
                value = left.pop(0)
                if strict:
                    raise LongshipError(
                        f"unknown option: {text} {value}",
                        f"for a job argument: -- {text} {value}; for sbatch: {text}={value}",
                    )
            found.append(Option(name, value))
    return found


def _full_name(name: str, own: Sequence[str]) -> str:
    """Complete an abbreviation, as getopt does; what may be meant for submit.py is no option."""
    known = [*OPTIONS, *_ALIASES]
    begun = [name] if name in known else [each for each in known if each.startswith(name)]
    if len(begun) == 1:
        return _ALIASES.get(begun[0], begun[0])
    close = closest(name, own, cutoff=0.75)
    if close and not begun:
        raise LongshipError(f"no such option: --{name}", f"did you mean --{close}?")
    return name


def _short_options(text: str) -> list[tuple[str, str | None]]:
    """Read ``-N2`` and ``-Hv``."""
    found: list[tuple[str, str | None]] = []
    for position, letter in enumerate(text[1:], 2):
        if letter not in _SHORT:
            raise LongshipError(f"sbatch has no option -{letter}", suggest(letter, list(_SHORT)))
        name = _SHORT[letter]
        if name in _WITH_VALUE:
            return [*found, (name, text[position:] or None)]
        found.append((name, None))
    return found


def is_option(text: str) -> bool:
    """Tell whether an argument is an sbatch option, with or without its value."""
    name = text[2:].partition("=")[0] if text.startswith("--") else _SHORT.get(text[1:2], "")
    return text.startswith("-") and name in OPTIONS


def read_header(text: str, shown: str) -> list[Option]:
    """Read the ``#SBATCH`` directives of a job script: those before its first command."""
    words: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            try:
                found = shlex.split(line[len("#SBATCH") :], comments=True)
            except ValueError as error:
                raise LongshipError(
                    f"{shown}, line {number}: {error}", "close the quotation mark"
                ) from error
            if found[:1] in (["hetjob"], ["packjob"]):
                raise LongshipError(
                    f"{shown} is a heterogeneous job, which Longship cannot start",
                    f"submit it with sbatch {shown}, or its parts as jobs of their own",
                )
            words += found
    try:
        return read_options(words, strict=False)
    except LongshipError as error:
        raise LongshipError(f"{shown}: {error}", error.hint) from error


def read_variables(environ: Mapping[str, str], program: str = "SBATCH") -> list[Option]:
    """Read the environment variables of sbatch, or of salloc (``SALLOC``)."""
    found = {f"{program}_{variable}": option for variable, option in _VARIABLES.items()}
    return [
        Option(option, environ[variable] or None)
        for variable, option in found.items()
        if variable in environ
    ]


def combined(options: Iterable[Option]) -> dict[str, str]:
    """Return values by long name, empty for flags: a later option replaces an earlier one."""
    return {each.name: each.value or "" for each in options}


def same_gpus(header: Iterable[Option], typed: Iterable[Option]) -> list[Option]:
    """Name the GPUs per node in typed options as the header does, so that they replace it.

    Slurm 22.05 takes --gres=gpu:4 of a header and a typed --gpus-per-node=2 as a request for both.
    """
    given = combined(header)
    gres = [each for each in given.get("gres", "").split(",") if each]
    others = [each for each in gres if not each.startswith("gpu")]
    found = []
    for each in typed:
        value = each.value or ""
        if each.name == "gpus-per-node" and others != gres:
            found.append(Option("gres", ",".join([*others, f"gpu:{value}"])))
        elif each.name == "gres" and "gpus-per-node" in given and re.match(r"gpu[^,]*$", value):
            found.append(Option("gpus-per-node", value[len("gpu:") :] or "1"))
        else:
            found.append(each)
    return found
