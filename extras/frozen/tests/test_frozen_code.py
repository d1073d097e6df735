"""The copy of a job's code: what is in it, that it stays, and how it comes back from a record."""

import os
import re
import shlex
import shutil
import stat
import sys
from pathlib import Path

import pytest
from support.git import make_upstream, record_code
from support.requests import TRAIN

from extras.frozen import freeze_worker
from extras.frozen.freeze_worker import freeze
from extras.frozen.frozen_code import frozen_repositories, with_frozen_code
from lib import ROOT
from lib.jobs import working_tree
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

WORKER = Path(ROOT, "extras/frozen/freeze_worker.py")
IDENTITY = ("-c", "user.name=n", "-c", "user.email=e@x")
HOSTILE = ("it's new.py", "-rf.py", "new\nline.py", 'q"$(touch x)`.py', "ø/\u202e.py", "[a]*?.py")


class Frozen:
    """A clone, and what freeze_worker.py makes of it."""

    def __init__(self, run, environment, folder):
        self.run, self.environment = run, environment
        self.clone = folder / "it's a clone"
        self.runs = folder / "a scratch/runs"
        self.code = self.runs / "code"
        self.record = self.runs / "7-train"
        self.runs.mkdir(parents=True)
        self.clone.mkdir()

    def git(self, *words, at=None):
        git = ["git", "-C", at or self.clone, "-c", "protocol.file.allow=always", *IDENTITY]
        return self.run([*git, *words], env=self.environment).stdout

    def start(self, *files):
        """Make the clone a repository with these files."""
        self.git("init", "--quiet", "--initial-branch=main")
        for name in files:
            self.write(name, "first\n")
        self.commit()

    def commit(self, at=None):
        self.git("add", "--all", at=at)
        self.git("commit", "--quiet", "--message=x", at=at)

    def write(self, name, text, at=None):
        path = (at or self.clone) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def bash(self, *lines, check=True, **variables):
        show = 'printf \'%s\\n\' "${LONGSHIP_ROOT-}" "${LONGSHIP_FROZEN-}"'
        script = render("a test", [*lines, show])
        return self.run(["bash", "-c", script], env={**self.environment, **variables}, check=check)

    def line(self, action, *others):
        """Give the line that freezes the clone, or finds the code of a run."""
        words = ["longship", self.clone, *(word for each in others for word in (each.name, each))]
        run = [self.record] if action == "restore" else []
        return call("code_freeze", sys.executable, WORKER, action, self.runs / "code", *run, *words)

    def freeze(self, *others, **variables):
        """Freeze the clone, and other repositories; give the copies."""
        self.said = self.bash(self.line("freeze", *others), **variables)
        self.names = self.said.stdout.splitlines()[1].split()
        copies = [self.code / each.rpartition("-")[0] for each in self.names]
        assert self.said.stdout.splitlines()[0] == str(copies[0])
        return copies if others else copies[0]

    def keep_record(self, *others):
        """Record what has been frozen, as the start of a job does."""
        folder = self.record / "repositories"
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            for kind in ("commit", "patch"):
                source = self.code / f"{name}.{kind}"
                if source.exists():
                    target = folder / f"{name.rsplit('-', 2)[0]}.{kind}"
                    target.write_bytes(source.read_bytes())

    def restore(self, *others, check=True):
        self.said = self.bash(self.line("restore", *others), check=check)
        if check:
            return [
                self.code / each.rpartition("-")[0]
                for each in self.said.stdout.split("\n")[1].split()
            ]
        return None


@pytest.fixture
def frozen(run, clean_environment, tmp_path):
    """Give a clone to freeze."""
    return Frozen(run, clean_environment, tmp_path)


def files_of(folder):
    """Give path and content of every file and link."""
    found = {}
    for path in folder.rglob("*"):
        if ".git" in path.relative_to(folder).parts:
            continue
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes(), stat.S_IMODE(path.stat().st_mode) & 0o100
    return found


