"""Run commands inside the project's environment, the way a user does."""

import sys

from support import processes


class Inside:
    """Runs commands inside the project's environment, with the runtime `host`."""

    def __init__(self, root, environment):
        self._command = [sys.executable, root / "container_run.py"]
        self.environment = environment

    def __call__(self, *argv, env=None, check=True, timeout=600, cwd=None):
        """Run a command to its end and return its CompletedProcess; `env` is added."""
        __tracebackhide__ = True
        return processes.run(
            [*self._command, *argv],
            env={**self.environment, **(env or {})},
            check=check,
            timeout=timeout,
            cwd=cwd,
        )

    def start(self, *argv, env=None, cwd=None):
        """Start a command and return its Popen, the leader of a process group of its own."""
        return processes.start(
            [*self._command, *argv], env={**self.environment, **(env or {})}, cwd=cwd
        )
