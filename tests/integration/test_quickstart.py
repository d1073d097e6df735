"""The newcomer's command, from a fresh clone to a trained model, run for real once."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import processes
from support.repository import copy_tree

SECONDS = 800  # most of it is PyTorch being installed

# .ci/run calls quickstart.sh on a bare machine each time; what it leaves is looked at here.
whole = pytest.mark.slow


@dataclasses.dataclass
class Quickstart:
    """A clone, the home of its user, and how the first call of quickstart.sh ended."""

    clone: Path
    home: Path
    environment: dict
    done: subprocess.CompletedProcess

    def __call__(self, cwd="/", **options):
        __tracebackhide__ = True
        command = [self.clone / "quickstart.sh"]
        return processes.run(command, env=self.environment, cwd=cwd, timeout=SECONDS, **options)

    def file(self, pattern):
        """Give the only file below the home folder that fits a pattern."""
        (path,) = (self.home / "longship-data").rglob(pattern)
        return path

    def metrics(self):
        return [json.loads(line) for line in self.file("metrics.jsonl").read_text().splitlines()]

    def checkpoints(self):
        """Give every file of every checkpoint with the time when it was written."""
        files = (self.home / "longship-data").rglob("checkpoints/**/*.pt")
        return {path: path.stat().st_mtime_ns for path in files}


@pytest.fixture(scope="module")
def quickstart(root, tmp_path_factory):
    """Give a fresh clone in which quickstart.sh was called from another folder by a new user."""
    folder = tmp_path_factory.mktemp("quickstart")
    clone = copy_tree(root, folder / 'it\'s "my" clone')
    home = folder / "a home"
    environment = processes.make_environment(home)
    call = Quickstart(clone, home, environment, None)
    call.done = call()
    return call


@whole
def test_it_says_what_it_does_and_what_is_next(quickstart):
    steps = quickstart.done.stdout.partition("\nNext steps:\n")[2].splitlines()
    first, _, second, _, third, fourth = (each.split("  ")[1] for each in steps)
    assert first == "python3 container_run.py --machine local python train.py --help"
    named = [second, third, fourth]
    shell = "python3 container_run.py --machine local"
    assert named == [shell, "configuration.toml", "docs/tutorial.md"]
    assert "Traceback" not in quickstart.done.stderr


@whole
def test_loss_falls(quickstart):
    losses = [each["loss"] for each in quickstart.metrics() if "loss" in each]
    assert len(losses) >= 10
    assert losses[-1] < losses[0] - 0.5
    assert all(loss == loss for loss in losses)


@whole
def test_it_shows_the_tokens_per_second(quickstart):
    output = quickstart.done.stdout + quickstart.done.stderr
    speeds = re.findall(r"([\d,.]+)k? tokens/s", output)
    assert speeds and any(float(speed.replace(",", "")) > 0 for speed in speeds)


@whole
def test_checkpoint_and_loss_curve_are_on_disk(quickstart):
    assert quickstart.checkpoints()
    curve = next((quickstart.home / "longship-data").rglob("*.png"))
    assert curve.read_bytes().startswith(b"\x89PNG")


# What pip and the runtimes, which are asked for the image, keep in a home folder themselves.
NOT_OURS = {".config", ".cache", ".apptainer", ".singularity", ".docker", ".local"}


@whole
def test_nothing_is_written_elsewhere(quickstart):
    assert {path.name for path in quickstart.home.iterdir()} - NOT_OURS == {"longship-data"}
    assert {path.name for path in quickstart.home.glob(".cache/*")} <= {"pip", "containers"}
    hidden = {path.name for path in quickstart.clone.iterdir() if path.name.startswith(".")}
    assert hidden <= {".venv", ".cache"}


@whole
def test_scripts_find_their_packages_without_anything_activated(quickstart):
    """`python3 container_run.py` as on a login node: no environment, another folder."""
    command = ["python3", quickstart.clone / "container_run.py", "python", "-c"]
    show = "import torch, os; print(torch.__version__, os.environ['LONGSHIP_STACK'])"
    done = processes.run([*command, show], env=quickstart.environment, cwd="/")
    assert done.stdout.split()[1] == "pytorch"


@whole
def test_no_gpu_means_no_cuda_was_installed(quickstart):
    if any(Path("/dev").glob("nvidiactl")):
        pytest.skip("this machine has a GPU")
    show = ["python", "-c", "import torch; print(torch.version.cuda)"]
    command = ["python3", quickstart.clone / "container_run.py", *show]
    assert processes.run(command, env=quickstart.environment).stdout == "None\n"
    assert not list(
        (quickstart.home / "longship-data").rglob("venvs/*/lib/*/site-packages/nvidia*")
    )


@whole
def test_second_run_does_nothing_again(quickstart, tmp_path):
    before = quickstart.checkpoints(), quickstart.metrics()
    record = (quickstart.clone / ".venv/host.txt").stat().st_mtime_ns
    done = quickstart(cwd=tmp_path)
    assert (quickstart.checkpoints(), quickstart.metrics()) == before
    assert (quickstart.clone / ".venv/host.txt").stat().st_mtime_ns == record
    assert "up to date" in done.stderr and "[1/4]" not in done.stderr
    assert done.stdout.splitlines()[-3:] == quickstart.done.stdout.splitlines()[-3:]


@whole
@pytest.mark.needs("namespaces")
def test_root_can_use_it_too(quickstart, as_root):
    command = [sys.executable, quickstart.clone / "container_run.py", "id", "-u"]
    done = processes.run(as_root(command), env=quickstart.environment, cwd="/")
    assert done.stdout == "0\n"
    again = as_root([quickstart.clone / "quickstart.sh"])
    done = processes.run(again, env=quickstart.environment, cwd="/", timeout=SECONDS)
    assert "Next steps:" in done.stdout


# What goes wrong before anything is installed


@pytest.fixture
def fresh(root, tmp_path):
    return copy_tree(root, tmp_path / "clone")


def bin_with(folder, *programs):
    """Make a folder of programs, as a PATH that has no other."""
    import shutil

    folder.mkdir()
    for name in programs:
        (folder / name).symlink_to(shutil.which(name, path=processes.PATH))
    return folder


def test_missing_python_is_told(fresh, run, clean_environment, tmp_path):
    path = bin_with(tmp_path / "bin", "bash", "env", "dirname", "cmp", "rm")
    env = {**clean_environment, "PATH": str(path)}
    done = run([fresh / "quickstart.sh"], env=env, check=False)
    assert done.returncode == 1
    assert "error: Python 3.9 or newer not found\nhint: " in done.stderr


def test_old_python_is_passed_over(fresh, run, clean_environment, tmp_path):
    path = bin_with(tmp_path / "bin", "bash", "env", "dirname", "cmp", "rm")
    (path / "python3").write_text("#!/bin/sh\nexit 1\n")  # what 3.6 answers when asked
    (path / "python3").chmod(0o755)
    (path / "python3.12").write_text(
        "#!/bin/sh\ncase $1 in -c) ;; *) echo chosen >&2; exit 1; esac\n"
    )
    (path / "python3.12").chmod(0o755)
    env = {**clean_environment, "PATH": str(path)}
    done = run([fresh / "quickstart.sh"], env=env, check=False)
    assert "chosen" in done.stderr
    assert f"cannot create a venv with {path}/python3.12\n" in done.stderr
    assert done.returncode == 1


def test_failed_installation_is_made_anew(fresh, run, clean_environment):
    env = {
        **clean_environment,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    for _ in range(2):
        done = run([fresh / "quickstart.sh"], env=env, check=False)
        assert done.returncode == 1
        assert "Creating .venv for the scripts" in done.stderr
        assert "error: cannot install requirements/host.txt" in done.stderr