def test_copy_is_the_working_tree_whatever_its_state(frozen):
    """Edited, staged, executable, deleted, renamed, linked, new; and the clone stays as it is."""
    frozen.start("kept", "edited", "staged", "run.sh", "deleted", "folder/a", "turned", *HOSTILE)
    frozen.write("edited", "mine\n")
    frozen.write("staged", "mine\n")
    frozen.git("add", "staged")
    frozen.write("staged", "mine again\n")
    (frozen.clone / "run.sh").chmod(0o755)
    (frozen.clone / "deleted").unlink()
    (frozen.clone / "folder/a").rename(frozen.clone / "b")
    (frozen.clone / "turned").unlink()
    frozen.write("turned/into/a/folder.py", "new\n")
    for name in HOSTILE:
        frozen.write(f"new {name}", name)
    (frozen.clone / "link").symlink_to("kept")
    frozen.git("add", "--intent-to-add", "b")
    before = frozen.git("status", "--porcelain"), (frozen.clone / ".git/index").read_bytes()
    objects = sorted((frozen.clone / ".git").rglob("*"))
    copy = frozen.freeze()
    assert files_of(copy) == files_of(frozen.clone)
    assert sorted((frozen.clone / ".git").rglob("*")) == objects
    assert (frozen.clone / ".git/index").read_bytes() == before[1]
    assert frozen.git("status", "--porcelain") == before[0]
    assert f"code: frozen in {frozen.code}: {copy.name}; later" in frozen.said.stderr
    assert not list(frozen.code.glob(".partial*")) and not list(frozen.code.glob("*.made.*"))


@pytest.mark.parametrize(
    "kind", ["no repository", "part of another", "no commit", "sha256", "read-only"]
)
def test_clone_of_any_kind_is_frozen(kind, frozen, tmp_path):
    (tmp_path / "100% mine").mkdir()
    frozen.environment["TMPDIR"] = str(tmp_path / "100% mine")
    frozen.write(".gitignore", "*.pyc\n")
    frozen.write("train.py", "first\n")
    frozen.write("lib/a.py", "first\n")
    if kind == "part of another":
        frozen.git("init", "--quiet", at=frozen.clone.parent)
    elif kind == "no commit":
        frozen.git("init", "--quiet")
    elif kind == "sha256":
        frozen.git("init", "--quiet", "--object-format=sha256")
        frozen.commit()
        frozen.write("train.py", "second\n")
    elif kind == "read-only":
        frozen.start("train.py", "lib/a.py")
        frozen.run(["chmod", "-R", "a-w", frozen.clone])
    try:
        assert files_of(frozen.freeze()) == files_of(frozen.clone)
    finally:
        frozen.run(["chmod", "-R", "u+w", frozen.clone])
    assert not list((tmp_path / "100% mine").iterdir())


def test_shallow_clone_and_work_tree_of_another_are_frozen(frozen, tmp_path):
    frozen.start("train.py")
    frozen.write("train.py", "second\n")
    frozen.commit()
    origin = frozen.clone
    frozen.clone = tmp_path / "shallow"
    frozen.git("clone", "--quiet", "--depth=1", f"file://{origin}", frozen.clone, at=tmp_path)
    first = frozen.freeze()
    frozen.clone = tmp_path / "a work tree"
    frozen.git("worktree", "add", "--quiet", "-b", "more", frozen.clone, at=origin)
    assert frozen.freeze() == first
    assert files_of(first) == {"train.py": (b"second\n", 0)}


def test_equal_content_is_kept_once_and_other_content_apart(frozen):
    frozen.start("train.py")
    first = frozen.freeze()
    inode = (first / "train.py").stat().st_ino
    frozen.git("commit", "--quiet", "--allow-empty", "--message=y")
    assert frozen.freeze() == first and (first / "train.py").stat().st_ino == inode
    frozen.write("train.py", "second\n")
    second = frozen.freeze()
    assert second != first
    assert (first / "train.py").read_text() == "first\n"
    assert (second / "train.py").read_text() == "second\n"
    assert not (first / "train.py").stat().st_mode & 0o222
    assert stat.S_IMODE(frozen.code.stat().st_mode) == 0o700


