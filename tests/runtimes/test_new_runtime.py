"""A runtime that nobody knows: a pair of files in a clone, and no other change."""

import json
from pathlib import Path

import pytest
from support.repository import Clone, toml

from lib.configuration.sites import own_arch

pytestmark = pytest.mark.xdist_group("tents")  # each test goes on where the last one ended

# Its images are files whose lines are variables: the program starts with these.
PYTHON = '''
"""The runtime tent: its images are lists of variables."""

from lib.runtimes.contract import SHELL
from lib.runtimes.environment import IMAGE, overlay_lines
from lib.script.command import call

ENDINGS = {"tent": "tent"}
SOURCES = ("definition",)
IN_STORE = DAEMON = False


def build(env, tag, work):
    return [call("tent_build")]


def answers(env):
    return ["tent_image"]


def check(env):
    return [call("tent_check", IMAGE, env.image_hint)]


def options(env):
    return overlay_lines(env, "overlay_unpack")


def command_prefix(env):
    return ["tent", "enter", IMAGE, *SHELL]


def start_probe(program, image):
    return [program, "enter", image, "true"]
'''
BASH = """# shellcheck shell=bash
# The runtime tent.

# tent_check FILE HINT: stop if it is not an image.
tent_check() {
  image_check_readable "$1" "$2"
  grep -q '^TENT=' -- "$1" || fail "not a tent: $1" "$2"
}

# tent_build: copy the list.
tent_build() {
  build_run cp -- "$build_file" "$build_partial"
}

# tent_image QUESTION FILE [ARGUMENT]...: see image_ask.
tent_image() {
  case $1 in
    check) tent_check "$2" "$4" ;;
    exec) tent enter "${@:2}" ;;
    identify) printf 'tent:%s' "$(cksum <"$2")" ;;
    *) image_file "$@" ;;
  esac
}
"""
PROGRAM = """#!/bin/bash
case $1 in
  version) echo 1.0 ;;
  --version) echo tent version 1.0 ;;
  enter) exec env $(<"$2") "${@:3}" ;;
esac
"""


@pytest.fixture(scope="module")
def clone(root, session_environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tents")
    program = folder / "bin/tent"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environment = dict(session_environment, PATH=f"{program.parent}:{session_environment['PATH']}")
    clone = Clone(root, folder / "it's a clone", environment)
    (clone.root / "extras/tent").mkdir(parents=True)
    (clone.root / "extras/tent/tent.py").write_text(PYTHON)
    (clone.root / "extras/tent/tent.bash").write_text(BASH)
    (clone.root / "mine.def").write_text("TENT=first\n")
    clone.configure(
        f"[paths]\nproject_dir = {toml(folder / 'project')}\n"
        f'scratch_dir = {toml(folder / "scratch")}\n[container]\nruntime = "tent"\n'
        'image = "mine.def"\n[packages]\nrequirements = ""\n'
    )
    clone.active = folder / f"scratch/containers/mine_{own_arch()}.tent"
    return clone


def test_image_is_built_activated_started_listed_and_pruned(clone):
    for text in ("TENT=first\n", "TENT=second\n"):
        (clone.root / "mine.def").write_text(text)
        clone.build()
        clone.move()
    active = clone.active
    assert active.is_symlink() and active.read_text() == "TENT=second\n"
    done = clone.container_run("sh", "-c", 'echo "$TENT" "$LONGSHIP_MACHINE" "$@"', "x", "a b")
    assert done.stdout == "second local a b\n"
    assert clone.container_run("sh", "-c", "exit 7", check=False).returncode == 7
    clone.move("--rollback")
    assert clone.container_run("sh", "-c", 'echo "$TENT"').stdout == "first\n"
    rows = json.loads(clone.move("--list", "--json").stdout)
    assert [each["in_use"] for each in rows] == [True, False]
    used = active.resolve()
    assert json.loads(Path(f"{used}.json").read_text())["tools"] == "tent version 1.0"
    clone.move("--prune")
    assert [each.name for each in used.parent.glob("*.tent")] == [used.name]


def test_doctor_checks_it(clone):
    found = json.loads(clone.type("doctor.py", "--json", check=False).stdout)
    shown = {each["topic"]: (each["state"], each["text"]) for each in found["findings"]}
    assert shown["runtime"] == ("ok", "tent version 1.0")
    assert shown["inside"][0] == "ok" and shown["image"][0] == "ok"


def test_damaged_image_is_told(clone):
    image = clone.active.resolve()
    text = image.read_text()
    image.write_text("no list\n")
    done = clone.container_run("true", check=False)
    assert f"error: not a tent: {image}" in done.stderr
    assert "damaged: 8 bytes, recorded: 11" in clone.move("--list").stdout
    image.write_text(text)


def test_it_is_found_without_being_configured(clone):
    clone.change('runtime = "tent"', 'runtime = "auto"')
    done = clone.container_run("sh", "-c", 'echo "$TENT"')
    assert done.stdout == "first\n"
    assert "runtime tent (the first that works on this machine)" in done.stderr
