"""What a run uses: the sampler of a node with stand-ins for its programs, and its totals."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import PATIENCE, wait_until

from extras.usage.job import values
from extras.usage.sampler import COLUMNS
from extras.usage.usage import Usage, usage_of
from lib.script.command import call
from lib.script.quoting import Expansion
from lib.script.render import render

SMI = Path(__file__).with_name("smi")
TOOLS = ["bash", "cat"]
SAMPLER = Path(__file__).parents[1] / "sampler.py"
HEADING = f"{','.join(COLUMNS)}\n"


@pytest.fixture
def node(tmp_path):
    """Give a function that starts the sampler of a node which has these programs alone."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for each in TOOLS:
        (programs / each).symlink_to(shutil.which(each))
    started = []

    def start(*tools, processes="yes", rank=1000, step=100, **environment):
        for each in tools:
            shutil.copy(SMI / each, programs)
        ranks = subprocess.Popen(["sleep", str(rank)])
        names = {"PATH": str(programs), "RUN_DIR": str(tmp_path), "SLURMD_NODENAME": "n1"}
        names |= environment
        command = [sys.executable, "-IS", SAMPLER, "1", processes, str(ranks.pid), str(step)]
        sampler = subprocess.Popen(command, env=names, stderr=subprocess.PIPE, text=True)
        started.extend((ranks, sampler))
        return ranks, sampler

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_rank_that_ends_at_once_is_not_measured(node, tmp_path):
    ranks, sampler = node(rank=0.5)
    ranks.wait()
    assert sampler.wait(timeout=PATIENCE) == 0
    assert not (tmp_path / "usage").exists()


def rows_of(tmp_path):
    file = tmp_path / "usage/n1.csv"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split(",") for line in lines[1:]]


