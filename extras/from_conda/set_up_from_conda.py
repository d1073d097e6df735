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
from lib.script.errors import LongshipError, print_messages
from lib.script.execute import write_file
from lib.script.records import content_of

_IMAGE = "the image has it, or requirements/torch.txt"
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
    "pytables": "tables",
}


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
    named = re.search(r"^name:\s*([\w.-]+)", text, re.MULTILINE)
    target = Path(ROOT, "requirements", f"{named[1] if named else Path(file).stem}.txt")
    if target.exists():
        raise LongshipError(f"{target} exists already", "move it, or change name: in the file")
    kept = [line for line, reason in found if not reason]
    write_file(target, "".join(f"{each}\n" for each in [f"# From {Path(file).name}", *kept]))
    for line, reason in found:
        if reason:
            print(f"left out: {line}: {reason}")
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
        item = re.match(r"(\s*)-\s+(.*?)\s*(?:\s#.*)?$", line)
        if not item:
            key = re.match(r"(\w+):", line)
            section = key[1] if key else section
            continue
        column, word = len(item[1]), re.sub(r"""^(["'])(.*)\1$""", r"\2", item[2])
        nested = nested if column >= nested else 0
        if section != "dependencies":
            continue
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
    name, version = re.fullmatch(r"([\w.-]*)\s*(.*)", spec.rpartition("::")[2]).groups()
    plain = re.fullmatch(r"=?([^=<>!~,|]+)(?:=.*)?", version)
    if plain:  # numpy=1.26 is any 1.26, numpy=1.26.4=py312_0 a build
        exact = version.count("=") == 2 or plain[1].endswith("*")
        version = f"=={plain[1].strip()}{'' if exact else '.*'}"
    name = name.lower()
    return f"{_RENAMED.get(name, name)}{version}", _reason(name, spec, _LEFT_OUT)


def _reason(name: str, line: str, left_out: Mapping[str, str]) -> str:
    if re.match(r"(-e|--editable)?\s*\.{1,2}(/|\[|$)", line):
        return "name the project under [[repositories]] in configuration.toml"
    found = (why for pattern, why in left_out.items() if re.fullmatch(pattern, name.lower()))
    return next(found, "")
