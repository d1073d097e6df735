"""Repositories of a test's own: a bare one to compute scripts from, and a copy to run."""

import json
import shutil
import sys
from functools import partialmethod
from pathlib import Path

from support import processes

ROOT = Path(__file__).resolve().parents[2]
# What comes with this repository; a group's own, in the same tree, is not ours to test.
SITES = (
    *("alps", "arrhenius", "aws", "berzelius", "capella", "frontier", "isambard", "jeanzay", "jsc"),
    *("leonardo", "local", "lumi", "marenostrum", "olivia", "roihu", "snellius"),
)

SITE = '[machines.local]\ndescription = "this machine"\n'
STACK = '[images]\ncpu = "docker://example.org/lab/base:1"\n'


class BareRepository:
    """A repository with one machine and one stack, as few lines as there can be.

    It stands for what a group edits, so that a test says all that its outcome depends on.
    """

    def __init__(self, folder):
        self.root = folder
        self.environ = {"HOME": "/home/me", "USER": "me", "PATH": ""}
        self.write("local/site.toml", SITE)
        self.write("stacks/pytorch/stack.toml", STACK)

    def write(self, name, text):
        """Write a file, with its folders, and return its path."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def settings(self, environ=None, **options):
        """Give the settings as an entry script would read them."""
        from lib.configuration.layers import load_settings  # a mistake there hides no other tests

        return load_settings(self.root, options, {**self.environ, **(environ or {})})

    def settings_and_paths(self, environ=None, arch=None, **options):
        """Give the settings and the paths; `arch` instead of this machine's own."""
        from lib.configuration.paths import derive_paths

        settings = self.settings(environ, **options)
        paths = derive_paths(settings)
        return settings, paths._replace(arch=arch) if arch else paths


class Clone:
    """A copy of the working tree with a configuration of its own, to run the scripts from."""

    forks = None  # starts them, see support/forks.py; otherwise each is a Python of its own

    def __init__(self, source, folder, environment):
        self.root = copy_tree(source, folder, compiled=True)
        self.environment = environment

    def configure(self, text):
        """Replace configuration.toml."""
        (self.root / "configuration.toml").write_text(text, encoding="utf-8")

    def change(self, old, new, file="configuration.toml"):
        """Change a text in a file."""
        text = (self.root / file).read_text(encoding="utf-8")
        assert old in text
        (self.root / file).write_text(text.replace(old, new), encoding="utf-8")

    def command(self, script, *arguments):
        """Give the words that start an entry script with the Python that runs the tests."""
        return [sys.executable, self.root / script, *arguments]

    def type(self, script, *arguments, env=None, **options):
        """Run an entry script to its end; `env` is added to the environment, see `processes`."""
        __tracebackhide__ = True
        options = {"cwd": self.root, **options, "env": {**self.environment, **(env or {})}}
        if self.forks:
            return self.forks.run(script, *arguments, **options)
        return processes.run(self.command(script, *arguments), **options)

    container_run = partialmethod(type, "container_run.py")
    set_up = partialmethod(type, "set_up.py")
    build = partialmethod(type, "build_container.py")
    move = partialmethod(type, "move_built_container_to_active.py")
    bundle = partialmethod(type, "bundle.py")

    def dry_run(self, script, *arguments):
        """Give the script that an entry script would run."""
        return self.type(script, "--dry-run", *arguments).stdout

    def start(self, script, *arguments, env=None, **options):
        """Start an entry script and return its Popen, the leader of a process group of its own."""
        environment = {**self.environment, **(env or {})}
        return processes.start(self.command(script, *arguments), env=environment, **options)


def shared_configuration(folder):
    """Copy configuration.toml to where no configuration.local.toml lies beside it; give the path.

    What a user sets for himself in the clone must not decide how its tests end.
    """
    return str(shutil.copy(ROOT / "configuration.toml", folder))


def copy_tree(source, folder, *, compiled=False):
    """Copy what a clone holds, but the tests; return the folder.

    With what Python has compiled, a script starts there twice as fast.
    """
    written_just_now = ["*.pyc.*"]
    unwanted = written_just_now if compiled else ["__pycache__", "*.pyc"]
    unwanted = shutil.ignore_patterns(*unwanted, "configuration.local.toml")
    for entry in Path(source).iterdir():
        if entry.name.startswith(".") or entry.name in ("tests", "benchmarks"):
            continue
        if entry.is_dir():
            shutil.copytree(entry, folder / entry.name, ignore=unwanted)
        elif entry.name != "configuration.local.toml":
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(entry, folder)
    return folder


def toml(value):
    """Write a text or a list of texts as TOML: JSON's form is TOML's too (but for DEL)."""
    value = [str(each) for each in value] if isinstance(value, list) else str(value)
    return json.dumps(value, ensure_ascii=False)
