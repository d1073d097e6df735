"""Model cards: what is known of a run, what is not, and that nothing is guessed or told."""

import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
import yaml
from support import processes
from support.secret_forms import FORMS, SHORT, secret_of

from extras.card import submit_card
from lib import ROOT
from lib.script.command import call

RECORD = {
    **{"job": "7", "name": "train", "stack": "pytorch", "machine": "local", "runtime": "apptainer"},
    **{"nodes": "1", "gpus": "4", "exit_code": "0", "image_sha256": "abc", "code": "/r/code-1.tar"},
    **{"started": "2026-01-02T03:00:00Z", "ended": "2026-01-02T04:00:00Z"},
    **{"gpu_hours": "4", "energy_kwh": "1.5", "measured_percent": "98.4"},
}
BEGIN = 1767322800  # 2026-01-02 03:00
SITE = '[machines.local]\ndescription = "a machine"\n'
FACTOR = 'co2 = { kg_per_kwh = 0.25, source = "https://example.org/2026" }\n'
STACK = """
[images]
cpu = "docker://example.org/lab/base:1"
[training]
data = { kind = "paths", default = [] }
train_dataset = { kind = "path", default = "" }
model = { kind = "path", default = "" }
note = { default = "" }
text = { kind = "path", step = "data", default = "/not/read/by/training" }
"""


class Runs:
    """Runs that a test makes up, in a repository of its own."""

    def __init__(self, repository, folder):
        self.repository, self.folder = repository, folder
        repository.write("stacks/pytorch/stack.toml", STACK)

    def make(self, name, arguments=(), steps=(), record=RECORD, **configuration):
        """Record a run; with the times of its steps it has results, in the directory gpt."""
        run = self.folder / "a scratch/runs" / name
        (run / "repositories").mkdir(parents=True)
        (run / "record.json").write_text(json.dumps(record, indent=2) + "\n")
        configuration["paths"] = {"scratch_dir": f"{self.folder}/a scratch"}
        (run / "configuration.json").write_text(json.dumps(configuration))
        (run / "arguments").write_text("".join(f"{each}\0" for each in arguments))
        results = self.folder / "gpt"
        results.mkdir(exist_ok=True)
        if steps:
            lines = [{"step": n, "time": x, "loss": 9.0 / n} for n, x in enumerate(steps, 1)]
            text = "".join(f"{json.dumps(each)}\n" for each in lines)
            (results / "metrics.jsonl").write_text(f'{text}[1]\n{{"loss": NaN}}\n{{"step": ')
            (run / "outputs").symlink_to(results)
        return run

    def card(self, run, site=SITE):
        """Give the text of a card, its front matter, and the files that would be hashed."""
        self.repository.write("local/site.toml", site)
        file = str(run / "configuration.json")
        settings = self.repository.settings(machine="local", configuration=file)
        text, _, files = submit_card.card_of(run, settings, settings.machine)
        return text, yaml.safe_load(text.split("---\n")[1]), files


@pytest.fixture
def runs(repository, tmp_path):
    """Give runs to make up."""
    return Runs(repository, tmp_path)


def rows(text, heading):
    """Give the first two cells of the rows of a table."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"(?m)^\| (.*?) \| (.*?) \|", section))


CARD = """---
tags: ["pytorch"]
datasets: ["lab/corpus"]
base_model: "lab/tiny"
library_name: "transformers"
co2_eq_emissions: {"emissions": 375.0, "source": "1.5 kWh of the GPUs alone, measured for 98 % \
of the time, x 0.25 kg/kWh (https://example.org/2026)", "hardware_used": "4 GPUs of a machine"}
---

# `7-train`

From the records of Longship, on DAY; "not recorded" is what they do not tell.

## Model

|  |  |
| --- | --- |
| Licence, intended use, limits | not recorded: add them, and `license` above |
| Base model | `lab/tiny` |
| Settings | `{"model": "lab/tiny", "train_dataset": "lab/corpus", "data": ["/gone"]}` |
| Arguments | `'--note=a\\|b' '--hub-token=***'` |

## Metrics

|  |  |
| --- | --- |
| step | `2` |
| loss | `4.5` |
| validation_loss | not recorded |
| median of tokens_per_s | not recorded |

## Data and other input

| name | file | SHA-256, of today |
| --- | --- | --- |
| `data` | `{scratch_dir}/a b.bin` | `` |
| `training.data` | `/gone` | not recorded: no file has this path |
| `training.train_dataset` | `lab/corpus` | on the hub, commit not recorded |
| `training.model` | `lab/tiny` | on the hub, commit `COMMIT` |

