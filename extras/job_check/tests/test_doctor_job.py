"""The verdict of doctor.py --job on what ranks tell, and what they find without PyTorch."""

import json
import os
import socket
from types import SimpleNamespace

import pytest
from support import processes

from extras.job_check import diagnosis
from lib import ROOT
from lib.configuration.sites import Expected
from lib.runtimes.environment import Environment
from lib.script.render import render

# Lines of public logs: NVIDIA/nccl issues 226, 1597, 1925; nccl-tests issue 188; aws-ofi-nccl
# issues 161, 801. Host names are shortened.
SOCKETS = """\
ip-12-21:45361:45361 [0] NCCL INFO NET/IB : No device found.
ip-12-21:45305:45305 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.12.210<0>
c6ad:117284:117388 [0] NCCL INFO Ring 00 : 15 -> 0 [receive] via NET/Socket/0
"""
INFINIBAND = """\
nccl-8p2bm:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.2.0.42<0>
nccl-8p2bm:2620971:2620971 [3] NCCL INFO Using network IB
"""
EFA = """\
ip-10:417138:417176 [7] NCCL INFO NET/OFI Selected Provider is efa
8h200:14630:14695 [1] NCCL INFO Channel 05/0 : 0[0] -> 1[1] [receive] via NET/AWS Libfabric/1/GDRDMA
"""
NODES = ["n1", "n1", "n2", "n2"]  # of four ranks
NOTHING = Expected()
SPEEDS = {64: 90.0, 1024: 160.0}


@pytest.fixture
def program(monkeypatch):
    """Give the module of the ranks."""
    monkeypatch.syspath_prepend(os.path.join(ROOT, "extras/job_check/inside"))
    import check_ranks

    return check_ranks


@pytest.mark.parametrize(
    ("log", "network"),
    [
        (SOCKETS, "Socket"),
        (INFINIBAND, "IB"),
        (EFA, "AWS Libfabric"),
        ("n:1:1 [0] NCCL INFO Using network IB\n" + SOCKETS, "Socket"),
        ("", ""),
    ],
)
def test_network_is_read_from_the_log(program, log, network):
    assert program.network_of(log) == network


@pytest.mark.parametrize(
    ("server", "client", "told"),
    [("127.0.0.1", "127.0.0.1", "IPv4"), ("::1", "::1", "IPv6"), ("::", "127.0.0.1", "IPv4")],
)
def test_family_is_that_of_the_connection(program, server, client, told):
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    both = {"dualstack_ipv6": server == "::"}
    with socket.create_server((server, 0), family=family, **both) as listening:
        port = listening.getsockname()[1]
        mapped = f"::ffff:{client}" if server == "::" else client
        with socket.create_connection((mapped, port)):
            assert program.family_of_connection(port) == told
        assert program.family_of_connection(port) == "an unknown address family"


@pytest.mark.parametrize("count", range(1, 9))
def test_each_link_of_the_ring_is_measured_by_groups_that_are_alike(program, monkeypatch, count):
    """PyTorch names a group by its ranks and by how many groups a rank has: else all would hang."""
    of_ranks = [f"n{number // 2}" for number in range(2 * count)]
    groups = {}  # of each rank, in turn
    for number, node in enumerate(of_ranks):
        monkeypatch.setattr(program, "NODE", node)
        rank = program.Rank(number, 1, 0)
        made = groups.setdefault(number, [])
        rank.dist = SimpleNamespace(new_group=lambda ranks, made=made, **_: made.append(ranks))
        rank.all_reduce = lambda *_: None
        rank.compare_nodes(of_ranks)
    for number, made in groups.items():
        for place, ranks in enumerate(made):
            assert number in ranks
            assert all(groups[other][place] == ranks for other in ranks)
    pairs = {tuple(ranks) for made in groups.values() for ranks in made if len(ranks) > 2}
    assert len(pairs) == (count if count > 2 else 0)


