"""What is wrong with the nodes of a job, and how its ranks talk to each other: doctor.py --job."""

from __future__ import annotations

from lib.configuration.layers import Settings
from lib.runtimes import pyxis
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.launch import run_lines
from lib.script.command import assign, call, comment, text_below
from lib.script.quoting import Expansion

_CLOCK = "lib/doctor/inside/tell_time.py"
_RANKS = "lib/doctor/inside/check_ranks.py"


def lines(env: Environment, *, as_json: bool) -> list[str]:
    """Return the lines of the diagnosis of a job.

    The script runs itself again, as text: on each node (``look``), to start the ranks (``ranks``)
    and as each of them (``rank``). So it needs no file that all nodes see.
    """
    settings, paths = env.settings, env.paths
    files = [
        *(each for each in (env.image, env.overlay) if each.startswith("/")),
        *([f"{env.venv}/pyvenv.cfg"] if env.venv else []),
        *(str(each) for each in (paths.root / _RANKS, *paths.roots)),
    ]
    return [
        comment("Started again on a node, this script is one of its own parts."),
        text_below("longship_clock", (paths.root / _CLOCK).read_text(encoding="utf-8"), _CLOCK),
        "part=${1:-}",
        "case $part in look | ranks | rank) shift ;; esac",
        "",
        'if [[ $part == look ]]; then diagnose_job_look "$@" && exit; fi',
        "",
        *_rank_lines(env),
        "",
        call("start_report", "json" if as_json else "text"),
        assign("job_unseen", _unseen(settings)),
        call("diagnose_job_find", settings.machine.rendezvous),
        call("diagnose_job_nodes", *files),
        call("diagnose_job_rendezvous"),
        call("diagnose_job_places"),
        call("diagnose_job_ranks", paths.root / _RANKS),
        call("end_report"),
    ]


def _rank_lines(env: Environment) -> list[str]:
    """Return the lines that start the ranks, and those that each of them becomes."""
    return [
        comment("The ranks, from where this was typed; Slurm starts them with these options."),
        "if [[ $part == ranks ]]; then",
        comment("shellcheck disable=SC2034  # of Pyxis"),
        "CONTAINER_OPTIONS=()",
        *module_lines(env.machine, env.runtime),
        *pyxis.option_lines(env),
        call("diagnose_job_step", Expansion('"$@"')),
        "fi",
        "",
        comment("One of them: become its program, inside."),
        "if [[ $part == rank ]]; then",
        call("diagnose_job_rank"),
        *run_lines(env),
        "fi",
    ]


def _unseen(settings: Settings) -> str:
    """Say what to do where a node does not see a file that the others see."""
    seen = settings.machine.compute_folders
    if seen:
        return f"compute nodes see only {', '.join(seen)}: clone there, and set [paths] to it"
    return "that file system is not mounted: tell your site's support, and: sbatch --exclude=NODE"
