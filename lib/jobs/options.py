"""sbatch options, read as sbatch does: command line, environment, header of a job script."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lib.script.errors import LongshipError, closest, suggest

# Options that do not make a job larger, in `sbatch --help` of Slurm 22.05 or the manual of 25.05;
# first those with a value.
_HARMLESS_VALUE_NAMES = """
    account acctg-freq batch bb bbf begin chdir cluster-constraint comment container container-id
    cpu-freq deadline delay-boot dependency distribution error exclude export export-file extra gid
    gpu-bind gpu-freq gres-flags input job-name kill-command kill-on-invalid-dep licenses mail-type
    mail-user mcs-label mem-bind network open-mode output power prefer priority profile reservation
    segment signal switches time-min tmp tres-bind uid wait-all-nodes wckey wrap
"""
# Some of these take an optional one after `=`.
_HARMLESS_FLAG_NAMES = """
    bell contiguous get-user-env help hold ignore-pbs immediate nice no-bell no-kill no-requeue
    overcommit oversubscribe parsable propagate quiet reboot requeue resv-ports stepmgr test-only
    usage use-min-nodes verbose version wait x11
"""
_COUNT, _GPUS = r"(\d+)", r"(?:[\w.-]+:)?(\d+)"  # GPUs with or without their type
MEMORY = r"(\d+(?:\.\d+)?)([KMGT]?)B?"
# Options that are counted, and the values that are understood, in upper or lower case. With one
# thread per core a job gets the cores that it asks for, as they are counted here.
COUNTED = {
    **dict.fromkeys(("array", "exclusive", "partition", "qos", "time"), ".*"),
    **{"nodes": r"(?:\d+-)?(\d+)", "nodelist": ".*", "constraint": "[^*]*"},
    **dict.fromkeys(("ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu"), _COUNT),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), _GPUS),
    # mps and shard are parts of a GPU
    "gres": r"(?:(?:^|,)(?:gres[:/])?(?!mps|shard)[\w.-]+(?::[\w.-]+){0,2})*",
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), MEMORY),
    **{"hint": "(?:no)?multithread", "threads-per-core": "1", "ntasks-per-core": _COUNT},
}
HARMLESS = {*_HARMLESS_VALUE_NAMES.split(), *_HARMLESS_FLAG_NAMES.split()}
# Any other option can make a job larger, also those of plugins (SPANK), such as --uenv, and of
# newer versions. These take a value.
_UNCOUNTED_NAMES = """
    clusters core-spec cores-per-socket extra-node-info gpus-per-socket mincpus nodefile
    ntasks-per-gpu ntasks-per-socket sockets-per-node thread-spec tres-per-task
"""
_FLAGS = [*_HARMLESS_FLAG_NAMES.split(), "exclusive", "spread-job"]
_WITH_VALUE = [*_HARMLESS_VALUE_NAMES.split(), *_UNCOUNTED_NAMES.split(), *COUNTED]
_WITH_VALUE.remove("exclusive")
_OPTIONS = [*_WITH_VALUE, *_FLAGS]

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
    account constraint cpus-per-gpu error exclusive export gpus gpus-per-node gpus-per-task gres
    hint ignore-pbs job-name mem-per-cpu mem-per-gpu output partition qos reservation
    threads-per-core
"""
_VARIABLES = {each.upper().replace("-", "_"): each for each in _VARIABLE_NAMES.split()}
_VARIABLES.update(ARRAY_INX="array", MEM_PER_NODE="mem", TIMELIMIT="time")
# Those that do not make a job larger, and are not named after their options.
_HARMLESS_VARIABLES = "BURST_BUFFER CPU_FREQ_REQ DEBUG KILL_CMD REQ_SWITCH SEGMENT_SIZE WAIT4SWITCH"
# What both read too: another cluster has other prices, and a file of nodes is a --nodelist.
_UNCOUNTED_VARIABLES = ("SLURM_CLUSTERS", "SLURM_HOSTFILE")


class Option(NamedTuple):
    """An sbatch option: its long name, and its value (None for a flag).

    What is not read stands among them by its own name: a variable, or a ``#PBS`` line.
    """

    name: str
    value: str | None

    @property
    def word(self) -> str:
        """The option as one argument of a command line."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"

    @property
    def is_read(self) -> bool:
        """Whether it is an option."""
        return self.name.islower()


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
    known = [*_OPTIONS, *_ALIASES]
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
    return text.startswith("-") and name in _OPTIONS


def read_header(text: str, shown: str) -> list[Option]:
    """Read the ``#SBATCH`` directives of a job script: those before its first command.

    What other systems read, and sbatch too, is only noticed; it may follow commands.
    """
    words: list[str] = []
    foreign = [Option(each, "") for each in re.findall("^#(?:PBS|BSUB)", text, re.MULTILINE)[:1]]
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
        return [*foreign, *read_options(words, strict=False)]
    except LongshipError as error:
        raise LongshipError(f"{shown}: {error}", error.hint) from error


def read_variables(environ: Mapping[str, str], program: str = "SBATCH") -> list[Option]:
    """Read the environment variables of sbatch, or of salloc (``SALLOC``).

    One that may make the job larger and is not counted is an option of its own name.
    """
    known = {f"{program}_{variable}": option for variable, option in _VARIABLES.items()}
    known["SLURM_HINT"] = "hint"
    found = []
    for name, value in environ.items():
        owner, _, rest = name.partition("_")
        if name in known:
            found.append(Option(known[name], value or None))
        elif name in _UNCOUNTED_VARIABLES or (owner == program and not _is_harmless(rest)):
            found.append(Option(name, value))
    return found


def _is_harmless(variable: str) -> bool:
    is_named = variable.lower().replace("_", "-") in HARMLESS
    return is_named or variable in _HARMLESS_VARIABLES.split()


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
