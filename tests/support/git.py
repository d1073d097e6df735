"""Git repositories for tests: an upstream, and the user's clone that set_up.py made of it."""

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from lib import ROOT
from support import cache, processes
from support.repository import Clone, toml

IDENTITY = {
    "GIT_AUTHOR_NAME": "A. Nordic",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A. Nordic",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "file:https",  # git forbids it for submodules since 2.38.1
}


def clone_of(repository, environment):
    """Give the clone of a repository of a stack, which is fetched once."""
    url, ref = repository["url"], repository["ref"]

    def build(partial):
        words = ["git", "clone", "--quiet", "--depth=1", f"--branch={ref}", url, partial]
        done = processes.run(words, env=environment, check=False, timeout=900)
        if done.returncode:
            pytest.skip(f"needs {url}, which git cannot clone: {done.stderr.splitlines()[-1]}")

    return cache.cached(f"{Path(url).stem}-{ref}", build)


def record_code(run, folder, directory, **options):
    """Record a repository as a job does, in a directory; give the path without suffix."""
    worker = [sys.executable, "-X", "utf8", Path(ROOT, "lib/jobs/record_worker.py")]
    run([*worker, "record", directory, "code", folder], **options)
    return directory / "repositories/code"


def restore_saved(mine, folder):
    """Check out what was saved before the first update, by the commands of the page."""
    page = Path(ROOT, "docs/explanation/replay.md").read_text()
    (text,) = re.findall(r"```bash\n(git worktree add .*?)```", page, re.DOTALL)
    again = Repository(folder, mine.environment)
    text = text.replace("DIR", f'"{folder}"').replace("REF", mine.refs("saved")[0])
    processes.run(["bash", "-e", "-c", text], env=mine.environment, cwd=mine.folder)
    return again


class Repository:
    """A git repository, by its working tree and the environment that git is run with."""

    def __init__(self, folder, environment):
        self.folder = Path(folder)
        self.environment = {**environment, **IDENTITY}

    def git(self, *arguments, check=True):
        """Run git, and return what it printed."""
        done = processes.run(
            ["git", "-C", self.folder, *arguments], env=self.environment, check=check
        )
        return done.stdout if check else done

    def write(self, name, content, mode=None):
        """Write a file, with its folders."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode:
            path.chmod(mode)
        return path

    def replace(self, name, old, new):
        """Replace a text in a file."""
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def commit(self, message="a change", **files):
        """Commit everything, after writing files; `__` in a name is a dot. Return the commit."""
        for name, content in files.items():
            self.write(name.replace("__", "."), content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.head()

    def head(self, name="HEAD"):
        """Give the commit that a name stands for."""
        return self.git("rev-parse", name).strip()

    def files(self):
        """Map each file of the working tree to its mode and content, as git sees them."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder)
            if ".git" in relative.parts or (path.is_dir() and not path.is_symlink()):
                continue
            if path.is_symlink():
                found[str(relative)] = ("link", os.readlink(path))
            else:
                executable = bool(path.stat().st_mode & stat.S_IXUSR)
                found[str(relative)] = ("program" if executable else "file", path.read_bytes())
        return found

    def staged(self):
        """Give the index, as `git ls-files --stage` shows it."""
        return self.git("ls-files", "--stage")

    def refs(self, kind):
        """Give the references of Longship of a kind, the oldest first."""
        return self.git("for-each-ref", "--format=%(refname)", f"refs/longship/{kind}").split()

    def state(self):
        """Give all that an update must bring back: files, index, branch, commit."""
        branch = self.git("symbolic-ref", "-q", "HEAD", check=False).stdout
        return self.files(), self.staged(), branch, self.head()


