"""The proof: from a bundle alone, without any network, to a training run and a launcher.

Everything is real: Apptainer builds the image from the archive, git clones from bundles, uv or pip
installs PyTorch and an editable repository, and train.py trains. The other machine is a fresh home
in a network namespace with nothing but loopback.
"""

import json
import shutil
import sys

import pytest
from support import processes
from support.git import Repository
from support.lab import Lab
from support.packages import HATCHLING
from support.repository import toml

from lib.sites import own_arch

pytestmark = [
    pytest.mark.needs("apptainer", "registry", "skopeo", "namespaces"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the test image is for amd64"),
]
TRAIN = (
    *("--layers", "1", "--heads", "2", "--width", "32", "--sequence-length", "32"),
    *("--batch-size", "4", "--device", "cpu", "--no-compile", "--warmup-steps", "5"),
)


@pytest.fixture
def laptop(root, tmp_path, registry, base_tar, container_settings, clean_environment):
    """Give a connected machine with a real image, PyTorch, and a repository with a patch."""
    registry.put("lab/base:1", ("amd64", base_tar))
    home = tmp_path / "home"
    environment = {**clean_environment, "HOME": str(home)}
    container_settings(home)
    clone = Lab(root, tmp_path / "a laptop", environment)
    upstream = Repository(tmp_path / "a server/modern", environment)
    upstream.folder.mkdir(parents=True)
    upstream.git("init", "-q", "--initial-branch=main")
    text = HATCHLING.replace('dependencies = ["longship_tiny"]', "dependencies = []")
    upstream.write("pyproject.toml", text)
    upstream.write("src/modern/__init__.py", "VALUE = 1\n")
    upstream.commit("first")
    upstream.git("tag", "v1")
    patch = clone.root / "patches/modern/0001-value.patch"
    patch.parent.mkdir(parents=True)
    patch.write_text(
        "diff --git a/src/modern/__init__.py b/src/modern/__init__.py\n"
        "--- a/src/modern/__init__.py\n+++ b/src/modern/__init__.py\n"
        "@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 2\n"
    )
    (clone.root / "requirements/small.txt").write_text("numpy\ntensorboard\nmatplotlib\n")
    clone.configure(
        'machine = "local"\n[paths]\nproject_dir = "~/the project"\nscratch_dir = "~/a scratch"\n'
        f'[container]\nruntime = "apptainer"\nimage = {toml(registry.name("lab/base:1"))}\n'
        '[packages]\nrequirements = "requirements/small.txt"\n'
        f'[[repositories]]\nurl = {toml(f"file://{upstream.folder}")}\nref = "v1"\n'
    )
    (clone.root / ".gitignore").write_text("/.venv/\n/.cache/\n__pycache__/\n")
    own = Repository(clone.root, environment)
    own.git("init", "-q", "--initial-branch=main")
    own.commit("the group's")
    return clone


@pytest.fixture(scope="module")
def data(inside, root, tmp_path_factory):
    """Give a folder with a small dataset."""
    folder = tmp_path_factory.mktemp("data")
    options = ("--data-dir", folder, "--max-megabytes", "0.3", "--vocab-size", "500")
    inside("python", root / "preprocess_data.py", *options)
    return folder


def test_from_a_bundle_to_a_training_run_without_network(
    laptop, data, airgapped, tmp_path, container_settings, root
):
    laptop.build("download")
    laptop.set_up("download")
    bundle = tmp_path / "a stick/the bundle"
    bundle.parent.mkdir()
    laptop.bundle("pack", bundle)

    # The other machine: another home, and nothing of the first one is where it was.
    for name in ("home", "a server", "a laptop"):
        (tmp_path / name).rename(tmp_path / f"{name} of the first machine")
    home = tmp_path / "another home"
    container_settings(home)
    environment = {**laptop.environment, "HOME": str(home), "PIP_NO_CACHE_DIR": "1"}
    environment.pop("PIP_FIND_LINKS", None)
    clone = home / "long ship"

    def there(*words, folder=clone):
        return processes.run(airgapped(words), env=environment, cwd=folder, timeout=400)

    there("bash", bundle / "unpack.sh", clone, folder=home)
    python = sys.executable
    there(python, "build_container.py", "offline")
    there(python, "move_built_container_to_active.py")
    there(python, "set_up.py", "offline")
    scratch = home / "a scratch"
    shutil.copytree(data, scratch / "data", dirs_exist_ok=True)

    train = ["--data", scratch / "data/corpus_text_document", *TRAIN, "--checkpoint-dir"]
    run = [python, "container_run.py", "python", "train.py", *train, scratch / "first"]
    there(*run, "--run-name", "run", "--steps", "3", "--checkpoint-every", "3")
    there(python, "container_run.py", "--launcher", "launch")
    run = ["./launch", "python", "train.py", *train, scratch / "second"]
    there(*run, "--run-name", "run", "--steps", "3", "--checkpoint-every", "3")
    for name in ("first", "second"):
        lines = (scratch / name / "run/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    show = "import modern, torch; print(modern.VALUE, modern.__file__)"
    done = there("./launch", "python", "-c", show)
    assert done.stdout == f"2 {home}/the project/repos/modern/src/modern/__init__.py\n"
