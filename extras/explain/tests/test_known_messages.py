"""The table of known messages, and how a log is searched for them."""

import gzip
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from extras.explain import log_scan
from extras.explain.explain import explain, load_messages
from extras.explain.log_scan import Scan
from lib import ROOT
from lib.configuration.schema import KEYS
from lib.configuration.stacks import load_stack
from lib.configuration.tables import read_toml
from lib.script.errors import LongshipError

MESSAGES = load_messages()
TEXTS = [each for each in MESSAGES if each.text]
FAMILIES = [each for each in MESSAGES if each.likely]
FOLDER = Path(ROOT, "messages")
LINES = read_toml(FOLDER / "examples.toml", "examples.toml")[0]
EXAMPLES = [(each, line) for each in TEXTS for line in LINES[each.topic]]
FAMILY_EXAMPLES = [(each.topic, line) for each in FAMILIES for line in LINES[each.topic]]
REPORTED = read_toml(FOLDER / "reported.toml", "reported.toml")[0]["messages"]
HEALTHY = sorted((FOLDER / "healthy").glob("*.log.gz"))


def scanned(path, data):
    path.write_bytes(data)
    scan = Scan(MESSAGES)
    with path.open("rb") as stream:
        scan.read(stream)
    return scan


def explained(capsys, log, paths=None):
    explain(str(log), lambda: paths, as_json=True)
    return json.loads(capsys.readouterr().out)


def scanned_one_by_one(logs):
    """Give the findings of each log, read as another attempt of one requeued job.

    Of these only the last one counts. To prepare a Scan takes longer than to read a line.
    """
    scan = Scan(MESSAGES)
    for log in logs:
        begin = scan.lines + 1  # the line that begins the attempt
        scan.read(io.BytesIO(b"longship: run /r/1-a\n" + log.encode() + b"\n"))
        yield [each._replace(line=each.line - begin) for each in scan.findings]


def test_each_example_is_known_as_its_own_message_and_nothing_else():
    told = {}
    for (message, line), findings in zip(
        EXAMPLES, scanned_one_by_one(f" 3: {line}" for _, line in EXAMPLES)
    ):
        found = [(each.message.topic, each.line, each.count, each.task) for each in findings]
        if found != [(message.topic, 1, 1, "3")]:
            told[line] = found
    assert told == {}


def test_each_example_is_known_as_its_family():
    told = {}
    for (topic, line), findings in zip(
        FAMILY_EXAMPLES, scanned_one_by_one(line for _, line in FAMILY_EXAMPLES)
    ):
        found = [(each.message.topic, each.line) for each in findings]
        if found != [(topic, 1)]:
            told[line] = found
    assert told == {}


def told(findings):
    """Return the topic told first, and the causes; '' and none where nothing is known."""
    causes = {each.message.topic for each in findings if not each.message.consequence}
    return next((each.message.topic for each in findings), ""), causes


def test_reported_messages_are_explained_and_none_wrongly():
    unknown = []
    for each, findings in zip(REPORTED, scanned_one_by_one(each["log"] for each in REPORTED)):
        first, causes = told(findings)
        expected = set(each["topics"])
        assert expected <= {message.topic for message in MESSAGES}, each["source"]
        assert first in expected | {""} and causes <= expected, (each["source"], first, causes)
        unknown += [each] * (not first)
    held_out = [each for each in REPORTED if each.get("held_out")]
    assert len(REPORTED) >= 150 and len(held_out) >= len(REPORTED) / 3
    collected = [each for each in REPORTED if each.get("held_out") or each.get("round")]
    assert not [each["source"] for each in unknown if each not in collected]
    assert len(unknown) <= len(held_out) / 10, [each["source"] for each in unknown]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda each: each.name)
def test_nothing_is_found_in_the_log_of_a_successful_run(path, tmp_path):
    log = gzip.decompress(path.read_bytes())
    assert told(scanned(tmp_path / "log", log).findings) == ("", set())


def test_there_are_logs_of_20_successful_runs():
    said = (FOLDER / "healthy" / "README.md").read_text()
    assert len(HEALTHY) >= 20 and all(f"`{each.name}`" in said for each in HEALTHY)


def test_each_text_and_each_family_has_an_example():
    assert {*LINES} == {each.topic for each in TEXTS + FAMILIES} and all(LINES.values())
    for message in TEXTS:
        for text in message.text:
            assert any(text in line for line in LINES[message.topic]), (message.topic, text)


