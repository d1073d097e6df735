"""The speed of a run, and what it is compared with."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from extras.throughput.throughput import comparison, speed_of
from lib import ROOT
from lib.script.records import readable_values

RECORD = {
    **{"machine": "m", "cluster": "c", "stack": "pytorch", "nodes": "2", "gpus": "8"},
    **{"image": "/i", "image_sha256": "1", "runtime": "apptainer", "nodelist": "n[1-2]"},
    **{"partition": "gpu", "started": "2026-01-02T03:00:00Z", "exit_code": "0"},
}
BEGAN = 1767322800  # of the record
SETTINGS = {"training": {"steps": 9, "run_name": "a", "model": "x"}, "environment": {"set": {}}}


@pytest.fixture
def write(tmp_path):
    """Give a function that writes what a run leaves, with the changes that a test names."""

    def run(name, speed="", arguments=(), settings=SETTINGS, script="srun train\n", **changed):
        run = tmp_path / "it's a scratch/runs" / name
        (run / "repositories").mkdir(parents=True)
        record = {**RECORD, "tokens_per_s": speed, **changed}
        (run / "record.json").write_text(json.dumps(record, indent=2) + "\n")
        (run / "configuration.json").write_text(json.dumps(settings))
        (run / "arguments").write_text("".join(f"{each}\0" for each in arguments))
        (run / "job.sbatch").write_text(f"#SBATCH --job-name={name}\n{script}")
        (run / "packages.txt").write_text("torch==2\n")
        (run / "repositories/longship.commit").write_text("commit abc\n")
        return run

    return run


def compare(run, speed=88.0):
    return comparison(run, readable_values(run / "record.json"), speed)


def with_metrics(run, lines, odd=""):
    """Let a run have results, in a directory of their own; give its speed."""
    results = run.parents[1] / "results"
    results.mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(each)}\n" for each in lines)
    (results / "metrics.jsonl").write_text(text + odd)
    (run / "outputs").symlink_to(results)
    return speed_of(Path(ROOT), run, readable_values(run / "record.json"))


def steps(first, last, speed, after=1):
    return [
        {"step": step, "time": BEGAN + after, "tokens_per_s": speed}
        for step in range(first, last + 1)
    ]


def test_speed_is_that_of_this_job_after_its_warm_up(write):
    earlier = steps(1, 50, 7, after=-1)  # of the job that this one resumes
    odd = 'text\n[1]\n{"step": 60, "time": Infinity, "tokens_per_s": 1}\n{"step": "a"}\n{"step": '
    lines = [*earlier, *steps(51, 54, 1), *steps(55, 60, 100), *steps(61, 70, 200)]
    assert with_metrics(write("2-b"), lines, odd) == 200
    lines[-1]["tokens_per_s"] = None  # such as a line of a validation
    assert with_metrics(write("3-b"), [*lines, *steps(60, 60, 5000)]) == 200


@pytest.mark.parametrize(
    "lines",
    [
        [],
        steps(1, 11, 5),  # nine are left
        steps(1, 50, 5, after=-1),
        [{"step": n, "tokens_per_s": 5} for n in range(50)],  # of which job?
    ],
)
def test_speed_of_a_few_or_of_unknown_steps_is_unknown(lines, write):
    run = write("1-a")
    assert with_metrics(run, lines) is None
    shutil.rmtree(run.parents[1] / "results")
    assert speed_of(Path(ROOT), run, readable_values(run / "record.json")) is None


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (88, "12 % slower than"),
        (112, "12 % faster than"),
        (100.4, "as fast as"),
        (1000, "900 % faster than"),
    ],
)
def test_line_has_the_difference_in_percent(speed, words, write):
    write("4711_3-train", "100")
    assert compare(write("4712-b"), speed) == f"{words} run 4711_3: nothing known differs"


def test_differences_are_listed_or_said_to_be_unknown(write):
    run = write("1-a", "100", image_sha256="2", nodelist="n[3-4]", qos="low")
    assert (
        compare(write("2-b")) == "12 % slower than run 1: other image, other partition, other nodes"
    )
    (run / "packages.txt").unlink()
    (run / "repositories/longship.patch").write_text("+ a line\n")
    assert compare(write("3-b")).endswith("other nodes, packages not recorded, other code")
    other = {**SETTINGS, "environment": {"set": {"NCCL_PROTO": "Simple"}}}
    write("4-a", "100", settings=other)
    assert compare(write("5-b")) == "12 % slower than run 4: other environment variables"


def test_last_good_run_of_the_kind_is_taken(write):
    write("9-a", "50")
    write("10-a", "100")
    write("11-a", "1", exit_code="1")
    write("12-a", "1", stopped="cancelled")
    write("13-a", "")  # without metrics
    write("14-a", "1", exit_code="")  # still runs
    own = write("15-a", "100")
    own.chmod(0o777)
    assert compare(write("16-b")) == "12 % slower than run 10: nothing known differs"
    assert compare(own) == "12 % slower than run 10: nothing known differs"


@pytest.mark.parametrize(
    "changed",
    [
        {"machine": "other"},
        {"cluster": "other"},
        {"stack": "other"},
        {"nodes": "4"},
        {"gpus": "4"},
        {"values": "--rate 1"},
        {"arguments": ["--steps", "7", "--batch-size=9"]},
        {"settings": {**SETTINGS, "training": {"model": "y"}}},
        {"script": "srun train --large\n"},
        {"settings": {}},
    ],
)
def test_run_of_another_kind_is_not_compared(changed, write):
    write("1-a", "100", arguments=["--batch-size=8"])
    same = ["--batch-size=8"]
    assert compare(write("2-b", **{"arguments": same, **changed})) == ""
    if changed == {"settings": {}}:  # two that cannot be read are not alike either
        assert compare(write("3-b", **{"arguments": same, **changed})) == ""


@pytest.mark.parametrize("form", ["--steps={}", "--steps {}"])
def test_name_and_length_of_a_training_make_no_other_kind(form, write):
    settings = {**SETTINGS, "training": {"steps": 70, "run_name": "b", "model": "x"}}
    write("1-a", "100", arguments=["x y", *form.format(5).split(), "--run-name=a", "-q"])
    words = ["x y", "--run-name", "b", *form.format(6).split(), "-q"]
    assert compare(write("2-b", arguments=words, settings=settings)).startswith("12 % slower")


def test_only_the_last_runs_are_read(write):
    write("1-a", "100")
    others = [write(f"{number}_0-a") for number in range(2, 52)]
    run = write("60-b")
    assert compare(run) == ""
    shutil.rmtree(others[0])
    assert compare(run).startswith("12 % slower than run 1: ")


def test_end_of_a_job_adds_both_to_the_record_and_says_one(bash, write):
    write("1-a", "100")
    run = write("2-b")
    with_metrics(run, steps(1, 20, 88))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"RUN_DIR": str(run), "LONGSHIP_ROOT": str(ROOT), "PATH": path}
    lines = ["longship_facts=(a b)", "throughput_end", "printf '[%s]' \"${longship_facts[@]}\""]
    done = bash(*lines, env=env)
    line = "12 % slower than run 1: nothing known differs"
    assert done.stdout == f"[a][b][tokens_per_s][88][throughput][{line}]"
    assert done.stderr == f"longship: {line}\n"
    (run / "outputs").unlink()
    done = bash(*lines, env=env)
    assert (done.stdout, done.stderr) == ("[a][b]", "")
