"""The stack pytorch from an overlay: train.py on two nodes of the test's Slurm, without a network.

From a venv it is trained in test_job_sites.py, from what was carried to a machine without a network
in test_air_gap.py, and on the machine at hand in test_train.py and test_quickstart.py.
"""

import pytest
from support import cache
from support.jobs import TEXT, TRAINING, configuration
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
        clone._run("build_overlay.py", (), None, {"timeout": 900})
    return scratch / "overlays"


@pytest.mark.needs("apptainer")
def test_two_nodes_train_from_an_overlay_and_go_on(make_job_clone, packed, slurm, tmp_path):
    clone = make_job_clone(tmp_path, OVERLAY)
    (clone.scratch / "overlays").symlink_to(packed)
    clone.finish("local/preprocess_data_local.sbatch", "--", *TEXT)
    arguments = [*TRAINING, "--run-name", "overlay", "--steps"]
    first = clone.finish("local/run_training_local.sbatch", "--nodes=2", "--", *arguments, "3")
    assert first.record["overlay"].endswith(".sqsh") and "venv" not in first.record
    assert "on 2 x cpu" in first.log
    second = clone.finish("local/run_training_local.sbatch", "--nodes=2", "--", *arguments, "6")
    assert "from the beginning" not in second.log
    losses = clone.losses("overlay")
    assert len(losses) == 6 and losses[-1] < losses[0]
