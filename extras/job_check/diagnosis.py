"""The check of a job's nodes, and of how its ranks communicate: doctor.py --job."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.doctor.report import Diagnosis, Finding, bash, messages_in, ok, problem, warning
from lib.runtimes.choice import srun_lines
from lib.runtimes.environment import Environment, module_lines
from lib.runtimes.launch import run_lines
from lib.script.command import call, comment
from lib.script.errors import LongshipError
from lib.script.execute import read_output

_FACTS = "extras/job_check/inside/node_facts.py"
_RANKS = "extras/job_check/inside/check_ranks.py"
_EXCLUDE = "tell your site's support, and exclude the node: sbatch --exclude="
_Node = Mapping[str, Any]  # what node_facts.py reports


class Job(NamedTuple):
    """A running job, and where its ranks meet."""

    nodes: list[str]
    address: str
    port: int


def job_lines(env: Environment) -> list[str]:
    """Return the lines of the script that starts all ranks, and is started again as each of them.

    It travels as text, so that it needs no file that all nodes see.
    """
    return [
        comment("From where doctor.py was typed; Slurm starts the ranks with these options."),
        "if [[ ${1:-} != rank ]]; then",
        "CONTAINER_OPTIONS=()",
        *module_lines(env.machine, env.runtime),
        *srun_lines(env),
        'ranks_start "${@:1:3}" ${CONTAINER_OPTIONS[@]+"${CONTAINER_OPTIONS[@]}"} \\',
        '  bash -c "$(script_text)" doctor.py rank "${@:4}"',
        "exit",
        "fi",
        "",
        comment("A rank: become its program, inside."),
        "shift",
        call("rank_begin"),
        *run_lines(env),
    ]


def diagnose(env: Environment, script: str, report: Diagnosis) -> None:
    """Check the nodes of the job that this runs in, or that SLURM_JOB_ID names."""
    job, program = _find_job(env.machine.rendezvous), str(env.paths.root / _RANKS)
    files = [each for each in (env.image, env.overlay) if each.startswith("/")]
    files += [f"{env.venv}/pyvenv.cfg"] if env.venv else []
    # a file that exists nowhere is reported by the command that needs it
    files = list(filter(os.path.exists, [*files, program, *map(str, env.paths.roots)]))
    about = (job.address, str(job.port), job.nodes[0], str(len(job.nodes)), _temporary())
    text = _ask_nodes(env.paths.root, len(job.nodes), [*about, *files])
    found = [json.loads(line) for line in text.split("\n") if line.startswith('{"node": ')]
    nodes = sorted(found, key=lambda each: job.nodes.index(each["node"]))
    checks = [_silent(job, nodes, text)]
    if nodes:
        form = "complete" if report.as_json else "brief"
        checks += [_rendezvous(job, nodes), _resources(nodes, env.machine.compute_directories)]
        checks += [_ranks(job, nodes, script, program, form)]
    for each in itertools.chain.from_iterable(checks):
        report.add(each)
    report.end()


def _find_job(rendezvous: str) -> Job:
    """Find the job, its nodes, and where its ranks meet; prepare the environment for srun."""
    environ = os.environ
    number, command = environ.get("SLURM_JOB_ID", ""), "python3 doctor.py --job"
    if not number:
        raise LongshipError(
            "not in a job: SLURM_JOB_ID is not set",
            f"salloc --nodes=2 OPTION... {command}; or add it to a job script, before srun",
        )
    if not shutil.which("srun"):
        raise LongshipError(
            "srun not found: this may be a container",
            f"on a login node, run: SLURM_JOB_ID={number} {command}",
        )
    outside = not environ.get("SLURM_JOB_NODELIST")
    query = ["squeue", "--noheader", f"--jobs={number}", "--states=RUNNING", "--format=%N"]
    text, code = read_output(query, 60)
    listed = text.strip().rpartition("\n")[2]
    if code and "nvalid job id" not in text:
        raise LongshipError(f"Slurm does not respond: {listed}", "try again later")
    if code or not listed:
        raise LongshipError(f"job {number} is not running", "list your jobs: squeue --me")
    nodes = read_output(["scontrol", "show", "hostnames", listed], 60).text.split()
    environ.update(SLURM_JOB_NODELIST=listed, SLURM_JOB_NUM_NODES=str(len(nodes)))
    # what a job script or an enclosing step has set for its own srun
    unwanted = "SLURM_LABELIO|SLURM_KILL_BAD_EXIT"
    if environ.get("SLURM_STEP_ID"):
        unwanted += "|SLURM_CPU_BIND.*|SLURM_DISTRIBUTION|SLURM_NTASKS_PER_NODE"
    for name in filter(re.compile(unwanted).fullmatch, list(environ)):
        del environ[name]
    if environ.get("SLURM_CPUS_PER_TASK"):
        environ["SRUN_CPUS_PER_TASK"] = environ["SLURM_CPUS_PER_TASK"]
    if not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        show = 'printf "%s " "$MASTER_ADDR" "$MASTER_PORT"'
        text, code = bash(call("set_rendezvous", rendezvous), show)
        for error in messages_in(text, ""):
            raise LongshipError(error.text, error.fix)
        if code:
            raise LongshipError("cannot find the first node's address", "try again later")
        environ["MASTER_ADDR"], port = text.split()
        # from outside: the job's own ranks meet at its port
        environ["MASTER_PORT"] = str(int(port) + outside)
    address, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    if not port.isdigit():
        fix = "set both: export MASTER_ADDR=NODE MASTER_PORT=20000"
        raise LongshipError(f"MASTER_PORT is not a port number: {port}", fix)
    return Job(nodes, address, int(port))


# ---------- what the nodes report


def _ask_nodes(root: Path, count: int, about: Sequence[str]) -> str:
    """Return what each of so many nodes of the job prints about itself."""
    step = f"srun --overlap --nodes={count} --ntasks={count} --ntasks-per-node=1 --wait=0"
    program = (root / _FACTS).read_text(encoding="utf-8")
    return read_output([*step.split(), "python3", "-c", program, *about], 60).text


def _temporary() -> str:
    return os.environ.get("TMPDIR") or "/tmp"


def _silent(job: Job, nodes: Sequence[_Node], text: str) -> Iterator[Finding]:
    """Report the nodes that do not respond, with the reason that srun gives."""
    silent = [each for each in job.nodes if each not in {node["node"] for node in nodes}]
    for name in silent:
        told = [x for x in text.split("\n") if f"{name}:" in x and not re.search("Killed|Term", x)]
        reason = f": {told[-1]}" if told else ""
        fix = f"check it: srun --overlap --nodelist={name} hostname; or exclude it: "
        yield problem("nodes", f"{name} does not respond{reason}", f"{fix}sbatch --exclude={name}")
    if not silent:
        yield ok("nodes", f"{os.environ['SLURM_JOB_NODELIST']}: all answer")


def _rendezvous(job: Job, nodes: Sequence[_Node]) -> Iterator[Finding]:
    """Check name, port and network of the first node, as each node sees them, and the clocks."""
    wrong = [found for node in nodes for found in _address(job, nodes, node)]
    text = f"MASTER_ADDR, {job.address}, is {nodes[0]['address']} on all nodes"
    yield from wrong or [ok("address", text)]
    first, port = job.nodes[0], f"MASTER_PORT, {job.port},"
    if nodes[0]["node"] != first:
        text = f"cannot test MASTER_PORT, {job.port}, without {first}"
        yield warning("port", text, "fix the problem of nodes first")
    elif nodes[0]["taken"]:
        free = job.port + 1 if job.port < 32000 else 20000
        fix = f"end that process, or use another port: export MASTER_PORT={free}"
        yield problem("port", f"{port} is in use on {first} by {nodes[0]['taken']}", fix)
        text = "cannot test the connections to the first node, and the clocks"
        yield warning("network", text, "free the port first")
    else:
        yield ok("port", f"{port} is free on {first}")
        yield from _network(job, nodes)
        yield from _clocks(job, nodes)


def _address(job: Job, nodes: Sequence[_Node], node: _Node) -> Iterator[Finding]:
    """Compare the address that a node has for MASTER_ADDR with the first node's."""
    name, own, first = node["node"], node["address"], job.nodes[0]
    theirs = nodes[0]["address"] if nodes[0]["node"] == first else ""
    fix = f"compare its /etc/hosts and name server with the first node's; sbatch --exclude={name}"
    if not own:
        yield problem("address", f"{name} cannot resolve MASTER_ADDR, {job.address}", fix)
    elif name == first and own.startswith("127.") and len(job.nodes) > 1:
        fix = "set the interface that Gloo uses, as ip address shows it: "
        fix += "export GLOO_SOCKET_IFNAME=INTERFACE"
        yield warning("address", f"{name} has the address {own} for its own name", fix)
    elif theirs and own != theirs and not theirs.startswith("127."):
        yield problem("address", f"{job.address} is {own} on {name} and {theirs} on {first}", fix)