def wait_for(tmp_path, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition(rows_of(tmp_path)):
        assert time.monotonic() < deadline, rows_of(tmp_path)
        time.sleep(0.1)
    return rows_of(tmp_path)


@pytest.mark.parametrize(
    ("tools", "environment", "samples"),
    [
        (
            ["nvidia-smi", "rocm-smi"],
            {"SLURM_STEP_GPUS": "1,3"},
            ["1,nvidia-smi,50,20001,360", "3,nvidia-smi,50,20003,360"],
        ),
        (  # a cgroup shows only the GPUs of the job, under other numbers
            ["nvidia-smi"],
            {"SLURM_STEP_GPUS": "1,3", "SMI_GPUS": "2"},
            ["0,nvidia-smi,50,20000,360", "1,nvidia-smi,50,20001,360"],
        ),
        (["nvidia-smi"], {"SMI_GPUS": "1", "SMI_USE": "[N/A]"}, ["0,nvidia-smi,,20000,360"]),
        (["rocm-smi"], {}, ["0,rocm-smi,97,32768,410", "1,rocm-smi,91,16384,"]),
        (["rocm-smi"], {"SLURM_STEP_GPUS": "1"}, ["1,rocm-smi,91,16384,"]),
    ],
)
def test_programs_are_read(tools, environment, samples, node, tmp_path):
    node(*tools, **environment)
    rows = wait_for(tmp_path, lambda rows: len(rows) >= len(samples))
    assert [",".join(row[1:6]) for row in rows[: len(samples)]] == samples
    assert {(*row[6:8], row[9]) for row in rows[: len(samples)]} == {("0", "0", "0")}


def test_totals_are_those_of_the_run(node, tmp_path):
    node("nvidia-smi", SMI_GPUS="1")
    rows = wait_for(tmp_path, lambda rows: rows and int(rows[-1][6]) >= 2)
    seconds = int(rows[-1][0]) - int(rows[0][0])
    assert rows[-1][6:] == [str(n) for n in (seconds, 50 * seconds, 20000, 360 * seconds)]


def test_utilisation_that_is_not_reported_is_not_measured(node, tmp_path):
    node("nvidia-smi", SMI_GPUS="1", SMI_USE="[N/A]")
    rows = wait_for(tmp_path, lambda rows: rows and int(rows[-1][9]) > 0)
    assert rows[-1][6:8] == ["0", "0"]
    usage, _ = usage_of(tmp_path, {**RECORD, "gpus": "1"})
    assert (usage.gpu_utilisation_percent, usage.measured_percent) == (None, 0)
    assert usage.gpu_peak_memory_mib == 20000


def test_sampler_has_the_lowest_priority(node, tmp_path):
    _, sampler = node("nvidia-smi")
    wait_for(tmp_path, bool)
    assert os.getpriority(os.PRIO_PROCESS, sampler.pid) == 19


def test_load_and_memory_are_those_of_the_step_alone(node, tmp_path):
    python = [sys.executable, "-c", "x = bytearray(300 << 20)\nwhile True: pass"]
    other = subprocess.Popen(python)
    ranks = ["bash", "-c", '"$@" & wait', "a step (1)", *python]
    step = subprocess.Popen(ranks, start_new_session=True)
    try:
        node(step=step.pid)
        row = wait_for(tmp_path, lambda rows: len(rows) >= 3 and int(rows[-1][4]) > 300)[-1]
    finally:
        other.kill()
        os.killpg(step.pid, signal.SIGKILL)
        other.wait()
        step.wait()
    assert row[1:3] == ["cpu", "proc"] and row[5] == ""
    assert 0 < int(row[3]) < 150  # of one core; with the other process it would be twice that
    assert 300 < int(row[4]) < 400


def test_sampler_ends_with_its_rank_and_leaves_nothing(node, tmp_path):
    rank, sampler = node("nvidia-smi")
    wait_for(tmp_path, bool)
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    assert sampler.wait(PATIENCE) == 0

    def is_left():
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                text = os.fsdecode(each.read_bytes())
                if str(tmp_path / "programs") in text and "nvidia-smi" in text:
                    return True
        return False

    wait_until(lambda: not is_left())  # what was sent a signal takes a moment


def test_kernel_ends_the_sampler_with_its_rank(node, tmp_path):
    node()[0].kill()
    line = call("exec", sys.executable, "-IS", SAMPLER, "1", "yes", Expansion('"$@"'))
    (tmp_path / "sampler").write_text(render("a test", [line]))
    (tmp_path / "programs/sleep").symlink_to(shutil.which("sleep"))
    names = {"PATH": str(tmp_path / "programs"), "RUN_DIR": str(tmp_path)}
    names |= {"SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
    lines = [call("usage_start", "apptainer"), call("exec", "sleep", "600")]
    rank = subprocess.Popen(["bash", "-c", render("a rank", lines)], env=names)
    wait_for(tmp_path, bool)
    (sampler,) = Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()
    os.kill(int(sampler), signal.SIGSTOP)  # so it does not look for its rank itself
    rank.kill()
    rank.wait()
    wait_until(lambda: not Path(f"/proc/{sampler}/cwd").exists())


def test_nothing_is_made_up_where_nothing_can_be_measured(node, tmp_path):
    _, sampler = node(processes="no")
    assert sampler.wait(PATIENCE) == 0
    assert rows_of(tmp_path) == []
    assert (tmp_path / "usage/n1.csv").read_text() == HEADING


def test_driver_that_fails_is_followed_by_the_next_source(node, tmp_path):
    (tmp_path / "programs/nvidia-smi").write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n"
    )
    (tmp_path / "programs/nvidia-smi").chmod(0o755)
    node()
    assert wait_for(tmp_path, bool)[0][2] == "proc"


def test_later_step_waits_for_the_first_and_continues_the_totals(node, tmp_path):
    rank, sampler = node("nvidia-smi", SMI_GPUS="1")
    wait_for(tmp_path, lambda rows: rows and int(rows[-1][6]) >= 1)
    node("nvidia-smi", SMI_GPUS="1")
    rank.kill()
    rank.wait()
    sampler.wait(PATIENCE)
    before = int(rows_of(tmp_path)[-1][6])
    file = tmp_path / "usage/n1.csv"
    with file.open("a") as stream:
        stream.write("17,0,nvidia-smi,5")  # as a full disk leaves it
    rows = wait_for(tmp_path, lambda rows: int(rows[-1][6] if len(rows[-1]) == 10 else 0) > before)
    assert int(rows[-1][7]) == 50 * int(rows[-1][6])
    assert file.read_text().count(HEADING) == 1


RECORD = {
    "started": "2026-01-02T03:00:00Z",
    "ended": "2026-01-02T04:00:00Z",
    "gpus": "4",
    "nodes": "2",
    "cost_per_hour": "4",
    "cost_unit": "GPU-hours",
}


def write(run, node, *rows):
    (run / "usage").mkdir(exist_ok=True)
    (run / f"usage/{node}.csv").write_text(HEADING + "".join(f"{row}\n" for row in rows))


def test_usage_is_that_of_all_nodes(tmp_path):
    write(
        tmp_path,
        "n1",
        "1,0,nvidia-smi,1,1,1,10,10,99,9",
        "1767326400,0,nvidia-smi,90,1000,300,3600,324000,70000,1080000",
        "1767326400,1,nvidia-smi,90,1000,300,3600,324000,71000,1080000",
    )
    write(tmp_path, "n2", "1767324600,0,nvidia-smi,90,1000,,1800,108000,69000,0")
    usage, problems = usage_of(tmp_path, RECORD)
    assert problems == []
    assert usage == Usage(
        gpu_hours=4,
        gpu_utilisation_percent=84,
        gpu_peak_memory_mib=71000,
        energy_kwh=0.6,
        measured_percent=62.5,
        cost=4,
    )
    assert usage.words == ("GPU-hours 4.00, GPU use 84 %, peak memory 69.3 GiB, energy 0.600 kWh")


def test_samples_of_an_older_version_are_read(tmp_path):
    write(tmp_path, "n1")
    heading = "time,device,program,utilisation,memory,power,temperature,throttling,"
    heading += "seconds,utilisation_seconds,peak_memory,energy,throttled_seconds\n"
    row = "1767326400,0,dcgmi,90,1000,,60,none,3600,324000,70000,,1800\n"
    (tmp_path / "usage/n1.csv").write_text(heading + row)
    usage, _ = usage_of(tmp_path, RECORD)
    assert (usage.gpu_utilisation_percent, usage.energy_kwh) == (90, None)


@pytest.mark.parametrize(("gpus", "devices"), [("4", "01"), ("0", ["cpu"])])
def test_spare_nodes_need_no_measurement(gpus, devices, tmp_path):
    rows = [f"1767326400,{each},x,90,1,,1800,162000,1,0" for each in devices]
    write(tmp_path, "n1", *rows)
    record = {**RECORD, "gpus": gpus, "spare_nodes": "1"}
    assert usage_of(tmp_path, record)[0].measured_percent == 50


def test_run_without_measurements_says_so(tmp_path):
    usage, problems = usage_of(tmp_path, RECORD)
    assert (usage.gpu_hours, usage.measured_percent, problems) == (4, 0, [])
    assert usage.words == (
        "GPU-hours 4.00, GPU use not measured, peak memory not measured, energy not measured"
    )
    recorded, _ = values(tmp_path, RECORD)
    assert recorded["energy_kwh"] == recorded["gpu_peak_memory_mib"] == ""
    assert recorded["gpu_hours"] == recorded["cost"] == "4"
    again, _ = usage_of(tmp_path, {**RECORD, **recorded})
    assert again == usage


def test_job_without_gpus_says_nothing_of_gpus(tmp_path):
    record = {**RECORD, "gpus": "0"}
    assert usage_of(tmp_path, record)[0].words == ""
    write(tmp_path, "n1", "1767326400,cpu,proc,320,1024,,3600,1152000,2048,0")
    assert usage_of(tmp_path, record)[0].words == "CPU load 3.2, peak memory 2.0 GiB"


def test_run_that_was_killed_lasts_until_its_last_sample(tmp_path):
    write(tmp_path, "n1", "1767324600,0,nvidia-smi,90,1,1,1800,90,1,360000")
    record = {**RECORD, "ended": "", "earlier_seconds": "1800"}
    assert usage_of(tmp_path, record)[0].gpu_hours == 4
    assert usage_of(tmp_path / "none", record)[0] == Usage()


ROW = "1767326400,0,nvidia-smi,90,1,1,1800,162000,5,0"


@pytest.mark.parametrize(
    ("text", "peak"),
    [
        (f"{HEADING}{ROW}\n1767326430,0,nvidia-smi,9", 5),
        (f"{HEADING}{ROW}\n1767326430,0,nvidia-smi,9{ROW}\n", 5),  # after a full disk
        (f"{HEADING}1,0,x,1\nx\n", None),
        (f"{HEADING}999999999999,0,smi,1,1,1,1,1,1,1\n", None),
        (f"{HEADING}{ROW.replace(',0,', ',../x,', 1)}\n", None),
        (f"{ROW}\n{ROW}\n", None),
        ("\x00\xff\n1,2\n", None),
        ("\0" * 5000, None),
        ("[" * 100000, None),
        ("", None),
    ],
)
def test_what_is_no_sample_counts_as_not_measured(text, peak, tmp_path):
    write(tmp_path, "n1")
    (tmp_path / "usage/n1.csv").write_text(text, encoding="latin-1")
    usage, problems = usage_of(tmp_path, RECORD)
    assert (usage.gpu_peak_memory_mib, problems) == (peak, [])
    assert usage.gpu_utilisation_percent == (90 if peak else None)


PARTS = st.sampled_from([HEADING, ROW, "\n", ",", "\0", '"', "[", "9" * 30, "-1", "nan", "cpu", ""])


@given(st.lists(PARTS, max_size=12))
def test_no_damaged_file_is_an_error(parts):
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "n1")
        (Path(folder) / "usage/n1.csv").write_text("".join(parts))
        for record in (RECORD, {**RECORD, "ended": ""}):
            recorded, problems = values(Path(folder), record)
            assert problems == [] and recorded["gpu_utilisation_percent"] in ("", "90")


def test_fifo_in_place_of_samples_blocks_nothing(tmp_path):
    write(tmp_path, "n1")
    os.mkfifo(tmp_path / "usage/n2.csv")
    _, (problem,) = usage_of(tmp_path, RECORD)
    assert "cannot read" in str(problem)


def test_samples_without_a_newline_cost_nothing(tmp_path):
    (tmp_path / "usage").mkdir()
    with open(tmp_path / "usage/n1.csv", "wb") as file:
        file.write(HEADING.encode())
        file.truncate(3 << 30)
    assert usage_of(tmp_path, {})[0] == Usage()
