"""Promise 4: no local change in an external repository is ever lost, over random histories.

Hundreds of clones with random commits, staged, unstaged and untracked edits, renames, modes, links
and binary files are updated to random versions of their upstream. What git itself makes of the same
changes, committed and merged, says what is to come out; where that is a conflict, the way back must
lead to exactly the state before. Everything is compared file by file and mode by mode.
"""

import os
import random
import shutil

import pytest
from support.git import IDENTITY, Repository, configuration, restore_saved
from support.repository import Clone

ROUNDS = 8
CLONES = 28  # of each round at night
VERSIONS = 8
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


class Editor:
    """Random edits of a working tree."""

    def __init__(self, repository, seed):
        self.repository = repository
        self.random = random.Random(seed)

    def edit(self, count):
        """Make so many edits."""
        kinds = [self.line, self.line, self.line, self.new, self.new_folder, self.rename, self.mode]
        kinds += [self.delete, self.binary, self.link]
        for _ in range(count):
            self.random.choice(kinds)()

    def _files(self):
        listed = self.repository.git("ls-files", "-z", "-co", "--exclude-standard").split("\0")
        paths = [self.repository.folder / name for name in listed if name]
        return sorted(path for path in set(paths) if path.is_file() and not path.is_symlink())

    def _word(self):
        return " ".join(self.random.choices(WORDS, k=3))

    def line(self):
        files = self._files()
        if files:
            path = self.random.choice(files)
            lines = path.read_bytes().split(b"\n")
            lines[self.random.randrange(len(lines))] = self._word().encode()
            path.write_bytes(b"\n".join(lines))

    def new(self):
        name = self.random.choice(["new.py", "it's a file", "-dash", "ünï", "a.txt", "b.txt"])
        if not os.path.lexists(self.repository.folder / name):
            self.repository.write(name, "\n".join(self._word() for _ in range(5)))

    def new_folder(self):
        path = self.repository.folder / self.random.choice(["new/x.py", "package/mod.py", "a b/c"])
        blocked = os.path.lexists(path.parent) and not path.parent.is_dir()
        if not blocked and not path.is_dir() and not path.is_symlink():
            self.repository.write(path.relative_to(self.repository.folder), self._word())

    def rename(self):
        files = self._files()
        if files:
            path = self.random.choice(files)
            other = path.with_name(f"moved-{path.name}")
            if not os.path.lexists(other):
                path.rename(other)

    def mode(self):
        files = self._files()
        if files:
            path = self.random.choice(files)
            path.chmod(self.random.choice([0o644, 0o755]))

    def delete(self):
        files = self._files()
        if len(files) > 3:
            self.random.choice(files).unlink()

    def binary(self):
        path = self.repository.folder / self.random.choice(["weights.bin", "image.bin"])
        if not path.is_dir():
            path.write_bytes(self.random.randbytes(300))

    def link(self):
        path = self.repository.folder / self.random.choice(["latest", "link"])
        if os.path.lexists(path):
            path.unlink()
        path.symlink_to(self._word())

    def stage(self):
        """Stage everything, or a few files."""
        if self.random.random() < 0.3:
            self.repository.git("add", "--all")
            return
        status = self.repository.git("status", "--porcelain", "-z", "--no-renames").split("\0")
        for entry in status:
            if entry and self.random.random() < 0.5:
                self.repository.git("add", "--all", "--", f":(literal){entry[3:]}")


def make_upstream(folder, environment, seed):
    """Make an upstream with a version v0 and random others after it."""
    folder.mkdir(parents=True)
    upstream = Repository(folder, environment)
    upstream.git("init", "-q", "--initial-branch=main")
    chosen = random.Random(seed)
    for name in ("run.sh", "a.txt", "package/mod.py", *(f"part{n % 3}/{n}.py" for n in range(12))):
        lines = "\n".join(" ".join(chosen.choices(WORDS, k=3)) for _ in range(20))
        upstream.write(name, lines, 0o755 if name == "run.sh" else None)
    upstream.write(".gitignore", "*.pyc\n")
    upstream.commit("v0")
    upstream.git("tag", "v0")
    for number in range(1, VERSIONS + 1):
        upstream.git("checkout", "-q", "--detach", "v0")
        for step in range(chosen.randint(1, 3)):
            Editor(upstream, seed * 1000 + number * 10 + step).edit(chosen.randint(1, 4))
            upstream.commit(f"v{number} step {step}")
        upstream.git("tag", f"v{number}")
    return upstream


