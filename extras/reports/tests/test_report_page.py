"""The report page of runs: what is gathered of them, and what is done with it inside."""

import io
import json
import os
import re
import sys
import tempfile
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.secret_forms import FORMS, HARMLESS, SHORT, secret_of

from extras.reports.report_page import page_of, synced_runs, training_of
from lib.script.errors import LongshipError

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = [
    "<script>alert(1)</script>",
    "</style>",
    "]]>",
    "\"'><img src=x onerror=alert(1)>",
    "&lt;",
]
SECRET = "s3cret"  # not in an address: this file is in the repository
HEADING = (
    "time,device,program,utilisation,memory,power,temperature,throttling,"
    "seconds,utilisation_seconds,peak_memory,energy,throttled_seconds"
)


@pytest.fixture
def runs(repository, tmp_path):
    """Give a function that records a run of a training; `runs.paths` are the repository's."""
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}/a scratch"\n')
    _, paths = repository.settings_and_paths()

    def make(name, outputs="first", **record):
        folder = paths.runs / name
        folder.mkdir(parents=True)
        job = int(name.partition("-")[0])
        values = {
            **{"job": str(job), "name": "train", "stack": "pytorch", "machine": "local"},
            **{"nodes": "1", "gpus": "2", "log": str(folder / "log"), "exit_code": "0"},
            **{"started": f"2026-01-02T{job:02}:00:00Z", "ended": f"2026-01-02T{job:02}:10:00Z"},
            **record,
        }
        (folder / "log").write_text("all went well\n")
        (folder / "record.json").write_text(json.dumps(values, indent=2))
        if outputs:
            (paths.checkpoint_dir / outputs).mkdir(parents=True, exist_ok=True)
            (folder / "outputs").symlink_to(paths.checkpoint_dir / outputs)
        return folder

    make.paths = paths
    return make


@pytest.fixture
def inside(monkeypatch):
    """Give the modules that run inside the environment; matplotlib draws nothing."""
    monkeypatch.syspath_prepend(ROOT / "extras/reports/inside")
    import report_page
    import training_curves

    monkeypatch.setattr(report_page, "draw", lambda *_: None)
    training_curves.page = report_page.page
    return training_curves


def training(folders, findings=lambda log: []):
    return training_of(ROOT, folders, findings)


def write_metrics(runs, text, outputs="first"):
    file = runs.paths.checkpoint_dir / outputs / "metrics.jsonl"
    file.write_text(text)
    return file


def seconds(hour, minute):
    return 1767312000 + 3600 * hour + 60 * minute  # since 1970, on 2026-01-02


def lines(*steps):
    """Give lines of metrics, each of a step and a time."""
    each = [{"step": n, "time": time, "loss": 9 - n, "tokens_per_s": 100} for n, time in steps]
    return "".join(f"{json.dumps(line)}\n" for line in each)


def test_jobs_of_a_training_are_shown_together(runs):
    first, other, second = runs("3-train"), runs("4-train", "other"), runs("5-train")
    found, file = page_of(runs.paths, ("3",), "")
    assert found == [[first, second]]
    assert file == first / "report-3-train.html"
    found, _ = page_of(runs.paths, ("5", "4", "3-train", str(other)), "")
    assert found == [[first, second], [other]]
    assert training([first, second])["name"] == "first (3, 5)"


def test_several_runs_without_results_are_not_one_training(runs):
    first, second = runs("3-train", None), runs("4-train", None)
    assert page_of(runs.paths, ("3", "4"), "")[0] == [[first], [second]]


def test_tasks_of_an_array_are_overlaid(runs):
    tasks = [runs(f"7_{number}-train", f"lr-{number}") for number in (10, 2, 0)]
    runs("71-train", "other")
    assert page_of(runs.paths, ("7",), "")[0] == [[each] for each in reversed(tasks)]
    assert synced_runs(runs.paths, ("7",)) == list(reversed(tasks))


