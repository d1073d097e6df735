"""The check of a job's nodes, and of how its ranks communicate: doctor.py --job."""

from __future__ import annotations

from lib.runtimes import pyxis
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.launch import run_lines
from lib.script.command import call, comment, text_below

_CLOCK = "lib/doctor/inside/clock_server.py"
_RANKS = "lib/doctor/inside/check_ranks.py"


def lines(env: Environment, *, as_json: bool) -> list[str]:
    """Return the lines of the check of a job.

    The script runs itself again, as text: on each node (``look``), to start the ranks (``ranks``)
    and as each of them (``rank``). So it needs no file that all nodes see.
    """
    root = env.paths.root
    clock = (root / _CLOCK).read_text(encoding="utf-8")
    files = [
        *(each for each in (env.image, env.overlay) if each.startswith("/")),
        *([f"{env.venv}/pyvenv.cfg"] if env.venv else []),
        *(root / _RANKS, *env.paths.roots),
    ]
    return [
        comment("Started again on a node, this script is one of its own parts."),
        text_below("longship_clock", clock, _CLOCK),
        "part=${1:-}",
        "case $part in look | ranks | rank) shift ;; esac",
        "",
        'if [[ $part == look ]]; then node_report_facts "$longship_clock" "$@" && exit; fi',
        "",
        comment("The ranks, from where this was typed; Slurm starts them with these options."),
        "if [[ $part == ranks ]]; then",
        "CONTAINER_OPTIONS=()",
        *module_lines(env.machine, env.runtime),
        *pyxis.options(env),
        'ranks_start "${@:1:3}" ${CONTAINER_OPTIONS[@]+"${CONTAINER_OPTIONS[@]}"} \\',
        '  bash -c "$(script_text)" doctor.py rank "${@:4}"',
        "fi",
        "",
        comment("One of them: become its program, inside."),
        "if [[ $part == rank ]]; then",
        call("rank_begin"),
        *run_lines(env),
        "fi",
        "",
        call("report_begin", "json" if as_json else "text"),
        call("nodes_begin", env.machine.rendezvous),
        call("nodes_ask", *files),
        call("rendezvous_diagnose"),
        call("resources_diagnose", _fix_of_unseen_file(env)),
        call("ranks_diagnose", root / _RANKS, "complete" if as_json else "brief"),
        call("report_end"),
    ]


def _fix_of_unseen_file(env: Environment) -> str:
    """Return the fix for a node, NODE, that cannot read a file which the other nodes can read."""
    mounted = env.machine.compute_folders
    if mounted:
        return f"compute nodes see only {', '.join(mounted)}: clone there, and set [paths] to it"
    return "that file system is not mounted: tell your site's support, and: sbatch --exclude=NODE"
