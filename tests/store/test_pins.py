"""What a launcher leaves, so that its image is not pruned."""

import os
import sys
from pathlib import Path

import pytest

from lib.jobs.launcher import pin
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

ROOT = Path(__file__).resolve().parents[2]
PIN = """
import sys
from pathlib import Path
from lib.jobs.launcher import pin
folder = Path(sys.argv[1])
pin("/images/x.sif", folder / "launcher", "", folder)
"""


def test_pin_names_image_job_and_launcher(repository, tmp_path, monkeypatch):
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()
    monkeypatch.chdir(tmp_path)
    for job in ("", "4711"):
        pin("/images/x.sif", tmp_path / "launcher", job, paths.containers)
        pin(
            "/images/y.sif", tmp_path / "launcher", job, paths.containers
        )  # the launcher was written again
    files = sorted((tmp_path / "s/containers/pins").iterdir())
    assert [file.name.split("-")[0] for file in files] == ["4711", "launcher"]
    assert files[0].read_text() == f"/images/y.sif\n4711\n{tmp_path}/launcher\n"
    assert files[1].read_text() == f"/images/y.sif\n\n{tmp_path}/launcher\n"


def test_pin_of_a_job_names_its_cluster(repository, tmp_path):
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/s"\n')
    _, paths = repository.settings_and_paths()
    pin("/images/x.sif", tmp_path / "launcher", "4711 juwels", paths.containers)
    (file,) = (tmp_path / "s/containers/pins").iterdir()
    assert file.name.startswith("4711-")
    assert file.read_text() == f"/images/x.sif\n4711 juwels\n{tmp_path}/launcher\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_version_with_pins_that_cannot_be_read_is_kept(run, tmp_path):
    pin("/images/x.sif", tmp_path / "launcher", "", tmp_path)
    (tmp_path / "pins").chmod(0)
    lines = [call("store_is_pinned", tmp_path / "versions/x.sif"), 'echo "$REPLY"']
    done = run(["bash", "-c", render("a test", lines)])
    (tmp_path / "pins").chmod(0o755)
    assert done.stdout == f"a pin in the unreadable {tmp_path}/pins\n"


def test_two_can_write_a_launcher_at_once(run, tmp_path, monkeypatch):
    def write_while_another_does(*_):
        monkeypatch.undo()
        run([sys.executable, "-c", PIN, tmp_path], cwd=ROOT)

    monkeypatch.setattr(os, "fchmod", write_while_another_does)
    pin("/images/x.sif", tmp_path / "launcher", "", tmp_path)
    (file,) = (tmp_path / "pins").iterdir()
    assert file.read_text() == f"/images/x.sif\n\n{tmp_path}/launcher\n"


def test_scratch_folder_that_cannot_be_written_to_is_told(repository, read_only_folder):
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{read_only_folder}"\n')
    _, paths = repository.settings_and_paths()
    with pytest.raises(LongshipError, match="cannot create the directory") as error:
        pin("/images/x.sif", read_only_folder / "launcher", "", paths.containers)
    assert "set [paths] in configuration.toml" in error.value.hint


def test_launcher_of_another_member_keeps_the_version(run, tmp_path):
    """Nobody else can see whether it still exists."""
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins/launcher-a").write_text("/images/x.sif\n\n/gone/launcher\n")
    os.mkfifo(tmp_path / "pins/launcher-c")
    script = render("a test", [call("store_is_pinned", tmp_path / "versions/x.sif")])
    for text, code in ((script.replace("-O $pin", "! -e $pin"), 0), (script, 1)):
        assert run(["bash", "-c", text], check=False, timeout=20).returncode == code
        assert (tmp_path / "pins/launcher-a").exists() == (code == 0)


@pytest.mark.parametrize("content", ["", "x" * 100_000, "/images/y.sif\n\n", None])
def test_damaged_pin_keeps_the_version_and_is_named(content, run, tmp_path):
    """Whoever can read the image can write one: a hole of a terabyte stalls no --prune."""
    (tmp_path / "pins").mkdir()
    pin = tmp_path / "pins/launcher-a"
    pin.write_text(content or "")
    if content is None:
        os.truncate(pin, 1 << 40)
    lines = [call("store_is_pinned", tmp_path / "versions/x.sif"), 'echo "$REPLY"']
    done = run(["bash", "-c", render("a test", lines)], timeout=20)
    assert done.stdout == f"the damaged pin {pin}\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root sees all jobs")
@pytest.mark.parametrize(
    ("private", "own", "over"),
    [
        ("none", False, True),
        ("accounts,usage", False, True),
        ("accounts,jobs,usage", False, False),
        ("jobs", True, True),
    ],
)
def test_job_of_another_user_that_slurm_hides_is_not_over(private, own, over, run, tmp_path):
    slurm = [
        'timeout() { "${@:2}"; }',
        f"scontrol() {{ printf '%s\n' 'ClusterName = x' 'PrivateData   = {private}' 'y = jobs'; }}",
        "squeue() { :; }",
    ]
    for job in ("4711 x", "4711"):
        ask = f"if {call('job_is_over', job, tmp_path if own else '/')}; then echo over; fi"
        assert run(["bash", "-c", render("a test", [*slurm, ask])]).stdout == "over\n" * over


@pytest.mark.parametrize(
    ("queued", "pinned"),
    [("4711", "job 4711 of juwels"), ("4712", "job 4712 of juwels"), ("4713", ""), ("", "")],
)
def test_evaluation_keeps_what_its_training_has_pinned(queued, pinned, run, tmp_path):
    """Stand-ins for Slurm, as a real queue does not hold still; 4712 exports what 4711 trains."""
    launcher, image = tmp_path / "runs/4711-train/launcher", tmp_path / "versions/x.sif"
    pin(str(image), launcher, "4711 juwels", tmp_path)
    launcher.parent.mkdir(parents=True)
    (tmp_path / "runs/4711-train.then").write_text("4712")
    slurm = [
        'timeout() { "${@:2}"; }',
        "scontrol() { echo 'ClusterName = juwels'; }",
        f"squeue() {{ if [[ $2 == --jobs={queued or 'none'} ]]; then echo PENDING; fi; }}",
    ]
    ask = f'if store_is_pinned {call(image)}; then echo "$REPLY"; fi'
    done = run(["bash", "-c", render("a test", [*slurm, ask])])
    assert (done.stdout, done.stderr) == (f"{pinned}\n" if pinned else "", "")
    assert bool(list((tmp_path / "pins").iterdir())) == bool(pinned)