@pytest.mark.parametrize(
    ("names", "output", "error", "hint"),
    [
        (("7",), "", 'no run "7" in ', "list them: python3 submit.py status"),
        (
            ("train",),
            "",
            '2 runs are named "train"',
            "name one of them: python3 submit.py report 4",
        ),
        (
            ("3",),
            "no such/page.html",
            "in a directory that does not exist",
            "give another --output",
        ),
        (("3",), "/tmp", "cannot write /tmp: it is a directory", "give another --output FILE"),
    ],
)
def test_wrong_arguments_are_told(names, output, error, hint, runs):
    os.utime(runs("3-train") / "record.json", (1, 1)), runs("4-train")
    with pytest.raises(LongshipError, match=re.escape(error)) as found:
        page_of(runs.paths, names, output)
    assert found.value.hint.startswith(hint)


def test_what_is_missing_is_told(runs):
    (runs.paths.checkpoint_dir / "first").mkdir(parents=True)
    gaps = dict(training([runs("3-train", ended="", log="")])["gaps"])
    assert "not in the record of 3-train: ended, log" in gaps
    assert any(each.startswith("no metrics: metrics.jsonl not found in ") for each in gaps)
    assert "not measured: usage of the nodes of 3-train" in gaps
    assert "no metrics: the directory of the results is unknown" in dict(
        training([runs("4-train", None)])["gaps"]
    )
    gaps = dict(training([runs("5-train", stack="mine")])["gaps"])
    assert 'no metrics: unknown stack: "mine"' in gaps
    found = training([runs("6-train", stack="nemo")])
    assert found["metrics"]["loss"] == "reduced_train_loss"


def test_record_of_an_older_version_has_a_page(runs, inside):
    folder = runs("3-train")
    (folder / "record.json").write_text('{\n  "job": "3"\n}\n')
    shown = inside.Training(training([folder]), "")
    assert "not in the record of 3-train: started, ended, nodes, gpus, log" in dict(shown.gaps)
    assert ("duration", "not measured") in shown.figures()
    assert "no end recorded" in inside.page([shown])


def test_time_between_jobs_does_not_count(runs, inside):
    folders = [runs("3-train"), runs("5-train")]
    steps = [(1, seconds(3, 5)), (2, seconds(3, 9)), (3, seconds(5, 1)), (4, seconds(5, 2))]
    write_metrics(runs, lines(*steps))
    shown = inside.Training(training(folders), "")
    ((gap, hint),) = shown.gaps
    assert gap == "not measured: usage of the nodes of 5-train" and "jobs.usage" not in hint
    assert shown.lines("loss", "step") == [[(1, 8), (2, 7), (3, 6), (4, 5)]]
    assert shown.lines("loss", "time") == [[(300, 8), (540, 7)], [(660, 6), (720, 5)]]
    assert shown.restarts("time") == [600] and shown.restarts("step") == [3]
    assert shown.unit == "tokens/s"
    assert dict(shown.figures())["duration"] == "0:20:00"


def test_attempts_of_a_requeued_job_are_marked(runs, inside):
    folder = runs("5-train", restarts="1", earlier_seconds="240")
    steps = [(1, seconds(3, 5)), (2, seconds(3, 9)), (3, seconds(5, 1))]
    write_metrics(runs, lines(*steps))
    shown = inside.Training(training([folder]), "")
    assert shown.restarts("step") == [3] and shown.restarts("time") == [240]


