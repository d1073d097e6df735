"""Options, arguments and paths with which a job would fail or record a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, expand, is_below, login_name
from lib.configuration.repositories import configured_repositories
from lib.configuration.tables import find_files
from lib.jobs.request import Request
from lib.jobs.size import LONGEST_NAME
from lib.runtimes.environment import Environment
from lib.script.command import wrapped
from lib.script.errors import LongshipError
from lib.script.records import open_file

# Directories that are local to each node.
_NODE_LOCAL = ("/dev", "/etc", "/opt", "/proc", "/tmp", "/usr", "/var")

# Options with which sbatch submits nothing, does not print the job ID, or waits for the job to end.
_SILENT = ("help", "quiet", "test-only", "usage", "version", "wait")


def check_job(request: Request) -> None:
    """Stop if a job could not run, or a secret would be recorded."""
    settings, job = request.env.settings, request.job
    _check_name(request.options["job-name"])
    if job.script:
        check_script(settings, str(job.path), job.script)
    check_words(request.env, [*(each.word for each in request.typed), *request.arguments])
    if not job.is_interactive:
        _check_batch_options(request.options)
        _check_logs(request.options)
    _check_visible(request)
    configured_repositories(settings)  # no password stands in a URL, which is recorded


def check_words(env: Environment, words: Sequence[str]) -> None:
    """Stop if options or arguments, as typed, contain a secret, or what does not reach the job."""
    _check_secrets(env.settings, words)
    _check_colon(words)


def stack_lines(request: Request) -> list[str]:
    """Return the line that lets the stack check its job, if it has a script for that."""
    env, job, size = request.env, request.job, request.trained_on
    script = env.paths.root / "stacks" / env.settings.stack.name / "check_job.sh"
    if not job.step or not script.is_file():
        return []
    variables = {
        "LONGSHIP_ROOT": env.paths.root,
        "NUM_NODES": size.nodes,
        "GPUS_PER_NODE": size.gpus // size.nodes,  # 0 if unknown
        **({"LONGSHIP_THEN": request.then[0].env.settings.stack.name} if request.then else {}),
        **env.training.variables(),
    }
    named = [f"{name}={value}" for name, value in variables.items()]
    step = job.mode if job.step == "data" else job.step
    return [wrapped("env", *named, "bash", script, step, *request.first)]


def log_directories(request: Request) -> list[str]:
    """Return the directories of the log files: Slurm creates none, and the job fails silently."""
    files = [request.log]
    if request.options.get("error"):
        files.append(log_path(request.env.paths, request.options, request.options["error"]))
    named = (each.replace("%x", request.size.name) for each in files)
    directories = list(dict.fromkeys(os.path.dirname(each) for each in named))
    for each in directories:
        if "%" in each:
            raise LongshipError(
                f"the log directory must be a fixed path, because Slurm does not create it: {each}",
                "use patterns only in the file name: --output=DIR/%j.log",
            )
    return directories


def log_path(paths: Paths, options: Mapping[str, str], file: str) -> str:
    """Return the path of a log; a relative one begins in the job's working directory, --chdir."""
    return str(paths.root / options.get("chdir", "") / file.replace("%u", login_name()))


def _check_logs(options: Mapping[str, str]) -> None:
    """Stop at what a shell would expand: sbatch takes it for the name of a directory."""
    for name in ("output", "error"):
        value = options.get(name, "")
        if value.startswith("~") or "$" in value:
            raise LongshipError(
                f"--{name}={value}: sbatch expands neither ~ nor variables",
                "write the whole path, in which %u stands for your user name",
            )


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.+-]+", name) or len(os.fsencode(name)) > LONGEST_NAME:
        raise LongshipError(
            f'invalid job name: "{name[:40]}"',
            f"use letters, digits and . _ + -, as files are named after it: {LONGEST_NAME} at most",
        )


def check_script(settings: Settings, starter: str, script: str) -> None:
    """Stop if the stack does not have a script that something starts."""
    stacks, stack = settings.root / "stacks", settings.stack.name
    if not (stacks / stack / script).is_file():
        able = [each.parent.name for each in find_files(stacks, f"*/{script}")]
        raise LongshipError(
            f"{starter} starts {script}, which the stack {stack} does not have",
            f"choose another stack: --stack {' or '.join(able) or 'NAME'}",
        )


def _check_secrets(settings: Settings, words: Sequence[str]) -> None:
    """Reject a token: Slurm and the record of the run store the arguments."""
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
    """Return the token in a file, read as at the start of a job: its first line."""
    try:
        with open_file(Path(file)) as stream:
            return os.fsdecode(stream.readline(4096)).strip()
    except OSError:  # the job cannot read it either
        return ""


def _check_colon(words: Sequence[str]) -> None:
    """Reject an argument that Slurm would drop."""
    if ":" in words:
        raise LongshipError(
            'a job argument is ":", which sbatch and srun treat as their own separator',
            "join it to the argument before, as in --option=:, or pass a file that contains it",
        )


def _check_batch_options(given: Mapping[str, str]) -> None:
    """Require that sbatch submits a job and reports it, and that the job finds its variables."""
    for name in _SILENT:
        if name in given:
            raise LongshipError(
                f"--{name} is not supported: sbatch would not report what it submits",
                "to see what would be submitted, add --dry-run; for jobs: python3 submit.py status",
            )
    exported = given.get("export", "ALL")
    if "ALL" not in exported.upper().split(","):
        more = "" if exported.upper() in ("NONE", "NIL") else f",{exported}"
        raise LongshipError(
            f"--export={exported} hides the variables that submit.py sets for the job",
            f"use --export=ALL{more}",
        )


def _check_visible(request: Request) -> None:
    """Stop if a path is not visible to compute nodes. On JUPITER such a job has no log."""
    env, job, options = request.env, request.job, request.options
    paths, error = env.paths, options.get("error")
    image = env.image if job.needs_image or env.runtime == "host" else env.source.address
    for what, path in (
        ("this repository", str(paths.root)),
        ("paths.project_dir", str(paths.project_dir)),
        ("paths.scratch_dir", str(paths.scratch_dir)),
        ("paths.checkpoint_dir", str(paths.checkpoint_dir)),
        *((f"training.{name}", path) for name, path in env.training.directories()),
        ("the job script", str(paths.root / job.path)),
        ("the log", request.log),
        ("--error", log_path(paths, options, error) if error else ""),
        ("--chdir", str(paths.root / options["chdir"]) if options.get("chdir") else ""),
        ("container.image", image if image.startswith("/") else ""),
    ):
        _check_path(env, what, path)


def _check_path(env: Environment, what: str, path: str) -> None:
    visible = env.machine.compute_directories
    is_data = what.startswith("training.") and env.machine.name != "local"
    if is_data and any(is_below(path, each) for each in _NODE_LOCAL):
        raise LongshipError(
            f"{what} is on node-local storage, which other nodes cannot read: {path}",
            f"copy it to shared storage, such as {env.paths.scratch_dir}/data",
        )
    if path and visible and not any(is_below(path, each) for each in visible):
        raise LongshipError(
            f"{what} is not visible to compute nodes of {env.machine.name}: {path}",
            f"move it to a directory under {' or '.join(visible)}",
        )
