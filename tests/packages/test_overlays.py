"""What an overlay is called, where its packages are seen, and what goes into it or into a venv."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from support.terminal import Terminal

from lib.packages.overlay import build_lines, overlay_link
from lib.packages.set_up import install_lines
from lib.runtimes.environment import Environment
from lib.runtimes.packages import (
    configured_overlay,
    install_steps,
    seen_at,
    unpacked,
    wanted_venv,
)
from lib.script.errors import LongshipError
from lib.script.render import render

CONFIGURED = '[packages]\noverlay = "myenv"\nrequirements = "r.txt"\n'
REPOSITORY = '[[repositories]]\nurl = "https://example.org/one.git"\n'


@pytest.fixture
def configured(repository):
    """Give a function that configures an overlay and returns settings and paths."""

    def configure(more="", text=CONFIGURED, **options):
        repository.write("r.txt", "trl\ndatasets\nsacrebleu\nwandb\n")
        repository.write("configuration.toml", text + more)
        return repository.settings_and_paths(**options)

    return configure


def test_name_holds_the_requirements_checksum(configured):
    link = configured_overlay(*configured(arch="arm64"))
    assert str(link) == "/home/me/longship-data/scratch/overlays/myenv_998211f8576b_arm64.sqsh"


def test_none_is_configured_unless_it_has_a_name(configured):
    given = configured(text='[packages]\nrequirements = "r.txt"\n')
    assert configured_overlay(*given) is None
    assert Environment(*given, "host").overlay == ""
    with pytest.raises(LongshipError, match="no overlay is configured"):
        overlay_link(*given)


@pytest.mark.parametrize("name", ["a/b", ".hidden", "-n", "a b", "a\\nb", "ü"])
def test_name_that_no_file_can_have_is_told(name, configured):
    with pytest.raises(LongshipError, match="packages.overlay in configuration.toml") as error:
        configured_overlay(*configured(text=CONFIGURED.replace("myenv", name)))
    assert "letters, digits" in error.value.hint


def test_missing_requirements_are_told(configured):
    for text, message in (("r.txt", "cannot read"), ('"r.txt"', "is empty")):
        changed = CONFIGURED.replace(text, {"r.txt": "x.txt"}.get(text, '""'))
        with pytest.raises(LongshipError, match=message):
            configured_overlay(*configured(text=changed))


def test_version_that_the_link_leads_to_is_started(repository, tmp_path):
    repository.write("r.txt", "trl\n")
    repository.write("configuration.toml", f'{CONFIGURED}[paths]\nscratch_dir = "{tmp_path}"\n')
    given = repository.settings_and_paths()
    link = configured_overlay(*given)
    # not built yet: what is missing is told by its name
    assert Environment(*given, "host").overlay == str(link)
    link.parent.mkdir()
    link.symlink_to("versions/a.sqsh")
    assert Environment(*given, "host").overlay == f"{tmp_path}/overlays/versions/a.sqsh"


def test_packages_are_seen_at_one_path_but_without_a_container():
    file = "/s/overlays/versions/myenv_1_amd64_2.sqsh"
    assert unpacked(file) == "/s/overlays/unpacked/myenv_1_amd64_2"
    assert seen_at(file, "host") == unpacked(file)
    assert {seen_at(file, runtime) for runtime in ("apptainer", "docker")} == {"/user-software"}


def test_venv_above_it_is_for_repositories_alone(configured):
    settings, paths = configured()
    assert wanted_venv(settings, paths) is None
    assert install_steps(settings, paths) == ["python3 build_overlay.py"]
    settings, paths = configured(REPOSITORY)
    assert wanted_venv(settings, paths) == paths.venv
    assert install_steps(settings, paths)[-1] == "python3 set_up.py install"
    settings, paths = configured(f'{REPOSITORY}install = "requirements"\n')
    assert wanted_venv(settings, paths) is None  # a list of packages goes into the overlay


def test_set_up_without_repositories_leaves_the_packages_to_the_overlay(configured):
    lines = "\n".join(install_lines(Environment(*configured(), "host")))
    assert "see: python3 build_overlay.py" in lines and "venv_install" not in lines
    assert lines.endswith("next_step 'python3 build_overlay.py'")
    last = install_lines(Environment(*configured(), "host"), offline=True)[-1]
    assert last == "next_step 'python3 build_overlay.py offline'"


@pytest.mark.parametrize("memory", ["2", "G", "2 G", "2g", "-1G", "2GB"])
def test_memory_that_no_packer_understands_is_told(memory, configured):
    with pytest.raises(LongshipError, match="packages.memory") as error:
        given = configured(text=f'{CONFIGURED}memory = "{memory}"\n')
        build_lines(Environment(*given, "host"), command_line="x")
    assert '"2G"' in error.value.hint


# --- what runs inside


INSIDE = str(Path(__file__).resolve().parents[2] / "lib/packages/inside")


PINS = "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"


def freeze(run, tree, folder, *facts):
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (folder / "c").mkdir(exist_ok=True)
    (work / "requirements.txt").write_text("a\n")
    (work / "pins.txt").write_text(PINS)
    arguments = [tree, "315532800", folder / "c/cache", "2", work, *facts]
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}  # as a build sets it
    run([sys.executable, INSIDE, "freeze_packages.freeze", *arguments], env=environment)


def make_tree(tree):
    packages = tree / "lib/python3/site-packages/a"
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text("VALUE = {'b', 'c', 1}\n")
    (packages / "template.py").write_text("this is {{ no Python\n")
    (packages / "nul.py").write_bytes(b"x = 1\n\0")
    (packages / "tool.sh").write_text("#!/bin/sh\n")
    (packages / "tool.sh").chmod(0o700)
    (packages / "secret.txt").write_text("x")
    (packages / "secret.txt").chmod(0o600)
    (tree / "lib64").symlink_to("lib")
    (tree / ".lock").write_text("")
    return packages


def test_frozen_packages_say_what_they_are_and_not_when_they_were_made(run, tmp_path):
    packages = make_tree(tmp_path / "tree")
    info = packages.parent / "a-1.dist-info"
    info.mkdir()
    (info / "uv_cache.json").write_text("{}")
    (info / "RECORD").write_text("a-1.dist-info/uv_cache.json,sha256=1,2\na/__init__.py,,\n")
    freeze(run, tmp_path / "tree", tmp_path, "image", 'sha256:1"')
    assert not (tmp_path / "tree/.lock").exists()
    assert [path.name for path in info.iterdir()] == ["RECORD"]
    assert (info / "RECORD").read_text() == "a/__init__.py,,\n"
    manifest = json.loads((tmp_path / "tree/longship-overlay.json").read_text())
    assert manifest == {
        "image": 'sha256:1"',
        "lock": "a==1\n",
        "requirements": "a\n",
    }
    # compiled for the time that the source has once it is packed; the source keeps its own
    (compiled,) = packages.rglob("*.pyc")
    assert int.from_bytes(compiled.read_bytes()[8:12], "little") == 315532800
    assert (packages / "__init__.py").stat().st_mtime > 315532800


def test_compiled_files_are_taken_from_the_cache_and_are_the_same(run, tmp_path):
    found = []
    for _ in range(2):
        packages = make_tree(tmp_path / "tree")
        freeze(run, tmp_path / "tree", tmp_path)
        cached = sorted(packages.rglob("*.pyc"))
        found.append({path.name: path.read_bytes() for path in cached})
        for path in sorted((tmp_path / "tree").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert found[0] == found[1] and len(found[0]) == 1
    (cache,) = (tmp_path / "c").iterdir()
    assert cache.name.startswith("cache-3.")
    cache.write_bytes(b"cut short")  # it is made again
    make_tree(tmp_path / "tree")
    freeze(run, tmp_path / "tree", tmp_path)
    assert cache.stat().st_size > 100


def change_a_constant(cache):
    content = cache.read_bytes()
    assert content.count(b"VALUE") > 0
    cache.write_bytes(content.replace(b"VALUE", b"OTHER"))


@pytest.mark.parametrize("damage", [change_a_constant, lambda cache: cache.chmod(0o666)])
def test_cache_that_may_be_changed_is_not_used(damage, run, tmp_path):
    packages = make_tree(tmp_path / "tree")
    freeze(run, tmp_path / "tree", tmp_path)
    (compiled,) = packages.rglob("*.pyc")
    right = compiled.read_bytes()
    compiled.unlink()
    (cache,) = (tmp_path / "c").iterdir()
    damage(cache)
    freeze(run, tmp_path / "tree", tmp_path)
    assert compiled.read_bytes() == right
    assert stat.S_IMODE(cache.stat().st_mode) == 0o644  # it was written anew


@pytest.mark.parametrize(
    "pins",
    [
        PINS + "b @ https://example.org/b.whl \\\n    --hash=sha256:3\n",
        "b @ https://me:" + "secret@example.org/b.whl --hash=sha256:3\na==1 --hash=sha256:1\n",
        "--extra-index-url https://example.org\na==1\n\nb @ https://example.org/b.whl\n",
    ],
)
def test_lock_of_the_manifest_has_one_form(pins, run, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PINS", pins)
    make_tree(tmp_path / "tree")
    freeze(run, tmp_path / "tree", tmp_path)
    manifest = json.loads((tmp_path / "tree/longship-overlay.json").read_text())
    assert manifest["lock"] == "a==1\nb @ https://example.org/b.whl\n"


def test_cache_is_really_used(run, tmp_path):
    packages = make_tree(tmp_path / "tree")
    freeze(run, tmp_path / "tree", tmp_path)
    (compiled,) = packages.rglob("*.pyc")
    compiled.unlink()
    broken = "import py_compile; py_compile.compile = None; import runpy, sys; "
    broken += "sys.argv = sys.argv[1:]; "
    broken += "runpy.run_path(sys.argv[0], run_name='__main__')"
    (packages / "template.py").unlink()
    (packages / "nul.py").unlink()
    words = [tmp_path / "tree", "315532800", tmp_path / "c/cache", "1", tmp_path / "work"]
    run([sys.executable, "-c", broken, INSIDE, "freeze_packages.freeze", *words])
    assert compiled.exists()


def test_number_of_compiled_files_is_shown(clean_environment, tmp_path):
    packages = make_tree(tmp_path / "tree")
    for number in range(100):
        (packages / f"{number}.py").write_text(f"VALUE = {number}\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "c").mkdir()
    words = [tmp_path / "tree", "315532800", tmp_path / "c/cache", "1", tmp_path / "work"]
    command = [sys.executable, INSIDE, "freeze_packages.freeze", *words]
    with Terminal(command, env=clean_environment, cwd=tmp_path) as terminal:
        terminal.expect("100 of 103 files")


# --- functions of lib/packages/


def test_record_can_have_several_bases(run, clean_environment, tmp_path):
    file = tmp_path / "r.json"
    lines = [
        f"record_write '{file}' base 'a \"b\"' wanted 1 last x",
        "base=it\\'s",
        f"overlay_add_base '{file}'",
        f"overlay_add_base '{file}'",
        f"record_value '{file}' base",
        "bases=$REPLY",
        "for each in 'a \"b\"' \"it's\" 'a' 's'; do",
        '  if overlay_has_base "$each" "$bases"; then echo "$each"; fi',
        "done",
    ]
    done = run(["bash", "-c", render("a test", lines)], env=clean_environment)
    assert done.stdout == 'a "b"\nit\'s\n'
    assert json.loads(file.read_text()) == {"base": 'a "b"\nit\'s', "wanted": "1", "last": "x"}


def test_passwords_are_left_out(run, clean_environment):
    text = (
        "--extra-index-url https://me:" + "secret@example.org/simple\nx @ https://a.org/x@1.whl\n"
    )
    command = ["bash", "-c", render("a test", ["strip_passwords"])]
    done = run(command, env=clean_environment, input=text)
    assert "secret" not in done.stdout and "https://example.org/simple" in done.stdout
    assert "https://a.org/x@1.whl" in done.stdout
