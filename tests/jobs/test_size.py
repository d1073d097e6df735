"""What a job asks for is counted as Slurm does, and refused where it never could start."""

import math

import pytest

from lib.configuration.sites import load_machines
from lib.jobs.cost import hourly_cost
from lib.jobs.size import check_size, size_of_options
from lib.script.errors import LongshipError

SITE = """
[machines.m]
cores_per_node = 48
gpus_per_node = 4
default_partition = "gpu"
price = { node = 48, unit = "core-hours" }
partitions.gpu = { max_time = "24:00:00", max_nodes = 8, max_gpus = 24 }
partitions.cpu = { cores_per_node = 128, gpus_per_node = 0 }
partitions.share = { price = { gpu = 1.5, unit = "GPU-hours" } }
qos.short = { max_time = "2:00:00", max_nodes = 2 }
qos.long = { max_time = "7-00:00:00", max_nodes = 12 }

[machines.strict]
required = ["account", "mem"]

[machines.bare]
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
        given = {name.replace("_", "-"): value for name, value in options.items()}
        return size_of_options({"job-name": "job", **given}, machines[machine])

    return read


@pytest.fixture
def refusal(machines):
    """Give a function that returns message and hint for a job that is refused, else None."""

    def check(machine="m", **options):
        given = {name.replace("_", "-"): value for name, value in options.items()}
        request = size_of_options({"job-name": "job", **given}, machines[machine])
        try:
            check_size(request, given, machines[machine])
        except LongshipError as error:
            return str(error), error.hint
        return None

    return check


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
        ({"ntasks": "8", "ntasks_per_node": "3"}, (3, 8)),
        ({"ntasks": "96"}, (2, 96)),
        ({"ntasks": "97"}, (3, 97)),
        ({"ntasks": "97", "nodes": "4"}, (4, 97)),
        ({"ntasks": "5", "cpus_per_task": "24"}, (3, 120)),
        ({"ntasks": "129", "partition": "cpu"}, (2, 129)),
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
        ({"mem": "1048576K"}, 1),
        ({"mem": "0"}, 0),
        ({"mem_per_cpu": "2G", "ntasks": "3", "cpus_per_task": "4"}, 24),
        ({"mem_per_gpu": "60G", "gpus": "3"}, 180),
    ],
)
def test_memory_is_counted_in_gigabytes(options, gigabytes, request_of):
    assert request_of(**options).memory == pytest.approx(gigabytes)


@pytest.mark.parametrize(
    ("text", "jobs"),
    [("0-7", 8), ("3", 1), ("1,4-10:2", 5), ("0-99%5", 100), ("[0-3]", 4), ("", 1)],
)
def test_jobs_of_an_array_are_counted(text, jobs, request_of):
    assert request_of(array=text).jobs == jobs


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("nodes", "two", "--nodes=4"),
        ("ntasks", "", "--ntasks=4"),
        ("cpus_per_task", "-1", "--cpus-per-task=4"),
        ("gpus", "a100", "--gpus=4"),
        ("mem", "1.5G", "--mem=110G"),
        ("mem", "much", "--mem=110G"),
        ("time", "5d", "24:00:00"),
        ("array", "a-b", "--array=0-7"),
    ],
)
def test_value_that_cannot_be_read_is_told(option, value, hint, request_of):
    with pytest.raises(LongshipError) as error:
        request_of(**{option: value})
    assert f"--{option.replace('_', '-')}" in str(error.value) and f'"{value}"' in str(error.value)
    assert hint in error.value.hint


def test_price_is_the_partitions_own_or_the_machines(request_of, machines):
    m = machines["m"]
    assert hourly_cost(request_of(nodes="2"), m) == (96, "core-hours")
    assert hourly_cost(request_of(partition="share", gpus="2"), m) == (3, "GPU-hours")
    free = request_of(partition="share")
    assert hourly_cost(free, m) is None  # nothing that it requests has a price
    assert hourly_cost(request_of("bare"), machines["bare"]) is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition": "gpu,cpu"},
        {"time": "24:00:00", "nodes": "6", "gpus_per_node": "4"},
        {"qos": "short", "time": "2:00:00"},
        {"qos": "long", "time": "7-00:00:00", "nodes": "12"},
        {"gpus": "8"},
        {"ntasks": "96"},
        {"partition": "cpu", "cpus_per_task": "128"},
        {"machine": "strict", "account": "a", "mem": "0"},
        {"machine": "strict", "account": "a", "mem_per_gpu": "1G"},
        {"machine": "bare", "partition": "any", "qos": "any", "nodes": "1000", "gpus": "8000"},
    ],
)
def test_job_that_can_start_is_taken(options, refusal):
    assert refusal(**options) is None


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"partition": "gpus"}, "unknown partition on m: gpus", 'did you mean "gpu"?'),
        ({"partition": "cpu,x"}, "unknown partition on m: x", "gpu, cpu, share; add missing"),
        ({"qos": "no"}, "unknown qos on m: no", "valid values: short, long; add"),
        ({"qos": "long", "time": "8-0"}, "exceeds the limit of QOS long", "--time=7-00:00:00"),
        (
            {"qos": "long", "gpus": "28", "nodes": "7"},
            "28 GPUs exceed the limit",
            "24",
        ),
        (
            {"time": "24:00:01"},
            "--time=1-00:00:01 exceeds the limit of partition",
            "1-00:00:00 (site/",
        ),
        (
            {"time": "UNLIMITED"},
            "--time=UNLIMITED exceeds the limit of partition",
            "1-00:00:00",
        ),
        ({"time": "0:0"}, "--time=UNLIMITED exceeds the limit of partition", "1-00:00:00"),
        ({"time": "3:00:00", "qos": "short"}, "exceeds the limit of QOS short", "--time=02:00:00"),
        ({"nodes": "9"}, "9 nodes exceed the limit of partition gpu", "at most 8 (site/site.toml"),
        ({"nodes": "3", "qos": "short"}, "3 nodes exceed the limit of QOS short", "at most 2"),
        (
            {"nodes": "7", "gpus_per_node": "4"},
            "28 GPUs exceed the limit",
            "at most 24",
        ),
        ({"gres": "gpu:5"}, "5 GPUs per node requested, but nodes have 4", "site/site.toml"),
        ({"nodes": "1", "gpus": "8"}, "8 GPUs per node requested", "more nodes"),
        ({"partition": "cpu", "gpus": "1"}, "but nodes of cpu have 0", "fewer"),
        ({"cpus_per_task": "97"}, "97 threads per node requested, but nodes have 96", "fewer"),
        ({"machine": "strict"}, "strict requires --account", "project.account"),
        ({"machine": "strict", "account": ""}, "strict requires --account", "add --account=VALUE"),
        (
            {"machine": "strict", "account": "a"},
            "strict requires --mem",
            "--mem=VALUE",
        ),
    ],
)
def test_job_that_never_could_start_is_refused(options, message, hint, refusal):
    told = refusal(**options)
    assert told and message in told[0]
    assert hint in told[1]


def test_time_that_nobody_says_is_the_longest_that_is_allowed(request_of):
    assert request_of(qos="short").hours == 2
    assert request_of(qos="short", partition="cpu").hours == 2
    assert request_of(qos="long").hours == 168
    assert request_of(partition="cpu").hours is None


def test_unlimited_time_is_no_error_where_no_limit_is_known(request_of, refusal):
    assert request_of("bare", time="0").hours == math.inf
    assert refusal("bare", time="0") is None
