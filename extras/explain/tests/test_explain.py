"""What is told of a log, in which order, and of which log nothing."""

import io
import json
import os
import re
import sys

import pytest

from extras.explain import log_scan
from extras.explain.explain import explain, load_messages
from extras.explain.log_scan import Scan
from lib.script.errors import LongshipError

MESSAGES = load_messages()
RUN = "longship: run /r/1-a\n"
FULL = "OSError: [Errno 28] No space left on device\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
ENDED = "srun: error: node2: task 3: Exited with exit code 1\n"


def scanned(log):
    scan = Scan(MESSAGES)
    scan.read(io.BytesIO(log if isinstance(log, bytes) else log.encode()))
    return scan


def topics(log):
    return [each.message.topic for each in scanned(log).findings]


@pytest.fixture
def told(tmp_path, capsys):
    """Give a function that returns what `doctor.py explain` prints about a log."""

    def lines(log):
        (tmp_path / "a.log").write_text(log)
        explain(str(tmp_path / "a.log"), lambda: None, as_json=False)
        return capsys.readouterr().out.replace(f"{tmp_path}/", "")

    return lines


def explained(capsys, log, paths=None):
    explain(str(log), lambda: paths, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_causes_come_before_what_follows_from_them():
    log = (
        "[rank1]: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
        f" 1: {FULL} 2: {MEMORY} 4: {FULL}"
        "srun: error: n1: task 2: Terminated\nsrun: error: n1: task 1: Exited with exit code 1\n"
    )
    scan = scanned(log)
    found = [(each.message.topic, each.line, each.count, each.task) for each in scan.findings]
    assert found == [
        ("disk full", 2, 2, "1"),
        ("out of GPU memory", 3, 1, "2"),
        ("NCCL timeout", 1, 1, "1"),
    ]
    assert scan.first.who == "task 1 on n1: Exited with exit code 1"


def test_only_the_last_attempt_of_a_job_counts():
    assert topics(f"{RUN}{FULL}{RUN}{MEMORY}") == ["out of GPU memory"]
    assert topics(f"{FULL}{RUN}{FULL}") == ["disk full"]
    same = scanned(f"{RUN}0: my error\n0: CustomError: odd\n" * 2)
    assert same.first.failure.line == 6


def test_lines_that_differ_only_in_numbers_are_told_apart_where_it_matters():
    line = "python exits with return code = -%d\n"
    log = line % 1 * 1000 + line % 9 + line % 1 * 1000 + line % 9
    first, second = scanned(log).findings
    assert (first.message.topic, first.line, first.count) == ("killed", 1001, 2)
    assert (second.message.topic, second.line, second.count) == ("another rank died", 1, 2000)


LOST = "2: torch.distributed.DistNetworkError: Connection reset by peer\n"
DIED = "3: torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"


@pytest.mark.parametrize(
    ("log", "order"),
    [
        (f"{LOST}{DIED}3:   exitcode  : -9 (pid: 7)\n3: Signal 9 (SIGKILL)\n", "killed"),
        (f"{LOST}{DIED}1: Segmentation fault (core dumped)\n", "crash"),
        # Slurm kills what does not end after a rank has failed
        (f"{DIED}{LOST}{ENDED}srun: error: node1: task 0: Killed\n", "store lost"),
    ],
    ids=range(3),
)
def test_strongest_consequence_comes_first(log, order):
    found = {order: None, "store lost": None, "another rank died": None, "killed": None}
    assert topics(log) == [each for each in found if each in topics(log)]


ANNOUNCED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
TERMINATED = (
    "2: Traceback (most recent call last):\n"
    '2:   File "/s/train.py", line 6, in wait\n'
    "2: torch.distributed.elastic.SignalException: Process 7 got signal: 15\n"
)
OVER = "slurmstepd-n1: error: *** JOB 15 ON n1 CANCELLED AT 2026-11-29T13:30:14{} ***\n"
AFTER = (
    f"0: slurmstepd-n1: error: *** STEP 15.0 ON n1 CANCELLED AT 2026-11-29T13:30:14 ***\n{LOST}"
    "srun: error: n2: task 2: Exited with exit code 1\nsrun: error: n1: task 1: Bus error\n"
)
END = f"{ANNOUNCED}{TERMINATED}{OVER}{AFTER}"  # as Slurm 22.05 prints it
STEPS = "step 1\nstep 2\nstep 3\n"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=15.0\n"


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (f"2: step 7\n{END.format('')}", ["problem  job cancelled"]),
        (END.format(" DUE TO TIME LIMIT"), ["problem  time limit"]),
        (END.format(" DUE TO PREEMPTION"), ["problem  preempted"]),
        (END.format("") + "1: stopped by a signal\n" * 99, ["problem  job cancelled"]),
        (END.format("") + OOM, ["problem  job cancelled", "problem  out of memory"]),
        (
            f"1: {FULL}{OOM}",
            ["problem  out of memory", "first to fail: task 1", "problem  disk full"],
        ),
        # why somebody has cancelled it
        (
            f"3: {MEMORY}{END.format('')}",
            ["problem  job cancelled", "first to fail: task 3", "problem  out of GPU memory"],
        ),
        (
            f"CustomError: odd\n{END.format('')}",
            ["problem  job cancelled", "first error"],
        ),
        # an earlier step, and the log of another job
        (
            f"{ANNOUNCED}{STEPS}1: {FULL}{OVER.format('')}",
            ["problem  job cancelled", "first to fail: task 1", "problem  disk full"],
        ),
        (
            f"{END.format('')}{STEPS}1: {FULL}",
            ["first to fail: task 1", "problem  disk full"],
        ),
    ],
    ids=range(10),
)
def test_what_slurm_says_of_the_end_comes_first(log, shown, told):
    form = r"^(first error|first to fail: task \d|(?:problem|follows)  [^:]*)"
    assert re.findall(form, told(log), re.MULTILINE) == shown