def test_restarts_within_a_job_are_marked_and_listed(runs, inside):
    ended = [
        "2026-01-02T03:03:00Z attempt 1 ended at step 2: exit code 1; restart 1 of 1 without n1",
        "2026-01-02T03:09:00Z attempt 2 ended: <b>; not restarted: jobs.restarts is 1",
    ]
    steps = [(1, seconds(3, 1)), (2, seconds(3, 2)), (2, seconds(3, 5)), (3, seconds(3, 6))]
    slower = "12 % slower than run 2: other image"
    folder = runs("3-train", attempts="\n".join(ended), exit_code="1", throughput=slower)
    write_metrics(runs, lines(*steps))
    shown = inside.Training(training([folder]), "")
    assert shown.restarts("step") == [2] and shown.restarts("time") == [180]
    assert shown.lines("loss", "time") == [[(60, 8)], [(300, 7), (360, 6)]]
    text = unescape(inside.page([shown]))
    assert all(each in text for each in [*ended, slower]) and "<b>;" not in inside.page([shown])


def test_later_start_replaces_the_steps_of_an_earlier_one(runs, inside):
    folder = runs("3-train")
    write_metrics(runs, lines((1, seconds(3, 1)), (2, seconds(3, 2)), (2, seconds(3, 4))))
    shown = inside.Training(training([folder]), "")
    assert shown.lines("loss", "time") == [[(60, 8), (240, 7)]]


def test_incomplete_and_damaged_metrics_are_told(runs, inside):
    folder = runs("3-train")
    file = write_metrics(
        runs, lines((1, 1)) + 'x\n[]\n{"step": "a"}\n{"loss": NaN}\n{"step": 2, "l'
    )
    shown = inside.Training(training([folder]), "")
    assert shown.lines("loss", "step") == [[(1, 8)]]
    messages = [message for message, _ in shown.gaps]
    assert f"cannot read 2 lines of {file}: left out" in messages
    assert f"the last line of {file} is incomplete: left out" in messages


def test_steps_per_second_replace_an_unknown_speed(runs, inside):
    folder = runs("3-train")
    steps = [{"step": n, "time": seconds(3, n), "loss": 1} for n in (1, 2, 4)]
    write_metrics(runs, "".join(f"{json.dumps(each)}\n" for each in steps))
    shown = inside.Training(training([folder]), "")
    assert shown.unit == "steps/s"
    assert shown.lines("speed", "step") == [[(2, 1 / 60), (4, 1 / 60)]]


def test_samples_of_a_node_are_those_of_its_gpus(runs, inside):
    folder = runs("3-train")
    (folder / "usage").mkdir()
    rows = [
        *(f"{seconds(3, 1)},{gpu},smi,{50 + gpu},1024,300,,,1,1,1,1," for gpu in (0, 1)),
        *(f"{seconds(3, 2)},{gpu},smi,,2048,100,,,1,1,1,1," for gpu in (0, 1)),
        f"{seconds(3, 3)},0,smi,9",
    ]
    (folder / "usage/n1.csv").write_text("\n".join([HEADING, *rows]))
    shown = inside.Training(training([folder]), "")
    assert shown.has_gpus
    assert shown.lines("utilisation", "time") == [[(60, 50.5)]]
    assert shown.lines("power", "time") == [[(60, 600), (120, 200)]]
    assert shown.lines("memory", "time") == [[(60, 1), (120, 2)]]


@pytest.mark.parametrize(
    "text", ["", "\n", "\0\n", "[" * 100000, "\xff", "x\n1,2\n", f"{HEADING}\n1,0,smi,9\n"]
)
def test_damaged_samples_are_told(text, runs, inside):
    folder = runs("3-train")
    (folder / "usage").mkdir()
    file = folder / "usage/n1.csv"
    file.write_text(text, encoding="latin-1")
    shown = inside.Training(training([folder]), "")
    assert f"no sample found in {file}" in dict(shown.gaps)
    assert "no sample found" in inside.page([shown])


PARTS = [
    f"{HEADING}\n",
    f"{seconds(3, 1)},0,smi,9,9,9,,,1,1,1,1,\n",
    "\n",
    ",",
    "\0",
    '"',
    "[" * 999,
]
PARTS += ["9" * 40, "1e400", "nan", "cpu", "0,"]


