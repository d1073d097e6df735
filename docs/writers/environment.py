"""environment.md: the variables that a program finds inside, and those that the scripts read."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

from lib import ROOT
from lib.configuration import KEYS
from lib.environment import OFFLINE, UNSET, contract
from lib.settings import Settings, load_settings
from writers.files import PLACES
from writers.markdown import code, listed, page, plain, table, value

_INTRO = """\
The variables that a program finds inside the environment: the same in every runtime, in jobs and
on login nodes. `python3 container_run.py env` prints them.

All other variables of yours are passed on unchanged, with two exceptions. Exported functions, such
as `module`, belong to the host. A name that is not a POSIX name, such as `a.b`, exists in no
POSIX shell: `container_run.py` and the log of a job list the variables with such names. An
`LC_ALL` that is not installed on the host is passed on too; bash prints one warning about it, per
rank in a job."""

_UNSET = """\
These of the host are taken out before the container starts, and with them what
[`environment.unset`](configuration.md#environment) names. An image's own values of the same
names stay."""

_SET = """\
The last ones win: these, then `environment.set` of
[configuration.toml](configuration.md#environment), then tokens, then `VIRTUAL_ENV` and `PATH`,
which begins with the venv, then the overlay."""

_OFFLINE = """\
`container_run.py --online` unsets these; else each is 1, so that nothing is fetched from the
Hugging Face hub while a job runs:"""

_SECRETS = """\
What [`environment.secrets`](configuration.md#environment) names is passed by its name from your own
environment, and stands in no script, argument, log or record. Where one of
`environment.token_files` is not set, the first line of its file is read inside, at run time:"""

_JOB = """\
After `start_job` a job file has these, and the programs that `srun` starts those that are
exported. Slurm's own `SLURM_*` are there too."""

_RANKS = """\
`lib/inside/ranks.bash`, which the scripts of the stacks source, starts a process for each GPU.
It reads these:"""

_TORCHRUN = """\
What it starts finds `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and `LOCAL_WORLD_SIZE`: torchrun sets
them or, where Slurm starts a task for each rank, the job file. `OMP_NUM_THREADS` is a rank's
share of the cores, unless it is set."""


def environment_page() -> str:
    """Return the page."""
    settings = _bare_settings()
    return page(
        "The environment inside",
        _INTRO,
        "## Taken out",
        _UNSET,
        f"{', '.join(map(code, UNSET))}.",
        "## Set",
        _SET,
        table(("variable", "value"), _exports(settings)),
        "## Offline",
        _OFFLINE,
        f"{', '.join(map(code, OFFLINE))}.",
        "## Secrets",
        _SECRETS,
        table(
            ("key", "default"),
            (_default(f"environment.{each}") for each in ("secrets", "token_files")),
        ),
        "## In a job",
        _JOB,
        _listed("shell/job.bash"),
        "## The ranks",
        _RANKS,
        _listed("inside/ranks.bash"),
        _TORCHRUN,
    )


def _bare_settings() -> Settings:
    """Return the settings of a user who has configured nothing."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "configuration.toml")
        empty.touch()
        options = {"configuration": str(empty), "machine": "local", "stack": "pytorch"}
        return load_settings(Path(ROOT), options, {"HOME": "/home/me", "USER": "me"})


def _exports(settings: Settings) -> list[tuple[str, str]]:
    """Return what the text that runs inside exports, but the switches of a section of their own."""
    shown = {"LONGSHIP_MACHINE": "<machine>", "LONGSHIP_STACK": "<stack>"}
    rows = []
    for line in contract(settings, PLACES, online=False).splitlines():
        if line.startswith("export "):
            for word in shlex.split(line)[1:]:
                name, _, given = word.partition("=")
                given = shown.get(name, given).replace("$LONGSHIP_SCRATCH_DIR", "<scratch_dir>")
                unless_set = re.fullmatch(rf"\$\{{{name}:-(.*)\}}", given)
                if unless_set:
                    rows.append((code(name), f"{code(unless_set[1])}, unless it is set"))
                elif name not in OFFLINE:
                    rows.append((code(name), code(given)))
    return rows


def _default(dotted: str) -> tuple[str, str]:
    return code(dotted), value(KEYS[dotted].default)


def _listed(script: str) -> str:
    rows = [each for each in listed(Path(ROOT, "lib", script)) if each[0].isupper()]
    return table(("variable", "meaning"), ((code(name), plain(about)) for name, about in rows))
