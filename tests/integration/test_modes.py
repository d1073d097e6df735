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
from support.members import PARENTS, effective, listed, reachable, writable
from support.processes import wait_until
from support.tiers import slow

pytestmark = [pytest.mark.root, pytest.mark.only_root]

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/security.md"
TABLE = re.compile(r"(?<=<!-- modes: begin -->\n).*?(?=<!-- modes: end -->)", re.DOTALL)
# Each parent and each umask once; the table of the page has what is made with setgid and 002.
REAL = {("plain", "022"), ("setgid", "077"), ("acl", "007")}
SECRET = re.compile(r"/(jupyter|ssh|longship-\w+|code|configurations)/|\.patch$|token|/key$|\.key$")
# What a job prints: Slurm makes the file, with the user's umask. And pins: nobody can remove
# those of another user.
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


@pytest.mark.parametrize(
    ("parent", "umask"),
    [
        each if each in REAL else slow(*each)
        for each in itertools.product(PARENTS, ("002", "007", "022", "077"))
    ],
)
def test_others_can_write_nowhere_that_they_reach(inhabited, parent, umask):
    village = inhabited(parent, umask)
    for opened in (False, True):
        if opened:
            village.victim.open_runs()
        found = writable(village.parent)
        assert [each for each in found if not ALLOWED.match(each)] == []
    made = [each for each in listed(village.parent) if each.is_file()]
    secrets = [each for each in made if SECRET.search(str(each)) and not each.is_symlink()]
    assert len(secrets) > 10
    assert [each for each in secrets if reachable(each, village.parent)] == []
    # ssh and sshd use no key that others could read
    keys = [each for each in secrets if each.name in ("token", "key", "host_key")]
    assert len(keys) == 4
    assert [each for each in keys if effective(each) != 0o600] == []
    # and the next command finds nothing to refuse
    village.victim.type("container_run.py", "true")


# Parts of a path that differ from run to run, and what stands for them; the first that matches.
NAMES = (
    (r"scratch/runs/\d+-[^/]*\.log", "scratch_dir/runs/RUN.log"),
    (r"scratch/runs/\d+-[^/]*\.then", "scratch_dir/runs/RUN.then"),
    (r"scratch/runs/\d+-[^/]*", "scratch_dir/runs/RUN"),
    (r"(\S*)/longship\.(commit|patch)", r"\1/NAME.\2"),
    (r"(\S*)/code-[0-9a-f]{32}\.tar", r"\1/code-ID.tar"),
    (r"(\S*)/node\d+\.csv", r"\1/NODE.csv"),
    (r"(\S*)/[0-9a-f]{32}\.json", r"\1/ID.json"),
    (r"(\S*)/(venv|tools)_(\w+_)?(amd|arm)64", r"\1/\2_ARCH"),
    (r"(\S*)/base_1_(amd|arm)64[^/]*(\.\w+)", r"\1/IMAGE\3"),
    (r"(\S*/pins)/.+", r"\1/PIN"),
    (r"(\S*)/longship-local", r"\1/longship-MACHINE"),
)
ROOTS = ("scratch", "project", "shared")
# Directories that the pages tell how to open: what is in them is listed although they are closed.
OPENED = ("scratch_dir", "scratch_dir/runs", "project_dir", "shared_dir")


def pattern_of(path):
    """Give a path as the pages write it: without the names of one run."""
    for root in ROOTS:
        path = re.sub(rf"^(victim/)?{root}(?=/|$)", root, path)
    for given, wanted in NAMES:
        path = re.sub(rf"(?<![^/]){given}(?=/|$)", wanted, path)
    return re.sub(r"^(scratch|project|shared)(?=/|$)", r"\1_dir", path)


def table(parent):
    """Render the table of security.md from the directories below the parent."""
    rows = {}
    for each in listed(parent):
        if each.is_symlink() or ".partial" in each.name:
            continue
        name = pattern_of(str(each.relative_to(parent)))
        if not name.startswith(tuple(f"{root}_dir" for root in ROOTS)):
            continue
        above = [name[: place.start()] for place in re.finditer("/", name)]
        closed = [
            part for part in above if part not in OPENED and not rows.get(part, (0o700,))[0] & 0o011
        ]
        if closed:
            continue  # whoever cannot enter a directory cannot reach what is in it
        mode = effective(each)
        earlier = rows.get(name, (mode,))[0]
        rows[name] = (mode | earlier, each.is_dir())
    lines = ["| path | mode | who |", "|---|---|---|"]
    for name, (mode, is_directory) in sorted(rows.items()):
        shown = f"`{name}/`" if is_directory else f"`{name}`"
        lines.append(f"| {shown} | {mode & 0o1777:03o} | {_who(name, mode)} |")
    return "\n".join(lines) + "\n"


def _who(name, mode):
    owner = "its owner" if name.startswith("shared_dir") else "you"
    if mode & 0o1000:
        return "whoever can enter `shared_dir` adds files, and removes only their own"
    if not mode & 0o077:
        return owner
    above = [each for each in OPENED if name.startswith(f"{each}/")]
    others = "others write too" if mode & 0o022 else "others read"
    where = f", if they can enter `{max(above, key=len)}`" if above else ""
    return f"{owner}; {others}{where}"


def test_table_of_modes_is_that_of_the_page(inhabited):
    village = inhabited("setgid", "002")  # the most that others get
    found = table(village.parent)
    text = PAGE.read_text()
    if os.environ.get("LONGSHIP_WRITE_TABLE"):
        PAGE.write_text(TABLE.sub(lambda _: f"\n{found}\n", text))
    else:
        assert TABLE.search(text)[0].strip() == found.strip()
