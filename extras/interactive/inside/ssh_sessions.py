"""Sessions of a job's SSH server (ssh.bash): all in one container, which lives as long as the job.

    ssh_sessions.py serve NAME      inside the environment: start the commands of sessions
    ssh_sessions.py connect NAME    on the host, for sshd: let the first one start the command

A container for each session would take the files of the image away from what an editor has left in
the background. Both find each other by NAME, and check that the other one is the same user.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
import termios
import time

SHELL_START = os.path.join(
    os.path.dirname(__file__), "../../../lib/runtimes/inside/interactive.bash"
)


def main(role: str, name: str) -> int:
    """Serve sessions for ever, or be one; return its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        address = f"\0{name}"  # of the kernel, not of a file system
        if role == "connect":
            wait_for(connection, address)
            return connect(connection)
        connection.bind(address)
        connection.listen()
        serve(connection)
    return 0


def serve(server: socket.socket) -> None:
    """Start a process for each session."""
    while True:
        connection, _ = server.accept()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if is_own(connection) and os.fork() == 0:
            server.close()
            connection.sendall(bytes([start(connection)]))
            os._exit(0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        connection.close()


def start(connection: socket.socket) -> int:
    """Run the command of a session with its streams; return the exit code."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    wanted = json.loads(message)
    process = os.fork()
    if process:
        for each in streams:
            os.close(each)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return code if code >= 0 else 128 - code
    connection.close()
    os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(3, max(streams) + 1)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(os.path.expanduser("~"))
    shell = shutil.which("bash") or "/bin/sh"
    words = ["-c", wanted["command"]] if wanted["command"] else ["-i"]
    if words == ["-i"] and shell.endswith("bash"):
        words = ["--rcfile", SHELL_START, "-i"]
    os.execve(shell, [shell, *words], {**os.environ, **wanted["variables"], "SHELL": shell})


def wait_for(connection: socket.socket, address: str) -> None:
    """Connect to the server, when the container has started."""
    for seconds in (*[0.5] * 120, 0):
        with contextlib.suppress(ConnectionRefusedError):
            return connection.connect(address)
        time.sleep(seconds)
    sys.exit("error: the environment has not started\nhint: see the log of the job")


def connect(connection: socket.socket) -> int:
    """Give the streams of this session to the server; return the exit code of its command."""
    command = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    if command == "internal-sftp":  # scp too: files have the same paths on the host
        become_sftp_server()
    if not is_own(connection):
        sys.exit("error: another user answers instead of the job\nhint: submit the job again")
    if os.isatty(0):  # the command becomes what the terminal controls, instead of this process
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        fcntl.ioctl(0, termios.TIOCNOTTY)
    own = [each for each in os.environ if each == "TERM" or each.startswith("SSH_")]
    wanted = {"command": command, "variables": {each: os.environ[each] for each in own}}
    socket.send_fds(connection, [json.dumps(wanted).encode()], [0, 1, 2])
    return (connection.recv(1) or b"\xff")[0]


def become_sftp_server() -> None:
    """Become the node's program; each distribution has another place for it."""
    for directory in ("lib/openssh", "libexec/openssh", "lib/ssh", "lib64/ssh", "libexec"):
        program = f"/usr/{directory}/sftp-server"
        if os.path.exists(program):
            os.execv(program, [program])
    sys.exit("error: sftp-server not found on this node\nhint: copy with: ssh HOST cat FILE")


def is_own(connection: socket.socket) -> bool:
    """Tell whether the other process is of the same user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", found)[1] == os.getuid()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
