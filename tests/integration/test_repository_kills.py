"""Promise 4 under the worst conditions: an update that is killed, or finds the disk full."""

import shutil
import subprocess

import pytest
from support import processes
from support.kills import Points, WorkerPoints
from support.lab import fill
from support.tiers import slow

EVERY = [31, pytest.param(1, marks=pytest.mark.slow)]


@pytest.fixture
def changed(work):
    """Give a workplace whose repository has changes of all kinds, and a new version to go to."""
    mine = work.install()
    mine.git("checkout", "-q", "-b", "mine")
    mine.commit("mine", mine__py="x\n")
    mine.replace("model.py", "line 5\n", "line five\n")
    mine.git("add", "model.py")
    mine.replace("data.py", "line 5\n", "line five\n")
    mine.write("new.py", "new\n")
    mine.write("in the way.py", "the same\n")
    work.release(
        model__py=("line 25\n", "line 25!\n"),
        **{"in the way.py": "the same\n", "package/more.py": "more\n"},
    )
    return work, mine


@pytest.mark.parametrize("every", EVERY, ids=["some", "all"])
def test_update_killed_at_some_points(every, changed):
    work, mine = changed
    before = mine.state()
    points = WorkerPoints(work, "set_up.py", "update", link=False)
    points.restore()
    done = points.whole()
    assert done.returncode == 0, done.stderr
    wanted = mine.state()[:3]  # a picked commit has a time of its own
    numbers = []
    for number in points.each(every):
        under_way = (mine.folder / ".git/longship-update/step").exists()
        if number % 2 and under_way:
            work.update("--abort")
            assert mine.state() == before, number
        done = points.whole()
        assert done.returncode == 0, (number, done.stderr)
        assert mine.state()[:3] == wanted, number
        numbers.append(number)
    assert len(numbers) > 3


# A git that kills the owner of the lock, or its process group, when it is called the AT-th time.
# The process that has called it works on, slowly, unless it is in that group.
KILLER = """#!/usr/bin/env bash
if [[ -e $LOCK/owner ]]; then
  echo >>"$CALLS"
  read -r _ owner _ <"$LOCK/owner"
  calls=$(wc -l <"$CALLS")
  if ((calls == AT)); then kill -KILL -- "$GROUP$owner"; fi
  if ((calls >= AT)); then sleep 0.2; fi
fi
exec "$GIT" "$@"
"""
LATER = 1 << 30  # no kill


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_update_whose_workers_outlive_it(count, changed, tmp_path):
    """The next one must not work beside them: they are ended first."""
    work, mine = changed
    before = mine.state()
    points = Points(work, "set_up.py", "update", link=False)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").write_text(KILLER)
    (programs / "git").chmod(0o755)
    calls = tmp_path / "calls"

    def killed_at(number, group=""):
        points.restore()
        calls.write_text("")
        env = {
            **{"PATH": f"{programs}:{work.environment['PATH']}", "GIT": shutil.which("git")},
            **{"LOCK": f"{mine.folder.parent}.lock", "CALLS": str(calls)},
            **{"AT": str(number), "GROUP": group},
        }
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = work.start("set_up.py", "update", env=env, **silent)
        return process.wait(timeout=processes.PATIENCE)

    assert killed_at(LATER) == 0
    wanted = mine.state()[:3]
    most = len(calls.read_text())
    ended = 0
    for each in range(count):
        number = 1 + each * most // count
        assert killed_at(number, "-" if each % 2 else "") == -9
        if each % 3 == 0:
            done = work.update("--abort", check=False)
            ended += "ending its remaining processes" in done.stderr
            state = mine.state()
            assert state == before or (done.returncode and state[:3] == wanted), (
                number,
                done.stderr,
            )
        done = work.update(check=False)
        ended += "ending its remaining processes" in done.stderr
        assert done.returncode == 0, (number, done.stderr)
        assert mine.state()[:3] == wanted, number
    assert ended > count // 2


def test_two_updates_at_once(changed):
    work, mine = changed
    both = [work.start("set_up.py", "update") for _ in range(2)]
    told = [process.communicate(timeout=processes.PATIENCE)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sorted("is up to date" in text for text in told) == [False, True], told
    assert "line five\n" in (mine.folder / "data.py").read_text()
    assert mine.git("diff", "--name-only").split() == ["data.py"]
    assert (mine.folder / "new.py").read_text() == "new\n"


@pytest.mark.parametrize("leave", [slow(0), slow(200_000), 400_000, slow(800_000)])
def test_update_on_a_full_disk(work, small_disk, leave):
    disk = small_disk(24, "a full disk")
    work.scratch = disk
    work.mine.folder = disk / "project/repos/torchtitan"
    mine = work.install()
    mine.write("large.bin", bytes(range(256)) * 1000)
    mine.git("add", "large.bin")
    mine.replace("model.py", "line 5\n", "line five\n")
    before = mine.state()
    work.release(**{"theirs.bin": b"theirs" * 100_000, "model.py": ("line 25\n", "25\n")})
    ballast = fill(disk, leave)
    done = work.update(check=False)
    assert done.returncode or leave
    if done.returncode:
        error, hint = done.stderr.splitlines()[-2:]
        assert "No space left on device" in error, done.stderr
        assert hint.startswith("hint: free some space"), done.stderr
    ballast.unlink()
    if done.returncode:
        if (mine.folder / ".git/longship-update/step").exists():
            work.update("--abort")
        assert mine.state() == before
        work.update()
    assert (mine.folder / "large.bin").read_bytes() == bytes(range(256)) * 1000
    assert "line five\n" in (mine.folder / "model.py").read_text()
    assert mine.head() == work.upstream.head("v2")