@given(st.lists(st.sampled_from(PARTS), max_size=12))
def test_no_damaged_file_of_samples_is_an_error(parts):
    sys.path.insert(1, str(ROOT / "extras/reports/inside"))
    import report_page
    import training_curves

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "draw", lambda trainings, *_: trainings[0].lines(*_[:2]) and "")
        run = Path(folder) / "3-train"
        (run / "usage").mkdir(parents=True)
        (run / "usage/n1.csv").write_text("".join(parts))
        shown = training_curves.Training(training([run]), "")
        assert "<html" in report_page.page([shown])
        assert all(x < 1e10 for line in shown.lines("power", "time") for x, _ in line)


def test_hostile_text_is_no_markup(runs, inside):
    text = " ".join(HOSTILE)
    folder = runs("3-train", "<script>", log="", arguments=text, failed=text, machine=text)
    (folder / "packages.txt").write_text("</style><script>==1\n")
    (folder / "options").write_text(f"--comment={text}\n")
    (folder / "repositories").mkdir()
    (folder / "repositories/<b>.commit").write_text("commit <i>\n")
    (folder / "repositories/<b>.patch").write_text("diff --git a b\n")
    log = folder / 'javascript:alert(1)"><b>'
    log.write_text("x")
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**record, "log": str(log)}, indent=2))
    said = {"topic": text, "said": text, "text": text, "fix": text, "line": 1}
    page = inside.page([inside.Training(training([folder], lambda log: [said]), "")])
    found = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, more: found.update(
        (tag, *each) for each in more or [("",) * 2]
    )
    parser.feed(page)
    assert not {tag for tag, *_ in found} & {"script", "img"}
    names = {"charset", "class", "content", "href", "http-equiv", "lang", "name"}
    assert {name for _, name, _ in found} - {""} == names
    links = [value for _, name, value in found if name == "href"]
    assert len(links) == 3 and all(each.startswith("file:///") for each in links)
    assert page.count("</style>") == 1 and "javascript:" not in "".join(links)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "&amp;lt;" in page
    assert not re.search(r"https?:|url\(|@import", page)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"pip https://me:{SECRET}@host/x failed", "pip https://***@host/x failed"),
        (f"token hf_{'a' * 34} is wrong", "token *** is wrong"),
        ("--hub-token=abcdefgh --steps 3", "--hub-token=*** --steps 3"),
        ("--api-key abcdefgh", "--api-key ***"),
        ("'--api-key' 'abcdefgh' '--steps' '3'", "'--api-key' '***' '--steps' '3'"),
        ("WANDB_API_KEY=abcdefgh", "WANDB_API_KEY=***"),
        ("No API key configured", "No API key configured"),
        ("--tokenizer /a/b", "--tokenizer /a/b"),
    ],
)
def test_secrets_are_not_shown(text, shown, inside):
    assert unescape(sys.modules["report_page"].shown(text)) == shown


def test_missing_library_is_told(inside, monkeypatch):
    data = json.dumps({"install": "python3 set_up.py install", "trainings": []})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("sys.stdin", io.StringIO(data))
    with pytest.raises(SystemExit) as error:
        sys.modules["report_page"].main()
    said, hint = str(error.value).splitlines()
    assert said.startswith("error: matplotlib not found inside the environment")
    assert hint == "hint: add matplotlib to the requirements, then run: python3 set_up.py install"


def test_page_and_sums_cannot_be_combined(run, root):
    done = run([sys.executable, root / "submit.py", "report", "3", "--csv"], check=False)
    assert done.returncode == 2
    assert "--csv, --json, --runs and --since cannot be combined with RUN" in done.stderr


@pytest.mark.parametrize("text", [*FORMS, *SHORT])
def test_page_shows_no_secret(text, inside):
    shown = unescape(sys.modules["report_page"].shown(text))
    assert secret_of(text) not in shown and "***" in shown


@pytest.mark.parametrize("text", HARMLESS)
def test_page_shows_other_texts_as_they_are(text, inside):
    assert unescape(sys.modules["report_page"].shown(text)) == text
