"""doctor.py: what it computes, and how findings are told. What it finds: tests/integration."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import PATIENCE, wait_until
from support.repository import shared_configuration
from support.terminal import Terminal

from lib import ROOT, VERSION
from lib.configuration.layers import load_settings
from lib.configuration.snapshot import looks_secret
from lib.doctor import checks, network, node
from lib.doctor import report as reports
from lib.doctor.checks import configured_values
from lib.doctor.node import Driver
from lib.doctor.report import Diagnosis, asked, bash, ok, problem, warning
from lib.doctor.software import find_gpus_inside, find_runtime
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.execute import Output
from lib.script.render import shell_files

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


def settings_of(machine, tmp_path, text=CONFIGURATION):
    file = tmp_path / "configuration.toml"
    file.write_text(text)
    options = {"machine": machine, "configuration": str(file)}
    return load_settings(Path(ROOT), options, {"HOME": "/home/me", "USER": "me", "PATH": ""})


@pytest.fixture
def servers(monkeypatch):
    """Let no program be there, and no server answer; give the URLs that are asked."""
    urls = []
    for module in (reports, node, network):
        monkeypatch.setattr(module, "read_output", lambda *_, **__: Output("", 127))
    for module in (checks, node):
        monkeypatch.setattr(module, "succeeds", lambda _: False)
    monkeypatch.setattr(network, "_ask", lambda url: urls.append(url) or (7, ""))
    return urls


@pytest.fixture
def told(servers, capsys):
    """Give a function that returns what is found of settings, or of an error of theirs."""

    def told(settings):
        report = Diagnosis(as_json=True)
        with pytest.raises(SystemExit):
            if isinstance(settings, LongshipError):
                checks.diagnose_without_settings(Path(ROOT), settings, report)
            else:
                checks.diagnose(settings, report)
        assert json.loads(capsys.readouterr().out)["problems"]
        return report.findings

    return told


# --- the checks


@pytest.mark.parametrize(
    "machine",
    [pytest.param("aws", marks=pytest.mark.extras("enroot", "pyxis")), "jwb", "local", "olivia"],
)
def test_each_subject_is_told_of_each_machine(machine, told, tmp_path):
    found = told(settings_of(machine, tmp_path))
    assert next(each for each in found if each.topic == "clone").text.startswith(
        f"Longship {VERSION}, "
    )
    topics = {each.topic for each in found}
    assert topics >= {"node", "clone", "python", "configuration", "machine", "architecture"}
    assert topics >= {"scratch", "home", "temporary", "caches", "leftovers", "runtime"}
    assert topics >= {"GPU", "packages", "git", "proxy", "certificates", "network", "tokens"}
    assert topics >= {"secrets", "Slurm"}
    assert all(bool(each.fix) == (each.state != "ok") for each in found)
    assert "cr@et" not in str(found)


@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["explain", "x"], marks=pytest.mark.extras("explain"))]
)
def test_dry_run_needs_nothing(arguments, run, clean_environment):
    environment = {**clean_environment, "PATH": "/nowhere"}
    command = [sys.executable, f"{ROOT}/doctor.py", "--dry-run", *arguments]
    _, title, note = run(command, env=environment).stdout.splitlines()
    assert title.startswith("# Longship: doctor.py")
    assert note == "# This command only reads and reports; it runs no script."


def test_runtime_is_reported_once_without_a_configuration(told, monkeypatch):
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/bin/{name}")
    found = told(LongshipError("it's broken", 'say "HOME"'))
    assert [each.topic for each in found].count("runtime") == 1
    assert problem("configuration", "it's broken", 'say "HOME"') in found


def test_broken_part_leaves_the_rest(told, tmp_path):
    found = told(settings_of("jwb", tmp_path, CONFIGURATION.replace('account = "a"', "")))
    problems = [each for each in found if each.state == "problem"]
    (paths,) = [each for each in problems if each.topic == "paths"]
    assert "project.account" in paths.fix
    assert [each.topic for each in problems].count("secrets") == 2
    assert "Slurm" in {each.topic for each in found}


def test_broken_image_leaves_the_rest(told, tmp_path):
    text = '[container]\nruntime = "apptainer"\nimage = "no image"\n'
    found = told(settings_of("local", tmp_path, text))
    (image,) = [each for each in found if each.topic == "image"]
    assert "unknown image source" in image.text
    assert {"GPU", "network", "Slurm"} <= {each.topic for each in found}


@pytest.mark.parametrize(
    ("image", "url"),
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
def test_server_of_the_image_is_asked(image, url, told, servers, tmp_path):
    text = f'[container]\nruntime = "apptainer"\nimage = "{image}"\n'
    told(settings_of("local", tmp_path, text))
    assert sorted(servers[1:]) == url or sorted(servers) == sorted([servers[0], *url])


def test_folder_that_cannot_be_looked_into_has_neither_image_nor_venv(told, tmp_path, unseen):
    text = (
        f'[paths]\nscratch_dir = "{unseen}"\n[packages]\nrequirements = "x.txt"\n'
        '[container]\nruntime = "apptainer"\nimage = "docker://x/base:1"\n'
    )
    found = told(settings_of("local", tmp_path, text))
    assert {"image", "packages", "network"} <= {each.topic for each in found}


@pytest.mark.parametrize(
    ("machine", "environ", "state", "wanted"),
    [
        ("auto", {}, "ok", "local, this machine (local/site.toml): no known site"),
        ("auto", {"SYSTEMNAME": "jupiter"}, "ok", "detected by SYSTEMNAME=jupiter"),
        ("jpb", {"SYSTEMNAME": "jupiter"}, "ok", "also detected by SYSTEMNAME=jupiter"),
        ("jpb", {}, "ok", "set in command line; no known site"),
        ("local", {"SYSTEMNAME": "jupiter"}, "warning", "SYSTEMNAME=jupiter identifies jpb"),
        ("lumi", {"SYSTEMNAME": "jupiter"}, "warning", "SYSTEMNAME=jupiter identifies jpb"),
    ],
)
def test_machine_is_told_with_its_mark(machine, environ, state, wanted, told, tmp_path):
    environ = {"HOME": "/home/me", "USER": "me", "PATH": "", **environ}
    options = {"machine": machine, "configuration": shared_configuration(tmp_path)}
    found = told(load_settings(Path(ROOT), options, environ))
    (mark,) = [each for each in found if each.topic == "machine"]
    assert mark.state == state
    assert wanted in mark.text


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


def test_json_holds_whatever_names_hold(hostile_arguments, capsys):
    report = Diagnosis(as_json=True)
    for each in hostile_arguments:
        report.add(warning("topic", each, each))
    report.end([("key", each, "origin") for each in hostile_arguments])
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["problems"]) == (VERSION, 0)
    assert found["warnings"] == len(hostile_arguments)
    for number, text in enumerate(hostile_arguments):
        wanted = os.fsencode(text).decode("utf-8", "replace").rstrip("\ufffd")
        assert found["findings"][number]["fix"].rstrip("\ufffd") == wanted
        assert found["values"][number]["value"].rstrip("\ufffd") == wanted
        assert not any(ord(character) < 32 for character in found["findings"][number]["text"])


def finding_of(state):
    return reports.Finding(state, "topic", f"is {state}", "" if state == "ok" else f"mend {state}")


@pytest.mark.parametrize(
    ("states", "code"),
    [(("ok",), 0), (("ok", "warning"), 0), (("warning", "problem"), 1), (("problem",), 1)],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_only_a_problem_is_an_exit_code(as_json, states, code, capsys):
    report = Diagnosis(as_json=as_json)
    for each in states:
        report.add(finding_of(each))
    ended = 0
    try:
        report.end()
    except SystemExit as error:
        ended = error.code
    assert ended == code
    text = capsys.readouterr().out
    worst = next((each for each in ("problem", "warning") if each in states), None)
    if as_json:
        assert json.loads(text)["problems"] == states.count("problem")
    elif worst:
        assert text.splitlines()[-2] == f"next: mend {worst}"
    else:
        assert text.splitlines()[-1] == "no problems found"


def test_text_is_wrapped_and_a_fix_is_not(capsys):
    text, fix = "many words " * 30, "copy this " * 20
    Diagnosis(as_json=False).add(warning("a topic", text, fix))
    *wrapped, fixed = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in wrapped)
    assert len(wrapped) > 4
    assert " ".join(" ".join(wrapped).split()[3:]) == text.strip()
    assert fixed == f"         fix: {fix}"


def test_user_id_without_a_name_is_told_as_a_number(monkeypatch, servers):
    def nobody(_):
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setattr(node.os, "geteuid", lambda: 4242)
    (told, *_) = node.find_node()
    assert ", 4242, in no job" in told.text
    fakeroot = next(each for each in node.find_user_rights("x", None) if each.topic == "fakeroot")
    assert "4242 has" in fakeroot.text


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals(no_colour, coloured, clean_environment, tmp_path):
    text = "from lib.doctor.report import *; Diagnosis(as_json=False).add(problem('a', 'b', 'c'))"
    environment = {**clean_environment, "NO_COLOR": no_colour, "PYTHONPATH": ROOT}
    command = [sys.executable, "-c", text]
    with Terminal(command, env=environment, cwd=tmp_path, term="xterm") as terminal:
        assert terminal.end() == 0
    assert "fix: c" in terminal.said
    assert ("\x1b[31m" in terminal.said) == coloured


SHARE = "share the output of: python3 doctor.py --json"


@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        ('fail "it is broken" "mend it"', [problem("it", "it is broken", "mend it")]),
        ('warn_of "it is worn" "oil it"', [warning("it", "it is worn", "oil it")]),
        (
            'warn_of "it is worn" "oil it"; warn_of "it leaks" "tape it"',
            [warning("it", "it is worn", "oil it"), warning("it", "it leaks", "tape it")],
        ),
        ("exit 3", [problem("it", "", SHARE)]),
        ("echo 'cp: cannot' >&2; return 1", [problem("it", "cp: cannot", SHARE)]),
        ("note something", [ok("it", "fine")]),
    ],
)
def test_what_other_scripts_say_becomes_a_finding(check, wanted):
    assert list(asked("it", f"try_it() {{ {check}; }}", "try_it", text="fine")) == wanted


def test_check_that_hangs_or_fails_leaves_the_others(monkeypatch, capsys):
    report = Diagnosis(as_json=True)

    def hang():
        yield ok("disk", "before")
        time.sleep(1000)

    def fail():
        raise LongshipError("it is broken", "mend it")

    with monkeypatch.context() as impatient:
        impatient.setattr(reports, "_SILENCE", 3)
        report.run("disk", hang)
    report.run("it", fail)
    report.run("file", lambda: [Path("/no/where").stat()])
    report.run("last", lambda: [ok("last", "is told")])
    assert [each.topic for each in report.findings] == ["disk", "disk", "it", "file", "last"]
    assert "no response" in report.findings[1].text
    assert report.findings[2] == problem("it", "it is broken", "mend it")
    assert report.findings[3].text == "cannot read /no/where: No such file or directory"


def test_what_takes_too_long_is_ended_with_all_it_started(monkeypatch, tmp_path):
    mark = tmp_path / "pid"

    class Begun(subprocess.Popen):
        def communicate(self, *words, **options):  # the time begins here
            wait_until(lambda: mark.exists() and mark.read_text())
            return super().communicate(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", Begun)
    hang = f"echo before; sleep 1000 & echo $! >{call(mark)}; wait"
    assert bash(hang, seconds=1) == Output("before\n", 124)
    wait_until(lambda: _is_dead(mark.read_text().strip()))


def test_interruption_ends_what_was_started(tmp_path):
    mark = tmp_path / "pid"
    text = (
        "import sys; from lib.doctor.report import *; exit_on_signals()\n"
        "Diagnosis(as_json=True).run('it', lambda: asked('it', sys.argv[1]))"
    )
    command = [sys.executable, "-c", text, f"echo $$ >{call(mark)}; sleep 1000"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ROOT}) as process:
        wait_until(lambda: mark.exists() and mark.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    wait_until(lambda: _is_dead(mark.read_text().strip()))


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
def test_password_in_a_url_is_not_shown(url, shown):
    assert network.without_login(url) == shown


@pytest.mark.parametrize(
    ("driver", "answer", "state", "wanted"),
    [
        (Driver(cuda="12.4"), "seen=2 cuda=12.9.1", "ok", "2 visible; the image has CUDA 12.9"),
        (Driver(cuda="12.4"), "seen=1 cuda=", "ok", "of a version that it does not say"),
        (Driver(cuda="unknown"), "seen=1 cuda=13.0", "ok", "the image has CUDA 13.0"),
        (Driver(cuda="12.4"), "seen=0 cuda=12.9", "problem", "GPUs of this node are not visible"),
        (Driver(cuda="12.4"), "", "problem", "GPUs of this node are not visible"),
        (Driver(cuda="12.4"), "seen=1 cuda=13.0", "problem", "the driver supports only 12.4"),
        (
            *(Driver(cuda="12.4"), "seen=1 cuda=13.0 compatible=yes"),
            *("warning", "data-center GPUs"),
        ),
        (
            *(Driver(amd="6.10.5"), "seen=0 kfd=yes rocm=6.4.3"),
            *("ok", "ROCm 6.4.3, the driver is 6.1"),
        ),
        (Driver(amd="6.10.5"), "seen=0 rocm=6.4.3", "problem", "GPUs of this node are not visible"),
    ],
)
def test_gpus_inside_are_compared_with_the_driver(driver, answer, state, wanted):
    # what an image answers: the tests' machines have neither GPUs nor such images
    (found,) = find_gpus_inside(driver, answer.replace(" ", "\n"))
    assert found.state == state
    assert wanted in found.text
    assert bool(found.fix) == (state != "ok")


def test_all_functions_have_their_name_alone():
    """Emitted scripts take functions by their names: two of one name would be one too few."""
    names = [
        line.partition("(")[0]
        for path in shell_files()
        for line in path.read_text().splitlines()
        if line.endswith("() {") and not line.startswith((" ", "#"))
    ]
    twice = [name for name, group in itertools.groupby(sorted(names)) if len(list(group)) > 1]
    assert twice == []


@pytest.mark.parametrize(
    ("setuid", "allowed", "state"),
    [
        (False, "allow setuid-mount squashfs = yes", "warning"),  # unpacks
        (True, "allow setuid-mount squashfs = yes", "ok"),
        (True, "max loop devices = 256", "ok"),  # SingularityCE
        (True, "# allow setuid-mount squashfs = iflimited", "problem"),  # the default since 1.3
        (True, "# allow setuid-mount squashfs = no\nallow setuid-mount squashfs = yes", "ok"),
        (True, "allow setuid-mount squashfs = no", "problem"),
    ],
)
def test_setuid_runtime_needs_fuse_unless_the_kernel_mounts(
    tmp_path, setuid, allowed, state, monkeypatch
):
    folder = tmp_path / "it's lib"
    starter = folder / "apptainer/bin/starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755 if setuid else 0o755)
    runtime = tmp_path / "apptainer"
    settings = tmp_path / "apptainer.conf"
    settings.write_text(f"# allow setuid-mount extfs = no\n{allowed}\n")
    facts = f"BINDIR=/x\nLIBEXECDIR={folder}\nAPPTAINER_CONF_FILE={settings}"
    runtime.write_text(f'#!/bin/sh\necho "{facts}"\n')
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "access", lambda *_: False)  # /dev/fuse
    states = {each.topic: each.state for each in node.find_user_rights("apptainer", None)}
    assert states["FUSE"] == state


@pytest.mark.parametrize(
    ("runtime", "version", "warned"),
    [
        ("apptainer", "apptainer version 1.4.5", True),
        ("apptainer", "apptainer version 1.5.0-1.el9", True),
        ("apptainer", "apptainer version 1.5.1-1.el9", False),
        ("apptainer", "apptainer version 1.10.0", False),
        ("singularity", "apptainer version 1.3.6", True),  # an alias
        ("singularity", "singularity-ce version 1.4.5", False),
    ],
)
def test_vulnerable_apptainer_is_told(runtime, version, warned, tmp_path, monkeypatch):
    program = tmp_path / runtime
    program.write_text(
        f'#!/bin/sh\ncase "$*" in\n  --version) echo "{version}" ;;\n  version) ;;\n'
        "  *) exit 2 ;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told, *found = find_runtime(runtime, "")
    assert (told.state, told.topic, told.text) == ("ok", "runtime", version)
    assert [each.state for each in found] == ["warning"] * warned
    assert all("CVE-2026-48785" in each.text for each in found)


def test_image_of_a_killed_build_is_a_leftover(tmp_path):
    image = tmp_path / "scratch/containers/build/partial-4711-pytorch_amd64.sif"
    image.parent.mkdir(parents=True)
    image.touch()
    os.utime(image, (1, 1))
    (found,) = node.find_leftovers(tmp_path, tmp_path / "project", tmp_path / "scratch")
    assert (found.state, found.fix) == ("warning", f"rm -r {image}")