def tell(rank, **facts):
    event = {"rank": rank, "node": NODES[rank], "world": 4, **facts}
    return f"{rank // 2}: {json.dumps(event)}"


def healthy(rank, speeds=SPEEDS, backend="nccl"):
    """Give the lines of a rank that comes to the end."""
    yield tell(rank, stage="import of PyTorch", step=1)
    yield tell(rank, family="IPv4", backend=backend)
    for size, speed in speeds.items():
        yield tell(rank, stage=f"all_reduce of {size} MiB", step=2)
        yield tell(rank, among="all ranks", size=size, wrong=0, speed=speed)
    yield tell(rank, stage="end", step=3)


def verdict(*lines, expected=NOTHING):
    text = "\n".join(["job_nodes n1 n2", *lines])
    return [(each.state, each.text) for each in diagnosis.findings(text, expected)]


def problems(*lines, **options):
    found = verdict(*lines, **options)
    return [text for state, text in found if state == "problem"]


ALL = [line for rank in range(4) for line in healthy(rank)]


def test_healthy_ranks_and_a_damaged_line():
    assert verdict(*ALL, '0: {"rank": 1, {"rank": 2}') == [
        ("ok", "4 on 2 nodes by nccl: all are done"),
        ("ok", "by IPv4: all ranks"),
        ("ok", "right for 64 MiB, 1024 MiB"),
        (
            "ok",
            "90.00 GB/s at 64 MiB, 160.00 GB/s at 1024 MiB; site.toml expects none for such a job",
        ),
    ]


@pytest.mark.parametrize(
    ("speed", "state", "expected", "text"),
    [
        (2.3, "problem", (163, 2, 4), "less than half of the 163 GB/s expected"),
        (150.0, "ok", (163, 2, 4), "; 163 GB/s expected of large sizes"),
        # of another job, or of GPUs that this one does not have: no verdict
        (2.3, "ok", (163, 4, 4), "; site.toml expects none for such a job"),
        (2.3, "ok", (163, 2, 8), "; site.toml expects none for such a job"),
        (2.3, "ok", (163, 2, 0), "; site.toml expects none for such a job"),
    ],
)
def test_bandwidth_is_compared_with_that_of_such_a_job(speed, state, expected, text):
    speeds = {64: 2.1, 1024: speed}
    lines = [line for rank in range(4) for line in healthy(rank, speeds)]
    found = verdict(*lines, expected=Expected(*expected))[-1]
    assert found[0] == state
    assert found[1].endswith(text)


def test_rank_that_died_is_named_and_not_those_that_waited_for_it():
    waiting = [tell(rank, error="RuntimeError: closed by peer") for rank in (0, 1, 2)]
    stages = [tell(rank, stage="all_reduce of 1 MiB", step=5) for rank in range(4)]
    dead = tell(3, ended="ended with signal 9")
    assert problems(*stages, *waiting, dead) == [
        "n2 (rank 3): ended with signal 9, in: all_reduce of 1 MiB"
    ]
    assert problems(*stages, *waiting) == [
        "n1 (rank 0 1), n2 (rank 2): RuntimeError: closed by peer, in: all_reduce of 1 MiB"
    ]


def test_ranks_that_got_least_far_are_named_and_bandwidth_of_a_part_is_no_verdict():
    stages = [tell(rank, stage="all_reduce of 1 MiB", step=5) for rank in (0, 1, 3)]
    late = tell(2, stage="import of PyTorch", step=1)
    measured = [tell(0, among="all ranks", size=0.25, wrong=0, speed=0.1)]
    found = problems(*measured, *stages, late, expected=Expected(163, 2, 4))
    assert found == ["n2 (rank 2) did not get beyond: import of PyTorch"]
    stages.append(tell(2, stage="all_reduce of 1 MiB", step=5))
    assert problems(*stages) == ["all ranks did not get beyond: all_reduce of 1 MiB"]


