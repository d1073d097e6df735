"""The card of a real training, with a CycloneDX list that the program itself makes."""

import hashlib
import json
import shutil

import pytest
import yaml
from support.jobs import TRAINING

from lib.configuration.sites import own_arch

LOCAL = "local/run_training_local.sbatch"


@pytest.fixture
def clone(make_job_clone, jobs_made, slurm, tmp_path):
    """Give a clone with training data of its own."""
    clone = make_job_clone(tmp_path)
    shutil.copytree(jobs_made.scratch / "data", clone.scratch / "data")
    return clone


def test_card_of_a_training(clone, install_once, tmp_path):
    run = clone.finish(LOCAL, "--", *TRAINING, "--steps", "20", "--run-name", "tiny")
    # the packages of today are others: they have cyclonedx-bom, but no PyTorch
    venv = clone.scratch / f"venv_pytorch_{own_arch()}"
    venv.unlink()
    venv.symlink_to(install_once("cyclonedx", [], "cyclonedx-bom>=7,<8\n"))
    done = clone.submit("card", run.job)
    card = run.folder / "card"
    assert done.stdout == f"{card}/README.md\n" and "warning" not in done.stderr
    text = (card / "README.md").read_text()
    assert yaml.safe_load(text.split("---\n")[1]) == {"tags": ["pytorch"]}
    assert "| step | `20` |\n" in text and "a scratch" not in text

    data = clone.scratch / "data/corpus_text_document"
    for suffix in (".bin", ".idx"):
        checksum = hashlib.sha256(data.with_suffix(suffix).read_bytes()).hexdigest()
        shown = f"`{{scratch_dir}}/data/corpus_text_document{suffix}`"
        assert f"| `data` | {shown} | `{checksum}` |\n" in text

    bom = json.loads((card / "bom.json").read_text())
    assert bom["bomFormat"] == "CycloneDX"
    listed = {f"{each['name']}=={each['version']}" for each in bom["components"]}
    assert listed == set(run.written("packages.txt").split()) and "torch==" in str(listed)

    again = clone.submit("card", run.job, check=False)
    assert again.returncode == 1 and f"the directory exists: {card}\n" in again.stderr
    data.with_suffix(".bin").touch()  # the same content, which is not known to be the same
    clone.submit("card", run.job, "--output", tmp_path / "later")
    text = (tmp_path / "later/README.md").read_text()
    assert "document.bin` | not recorded: the file has changed since, or cannot be read |" in text
