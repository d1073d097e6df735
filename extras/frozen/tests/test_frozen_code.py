"""The archive with a job's code: what is in it, that it stays, and that a job runs nothing else."""

import os
import re
import shlex
import shutil
import stat
import sys
import time
from pathlib import Path

import pytest
from support.git import make_upstream
from support.requests import TRAIN

from extras.frozen import job as hooks
from extras.frozen.freeze_worker import freeze
from lib import ROOT
from lib.jobs import working_tree
from lib.runtimes.contract import Bind
from lib.runtimes.environment import Environment
from lib.script.command import call, wrapped
from lib.script.errors import LongshipError
from lib.script.render import render

WORKER = Path(ROOT, "extras/frozen/freeze_worker.py")
IDENTITY = ("-c", "user.name=n", "-c", "user.email=e@x")
HOSTILE = ("it's new.py", "-rf.py", "new\nline.py", 'q"$(touch x)`.py', "ø/\u202e.py", "[a]*?.py")
HOSTILE += ("back\\nslash",)


class Frozen:
    """A clone, and the archives that are made of it."""

    def __init__(self, run, environment, folder):
        self.run, self.environment, self.folder = run, environment, folder
        self.clone, self.runs = folder / "it's a clone", folder / "a scratch/runs"
        self.clone.mkdir()
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.program("squeue", "")
        self.environment["PATH"] = f"{self.programs}:{environment['PATH']}"
        self.environment["TMPDIR"] = str(folder / "tmp: 100%")
        (folder / "tmp: 100%").mkdir()

    @property
    def store(self):
        return self.runs / "code"

    @property
    def kept(self):
        """Give the files of the store."""
        return {*self.store.iterdir()}

    def program(self, name, text):
        """Write a stand-in; squeue is asked for what a job in the queue tells of itself."""
        check = '[[ $* == "--me --noheader --Format=SubmitTime:30,RestartCnt:12" ]] || exit 1\n'
        text = f"#!/bin/bash\n{check if name == 'squeue' else ''}{text}\n"
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def git(self, *words, at=None):
        git = ["git", "-C", at or self.clone, "-c", "protocol.file.allow=always", *IDENTITY]
        return self.run([*git, *words], env=self.environment).stdout

    def start(self, *files, at=None):
        """Make the clone, or another folder, a repository with these files."""
        (at or self.clone).mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", at=at)
        for name in files:
            self.write(name, "first\n", at=at)
        self.commit(at)
        return at

    def commit(self, at=None):
        self.git("add", "--all", at=at)
        self.git("commit", "--quiet", "--allow-empty", "--message=x", at=at)

    def write(self, name, text, at=None):
        path = (at or self.clone) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def script(self, *others, again=None):
        """Give the script that freezes the clone and other repositories, or takes an archive."""
        words = ["longship", self.clone, *(word for each in others for word in (each.name, each))]
        begin = (self.store, self.clone)
        line = call("code_freeze", *begin, sys.executable, WORKER, self.runs.parent, *words)
        line = call("code_again", *begin, again) if again else line
        return render("a test", [line, 'printf "%s" "$LONGSHIP_FROZEN"'])

    def freeze(self, *others, again=None, before="", check=True, **variables):
        """Freeze the clone; return the archive."""
        script = f"{before}{self.script(*others, again=again)}"
        env = {**self.environment, **variables}
        self.said = self.run(["bash", "-c", script], env=env, check=check)
        return Path(self.said.stdout)

    def refused(self, *others, **options):
        """Check that nothing is submitted, and return the error and the hint."""
        self.freeze(*others, check=False, **options)
        assert self.said.returncode == 1 and not self.said.stdout
        assert not list(self.store.glob(".partial*"))
        error, hint = self.said.stderr.splitlines()[-2:]
        assert error.startswith("error: ") and hint.startswith("hint: ")
        return error.removeprefix("error: "), hint.removeprefix("hint: ")

    def unpack(self, archive, name="run"):
        """Unpack an archive as the start of a job does."""
        run = self.folder / name
        run.mkdir(exist_ok=True)
        self.run(["tar", "--extract", "--touch", "--force-local", f"--file={archive}"], cwd=run)
        return run / "code/longship"

    def copy(self, *others):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        return self.unpack(self.freeze(*others))

    def start_job(self, archive, run, check=True):
        """Start a job; it unpacks the code into its run as the hook does."""
        variables = {"LONGSHIP_FROZEN": archive, "LONGSHIP_CLONE": self.clone, "RUN": run}
        env = {**self.environment, **{name: str(each) for name, each in variables.items()}}
        unpack = 'mkdir -p "$RUN"; tar -xmf "$LONGSHIP_STAGED/archive" -C "$RUN"'
        end = 'stat -c "%a %n" "$LONGSHIP_STAGED"; rm -r "$LONGSHIP_STAGED"'
        script = render("a test", ["code_take", unpack, end])
        return self.run(["bash", "-c", script], env=env, check=check)


