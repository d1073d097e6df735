"""Promise 4 under the worst conditions: an update that is killed, or finds the disk full."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time

import pytest
from support import processes
from support.kills import Points, WorkerPoints
from support.lab import fill, is_told
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
    wanted = mine.state()
    numbers = []
    for number in points.each(every):
        if number % 2 and (mine.folder / ".git/longship-update").exists():
            done = work.update("--abort", check=False)
            if done.returncode:
                is_told(done, "the files of the new version are in place", "--continue")
                work.update("--continue")
            assert mine.state() == (wanted if done.returncode else before), number
        done = points.whole()
        assert done.returncode == 0, (number, done.stderr)
        assert mine.state() == wanted, number
        assert [each.name for each in mine.folder.parent.iterdir()] == ["torchtitan"]
        assert not list(mine.folder.rglob("*.lock"))
        numbers.append(number)
    assert len(numbers) > 3


# A git that does something when it is called the AT-th time, or with arguments like AT.
GIT = """#!/usr/bin/env bash
if [[ -e $LOCK/owner ]]; then
  echo "$*" >>"$CALLS"
  calls=$(wc -l <"$CALLS")
  if [[ $AT == "$calls" || " $* " == $AT ]]; then
    read -r _ owner _ <"$LOCK/owner"
    {action}
  fi
fi
exec "$GIT" "$@"
"""
# The process that has called it works on, slowly, unless it is in the group that is killed.
KILL_OWNER = 'kill -KILL -- "$GROUP$owner"; sleep 0.2'
KILL_GIT = 'exec timeout --signal=KILL 0.00$((RANDOM % 9)) "$GIT" "$@"'
# An editor saves a file in its place, or by a rename.
SAVE = """
    cp -- "$FILE" "$CALLS.edited"
    sed -i "s/^line 15$/saved at $calls/" "$CALLS.edited"
    if ((calls % 2)); then cat -- "$CALLS.edited" >"$FILE"; else mv -- "$CALLS.edited" "$FILE"; fi
"""


class Gits:
    """Updates in which git does something at one of its calls, from the same state each time."""

    def __init__(self, work, folder, action):
        self.work, self.mine, self.calls = work, work.mine, folder / "calls"
        self.points = Points(work, "set_up.py", "update", link=False)
        self.programs = folder / "programs"
        self.programs.mkdir()
        (self.programs / "git").write_text(GIT.replace("{action}", action))
        (self.programs / "git").chmod(0o755)

    def update(self, at, *arguments, **env):
        """Update from the first state, with something at a call; give its process."""
        self.points.restore()
        self.calls.write_text("")
        env |= {
            **{"PATH": f"{self.programs}:{self.work.environment['PATH']}"},
            **{"LOCK": f"{self.mine.folder.parent}.lock", "CALLS": str(self.calls), "AT": str(at)},
            **{"GIT": shutil.which("git"), "FILE": str(self.mine.folder / "model.py")},
        }
        output = self.calls.with_name("output")
        with open(output, "w") as file:  # no pipe, which a worker that outlives it would hold
            process = self.work.start("set_up.py", "update", env=env, stdout=file, stderr=file)
        process.wait(timeout=processes.PATIENCE)
        process.said = output.read_text()
        return process

    def each(self, count):
        """Give so many of the calls of an update, after one in which nothing is done."""
        assert self.update("none").returncode == 0
        most = len(self.calls.read_text().splitlines())
        return [1 + each * most // count for each in range(min(count, most))]


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_update_whose_workers_outlive_it(count, changed, tmp_path):
    """The next one must not work beside them: they are ended first."""
    work, mine = changed
    before = mine.state()
    gits = Gits(work, tmp_path, KILL_OWNER)
    numbers = gits.each(count)
    wanted, ended = mine.state(), 0
    for each, number in enumerate(numbers):
        assert gits.update(number, GROUP="-" if each % 2 else "").returncode == -9
        if each % 3 == 0:
            done = work.update("--abort", check=False)
            ended += "ending its remaining processes" in done.stderr
            state = mine.state()
            assert state == before or done.returncode, (number, done.stderr)
        done = work.update(check=False)
        ended += "ending its remaining processes" in done.stderr
        assert done.returncode == 0, (number, done.stderr)
        assert mine.state() == wanted, number
    assert ended > count // 2


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_git_that_is_killed(count, changed, tmp_path):
    work, mine = changed
    before = mine.state()
    gits = Gits(work, tmp_path, KILL_GIT)
    numbers = gits.each(count)
    wanted = mine.state()
    for number in numbers:
        done = gits.update(number)
        assert mine.state() == wanted or done.returncode, (number, done.said)
        assert (
            mine.state() == before
            or (mine.folder / ".git/longship-update").exists()
            or (mine.state() == wanted)
        ), (number, done.said)
        ending = ("--continue", "--abort", "")[number % 3]
        if done.returncode and ending and (mine.folder / ".git/longship-update").exists():
            again = work.update(ending, check=False)
            assert mine.state() == (before if ending == "--abort" else wanted) or again.returncode
        again = work.update(check=False)
        assert again.returncode == 0, (number, done.said, again.stderr)
        assert mine.state() == wanted, number


def test_lock_of_a_git_that_was_killed_is_removed(changed, tmp_path):
    work, mine = changed
    gits = Gits(work, tmp_path, ': >"${FILE%/*}/.git/HEAD.lock"; exit 137')
    assert gits.update("none").returncode == 0
    wanted = mine.state()
    done = gits.update("* update-ref -m longship: update HEAD *")
    assert done.returncode == 1 and (mine.folder / ".git/HEAD.lock").exists(), done.said
    work.update()
    assert mine.state() == wanted and not (mine.folder / ".git/HEAD.lock").exists()


def test_file_that_vanishes_from_the_second_working_tree(changed, tmp_path):
    work, mine = changed
    before = mine.state()
    gits = Gits(work, tmp_path, 'rm -f -- "${FILE%/*}.update/package/more.py"')
    done = gits.update("* diff-tree -r *")  # when everything is replayed
    assert "package/more.py not found" in done.said and done.returncode == 1, done.said
    assert mine.state() == before
    work.update("--abort")
    assert mine.state() == before
    work.update()


# when everything is checked out, replayed, or about to be exchanged
MOMENTS = ["* reset --quiet --hard *", "* worktree add *", "* cherry-pick *", "* update-ref -m *"]
MOMENTS += ["* diff-files --name-only *", "* diff-tree -r *"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_file_that_is_saved_during_an_update(moment, changed, tmp_path):
    """In 201e683 one that was saved just before the checkout was in no file and no object."""
    work, _ = changed
    gits = Gits(work, tmp_path, SAVE)
    done = gits.update(moment)
    text = (work.mine.folder / "model.py").read_text()
    assert "saved at" in text, (done.said, gits.calls.read_text())
    assert "line five\n" in text and done.returncode == 0, done.said
    assert "line 25!" in text or "model.py was changed during the update" in done.said


# A program prints into a file of the repository, also between any two looks at it.
PRINT = """
    ((calls >= 400)) || echo "$calls" | tee -a -- "$CALLS.printed" >>"${FILE%/*}/$NAME"
