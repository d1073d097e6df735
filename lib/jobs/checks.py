"""What a job must not have: options, words and places with which it would fail or tell secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, expand
from lib.configuration.repositories import configured_repositories
from lib.configuration.tables import open_file
from lib.configuration.training import is_below, training_folders, training_variables
from lib.jobs.facts import LONGEST_NAME
from lib.jobs.job_files import JobFile
from lib.jobs.resources import Request
from lib.runtimes.environment import Environment
from lib.script.command import wrapped
from lib.script.errors import LongshipError

# Folders that each node has as its own.
_OF_NODES = ("/dev", "/etc", "/opt", "/proc", "/tmp", "/usr", "/var")

# Options with which sbatch submits nothing, does not say what, or says it when the job has ended.
_SILENT = ("help", "quiet", "test-only", "usage", "version", "wait")


def check_job(
    env: Environment,
    job: JobFile,
    given: Mapping[str, str],
    words: Sequence[str],
    log: str,
) -> None:
    """Stop where a job would not run, or something would be written down that must not be.

    Parameters
    ----------
    given : mapping of str to str
        All of its options: value by long name; its name is among them.
    words : sequence of str
        What was typed for it, options and arguments.
    log : str
        The path of its log.

    Raises
    ------
    LongshipError
        With what to type instead.
    """
    settings = env.settings
    _check_name(given["job-name"])
    _check_secrets(settings, words)
    _check_colon(words)
    if not job.is_interactive:
        _check_silent(given)
        _check_export(given.get("export", "ALL"))
    image = env.image if job.needs_image or env.runtime == "host" else env.source.address
    _check_visible(settings, env.paths, job, given, words, log, image)
    configured_repositories(settings)  # no password stands in a URL, which is recorded


def stack_lines(
    settings: Settings, paths: Paths, job: JobFile, request: Request, arguments: Sequence[str]
) -> list[str]:
    """Return the line that lets the stack refuse what it cannot run, where it checks its jobs."""
    script = paths.root / "stacks" / settings.stack.name / "check_job.sh"
    if not job.step or not script.is_file():
        return []
    variables = {
        "LONGSHIP_ROOT": paths.root,
        "NUM_NODES": request.nodes,
        "GPUS_PER_NODE": request.gpus // request.nodes,  # 0 where nobody knows
        **training_variables(settings, paths),
    }
    named = [f"{name}={value}" for name, value in variables.items()]
    step = job.mode if job.step == "data" else job.step
    return [wrapped("env", *named, "bash", script, step, *arguments)]


def log_folders(paths: Paths, given: Mapping[str, str], log: str) -> list[str]:
    """Return the folders that the log's files go to: without one the job ends without a word.

    Raises
    ------
    LongshipError
        If Slurm would have to make one, which it does not.
    """
    files = [log, *([written_to(paths, given, given["error"])] if given.get("error") else [])]
    named = (each.replace("%x", given["job-name"]) for each in files)
    folders = list(dict.fromkeys(os.path.dirname(each) for each in named))
    for each in folders:
        if "%" in each:
            raise LongshipError(
                f"the log directory must be a fixed path, because Slurm does not create it: {each}",
                "use patterns only in the file name: --output=DIR/%j.log",
            )
    return folders


def written_to(paths: Paths, given: Mapping[str, str], file: str) -> str:
    """Return the path of a file that Slurm writes for a job: from the job's folder, --chdir."""
    return str(paths.root / given.get("chdir", "") / file)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.+-]+", name):
        raise LongshipError(
            f'invalid job name: "{name}"',
            "use only letters, digits and . _ + -, as files are named after it",
        )
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise LongshipError(
            f'the job name is too long: {len(os.fsencode(name))} bytes: "{name[:40]}..."',
            f"use at most {LONGEST_NAME} bytes: --job-name=NAME",
        )


