"""The stack pytorch from an overlay: train.py on two nodes of the test's Slurm, without a network.

From a venv it is trained in test_job_sites.py, from what was carried to a machine without a network
in test_air_gap.py, and on the machine at hand in test_train.py and test_quickstart.py.
"""

import pytest
from support import cache
from support.jobs import TRAINING, configuration
from support.repository import Clone

OVERLAY = '[packages]\noverlay = "myenv"\ncompression = "lz4"\n'


@pytest.fixture(scope="session")
def packed(root, base_image, session_environment, tmp_path_factory):
    """Give a scratch folder with the overlay for the test's image, made once."""
    inputs = [root / f"requirements/{name}.txt" for name in ("environment", "torch")]
    name = f"jobs-overlay-{cache.fingerprint(base_image.name, *inputs)}"
    scratch = cache.cache_folder() / name
    clone = Clone(root, tmp_path_factory.mktemp("packing") / "clone", session_environment)
    clone.configure(configuration(scratch, base_image, OVERLAY))
    with cache.locked(name):
        clone.type("build_overlay.py", timeout=900)
    return scratch / "overlays"


@pytest.mark.slow  # test_jobs_build.py, test_job_sites.py
@pytest.mark.needs("apptainer")
def test_two_nodes_train_from_an_overlay(make_job_clone, jobs_made, packed, slurm, tmp_path):
    clone = make_job_clone(tmp_path, OVERLAY)
    (clone.scratch / "overlays").symlink_to(packed)
    (clone.scratch / "data").symlink_to(jobs_made.scratch / "data")
    arguments = [*TRAINING, "--run-name", "overlay", "--steps", "6"]
    run = clone.finish("local/run_training_local.sbatch", "--nodes=2", "--", *arguments)
    assert run.record["overlay"].endswith(".sqsh") and "venv" not in run.record
    assert "on 2 x cpu" in run.log
    losses = clone.losses("overlay")
    assert len(losses) == 6 and losses[-1] < losses[0]