def _network(job: Job, nodes: Sequence[_Node]) -> Iterator[Finding]:
    away = [each["node"] for each in nodes if each["clock"] is None]
    for name in away:
        text = f"{name} cannot connect to {job.nodes[0]}, {job.address} port {job.port}"
        fix = f"check its network and the port: srun --overlap --nodelist={name} ip address; "
        yield problem("network", text, f"{fix}sbatch --exclude={name}")
    if not away:
        yield ok("network", f"all nodes reach {job.nodes[0]} by TCP")


def _clocks(job: Job, nodes: Sequence[_Node]) -> Iterator[Finding]:
    """Compare each clock with the first node's.

    Kerberos and certificates tolerate minutes, logs and timeouts less; chrony and NTP keep
    milliseconds.
    """
    found = {x["node"]: (round(x["clock"][0]), int(x["clock"][1]) + 1) for x in nodes if x["clock"]}
    wrong = [name for name, (offset, exact) in found.items() if abs(offset) > 1000 + exact]
    for name in wrong:
        text = "{} differs from {} by {} ms (measured to {} ms); up to 1 s is tolerated"
        text = text.format(name, job.nodes[0], *found[name])
        yield problem("clock", text, f"{_EXCLUDE}{name}")
    if found and not wrong:
        worst, known = (max(abs(each[place]) for each in found.values()) for place in (0, 1))
        yield ok("clock", f"at most {worst} ms apart, known to {known} ms")


