"""The verb `set_up.py from-conda`: what pip can install of a conda environment's file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from lib import ROOT
from lib.commands import print_no_script
from lib.commands.options import complete, plain_options
from lib.script.command import call
from lib.script.errors import LongshipError, print_messages, printable
from lib.script.execute import write_file
from lib.script.records import content_of

_IMAGE = "the image has it; without one, write it into requirements/torch.txt"
_PROJECT = "name the project under [[repositories]] in configuration.toml"
_VARIABLE = "set it under environment.set in configuration.toml"
_OTHER = "not a requirement (PEP 508): NAME[EXTRA]>=VERSION; MARKER"
_CUDA = "by its name part of the image's CUDA"
_SYSTEM = "by its name no Python package: docs/how-to/containers.md#add-system-packages"
_TORCH = r"pytorch(-cuda|-gpu|-mutex)?|torch|torchvision|torchaudio|triton|pytorch-triton.*"
# Why a package is left out, by the first of these patterns that its whole name matches.
_LEFT_OUT = {
    r"python(_abi)?": "the image's Python is used",
    r"pip|setuptools|wheel|conda.*": "every venv has its own",
    _TORCH: _IMAGE,
    r"cuda.*|cudatoolkit.*|cudnn|nccl|nvidia-.*|lib(cu|nv|npp).*": _CUDA,
    r"_.*|lib.*|ld_impl.*|.*_linux-.*|.*-(tools|dev)|r|r-.*": _SYSTEM,
    r"gcc|gxx|cmake|make|ninja|compilers|binutils|git(-lfs)?|curl|wget|ffmpeg|sox|openjdk": _SYSTEM,
    r"openmpi|mpich|mpi|mkl|blas|openblas|openssl|ca-certificates|zlib|xz|bzip2|zstd": _SYSTEM,
    r"readline|sqlite|tk|ncurses|nodejs|perl|tmux|htop|vim|squashfs-tools|graphviz": _SYSTEM,
}
_RENAMED = {
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python-headless",
    "py-opencv": "opencv-python-headless",
    "pytables": "tables",
}
_NAME = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SUFFIX = r"(?:[._-]?(?:a|b|c|rc|alpha|beta|pre|preview|post|dev)[._-]?\d*){0,3}"
_VERSION = rf"(?:\d+!)?\d+(?:\.\d+)*{_SUFFIX}(?:\.\*|\+[A-Za-z0-9.]+)?"
_CLAUSE = rf"(?:===|[=!~<>]=|[<>]) *{_VERSION}"
_VALUE = r"""(?:[a-z_]+|"[\w.+* -]*"|'[\w.+* -]*')"""
_TEST = rf"[( ]*{_VALUE} *(?:[=!~<>]{{1,3}}|not +in\b|in\b) *{_VALUE}[) ]*"
_MARKER = rf"{_TEST}(?:(?:and|or)\b{_TEST})*"
# PEP 508 without URLs: a URL would decide where a package comes from
_REQUIREMENT = re.compile(
    rf"{_NAME} *(?:\[ *{_NAME}(?: *, *{_NAME})* *\])? *"
    rf"(?:{_CLAUSE}(?: *, *{_CLAUSE})*)? *(?:; *{_MARKER})?",
    re.ASCII,
)


@click.command(epilog="Example: python3 set_up.py from-conda environment.yml")
@click.argument("file", metavar="FILE", shell_complete=complete("file"))
@plain_options
def from_conda(options: Mapping[str, str], dry_run: bool, file: str) -> None:
    """Write a requirements file from a conda environment's file.

    What pip cannot install, or the image has, is left out and listed, each with the reason.
    """
    if dry_run:
        print_no_script("Longship: set_up.py from-conda")
        return
    text = content_of(Path(file)).decode("utf-8", "replace")
    found = [*_packages(text)]
    if not found:
        raise LongshipError(
            f"cannot read a list of dependencies from {file}",
            "write one: conda env export --from-history > environment.yml",
        )
    named = re.search(r"""^name:[ \t]*(["']?)(.*?)\1[ \t]*(?:#.*)?$""", text, re.MULTILINE)
    name = named[2] if named else Path(file).stem
    if not re.fullmatch(_NAME, name):
        raise LongshipError(f"{file}: not a name for a file: {name}", "write a line: name: mine")
    target = Path(ROOT, "requirements", f"{name}.txt")
    if target.exists():
        raise LongshipError(f"{target} exists already", "move it, or change name: in the file")
    kept = [line for line, reason in found if not reason]
    write_file(
        target, "".join(f"{each}\n" for each in [f"# From {printable(Path(file).name)}", *kept])
    )
    for line, reason in found:
        if reason:
            print(printable(f"left out: {line}: {reason}"))
    shown = target.relative_to(ROOT)
    print(f"{len(kept)} packages: {shown}")
    print_messages(
        next=f'set packages.requirements = "{shown}" in configuration.toml, then run: '
        + call("python3", "set_up.py", "install")
    )


def _packages(text: str) -> Iterator[tuple[str, str]]:
    """Yield each dependency as a line of requirements, and why it is left out, or ""."""
    section, nested = "", 0  # the column of the list below `pip:`
    for line in text.splitlines():
        key = re.match(r"(\w+):", line)
        if key:
            section, nested = key[1], 0
        elif section == "variables" and line.strip():
            yield line.strip(), _VARIABLE
        if key or section != "dependencies" or re.match(r"\s*(#|$)", line):
            continue
        item = re.match(r"(\s*)-\s+(.*?)\s*(?:\s#.*)?$", line)
        if not item:
            yield line.strip(), _OTHER
            continue
        column, word = len(item[1]), re.sub(r"""^(["'])(.*)\1$""", r"\2", item[2])
        nested = nested if column >= nested else 0
        if re.fullmatch(r"pip\s*:", word):
            nested = column + 1
        elif nested:
            # only PyTorch's: what conda lets pip install is a Python package
            name = re.split(r"[\s\[=<>!~;@]", word)[0]
            yield word, _reason(name, word, {_TORCH: _IMAGE})
        else:
            yield _of_conda(word)


def _of_conda(spec: str) -> tuple[str, str]:
    """Return a package of conda as pip's requirement, and why it is left out, or ""."""
    bare = re.sub(r"\[version='([^']*)'\]$", r"\1", spec.rpartition("::")[2])
    found = re.fullmatch(r"([\w.-]+)((?:\s*[=<>!~]|\s+\d).*)?", bare)
    if not found:
        return spec, _OTHER
    name, version = found[1].lower(), (found[2] or "").strip()
    plain = re.fullmatch(r"=?([^=<>!~,|]+)(?:=.*)?", version)
    if plain:  # numpy=1.26 is any 1.26, numpy=1.26.4=py312_0 a build
        exact = version.count("=") == 2 or plain[1].endswith("*")
        version = f"=={plain[1].strip()}{'' if exact else '.*'}"
    line = f"{_RENAMED.get(name, name)}{version}"
    reason = _reason(name, line, _LEFT_OUT)
    return (spec if reason == _OTHER else line), reason


def _reason(name: str, line: str, left_out: Mapping[str, str]) -> str:
    if re.match(r"(-e|--editable)?\s*\.{1,2}(/|\[|$)", line) or "git+" in line:
        return _PROJECT
    found = (why for pattern, why in left_out.items() if re.fullmatch(pattern, name.lower()))
    return next(found, "" if _REQUIREMENT.fullmatch(line) else _OTHER)
