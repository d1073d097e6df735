"""The one place where processes are started."""

import os
import signal
import sys

import pytest
from support import processes

from lib.script.errors import LongshipError
from lib.script.execute import read_output, succeeds, write_file

BECOME = """
import json, os, sys
from lib.script.execute import become
script, environ = json.loads(sys.argv[1])
become(script, "a name", [os.fsdecode(os.fsencode(each)) for each in sys.argv[2:]], environ)
"""


@pytest.fixture
def become(root):
    """Give a function that runs a script in place of a Python process."""
    import json

    def start(script, *arguments, environ=None, path=processes.PATH, **options):
        environ = {"PATH": path, **(environ or {})}
        command = [sys.executable, "-c", BECOME, json.dumps([script, environ]), *arguments]
        env = {"PATH": path, "PYTHONPATH": str(root), "LC_ALL": "C.UTF-8"}
        return processes.run(command, env=env, cwd="/", **options)

    return start


def test_script_gets_the_arguments_as_they_are(become, hostile_arguments):
    done = become('printf "%s\\0" "$@"', *hostile_arguments)
    assert done.stdout.split("\0")[:-1] == hostile_arguments


LONG = """
import os
from lib.script.execute import become
text = f'# {"x" * 140_000}\\nprintf "%s\\\\n" "$0" "$@"; cat; set -u; exit 7'
become(text, "a name", ["a", "b c"], os.environ)
"""


def test_script_may_be_longer_than_an_argument(root):
    env = {"PATH": processes.PATH, "PYTHONPATH": str(root)}
    done = processes.run([sys.executable, "-c", LONG], env=env, input="read", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "a name\na\nb c\nread", "")


def test_script_knows_its_name(become):
    assert become('echo "$0"').stdout == "a name\n"


def test_exit_code_is_the_scripts(become):
    assert become("exit 7", check=False).returncode == 7


def test_environment_is_the_one_given(become):
    done = become("env -0", environ={"A": "a\nb", "É": "x"})
    found = dict(each.split("=", 1) for each in done.stdout.split("\0")[:-1])
    assert found["A"] == "a\nb" and found["É"] == "x"
    assert "PYTHONPATH" not in found


def test_signals_that_python_ignores_are_not_ignored(become):
    done = become("sed -n 's/^SigIgn:[[:space:]]*//p' /proc/self/status")
    ignored = int(done.stdout, 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_bash_that_is_not_there_is_told(become):
    done = become("true", path="/no such folder", check=False)
    assert "LongshipError: cannot start bash" in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["true"], True),
        (["false"], False),
        (["/no/such/program"], False),
        (["no such program"], False),
        (["/"], False),
        (["sh", "-c", "kill -9 $$"], False),
    ],
)
def test_success_is_told_without_an_exception(command, expected):
    assert succeeds(command) is expected


def test_command_that_is_tried_makes_no_sound_and_reads_nothing(capfd):
    assert succeeds(["sh", "-c", "echo x; echo y >&2; ! read -r line"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "seconds", "expected"),
    [
        (["sh", "-c", "echo out; printf '\\377' >&2; exit 3"], 60, ("out\n\udcff", 3)),
        (["sleep", "1000"], 1, ("", 124)),
        (["/no/such/program"], 60, ("", 127)),
    ],
)
def test_output_and_exit_code_of_a_command(command, seconds, expected):
    assert read_output(command, seconds) == expected


# The signal comes before Python knows that the program has begun: its start is made to wait for it.
INTERRUPTED = """
import os, signal, subprocess, sys, threading, time
from lib.script import execute

class Slow(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        while not interrupted:
            time.sleep(0.02)
        time.sleep(0.5)

def interrupt(*_):
    interrupted.append(True)
    sys.exit(3)

def look():
    for number in range(3):  # the end of the first one must not start the second
        execute.read_output(["sleep", "1000"], 900)

interrupted = []
signal.signal(signal.SIGTERM, interrupt)
subprocess.Popen = Slow
if sys.argv[1] == "thread":
    threading.Thread(target=look, daemon=True).start()
    time.sleep(1000)
look()
"""


@pytest.mark.parametrize("caller", ["main", "thread"])
def test_program_that_is_being_started_ends_with_this_process(root, caller):
    env = {"PATH": processes.PATH, "PYTHONPATH": str(root)}
    done = processes.run([sys.executable, "-c", INTERRUPTED, caller], env=env, check=False)
    (started,) = done.stdout.split()
    assert (done.returncode, done.stderr) == (3, "")
    assert not os.path.exists(f"/proc/{started}")


def test_script_is_written_to_run(tmp_path, run):
    file = tmp_path / "it's a launcher"
    write_file(file, "#!/usr/bin/env bash\nprintf '%s' \"$1\"\n", 0o755)
    assert run([file, "a b"]).stdout == "a b"
    assert list(tmp_path.glob("*launcher*")) == [file]


def test_written_script_replaces_the_old_one_whole(tmp_path):
    file = tmp_path / "launcher"
    file.write_text("an old one")
    held = file.open()
    write_file(file, "a new one", 0o755)
    assert file.read_text() == "a new one"
    assert held.read() == "an old one"  # what is running keeps its own
    held.close()


def test_bytes_that_are_no_utf8_are_written_as_they_are(tmp_path):
    write_file(tmp_path / "launcher", os.fsdecode(b"# \xff\n"), 0o755)
    assert (tmp_path / "launcher").read_bytes() == b"# \xff\n"


def test_folder_that_cannot_be_written_to_is_told(read_only_folder):
    with pytest.raises(LongshipError, match="cannot write .*/launcher"):
        write_file(read_only_folder / "launcher", "x", 0o755)
    assert list(read_only_folder.iterdir()) == []


def test_missing_folder_is_told(tmp_path):
    with pytest.raises(LongshipError, match="No such file or directory"):
        write_file(tmp_path / "none/launcher", "x", 0o755)


def test_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "launcher").mkdir()
    with pytest.raises(LongshipError):
        write_file(tmp_path / "launcher", "x", 0o755)
    assert list(tmp_path.iterdir()) == [tmp_path / "launcher"]