@pytest.fixture
def frozen(run, clean_environment, tmp_path):
    """Give a clone to freeze."""
    return Frozen(run, dict(clean_environment), tmp_path)


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
    copy = frozen.copy()
    assert files_of(copy) == files_of(frozen.clone)
    assert sorted((frozen.clone / ".git").rglob("*")) == objects
    assert (frozen.clone / ".git/index").read_bytes() == before[1]
    assert frozen.git("status", "--porcelain") == before[0]
    (archive,) = frozen.kept
    assert f"code: frozen in {archive}; later changes do not" in frozen.said.stderr
    assert stat.S_IMODE(archive.stat().st_mode) == 0o400
    assert stat.S_IMODE(frozen.store.stat().st_mode) == 0o700


def test_bytes_are_those_of_the_clone_whatever_git_would_make_of_them(frozen):
    """`text eol=lf`, `ident` and `export-subst` change what git writes; LFS has it elsewhere."""
    frozen.start()
    rules = "*.py text eol=lf ident\n*.txt export-subst\n*.bin filter=lfs\nlib/** export-ignore\n"
    frozen.write(".gitattributes", rules)
    frozen.write("windows.py", "").write_bytes(b"# $Id$\r\nprint(1)\r\n")
    frozen.write("version.txt", "$Format:%H$\n")
    frozen.write("lib/tests.py", "no job needs it\n")
    frozen.write("weights.bin", "the pointer\n")
    frozen.git("-c", "filter.lfs.clean=cat", "add", "--all")
    frozen.git("commit", "--quiet", "--message=y")
    frozen.write("lib/new.py", "nor this\n")
    # as after git lfs pull: git takes the file for the pointer, by size and time
    times = os.stat(frozen.clone / "weights.bin")
    frozen.write("weights.bin", "the content\n")
    os.utime(frozen.clone / "weights.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    expected = {name: each for name, each in files_of(frozen.clone).items() if "lib" not in name}
    assert files_of(frozen.copy()) == expected
    assert expected["windows.py"] == (b"# $Id$\r\nprint(1)\r\n", 0)


def test_what_this_repository_leaves_out_is_what_no_job_needs(run):
    needed = [":(exclude,attr:export-ignore)"]
    left = run(["git", "-C", ROOT, "ls-files", "--", *needed]).stdout.splitlines()
    everything = run(["git", "-C", ROOT, "ls-files"]).stdout.splitlines()
    tops = {each.split("/")[0] for each in set(everything) - set(left)}
    assert tops == {".ci", ".github", "benchmarks", "docs", "extras", "tests"}
    assert not [each for each in left if "/tests/" in each] and "extras/frozen/job.py" in left


@pytest.mark.parametrize(
    "kind", ["no repository", "part of another", "no commit", "sha256", "read-only"]
)
def test_clone_of_any_kind_is_frozen(kind, frozen):
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
        assert files_of(frozen.copy()) == files_of(frozen.clone)
    finally:
        frozen.run(["chmod", "-R", "u+w", frozen.clone])
    assert not list(Path(frozen.environment["TMPDIR"]).iterdir())


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
    assert files_of(frozen.unpack(first)) == {"train.py": (b"second\n", 0)}


def test_equal_content_is_one_archive_whatever_times_and_umask(frozen):
    frozen.start("train.py", "lib/a.py")
    first = frozen.freeze()
    os.utime(frozen.clone / "train.py", (1, 1))
    (frozen.clone / "lib/a.py").chmod(0o600)
    inode = first.stat().st_ino
    assert frozen.freeze(before="umask 077\n") == first and first.stat().st_ino == inode
    first.chmod(0o600)
    first.write_bytes(b"damaged")  # a submission has the right one at hand
    assert frozen.freeze() == first and first.stat().st_mode & 0o777 == 0o400
    frozen.write("train.py", "second\n")
    second = frozen.freeze()
    assert second != first and frozen.kept == {first, second}
    assert (frozen.unpack(first) / "train.py").read_text() == "first\n"


def test_git_is_started_a_few_times(frozen, tmp_path):
    """On a slow shared file system each start costs a second."""
    git = shutil.which("git")
    frozen.start("train.py", "lib/a.py")

    def calls():
        frozen.program("git", f'echo >>{tmp_path}/calls\nexec {git} "$@"')
        frozen.freeze()
        (frozen.programs / "git").unlink()
        count = (tmp_path / "calls").read_text().count("\n")
        (tmp_path / "calls").unlink()
        return count

    assert calls() <= 8
    frozen.write("train.py", "mine\n")
    (frozen.clone / "lib/a.py").unlink()
    for number in range(20):
        frozen.write(f"folder {number}/new.py", "new\n")
    assert calls() <= 11


def test_two_submissions_at_once_make_one_archive(frozen):
    frozen.start(*(f"file {number}" for number in range(50)))
    script = f"({frozen.script()}) & ({frozen.script()}) & ({frozen.script()}) & wait"
    frozen.run(["bash", "-c", f"umask 0\n{script}"], env=frozen.environment)
    (archive,) = frozen.kept
    assert files_of(frozen.unpack(archive)) == files_of(frozen.clone)


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_changes_that_git_was_told_to_ignore_are_copied(flag, frozen):
    frozen.start("configuration.toml", "other")
    frozen.git("update-index", flag, "configuration.toml", "other")
    frozen.write("configuration.toml", "mine\n")
    (frozen.clone / "other").unlink()
    assert files_of(frozen.copy()) == {"configuration.toml": (b"mine\n", 0)}


def test_submodules_and_repositories_inside_are_copied(frozen, tmp_path):
    """An empty one has nothing: it stops neither the submission nor the record."""
    frozen.start("train.py")
    other = frozen.start("model.py", at=tmp_path / "other")
    frozen.git("submodule", "--quiet", "add", other, "third party/sub")
    frozen.commit()
    frozen.write("third party/sub/model.py", "mine\n")
    frozen.write("third party/sub/new.py", "new\n")
    frozen.git("clone", "--quiet", other, "nested")
    frozen.git("init", "--quiet", "empty")
    copy = frozen.copy()
    assert files_of(copy) == files_of(frozen.clone)
    assert (copy / "third party/sub/model.py").read_text() == "mine\n"
    assert (copy / "nested/model.py").read_text() == "first\n"
    record = copy.parents[1] / "repositories/longship.commit"
    assert record.read_text().startswith(f"commit {frozen.git('rev-parse', 'HEAD')}")


def test_large_files_that_git_does_not_ignore_are_refused_until_it_does(frozen):
    frozen.start("train.py")
    with open(frozen.clone / "it's large", "wb") as file:
        file.truncate(10_000_001)
    for number in range(1001):
        frozen.write(f"many/{number}", "")
    error, hint = frozen.refused()
    large = "too large, and git does not ignore it: it's large, many"
    assert error == f"cannot freeze the code: {large}"
    assert f"name it in {frozen.clone}/.gitignore" in hint and "--live" in hint
    frozen.write(".gitignore", "/many/\n/it's large\n")
    assert files_of(frozen.copy()).keys() == {"train.py", ".gitignore"}


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("is_new", [False, True])
def test_unreadable_file_is_named_as_that(is_new, frozen):
    frozen.start("train.py", *([] if is_new else ["secret"]))
    frozen.write("secret", "mine\n").chmod(0)
    error, _ = frozen.refused()
    assert "secret: Cannot open: Permission denied" in error and "large" not in error


def test_file_that_vanishes_meanwhile_is_named(frozen):
    frozen.start("train.py", "gone.py")
    tar = shutil.which("tar")
    frozen.program("tar", f'rm -f {shlex.quote(str(frozen.clone))}/gone.py; exec {tar} "$@"')
    error, hint = frozen.refused()
    assert "gone.py: Cannot stat: No such file or directory" in error and "again" in hint


def test_full_disk_leaves_nothing(frozen):
    """tar cannot write more; the limit stands for a quota."""
    frozen.start("train.py")
    frozen.write("model.py", "x" * 100_000)
    error, _ = frozen.refused(before="trap '' XFSZ; ulimit -f 50\n")
    assert error.startswith("cannot freeze the code: tar ended with code 153")
    assert not frozen.kept
    frozen.program("tar", "echo 'tar: x: Cannot write: No space left on device' >&2; exit 2")
    assert "No space left on device" in frozen.refused()[0]


def test_machine_without_git_is_told(frozen, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "install", "mkdir", "mktemp", "mv", "rm", "sha256sum", "stat"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    error, hint = frozen.refused(PATH=str(tmp_path / "bin"))
    assert error == "cannot freeze the code: git not found on this machine"
    assert "--live" in hint


@pytest.mark.parametrize("name", [".git/refs/heads/main", "sub/.gitattributes"])
def test_fifo_that_git_reads_ends_the_freezing(name, tmp_path, clean_environment, monkeypatch):
    repository = make_upstream(tmp_path / "code", clean_environment)
    repository.write("sub/new.py", "new\n")
    (repository.folder / name).unlink(missing_ok=True)
    os.mkfifo(repository.folder / name)
    monkeypatch.setattr(working_tree, "_SECONDS", 1)
    with pytest.raises(LongshipError) as error:
        freeze(f"{tmp_path}/archive", str(tmp_path), "longship", str(repository.folder))
    assert "cannot freeze the code: " in str(error.value) and "no response" in str(error.value)
    assert str(error.value).endswith(f"find {repository.folder} -type p")


# --- what the job finds


@pytest.fixture
def external(frozen, tmp_path):
    """Give an external repository whose installation has built files in it."""
    frozen.start("train.py")
    folder = tmp_path / "p/repos/tool-kit"
    ignored = "*.so\n*.egg-info/\n_version.py\n/build/\n/outputs/\nwandb/\n"
    frozen.start("tool/__init__.py", at=folder)
    frozen.write(".gitignore", ignored, at=folder)
    frozen.commit(at=folder)
    for name in ("tool/fast.so", "tool.egg-info/PKG-INFO", "tool/_version.py", "build/temp.o"):
        frozen.write(name, "built\n", at=folder)
    frozen.write("tool/new\nline.so", "", at=folder)
    os.utime(folder / "tool/fast.so", (2, 2))
    return folder


BUILT = {"tool/fast.so", "tool.egg-info/PKG-INFO", "tool/_version.py", "tool/new\nline.so"}


def test_external_repository_is_copied_with_what_is_built_in_it(frozen, external):
    archive = frozen.freeze(external)
    copy = frozen.unpack(archive).parent / "tool-kit"
    assert files_of(copy).keys() == {".gitignore", "tool/__init__.py", *BUILT}
    source, built = (copy / each for each in ("tool/__init__.py", "tool/fast.so"))
    assert source.stat().st_mtime_ns <= built.stat().st_mtime_ns  # make builds nothing again
    frozen.write("tool/fast.so", "built again\n", at=external)
    assert frozen.freeze(external) != archive


@pytest.fixture
def begin(frozen, repository, tmp_path, monkeypatch):
    """Give a function that starts a job: its environment, after the hook, and its run.

    A link leads to its TMPDIR, as on LUMI.
    """
    staged = tmp_path / "staged"
    staged.mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path)
    monkeypatch.setattr(hooks, "ROOT", f"{staged}/code/longship")
    ends = []
    monkeypatch.setattr(hooks.atexit, "register", lambda *given, **more: ends.append((given, more)))

    def begin(archive, runtime, name="runs/7-train", venv=""):
        tables = "".join(
            f'[[repositories]]\nname = "{name}"\nurl = "https://x.org/x.git"\n'
            for name in ("one", "tool-kit")
        )
        paths = f'[paths]\nproject_dir = "{tmp_path}/p"\nscratch_dir = "{tmp_path}/a scratch"\n'
        repository.write("configuration.toml", f"{tables}{paths}")
        environ = {"LONGSHIP_CLONE": str(frozen.clone), "LONGSHIP_FROZEN": str(archive)}
        environ["LONGSHIP_STAGED"] = f"{tmp_path}/tmp/staged"
        settings, paths = repository.settings_and_paths(environ)
        held = {"image": "", "overlay": "", "venv": venv}
        run = frozen.runs.parent / name
        run.mkdir(parents=True, exist_ok=True)
        Path(environ["LONGSHIP_STAGED"], "archive").unlink(missing_ok=True)
        shutil.copy(archive, Path(environ["LONGSHIP_STAGED"], "archive"))
        env = hooks.environment(Environment(settings, paths, runtime, "job", held), run)
        assert [each[0] for each in ends] == [(shutil.rmtree, environ["LONGSHIP_STAGED"])]
        ends.clear()
        return env, run

    return begin


def test_job_has_its_own_copy_and_the_archive(frozen, external, begin, tmp_path):
    """A neighbour that changes its copy, or a job that starts again, changes none of another."""
    frozen.write("train.py", "mine\n")
    archive = frozen.freeze(external)
    env, run = begin(archive, "host")
    assert env.paths.root == env.settings.root == run / "code/longship"
    assert (run / archive.name).samefile(archive)
    assert stat.S_IMODE((run / "code").stat().st_mode) == 0o700
    assert "+mine" in (run / "repositories/longship.patch").read_text()
    (run / "code/longship/train.py").unlink()
    frozen.write("train.py", "replaced\n", at=run / "code/longship")
    frozen.write("tool/fast.so", "", at=run / "code/tool-kit")
    frozen.write("results/loss", "1\n", at=run / "code/longship")
    _, other = begin(archive, "host", "runs/8-train")
    begin(archive, "host")
    for each in (run, other):
        assert (each / "code/longship/train.py").read_text() == "mine\n"
        assert (each / "code/tool-kit/tool/fast.so").read_text() == "built\n"
    assert (run / "code/longship/results/loss").read_text() == "1\n"
    assert not (other / "code/longship/results").exists()


def test_what_git_ignores_stays_where_it_is(frozen, external, begin, tmp_path):
    """Also the directories that jobs make, from the first job on, and after an edit."""
    frozen.write(".gitignore", "/data/\n/.venv/\n*.log\n__pycache__/\n/mine/data/\n/checkpoints\n")
    for name in ("data/text", ".venv/bin/python", "a.log", "mine/model.py", "mine/data/set"):
        frozen.write(name, "")
    frozen.write("stacks/__pycache__/a.pyc", "")
    frozen.write("stacks/a", "")
    for link in (frozen.clone / "mine/shared", external / "shared"):
        (tmp_path / "shared").write_text("shared\n")
        link.symlink_to(os.path.relpath(tmp_path / "shared", link.parent))
    frozen.runs = frozen.clone / "my scratch/runs"  # in the clone
    archive = frozen.freeze(external)
    frozen.runs = tmp_path / "a scratch/runs"
    env, run = begin(archive, "apptainer")
    copy, tool = run / "code/longship", run / "code/tool-kit"
    for name in ("data", ".venv", "a.log", "mine/data", "checkpoints", "my scratch"):
        assert os.readlink(copy / name) == str(frozen.clone / name)
    assert (copy / "mine/model.py").is_file() and not list(copy.glob("stacks/_*"))
    # a link that leaves its repository by a relative path
    assert (copy / "mine/shared").read_text() == (tool / "shared").read_text() == "shared\n"
    order = [Bind(str(frozen.clone), str(frozen.clone)), Bind(str(tool), str(external))]
    order += [Bind(str(external / each), str(external / each)) for each in ("build", "outputs")]
    assert env.more_binds[:4] == tuple(order) and (tool / "outputs").is_dir()
    begin(archive, "host", "runs/8-train", venv="")
    frozen.write("run-1", "checkpoint\n", at=run.with_name("8-train") / "code/tool-kit/wandb")
    frozen.write("tool/__init__.py", "later\n", at=external)
    _, later = begin(frozen.freeze(external), "host", "runs/9-train")
    begin(frozen.freeze(external), "host", "runs/9-train")  # a requeued job
    assert (later / "code/tool-kit/wandb/run-1").read_text() == "checkpoint\n"
    assert (external / "wandb/run-1").read_text() == "checkpoint\n"


def test_program_without_a_container_finds_frozen_code(frozen, external, begin, tmp_path):
    """By the directory of all repositories, and where editable installations are imported from."""
    site = tmp_path / "venv/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    folder = tmp_path / "p/repos"
    (site / "__editable__.tool_kit-1.pth").write_text(f"{folder}/tool-kit/src\n")
    (site / "__editable___one_1_finder.py").write_text(
        f"MAPPING: dict[str, str] = {{'one': '{folder}/one/python/one'}}\n"
    )
    (site / "other.pth").write_text("/elsewhere\nimport os\n")
    env, run = begin(frozen.freeze(external), "host", venv=str(tmp_path / "venv"))
    variables = env.settings.configuration.environment.set
    assert variables["LONGSHIP_REPOSITORIES"] == str(run / "code")
    found = sorted(variables["PYTHONPATH"].split(":"))
    assert found == [f"{run}/code/one/python", f"{run}/code/tool-kit/src"]


def test_what_a_job_writes_next_to_its_code_is_told(run, tmp_path):
    """Also with an old time, as `cp -p` does; and nothing if it writes nothing."""
    copy = tmp_path / "code/longship"
    copy.mkdir(parents=True)
    for name in ("train.py", "helper.py"):
        (copy / name).write_text("first")
    time.sleep(0.05)
    (tmp_path / "start.bash").touch()
    script = render("a test", [call("export", f"RUN_DIR={tmp_path}"), "code_end"])
    assert run(["bash", "-c", script]).stderr == ""
    time.sleep(0.05)
    (copy / "helper.pyc").touch()
    (copy / "helper.py").write_text("other")
    for number in range(6):
        (copy / f"loss {number}").touch()
        os.utime(copy / f"loss {number}", (0, 0))
    told = run(["bash", "-c", script]).stderr
    assert told.startswith(f"longship: written next to the code, and kept in {tmp_path}/code: ")
    assert told.count(" longship/") == 5 and told.endswith(" (7 in all)\n")


def test_disk_that_is_full_at_the_start_ends_the_job(frozen, begin):
    frozen.start("train.py")
    archive = frozen.freeze()
    frozen.program("tar", "echo 'tar: x: Cannot write: No space left on device' >&2; exit 2")
    path, os.environ["PATH"] = os.environ["PATH"], frozen.environment["PATH"]
    try:
        with pytest.raises(LongshipError, match="cannot unpack .*: No space left on device"):
            begin(archive, "host")
    finally:
        os.environ["PATH"] = path


# --- archives that are missing, damaged, old, or of a run


def test_job_runs_its_archive_or_nothing(frozen, tmp_path):
    frozen.start("train.py")
    archive = frozen.freeze()
    frozen.write("train.py", "later\n")
    done = frozen.start_job(archive, tmp_path / "run")
    assert (tmp_path / "run/code/longship/train.py").read_text() == "first\n"
    assert done.stdout.startswith("700 /tmp/longship-code.")  # TMPDIR can be one of others
    archive.chmod(0o600)
    damages = {"damaged": lambda: archive.write_bytes(b""), "cannot copy": archive.unlink}
    for why, damage in damages.items():
        damage()
        done = frozen.start_job(archive, tmp_path / "none", check=False)
        error, hint = done.stderr.splitlines()[-2:]
        assert done.returncode == 1 and not done.stdout and not (tmp_path / "none").exists()
        assert why in error and str(archive) in error and "submit the job again" in hint


def test_code_of_a_run_comes_from_its_archive_or_not_at_all(frozen, begin):
    frozen.start("train.py")
    archive = frozen.freeze()
    _, run = begin(archive, "host")
    (run / "record.json").write_text(f'{{\n  "code": "{run / archive.name}"\n}}\n')
    archive.unlink()
    frozen.write("train.py", "later\n")
    assert frozen.freeze(again=run) == archive  # of the run
    (run / archive.name).unlink()
    assert frozen.freeze(again=run) == archive  # still in the store
    assert (frozen.unpack(archive) / "train.py").read_text() == "first\n"
    shutil.copy(archive, run)
    archive.unlink()
    (run / archive.name).chmod(0o600)
    for damage in (lambda file: file.write_bytes(b"other"), Path.unlink):
        damage(run / archive.name)
        error, hint = frozen.refused(again=run)
        assert error.startswith("the code of 7-train has been removed or changed: ")
        assert hint == "to run the current code, add: --live" and not archive.exists()
    for record in ("{}", '{\n  "code": ""\n}'):
        (run / "record.json").write_text(record)
        error, _ = frozen.refused(again=run)
        assert error == "the code of 7-train was not kept: it ran from the clone"


DAY = 86400


def ago(days):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - days * DAY))


