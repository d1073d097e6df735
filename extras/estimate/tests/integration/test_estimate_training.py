"""The estimate of a training with train.py, and what the same training really takes."""

import json
import re
import sys
from pathlib import Path

import pytest
from support import processes
from support.repository import toml

from extras.estimate.estimates import read_estimate
from lib.configuration.sites import own_arch

MODEL = ("--vocab-size=2000", "--width=256", "--heads=4", "--layers=3", "--sequence-length=128")
LOCAL = "local/run_training_local.sbatch"


def test_estimate_is_what_a_step_takes(inside, root):
    program = Path(__file__).with_name("measure.py")
    words = (*MODEL, "--batch-size=8", "--micro-batch-size=2")
    found = json.loads(inside("python", program, root / "train.py", *words).stdout)
    measured, rows = found["measured"], found["estimated"]
    assert [each["micro_batch"] for each in rows] == [2, 1, 4, 8]
    for name in ("parameters", "optimizer"):
        assert rows[0][name] == measured[name]
    for name in ("activations", "total"):
        assert rows[0][name] == pytest.approx(measured[name], rel=0.01)
    # in proportion to the sequences, but for weights in bfloat16
    assert rows[3]["activations"] > 3 * rows[0]["activations"]


def test_estimate_is_printed_and_kept_for_the_submission(inside, root, tmp_path):
    scratch = tmp_path / "it's scratch"
    scratch.mkdir()
    venv = inside("sh", "-c", 'printf %s "$VIRTUAL_ENV"').stdout
    (scratch / f"venv_pytorch_{own_arch()}").symlink_to(venv)
    configuration = tmp_path / "configuration.toml"
    text = Path(inside.environment["LONGSHIP_CONFIGURATION"]).read_text()
    configuration.write_text(re.sub("scratch_dir = .*", f"scratch_dir = {toml(scratch)}", text))
    env = {**inside.environment, "LONGSHIP_CONFIGURATION": str(configuration)}

    def estimate(*words):
        command = [sys.executable, root / "submit.py", "estimate", LOCAL, "--nodes=2", *words]
        return processes.run(command, env=env, check=False)

    found = json.loads(estimate("--json", "--", *MODEL).stdout)
    job = found["layouts"][0]
    assert (job["data_parallel"], job["micro_batch"], found["gpu_memory"]) == (2, 4, None)
    assert job["gradients_gib"] == pytest.approx(2 * job["parameters_gib"], abs=2e-3)  # of DDP
    assert job["fits"] is None and found["last_run"] == ""
    (file,) = (scratch / "runs/estimates").iterdir()
    assert json.loads(file.read_text()) == found and file.stat().st_mode & 0o777 == 0o600
    assert read_estimate(file) == (found["estimated"][:10], job["states_gib"])

    done = estimate("--gpu-memory=1", "--", *MODEL, "--device=cpu")
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: cannot estimate a training of pytorch here: ")
    assert "--device is cpu" in error and hint.startswith("hint: ") and not done.stdout
    assert [file] == [*file.parent.iterdir()]
