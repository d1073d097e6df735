"""What doctor.py --job makes of figures, masks and logs; and its script."""

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import processes

from extras.job_check import diagnosis as job_diagnosis
from lib import ROOT
from lib.runtimes.environment import Environment
from lib.script.render import render

INSIDE = os.path.join(ROOT, "extras/job_check/inside")

# Lines of public logs: NVIDIA/nccl issues 226, 527, 1597, 1925; nccl-tests issue 188; aws-ofi-nccl
# issues 161, 801. Host names are shortened.
SOCKETS = """\
ip-12-21:45361:45361 [0] NCCL INFO NET/IB : No device found.
ip-12-21:45305:45305 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.12.210<0>
c6ad:117284:117388 [0] NCCL INFO Ring 00 : 15 -> 0 [receive] via NET/Socket/0
"""
NO_PLUGIN = """\
user:695835:695835 [4] NCCL INFO NET/Plugin : No plugin found, using internal implementation
axa:3048391:3048566 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
axa:3048391:3048566 [0] NCCL INFO Using network Socket
"""
INFINIBAND = """\
nccl-8p2bm:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.2.0.42<0>
nccl-8p2bm:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
nccl-8p2bm:2620971:2620971 [3] NCCL INFO Using network IB
"""
EFA = """\
ip-10:417138:417176 [7] NCCL INFO NET/OFI Selected Provider is efa
ip-10:417138:417176 [7] NCCL INFO Using network AWS Libfabric
8h200:14630:14695 [1] NCCL INFO Channel 05/0 : 0[0] -> 1[1] [receive] via NET/AWS Libfabric/1/GDRDMA
"""
SLINGSHOT = """\
[0] NCCL INFO NET/OFI Selected Provider is cxi (found 8 nics)
[0] NCCL INFO Using network AWS Libfabric
"""


@pytest.mark.parametrize(
    ("printed", "texts"),
    [
        (r"finding\tok\tbinding\tcores 0-1\t\nfinding\tend\t\t\t\n", ["cores 0-1"]),
        (
            r"finding\tok\tbinding\tcores 0-1\t\n0: killed\n",
            ["cores 0-1", "the ranks have not reported all: 0: killed"],
        ),
        (r"0: killed\n", ["no rank has reported: 0: killed"]),
    ],
)
def test_measurement_that_does_not_end_is_a_problem(printed, texts):
    one = {"node": "n1", "clock": [0, 0], "unseen": "", "taken": "", "asked": 0, "gpus": 0}
    given = (SimpleNamespace(nodes=["n1"]), [one], f"printf '{printed}'", "check_ranks.py", "brief")
    found = list(job_diagnosis._ranks(*given))
    assert [each.text for each in found] == texts
    assert all((each.state == "problem") == ("reported" in each.text) for each in found)


@pytest.fixture
def findings(monkeypatch):
    """Give the module of extras/job_check/inside with the findings about ranks."""
    monkeypatch.syspath_prepend(INSIDE)
    import rank_findings

    return rank_findings


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (SOCKETS, "Socket"),
        (NO_PLUGIN, "Socket"),
        (INFINIBAND, "IB"),
        (EFA, "AWS Libfabric"),
        (SLINGSHOT, "AWS Libfabric"),
        ("", ""),
    ],
)
def test_network_is_read_from_the_log(findings, log, kind):
    assert findings.network_of(log) == kind


def test_channels_count_more_than_what_was_opened(findings):
    log = "n:1:1 [0] NCCL INFO Using network IB\n" + SOCKETS
    assert findings.network_of(log) == "Socket"


@pytest.mark.parametrize(
    ("log", "fix"),
    [
        (SOCKETS, "no InfiniBand device is visible in the container"),
        (NO_PLUGIN, "unset NCCL_NET_PLUGIN, NCCL_IB_DISABLE"),
        ("NCCL INFO Failed to open libibverbs.so[.1]", "rdma-core"),
        ("get_ofi_provider:312 NCCL WARN NET/OFI Could not find any optimal provider", "libfabric"),
        ("", "compare the job with those of the site"),
    ],
)
def test_fix_of_sockets_is_what_the_log_says(findings, log, fix):
    assert fix in findings.network_fix(log)


