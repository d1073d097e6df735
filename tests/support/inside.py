"""Run commands inside the project's environment, the way a user does."""

import json
import subprocess
import sys

from support import processes

# It becomes each program that a line of its input names, in a copy of itself.
COPIES = """
import json, os, runpy, sys, traceback
for line in sys.stdin:
    argv, env, *files = json.loads(line)
    copy = os.fork()
    if copy:
        print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), flush=True)
        continue
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(env)
    sys.argv, sys.path[0], code = argv, os.path.dirname(argv[0]), 0
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)
"""


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


class Copies:
    """Runs Python programs inside the environment that import what takes seconds each time.

    Each runs in a copy of one process that has imported these modules already.
    """

    def __init__(self, inside, folder, *modules, env=None):
        self._files = [folder / "standard output", folder / "standard error"]
        code = f"import {', '.join(modules)}\n{COPIES}"
        self._process = inside.start("python", "-c", code, env=env, stdin=subprocess.PIPE)

    def __call__(self, *argv, env=None, check=True):
        """Run a program with its arguments to its end and return its CompletedProcess."""
        __tracebackhide__ = True
        argv, files = list(map(str, argv)), map(str, self._files)
        self._process.stdin.write(json.dumps([argv, env or {}, *files]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._process.communicate()[1]
        output, errors = (each.read_text(errors="surrogateescape") for each in self._files)
        assert not check or answer == "0\n", errors
        return subprocess.CompletedProcess(argv, int(answer), output, errors)

    def end(self):
        """End the process."""
        self._process.communicate()
