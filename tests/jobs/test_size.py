"""What a job asks for is counted as Slurm does; what is not counted is said to be unclear."""

import contextlib
from types import SimpleNamespace

import pytest

from lib.configuration.sites import load_machines
from lib.jobs.cost import cost_of, hourly_cost, together
from lib.jobs.size import check_required, limits_text, size_of_options
from lib.script.errors import LongshipError

SITE = """
[machines.m]
cores_per_node = 48
gpus_per_node = 4
default_partition = "gpu"
price = { node = 48, unit = "core-hours" }
partitions.gpu = { max_time = "24:00:00", max_nodes = 8, max_gpus = 24 }
partitions.cpu = { cores_per_node = 128, gpus_per_node = 0 }
partitions.free = { price = { unit = "hours" } }
partitions.share = { price = { gpu = 1.5, unit = "GPU-hours" } }
qos.short = { max_time = "2:00:00", max_nodes = 2 }
qos.long = { max_time = "7-00:00:00", max_nodes = 12 }

[machines.m.partitions.busy]
max_time = "24:00:00"
price = { slice = 8, slice_cores = 12, slice_memory = 128, unit = "core-hours" }

[machines.strict]
required = ["account", "mem"]

[machines.bare]
price = { core = 1, unit = "core-hours" }
"""


@pytest.fixture
def machines(repository):
    """Give the machines of a made-up site."""
    repository.write("site/site.toml", SITE)
    return load_machines(repository.root)


@pytest.fixture
def request_of(machines):
    """Give a function that reads options; underscores stand for dashes."""

    def read(machine="m", **options):
        given = {
            name.replace("_", "-") if name.islower() else name: value
            for name, value in options.items()
        }
        return size_of_options({"job-name": "job", **given}, machines[machine])

    return read


def test_job_that_says_nothing_is_a_core_of_the_default_partition(request_of):
    found = request_of()
    assert (found.name, found.partition, found.hours) == ("job", "gpu", 24)
    assert (found.nodes, found.cores, found.gpus, found.memory) == (1, 1, 0, 0)
    assert (found.jobs, found.qos, found.account, found.constraint) == (1, "", "", "")
    assert request_of("bare").hours is None


def test_words_are_taken_as_they_are(request_of):
    found = request_of(job_name="x", qos="short", account="a", constraint="fat", time="90")
    assert found[:1] + found[2:5] == ("x", "short", "a", "fat")
    assert found.hours == 1.5


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"nodes": "2", "ntasks_per_node": "4", "cpus_per_task": "12"}, (2, 96)),
        ({"nodes": "2-4"}, (4, 4)),
        ({"nodes": "1", "ntasks": "2", "ntasks_per_node": "4"}, (1, 4)),
        ({"nodes": "2", "cpus_per_task": "96"}, (2, 192)),
        ({"ntasks": "3", "cpus_per_task": "96"}, (3, 288)),
        ({"gpus": "8", "gpus_per_task": "1", "cpus_per_task": "2"}, (2, 16)),
        ({"gpus": "4", "gres": "gpu:2"}, (2, 2)),
        ({"ntasks": "8", "ntasks_per_node": "3"}, (3, 9)),
        ({"ntasks": "96"}, (2, 96)),
        ({"ntasks": "97"}, (3, 97)),
        ({"ntasks": "97", "nodes": "4"}, (4, 97)),
        ({"ntasks": "5", "cpus_per_task": "24"}, (3, 120)),
        ({"ntasks": "129", "partition": "cpu"}, (2, 129)),
        ({"ntasks": "96", "partition": "cpu,gpu"}, (2, 96)),
        ({"nodes": "2", "exclusive": "", "partition": "gpu,cpu"}, (2, 256)),
        ({"nodes": "2", "exclusive": ""}, (2, 96)),
        ({"nodes": "2", "exclusive": "", "partition": "cpu"}, (2, 256)),
        ({"nodes": "1", "ntasks": "40", "exclusive": "user"}, (1, 48)),
        ({"nodes": "2", "gpus_per_node": "a100:2", "cpus_per_gpu": "12"}, (2, 48)),
    ],
)
def test_nodes_and_cores_are_counted(options, size, request_of):
    found = request_of(**options)
    assert (found.nodes, found.cores) == size