def test_fallback_names_its_nodes(findings):
    (found,) = findings.network_findings({"n1": ("IB", "x"), "n2": ("Socket", "bind it")})
    assert found == ("problem", "network", "n2: NCCL uses plain sockets", "bind it")
    (fine,) = findings.network_findings({"n1": ("IB", "x"), "n2": ("IB", "x")})
    assert fine[:3] == ("ok", "network", "NCCL uses IB")
    (silent,) = findings.network_findings({"n1": ("", "x")})
    assert silent.state == "warning"


def test_bus_bandwidth_is_that_of_a_ring(findings):
    # 1 GB in 1 s: of two ranks each link carries 1 GB/s, of four 1.5
    assert findings.bus_bandwidth(10**9, 1.0, 2) == pytest.approx(1.0)
    assert findings.bus_bandwidth(10**9, 1.0, 4) == pytest.approx(1.5)
    assert findings.bus_bandwidth(10**9, 0.5, 4) == pytest.approx(3.0)


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "1,3,5-6"])
def test_cores_are_listed_as_linux_does(findings, text):
    assert findings.format_numbers(findings.parse_numbers(text)) == text


@pytest.mark.parametrize("count", range(1, 12))
def test_every_link_of_the_ring_is_measured_once_and_nobody_twice_in_a_round(findings, count):
    found = findings.rounds(count)
    links = sorted(tuple(sorted(link)) for some in found for link in some)
    ring = {tuple(sorted((node, (node + 1) % count))) for node in range(count)} if count > 1 else []
    assert links == sorted(ring)
    for some in found:
        nodes = [node for link in some for node in link]
        assert len(nodes) == len(set(nodes))


def test_slow_node_is_named_and_not_its_neighbours(findings):
    links = {("a", "b"): 20.0, ("b", "c"): 2.0, ("c", "d"): 2.0, ("d", "a"): 20.0}
    (found,) = findings.speed_findings("links", "to its neighbours", findings.best_links(links))
    assert found.text == "c is slow: to its neighbours 2.00 GB/s, median 20.00"
    assert "--exclude=c" in found.fix


def test_even_nodes_are_well(findings):
    (found,) = findings.speed_findings("links", "x", {"a": 10.0, "b": 9.0, "c": 6.0})
    assert found.state == "ok"
    assert findings.speed_findings("links", "x", {}) == []


def rank(number, node, cores, task=None, gpu=None, gpus=0, cores_of_node=8):
    return {
        **{"rank": number, "node": node, "cores": cores, "task": number if task is None else task},
        **{"numa": [0], "gpu": gpu, "gpus_asked": gpus, "cores_of_node": cores_of_node},
    }


def gpu(index, uuid="", cores=()):
    return {
        "index": index,
        "name": "A100",
        "bus": f"0000:0{index}:00.0",
        "uuid": uuid,
        "cores": cores,
    }


def wrong(findings, *ranks):
    found = findings.map_findings(ranks, complete=False)
    return [(each.state, each.text) for each in found if each.state != "ok"]