"""


@pytest.mark.parametrize("name", ["nohup.out", "model.py"])
def test_update_ends_beside_a_program_that_prints_all_the_time(name, changed, tmp_path):
    work, mine = changed
    mine.write("nohup.out", "")
    done = Gits(work, tmp_path, PRINT).update("* add --update *", NAME=name)
    assert len(mine.refs("saved")) == 1
    if name == "nohup.out":  # which the new version does not touch
        assert done.returncode == 0, done.said
    else:
        assert "model.py changes all the time" in done.said and done.returncode == 1, done.said
        work.update("--continue")
    printed = (tmp_path / "calls.printed").read_text()
    assert (mine.folder / name).read_text().endswith(printed)
    assert "line 25!" in (mine.folder / "model.py").read_text()


def test_temporary_file_of_a_program_that_vanishes_meanwhile(changed, tmp_path):
    work, mine = changed
    mine.write("checkpoint.tmp", "")
    gits = Gits(work, tmp_path, 'rm -f -- "${FILE%/*}/checkpoint.tmp"')
    done = gits.update("* update-index --add *-z --stdin*")
    assert done.returncode == 0, done.said


class Editor(threading.Thread):
    """Saves files at random moments, in place or by a rename, from buffers as editors have them."""

    def __init__(self, folder, names, seed):
        super().__init__(daemon=True)
        self.folder, self.random = folder, random.Random(seed)
        self.buffers = {each: (folder / each).read_text().split("\n") for each in names}
        self.saved, self.ended = {}, threading.Event()

    def run(self):
        """Save until it is told to end."""
        number = 0
        while not self.ended.wait(self.random.random() * 0.02):
            number += 1
            name = self.random.choice(list(self.buffers))
            self.buffers[name][14] = self.saved[name] = f"save {number} of {name}"
            text, path = "\n".join(self.buffers[name]), self.folder / name
            if self.random.random() < 0.5:
                path.write_text(text)
            else:
                partial = self.folder.parent.parent / "of the editor"
                partial.write_text(text)
                partial.replace(path)


@pytest.mark.parametrize("seed", [0, *(slow(each) for each in range(1, 40))])
def test_no_edit_vanishes_beside_an_editor(seed, changed):
    """It saves all the time, from before the update to its end; some are killed meanwhile."""
    work, mine = changed
    for number in range(200):
        work.upstream.write(f"more/{number}.py", "theirs\n")
    work.release("v3", model__py=("line 29\n", "line 29!\n"), data__py=("line 29\n", "29\n"))
    editor = Editor(mine.folder, ["model.py", "data.py", "mine.py", "new.py"], seed)
    for each in editor.buffers.values():
        each += [""] * 20
    chosen = random.Random(seed)
    editor.start()
    process = work.start("set_up.py", "update")
    try:
        if seed % 2:
            time.sleep(chosen.random() * 3)
            with contextlib.suppress(ProcessLookupError):
                (os.kill if seed % 4 == 1 else os.killpg)(process.pid, signal.SIGKILL)
        process.communicate(timeout=processes.PATIENCE)
        if seed % 3 == 0:
            work.update("--abort", check=False)
    finally:
        editor.ended.set()
        editor.join()
    for again in range(2):
        for name, text in editor.saved.items():
            assert text in (mine.folder / name).read_text(), (name, again)
        done = work.update(check=False)
    assert done.returncode == 0 or "--continue" in done.stderr, done.stderr
    assert done.returncode or mine.git("merge-base", "HEAD", "refs/longship/base").strip() == (
        work.upstream.head("v3")
    )


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
        assert mine.state() == before  # nothing is cut off, and nothing is to be mended
    ballast.unlink()
    if done.returncode:
        if (mine.folder / ".git/longship-update").exists():
            work.update("--abort")
        assert mine.state() == before
        work.update()
    assert (mine.folder / "large.bin").read_bytes() == bytes(range(256)) * 1000
    assert "line five\n" in (mine.folder / "model.py").read_text()
    assert mine.head() == work.upstream.head("v2")
