"""What jobs use, measured on the nodes of a real Slurm, with a stand-in for the GPUs."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
from integration.test_jobs import write_job

SMI = Path(__file__).resolve().parents[1] / "smi"
GPUS = ("--nodes=2", "--gpus-per-node=2", "--ntasks-per-node=2")


@pytest.fixture
def measured(make_job_clone, tmp_path):
    """Give a clone whose jobs are measured each second."""
    return make_job_clone(tmp_path, "[jobs]\nusage = 1\n")


@pytest.fixture
def gpus(tmp_path, measured):
    """Give the environment of jobs whose nodes have GPUs, those of other jobs too."""
    programs = tmp_path / "programs"
    programs.mkdir()
    shutil.copy(SMI / "nvidia-smi", programs)
    return {"PATH": f"{programs}:{measured.environment['PATH']}"}


def processes_of(run):
    """Give the command lines of the processes of a run, on all nodes: they share their ids."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            text = os.fsdecode(each.read_bytes())
            if str(run.folder) in os.fsdecode(each.with_name("environ").read_bytes()):
                found.append(text.replace("\0", " "))
    return found


def samplers_of(run):
    return [each for each in processes_of(run) if "/sampler.py " in each]


def listed(clone, run):
    """Give what status says of a run."""
    (job,) = [
        each
        for each in json.loads(clone.submit("status", "--json").stdout)
        if each["id"] == run.job
    ]
    return job


def test_gpus_of_each_node_are_measured(measured, gpus):
    step = 'srun "$LAUNCHER" sh -c \'until [ -e "$1/enough" ]; do sleep 0.2; done\' sh "$RUN_DIR"'
    number = measured.job(write_job(measured, "measured", step), *GPUS, env=gpus)
    run = measured.run(number)

    def seconds():
        """Give the seconds that each GPU was measured for, by node and GPU."""
        rows = [
            (file.name, *line.split(","))
            for file in measured.runs.glob(f"{number}-*/usage/*.csv")
            for line in file.read_text().splitlines()[1:]
        ]
        return {(row[0], row[2]): int(row[7]) for row in rows}

    measured.wait_until(number, lambda: len(seconds()) == 4 and min(seconds().values()) > 3)
    assert len(set(samplers_of(run))) == 2  # one on each node, not for each rank
    (run.folder / "enough").touch()
    assert measured.slurm.wait(number) == "COMPLETED", measured.slurm.log(number)
    assert not samplers_of(run)
    for node in ("node1", "node2"):
        rows = [each.split(",") for each in run.written("usage", f"{node}.csv").splitlines()[1:]]
        assert len({row[1] for row in rows}) == 2  # of eight
        for row in rows:
            assert row[2:6] == ["nvidia-smi", "50", f"2000{row[1]}", "360"]
    record = run.record
    assert float(record["gpu_hours"]) >= round(4 * 3 / 3600, 4)  # as the record rounds
    assert record["gpu_utilisation_percent"] == "50"
    assert 20001 <= int(record["gpu_peak_memory_mib"]) <= 20007
    joules = 360 * sum(seconds().values())
    assert float(record["energy_kwh"]) == pytest.approx(joules / 3.6e6, abs=1e-4)
    assert "cost" not in record  # of local no price is known
    shown = listed(measured, run)
    assert shown["gpu_utilisation_percent"] == 50 and shown["gpu_hours"] > 0
    assert "GPU use 50 %, peak memory 19.5 GiB" in measured.submit("status").stdout


@pytest.mark.slow  # tests/jobs/test_usage.py
def test_cancelled_job_keeps_what_was_measured_and_a_requeued_one_continues(measured, gpus):
    job = write_job(measured, "ended", 'srun "$LAUNCHER" sh -c "echo begun; exec sleep 600"')
    number = measured.job(job, *GPUS, "--nodes=1", "--nodelist=node1", env=gpus)
    run = measured.run(number)

    def seconds():
        files = list(measured.runs.glob(f"{number}-*/usage/node1.csv"))
        lines = files[0].read_text().splitlines()[1:] if files else []
        return int(lines[-1].split(",")[6]) if lines else 0

    measured.wait_until(number, lambda: seconds() >= 3)
    print("seconds of processor time and wall time of a sampler:", *times_of(run))
    before = seconds()
    measured.slurm.run(["scontrol", "requeue", number])
    measured.wait_until(number, lambda: run.record["restarts"] == "1")
    measured.wait_until(number, lambda: seconds() > before + 2)
    assert len(set(samplers_of(run))) == 1
    assert listed(measured, run)["gpu_utilisation_percent"] == 50  # while it runs
    measured.slurm.run(["scancel", number])
    assert measured.slurm.wait(number) == "CANCELLED"
    assert not samplers_of(run)
    record = run.record
    assert record["gpu_utilisation_percent"] == "50"
    assert round(float(record["energy_kwh"]) * 3.6e6) == 2 * 360 * seconds()
    assert float(record["gpu_hours"]) * 3600 >= 2 * seconds()


def times_of(run):
    """Give processor time and wall time of the first sampler, in seconds."""
    (command,) = {each for each in samplers_of(run)}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.with_name("cmdline").read_text().replace("\0", " ") == command:
                fields = stat.read_text().rpartition(")")[2].split()
                began = int(fields[19]) / 100
                now = float(Path("/proc/uptime").read_text().split()[0])
                return sum(map(int, fields[11:15])) / 100, now - began
    return None


def test_load_and_memory_are_measured_without_gpus(measured):
    busy = "import os, sys; x = bytearray(200 << 20)\nwhile not os.path.exists(sys.argv[1]): pass"
    step = f'srun "$LAUNCHER" python3 -c "{busy}" "$RUN_DIR/enough"'
    number = measured.job(write_job(measured, "busy", step))
    run = measured.run(number)

    def loads():
        files = measured.runs.glob(f"{number}-*/usage/*.csv")
        rows = [row.split(",") for file in files for row in file.read_text().splitlines()[1:]]
        return [row[3] for row in rows if len(row) > 3 and row[3]]

    measured.wait_until(number, lambda: len(loads()) >= 2)
    (run.folder / "enough").touch()
    assert measured.slurm.wait(number) == "COMPLETED", measured.slurm.log(number)
    record = run.record
    assert 0 < float(record["cpu_load"]) < 1.5  # the tests share the machine's cores
    assert 200 < int(record["cpu_peak_memory_mib"]) < 2000
    assert record["gpu_hours"] == "0"
    assert not {"energy_kwh", "gpu_utilisation_percent", "gpu_peak_memory_mib"} & {*record}
    assert not samplers_of(run)
    shown = measured.submit("status").stdout
    assert "CPU load " in shown and "GPU" not in shown and "not measured" not in shown
    table = measured.submit("report").stdout
    assert "not measured" not in table
    assert listed(measured, run)["energy_kwh"] is None


@pytest.mark.slow  # the plan of such a job has no sampler
def test_nothing_is_measured_if_that_is_off(measured):
    text = (measured.root / "configuration.toml").read_text()
    measured.configure(text.replace("usage = 1", "usage = 0"))
    run = measured.finish(write_job(measured, "off", 'srun "$LAUNCHER" sleep 3'), *GPUS)
    assert not (run.folder / "sampler").exists() and not (run.folder / "usage").exists()
    assert "usage_start" not in run.written("launcher")
    assert float(run.record["gpu_hours"]) > 0
    assert "energy_kwh" not in run.record
    done = measured.submit("report")
    assert f"warning: not measured: {run.folder.name}\nhint: for the next runs: set jobs.usage" in (
        done.stderr
    )
    assert "not measured" in done.stdout.splitlines()[1]
