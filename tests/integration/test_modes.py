"""The mode of everything that Longship makes, whatever umask and parent directory: no hole is left.

The table of docs/explanation/security.md comes from here. To write it again, as root:

    LONGSHIP_WRITE_TABLE=1 ./run_tests.sh tests/integration/test_modes.py -k table
"""

import itertools
import os
import re
import shutil
from pathlib import Path

import pytest
from support import modes
from support.members import PARENTS
from support.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.only_root]

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/security.md"
TABLE = re.compile(r"(?<=<!-- modes: begin -->\n).*?(?=<!-- modes: end -->)", re.DOTALL)
UMASKS = ("002", "007", "022", "077")
SECRET = re.compile(r"/(jupyter|ssh|longship-\w+|code|configurations)/|\.patch$|token|/key$|\.key$")
# What a job prints: Slurm makes the file, with the user's umask. And pins, of which nobody can
# remove another's.
ALLOWED = re.compile(r"^\d+ victim/scratch/runs/\d+-\w+\.log$|^[13]777 shared/\w+/pins$")
# A step that takes longer than the sampler waits.
BODY = 'srun "$LAUNCHER" sh -c "python -c \'import longship_tiny\'; sleep 2.5"'


@pytest.fixture
def inhabited(make_village, wheels, uv):
    """Give a function that makes a village in which each kind of command has been typed."""

    def make(parent, umask):
        village = make_village(parent, umask)
        victim = village.victim
        shutil.copy(uv, village.folder / "slurm/uv")
        (village.folder / "slurm/uv").chmod(0o755)
        shutil.copytree(wheels, village.folder / "wheels")
        for each in (village.folder / "wheels", *(village.folder / "wheels").iterdir()):
            each.chmod(0o755 if each.is_dir() else 0o644)
        victim.environment.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(village.folder / "wheels"))
        file = victim.root / "configuration.toml"
        text = file.read_text().replace(
            'requirements = ""', 'requirements = "requirements/tiny.txt"'
        )
        file.write_text(text)
        (victim.root / "requirements/tiny.txt").write_text("longship_tiny==1.0\n")
        (victim.root / "train.py").write_text("# changed by the victim\n")
        victim.type("set_up.py", "install")
        victim.type("container_run.py", "--launcher", victim.home / "launcher")
        run, log = victim.finish(victim.job("train", BODY))
        assert (run / "usage/node1.csv").exists(), log
        file.write_text(text.replace('"requirements/tiny.txt"', '""'))
        village.share_image()
        victim.type("container_run.py", "--launcher", victim.home / "another")
        _serve(village, "jupyter")
        _serve(village, "ssh")
        return village

    return make


def _serve(village, kind):
    """Start JupyterLab or an SSH server, or what stands for it, until it has its secrets."""
    for name in ("jupyter", "sshd"):
        (village.folder / "slurm" / name).write_text("#!/bin/bash\necho is running\nsleep 600\n")
        (village.folder / "slurm" / name).chmod(0o755)
    process, log = village.victim.start_job(village.victim.submit(f"local/{kind}.sbatch"))
    last = {"jupyter": "is running", "ssh": "its editor or shell"}[kind]
    wait_until(lambda: process.poll() is not None or log.exists() and last in log.read_text())
    assert process.poll() is None, log.read_text()


@pytest.mark.parametrize(("parent", "umask"), itertools.product(PARENTS, UMASKS))
def test_others_can_write_nowhere_that_they_reach(inhabited, parent, umask):
    village = inhabited(parent, umask)
    for opened in (False, True):
        if opened:
            village.victim.open_runs()
        found = modes.writable(village.parent)
        assert [each for each in found if not ALLOWED.match(each)] == []
    made = [each for each in modes.listed(village.parent) if each.is_file()]
    secrets = [each for each in made if SECRET.search(str(each)) and not each.is_symlink()]
    assert len(secrets) > 10
    assert [each for each in secrets if modes.reachable(each, village.parent)] == []
    # ssh and sshd use no key that others could read
    keys = [each for each in secrets if each.name in ("token", "key", "host_key")]
    assert len(keys) == 4
    assert [each for each in keys if modes.effective(each) != 0o600] == []
    # and the next command finds nothing to refuse
    village.victim.type("container_run.py", "true")


def test_table_of_modes_is_that_of_the_page(inhabited):
    village = inhabited("setgid", "002")  # the most that others get
    found = modes.table(village.parent)
    text = PAGE.read_text()
    if os.environ.get("LONGSHIP_WRITE_TABLE"):
        PAGE.write_text(TABLE.sub(lambda _: f"\n{found}\n", text))
    else:
        assert TABLE.search(text)[0].strip() == found.strip()
