"""Start scripts as copies of one Python that has read their modules: a third of the time.

How Python itself starts is not part of it, so tests/commands/test_cli.py starts each of them alone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import processes
from support.repository import Clone

# One request on each line of standard input. The copy leaves the loop and becomes the script.
SERVER = """
import gc, importlib, json, os, pathlib, runpy, sys
sys.path[0] = sys.argv[1]
for each in sys.argv[2:]:
    importlib.import_module(each)
if sites := sys.modules.get("lib.configuration.sites"):
    sites.load_machines(pathlib.Path(sys.argv[1]))
gc.freeze()
print('ready', flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
wanted = json.loads(line)
os.setsid()
os.chdir(wanted["cwd"])
for number, (name, flags) in enumerate(wanted["streams"]):
    os.dup2(os.open(name, flags, 0o600), number)
os.closerange(3, 64)
sys.stdin, sys.stdout = (
    open(each.fileno(), each.mode, encoding=each.encoding, errors=each.errors, closefd=False)
    for each in (sys.stdin, sys.stdout)
)
if wanted["whole"]:
    os.environ.clear()
os.environ.update(wanted["env"])
sys.argv = wanted["argv"]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Copies:
    """Runs scripts as copies of a Python.

    The server is a process that runs `SERVER`; what the scripts read and write is in the folder.
    """

    def __init__(self, server, folder):
        self._server, self._folder = server, folder
        # until then it reads files that a test changes
        assert server.stdout.readline() == "ready\n", "the Python to copy does not start, see above"

    def become(self, argv, *, env, cwd, whole, check=True, input=""):
        """Run a script to its end, as `processes.run` does; `env` is added if it is not whole."""
        __tracebackhide__ = True
        given, *said = (self._folder / each for each in ("input", "output", "errors"))
        given.write_text(input, "utf-8", "surrogateescape")
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        streams = [(str(given), os.O_RDONLY), *((str(each), written) for each in said)]
        wanted = {"argv": argv, "env": env, "whole": whole, "cwd": str(cwd), "streams": streams}
        print(json.dumps(wanted), file=self._server.stdin, flush=True)
        child = int(self._server.stdout.readline())
        try:
            code = int(self._server.stdout.readline())
        except BaseException:  # the time limit of pytest, or Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            raise
        output, errors = (each.read_bytes().decode("utf-8", "surrogateescape") for each in said)
        if check and code:
            ending = f"ended with {code}"
            pytest.fail(processes.story(argv, cwd, ending, output, errors), pytrace=False)
        return subprocess.CompletedProcess(argv, code, output, errors)

    def close(self):
        """End the Python that is copied."""
        self._server.communicate()


class Forks(Copies):
    """Starts the entry scripts of one clone, whose modules nobody changes meanwhile."""

    def __init__(self, root, folder):
        self._root = Path(root)
        files = sorted([*root.glob("lib/*/[!_]*.py"), *root.glob("extras/*/[!_]*.py")])
        names = [".".join(each.relative_to(root).with_suffix("").parts) for each in files]
        words = [sys.executable, "-c", SERVER, root, *names]
        environment = processes.make_environment(folder)
        server = processes.start(words, env=environment, stdin=subprocess.PIPE, stderr=None)
        super().__init__(server, folder)

    def run(self, script, *arguments, **options):
        """Run an entry script to its end, as `processes.run` does."""
        __tracebackhide__ = True
        argv = [str(self._root / script), *map(os.fspath, arguments)]
        return self.become(argv, whole=True, **options)


@contextlib.contextmanager
def clone_with_forks(root, folder):
    """Give a clone that starts its scripts so; those who share it undo what they change."""
    clone = Clone(root, folder, {})
    clone.forks = Forks(clone.root, folder.parent)
    yield clone
    clone.forks.close()


@pytest.fixture(scope="session")
def forks(root, tmp_path_factory):
    """Start the entry scripts of the repository."""
    forks = Forks(root, tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture
def script(forks, clean_environment, tmp_path):
    """Run an entry script of the repository, as `run` does with a command list."""

    def run_here(name, *arguments, env=None, cwd=tmp_path, **options):
        __tracebackhide__ = True
        return forks.run(name, *arguments, env=env or clean_environment, cwd=cwd, **options)

    return run_here
