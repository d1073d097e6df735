"""What a run uses: the sampler of a node with stand-ins for its programs, and its totals."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import PATIENCE, wait_until

from extras.usage.usage import Usage, recorded_values, usage_of
from lib.script.command import call
from lib.script.quoting import Expansion
from lib.script.render import render

SMI = Path(__file__).with_name("smi")
TOOLS = [
    "awk",
    "bash",
    "cat",
    "flock",
    "getconf",
    "grep",
    "install",
    "ln",
    "rm",
    "mkdir",
    "seq",
    "sleep",
    "stdbuf",
    "tail",
    "uname",
]
HEADING = (
    "time,device,program,utilisation,memory,power,temperature,throttling,"
    "seconds,utilisation_seconds,peak_memory,energy,throttled_seconds\n"
)


@pytest.fixture
def node(tmp_path):
    """Give a function that starts the sampler of a node which has these programs alone."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for each in TOOLS:
        (programs / each).symlink_to(shutil.which(each))
    script = tmp_path / "sampler"
    started = []

    def start(*tools, processes="yes", rank=1000, step=100, **environment):
        for each in tools:
            shutil.copy(SMI / each, programs)
        script.write_text(
            render("a test", [call("usage_sample", "1", processes, Expansion('"$@"'))])
        )
        ranks = subprocess.Popen(["sleep", str(rank)])
        names = {"PATH": str(programs), "RUN_DIR": str(tmp_path), "SLURMD_NODENAME": "n1"}
        names |= environment
        command = ["bash", script, str(ranks.pid), str(step)]
        sampler = subprocess.Popen(command, env=names, stderr=subprocess.PIPE, text=True)
        started.extend((ranks, sampler))
        return ranks, sampler

    yield start
    for each in started:
        each.kill()
        each.communicate()


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
            ["nvidia-smi"],
            {"SLURM_STEP_GPUS": "1,3"},
            [
                "1,nvidia-smi,50,20001,360,,0x0000000000000004",
                "3,nvidia-smi,50,20003,360,,0x0000000000000004",
            ],
        ),
        (  # a cgroup shows only the GPUs of the job, under other numbers
            ["nvidia-smi"],
            {"SLURM_STEP_GPUS": "1,3", "SMI_GPUS": "2"},
            [
                "0,nvidia-smi,50,20000,360,,0x0000000000000004",
                "1,nvidia-smi,50,20001,360,,0x0000000000000004",
            ],
        ),
        (
            ["dcgmi", "nvidia-smi"],
            {},
            ["0,dcgmi,75,28456,185,68,0", "1,dcgmi,75,28456,185,68,72"],
        ),
        (
            ["rocm-smi"],
            {},
            ["0,rocm-smi,97,32768,410,47,", "1,rocm-smi,91,16384,,49,"],
        ),
        (["rocm-smi"], {"SLURM_STEP_GPUS": "1"}, ["1,rocm-smi,91,16384,,49,"]),
        (
            ["amd-smi", "rocm-smi"],
            {},
            ["0,amd-smi,95,283,1180,78,UNTHROTTLED", "1,amd-smi,88,300,,72,THROTTLED"],
        ),
    ],
)
def test_programs_are_read(tools, environment, samples, node, tmp_path):
    node(*tools, **environment)
    rows = wait_for(tmp_path, lambda rows: len(rows) >= len(samples))
    assert [",".join(row[1:8]) for row in rows[: len(samples)]] == samples
    assert {tuple(row[8:10] + row[11:]) for row in rows[: len(samples)]} == {("0", "", "", "")}


def test_totals_are_those_of_the_run(node, tmp_path):
    node("nvidia-smi", SMI_GPUS="1")
    rows = wait_for(tmp_path, lambda rows: rows and int(rows[-1][8]) >= 2)
    seconds = int(rows[-1][0]) - int(rows[0][0])
    assert rows[-1][8:] == [str(n) for n in (seconds, 50 * seconds, 20000, 360 * seconds, seconds)]