@pytest.mark.parametrize(
    ("options", "nodes", "gpus"),
    [
        ({"gres": "gpu"}, 1, 1),
        ({"gres": "gpu:4", "nodes": "2"}, 2, 8),
        ({"gres": "gpu:a100:3,tmp:5"}, 1, 3),
        ({"gres": "gpu:a100"}, 1, 1),
        ({"gres": "gpu:1g.10gb:2"}, 1, 2),
        ({"gres": "tmp:5"}, 1, 0),
        ({"gpus_per_node": "4", "nodes": "2"}, 2, 8),
        ({"gpus_per_node": "a100:4"}, 1, 4),
        ({"gpus": "3"}, 1, 3),
        ({"gpus": "a100:9"}, 3, 9),
        ({"gpus_per_task": "1", "ntasks": "8"}, 2, 8),
        ({"gpus_per_task": "1", "nodes": "2", "ntasks_per_node": "4"}, 2, 8),
        ({"gpus_per_task": "1", "ntasks": "6", "ntasks_per_node": "4"}, 2, 8),
        ({"gpus_per_task": "2", "nodes": "2"}, 2, 4),
    ],
)
def test_gpus_are_counted_whichever_option_asks(options, nodes, gpus, request_of):
    found = request_of(**options)
    assert (found.nodes, found.gpus) == (nodes, gpus)


@pytest.mark.parametrize(
    ("options", "gigabytes"),
    [
        ({"mem": "110G", "nodes": "2"}, 220),
        ({"mem": "512"}, 0.5),
        ({"mem": "1T"}, 1024),
        ({"mem": "2gb"}, 2),
        ({"mem": "64g", "mem_per_cpu": "65G", "ntasks": "1"}, 130),
        ({"mem": "1048576K"}, 1),
        ({"mem": "0"}, 0),
        ({"mem_per_cpu": "2G", "ntasks": "3", "cpus_per_task": "4"}, 24),
        # of a core that is given whole, Slurm counts two threads
        ({"mem_per_cpu": "2G", "ntasks": "3"}, 12),
        ({"mem_per_cpu": "2G", "ntasks": "3", "threads_per_core": "1"}, 6),
        ({"mem_per_cpu": "2G", "ntasks": "3", "hint": "nomultithread"}, 6),
        ({"mem_per_cpu": "2G", "exclusive": "", "cpus_per_task": "4"}, 192),
        ({"mem_per_gpu": "60G", "gpus": "3"}, 180),
    ],
)
def test_memory_is_counted_in_gigabytes(options, gigabytes, request_of):
    assert request_of(**options).memory == pytest.approx(gigabytes)


@pytest.mark.parametrize("option", ["mem", "mem_per_cpu", "mem_per_gpu"])
@pytest.mark.parametrize("value", ["0", "00", "0G", "0mb"])
def test_no_limit_of_memory_is_all_of_the_nodes(option, value, request_of):
    assert request_of(nodes="2", **{option: value})[5:8] == (2, 96, 8)


@pytest.mark.parametrize(
    ("text", "jobs"),
    [("0-7", 8), ("3", 1), ("1,4-10:2", 5), ("0-99%5", 100), ("[0-3]", 4), ("", 1)],
)
def test_jobs_of_an_array_are_counted(text, jobs, request_of):
    assert request_of(array=text).jobs == jobs


@pytest.mark.parametrize(("option", "value"), [("time", "5d"), ("array", "a-b")])
def test_value_that_cannot_be_read_is_told(option, value, request_of):
    with pytest.raises(LongshipError) as error:
        request_of(**{option: value})
    assert f"--{option}" in str(error.value) and f'"{value}"' in str(error.value)


