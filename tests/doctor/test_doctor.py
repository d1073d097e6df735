"""doctor.py: what it computes, and how findings are told. What it finds: tests/integration."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.repository import shared_configuration
from support.shellchecks import read_emitted
from support.terminal import Terminal

from lib import ROOT
from lib.configuration.layers import load_settings
from lib.configuration.snapshot import looks_secret
from lib.doctor import checks as diagnosis
from lib.doctor.checks import configured_values
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.quoting import word
from lib.script.render import render

SECRET = "se/cr@et"
CONFIGURATION = f"""
[project]
name = "p"
account = "a"
[packages]
overlay = "myenv"
[environment]
set = {{ MY_TOKEN = "{SECRET}", http_proxy = "http://me:{SECRET}@proxy:3128", A = "it's" }}
[[repositories]]
url = "https://example.org/one.git"
"""


@pytest.fixture
def tell(run):
    """Give a function that runs lines of bash with the functions of lib/ that they use."""

    def tell(*lines, check=True):
        return run(["bash", "-c", render("a test", lines)], check=check)

    return tell


def report(*words):
    return " ".join(["report", *map(word, words)])


def settings_of(machine, tmp_path, text=CONFIGURATION):
    file = tmp_path / "configuration.toml"
    file.write_text(text)
    options = {"machine": machine, "configuration": str(file)}
    return load_settings(Path(ROOT), options, {"HOME": "/home/me", "USER": "me", "PATH": ""})


# --- the script


def test_emitted_scripts_pass_shellcheck(run, tmp_path):
    broken = LongshipError("it's broken", 'say "HOME"')
    lines = {"broken": diagnosis.lines_without_settings(Path(ROOT), broken, as_json=True)}
    for machine in ("aws", "jwb", "local", "olivia"):
        settings = settings_of(machine, tmp_path)
        lines[f"{machine} json"] = diagnosis.lines(settings, lambda _: False, as_json=True)
        lines[f"{machine} docker"] = diagnosis.lines(settings, lambda _: True, as_json=False)
    read_emitted(run, {name: render(name, each) for name, each in lines.items()}, tmp_path)


def test_no_secret_stands_in_a_script(tmp_path):
    settings = settings_of("local", tmp_path)
    lines = diagnosis.lines(settings, lambda _: False, as_json=True)
    values = [each for each in lines if each.startswith("report_value")]
    assert len(values) > 20
    assert not [each for each in values if "cr@et" in each]


def test_dry_run_needs_nothing(run, clean_environment):
    environment = {**clean_environment, "PATH": "/nowhere"}
    command = [sys.executable, f"{ROOT}/doctor.py", "--dry-run"]
    script = run(command, env=environment).stdout
    assert script.startswith("#!/usr/bin/env bash\n# Longship: doctor.py, machine ")
    plan = script.partition("\n}\n")[0]
    assert plan.endswith("\n  report_end")


def test_runtime_is_reported_once_without_a_configuration(monkeypatch):
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: f"/bin/{name}")
    lines = diagnosis.lines_without_settings(Path(ROOT), LongshipError("a", "b"), as_json=False)
    assert [each for each in lines if each.startswith("runtime_diagnose")] == [
        "runtime_diagnose apptainer ''"
    ]


def test_broken_part_leaves_the_rest(tmp_path):
    settings = settings_of("jwb", tmp_path, CONFIGURATION.replace('account = "a"', ""))
    lines = diagnosis.lines(settings, lambda _: False, as_json=True)
    problems = [each for each in lines if each.startswith("report problem")]
    assert [each.split()[2] for each in problems] == ["paths", "secrets", "secrets"]
    assert "project.account" in problems[0]
    assert any(each.startswith("slurm_diagnose") for each in lines)


def test_broken_image_leaves_the_rest(tmp_path):
    text = '[container]\nruntime = "apptainer"\nimage = "no image"\n'
    lines = diagnosis.lines(settings_of("local", tmp_path, text), lambda _: True, as_json=True)
    (problem,) = [each for each in lines if each.startswith("report problem")]
    assert "unknown image source" in problem
    assert any(each.startswith("gpu_diagnose") for each in lines)
    assert lines[-1] == "report_end"


@pytest.mark.parametrize(
    ("image", "servers"),
    [
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", ["https://nvcr.io/v2/"]),
        ("docker://localhost:5000/a:1", ["https://localhost:5000/v2/"]),
        ("docker://debian:12", ["https://registry-1.docker.io/v2/"]),
        ("docker://docker.io/library/debian:12", ["https://registry-1.docker.io/v2/"]),
        ("oras://ghcr.io/lab/a:1", ["https://ghcr.io/v2/"]),
        ("/images/a.sif", []),
        ("library://a/b/c", []),
    ],
)
def test_server_of_the_image_is_asked(image, servers, tmp_path):
    text = f'[container]\nruntime = "apptainer"\nimage = "{image}"\n'
    lines = diagnosis.lines(settings_of("local", tmp_path, text), lambda _: True, as_json=True)
    (reach,) = [each for each in lines if each.startswith("network_diagnose")]
    assert reach.split()[2:] == servers


def test_folder_that_cannot_be_looked_into_has_neither_image_nor_venv(tmp_path, unseen):
    text = (
        f'[paths]\nscratch_dir = "{unseen}"\n[packages]\nrequirements = "x.txt"\n'
        '[container]\nruntime = "apptainer"\nimage = "docker://x/base:1"\n'
    )
    lines = diagnosis.lines(settings_of("local", tmp_path, text), lambda _: True, as_json=True)
    assert [each for each in lines if each.startswith(f"image_diagnose {unseen}/containers/")]


@pytest.mark.parametrize(
    ("machine", "environ", "wanted"),
    [
        ("auto", {}, "report ok machine 'local, this machine (local/site.toml): no known site"),
        ("auto", {"SYSTEMNAME": "jupiter"}, "detected by SYSTEMNAME=jupiter"),
        ("jpb", {"SYSTEMNAME": "jupiter"}, "also detected by SYSTEMNAME=jupiter"),
        ("jpb", {}, "set in command line; no known site"),
        ("local", {"SYSTEMNAME": "jupiter"}, "report warning machine"),
        ("lumi", {"SYSTEMNAME": "jupiter"}, "report warning machine"),
    ],
)
def test_machine_is_told_with_its_mark(machine, environ, wanted, tmp_path):
    environ = {"HOME": "/home/me", "USER": "me", "PATH": "", **environ}
    options = {"machine": machine, "configuration": shared_configuration(tmp_path)}
    settings = load_settings(Path(ROOT), options, environ)
    lines = diagnosis.lines(settings, lambda _: False, as_json=True)
    (told,) = [each for each in lines if each.split()[2:3] == ["machine"]]
    assert wanted in told


# --- values


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("HF_TOKEN", "WANDB_API_KEY", "password", "MY_SECRETS", "PASS")),
        *((name, True) for name in ("AWS_SECRET_ACCESS_KEY", "LAB_APIKEY", "X_AUTH")),
        *((name, False) for name in ("TOKENIZERS_PARALLELISM", "KEYBOARD", "BYPASS", "NCCL_IB")),
    ],
)
def test_secrets_are_known_by_their_name(name, secret):
    assert looks_secret(name) is secret


def test_every_value_has_its_origin_and_no_password(tmp_path):
    text = f"[packages]\nprocessors = 3\n{CONFIGURATION.replace('[packages]', '')}"
    text = text.replace('overlay = "myenv"', "")
    settings = settings_of("olivia", tmp_path, text)
    values = {key: (value, origin) for key, value, origin in configured_values(settings)}
    assert set(values) == set(settings.origins)
    assert values["packages.processors"] == ("3", str(tmp_path / "configuration.toml"))
    assert values["packages.compression"] == ('"xz"', "olivia/site.toml")
    assert values["packages.installer"] == ('"uv"', "default")
    assert values["machine"] == ('"olivia"', "command line")
    shown = values["environment.set"][0]
    assert 'MY_TOKEN = "***"' in shown
    assert 'http_proxy = "***@proxy:3128"' in shown
    assert 'A = "it\'s"' in shown
    assert SECRET not in str(values)
    assert "10.63.2.48" in shown or "https_proxy" in shown


def test_digest_of_an_image_is_no_password(tmp_path):
    image = "docker://nvcr.io/nvidia/pytorch@sha256:12"
    settings = settings_of("local", tmp_path, f'[container]\nimage = "{image}"\n')
    values = {key: value for key, value, _ in configured_values(settings)}
    assert values["container.image"] == f'"{image}"'


# --- the report


def test_json_holds_whatever_names_hold(tell, hostile_arguments):
    done = tell(
        "report_begin json",
        *(report("ok", "topic", each, each) for each in hostile_arguments),
        *(f"report_value key {word(each)} origin" for each in hostile_arguments),
        "report_end",
    )
    found = json.loads(done.stdout)
    assert (found["problems"], found["warnings"]) == (0, 0)
    for number, text in enumerate(hostile_arguments):
        wanted = os.fsencode(text).decode("utf-8", "replace")
        assert found["findings"][number]["fix"].rstrip("\ufffd") == wanted.rstrip("\ufffd")
        assert found["values"][number]["value"].rstrip("\ufffd") == wanted.rstrip("\ufffd")
        assert not any(ord(character) < 32 for character in found["findings"][number]["text"])


@pytest.mark.parametrize(
    ("states", "code"),
    [(("ok",), 0), (("ok", "warning"), 0), (("warning", "problem"), 1), (("problem",), 1)],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_only_a_problem_is_an_exit_code(form, states, code, tell):
    lines = [report(each, "topic", f"is {each}", f"mend {each}") for each in states]
    done = tell(f"report_begin {form}", *lines, "report_end", check=False)
    assert done.returncode == code, done.stderr
    if form == "text":
        worst = next((each for each in ("problem", "warning") if each in states), None)
        last = done.stdout.splitlines()[-2:]
        if worst:
            assert last[0] == f"next: mend {worst}"
        else:
            assert last[-1] == "no problems found"


def test_text_is_wrapped_and_a_fix_is_not(tell):
    text, fix = "many words " * 30, "copy this " * 20
    done = tell("report_begin text", report("warning", "a topic", text, fix), "report_end")
    *wrapped, fixed, _, _, _ = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in wrapped)
    assert len(wrapped) > 4
    assert " ".join(" ".join(wrapped).split()[3:]) == text.strip()
    assert fixed == f"         fix: {fix}"


def test_user_id_without_a_name_is_told_as_a_number(tell):
    unnamed = "id() { echo 4242; echo 'id: cannot find name for user ID 4242' >&2; return 1; }"
    fakeroot = call("fakeroot_diagnose", "")
    done = tell(unnamed, "exec 2>&1", "report_begin text", "node_diagnose", fakeroot)
    said = " ".join(done.stdout.split())
    assert ", 4242, in no job" in said and "4242 has" in said
    assert "cannot find name" not in done.stdout


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals(no_colour, coloured, clean_environment, tmp_path):
    script = render("x", ["report_begin text", report("problem", "a", "b", "c")])
    environment = {**clean_environment, "NO_COLOR": no_colour}
    command = ["bash", "-c", script]
    with Terminal(command, env=environment, cwd=tmp_path, term="xterm") as terminal:
        assert terminal.end() == 0
    assert "fix: c" in terminal.said
    assert ("\x1b[31m" in terminal.said) == coloured


CHECKS = {
    "error": 'fail "it is broken" "mend it"',
    "warning": 'warn_of "it is worn" "oil it"',
    "both": 'warn_of "it is worn" "oil it"; warn_of "it leaks" "tape it"',
    "silence": "exit 3",
    "a program's words": "echo 'cp: cannot' >&2; return 1",
    "well": "note something",
}


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("error", [("problem", "it is broken", "mend it")]),
        ("warning", [("warning", "it is worn", "oil it")]),
        ("both", [("warning", "it is worn", "oil it"), ("warning", "it leaks", "tape it")]),
        ("silence", [("problem", "", "share the output of: python3 doctor.py --json")]),
        (
            "a program's words",
            [("problem", "cp: cannot", "share the output of: python3 doctor.py --json")],
        ),
        ("well", [("ok", "fine", "")]),
    ],
)
def test_what_other_scripts_say_becomes_a_finding(what, wanted, tell):
    lines = [f"try_it() {{ {CHECKS[what]}; }}", "report_begin json", "report_check it fine try_it"]
    done = tell(*lines, "report_end", check=False)
    found = [(x["state"], x["text"], x["fix"]) for x in json.loads(done.stdout)["findings"]]
    assert found == wanted


def test_what_a_check_prints_can_be_its_finding(tell):
    lines = ["try_it() { echo 'cloned at v1'; }", "report_begin json", "report_check it - try_it"]
    (found,) = json.loads(tell(*lines, "report_end").stdout)["findings"]
    assert (found["state"], found["text"]) == ("ok", "cloned at v1")


def test_what_takes_too_long_is_ended_with_all_it_started(tell, tmp_path):
    mark = tmp_path / "pid"
    hang = f"hang() {{ sleep 1000 & echo $! >{word(mark)}; wait; }}"
    done = tell(hang, "run_with_timeout 1 hang || echo code $?")
    assert done.stdout == "code 124\n"
    deadline = time.monotonic() + 60
    while not _is_dead(mark.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_dead(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://me:a/b@c@proxy:3128/", "http://***@proxy:3128/"),
        ("me:secret@proxy:3128", "***@proxy:3128"),
        ("https://token@example.org/simple", "https://***@example.org/simple"),
    ],
)
def test_password_in_a_url_is_not_shown(url, shown, tell):
    assert tell(f"url_without_login {word(url)}").stdout == shown


@pytest.mark.parametrize(
    ("driver", "answer", "wanted"),
    [
        ("driver_cuda=12.4", "seen=2 cuda=12.9.1", ("ok", "2 visible; the image has CUDA 12.9")),
        ("driver_cuda=12.4", "seen=1 cuda=", ("ok", "of a version that it does not say")),
        ("driver_cuda=unknown", "seen=1 cuda=13.0", ("ok", "the image has CUDA 13.0")),
        (
            "driver_cuda=12.4",
            "seen=0 cuda=12.9",
            ("problem", "GPUs of this node are not visible"),
        ),
        ("driver_cuda=12.4", "seen=1 cuda=13.0", ("problem", "the driver supports only 12.4")),
        ("driver_cuda=12.4", "seen=1 cuda=13.0 compatible=yes", ("warning", "data-center GPUs")),
        ("driver_amd=6.10.5", "seen=0 kfd=yes rocm=6.4.3", ("ok", "ROCm 6.4.3, the driver is 6.1")),
        (
            "driver_amd=6.10.5",
            "seen=0 rocm=6.4.3",
            ("problem", "GPUs of this node are not visible"),
        ),
    ],
)
def test_gpus_inside_are_compared_with_the_driver(driver, answer, wanted, tell):
    # a mock of the image's answer: the tests' machines have neither GPUs nor such images
    done = tell(
        "report_begin json",
        "report_check inside '' true",
        driver,
        f"inside_run() {{ printf '%s\\n' {answer}; }}",
        "gpu_diagnose_inside",
        "report_end",
        check=False,
    )
    (found,) = json.loads(done.stdout)["findings"]
    assert found["state"] == wanted[0]
    assert wanted[1] in found["text"]


def test_all_functions_have_their_name_alone():
    """Emitted scripts take functions by their names: two of one name would be one too few."""
    names = [
        line.partition("(")[0]
        for path in sorted(Path(ROOT, "lib").glob("*/*.bash"))
        for line in path.read_text().splitlines()
        if line.endswith("() {") and not line.startswith((" ", "#"))
    ]
    twice = [name for name, group in itertools.groupby(sorted(names)) if len(list(group)) > 1]
    assert twice == []


@pytest.mark.parametrize("setuid", [True, False])
def test_setuid_starter_is_found_where_the_runtime_says(tmp_path, setuid):
    folder = tmp_path / "it's lib"
    starter = folder / "apptainer/bin/starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755 if setuid else 0o755)
    runtime = tmp_path / "apptainer"
    runtime.write_text(f'#!/bin/sh\necho "BINDIR=/x"\necho "LIBEXECDIR={folder}"\n')
    runtime.chmod(0o755)
    script = 'PATH=$1:$PATH; source "$2/lib/runtimes/apptainer.bash"; sif_has_setuid apptainer'
    done = subprocess.run(["bash", "-c", script, "bash", tmp_path, ROOT])
    assert (done.returncode == 0) == setuid
