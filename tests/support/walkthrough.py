"""Pages of docs/ that a reader follows step by step: their files and their commands."""

import re
import shlex
import shutil
import sys
from pathlib import Path

from lib.configuration.sites import load_machines
from support.documentation import all_blocks, read
from support.git import Repository
from support.repository import Clone

ROOT = Path(__file__).resolve().parents[2]
# The first line of a block that is a file, or the second one of a script, in a comment.
_NAMED = re.compile(r"(?:#!.*\n)?(?:#|<!--) ([\w./-]+\.\w+)(?: -->)?\n")


class Page:
    """What a page shows: files by their paths, and the words of commands."""

    def __init__(self, name):
        self.files, typed = {}, ""
        for kind, body in all_blocks(read(name)):
            named = _NAMED.match(body)
            if named:
                assert named[1] not in self.files, "said twice"
                self.files[named[1]] = body
            elif kind == "bash":
                typed += body
        lines = typed.replace("\\\n", " ").splitlines()
        self.commands = [words for line in lines if (words := shlex.split(line, comments=True))]

    def calls(self, program):
        """Give the words behind each call of a program."""
        return [words[1:] for words in self.commands if words[0] == program]


def follow(page, folder, environment):
    """Write a page's files into a new clone that is committed; return the clone and its git."""
    clone = Clone(ROOT, folder, environment)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("tests", "benchmarks", ".ci"):
        shutil.copytree(ROOT / name, clone.root / name, ignore=ignore)
    shutil.copy(ROOT / ".gitignore", clone.root)
    git = Repository(clone.root, environment)
    git.git("init", "--quiet")
    git.commit("as it was")
    for name, text in page.files.items():
        assert not (clone.root / name).exists(), f"{name} is there already"
        git.write(name, text)
    return clone, git


def changed(git):
    """Give every file that is not as it was committed."""
    shown = git.git("status", "--porcelain", "--untracked-files=all", "-z")
    return sorted(each[3:] for each in shown.split("\0") if each)


def alone(folder):
    """Give the words for pytest's -k that leave out what only repeats a test for another one.

    Such tests are run in this repository too, and for them a new folder changes nothing.
    """
    names = {
        path.parent.name for path in (*ROOT.glob("*/site.toml"), *ROOT.glob("stacks/*/*.toml"))
    }
    others = " or ".join(sorted({*names, *load_machines(ROOT)} - {"local", "pytorch"}))
    return f"{folder} or not ({others})"


def run_own_tests(clone, run, *arguments):
    """Run the clone's own tests, and return how they ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = run(command, env=clone.environment, cwd=clone.root, timeout=800)
    return done.stdout.splitlines()[-1]