def test_entries_are_complete_and_named_once(root):
    topics = [each.topic for each in MESSAGES]
    assert len(set(topics)) == len(topics) >= 120
    for each in MESSAGES:
        assert each.cause and each.fix
        assert not each.source or each.source.startswith("https://")
        assert all((root / site / "site.toml").is_file() for site in each.sites)


def test_no_successful_run_has_a_line_after_which_it_cannot_continue():
    for each in filter(lambda each: each.final, MESSAGES):
        for part in each.final.split("|"):
            assert any(re.search(part, line) for line in LINES[each.topic]), part
    final = re.compile("|".join(each.final for each in MESSAGES if each.final).encode())
    assert not [each for each in HEALTHY if final.search(gzip.decompress(each.read_bytes()))]


def test_fixes_name_commands_and_keys_that_exist(root, script):
    stacks = [path.parent.name for path in root.glob("stacks/*/stack.toml")]
    training = {name for stack in stacks for name in load_stack(root, stack).settings}
    commands = set()
    for each in MESSAGES:
        commands.update(re.findall(r"python3 (\w+\.py)([^;,]*)", each.fix))
        for key in re.findall(
            r"\b(?:project|container|packages|environment|jobs|paths)\.[a-z_]+", each.fix
        ):
            assert key in KEYS, (each.topic, key)
        for key in re.findall(r"\btraining\.([a-z_]+)", each.fix + each.cause):
            assert key in training, (each.topic, key)
    assert commands
    for called in {name for name, _ in commands}:
        shown = script(called, "--help").stdout
        for words in (words.split() for name, words in commands if name == called and words):
            # submit.py passes options of sbatch on
            if words and called != "submit.py" and re.fullmatch(r"-*[a-z]+", words[0]):
                assert words[0].lstrip("-") in shown, (called, words)


def test_causes_come_before_what_follows_from_them(tmp_path):
    log = (
        b"[rank1]: Watchdog caught collective operation timeout: WorkNCCL\n"
        b" 1: OSError: [Errno 28] No space left on device\n"
        b" 2: torch.OutOfMemoryError: CUDA out of memory.\n"
        b" 4: OSError: [Errno 28] No space left on device\n"
        b"srun: error: n1: task 2: Terminated\nsrun: error: n1: task 1: Exited with exit code 1\n"
    )
    scan = scanned(tmp_path / "log", log)
    found = [(each.message.topic, each.line, each.count, each.task) for each in scan.findings]
    assert found == [
        ("disk full", 2, 2, "1"),
        ("out of GPU memory", 3, 1, "2"),
        ("NCCL timeout", 1, 1, "1"),
    ]
    assert scan.first.who == "task 1 on n1: Exited with exit code 1"


def test_only_the_last_attempt_of_a_requeued_job_counts(tmp_path):
    log = b"longship: run /r/1-a\nDisk quota exceeded\nlongship: run /r/1-a\nBus error\n"
    assert [each.message.topic for each in scanned(tmp_path / "log", log).findings] == [
        "shared memory"
    ]


def test_attempt_that_fails_like_the_one_before_is_explained(tmp_path):
    """By its family too, for which a line that looks like an error is remembered."""
    attempt = b"longship: run /r/1-a\nmksquashfs command failed: exit status 1\n"
    (found,) = scanned(tmp_path / "log", attempt * 2).findings
    assert (found.message.topic, found.line) == ("image not built", 4)


def test_lines_that_differ_only_in_numbers_are_told_apart_where_it_matters(tmp_path):
    line = b"srun: error: n1: task 0: Exited with exit code %d\n"
    many, seen = line % 101 * (1 << 16), b"iteration %d | CUDA out of memory\n"
    log = seen % 1 + many + line % 137 + seen % 2 + many + line % 137
    first, second = scanned(tmp_path / "log", log).findings
    assert (first.message.topic, first.line, first.count) == ("out of GPU memory", 1, 2)
    assert (second.message.topic, second.line, second.count) == ("out of host memory", 65538, 2)


def test_large_log_of_any_bytes_is_read_in_blocks(tmp_path):
    line = b"step 1 loss 2.5 \xff\xfe\x00\r" * 20 + b"\n"
    log = line * 20000 + b"Bus error \xc3\x28\x1b[31m\n" + line * 20000
    scan = scanned(tmp_path / "log", log)
    (found,) = scan.findings
    assert (found.line, scan.lines) == (20001, 40001)
    assert "\x1b" not in found.line_text


