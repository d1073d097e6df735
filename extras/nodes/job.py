"""The hooks of faulty nodes: a submission excludes them, and the end of a job names new ones."""

from __future__ import annotations

import click

from extras.nodes.nodes import described, directories, directory_to_write, faulty_nodes
from lib.jobs.options import Option
from lib.jobs.request import Request
from lib.jobs.start import Start
from lib.script.command import call

OPTIONS = (
    click.Option(["--use-faulty"], is_flag=True, help="Also use nodes that jobs found faulty."),
)


def check(request: Request) -> Request:
    """Exclude the faulty nodes too, unless the user has named nodes, and say so."""
    paths, own = request.env.paths, request.options.get("exclude", "")
    lines = [call("nodes_share", directories(paths)[0])] if paths.is_shared else []
    known, problems = faulty_nodes(paths, request.env.machine.name)
    lines += [call("warn_of", str(each), each.hint) for each in problems]
    if request.asked.of(__name__).get("use_faulty"):
        known = []
    option = "exclude" if "/" in own else "nodelist"  # no name can be added to a file
    if known and ("/" in own or "nodelist" in request.options):
        lines.append(call("note", f"not excluded, because of --{option}: {described(known)}"))
    elif known:
        remove = f"python3 doctor.py nodes --machine {request.env.machine.name} --remove NODE"
        hint = f"to use all nodes: --use-faulty; to remove one: {remove}"
        lines.append(call("print_messages", "excluded", described(known), "hint", hint))
        names = [*filter(None, [own]), *(each.node for each in known)]
        request = request._replace(added=(*request.added, Option("exclude", ",".join(names))))
    return request._replace(lines=(*request.lines, *lines))


def start(start: Start) -> Start:
    """Let the end of the job name the nodes that it has found faulty."""
    named = call("job_set", "longship_nodes", directory_to_write(start.env.paths))
    return start._replace(variables=(*start.variables, named), at_end=(*start.at_end, "nodes_end"))
