"""What all tests share: the plugins of this directory, and small fixtures."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import hypothesis
import pytest

from support import processes
from support.repository import BareRepository

pytest_plugins = [
    "support.builds",
    "support.directories",
    "support.tiers",
    "support.needs",
    "support.environments",
    "support.forks",
    "support.registry",
    "support.lab",
    "support.git",
    "support.overlays",
    "support.patients",
    "support.slurm",
    "support.jobs",
    "support.members",
    "support.real",
    "support.requests",
    "support.terminal",
]

ROOT = Path(__file__).resolve().parents[2]

# The same examples every time and no time limit per example: a red run is red again when repeated.
hypothesis.settings.register_profile("longship", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("longship")

# Arguments that a command line built by hand gets wrong.
HOSTILE_ARGUMENTS = (
    "",
    " ",
    "two  spaces",
    "'",
    '"',
    "it's",
    'say "hi"',
    "$HOME",
    "${HOME}",
    "$(touch x)",
    "`touch x`",
    "a\nb",
    "\n",
    "ends in a newline\n",
    "\t",
    "\r",
    "-",
    "--",
    "-n",
    "--help",
    "-c",
    "\\",
    "\\\\",
    "\\n",
    "ends in a backslash\\",
    "*",
    "?",
    "[a-z]*",
    "{a,b}",
    "~",
    "~root",
    "#not a comment",
    "!!",
    "a;touch x",
    "a&touch x&",
    "a|touch x",
    "a>x",
    "<x",
    "a,b",
    "a:b",
    "a=b",
    "%s%n",
    "\x01\x1b[31m\x7f",
    "Grüße, 世界 🚢",
    "\u2028\u00a0",
)


def pytest_configure():
    # A cancelled run ends like one that got Ctrl-C: what the tests started is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # `nohup` lets it ignore a closed terminal, and so would all that the tests start.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # What a script starts in the background ignores Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def end_what_podman_keeps(tmp_path_factory):
    """End the process that podman keeps for each user, and so for each home folder made here."""
    yield
    own = os.fsencode(tmp_path_factory.getbasetemp())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_kept = (process / "comm").read_text() == "catatonit\n"
            if is_kept and b"XDG_RUNTIME_DIR=" + own in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGTERM)


@pytest.fixture(scope="session")
def root():
    """Give the path of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def hostile_arguments():
    """Give a list of arguments that must arrive as they are; a test may change its copy."""
    return list(HOSTILE_ARGUMENTS)


@pytest.fixture(scope="session")
def unseen():
    """Give a path that nobody can look at, root included, as one in another's closed folder."""
    return f"/{'x' * 256}/file"


@pytest.fixture
def repository(tmp_path):
    """Give a repository with one machine and one stack, to compute scripts from."""
    return BareRepository(tmp_path / "repository")


@pytest.fixture
def clean_environment(tmp_path):
    """Give the environment of a user who has just logged in; a test may change its copy."""
    return processes.make_environment(tmp_path / "home")


@pytest.fixture
def run(clean_environment, tmp_path):
    """Run a command list and return its CompletedProcess, see `processes.run`.

    Without `env` it runs in the clean environment, without `cwd` in the test's own folder.
    """

    def run_here(argv, *, env=None, cwd=tmp_path, **options):
        __tracebackhide__ = True
        return processes.run(argv, env=env or clean_environment, cwd=cwd, **options)

    return run_here


@pytest.fixture
def as_root():
    """Put a command in front that makes it see the user id 0.

    It stands for a user who is root where the test runs as an ordinary one. What only the real
    root may do (mounting, changing owners) still fails, see the marker `root` for that.
    """

    def wrap(argv):
        return list(argv) if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", *argv]

    return wrap


@pytest.fixture
def read_only_folder(tmp_path, require):
    """Give a folder that nobody may write to."""
    folder = tmp_path / "read only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    # Permissions do not hold root back: a file system that is mounted read-only does.
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "longship-tests", folder]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("root may not mount here, so no folder is read-only to it: run as another user")
    yield folder
    subprocess.run(["umount", folder], check=True)