## Code

| repository | URL | commit | local changes |
| --- | --- | --- | --- |
| `longship` | not recorded | `c0ffee` | 2 files |
| `tool` | `https://***@example.org/tool.git` | `unknown: not a git repository` | \
0 files, others not recorded |

## Environment

|  |  |
| --- | --- |
| Runtime | `apptainer` |
| Image | `docker://example.org/lab/base:1` |
| SHA-256 of the image | `abc` |
| SHA-256 of the overlay | none |
| Frozen code | `code-1.tar` |
| Python packages | `` |

## Jobs that took these steps

| job | started | ended | exit_code | nodes | gpus | image_sha256 |
| --- | --- | --- | --- | --- | --- | --- |
| `7-train` | `2026-01-02T03:00:00Z` | `2026-01-02T04:00:00Z` | `0` | `1` | `4` | `abc` |

## Compute of these jobs

|  |  |
| --- | --- |
| Machine | `a machine` |
| Location | not recorded |
| GPU-hours | `4` |
| kWh of the GPUs alone | `1.5`, measured for 98 % of the time |
| kg of CO2 | `0.375`, with `0.25 kg/kWh (https://example.org/2026)` |
"""


def test_card_of_a_run(runs):
    image, commit = runs.folder / "image.sif", "c0ffee12" * 5
    arguments = "'--note=a|b' '--hub-token=abcdefgh123'"
    run = runs.make(
        "7-train",
        steps=[BEGIN + 9, BEGIN + 99.5],
        record={**RECORD, "image": str(image), "arguments": arguments},
        training={"model": "lab/tiny", "train_dataset": "lab/corpus", "data": ["/gone"]},
        assets=[{"repo": "lab/tiny", "revision": commit}],
        repositories=[{"url": "https://me:{}@example.org/tool.git".format("abc123")}],
    )
    Path(f"{image}.json").write_text(
        '{\n  "source": "docker://example.org/lab/base:1",\n  "sha256": "abc"\n}\n'
    )
    data = runs.folder / "a scratch/a b.bin"
    data.write_text("tokens")
    (run / "data.json").write_text(json.dumps([str(data)]))
    (run / "repositories/longship.commit").write_text("commit c0ffee\nbase c0ffee\n")
    (run / "repositories/longship.patch").write_text("diff --git a b\n x\ndiff --git c d\n")
    (run / "repositories/tool.commit").write_text("commit unknown: not a git repository\n")
    (run / "exported").symlink_to("anywhere")
    text, front, files = runs.card(run, SITE + FACTOR)
    text = re.sub(r"on \d{4}-\d\d-\d\d;", "on DAY;", text).replace(commit, "COMMIT")
    assert text == CARD
    assert files == [str(data)]
    assert front["co2_eq_emissions"]["emissions"] == 375  # g


def test_nothing_is_left_out_or_guessed_where_nothing_is_known(runs):
    needed = {name: RECORD[name] for name in ("started", "machine", "stack")}
    text, front, files = runs.card(runs.make("7-train", record=needed), SITE + FACTOR)
    assert front == {"tags": ["pytorch"]} and files == []
    known = {"7-train", "longship", "2026-01-02T03:00:00Z", "a machine", ""}  # a mark
    words = {"license", "co2", "local/site.toml", "data"}
    assert {*re.findall("`(.*?)`", text)} == known | words
    for heading in ("Model", "Metrics", "Data and other input", "Code", "Compute of this job"):
        assert "not recorded" in "".join(rows(text, heading).values()), heading
    assert "measured" not in text


@pytest.mark.parametrize(
    ("record", "site"),
    [
        ({}, SITE),  # without a factor
        ({"energy_kwh": ""}, SITE + FACTOR),
        ({"machine": "another"}, SITE + FACTOR),
    ],
)
def test_emissions_are_told_only_with_energy_and_the_factor_of_the_machine(record, site, runs):
    run = runs.make("7-train", steps=[BEGIN + 9], record={**RECORD, **record})
    text, front, _ = runs.card(run, site)
    assert "co2_eq_emissions" not in front
    assert rows(text, "Compute of these jobs")["kg of CO2"].startswith("not recorded: ")


def test_emissions_of_a_job_that_may_not_be_the_only_one_are_no_metadata(runs):
    """Without the times of steps, the other jobs of a chain are not found."""
    text, front, _ = runs.card(runs.make("7-train"), SITE + FACTOR)
    assert "co2_eq_emissions" not in front
    assert rows(text, "Compute of this job")["kg of CO2"].startswith("`0.375`, ")


def job(begin, end="", **values):
    """Give the record of a job by the hours of its begin and end."""
    times = {
        "started": f"2026-01-02T{begin:02}:00:00Z",
        "ended": end and f"2026-01-02T{end:02}:00:00Z",
    }
    return {**RECORD, **times, **values}


def test_energy_is_that_of_all_jobs_that_took_the_steps(runs, monkeypatch):
    monkeypatch.setattr(submit_card, "values_of", lambda run, record: ({}, []))
    steps = [BEGIN + 60, BEGIN + 4 * 3600 + 60]
    last = runs.make("9-train", steps=steps, record=job(7, 8))
    for name, record in (
        ("5-train", job(1, 2)),  # of an earlier training in the same directory
        ("6-train", job(2)),  # lost, and replaced by the next
        ("7-train", job(3, "", gpu_hours="2")),  # lost: it ended before the next
        ("8-train", job(5, 6)),  # all of its steps were taken again
    ):
        runs.make(name, record=record).joinpath("outputs").symlink_to(runs.folder / "gpt")
    for name in ("6-train", "7-train", "9-train"):  # the first one took none of the steps
        (last.parent / name / "data.json").write_text(json.dumps([f"/gone/{name}"]))
    runs.make("10-other", record=job(3, 4)).joinpath("outputs").symlink_to(runs.folder)
    text, _, _ = runs.card(last)
    assert [*rows(text, "Jobs that took these steps")] == ["job", "---", "`7-train`", "`9-train`"]
    assert re.findall("/gone/(.*?)`", text) == ["7-train", "9-train"]
    compute = rows(text, "Compute of these jobs")
    assert compute["GPU-hours"] == "`6`" and compute["kWh of the GPUs alone"].startswith("`3`, ")


def test_requeued_job_began_with_its_first_start(runs):
    """What it reads can have been replaced between two starts; what it ran, too."""
    image = "41 bytes, written at 1767322800.5"
    record = job(5, 6, first_started="2026-01-02T03:00:00Z", code="", image="/i.sif")
    record.update(image_sha256="", image_state=image)
    run = runs.make("7-train", steps=[BEGIN + 9], record=record)
    runs.repository.write("local/site.toml", SITE)
    settings = runs.repository.settings(
        machine="local", configuration=str(run / "configuration.json")
    )
    text, begin, _ = submit_card.card_of(run, settings, settings.machine)
    assert begin == BEGIN
    assert rows(text, "Jobs that took these steps")["`7-train`"] == "`2026-01-02T03:00:00Z`"
    assert "| commit at the last start |" in text
    environment = rows(text, "Environment")
    assert environment["SHA-256 of the image"] == "not recorded"
    assert environment["Size of the image's file"] == f"`{image}`"


def test_energy_of_a_job_without_a_measurement_is_not_left_out_of_a_sum(runs):
    last = runs.make("8-train", steps=[BEGIN + 9, BEGIN + 7300], record=job(5, 6))
    first = runs.make("7-train", record={**RECORD, "energy_kwh": ""})
    (first / "outputs").symlink_to(runs.folder / "gpt")
    compute = rows(runs.card(last, SITE + FACTOR)[0], "Compute of these jobs")
    assert compute["GPU-hours"] == "`8`" and compute["kWh of the GPUs alone"] == "not recorded"


def test_files_of_a_setting(runs):
    for name in (
        "p.bin",
        "p.idx",
        "p2.bin",
        "d/x",
        "d/e/y",
        "f.jsonl",
        "f.jsonl.gz",
        "[z]1",
        "[z]2",
    ):
        file = runs.folder / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    given = ("0.3", "in/p", "in/d", "in/f.jsonl", "in/[[]z]?", "in/gone")
    data = [str(runs.folder / each) if "/" in each else each for each in given]
    text, _, files = runs.card(runs.make("7-train", training={"data": data}))
    names = [os.path.relpath(each, runs.folder / "in") for each in files]
    assert names == ["p.bin", "p.idx", "d/e/y", "d/x", "f.jsonl", "[z]1", "[z]2"]
    assert f"`{runs.folder}/in/gone` | not recorded: no file has this path" in text


@pytest.mark.parametrize("text", ["", "[", "5", "{}", "[" * 10000])
def test_damaged_list_of_data_files_stops_no_card(text, runs):
    run = runs.make("7-train", assets=[{"name": "x"}])
    (run / "data.json").write_text(text)
    assert "neither a setting nor the program" in runs.card(run)[0]


def test_program_names_files_by_their_whole_paths(runs, monkeypatch, tmp_path):
    """Not directories or patterns, and not more than a reader reads."""
    run, data = runs.make("7-train"), tmp_path / "a.bin"
    data.touch()
    os.mkfifo(tmp_path / "b.bin")
    wrong = ["record.json", 5, str(tmp_path), f"{tmp_path}/*", f"{tmp_path}/a", f"{tmp_path}/b.bin"]
    (run / "data.json").write_text(json.dumps([str(data), *wrong]))
    monkeypatch.chdir(run)  # which has another file of that name
    text, _, files = runs.card(run)
    for each in wrong:
        assert f"| `data` | `{each}` | not recorded: no file has this path |" in text
    assert files == [str(data)]
    (run / "data.json").write_text(json.dumps([f"{tmp_path}/{each}" for each in range(250)]))
    text, _, _ = runs.card(run)
    assert text.count(": no file has this path |") == 200
    assert "| `data` | not recorded | not recorded: 50 more files |" in text


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_list_of_data_files_that_others_can_write_to_is_not_read(mode, runs, tmp_path):
    run = runs.make("7-train")
    (run / "data.json").write_text(json.dumps([str(run / "record.json")]))
    (run / "data.json").chmod(mode)
    text, _, files = runs.card(run)
    assert files == []
    assert "| not recorded: others can write to `{scratch_dir}/runs/7-train/data.json` |" in text


def test_directory_of_too_many_files_is_not_walked(runs, tmp_path):
    for number in range(201):
        (tmp_path / "in" / str(number)).mkdir(parents=True)
        (tmp_path / "in" / str(number) / "x").touch()
    data = {"data": [f"{tmp_path}/in"]}
    text, _, files = runs.card(runs.make("7-train", training=data))
    assert files == [] and f"`{tmp_path}/in` | not recorded: it has more than 200 files |" in text


@pytest.mark.parametrize("argument", ["--train_dataset", "--train-dataset=x", "train_dataset=x"])
def test_setting_that_an_argument_replaces_is_not_known(argument, runs):
    settings = {"train_dataset": "lab/corpus", "data": ["/d"]}
    text, front, _ = runs.card(runs.make("7-train", [argument, "x"], training=settings))
    assert "datasets" not in front and "/not/read" not in text
    assert "| `training.train_dataset` | not recorded | not recorded: an argument sets it |" in text


@pytest.mark.parametrize("form", [*FORMS, *SHORT])
def test_no_secret_is_in_a_card(form, runs):
    record = {**RECORD, "arguments": f"'{form}'"}
    run = runs.make("7-train", [form], record=record, training={"note": form})
    (run / "repositories/x.commit").write_text(f"commit {form}\nbase x\n")
    assert secret_of(form) not in runs.card(run)[0]


def hashed(bash, begin, *files):
    """Give what card_hash_files makes of files."""
    show = 'printf "%s\\n" "${card_hashes[@]}"'
    done = bash(call("card_hash_files", str(begin), *files), show)
    return done.stdout.splitlines()


def test_only_files_that_have_not_changed_since_the_begin_are_hashed(bash, tmp_path):
    file, link = tmp_path / "-a file", tmp_path / "a link"
    file.write_text("tokens\n")
    link.symlink_to(file)
    os.utime(file, (BEGIN, BEGIN))  # the time of the change is that of today
    changed = int(file.stat().st_ctime)
    checksum = f"`{hashlib.sha256(file.read_bytes()).hexdigest()}`"
    unknown = "not recorded: the file has changed since, or cannot be read"
    found = hashed(bash, changed + 9, file, link, tmp_path / "gone")
    assert found == [checksum, checksum, unknown]
    assert hashed(bash, changed, file) == [unknown]
    link.unlink()
    time.sleep(1.1)
    link.symlink_to(file)  # another file, or none, was here
    assert hashed(bash, changed + 1, file, link) == [checksum, unknown]


INSIDE = "card_inside() { cat; }"  # as if cyclonedx-bom wrote what it reads


def write(bash, directory, packages, inside=INSIDE, check=True):
    """Write a card whose text has a mark for a file and one for the packages."""
    hashes = "declare -ga card_hashes=('`a&\\1`')"
    begin = call("card_begin", directory)
    line = call("card_write", directory, "a ``, b ``\n", packages, "python3 set_up.py install")
    return bash(inside, begin, hashes, line, check=check)


def test_marks_are_replaced_and_files_are_listed(bash, tmp_path):
    card = tmp_path / "a card"
    done = write(bash, card, "a==1\n")
    assert done.stdout == f"{card}/README.md\n" and "warning" not in done.stderr
    text = "a `a&\\1`, b [packages.txt](packages.txt), [bom.json](bom.json) (CycloneDX)\n"
    assert (card / "README.md").read_text() == text
    assert (card / "bom.json").read_text() == (card / "packages.txt").read_text() + "\n"


@pytest.mark.parametrize("inside", ["card_inside() { false; cat; }", "card_inside() { exit 127; }"])
def test_card_without_cyclonedx_says_so(inside, bash, tmp_path):
    done = write(bash, tmp_path / "card", "a==1\n", inside)
    assert "hint: add cyclonedx-bom to the requirements, then run: python3 set_up" in done.stderr
    text = "a `a&\\1`, b [packages.txt](packages.txt); as CycloneDX not recorded: cyclonedx-bom did"
    assert (tmp_path / "card/README.md").read_text().startswith(text)
    assert sorted(os.listdir(tmp_path / "card")) == ["README.md", "packages.txt"]


def test_card_without_packages_lists_none(bash, tmp_path):
    write(bash, tmp_path / "card", "")
    assert (tmp_path / "card/README.md").read_text() == "a `a&\\1`, b not recorded\n"
    assert os.listdir(tmp_path / "card") == ["README.md"]


def test_existing_directory_is_left_alone_if_it_has_a_file(bash, tmp_path):
    (tmp_path / "card").mkdir()  # of an interrupted command
    bash(call("card_begin", tmp_path / "card"))
    (tmp_path / "card/README.md").write_text("edited")
    done = write(bash, tmp_path / "card", "a==1\n", check=False)
    assert f"error: the directory exists: {tmp_path}/card\nhint: remove or" in done.stderr
    assert (tmp_path / "card/README.md").read_text() == "edited"


@pytest.fixture
def command(run, clean_environment, runs):
    """Give a function that types `submit.py card` in this clone."""

    def type_in(*words, check=True):
        env = {**clean_environment, "HOME": str(runs.folder)}
        argv = [sys.executable, Path(ROOT, "submit.py"), "card", *words, "--machine=local"]
        return run(argv, env=env, cwd=ROOT, check=check)

    return type_in


def test_card_is_written_without_an_environment(command, runs, run):
    found = runs.make("7-train", container={"runtime": "host"})
    (found / "packages.txt").write_text("a==1\n")
    script = command(found, "--dry-run").stdout
    # words of the card can be names of functions, which are then unused
    run([processes.program("shellcheck"), "--exclude=SC2034", "-"], input=script)
    assert "  card_hash_files 1767322800\n  card_inside() {\n" in script
    assert not (found / "card").exists()
    done = command(found, "--output", runs.folder / "new/my card")
    card = runs.folder / "new/my card/README.md"
    assert done.stdout == f"{card}\n" and "hint: python3 set_up.py install" in done.stderr
    assert yaml.safe_load(card.read_text().split("---\n")[1]) == {"tags": ["pytorch"]}


def test_settings_are_those_of_the_frozen_code(command, runs):
    """A stack's defaults can have changed since."""
    run = runs.make("7-train")
    files = {"local/site.toml": SITE, "stacks/pytorch/run_training.sh": ""}
    files["stacks/pytorch/stack.toml"] = STACK.replace("[]", '["/then"]')
    for name, text in files.items():
        file = run / "code/longship" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert "| `training.data` | `/then` | not recorded: " in command(run, "--dry-run").stdout


def test_run_of_a_stack_that_trains_no_model_is_refused(command, runs):
    run = runs.make("7-evaluate", record={**RECORD, "stack": "evaluate"})
    done = command(run, check=False)
    error = (
        f"error: the stack evaluate trains no model: {run}\nhint: choose the run of a training\n"
    )
    assert done.returncode == 1 and done.stderr.endswith(error)


def test_run_that_others_can_change_is_refused_until_the_hint_is_typed(command, runs, run):
    found = runs.make("7-train", container={"runtime": "host"})
    (found / "record.json").chmod(0o664)
    done = command(found, "--dry-run", check=False)
    error, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 1 and error.startswith(f"error: other users can write to {found}/")
    run(["bash", "-c", hint.partition("unchanged: ")[2]])
    command(found, "--dry-run")


@pytest.mark.parametrize("file", ["configuration.json", "record.json"])
def test_run_with_an_incomplete_record_is_refused(file, command, runs):
    run = runs.make("7-train")
    (run / file).write_text("{}") if file == "record.json" else (run / file).unlink()
    done = command(run, check=False)
    error = f"error: the record of the run is incomplete: {run}\nhint: choose another run\n"
    assert done.returncode == 1 and done.stderr.endswith(error)