def test_git_is_started_a_few_times(frozen, tmp_path):
    """On a slow shared file system each start costs a second."""
    programs = tmp_path / "bin"
    programs.mkdir()
    shim = f'#!/bin/sh\necho >>"{tmp_path}/calls"\nexec {shutil.which("git")} "$@"\n'
    (programs / "git").write_text(shim)
    (programs / "git").chmod(0o755)
    path = f"{programs}:{frozen.environment['PATH']}"

    def calls():
        frozen.freeze(PATH=path)
        count = (tmp_path / "calls").read_text().count("\n")
        (tmp_path / "calls").unlink()
        return count

    frozen.start("train.py", "lib/a.py")
    assert (calls(), calls()) == (6, 5)
    frozen.write("train.py", "mine\n")
    (frozen.clone / "lib/a.py").unlink()
    for number in range(20):
        frozen.write(f"folder {number}/new.py", "new\n")
    assert (calls(), calls()) == (10, 9)


def test_two_submissions_at_once_make_one_copy(frozen):
    frozen.start(*(f"file {number}" for number in range(50)))
    line = frozen.line("freeze")
    script = render("a test", [f"({line}) & ({line}) & ({line}) & wait"])
    frozen.run(["bash", "-c", f"umask 0\n{script}"], env=frozen.environment)
    (copy,) = [each for each in frozen.code.iterdir() if each.is_dir()]
    assert files_of(copy) == files_of(frozen.clone)


def test_data_and_outputs_are_links_to_the_clone_and_large_files_are_named(frozen):
    frozen.start("train.py", "stacks/a")
    frozen.write(".gitignore", "/data/\n/.venv/\n*.log\n__pycache__/\n")
    frozen.write("data/text", "much\n")
    frozen.write(".venv/bin/python", "")
    frozen.write("a.log", "")
    frozen.write("stacks/__pycache__/a.pyc", "")
    frozen.write("mine/model.py", "new\n")
    frozen.write("mine/data/set", "much\n")
    frozen.write(".gitignore", "/data/\n/mine/data/\n/.venv/\n*.log\n__pycache__/\n")
    (frozen.clone / "it's large").write_bytes(bytes(10_000_001))
    for number in range(1001):
        frozen.write(f"many/{number}", "")
    (frozen.clone / "unreadable").write_text("")
    (frozen.clone / "unreadable").chmod(0)
    copy = frozen.freeze()
    links = ("data", ".venv", "a.log", "mine/data", "it's large", "many", "unreadable")
    for name in links if os.getuid() else links[:-1]:
        assert os.readlink(copy / name) == str(frozen.clone / name)
    assert (copy / "mine/model.py").read_text() == "new\n"
    assert not (copy / "mine/model.py").is_symlink()
    assert not list(copy.glob("stacks/__pycache__"))
    assert "note: not frozen but linked to" in frozen.said.stderr
    assert "it's large" in frozen.said.stderr and "many" in frozen.said.stderr
    assert "data" not in frozen.said.stderr.split("large: ")[1].splitlines()[0]


def test_scratch_in_the_clone_is_not_copied(frozen):
    frozen.start("train.py")
    frozen.runs = frozen.clone / "my scratch/runs"
    frozen.runs.mkdir(parents=True)
    frozen.code = frozen.runs / frozen.code.name
    frozen.write("my scratch/data/x", "")
    copy = frozen.freeze()
    assert os.readlink(copy / "my scratch") == str(frozen.clone / "my scratch")


def test_links_out_of_the_clone_lead_to_the_same_place(frozen, tmp_path):
    frozen.start("lib/a")
    frozen.write("elsewhere/data", "much\n", at=tmp_path)
    (frozen.clone / "lib/out").symlink_to("../../elsewhere/data")
    (frozen.clone / "lib/in").symlink_to("../lib/a")
    (frozen.clone / "lost").symlink_to("../none")
    frozen.commit()
    copy = frozen.freeze()
    assert (copy / "lib/out").read_text() == "much\n"
    assert os.readlink(copy / "lib/in") == "../lib/a"


