"""environment.md: variables inside the environment, and variables that the scripts read."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

from lib import ROOT
from lib.configuration.layers import Settings, load_settings
from lib.configuration.schema import KEYS
from lib.configuration.training import Training
from lib.runtimes.contract import OFFLINE, environment_script
from lib.script.render import definitions
from writers.files import PLACES
from writers.markdown import code, listed, page, plain, table, value

_INTRO = """\
This page lists the variables of programs that run inside the environment. They are the same with
every runtime, in jobs and on login nodes. `python3 container_run.py env` prints them.

All other variables of yours are passed on unchanged, with two exceptions. Exported functions, such
as `module`, belong to the host. A name that is not a POSIX name, such as `a.b`, exists in no
POSIX shell: `container_run.py` and the log of a job list the variables with such names. An
`LC_ALL` that is not installed on the host is passed on too; bash prints one warning about it, per
rank in a job."""

_UNSET = """\
These variables of the host are unset before the container starts, and so are those in
[`environment.unset`](configuration.md#environment). Values that the image itself sets for the same
names are kept."""

_SET = """\
Variables are set in this order, and later ones override earlier ones: the following ones,
`environment.set` of [configuration.toml](configuration.md#environment), tokens, then `VIRTUAL_ENV`
and `PATH`, which begins with the venv, then the overlay.

A cache that you export yourself, in a job script or in the shell of `container_run.py`, is kept,
and its directory is visible inside. If another variable that you export gets a new value, one note
at the start names it and the setting that decides. `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE` and
`TRANSFORMERS_CACHE` are unset, as they would come before `HF_HOME`: set that one. Installations
(`set_up.py`, `build_overlay.py`) use the caches under `<scratch_dir>` whatever you export."""

_COMPILED = """\
In a job, what programs compile is on the node: ranks of several nodes delete each other's files on
a shared file system, and a rank that fails hangs the others. `LONGSHIP_NODE_CACHE` is
`longship-UID-JOB-NODE` in `TMPDIR`, or in `/tmp` if `TMPDIR` is not set or others could exchange
a directory in it. Only you can enter it, and the end of the job deletes it on each node; after
`scancel`, or a job without `start_job`, the site's cleaning of `/tmp` does. For another place,
export the variable in the job script, with a directory per job or per node: `environment.set`
expands no `$SLURM_JOB_ID`.

```bash
export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
```"""

_INDEX = """\
If you set `LONGSHIP_MODULE_INDEX` to 0, Python searches the files of an overlay itself, and not
[the module index](../explanation/parallel_file_systems.md#the-module-index). If you set
`LONGSHIP_READ_AHEAD` to 0, a launch does not
[read ahead](../explanation/parallel_file_systems.md#reading-ahead) what an import will read."""

_OFFLINE = """\
These variables are 1, so that a running job downloads nothing from the Hugging Face Hub;
`container_run.py --online` unsets them:"""

_SECRETS = """\
The variables in [`environment.secrets`](configuration.md#environment) are passed by name from your
own environment; scripts, arguments, logs and records never contain their values. If a variable of
`environment.token_files` is not set, the first line of its file is read at run time, inside the
environment:"""

_JOB = """\
After `start_job`, a job script has these variables; the programs that `srun` starts have those that
are exported. Slurm's own `SLURM_*` are also set."""

_RANKS = """\
`lib/jobs/inside/ranks.bash`, which the scripts of the stacks source, starts one process per GPU. It
reads these variables:"""

_NODE = "${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}"

_TORCHRUN = """\
Each process has `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and `LOCAL_WORLD_SIZE`: torchrun sets them, or
the job script if Slurm starts one task per rank. The default of `OMP_NUM_THREADS` is the rank's
share of the cores."""


def _unset_names() -> list[str]:
    """Return the names that `host_forget` unsets, and their beginnings with an asterisk."""
    (body,) = re.findall(r"\n  unset (.*) \"\$@\"", definitions()["host_forget"], re.DOTALL)
    return [re.sub(r'"\$\{!(\w+)@\}"', r"\1*", each) for each in body.split() if each != "\\"]


def environment_page() -> str:
    """Return the page."""
    settings = _bare_settings()
    return page(
        "The environment inside",
        _INTRO,
        "## Unset",
        _UNSET,
        f"{', '.join(map(code, _unset_names()))}.",
        "## Set",
        _SET,
        table(("variable", "value"), _exports(settings)),
        _COMPILED,
        _INDEX,
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
        _listed("jobs/job.bash"),
        "## The ranks",
        _RANKS,
        _listed("jobs/inside/ranks.bash"),
        _TORCHRUN,
    )


def _bare_settings() -> Settings:
    """Return the settings of a user without any configuration."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "configuration.toml")
        empty.touch()
        options = {"configuration": str(empty), "machine": "local", "stack": "pytorch"}
        return load_settings(Path(ROOT), options, {"HOME": "/home/me", "USER": "me"})


def _exports(settings: Settings) -> list[tuple[str, str]]:
    """Return the exports of the environment script, except those with their own section."""
    shown = {"LONGSHIP_MACHINE": "<machine>", "LONGSHIP_STACK": "<stack>"}
    rows = []
    training = Training.read(settings, PLACES)
    for line in environment_script(settings, PLACES, training, online=False).splitlines():
        own, _, exported = line.rpartition("|| ")
        if not exported.startswith("export "):
            continue
        for word in shlex.split(exported)[1:]:
            name, _, given = word.partition("=")
            given, on_node = shown.get(name, given), given.replace(_NODE, "$LONGSHIP_NODE_CACHE")
            given = given.replace(_NODE, "<scratch_dir>/cache")
            given = given.replace("$LONGSHIP_SCRATCH_DIR", "<scratch_dir>")
            about = " (if `shared_dir` is set)" if "<shared_dir>" in given else ""
            about = about or (" (if unset)" if own else "")
            if "$LONGSHIP_NODE_CACHE" in on_node:
                about += f"; in a job {code(on_node)}"
            if name not in OFFLINE:
                rows.append((code(name), code(given) + about))
    return rows


def _default(dotted: str) -> tuple[str, str]:
    return code(dotted), value(KEYS[dotted].default)


def _listed(script: str) -> str:
    rows = [each for each in listed(Path(ROOT, "lib", script)) if each[0].isupper()]
    return table(("variable", "meaning"), ((code(name), plain(about)) for name, about in rows))