def _resources(nodes: Sequence[_Node], mounted: Sequence[str]) -> Iterator[Finding]:
    """Check files, node-local space, memory and GPUs of each node."""
    directory = _temporary()
    for each in nodes:
        name = each["node"]
        if each["unseen"]:
            fix = "that file system is not mounted: tell your site's support, and: sbatch "
            fix += f"--exclude={name}"
            if mounted:
                fix = f"compute nodes see only {', '.join(mounted)}: "
                fix += "clone there, and set [paths] to it"
            yield problem("files", f"{name} cannot read {each['unseen']}", fix)
        if each["room"] < 1:
            text = f"{name} has less than 1 GiB left in {directory} ({each['kind']})"
            fix = "set another directory: export TMPDIR=DIR; or delete files of earlier jobs there"
            yield warning("temporary", text, fix)
        if each["ecc"]:
            text = f"{name}: uncorrected GPU memory errors: {each['ecc']}"
            yield warning("gpus", text, f"{_EXCLUDE}{name}")
        if each["gpus"] < each["asked"]:
            text = f"{name} has {each['gpus']} visible GPUs, but the job has {each['asked']} on it"
            fix = _EXCLUDE.replace("support", "support that the driver has lost a GPU")
            yield problem("gpus", text, f"{fix}{name}")
    if not any(each["unseen"] for each in nodes):
        yield ok("files", "image, packages and directories are visible on all nodes")
    least = min(nodes, key=lambda each: each["room"])
    in_memory = " is memory, counted against the job" * (least["kind"] == "tmpfs")
    room = f"{least['room']} GiB ({least['kind']}) on {least['node']}"
    yield ok("temporary", f"{directory}{in_memory}: at least {room}")
    least = min(nodes, key=lambda each: each["memory"])
    yield ok("memory", f"free: at least {least['memory']} GiB on {least['node']}")
    yield from _alike(nodes, "kernel", "kernel", "kernel")
    yield from _alike(nodes, "driver", "driver", "driver")
    if all(each["gpus"] >= each["asked"] for each in nodes):
        yield from _alike(nodes, "gpus", "gpus", "GPUs:")


