"""The page of the JSON names what the commands print, and nothing else."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from lib import ROOT, VERSION
from lib.doctor.report import Diagnosis
from lib.images import list as images
from lib.jobs import status, submit
from lib.jobs.cost import Cost
from lib.packages import list as overlays
from lib.store.store import Version

PAGE = Path(ROOT, "docs/how-to/json.md").read_text(encoding="utf-8")


def documented(command):
    """Return the keys in the first column of a command's table, and in its other cells."""
    section = PAGE.partition(f"## `python3 {command} --json`\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    keys = [name for first, *_ in rows for name in re.findall("`([a-z_]+)`", first)]
    more = {row[0].strip("| `"): re.findall("`([a-z_]+)`", row[1]) for row in rows}
    assert keys, f"no table for {command}"
    return keys, more


def test_keys_of_a_submission():
    class Request:
        cost = Cost("", 1.0, "GPU-hours")
        asked = submit.Asked()
        named_log = "log"

    assert [*json.loads(submit._row(Request()))] == documented("submit.py SITE/JOB.sbatch")[0]


def test_keys_of_status(monkeypatch, tmp_path):
    monkeypatch.setattr(status, "values_of", lambda run, record: ({}, []))
    row = status._row(None, {}, id="1")
    assert {*row} == {*documented("submit.py status")[0]}


def test_keys_of_doctor(capsysbinary):
    Diagnosis(as_json=True).end([("a", "b", "c")])
    found = json.loads(capsysbinary.readouterr().out)
    keys, more = documented("doctor.py")
    assert [*found] == keys and found["version"] == VERSION
    assert [*found["values"][0]] == more["values"]


def test_keys_of_lists(tmp_path):
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions/a.sqsh").touch()
    (tmp_path / "a.sqsh").symlink_to("versions/a.sqsh")
    (row,) = overlays._rows(tmp_path / "a.sqsh")
    assert {*row} == {*documented("build_overlay.py --list")[0]}
    row = images._row(Path("a.sif"), Version(Path("a.sif"), 1, {}, active=False), "")
    assert {*row} == {*documented("move_built_container_to_active.py --list")[0]}


@pytest.mark.extras
@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("submit.py report", "extras.reports.report"),
        ("submit.py scale report NAME", "extras.scale.scale_report"),
    ],
)
def test_keys_of_a_report_are_its_columns(command, module):
    assert {*documented(command)[0]} == {*import_module(module)._COLUMNS}


@pytest.mark.extras
def test_keys_of_an_estimate():
    inside = import_module("extras.estimate.inside.estimate")
    given = dict.fromkeys(("machine", "stack", "nodes", "gpus", "last_run", "last_peak_gib"))
    found = inside.report({**given, "gpu_memory": 0}, "", [inside.Row(states=1)])
    keys, more = documented("submit.py estimate JOB")
    assert {*found} == {*keys}
    assert [*found["layouts"][0]] == more["layouts"]


@pytest.mark.extras
def test_keys_of_an_explanation(run, tmp_path, clean_environment):
    (tmp_path / "log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    command = [sys.executable, f"{ROOT}/doctor.py", "explain", tmp_path / "log", "--json"]
    found = json.loads(run(command, env=clean_environment).stdout)
    keys, more = documented("doctor.py explain LOG")
    assert {*found} == {*keys}
    assert {*found["findings"][0]} == {*more["findings"]} - {"problem", "follows"}