@pytest.mark.parametrize(
    ("options", "unclear"),
    [
        ({"nodes": "2", "nodelist": "a,b", "mem": "1G", "gpus": "a100:2"}, ""),
        ({"nodes": "2", "mem": "64gb", "hint": "nomultithread", "comment": "x"}, ""),
        ({"nodes": "2", "SBATCH_CORE_SPEC": "2"}, "SBATCH_CORE_SPEC"),
        ({"nodes": "2", "#PBS": ""}, "#PBS"),
        ({"nodes": "2", "#PBS": "", "#BSUB": "", "ignore-pbs": ""}, ""),
        ({"nodes": "2", "uenv": "x/y:1"}, "--uenv"),
        ({"nodelist": "node[1-4]"}, "--nodelist"),
        ({"hint": "memory_bound"}, "--hint=memory_bound"),
        ({"nodes": "1", "constraint": "fat*2"}, "--constraint=fat*2"),
        ({"nodes": "1", "gres": "shard:2"}, "--gres=shard:2"),
        ({"ntasks": "2"}, "a missing --nodes"),
        ({"gpus": "2"}, "a missing --nodes"),
        ({"partition": "busy", "ntasks": "2", "mem_per_cpu": "1G"}, ""),
        ({"partition": "busy", "ntasks": "2", "mem": "1G"}, "a missing --nodes"),
        ({"partition": "busy", "ntasks": "2", "gres": "gpu:1"}, "a missing --nodes"),
        ({"partition": "busy", "ntasks": "6", "ntasks_per_node": "4"}, "a missing --nodes"),
        ({"partition": "busy", "gres": "gpu:4", "mem": "1G"}, ""),
        ({"partition": "busy,cpu", "ntasks": "2"}, "a missing --nodes"),
        ({"gpus": "a100:2,h100:2"}, "--gpus=a100:2,h100:2"),
        ({"nodes": "2,4,8"}, "--nodes=2,4,8"),
        ({"nodes": "two"}, "--nodes=two"),
        ({"cpus_per_task": "-1"}, "--cpus-per-task=-1"),
        ({"mem": "much"}, "--mem=much"),
    ],
)
def test_what_can_make_a_job_larger_is_named(options, unclear, request_of, machines):
    size = request_of(**options)
    assert size.unclear == unclear
    settings = SimpleNamespace(machine=machines["m"])
    cost = cost_of(settings, size, 1)
    assert (cost.amount is None) == cost.is_unclear == bool(unclear)
    if unclear:
        assert cost.words == f"job: cost unknown, because of {unclear}"
        assert together([cost_of(settings, request_of(), 1), cost]).is_unclear


def test_whole_node_that_nobody_describes_has_no_price(request_of):
    assert request_of("bare", nodes="1").unclear == ""
    for options in ({"exclusive": ""}, {"mem": "0G"}):
        assert request_of("bare", nodes="1", **options).unclear == "whole nodes of unknown size"


def test_price_is_the_partitions_own_or_the_machines(request_of, machines):
    m = machines["m"]
    assert hourly_cost(request_of(nodes="2"), m) == (96, "core-hours")
    assert hourly_cost(request_of(partition="share", gpus="2"), m) == (3, "GPU-hours")
    # nothing that it requests has a price
    assert hourly_cost(request_of(partition="share"), m) is None
    assert hourly_cost(request_of(partition="free"), m) == (0, "hours")
    assert hourly_cost(request_of("strict"), machines["strict"]) is None


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({}, "strict requires --account", "project.account"),
        ({"account": ""}, "strict requires --account", "add --account=VALUE"),
        ({"account": "a"}, "strict requires --mem", "--mem=VALUE"),
        ({"account": "a", "mem": "0"}, "", ""),
        ({"account": "a", "mem-per-gpu": "1G"}, "", ""),
    ],
)
def test_what_a_site_requires_is_told(options, message, hint, machines):
    with contextlib.nullcontext() if not message else pytest.raises(LongshipError) as error:
        check_required(options, machines["strict"])
    if message:
        assert str(error.value) == message and hint in error.value.hint


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "partition gpu has at most 8 nodes, 24 GPUs, 1-00:00:00 (site/site.toml)"),
        (
            {"partition": "cpu,gpu", "qos": "short"},
            "partition gpu has at most 8 nodes, 24 GPUs, 1-00:00:00; QOS short has at most "
            "2 nodes, 02:00:00 (site/site.toml)",
        ),
        ({"partition": "cpu"}, ""),
        ({"partition": "nothing", "qos": "no"}, ""),
    ],
)
def test_limits_of_the_site_are_named(options, text, request_of, machines):
    assert limits_text(request_of(**options), machines["m"]) == text


def test_time_that_nobody_says_is_the_longest_that_is_allowed(request_of):
    assert request_of(qos="short").hours == 2
    assert request_of(qos="short", partition="cpu").hours == 2
    assert request_of(qos="long").hours == 168
    assert request_of(partition="cpu").hours is None