def _check_secrets(settings: Settings, words: Sequence[str]) -> None:
    """Refuse to write down a token: Slurm and the record of a run keep what a job is given."""
    environment = settings.configuration.environment
    values = [(each, settings.environ.get(each, "")) for each in environment.secrets]
    for variable, file in environment.token_files.items():
        values.append((variable, _first_line(expand("environment.token_files", file, settings))))
    for variable, value in values:
        if value and any(value in each for each in words):
            raise LongshipError(
                f"a job argument contains the value of {variable}; arguments are recorded",
                f"remove it: the program finds {variable} in its environment",
            )


def _first_line(file: str) -> str:
    """Return the token in a file, as the start of a job reads it: its first line."""
    try:
        with open_file(Path(file)) as stream:
            return os.fsdecode(stream.readline(4096)).strip()
    except OSError:  # the job finds none either
        return ""


def _check_colon(words: Sequence[str]) -> None:
    """Refuse what Slurm would drop."""
    if ":" in words:
        raise LongshipError(
            'a job argument is ":", which sbatch and srun treat as their own separator',
            "join it to the argument before, as in --option=:, or pass a file that contains it",
        )


def _check_silent(given: Mapping[str, str]) -> None:
    for name in _SILENT:
        if name in given:
            raise LongshipError(
                f"--{name} is not supported: sbatch would not report what it submits",
                "to see what would be submitted, add --dry-run; for jobs: python3 submit.py status",
            )


def _check_export(exported: str) -> None:
    """Without ``ALL`` the job would not find the configuration that it was submitted with."""
    if "ALL" not in exported.upper().split(","):
        more = "" if exported.upper() in ("NONE", "NIL") else f",{exported}"
        raise LongshipError(
            f"--export={exported} hides the variables that submit.py sets for the job",
            f"use --export=ALL{more}",
        )


def _check_visible(
    settings: Settings,
    paths: Paths,
    job: JobFile,
    given: Mapping[str, str],
    words: Sequence[str],
    log: str,
    image: str,
) -> None:
    """Stop where compute nodes would not see a folder. JUPITER: such a job dies without a log."""
    seen = settings.machine.compute_folders
    for what, path in (
        ("this repository", str(paths.root)),
        ("paths.project_dir", str(paths.project_dir)),
        ("paths.scratch_dir", str(paths.scratch_dir)),
        ("paths.checkpoint_dir", str(paths.checkpoint_dir)),
        *((f"training.{name}", path) for name, path in training_folders(settings, paths)),
        *(("an argument", path) for path in _paths_among(words)),
        ("the job script", str(paths.root / job.path)),
        ("the log", log),
        ("--error", written_to(paths, given, given["error"]) if given.get("error") else ""),
        ("--chdir", str(paths.root / given["chdir"]) if given.get("chdir") else ""),
        ("container.image", image if image.startswith("/") else ""),
    ):
        of_node = what.startswith("training.") and settings.machine.name != "local"
        if of_node and any(is_below(path, each) for each in _OF_NODES):
            raise LongshipError(
                f"{what} is on node-local storage, which other nodes cannot read: {path}",
                f"copy it to shared storage, such as {paths.scratch_dir}/data",
            )
        if path and seen and not any(is_below(path, each) for each in seen):
            raise LongshipError(
                f"{what} is not visible to compute nodes of {settings.machine.name}: {path}",
                f"move it to a directory under {' or '.join(seen)}",
            )


def _paths_among(words: Sequence[str]) -> list[str]:
    """Return what is there, here, among a job's words; ``--data=/p/text.jsonl:train`` has one."""
    values = [word.partition("=")[2] if word.startswith("-") else word for word in words]
    rooted = [each for each in values if each.startswith("/")]
    found = [path for each in rooted for path in (each, each.rpartition(":")[0])]
    return [
        each
        for each in found
        if os.path.exists(each) and not any(is_below(each, own) for own in _OF_NODES)
    ]
