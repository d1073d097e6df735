"""The task that failed first, and what is shown of its output."""

import pytest

from extras.explain.explain import explain

NOISE = "0: [W101 socket.cpp:1] nothing of interest\n"
ENDED = "srun: error: node1: task 99: Exited with exit code 1\n"
TRACEBACK = (
    "1: [rank 6] Traceback (most recent call last):\n"
    '1: [rank 6]   File "train.py", line 1\n'
    "0: [rank 2] RuntimeError: connection closed by peer\n"
    "1: [rank 6] CustomError: no data\n"
    "0: [rank 2] more of it\n"
    "srun: error: node2: task 1: Exited with exit code 1\n"
    "srun: error: node1: task 0: Terminated\n"
)
SHOWN = [
    "first to fail: task 1, rank 6, on node2: Exited with exit code 1",
    "  Traceback (most recent call last):",
    '    File "train.py", line 1',
    "  CustomError: no data",
]


@pytest.fixture
def explained(tmp_path, capsys):
    """Give a function that returns what `doctor.py explain --quiet` prints about a log."""

    def lines(log):
        path = tmp_path / "a log"
        path.write_bytes(log if isinstance(log, bytes) else log.encode())
        explain(str(path), lambda: None, as_json=False, quiet=True)
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (NOISE + TRACEBACK, SHOWN),
        (f"longship: run /r/1-x\n0: error: before\nlongship: run /r/1-x\n{TRACEBACK}", SHOWN),
        # the end of the job has added its explanation, which is no output of a task
        (f"{TRACEBACK}longship: explanation of the failure\n3: error: quoted\nBus error\n", SHOWN),
        (
            f"10: FATAL: could not lift it\n10: more\n{ENDED}",
            ["first to fail: task 10", "  FATAL: could not lift it", "  more"],
        ),
        # the rank's label is part of the label: lines of other ranks of the task are left out
        (
            f"1: error: x\n1: [rank 6] y\n1: z\n11: a\n{ENDED}",
            ["first to fail: task 1", "  error: x", "  z"],
        ),
        (NOISE, []),
        ("", []),
    ],
)
def test_first_to_fail_is_shown_with_its_output(log, shown, explained):
    lines = explained(log)
    assert lines[: len(shown)] == shown
    assert shown or not lines
    assert not any("bus error" in each for each in lines)


def test_task_that_slurm_terminated_did_not_fail_first(explained):
    ends = "srun: error: node1: task 0: Terminated\nsrun: error: node3: tasks 7-9: Killed\n"
    assert explained(f"  7: doing well\n{ends}")[0] == "first to fail: task 7 on node3: Killed"


def test_failure_is_found_in_the_blocks_of_a_large_log(explained):
    noise = "".join(f"{n % 8}: step {n} loss 2.5\n" for n in range(150_000))
    lines = "".join(f"0: {each}\n" for each in ["error: x", *(f"  {n}" for n in range(2100))])
    assert explained(noise + lines + ENDED)[:3] == ["first to fail: task 0", "  error: x", "    0"]


def test_long_output_is_cut(explained):
    lines = explained("0: error: x\n" + "0:   more\n" * 100 + ENDED)
    assert lines.count("    more") == 39


CHAINED = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize("frames", [10, 16, 17, 18, 19, 20, 100, 900])
@pytest.mark.parametrize("chained", [False, True])
def test_error_at_the_end_of_a_long_traceback_is_shown(frames, chained, explained):
    calls = "".join(f'  File "a.py", line {n}\n    call({n})\n' for n in range(frames))
    text = f"Traceback (most recent call last):\n{calls}CustomError: the cause\n\nof two lines\n"
    if chained:
        text = f"Traceback (most recent call last):\n  x\nKeyError: 1{CHAINED}{text}"
    after = "Traceback (most recent call last):\n  torchrun's\nChildFailedError: rank 0\n" * 30
    log = "".join(f"0: {line}\n1: other\n" for line in (text + after).splitlines())
    lines = [each for each in explained(log) if each.startswith("  ")][:40]
    assert lines[0] == "  Traceback (most recent call last):"
    assert {"  CustomError: the cause", "  of two lines", f"      call({frames - 1})"} <= {*lines}
    cut = [line for line in lines if line.startswith("  ... (")]
    assert bool(cut) == (len(text.splitlines()) > 37)
    if cut:
        left_out = int(cut[0].split("(")[1].split()[0])
        whole = [f"  {line}".rstrip() for line in (text + after).splitlines()]
        place = lines.index(cut[0])
        rest = [each.rstrip() for each in lines[place + 1 : 39]]
        assert rest == whole[place + left_out :][: len(rest)]


def test_bytes_of_any_kind_in_a_log_do_no_harm(explained):
    lines = explained(
        b"0: \xff\xfe\x1b[31m%s\n0: error: \xc3( `touch y`\x1b[2J\n\x00\n" + ENDED.encode()
    )
    assert lines[:2] == ["first to fail: task 0", "  error: \ufffd( `touch y`?[2J"]
