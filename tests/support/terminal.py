"""A command on a terminal of its own, as somebody types it."""

import contextlib
import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

import pytest

from support import processes


class Terminal:
    """A running command whose standard input, output and error are a terminal.

    At the end of its `with` what still runs of it is killed. It is so wide that no prompt is cut,
    however long the folder in it, and shows no colours, unless `columns` and `term` say otherwise.
    """

    def __init__(self, argv, *, env, cwd, columns=500, term="dumb", **streams):
        self.here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.said = ""

        def take_terminal():  # Ctrl-C reaches only those whose controlling terminal it is
            fcntl.ioctl(there, termios.TIOCSCTTY, 0)

        options = {"stdin": there, "stdout": there, "stderr": there, **streams}
        environment = {**env, "TERM": term}
        command = [os.fspath(each) for each in argv]
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=take_terminal,
            **options,
        )
        os.close(there)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        processes.end_group(self.process)
        self.process.wait()
        os.close(self.here)
        if self.process.stdout:
            self.process.stdout.close()

    def type(self, text):
        """Type a text; a newline is the key Enter, and \\x03 is Ctrl-C."""
        os.write(self.here, text.encode())

    def expect(self, text, timeout=processes.PATIENCE):
        """Read until a text is shown that was not there when this was last called."""
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        seen = len(self.said)
        while text not in self.said[seen:]:
            if not self._read(deadline):
                pytest.fail(f"{text!r} was never shown:\n{self.said}", pytrace=False)

    def end(self, timeout=processes.PATIENCE):
        """Read to the end; return the exit code."""
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        while self._read(deadline):
            pass
        try:
            return self.process.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end:\n{self.said}", pytrace=False)

    def _read(self, deadline):
        """Read what is there, or wait for it; tell whether there will be more."""
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.here], [], [], left)[0]:
            return False
        try:
            read = os.read(self.here, 65536)
        except OSError as error:  # EIO: nobody has the other end open
            if error.errno != errno.EIO:
                raise
            read = b""
        self.said += read.decode("utf-8", "replace")
        return bool(read)


@pytest.fixture
def terminal():
    """Give a function that starts a clone's script on a terminal, see `Terminal`."""
    with contextlib.ExitStack() as started:

        def start(clone, script, *words, **streams):
            command = clone.command(script, *words)
            opened = Terminal(command, env=clone.environment, cwd=clone.root, **streams)
            return started.enter_context(opened)

        yield start