def test_node_that_starts_nothing_is_named_with_the_reason():
    lines = [line for rank in (0, 1) for line in healthy(rank)]
    exited = "srun: error: n2: task 1: Exited with exit code 255"
    fatal = "FATAL:   could not open image"
    assert problems(*lines, f"1: {fatal}", exited) == [f"n2 started no rank: {fatal}"]
    assert problems(*lines, exited) == [f"n2 started no rank: {exited}"]
    assert problems(*lines) == ["n2 started no rank: no message"]
    healthy_with_warning = [*ALL, "0: warning: the image is old", "0: hint: build it"]
    assert problems(*healthy_with_warning) == []
    found = list(diagnosis.findings("srun: error: Unable to confirm allocation", NOTHING))
    assert [each.text for each in found] == [
        "no rank has started: srun: error: Unable to confirm allocation"
    ]


def test_errors_of_tasks_come_with_their_hints_and_nodes():
    both = ["1: error: no image", "0: error: no image", "1: hint: build it", "0: hint: build it"]
    exits = [f"srun: error: n{n + 1}: task {n}: Exited with exit code 1" for n in range(2)]
    text = "\n".join(["job_nodes n1 n2", *both, *exits])
    assert list(diagnosis.findings(text, NOTHING)) == [
        ("problem", "ranks", "n1 n2 started no rank: error: no image", "build it")
    ]
    # before srun
    text = "error: squeue shows no running job 7\nhint: squeue --me\n"
    assert list(diagnosis.findings(text, NOTHING)) == [
        ("problem", "ranks", "error: squeue shows no running job 7", "squeue --me")
    ]
    # of one of several tasks of a node
    found = problems(*(line for rank in (0, 2) for line in healthy(rank)), *both[1:2], both[3])
    assert found == ["error: no image"]


def test_wrong_sums_name_size_and_ranks():
    wrong = [tell(rank, among="all ranks", size=1, wrong=3, speed=9.0) for rank in (2, 3)]
    assert problems(*ALL, *wrong) == ["6 wrong sums of 1 MiB: n2 (rank 2 3)"]


@pytest.mark.parametrize(
    ("speeds", "slow"),
    [
        ({"a": (20.0, 2.0), "b": (20.0, 20.0), "c": (2.0, 2.0)}, ["c"]),  # a's other link is well
        ({"a": (10.0,), "b": (4.9,)}, ["b"]),
        ({"a": (10.0,), "b": (6.0,)}, []),
        ({"a": (10.0,)}, []),
    ],
)
def test_slow_node_is_named_and_not_its_neighbours(speeds, slow):
    events = [
        {"node": node, "among": "neighbouring nodes", "speed": speed}
        for node, some in speeds.items()
        for speed in some
    ]
    assert [node for node, *_ in diagnosis._slow_nodes(events)] == slow


def test_plain_sockets_are_a_warning():
    found = verdict(*ALL, *(tell(rank, network="Socket") for rank in (0, 1)))
    assert found[-1] == ("warning", "NCCL uses Socket between nodes: n1 (rank 0 1)")


def test_pyxis_is_given_its_options(repository, run, tmp_path):
    repository.write("local/site.toml", '[machines.local]\npyxis = "yes"\nruntime = "enroot"\n')
    settings, paths = repository.settings_and_paths()
    lines = diagnosis.job_lines(Environment(settings, paths, "enroot", "job"))
    options, step = (
        next(n for n, line in enumerate(lines) if line.startswith("pyxis_begin_options ")),
        next(n for n, line in enumerate(lines) if line.startswith("ranks_start ")),
    )
    assert options < step
    script = render("x", lines)
    assert len(script) < 100_000  # an argument of a program holds 128 KiB
    (tmp_path / "doctor.sh").write_text(script)
    run([processes.program("shellcheck"), "--color=never", tmp_path / "doctor.sh"])