@pytest.mark.parametrize("piece", [b"a", b" ", b"(", b"*** JOB ", b"AssocGrp", b"mount source "])
def test_line_without_end_is_searched_to_its_end(piece, root, run, tmp_path):
    (tmp_path / "log").write_bytes(piece * ((5 << 18) // len(piece)) + b"\rBus error\n")
    script = [sys.executable, root / "doctor.py", "explain", tmp_path / "log", "--json"]
    said = json.loads(run(script, timeout=200).stdout)  # the limit is for a hang
    assert "shared memory" in {each["topic"] for each in said["findings"]}


def test_harmless_text_is_not_taken_for_a_message(root, tmp_path):
    healthy = [
        root / "train.py",
        root / "preprocess_data.py",
        root / "configuration.toml",
        *root.glob("*/*.sbatch"),
    ]
    for path in healthy:
        found = scanned(tmp_path / "log", path.read_bytes()).findings
        others = [
            each.line_text
            for each in found
            if each.message.topic != "Longship's hint" and not each.message.likely  # for logs
        ]
        assert others == [], path


def test_what_is_missing_is_named(capsys, tmp_path):
    (tmp_path / "log").write_text("ModuleNotFoundError: No module named 'yaml.x'\n")
    (found,) = explained(capsys, tmp_path / "log")["findings"]
    assert "package that provides yaml to" in found["fix"]


def test_log_without_a_known_message(script, tmp_path):
    (tmp_path / "a log").write_text("fine\nmy error: odd\n")
    said = script("doctor.py", "explain", tmp_path / "a log").stdout
    assert "no known message in the 2 lines" in said and "my error: odd" in said
    assert f"next: sed -n 1,2p '{tmp_path}/a log'" in said


FRAMES = """Traceback (most recent call last):
  File "/s/train.py", line 7, in <module>
    main()
  File "/v/lib/python3.11/site-packages/transformers/trainer.py", line 99, in train
    raise ValueError
"""
LATER = "\nDuring handling of the above exception, another exception occurred:\n\n"
RICH = """╭───── Traceback (most recent call last) ─────╮
│ /s/train.py:7 in main                       │
│ ❱  7 │   run()                              │
╰─────────────────────────────────────────────╯
"""


@pytest.mark.parametrize(
    ("log", "line", "said"),
    [
        (f"fine\n{FRAMES}ValueError: odd\n", 7, "ValueError: odd"),
        (f"{FRAMES}KeyError: 'a'\n{LATER}{FRAMES}m.MyError: b\n", 15, "m.MyError: b"),
        (
            f"{FRAMES}ValueError: Caught ValueError in DataLoader worker process 0.\n"
            f"Original {FRAMES}AssertionError\n",
            12,
            "AssertionError",
        ),
        (f"{RICH}KeyError: 'a'\n", 5, "KeyError: 'a'"),
        (
            "".join(
                f"{rank}: {line}\n"
                for line in f"{FRAMES}ValueError: odd".splitlines()
                for rank in (3, 0)
            ),
            11,
            "ValueError: odd",
        ),
        (f"{FRAMES}RuntimeError: Broken pipe\n{FRAMES}ValueError: odd\n", 12, "ValueError: odd"),
        (f"{FRAMES}ValueError: odd\n{FRAMES}KeyError: 'a'\n", 6, "ValueError: odd"),
    ],
)
def test_exception_without_a_known_message_is_told_with_its_place(log, line, said, tmp_path):
    found = scanned(tmp_path / "log", log.encode()).findings[0]
    assert not found.message.text and (found.line, found.line_text) == (line, said)
    cause = found.filled(found.message.cause)
    assert "/s/train.py, line 7" in cause and "{" not in cause


def test_exception_without_the_head_of_its_traceback_is_explained_with_its_place(tmp_path):
    frames = FRAMES.split("\n", 1)[1].replace("transformers/trainer.py", "awq/quantizer.py")
    (found,) = scanned(tmp_path / "log", f"{frames}ValueError: odd".encode()).findings
    assert (found.message.topic, found.line) == ("quantization", 5)
    assert "/s/train.py, line 7" in found.filled("{where}")


@pytest.mark.parametrize(
    ("file", "topic"),
    [
        ("File /v/site-packages/awq/a.py:7, in f(x)\n", "quantization"),
        (
            '  File "/v/lib/python3.10/site-packages/torch/_inductor/a.py", line 7\n',
            "torch.compile failed",
        ),
        ('  File "/usr/lib/python3.10/multiprocessing/a.py", line 7\n', "workers and their limits"),
        ("", ""),
    ],
)
def test_exception_of_no_class_is_told_only_with_its_place(file, topic, tmp_path):
    found = scanned(tmp_path / "log", f"{file}Exception: \n".encode()).findings
    assert [each.message.topic for each in found] == [topic] * bool(topic)


def test_known_cause_comes_before_an_exception(tmp_path):
    log = f"{FRAMES}ValueError: odd\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0\n"
    assert [each.message.topic for each in scanned(tmp_path / "log", log.encode()).findings] == [
        "out of host memory"
    ]


def test_exception_that_a_package_caught_is_not_told(tmp_path):
    caught = FRAMES.replace("/s/train.py", "/v/lib/python3.11/site-packages/wandb/x.py")
    assert not scanned(tmp_path / "log", f"{caught}ValueError: odd\nfine\n".encode()).findings


@pytest.mark.parametrize("label", ["", "[rank0]: ", " 3: "])
def test_code_that_a_traceback_quotes_is_not_taken_for_a_message(label, tmp_path):
    log = FRAMES.replace("raise ValueError", "raise OSError('No space left on device')")
    log = "".join(f"{label}{line}\n" for line in f"{log}ValueError: odd".splitlines())
    assert scanned(tmp_path / "log", log.encode()).findings[0].line_text.endswith("ValueError: odd")


def test_assertion_without_a_text_is_explained_by_its_condition(tmp_path):
    log = f"{FRAMES.replace('raise ValueError', 'assert world_size % 4 == 0')}AssertionError\n"
    log = log.replace("/v/lib/python3.11/site-packages/transformers/trainer.py", "/s/model.py")
    (found,) = scanned(tmp_path / "log", log.encode()).findings
    assert found.line_text == "AssertionError: assert world_size % 4 == 0"
    assert (found.message.topic, found.line) == ("sizes of the job", 6)


def test_file_named_info_does_not_make_an_error_harmless(tmp_path):
    line = (
        b"FATAL:   While making image: packer failed to pack: a.egg-info/PKG-INFO: link: unpriv\n"
    )
    (found,) = scanned(tmp_path / "log", line).findings
    assert found.message.topic == "image not built"


def test_exception_names_the_lines_to_read(script, tmp_path):
    (tmp_path / "log").write_text(f"fine\n{FRAMES}ValueError: odd\n")
    said = script("doctor.py", "explain", tmp_path / "log").stdout
    assert "(trainer.py, line 99), called from" in " ".join(said.split())
    assert said.splitlines()[-1] == f"next: sed -n 1,7p {tmp_path}/log"


def test_text_fits_80_columns_and_has_no_colours(script, tmp_path):
    lines = "".join(f"{line}\n" for _, line in EXAMPLES)
    (tmp_path / "log").write_text(lines)
    said = script("doctor.py", "explain", tmp_path / "log").stdout
    assert "\x1b" not in said and said.count("problem  ") + said.count("follows  ") == len(TEXTS)
    assert all(len(line) <= 80 for line in said.splitlines())


def test_standard_input_folder_of_a_run_and_missing_log(repository, capsys, script, tmp_path):
    done = script("doctor.py", "explain", "-", "--json", input="Bus error\n")
    assert json.loads(done.stdout)["log"] == "standard input"
    _, paths = repository.settings_and_paths()
    (tmp_path / "log").write_text("Bus error\n")
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


@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_of_a_large_file_both_ends_are_searched_and_that_is_told(
    attempts, capsys, monkeypatch, tmp_path
):
    end = 1 << 22  # a few blocks
    monkeypatch.setattr(log_scan, "END", end)
    line, log = b"step 1 loss 2.5 of all the others\n", tmp_path / "a log"
    lines = 5 * end // 4 // len(line)
    with log.open("wb") as file:
        file.write(b"Disk quota exceeded\n")
        file.write(line * lines)
        file.write(b"CUDA out of memory\n" + b"longship: run /r/1-a\n" * attempts)
        file.write(line * lines + b"Bus error\n")
    found = explained(capsys, log)
    first, last = found["not_searched"]
    assert 1 < first < last < found["lines"] == 2 * lines + 3 + attempts
    named = {each["topic"]: each["line"] for each in found["findings"]}
    assert named.pop("shared memory") == found["lines"]
    assert list(named.values()) == ([] if attempts == 2 else [1])
    if attempts:  # as is said of any large file
        return
    explain(str(log), lambda: None, as_json=False)
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == f"not searched: lines {first} to {last} of a large log"
    assert said[-1] == f"to search all lines: python3 doctor.py explain - <'{log}'"


def test_fifo_is_not_waited_for(script, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    done = script("doctor.py", "explain", tmp_path / "fifo", check=False)
    error, hint = done.stderr.splitlines()
    assert error == f"error: cannot read {tmp_path}/fifo: it is not a regular file"
    assert hint.endswith(f"doctor.py explain - <{tmp_path}/fifo")