@pytest.mark.parametrize(
    ("queue", "days", "kept"),
    [
        ("", 31, False),
        ("", 29, True),
        ("echo 'DAYS-2  0 '", 31, False),
        ("echo 'DAYS-2  0 '; echo 'DAYS-40  0 '", 31, True),
        ("echo 'DAYS-2  1 '", 31, True),  # Slurm has requeued it, with a new time
        ("echo 'N/A  0'", 31, True),
        ("exit 1", 31, True),  # Slurm does not answer
    ],
)
def test_archives_that_no_job_can_name_are_removed(queue, days, kept, frozen):
    frozen.start("train.py")
    archive = frozen.freeze()
    left = frozen.write("code/.partial.x", "", at=frozen.runs)  # of a submission that was killed
    for each in (archive, left):
        os.utime(each, (time.time() - days * DAY,) * 2)
    # not in the list above: two processes that collect these tests would name them otherwise
    frozen.program("squeue", re.sub(r"DAYS-(\d+)", lambda each: ago(int(each[1])), queue))
    frozen.write("train.py", "second\n")
    other = frozen.freeze()
    files = {other, *((archive, left) if kept else ())}
    assert frozen.kept == files


def test_submission_while_archives_are_removed_has_its_code(frozen):
    """The other one is between squeue and the removal: both find the archive old at first."""
    frozen.start("train.py")
    archive = frozen.freeze()
    os.utime(archive, (1, 1))
    frozen.program("squeue", f"touch {shlex.quote(str(archive))}")  # what a submission does first
    frozen.write("train.py", "second\n")
    frozen.freeze()
    assert files_of(frozen.unpack(archive)) == {"train.py": (b"first\n", 0)}