def make_upstream(folder, environment):
    """Make a repository with one commit, tagged v1, on the branch main."""
    folder.mkdir(parents=True)
    upstream = Repository(folder, environment)
    upstream.git("init", "--quiet", "--initial-branch=main")
    upstream.git("config", "uploadpack.allowFilter", "true")
    upstream.git("config", "uploadpack.allowAnySHA1InWant", "true")
    lines = "".join(f"line {number}\n" for number in range(1, 31))
    upstream.write("model.py", lines)
    upstream.write("data.py", lines)
    upstream.write("run.sh", "#!/bin/sh\n", 0o755)
    upstream.write(".gitignore", "*.pyc\n/outputs/\n")
    upstream.commit("first")
    upstream.git("tag", "v1")
    return upstream


def configuration(scratch, *repositories):
    """Give a configuration.toml with repositories, each a dict of keys, and nothing to install."""
    lines = [
        'machine = "local"',
        *(
            "[[repositories]]\n"
            + "\n".join(f"{key} = {toml(value)}" for key, value in each.items())
            for each in repositories
        ),
        f"[paths]\nproject_dir = {toml(scratch / 'project')}\nscratch_dir = {toml(scratch)}",
        '[container]\nruntime = "host"\n[packages]\nrequirements = ""',
    ]
    return "\n".join(lines) + "\n"


class Workplace(Clone):
    """A clone of this repository, an upstream, and the user's repository of it."""

    def __init__(self, source, folder, environment):
        super().__init__(source, folder / "a clone", {**environment, **IDENTITY})
        (self.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
        self.folder = folder
        self.scratch = folder / "it's scratch"
        self.upstream = make_upstream(folder / "servers/the upstream", environment)
        self.url = f"file://{self.upstream.folder}"
        self.mine = Repository(self.scratch / "project/repos/torchtitan", environment)
        self.patches = self.root / "patches/torchtitan"

    def use(self, ref="v1", **keys):
        """Configure the repository."""
        self.ref = ref
        entry = {"name": "torchtitan", "url": self.url, "ref": ref, "install": "none", **keys}
        self.configure(configuration(self.scratch, entry))

    def install(self, **keys):
        """Configure it, and clone it; return the user's repository."""
        self.use(**keys)
        self.set_up("install")
        return self.mine

    def elsewhere(self):
        """Go on as another member, with folders of their own; return their repository."""
        number = len(list(self.folder.glob("other scratch *")))
        self.scratch = self.folder / f"other scratch {number}"
        self.use(self.ref)
        self.set_up("install")
        return Repository(self.scratch / "project/repos/torchtitan", self.environment)

    def update(self, *arguments, **options):
        """Run set_up.py update."""
        return self.set_up("update", *arguments, **options)

    def release(self, tag="v2", **changes):
        """Let upstream have a new version: (old, new) by file, or a file's whole content."""
        for name, change in changes.items():
            name = name.replace("__", ".")
            if isinstance(change, tuple):
                self.upstream.replace(name, *change)
            else:
                self.upstream.write(name, change)
        self.upstream.commit(tag)
        self.upstream.git("tag", tag)
        self.use(tag)

    @property
    def second(self):
        """Give the second working tree of an update, in which conflicts are resolved."""
        return Repository(f"{self.mine.folder}.update", self.environment)


@pytest.fixture
def work(root, tmp_path, clean_environment):
    """Give a workplace."""
    return Workplace(root, tmp_path, clean_environment)


@pytest.fixture
def with_submodule(work, run):
    """Give a workplace whose upstream has a submodule, and that submodule's upstream."""
    sub = make_upstream(work.folder / "servers/sub", work.environment)
    up = work.upstream
    up.git("submodule", "--quiet", "add", f"file://{sub.folder}", "third party/sub")
    up.git("-C", "third party/sub", "checkout", "-q", "v1")
    up.commit("with submodule")
    up.git("tag", "v1s")
    sub.replace("model.py", "line 25\n", "line 25!\n")
    sub.commit("second of sub")
    up.git("-C", "third party/sub", "pull", "-q", "origin", "main")
    up.replace("model.py", "line 25\n", "line 25!\n")
    up.commit("newer submodule")
    up.git("tag", "v2s")
    mine = work.install(ref="v1s")
    return mine, Repository(mine.folder / "third party/sub", work.environment), sub