def test_energy_counter_is_used_where_there_is_one(node, tmp_path):
    node("dcgmi")
    rows = wait_for(tmp_path, lambda rows: len(rows) >= 6)
    first, second = ([row for row in rows if row[1] == each] for each in "01")
    assert [int(row[11]) for row in first[1:]] == [200 * n for n in range(1, len(first))]
    assert [int(row[11]) for row in second[1:]] == [185 * int(row[8]) for row in second[1:]]
    assert first[-1][12] == "0" and second[-1][12] == second[-1][8]


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
    assert row[1:3] == ["cpu", "proc"] and row[5:8] == ["", "", ""]
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
    for each in ("setpriv", "true"):
        (tmp_path / "programs" / each).symlink_to(shutil.which(each))
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
    wait_for(tmp_path, lambda rows: rows and int(rows[-1][8]) >= 1)
    node("nvidia-smi", SMI_GPUS="1")
    rank.kill()
    rank.wait()
    sampler.wait(PATIENCE)
    before = int(rows_of(tmp_path)[-1][8])
    file = tmp_path / "usage/n1.csv"
    with file.open("a") as stream:
        stream.write("17,0,nvidia-smi,5")  # as a killed sampler leaves it
    rows = wait_for(tmp_path, lambda rows: int(rows[-1][8] if len(rows[-1]) > 8 else 0) > before)
    assert int(rows[-1][9]) == 50 * int(rows[-1][8])
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
        "1,0,nvidia-smi,1,1,1,1,none,10,10,99,9,0",
        "1767326400,0,nvidia-smi,90,1000,300,60,none,3600,324000,70000,1080000,0",
        "1767326400,1,nvidia-smi,90,1000,300,60,none,3600,324000,71000,1080000,1800",
    )
    write(tmp_path, "n2", "1767324600,0,nvidia-smi,90,1000,,60,,1800,108000,69000,,")
    usage, problems = usage_of(tmp_path, RECORD)
    assert problems == []
    assert usage == Usage(
        gpu_hours=4,
        gpu_utilisation_percent=84,
        gpu_peak_memory_mib=71000,
        gpu_throttled_percent=25,
        energy_kwh=0.6,
        measured_percent=62.5,
        cost=4,
    )
    assert usage.words == ("GPU-hours 4.00, GPU use 84 %, peak memory 69.3 GiB, energy 0.600 kWh")


@pytest.mark.parametrize(("gpus", "devices"), [("4", "01"), ("0", ["cpu"])])
def test_spare_nodes_need_no_measurement(gpus, devices, tmp_path):
    rows = [f"1767326400,{each},x,90,1,,60,none,1800,162000,1,,0" for each in devices]
    write(tmp_path, "n1", *rows)
    record = {**RECORD, "gpus": gpus, "spare_nodes": "1"}
    assert usage_of(tmp_path, record)[0].measured_percent == 50


def test_run_without_measurements_says_so(tmp_path):
    usage, problems = usage_of(tmp_path, RECORD)
    assert (usage.gpu_hours, usage.measured_percent, problems) == (4, 0, [])
    assert usage.words == (
        "GPU-hours 4.00, GPU use not measured, peak memory not measured, energy not measured"
    )
    values = recorded_values(tmp_path, RECORD)
    recorded = dict(zip(values[::2], values[1::2]))
    assert recorded["energy_kwh"] == recorded["gpu_peak_memory_mib"] == "not measured"
    assert recorded["gpu_hours"] == recorded["cost"] == "4"
    again, _ = usage_of(tmp_path, {**RECORD, **recorded})
    assert again == usage
    # a job without GPUs has no line of what its GPUs have not done
    assert usage_of(tmp_path, {**RECORD, "gpus": "0"})[0].words == ""
    assert Usage(gpu_hours=0, cpu_load=3.2).words == "CPU load 3.2"


def test_run_that_was_killed_lasts_until_its_last_sample(tmp_path):
    write(tmp_path, "n1", "1767324600,0,nvidia-smi,90,1,1,1,none,1800,90,1,360000,0")
    record = {**RECORD, "ended": "", "earlier_seconds": "1800"}
    assert usage_of(tmp_path, record)[0].gpu_hours == 4
    assert usage_of(tmp_path / "none", record)[0] == Usage()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("{HEADING}1,0,x,1,1,1,1,none,9,900,5,7,0\n1,0,x,1", "the last line of ", "sed -i '$d' "),
        ("{HEADING}1,0,x,1\nx\n", "no sample found in ", "rm "),
        ("\x00\xff\n1,2\n", "no sample found in ", "rm "),
        ("{HEADING}1,../x,x,1,1,1,1,none,9,9,5,7,0\n", "no sample found in ", "rm "),
    ],
)
def test_damaged_file_is_told(text, message, hint, tmp_path):
    write(tmp_path, "n1")
    (tmp_path / "usage/n1.csv").write_text(text.replace("{HEADING}", HEADING), encoding="latin-1")
    usage, (problem,) = usage_of(tmp_path, RECORD)
    assert message in str(problem) and hint in problem.hint
    assert usage.gpu_peak_memory_mib == (5 if "sed" in hint else None)


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
    used, (problem,) = usage_of(tmp_path, {})
    assert used.gpu_utilisation_percent is None and "is incomplete" in str(problem)


def test_time_without_a_date_is_no_sample(tmp_path):
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage/n1.csv").write_text(f"{HEADING}999999999999,0,smi,1,1,1,,,1,1,1,1,\n")
    _, (problem,) = usage_of(tmp_path, {})
    assert "no sample found" in str(problem)