def test_folder_that_others_can_write_to_is_refused(frozen):
    frozen.store.mkdir(parents=True)
    frozen.store.chmod(0o770)
    error, _ = frozen.refused()
    assert error == f"other users can write to {frozen.store}, and would decide what you run"


@pytest.mark.parametrize(
    ("job", "given", "configured", "line"),
    [
        (TRAIN, {}, "true", "code_freeze"),
        (TRAIN, {"live": True}, "true", "code_live"),
        (TRAIN, {}, "false", "code_live"),
        ("site/shell.salloc", {}, "true", "code_live"),
        ("site/build.sbatch", {}, "true", "code_live"),
        (TRAIN, {"again": "7-train"}, "false", "code_again"),
        (TRAIN, {"again": "7-train", "live": True}, "true", "code_live"),
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


def test_job_that_a_job_submits_has_its_code(site, submit):
    run = site.scratch / "runs/7-train"
    (run / "code").mkdir(parents=True)
    site.root = site.root.rename(run / "code/longship")
    (site.scratch / "runs").rename(site.scratch / "real runs")
    (site.scratch / "runs").symlink_to("real runs")
    site.root = (run / "code/longship").resolve()  # as a script finds it
    run = site.scratch / "real runs/7-train"
    lines = submit(environ={"LONGSHIP_CLONE": "/a clone"})
    assert wrapped("code_again", site.scratch / "runs/code", "/a clone", run) in lines
    with pytest.raises(LongshipError, match="is the copy of a run"):  # typed there, after the job
        submit()
