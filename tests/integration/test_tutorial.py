"""docs/tutorial.md, command by command, by a user who has nothing yet, on a real Slurm."""

import json
import re
import shutil

import pytest
from support import processes
from support.repository import copy_tree
from support.slurm import Slurm

from lib.configuration.sites import own_arch

pytestmark = pytest.mark.needs("apptainer", "registry", "slurm")

BLOCK = re.compile(r"^```(bash|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ADDRESS = "https://example.org/your-group/longship.git"


@pytest.fixture
def newcomer(slurm_cluster, container_settings, tmp_path):
    """Give the cluster to somebody with an empty home folder, and a path with a blank."""
    home = tmp_path / "a home"
    environment = {**slurm_cluster.environment, **processes.make_environment(home)}
    container_settings(home)
    user = Slurm({**environment, "SLURM_CONF": slurm_cluster.environment["SLURM_CONF"]})
    yield user, home
    user.cancel_all()


def publish(root, folder, home, environment):
    """Put this tree where `git clone` of the tutorial's address finds it."""
    tree = copy_tree(root, folder)
    shutil.copy(root / ".gitignore", tree)
    git = ["git", "-C", str(tree), "-c", "user.name=us", "-c", "user.email=us@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=all"]):
        processes.run([*git, *words], env=environment)
    (home / ".gitconfig").write_text(f'[url "{tree}/.git"]\n\tinsteadOf = {ADDRESS}\n')


def shown(text, folder, image):
    """Give the configuration that is shown, with this machine's folders and image."""
    for name in ("/work/my-account", "/scratch/my-account"):
        assert name in text
        text = text.replace(name, f"{folder}{name}")
    assert '[container]\nruntime = "apptainer"\n' in text
    return text.replace("[container]\n", f'[container]\nimage = "{image}"\n')


# Each command has a test of its own; test_job_sites.py trains on two nodes.
@pytest.mark.slow
@pytest.mark.timeout(1800)  # PyTorch is installed twice, and trained four times
def test_each_command_of_the_tutorial(root, newcomer, base_tar, registry, tmp_path):
    slurm, home = newcomer
    registry.put("lab/base:1", (own_arch(), base_tar))
    publish(root, tmp_path / "published", home, slurm.environment)
    clone, jobs = home / "longship", []
    for language, text in BLOCK.findall((root / "docs/tutorial.md").read_text(encoding="utf-8")):
        if language == "toml":
            text = shown(text, tmp_path, registry.name("lab/base:1"))
            (clone / "configuration.toml").write_text(text)
            continue
        if jobs:
            text = text.replace("4711", jobs[-1])
        cwd = clone if clone.exists() else home
        # doctor.py ends with 1 as long as something is missing
        check = not text.startswith("python3 doctor.py")
        done = slurm.run(["bash", "-euc", text], cwd=cwd, check=check, timeout=800)
        assert "Traceback" not in done.stdout + done.stderr
        submitted = re.findall(r"^(\d+)$", done.stdout, re.MULTILINE)
        jobs += submitted
        for job in submitted:
            assert slurm.wait(job, timeout=400) == "COMPLETED", slurm.log(job)

    (scratch,) = tmp_path.glob("scratch/my-account/*/longship")
    first = jobs[1]
    (run,) = (scratch / "runs").glob(f"{first}-*/")
    record = json.loads((run / "record.json").read_text())
    assert record["exit_code"] == "0" and record["image"] and record["overlay"]
    assert slurm.facts(first)["NumNodes"] == "2"
    lines = (scratch / "checkpoints/first/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 80 and losses[-1] < losses[0] - 0.5
    assert list((scratch / "checkpoints/first").glob("*.png"))
    again = (scratch / "checkpoints/again/metrics.jsonl").read_text().splitlines()
    assert len(again) == 50
    assert "<svg" in (scratch / "runs/scaling/study/scaling.html").read_text(encoding="utf-8")