def test_map_shows_one_node_for_all_that_are_alike(findings):
    ranks = [rank(number, f"n{number // 2}", [0, 1, 2, 3], number // 2) for number in range(6)]
    texts = [each.text for each in findings.map_findings(ranks, complete=False)]
    assert texts == [
        "rank 0: n0, cores 0-3, NUMA 0, no GPU",
        "rank 1: n0, cores 0-3, NUMA 0, no GPU",
        "2 more nodes have the layout of n0",
    ]
    complete = findings.map_findings(ranks, complete=True)
    assert [each.text.split(",")[0] for each in complete] == [
        f"rank {number}: n{number // 2}" for number in range(6)
    ]


def test_node_that_is_laid_out_otherwise(findings):
    ranks = [rank(0, "a", [0, 1]), rank(1, "b", [2, 3]), rank(2, "c", [2, 3])]
    assert wrong(findings, *ranks) == [("warning", "a has another layout than b")]


def test_tasks_that_share_cores_are_named_and_ranks_of_one_task_are_not(findings):
    assert wrong(findings, rank(0, "a", [0, 1]), rank(1, "a", [1, 2])) == [
        ("warning", "a: rank 0-1 share cores 1")
    ]
    assert wrong(findings, rank(0, "a", [0, 1, 2], 0), rank(1, "a", [0, 1, 2], 0)) == []


def test_one_core_where_there_are_many(findings):
    few = "has at most one core, of 48 for 4 ranks"
    ranks = [rank(number, "a", [0], 0, cores_of_node=48) for number in range(4)]
    assert wrong(findings, *ranks) == [("problem", f"a: rank 0-3 {few}")]
    ranks = [rank(number, "a", [number], cores_of_node=8) for number in range(4)]
    assert wrong(findings, *ranks) == []


def test_gpus_that_are_not_seen_shared_or_far(findings):
    blind = rank(0, "a", [0, 1], gpus=4)
    assert wrong(findings, blind) == [
        ("problem", "a: rank 0 sees no GPU, but the job has 4 on each node")
    ]
    shared = [rank(n, "a", [2 * n, 2 * n + 1], gpu=gpu(0, "GPU-1"), gpus=2) for n in range(2)]
    assert wrong(findings, *shared) == [("problem", "a: rank 0-1 share a GPU")]
    far = rank(0, "a", [0, 1], gpu=gpu(0, "GPU-1", [4, 5, 6, 7]), gpus=1)
    assert wrong(findings, far) == [("warning", "a: rank 0 has no core near its GPU")]
    near = rank(0, "a", [3, 4], gpu=gpu(0, "GPU-1", [4, 5, 6, 7]), gpus=1)
    assert wrong(findings, near) == []


def test_log_in_memory_is_read_while_another_writes_it():
    """NCCL opens the path of NCCL_DEBUG_FILE with fopen."""
    log = open(os.memfd_create("nccl"), errors="replace")  # noqa: SIM115
    with log, open(f"/proc/self/fd/{log.fileno()}", "w") as file:
        file.write("NCCL INFO Using network IB\n")
        file.flush()
        assert log.read() == "NCCL INFO Using network IB\n"


@pytest.fixture
def listener():
    """Give a socket that listens, and its port."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


FACTS = [sys.executable, os.path.join(INSIDE, "node_facts.py"), "127.0.0.1"]


def facts_of(text):
    (line,) = text.splitlines()
    return json.loads(line)


def test_node_names_who_has_the_port(run, listener, tmp_path):
    environment = {**os.environ, "SLURMD_NODENAME": "node1"}
    facts = facts_of(run([*FACTS, str(listener), "node1", "1", tmp_path], env=environment).stdout)
    assert facts["taken"].startswith(f"process {os.getpid()}, ")


def test_nodes_compare_their_clocks_and_the_first_waits_for_the_others(tmp_path):
    (port,), more = processes.free_ports(1), [tmp_path, tmp_path, tmp_path / "gone"]
    command = [*FACTS, str(port), "node1", "2", *more]
    first = {**os.environ, "SLURMD_NODENAME": "node1", "SLURM_GPUS_ON_NODE": "4"}
    with subprocess.Popen(command, env=first, stdout=subprocess.PIPE, text=True) as server:
        here = facts_of(server.stdout.readline())
        assert server.poll() is None
        other = {**os.environ, "SLURMD_NODENAME": "node2"}
        there = subprocess.run(command, env=other, capture_output=True, text=True, check=True)
        assert server.wait(processes.PATIENCE) == 0
    there = facts_of(there.stdout)
    for facts, name, gpus in ((here, "node1", 4), (there, "node2", 0)):
        offset, exact = facts["clock"]
        assert abs(offset) <= exact
        assert (facts["node"], facts["asked"], facts["taken"]) == (name, gpus, "")
        assert facts["unseen"] == str(tmp_path / "gone")
        assert facts["address"] == "127.0.0.1"
        assert facts["memory"] > 0


def test_facts_can_be_read_by_an_old_python():
    """Compute nodes have the system's Python: 3.6 on LUMI."""
    ast.parse(Path(FACTS[1]).read_text(encoding="utf-8"), feature_version=(3, 6))


def node(name, **facts):
    return {
        **{"node": name, "kernel": "6.1", "unseen": "", "address": "10.0.0.1", "room": 9},
        **{"kind": "xfs", "memory": 100, "taken": "", "clock": [0.1, 0.5], "gpus": 4, "asked": 4},
        **{"driver": "none", "ecc": "", **facts},
    }


JOB = job_diagnosis.Job(["n1", "n2", "n3"], "n1", 20001)


def wrong_nodes(*others, mounted=()):
    """Give what is found of a job in which the first node, and any other than these, is well."""
    named = {each["node"]: each for each in others}
    nodes = [named.get(name, node(name)) for name in JOB.nodes]
    found = [*job_diagnosis._rendezvous(JOB, nodes), *job_diagnosis._resources(nodes, mounted)]
    return [each for each in found if each.state != "ok"]


def test_nodes_that_are_alike_are_well():
    assert wrong_nodes() == []


@pytest.mark.parametrize(
    ("facts", "state", "topic", "text", "fix"),
    [
        ({"address": ""}, "problem", "address", "n2 cannot resolve MASTER_ADDR, n1", "/etc/hosts"),
        ({"address": "10.9.9.9"}, "problem", "address", "10.9.9.9 on n2 and 10.0.0.1", "=n2"),
        ({"clock": None}, "problem", "network", "n2 cannot connect to n1, n1 port 20001", "=n2 ip"),
        ({"clock": [-5000.4, 2.1]}, "problem", "clock", "by -5000 ms (measured to 3 ms)", "=n2"),
        ({"unseen": "/a, /b"}, "problem", "files", "n2 cannot read /a, /b", "--exclude=n2"),
        ({"room": 0}, "warning", "temporary", "n2 has less than 1 GiB left in ", "TMPDIR"),
        ({"ecc": "0, 3"}, "warning", "gpus", "uncorrected GPU memory errors: 0, 3", "=n2"),
        ({"gpus": 3}, "problem", "gpus", "n2 has 3 visible GPUs, but the job has 4", "lost a GPU"),
        ({"gpus": 5}, "warning", "gpus", "n2 has GPUs: 5, but the other nodes have 4", "=n2"),
        ({"kernel": "5.4"}, "warning", "kernel", "n2 has kernel 5.4, but the", "--exclude=n2"),
        ({"driver": "x"}, "warning", "driver", "n2 has driver x, but the", "--exclude=n2"),
    ],
)
def test_node_that_differs_is_named(facts, state, topic, text, fix):
    (found,) = wrong_nodes(node("n2", **facts))
    assert (found.state, found.topic) == (state, topic)
    assert text in found.text
    assert fix in found.fix


def test_first_node_decides_what_can_be_tested():
    port, network = wrong_nodes(node("n1", taken="process 7, python3"))
    assert port.text == "MASTER_PORT, 20001, is in use on n1 by process 7, python3"
    assert "MASTER_PORT=20002" in port.fix
    assert network.fix == "free the port first"
    (found,) = wrong_nodes(node("n1", address="127.0.1.1"), *map(node, ("n2", "n3")))
    assert "GLOO_SOCKET_IFNAME" in found.fix


def test_folders_that_compute_nodes_do_not_see_are_the_fix():
    (found,) = wrong_nodes(node("n2", unseen="/x"), mounted=["/e"])
    assert found.fix.startswith("compute nodes see only /e: clone there")


def test_errors_of_ranks_name_their_nodes():
    text = (
        "0: error: no torch\n1: job_node n2\n1: error: no torch\n0: hint: install it\n"
        "1: hint: install it\n0: job_node n1\nsrun: error: n1: task 0\nerror: all\nhint: fix it\n"
    )
    first, second = job_diagnosis._failures(text)
    assert first == ("problem", "all_reduce", "n1 n2: no torch", "install it")
    assert second == ("problem", "all_reduce", "all", "fix it")


def test_pyxis_is_given_its_options(repository, run, tmp_path):
    repository.write("local/site.toml", '[machines.local]\npyxis = "yes"\nruntime = "enroot"\n')
    settings, paths = repository.settings_and_paths()
    lines = job_diagnosis.job_lines(Environment(settings, paths, "enroot", "job"))
    options, step = (
        next(n for n, line in enumerate(lines) if line.startswith("pyxis_begin_options ")),
        lines.index('  bash -c "$(script_text)" doctor.py rank "${@:4}"'),
    )
    assert options < step
    script = render("x", lines)
    assert len(script) < 100_000  # an argument of a program holds 128 KiB
    (tmp_path / "doctor.sh").write_text(script)
    run([processes.program("shellcheck"), "--color=never", tmp_path / "doctor.sh"])