def make_changes(mine, seed):
    """Make a user's random changes in a clone."""
    chosen = random.Random(seed)
    editor = Editor(mine, seed)
    if chosen.random() < 0.6:
        mine.git("checkout", "-q", "-b", "my-work")
    for number in range(chosen.choice([0, 0, 1, 2, 3])):
        editor.edit(chosen.randint(1, 3))
        mine.commit(f"mine {number}")
    if chosen.random() < 0.1:
        mine.git("checkout", "-q", "-b", "side")
        mine.commit("side", side__txt="side\n")
        mine.git("checkout", "-q", "-")
        mine.commit("other side", other__txt="other\n")
        mine.git("merge", "-q", "--no-edit", "side")
    if chosen.random() < 0.7:
        editor.edit(chosen.randint(1, 4))
        editor.stage()
    if chosen.random() < 0.7:
        editor.edit(chosen.randint(1, 4))


def merged_by_git(mine, target, folder):
    """Give the files and the index that git makes of the changes, committed and merged.

    None stands for a conflict.
    """
    shutil.copytree(mine.folder, folder, symlinks=True)
    copy = Repository(folder, mine.environment)
    copy.git("commit", "-q", "--allow-empty", "-m", "what is staged")
    staged = copy.head()
    copy.git("add", "--all")
    copy.git("commit", "-q", "--allow-empty", "-m", "all")
    merge = ["merge", "-q", "--no-edit", f"refs/longship/tags/{target}"]
    files = copy.files() if copy.git(*merge, check=False).returncode == 0 else None
    copy.git("reset", "-q", "--hard", staged)
    index = copy.staged() if copy.git(*merge, check=False).returncode == 0 else None
    shutil.rmtree(folder)
    return files, index


def check_saved(mine, before, folder):
    """Check that what was saved gives back the state before, in another working tree."""
    if not mine.refs("saved"):
        assert mine.git("diff", "--stat", "HEAD") == ""
        return
    copy = restore_saved(mine, folder)
    files, staged, _, head = copy.state()
    assert (files, staged, head) == (*before[:2], before[3])
    mine.git("worktree", "remove", "--force", str(folder))


def words(mine, base):
    """Give author, committer, both dates and message of the user's commits."""
    commits = mine.git("rev-list", "--reverse", "--no-merges", f"{base}..HEAD").split()
    texts = [mine.git("cat-file", "commit", each) for each in commits]
    return [text[text.index("\nauthor ") :] for text in texts]


@pytest.mark.parametrize(
    ("seed", "clones"),
    [(0, 8), *(pytest.param(each, CLONES, marks=pytest.mark.slow) for each in range(ROUNDS))],
)
def test_no_change_is_ever_lost(seed, clones, root, tmp_path, clean_environment):
    environment = {**clean_environment, **IDENTITY}
    upstream = make_upstream(tmp_path / "upstream", environment, seed)
    clone = Clone(root, tmp_path / "a clone", environment)
    scratch = tmp_path / "a scratch"
    url = f"file://{upstream.folder}"
    names = [f"clone{number}" for number in range(clones)]
    entries = [{"name": name, "url": url, "ref": "v0", "install": "none"} for name in names]
    clone.configure(configuration(scratch, *entries))
    clone.set_up("install")
    mine = {name: Repository(scratch / "project/repos" / name, environment) for name in names}
    before, wanted, said, targets = {}, {}, {}, {}
    for number, (name, entry) in enumerate(zip(names, entries)):
        make_changes(mine[name], seed * 1000 + number)
        entry["ref"] = f"v{number % VERSIONS + 1}"
        targets[name] = entry["ref"]
        before[name], said[name] = mine[name].state(), words(mine[name], "v0")
        wanted[name] = merged_by_git(mine[name], entry["ref"], tmp_path / "by git")
    clone.configure(configuration(scratch, *entries))
    done = clone.set_up("update", check=False, timeout=300)

    stopped = {name for name in names if (mine[name].folder / ".git/longship-update").exists()}
    assert done.returncode == (1 if stopped else 0)
    for name in sorted(set(names) - stopped):
        files, staged, branch, _ = mine[name].state()
        assert wanted[name][0] in (None, files), name
        assert wanted[name][1] in (None, staged), name
        assert branch == before[name][2]
        if not mine[name].git("rev-list", "--merges", f"v0..{before[name][3]}"):
            target = f"refs/longship/tags/{targets[name]}"
            replayed = words(mine[name], target)
            assert replayed == [each for each in said[name] if each in replayed]
            assert len(replayed) == len(said[name]) or "already in the new version" in done.stderr
    if stopped:
        clone.set_up("update", "--abort")
    for name in names:
        if name in stopped:
            assert mine[name].state() == before[name], name
        check_saved(mine[name], before[name], tmp_path / "saved")
