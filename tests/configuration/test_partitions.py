"""What a site says of partitions is read strictly; times are Slurm's, prices those of sites."""

import math
import re

import pytest

from lib.configuration.partitions import Limits, Price, hours, read_limits, time_text
from lib.configuration.tables import read_toml
from lib.script.errors import LongshipError

TIMES = {
    "90": 1.5,
    "90:30": 1.5 + 30 / 3600,
    "1:30:00": 1.5,
    "100:00:00": 100,
    "2-12": 60,
    "2-12:30": 60.5,
    "2-12:90": 61.5,
    "2-12:30:36": 60.51,
    "1-0:0:0": 24,
    "UNLIMITED": math.inf,
    "infinite": math.inf,
    "-1": math.inf,
    "0": math.inf,
    "00:00": math.inf,
    "0-0": math.inf,
}


def limits(text, tmp_path, kind="partitions"):
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    tables = read_toml(tmp_path / "site.toml", "x/site.toml")
    return read_limits(kind, tables["machines"]["m"][kind], "x/site.toml", f"machines.m.{kind}")


@pytest.mark.parametrize(("text", "expected"), TIMES.items())
def test_time_is_read_as_slurm_reads_it(text, expected):
    assert hours(text, "--time") == pytest.approx(expected)


@pytest.mark.needs("sbatch")
def test_slurm_reads_times_in_the_same_way(clean_environment, run, tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    env = {**clean_environment, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    for text, expected in TIMES.items():
        # with -v it says what it was asked for; without any GPUs in its settings it ends there
        command = ["sbatch", "-v", "--gpus-per-task=1", f"--time={text}", "--wrap=true"]
        said = run(command, env=env, check=False).stderr
        shown = re.search(r"^sbatch: time +: (\S+)$", said, re.MULTILINE)[1]
        in_whole_minutes = expected if math.isinf(expected) else math.ceil(expected * 60) / 60
        assert shown == time_text(in_whole_minutes), text


@pytest.mark.parametrize("text", ["", "5d", "1:", ":1", "1:2:3:4", "1.5", "-2", "1-", "24:00:00h"])
def test_what_is_no_time_is_told(text):
    with pytest.raises(LongshipError) as error:
        hours(text, "--time")
    assert str(error.value) == f'--time: expected a time, got "{text}"'
    assert "24:00:00" in error.value.hint


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.5, "00:30:00"),
        (1 / 3600, "00:00:01"),
        (23.999999, "1-00:00:00"),
        (30, "1-06:00:00"),
        (math.inf, "UNLIMITED"),
    ],
)
def test_time_is_written_as_slurm_writes_it(amount, text):
    assert time_text(amount) == text
    assert hours(text, "it") == pytest.approx(amount)


def test_partition_says_what_it_allows(tmp_path):
    text = (
        '[machines.m.partitions.a]\nmax_time = "2-00:00:00"\nmax_nodes = 4\nmax_gpus = 16\n'
        "cores_per_node = 64\ngpus_per_node = 0\ngpu_memory = 94\n"
        'price = { unit = "GPU-hours", gpu = 0.5, constraints = { fat = 2 } }\n'
        "[machines.m.partitions.b]\n"
    )
    found = limits(text, tmp_path)
    assert found["b"] == Limits()
    assert found["a"][:-1] == (48, 4, 16, 64, 0, 94)
    assert found["a"].price == Price("GPU-hours", gpu=0.5, constraints={"fat": 2})


@pytest.mark.parametrize(
    ("kind", "line", "message", "hint"),
    [
        ("partitions", "max_tim = '1'", "unknown key", '"max_time"'),
        ("partitions", "max_time = '5d'", 'a.max_time: expected a time, got "5d"', "24:00:00"),
        ("partitions", "max_time = 60", "max_time: expected a string", "write max_time = "),
        ("partitions", "max_nodes = '4'", "max_nodes: expected an integer", "write max_nodes = "),
        ("partitions", "max_gpus = -1", "max_gpus: expected an integer", "write "),
        ("partitions", "price = 3", "price: expected a table", "write "),
        ("partitions", "price = { gpus = 3 }", "gpus", '"gpu"'),
        ("partitions", "price = { gpu = '3' }", "gpu: expected a number", "write "),
        (
            "partitions",
            "price = { constraints = { fat = 'x' } }",
            "fat: expected a number",
            "write ",
        ),
        ("qos", "cores_per_node = 3", "unknown key", "max_time, max_nodes, max_gpus"),
        ("qos", "price = { gpu = 1 }", "unknown table", "max_time, max_nodes, max_gpus"),
    ],
)
def test_mistake_is_told(kind, line, message, hint, tmp_path):
    with pytest.raises(LongshipError) as error:
        limits(f"[machines.m.{kind}.a]\n{line}\n", tmp_path, kind)
    assert message in str(error.value) and "x/site.toml" in str(error.value)
    assert hint in error.value.hint