def _alike(nodes: Sequence[_Node], fact: str, topic: str, what: str) -> Iterator[Finding]:
    """Report one value on all nodes, or the nodes whose value differs from most others."""
    most = Counter(each[fact] for each in nodes).most_common(1)[0][0]
    others = [each for each in nodes if each[fact] != most]
    for each in others:
        text = f"{each['node']} has {what} {each[fact]}, but the other nodes have {most}"
        fix = f"exclude it: sbatch --exclude={each['node']}; and tell your site's support"
        yield warning(topic, text, fix)
    if not others:
        yield ok(topic, f"{what} {most} on all nodes")


# ---------- how the ranks communicate


def _ranks(
    job: Job, nodes: Sequence[_Node], script: str, program: str, form: str
) -> Iterator[Finding]:
    """Start the ranks as the job would, and report what they measure.

    There is a task for each, or one on each node that starts a rank for each GPU; without GPUs two.
    Nodes that do not reach the first one, or cannot read a file, are left out.
    """
    good = [each["node"] for each in nodes if each["clock"] is not None and not each["unseen"]]
    if nodes[0]["taken"] or good[:1] != job.nodes[:1]:
        yield warning("all_reduce", "not tested", "fix the problem of the first node first")
        return
    gpus = nodes[0]["asked"] or nodes[0]["gpus"]
    tasks = int(os.environ.get("SLURM_NTASKS_PER_NODE") or 1)
    ranks = (gpus or 2) if tasks == 1 else 1
    step = (",".join(good), str(len(good)), str(tasks))
    rank = ("python", program, str(ranks), str(gpus), form, step[0])
    text = read_output(["bash", "-c", script, "doctor.py", *step, *rank], 100).text
    failures = list(_failures(text))
    reported = re.findall(r"finding\t(\w+)\t(.*?)\t(.*?)\t(.*)", text)
    yield from failures
    yield from (Finding(*each) for each in reported if each[0] != "end")
    if not failures and "end" not in {each[0] for each in reported}:
        what = "the ranks have not reported all" if reported else "no rank has reported"
        told = [line for line in text.strip().split("\n") if "job_node" not in line]
        reason = f": {told[-1]}" if told and told[-1] else ""
        fix = "test a single rank: srun --overlap --ntasks=1 python3 container_run.py python "
        yield problem("all_reduce", f"{what}{reason}", f"{fix}-c 'import torch'")


def _failures(text: str) -> Iterator[Finding]:
    """Return the errors and hints of tasks that could not start.

    srun labels each line with the number of the task; a line without a label is about all tasks.
    """
    node_of: dict[str, str] = {}
    last: dict[str, str] = {}
    failed: dict[tuple[str, str], list[str]] = {}
    for task, kind, told in re.findall(r"^ *(?:(\d+): )?(job_node|error:|hint:) (.*)", text, re.M):
        if kind == "job_node":
            node_of[task] = told
        elif kind == "error:":
            last[task] = told
        elif task in last:
            failed.setdefault((last.pop(task), told), []).append(task)
    for (error, hint), tasks in failed.items():
        where = " ".join(sorted({node_of[each] for each in tasks if each in node_of}))
        yield problem("all_reduce", f"{where}: {error}" if where else error, hint)