def test_large_log_of_any_bytes_is_read_in_blocks():
    line = b"step 1 loss 2.5 \xff\xfe\x00\r" * 20 + b"\n"
    log = line * 20000 + b"x: \x1b[31m No space left on device \xc3\x28\n"
    log += b"x: \x1b[31m: No space left on device \xc3\x28\n"
    scan = scanned(log)
    (found,) = scan.findings
    assert (found.line, scan.lines) == (20002, 20002)
    assert "\x1b" not in found.line_text


@pytest.mark.parametrize("piece", [b"a", b" ", b"(", b"*** JOB ", b"error: ", b"mount source "])
def test_line_without_end_is_searched_to_its_end(piece, root, run, tmp_path):
    (tmp_path / "log").write_bytes(piece * ((5 << 18) // len(piece)) + b"\r" + FULL.encode())
    script = [sys.executable, root / "doctor.py", "explain", tmp_path / "log", "--json"]
    said = json.loads(run(script, timeout=100).stdout)  # the limit is for a hang
    assert [each["topic"] for each in said["findings"]] == ["disk full"]


TRACE = """Traceback (most recent call last):
  File "/s/train.py", line 7, in <module>
    main()
  File "/s/model.py", line 99, in forward
    raise OSError('No space left on device')
"""


@pytest.mark.parametrize(
    "label", ["", "[rank0]: ", " 3: ", "3: [rank 5] ", "3: [rank 5] [rank5]: "]
)
def test_first_error_that_is_not_in_the_table_is_shown_with_its_place(label, told):
    trace = "".join(f"{label}{line}\n" for line in f"{TRACE}m.OddError: so odd".splitlines())
    said = told(f"{label}fine\n{trace}")
    assert "first error (not in the table): a.log, line 2\n" in said
    assert "\n         m.OddError: so odd\n         raised in /s/model.py, line 99\n" in said
    assert "problem" not in said and "fix:" not in said


def test_first_error_is_that_of_the_rank_that_failed_first(told):
    said = told(
        f"1: {RUN}2: step 1\n2: ValueError: survived\n2: step 2\n"
        "1: RuntimeError: lost them\n3: CustomError: the first\n2: FatalError: later\n"
        "srun: error: node1: task 1: Terminated\nsrun: error: node2: task 3: Exited with code 1\n"
        "RuntimeError: Broken pipe\n"
    )
    assert "first to fail: task 3 on node2: Exited with code 1\n" in said
    assert "line 6\n         CustomError: the first\n" in said
    assert "survived" not in said and "problem" not in said
    assert "follows  store lost: line 10" in said


def test_harmless_names_of_groups_do_not_hide_the_cause():
    groups = "groups: cannot find name for group ID 20065\n" * 2
    assert topics(f"{groups}[rank1]: {MEMORY}") == ["out of GPU memory"]
    assert topics(f"{groups}ModuleNotFoundError: No module named 'x'\n") == ["package missing"]
    assert not scanned(groups).is_failure


def test_message_of_our_own_programs_wins_with_its_own_hint(told):
    said = told(
        f"0: {FULL}3: error: data not found: /d\n0: else\n3: hint: python3 preprocess_data.py\n"
    )
    first = said[said.index("problem") :].splitlines()
    assert first[0] == "problem  message with a hint: line 2, task 3"
    assert first[2:4] == ["         data not found: /d", "    fix: python3 preprocess_data.py"]
    assert "problem  disk full: line 1, task 0" in said
    # the end of the job reports what it could not do after the step had failed
    late = f"0: {FULL}{ENDED}error: Slurm does not requeue the job: x\nhint: type y\n"
    assert topics(late) == ["disk full", "message with a hint"]


def test_what_is_killed_is_told_with_the_memory_that_was_measured(told, tmp_path):
    said = told("python: step 5\nsrun: error: node2: task 3: Killed\n")
    assert "perhaps for lack of memory, perhaps by somebody." in " ".join(said.split())
    assert "out of memory" not in said
    (tmp_path / "record.json").write_text('{\n  "cpu_peak_memory_mib": "2048"\n}\n')
    said = told(f"longship: run {tmp_path}\nsrun: error: node2: task 3: Killed\n")
    assert "The node with the most used 2.0 GiB." in " ".join(said.split())


@pytest.mark.parametrize("label", ["", "[rank0]: ", " 3: "])
def test_code_that_a_traceback_quotes_is_not_taken_for_a_message(label):
    log = "".join(f"{label}{line}\n" for line in f"{TRACE}ValueError: odd".splitlines())
    assert topics(log) == []


@pytest.mark.parametrize(
    "log",
    [
        f"Exception ignored in: <function f at 0x7f00>\n{TRACE}{FULL}done\n",
        f"--- Logging error ---\n{TRACE}{FULL}",
        f"WARNING: {FULL}",
        f'{{"message": "{FULL}"}}',
        FULL + "all is well\n" * 25,
        f"{TRACE}{FULL}" + "all is well\n" * 25,
        f"3: {FULL}" + "".join(f"3: step {n}\n" for n in range(25)),
        "ERROR: this is only a resolver's note\nSuccessfully installed x\n",
        "srun: error: node1: task 0: Exited with exit code 1\nagain\n" + "working\n" * 30,
        f"{TRACE}{FULL}" + "\r".join(f" {n}%|#  | {n}/100 [00:01<00:02]" for n in range(30)),
        # the job script ends what it has started beside the training
        "done\nslurmstepd: error: *** STEP 7.1 ON node1 CANCELLED AT 2026-01-02T03:04:05 ***\n"
        "srun: error: node1: task 0: Terminated\nsrun: Force Terminated StepId=7.1\n",
    ],
)
def test_no_word_on_what_the_program_survived(log, told):
    assert told(log).startswith("nothing to explain in the ")


def test_errors_of_a_program_that_went_on_are_not_the_first_error():
    went_on = "loss 2.5, as it should\n" * 30
    log = f"fatal: not a git repository\n{went_on}{TRACE}OddError: odd\n"
    assert scanned(log).first.failure.error().text == "OddError: odd"
    ranks = "".join(f"{n}: fatal: not a git repository\n" for n in range(8))
    ranks += "".join(f"{n}: loading file {file}\n" for file in range(9) for n in range(8))
    log = f"{ranks}5: OddError: odd\n{ENDED}"
    assert scanned(log).first.failure.error().text == "OddError: odd"


def test_line_after_which_a_script_goes_on_is_not_the_cause():
    log = "job: line 2: nvidia-smi: command not found\n"
    log += "squeue: error: Unable to contact slurm controller\n"
    assert topics(f"{log}python: can't open file 'x'\n{ENDED}") == []


def test_what_is_missing_is_named(capsys, tmp_path):
    (tmp_path / "log").write_text("ModuleNotFoundError: No module named 'yaml.x'\n")
    (found,) = explained(capsys, tmp_path / "log")["findings"]
    assert found["text"] == "Python finds no module of this name: yaml.x"


def test_text_fits_80_columns_and_has_no_colours(script, tmp_path):
    words = " ".join(["word"] * 40)
    (tmp_path / "log").write_text(f"OSError: {words}: No space left on device\n{ENDED}")
    said = script("doctor.py", "explain", tmp_path / "log").stdout
    assert "\x1b" not in said and "problem  disk full" in said
    assert all(len(line) <= 80 for line in said.splitlines())


def test_standard_input_folder_of_a_run_and_missing_log(repository, capsys, script, tmp_path):
    done = script("doctor.py", "explain", "-", "--json", input=FULL)
    assert json.loads(done.stdout)["log"] == "standard input"
    _, paths = repository.settings_and_paths()
    (tmp_path / "log").write_text(FULL)
    folder = tmp_path / "7-train"
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps({"log": str(tmp_path / "log")}))
    assert explained(capsys, folder, paths)["findings"][0]["line"] == 1
    with pytest.raises(LongshipError, match="log not found: nope") as error:
        explain("nope", lambda: paths, as_json=False)
    assert error.value.hint


def test_log_that_cannot_be_looked_at_is_told(repository, unseen, tmp_path):
    _, paths = repository.settings_and_paths()
    with pytest.raises(LongshipError, match="log not found: /x"):
        explain(unseen, lambda: paths, as_json=False)
    (tmp_path / "record.json").write_text(json.dumps({"log": unseen}))
    with pytest.raises(LongshipError, match="no log recorded"):
        explain(str(tmp_path), lambda: paths, as_json=False)


def test_of_a_large_file_the_end_is_searched_and_that_is_told(capsys, monkeypatch, tmp_path):
    end = 1 << 22  # a few blocks
    monkeypatch.setattr(log_scan, "END", end)
    line, log = "step 1 loss 2.5 of all the others\n", tmp_path / "a log"
    lines = 2 * end // len(line)
    log.write_text(f"{RUN}{FULL}{line * lines}{MEMORY}")
    found = explained(capsys, log)
    assert 1 < found["not_searched"] < found["lines"] == lines + 3
    (only,) = found["findings"]
    assert (only["topic"], only["line"]) == ("out of GPU memory", lines + 3)
    explain(str(log), lambda: None, as_json=False)
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == f"not searched: the first {found['not_searched']} lines of a large log"
    assert said[-1] == f"to search all lines: python3 doctor.py explain - <'{log}'"


def test_fifo_is_not_waited_for(script, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    done = script("doctor.py", "explain", tmp_path / "fifo", check=False)
    error, hint = done.stderr.splitlines()
    assert error == f"error: cannot read {tmp_path}/fifo: it is not a regular file"
    assert hint.endswith(f"doctor.py explain - <{tmp_path}/fifo")
