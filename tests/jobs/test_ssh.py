"""The SSH server of a job: what it needs, and its sessions, here without sshd and container."""

import signal
import subprocess
import sys
import uuid

import pytest
from support import processes

from lib import ROOT
from lib.script.render import render

SESSIONS = f"{ROOT}/lib/jobs/inside/ssh_sessions.py"


@pytest.fixture
def session(clean_environment):
    """Give a function that starts a session with a command and the text that it reads."""
    name = f"longship-test-{uuid.uuid4().hex}"
    server = subprocess.Popen([sys.executable, SESSIONS, "serve", name], env=clean_environment)

    def start(command, text="", program=(), **variables):
        env = {**clean_environment, "SSH_ORIGINAL_COMMAND": command, "TERM": "dumb", **variables}
        started = [*program, sys.executable, SESSIONS, "connect", name]
        return processes.run(started, env=env, input=text, check=False)

    yield start
    server.kill()
    server.wait()


@pytest.mark.parametrize(
    ("command", "text", "code", "output"),
    [
        ("exit 7", "", 7, ""),
        ("kill -9 $$", "", 128 + signal.SIGKILL, ""),
        ('printf %s "$SSH_X $TERM"; cat', " read", 0, "a 'b'  \udcff dumb read"),
        ("bash", "echo in bash; exit 3\n", 3, "in bash\n"),
        ('sleep 5 >/dev/null 2>&1 & cd; pwd -P | grep -cx "$PWD"', "", 0, "1\n"),
    ],
)
def test_session_has_its_streams_and_its_exit_code(command, text, code, output, session):
    done = session(command, text, SSH_X="a 'b'  \udcff")
    assert (done.returncode, done.stdout) == (code, output)


def test_session_of_a_terminal_is_a_shell_that_controls_it(session):
    terminal = [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"]
    done = session("", "test -t 0 && echo is $((40 + 2)); exit 5\n", terminal)
    assert done.returncode == 5
    assert "is 42" in done.stdout and "job control" not in done.stdout


def test_node_without_sshd_is_told(clean_environment):
    start = ["type() { false; }", "serve_ssh jwb"]
    env = {**clean_environment, "USER": "me", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"}
    env |= {"RUN_DIR": "/nowhere", "LONGSHIP_ROOT": "/nowhere"}
    told = processes.run(["bash", "-c", render("a test", start)], env=env, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith("error: sshd not found on node1\nhint: ask your site")
