"""The SSH server of a job: what it needs, and its sessions, here without sshd and container."""

import signal
import subprocess
import sys
import uuid

import pytest
from support import processes

from lib import ROOT
from lib.script.render import render

SESSIONS = f"{ROOT}/extras/interactive/inside/ssh_sessions.py"


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


@pytest.fixture
def serve(clean_environment, tmp_path):
    """Give a function that runs lines in a job, with the variables that it has."""
    env = {**clean_environment, "USER": "me", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"}
    env |= {"RUN_DIR": str(tmp_path), "LONGSHIP_ROOT": "/the clone", "LAUNCHER": "/launcher"}
    env["PATH"] = f"{tmp_path}/bin:{env['PATH']}"

    def start(*lines):
        script = ["bash", "-c", render("a test", lines)]
        return processes.run(script, env=env, check=False)

    return start


def test_sessions_begin_with_the_python_of_the_job(serve, tmp_path):
    """A node's own python3 can be older than the job's, which is that of .venv then."""
    keys = 'for file; do :; done\necho a key | tee "$file" >"$file.pub"\n'
    for name, text in (("sshd", ""), ("srun", ""), ("ssh-keygen", keys)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}")
        program.chmod(0o755)
    done = serve("longship_python='/clone/.venv/bin/python'", "serve_ssh jwb")
    assert done.returncode == 0, done.stderr
    sessions = "'/the clone/extras/interactive/inside/ssh_sessions.py'"
    start = f"ForceCommand exec '/clone/.venv/bin/python' {sessions} connect longship-7-"
    assert f"\n{start}" in (tmp_path / "ssh/config").read_text()


def test_node_without_sshd_is_told(serve):
    told = serve("type() { false; }", "serve_ssh jwb")
    assert told.returncode == 1
    assert told.stderr.startswith("error: sshd not found on node1\nhint: ask your site")
