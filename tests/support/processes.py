"""Run programs in tests: in a clean environment, with a time limit, and readable when they fail."""

import contextlib
import functools
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PATIENCE = 300  # seconds for what takes one: a machine can be busy, or stand still

# How this machine reaches its package index and its proxy. A test must not depend on anything else
# of the environment in which it is started.
_KEPT = {
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("TMPDIR", "TERM"),
}
_KEPT_PREFIXES = ("PIP_", "UV_")


def make_environment(home):
    """Make the environment of a user who has just logged in, with `home` as the home folder.

    pip's settings of the real user are copied there: without them a machine may not find its
    package index at all.
    """
    home.mkdir(parents=True, exist_ok=True)
    settings = Path.home() / ".config/pip/pip.conf"
    if settings.is_file() and os.access(settings, os.R_OK):
        (home / ".config/pip").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(settings, home / ".config/pip/pip.conf")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    environment.update(PATH=PATH, HOME=str(home), LANG="C.UTF-8", USER=_user())
    # As a login makes it. Without it skopeo looks for passwords below /run/containers, which nobody
    # but root may read once root has run podman.
    runtime = home / ".local/run"
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment["XDG_RUNTIME_DIR"] = str(runtime)
    if os.geteuid() == 0 and _lacks_capabilities():
        # As root Apptainer asks for every capability there is and fails where one is withheld, as
        # it is in most containers and some virtual machines.
        environment["APPTAINER_USERNS"] = "1"
    return environment


def run(argv, *, env, cwd=None, check=True, timeout=2 * PATIENCE, input=None):
    """Run a command list to its end and return its CompletedProcess, with output as text.

    Bytes that are no UTF-8 come and go as surrogate escapes. On failure (with `check`) and on
    timeout the test fails with the command and all of its output. Whatever the command left
    running in its process group is ended at a timeout.
    """
    __tracebackhide__ = True
    if isinstance(argv, (str, bytes)):
        raise TypeError(f"a command is a list of arguments, not one text: {argv!r}")
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = start(argv, env=env, cwd=cwd, stdin=stdin, encoding=None, errors=None)
    given = None if input is None else _encoded(input)
    try:
        output, errors = process.communicate(given, timeout)
        ending = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        end_group(process)
        # Not for ever: a process outside of the group may hold the pipes open.
        output, errors = process.communicate(timeout=60)
        ending = f"did not end within {timeout} s"
        check = True
    except BaseException:
        end_group(process)
        process.wait()
        raise
    # Decoded here, as Popen's text mode would turn carriage returns into newlines.
    output, errors = (text.decode("utf-8", "surrogateescape") for text in (output, errors))
    if check and ending != "ended with 0":
        pytest.fail(story(argv, cwd, ending, output, errors), pytrace=False)
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def start(argv, *, env, cwd=None, **options):
    """Start a command list in a session and process group of its own and return its Popen.

    It reads nothing, and its output is piped as text, unless `options` of Popen say otherwise.
    """
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "encoding": "utf-8",
        "errors": "surrogateescape",
        **options,
    }
    command = [os.fspath(argument) for argument in argv]
    return subprocess.Popen(command, env=env, cwd=cwd, start_new_session=True, **options)


def end_group(process):
    """Kill a process made by `start` and all that is left of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition, seconds=PATIENCE):
    """Wait for a condition, and fail if it does not become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def finish(process, seconds=PATIENCE):
    """Wait for a script and give its exit code and standard error."""
    _, errors = process.communicate(timeout=seconds)
    return process.returncode, errors


def session(leader):
    """Give the command lines of the processes in a session, that of `start`; without the dead."""
    return list(_session(leader).values())


def end_session(process):
    """Kill a process made by `start` and all of its session, whatever their process groups."""
    for member in _session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.wait(timeout=PATIENCE)


def _session(leader):
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            # the name, in parentheses, may hold anything; state, parent, group and session follow
            facts = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(facts[3]) == leader:
                words = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
                found[int(folder.name)] = os.fsdecode(b" ".join(words))
    return found


def free_ports(count):
    """Give ports that a server of a test can have.

    They are below those that the kernel gives to connections: one of these could be taken before
    the server has it.
    """
    found = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            found.add(port)
    return list(found)


def story(argv, cwd, ending, output, errors):
    """Tell what a command has done, for a test that fails."""
    command = shlex.join(os.fspath(argument) for argument in argv)
    text = (
        f"{command}\n{ending} (in {cwd or os.getcwd()})\n"
        f"--- standard output\n{output}\n--- standard error\n{errors}"
    )
    return text.encode("utf-8", "backslashreplace").decode()


def program(name):
    """Give the path of a program of the test environment (ruff, shellcheck, vermin)."""
    return str(Path(sys.executable).parent / name)


def _encoded(text):
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


@functools.cache
def _user():
    return subprocess.check_output(["id", "-un"], text=True).strip()


def _lacks_capabilities():
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    highest = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    return int(effective, 16) != (1 << (highest + 1)) - 1