def test_large_file_storage_is_copied_as_it_is(frozen):
    """Not the pointer, which git has; its filter is not needed for that."""
    frozen.start("train.py")
    frozen.write(".gitattributes", "*.bin filter=lfs\n")
    frozen.write("weights.bin", "the pointer\n")
    frozen.git("-c", "filter.lfs.clean=cat", "add", "--all")
    frozen.git("commit", "--quiet", "--message=y")
    # as after git lfs pull: git takes the file for the pointer, by size and time
    times = os.stat(frozen.clone / "weights.bin")
    frozen.write("weights.bin", "the content\n")
    os.utime(frozen.clone / "weights.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (frozen.freeze() / "weights.bin").read_text() == "the content\n"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_changes_that_git_was_told_to_ignore_are_copied(flag, frozen):
    frozen.start("configuration.toml", "other")
    frozen.git("update-index", flag, "configuration.toml", "other")
    frozen.write("configuration.toml", "mine\n")
    (frozen.clone / "other").unlink()
    assert files_of(frozen.freeze()) == {"configuration.toml": (b"mine\n", 0)}


def test_submodules_and_repositories_inside_are_copied(frozen, tmp_path):
    frozen.start("train.py")
    other = tmp_path / "other"
    other.mkdir()
    frozen.git("init", "--quiet", at=other)
    frozen.write("model.py", "first\n", at=other)
    frozen.commit(at=other)
    frozen.git("submodule", "--quiet", "add", other, "third party/sub")
    frozen.commit()
    frozen.write("third party/sub/model.py", "mine\n")
    frozen.write("third party/sub/new.py", "new\n")
    frozen.git("clone", "--quiet", other, "nested")
    copy = frozen.freeze()
    assert files_of(copy) == files_of(frozen.clone)
    assert (copy / "third party/sub/model.py").read_text() == "mine\n"
    assert (copy / "nested/model.py").read_text() == "first\n"


@pytest.fixture
def external(frozen, tmp_path):
    """Give an external repository whose installation has built files in it."""
    frozen.start("train.py")
    folder = tmp_path / "project/repos/tool-kit"
    folder.mkdir(parents=True)
    frozen.git("init", "--quiet", at=folder)
    frozen.write("tool/__init__.py", "first\n", at=folder)
    frozen.write(".gitignore", "*.so\n*.egg-info/\n_version.py\n/build/\n/.venv/\n", at=folder)
    frozen.commit(at=folder)
    for name in ("tool/fast.so", "tool.egg-info/PKG-INFO", "tool/_version.py", "build/temp.o"):
        frozen.write(name, "built\n", at=folder)
    frozen.write(".venv/lib/site-packages/x.py", "", at=folder)
    frozen.write("tool/new\nline.so", "", at=folder)
    return folder


def test_external_repository_is_copied_with_what_is_built_in_it(frozen, external):
    _, copy = frozen.freeze(external)
    built = {"tool/fast.so", "tool.egg-info/PKG-INFO", "tool/_version.py", "tool/new\nline.so"}
    assert files_of(copy).keys() == {".gitignore", "tool/__init__.py", *built}
    frozen.write("tool/fast.so", "built again\n", at=external)
    assert frozen.freeze(external)[1] != copy
    assert (copy / "tool/fast.so").read_text() == "built\n"


def test_what_is_built_is_not_older_than_its_sources(frozen, external):
    os.utime(external / "tool/__init__.py", (1, 1))
    os.utime(external / "tool/fast.so", (2, 2))
    _, copy = frozen.freeze(external)
    source, built = (copy / "tool/__init__.py", copy / "tool/fast.so")
    assert source.stat().st_mtime_ns <= built.stat().st_mtime_ns
    assert not list(freeze_worker.written(copy))


def test_external_repository_with_large_files_is_not_frozen_and_named(frozen, external):
    (external / "weights").write_bytes(bytes(10_000_001))
    assert len(frozen.freeze(external)) == 1
    told = "warning: tool-kit is not frozen: git neither tracks nor ignores these large files in"
    assert f"{told} {external}: weights\nhint: " in frozen.said.stderr


def test_files_that_a_site_has_removed_come_back(frozen):
    frozen.start("train.py", "lib/a.py")
    copy = frozen.freeze()
    (copy / "lib/a.py").unlink()
    frozen.write("out/loss", "1\n", at=copy)
    assert frozen.freeze() == copy
    assert (copy / "lib/a.py").read_text() == "first\n"
    assert list(freeze_worker.written(copy)) == ["out/loss"]


@pytest.mark.parametrize("lost", [False, True])
def test_code_of_a_run_is_restored_whatever_happened_since(lost, frozen, external):
    frozen.write("train.py", "mine\n")
    frozen.write("new.py", "new\n")
    frozen.write(".gitignore", "/data/\n")
    frozen.write("data/text", "much\n")
    frozen.write("tool/__init__.py", "mine\n", at=external)
    copies = frozen.freeze(external)
    frozen.keep_record()
    before = list(map(files_of, copies))
    frozen.git("checkout", "--quiet", "--force", "-b", "other")
    (frozen.clone / "new.py").unlink(), (frozen.clone / "data/text").unlink()
    frozen.write(".gitignore", "/data\n")
    frozen.write("data/text", "much\n")
    frozen.write("train.py", "later\n")
    frozen.commit()
    frozen.git("branch", "--delete", "--force", "main")
    frozen.git("checkout", "--quiet", "--", ".", at=external)
    if lost:
        frozen.run(["rm", "-rf", frozen.code])
    restored = frozen.restore(external)
    assert restored == copies
    assert list(map(files_of, restored)) == before


def test_what_is_no_longer_available_is_named_before_anything_is_submitted(frozen, external):
    frozen.write("train.py", "mine\n")
    frozen.freeze(external)
    frozen.keep_record()

    def told():
        frozen.run(["rm", "-rf", frozen.code])
        done = frozen.restore(external, check=False)
        assert done is None and frozen.said.returncode == 1
        error, hint = frozen.said.stderr.splitlines()[-2:]
        assert hint.startswith("hint: ") and "--live" in hint
        return error

    frozen.write("tool/fast.so", "built again\n", at=external)
    assert "compiled files or submodules in" in told()
    frozen.run(["rm", "-rf", external])
    assert f"cannot freeze the code of tool-kit: it no longer exists: {external}" in told()
    record = frozen.record / "repositories"
    base = frozen.git("rev-parse", "HEAD").strip()
    text = (record / "longship.commit").read_text()
    frozen.write("train.py", "later\n")
    (record / "longship.commit").write_text(text.replace(base, "0" * 40))
    assert f"commit {'0' * 40} is no longer in {frozen.clone}" in told()
    (record / "longship.commit").write_text(f"{text}left out, because it contains a password: x\n")
    (record / "longship.patch").unlink()
    assert "its record is not complete: some files are left out" in told()
    (record / "longship.commit").write_text(f"commit {base}\nbase {base}\n")
    assert "error: the record of 7-train does not have the code of longship: an older" in told()


def test_run_of_code_that_was_not_frozen_is_restored_from_its_record(frozen):
    frozen.start("train.py")
    frozen.write("train.py", "mine\n")
    record = record_code(frozen.run, frozen.clone, frozen.record, env=frozen.environment)
    record.with_suffix(".commit").rename(record.with_name("longship.commit"))
    record.with_suffix(".patch").rename(record.with_name("longship.patch"))
    frozen.git("checkout", "--quiet", "--", ".")
    (copy,) = frozen.restore()
    assert (copy / "train.py").read_text() == "mine\n"


def test_relative_files_of_a_job_are_found_in_the_clone(frozen):
    frozen.start("train.py")
    copy = frozen.freeze()
    worker = [sys.executable, "-X", "utf8", WORKER, "return", copy, frozen.clone]
    os.utime(f"{copy}.made", (1, 1))
    for path in (*copy.rglob("*"), copy):
        os.utime(path, (0, 0))
    frozen.write("out put/loss", "1\n", at=copy)
    frozen.write("__pycache__/train.pyc", "", at=copy)
    told = frozen.run(worker).stderr
    assert (frozen.clone / "out put/loss").read_text() == "1\n"
    assert (
        f"longship: {frozen.clone}/out put is now a link to what the job wrote in {copy}\n" == told
    )
    assert frozen.run(worker).stderr == ""
    later = frozen.freeze()
    assert later != copy and (later / "out put/loss").read_text() == "1\n"


@pytest.mark.parametrize(
    ("case", "kept"),
    [
        ("old", False),
        ("new", True),
        ("written", True),
        ("copied", True),  # with its old time
        ("linked", True),
        ("queued", True),
        ("no list", True),
    ],
)
def test_copies_that_nobody_uses_are_removed(case, kept, frozen, tmp_path):
    frozen.start("train.py")
    copy = frozen.freeze()
    programs = tmp_path / "bin"
    programs.mkdir()
    queued = "2020-01-01T00:00:00" if case == "queued" else ""
    (programs / "squeue").write_text(f"#!/bin/sh\necho {queued}\n".replace("echo \n", ""))
    (programs / "squeue").chmod(0o755)
    if case == "written":
        frozen.write("loss", "1\n", at=copy)
        os.utime(f"{copy}.made", (1, 1))
    if case == "copied":
        os.utime(frozen.write("loss", "1\n", at=copy), (0, 0))
    if case == "linked":
        (copy / "loss").symlink_to("elsewhere")
    if case == "no list":
        os.unlink(f"{copy}.made")
    if case != "new":
        os.utime(copy, (0, 0))
    frozen.write("train.py", "second\n")
    other = frozen.freeze(PATH=f"{programs}:{frozen.environment['PATH']}")
    assert other.exists() and copy.exists() == kept
    assert bool(list(frozen.code.glob(f"{copy.name}*"))) == kept


def test_listing_of_a_slow_file_system_is_not_taken_for_complete(frozen, monkeypatch):
    frozen.start("train.py")
    copy = frozen.freeze()
    assert not list(freeze_worker.written(copy))
    monkeypatch.setattr(freeze_worker, "_LONGEST_LISTING", 0)
    with pytest.raises(TimeoutError):
        list(freeze_worker.written(copy))


def test_folder_that_others_can_write_to_is_refused(frozen):
    frozen.start("train.py")
    frozen.code.mkdir()
    frozen.code.chmod(0o777)
    line = frozen.line("freeze")
    told = frozen.bash(line, check=False)
    assert told.returncode == 1
    assert f"error: other users can write to {frozen.code}" in told.stderr
    assert f"and run: {shlex.join(['chmod', 'go-w', str(frozen.code)])}" in told.stderr


def test_machine_without_git_is_told(frozen, tmp_path):
    line = frozen.line("freeze")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").symlink_to("/bin/bash")
    told = frozen.bash(line, check=False, PATH=str(tmp_path / "bin"))
    error, hint = told.stderr.splitlines()
    assert error == "error: cannot freeze the code: git not found on this machine"
    assert "--live" in hint


REPOSITORIES = "".join(
    f'[[repositories]]\nname = "{name}"\nurl = "https://x.org/x.git"\n'
    for name in ("one", "tool-kit")
)


@pytest.fixture
def job(repository, tmp_path):
    """Give a function that returns the environment of a job, whose code may be frozen."""

    def make(runtime, *names, venv=""):
        repository.write(
            "configuration.toml", f'{REPOSITORIES}[paths]\nproject_dir = "{tmp_path}/p"\n'
        )
        clone = tmp_path / "it's a clone"
        clone.mkdir(exist_ok=True)
        environ = (
            {"LONGSHIP_CLONE": str(clone), "LONGSHIP_FROZEN": " ".join(names)} if names else {}
        )
        settings, paths = repository.settings_and_paths(environ)
        held = {"image": "", "overlay": "", "venv": venv}
        env = Environment(settings, paths, runtime, "job", held)
        return with_frozen_code(env, tmp_path / "run"), clone

    return make


NAMES = ("longship-1-c", "tool-kit-2-c")


def test_container_shows_frozen_code_in_the_place_of_the_repository(job):
    env, clone = job("apptainer", *NAMES)
    copy = env.paths.root.parent / "tool-kit-2"
    assert Bind(str(clone), str(clone)) in env.binds
    assert Bind(str(copy), str(env.paths.repositories / "tool-kit")) in env.binds
    assert not any(each.target.endswith("/one") for each in env.binds)
    assert frozen_repositories(env.settings.environ, env.paths) == {
        "longship": env.paths.root.parent / "longship-1-c",
        "tool-kit": env.paths.root.parent / "tool-kit-2-c",
    }
    live, _ = job("apptainer")
    assert len(live.binds) == len(env.binds) - 2


def test_program_without_a_container_finds_frozen_code(job, tmp_path, run):
    """By the directory of all repositories, and where editable installations are imported from."""
    site = tmp_path / "venv/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    folder = tmp_path / "p/repos"
    (site / "__editable__.tool_kit-1.pth").write_text(f"{folder}/tool-kit/src\n")
    (site / "__editable___one_1_finder.py").write_text(
        f"MAPPING: dict[str, str] = {{'one': '{folder}/one/python/one'}}\n"
    )
    (site / "other.pth").write_text("/elsewhere\nimport os\n")
    env, _ = job("host", *NAMES, venv=str(tmp_path / "venv"))
    env, _ = job("host", *NAMES, venv=str(tmp_path / "venv"))  # a requeued job
    links = tmp_path / "run/code"
    assert os.readlink(links / "one") == str(folder / "one")
    assert os.readlink(links / "tool-kit") == str(env.paths.root.parent / "tool-kit-2")
    variables = env.settings.configuration.environment.set
    assert variables["LONGSHIP_REPOSITORIES"] == str(links)
    assert variables["PYTHONPATH"] == f"{links}/tool-kit/src:{links}/one/python"
    live, _ = job("host")
    assert not live.settings.configuration.environment.set


@pytest.mark.parametrize(
    "name", [".git/HEAD", ".git/config", ".git/packed-refs", ".gitignore", "sub/.gitattributes"]
)
def test_fifo_that_git_reads_ends_the_freezing(name, tmp_path, clean_environment, monkeypatch):
    repository = make_upstream(tmp_path / "code", clean_environment)
    repository.write("sub/new.py", "new\n")
    (repository.folder / name).unlink(missing_ok=True)
    os.mkfifo(repository.folder / name)
    monkeypatch.setattr(working_tree, "_SECONDS", 1)
    with pytest.raises(LongshipError) as error:
        freeze(f"{tmp_path}/store/a/frozen", "x", str(repository.folder))
    assert re.match("cannot freeze .*: git .*: no response within 1 s$", str(error.value))
    assert "--live" in error.value.hint


def test_fifo_in_the_place_of_a_tracked_file_is_told(tmp_path, clean_environment, capfd):
    repository = make_upstream(tmp_path / "code", clean_environment)
    (repository.folder / "model.py").unlink()
    os.mkfifo(repository.folder / "model.py")
    with pytest.raises(LongshipError, match="cannot freeze the code of x: .*git update-index"):
        freeze(f"{tmp_path}/store/a/frozen", "x", str(repository.folder))
    assert "model.py: unsupported file type" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("job", "given", "configured", "line"),
    [
        (TRAIN, {}, "true", "code_freeze"),
        (TRAIN, {"live": True}, "true", "code_live"),
        (TRAIN, {}, "false", "code_live"),
        ("site/shell.salloc", {}, "true", "code_live"),
        ("site/build.sbatch", {}, "true", "code_live"),
        (TRAIN, {"again": "/it's/7-train"}, "false", "code_freeze"),
        (TRAIN, {"again": "/it's/7-train", "live": True}, "true", "code_live"),
    ],
)
def test_code_is_frozen_unless_the_user_or_the_job_needs_the_clone(
    job, given, configured, line, submit
):
    text = (submit.site.root / "configuration.toml").read_text()
    submit.site.write(
        "configuration.toml",
        f"{text}\n[jobs]\nfreeze = {configured}\n".replace("jobs.ask_above = 100\n", ""),
    )
    submit.site.write(
        "site/build.sbatch", "#!/bin/bash\n#SBATCH --time=1\npython3 build_overlay.py --machine m\n"
    )
    lines = [each for each in submit(job=job, **given) if each.startswith("code_")]
    assert [each.split()[0] for each in lines] == [line]
    assert (" restore " in lines[0]) == (line == "code_freeze" and "again" in given)


def test_job_that_a_job_submits_has_its_code(site, submit):
    store = site.scratch / "runs/code"
    store.mkdir(parents=True)
    site.root = site.root.rename(store / "longship-1")
    lines = submit(environ={"LONGSHIP_CLONE": "/a clone"})
    assert call("print_messages", "code", f"frozen: the code of this job, {site.root}") in lines
    assert not [each for each in lines if each.startswith(("code_", "export LONGSHIP_CLONE"))]
