"""The table of known messages: each entry is true for what it matches, and silent otherwise."""

import gzip
import io
import re
from pathlib import Path

import pytest

from extras.explain.explain import load_messages
from extras.explain.log_scan import Scan
from lib import ROOT
from lib.configuration.schema import KEYS
from lib.configuration.stacks import load_stack
from lib.configuration.tables import read_toml

MESSAGES = load_messages()
FOLDER = Path(ROOT, "messages")
LINES = read_toml(FOLDER / "examples.toml", "examples.toml")
EXAMPLES = [(each, line) for each in MESSAGES for line in LINES[each.topic]]
REPORTED = read_toml(FOLDER / "reported.toml", "reported.toml")["messages"]
HEALTHY = sorted((FOLDER / "healthy").glob("*.log.gz"))
HARMLESS = [
    line
    for line in (FOLDER / "healthy" / "lines.txt").read_text().splitlines()
    if not line.startswith("## ")
]
LABELS = ("", " 3: ", "12: [rank 5] ", "[rank0]: ")
STEPS = "".join(f"step {n}/400  loss 2.5\n" for n in range(60))


def scanned(log):
    scan = Scan(MESSAGES)
    scan.read(io.BytesIO(log if isinstance(log, bytes) else log.encode()))
    return scan


def scanned_one_by_one(logs):
    """Give the findings of each log, read as another attempt of one job.

    Of these only the last one counts. To prepare a Scan takes longer than to read a line.
    """
    scan = Scan(MESSAGES)
    for log in logs:
        scan.read(io.BytesIO(b"longship: run /r/1-a\n" + log.encode() + b"\n"))
        yield scan.findings


def test_each_example_is_known_as_its_own_message_and_nothing_else():
    told = {}
    lines = (f" 3: {line}" for _, line in EXAMPLES)
    for (message, line), findings in zip(EXAMPLES, scanned_one_by_one(lines)):
        found = [(each.message.topic, each.count, each.task) for each in findings]
        if found != [(message.topic, 1, "3")]:
            told[line] = found
    assert told == {}


def test_each_text_has_an_example():
    assert {*LINES} == {each.topic for each in MESSAGES} and all(LINES.values())
    for message in MESSAGES:
        for text in message.text:
            assert any(text in line for line in LINES[message.topic]), (message.topic, text)


def test_reported_messages_are_told_rightly_or_not_at_all():
    wrong = {}
    for each, findings in zip(REPORTED, scanned_one_by_one(each["log"] for each in REPORTED)):
        topics = [found.message.topic for found in findings]
        if [*dict.fromkeys(topics)] != each["topics"]:
            wrong[each["source"]] = topics
    assert wrong == {}


@pytest.mark.parametrize("label", LABELS)
def test_no_line_of_a_healthy_run_is_in_the_table(label):
    """As the only line of a log: alone, without the steps that follow it in a healthy run."""
    lines = [f"{label}{each}" for each in HARMLESS]
    found = zip(lines, scanned_one_by_one(lines))
    assert [line for line, findings in found if findings] == []


@pytest.mark.parametrize("label", LABELS)
def test_no_word_on_a_run_that_goes_on_after_what_looks_bad(label):
    steps = "".join(f"{label}{each}\n" for each in STEPS.splitlines())
    bad = [line for line in HARMLESS if scanned(f"{label}{line}\n{steps}").is_failure]
    assert bad == []


@pytest.mark.parametrize("label", ["", "3: ", "[rank3]: "])
def test_message_is_told_at_the_end_of_a_run_and_not_at_the_start_of_one_that_goes_on(label):
    steps = "".join(f"{n % 2}: step {n // 2}/400  loss 2.5\n" for n in range(60))
    wrong = []
    for message, line in EXAMPLES:
        if scanned(f"{label}{line}\n{steps}").is_failure:
            wrong.append(line)
        (found,) = scanned(f"{steps}{label}{line}\n").findings
        if found.message.topic != message.topic:
            wrong.append(line)
    assert wrong == []


@pytest.mark.parametrize("path", HEALTHY, ids=lambda each: each.name)
def test_no_word_on_the_log_of_a_successful_run(path):
    log = gzip.decompress(path.read_bytes())
    assert not scanned(log).is_failure
    lines = sorted({*log.decode(errors="replace").splitlines()})
    found = zip(lines, scanned_one_by_one(lines))
    assert [line for line, findings in found if findings] == []


def test_there_are_logs_of_20_successful_runs():
    said = (FOLDER / "healthy" / "README.md").read_text()
    assert len(HEALTHY) >= 20 and all(f"`{each.name}`" in said for each in HEALTHY)


def test_no_healthy_line_ends_a_run():
    """By the patterns for which the watcher of a job ends a step; each has an example."""
    finals = [each for each in MESSAGES if each.final]
    for each in finals:
        assert any(re.search(each.final, line) for line in LINES[each.topic]), each.topic
    final = re.compile("|".join(each.final for each in finals))
    lines = [*HARMLESS]
    for path in HEALTHY:
        lines += gzip.decompress(path.read_bytes()).decode(errors="replace").splitlines()
    assert [line for line in lines if final.match(line)] == []


def test_lines_of_this_repository_are_not_in_the_table(root):
    files = [root / "train.py", root / "preprocess_data.py", root / "configuration.toml"]
    for path in [*files, *root.glob("*/*.sbatch")]:
        assert scanned(path.read_bytes()).findings == [], path


def test_entries_are_complete_and_named_once(root):
    topics = [each.topic for each in MESSAGES]
    assert len({*topics}) == len(topics)
    for each in MESSAGES:
        assert each.cause and each.fix
        assert not each.source or each.source.startswith("https://")


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
