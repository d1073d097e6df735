"""Run commands inside the project's environment, the way a user does."""

import subprocess
import sys

from support import processes
from support.forks import SERVER, Copies


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

    def start(self, *argv, env=None, **options):
        """Start a command and return its Popen, the leader of a process group of its own."""
        environment = {**self.environment, **(env or {})}
        return processes.start([*self._command, *argv], env=environment, **options)


class CopiesInside(Copies):
    """Runs Python programs inside the environment that import what takes seconds each time."""

    def __init__(self, inside, folder, *modules, env=None):
        words = ["python", "-c", SERVER, folder, *modules]
        super().__init__(inside.start(*words, env=env, stdin=subprocess.PIPE, stderr=None), folder)

    def __call__(self, *argv, env=None, check=True):
        """Run a program with its arguments to its end; `env` is added."""
        __tracebackhide__ = True
        argv = list(map(str, argv))
        return self.become(argv, env=env or {}, cwd=self._folder, whole=False, check=check)
