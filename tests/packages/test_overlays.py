"""What an overlay is called, where its packages are seen, and what goes into it or into a venv."""

import json
import os
import re
import stat
import sys
from shlex import quote

import pytest

from lib import ROOT
from lib.packages.overlay import overlay_link, overlay_prune_lines
from lib.packages.set_up import install_lines
from lib.runtimes.environment import Environment
from lib.runtimes.packages import Packages, seen_at
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
    link = Packages(*configured(arch="arm64")).overlay
    assert str(link) == "/home/me/longship-data/scratch/overlays/myenv_998211f8576b_arm64.sqsh"


def test_none_is_configured_unless_it_has_a_name(configured):
    given = configured(text='[packages]\nrequirements = "r.txt"\n')
    assert Packages(*given).overlay is None
    assert Environment(*given, "host").overlay == ""
    with pytest.raises(LongshipError, match="no overlay is configured"):
        overlay_link(Packages(*given))


@pytest.mark.parametrize("name", ["a/b", ".hidden", "-n", "a b", "a\\nb", "ü"])
def test_name_that_no_file_can_have_is_told(name, configured):
    packages = Packages(*configured(text=CONFIGURED.replace("myenv", name)))
    with pytest.raises(LongshipError, match="packages.overlay in configuration.toml") as error:
        _ = packages.overlay
    assert "letters, digits" in error.value.hint


def test_missing_requirements_are_told(configured):
    for text, message in (("r.txt", "cannot read"), ('"r.txt"', "is empty")):
        changed = CONFIGURED.replace(text, {"r.txt": "x.txt"}.get(text, '""'))
        packages = Packages(*configured(text=changed))
        with pytest.raises(LongshipError, match=message):
            _ = packages.overlay


def test_version_that_the_link_leads_to_is_started(repository, tmp_path):
    repository.write("r.txt", "trl\n")
    repository.write("configuration.toml", f'{CONFIGURED}[paths]\nscratch_dir = "{tmp_path}"\n')
    given = repository.settings_and_paths()
    link = Packages(*given).overlay
    # not built yet: what is missing is told by its name
    assert Environment(*given, "host").overlay == str(link)
    link.parent.mkdir()
    link.symlink_to("versions/a.sqsh")
    assert Environment(*given, "host").overlay == f"{tmp_path}/overlays/versions/a.sqsh"


def test_packages_are_seen_at_one_path_but_without_a_container():
    file = "/s/overlays/versions/myenv_1_amd64_2.sqsh"
    assert seen_at(file, "host") == "/s/overlays/unpacked/myenv_1_amd64_2"
    assert {seen_at(file, runtime) for runtime in ("apptainer", "docker")} == {"/user-software"}


def test_venv_above_it_is_for_repositories_alone(configured):
    packages = Packages(*configured())
    assert packages.venv is None
    assert packages.steps == ["python3 build_overlay.py"]
    packages = Packages(*configured(REPOSITORY))
    assert packages.venv == packages.paths.venv
    assert packages.steps[-1] == "python3 set_up.py install"
    packages = Packages(*configured(f'{REPOSITORY}install = "requirements"\n'))
    assert packages.venv is None  # a list of packages goes into the overlay


def test_set_up_without_repositories_leaves_the_packages_to_the_overlay(configured):
    lines = "\n".join(install_lines(Environment(*configured(), "host"), "x"))
    assert "see: python3 build_overlay.py" in lines and "venv_install" not in lines
    assert lines.endswith("next_step 'python3 build_overlay.py'")
    last = install_lines(Environment(*configured(), "host"), "x", offline=True)[-1]
    assert last == "next_step 'python3 build_overlay.py offline'"


def test_build_directory_is_that_of_the_lock(repository, tmp_path):
    """Two clones with one scratch directory: one builds for its group, the other one not."""
    repository.write("r.txt", "trl\n")
    works = set()
    (tmp_path / "shared").mkdir()
    for shared in ("", tmp_path / "shared", tmp_path / "shared"):
        text = f'{CONFIGURED}[paths]\nscratch_dir = "{tmp_path}"\nshared_dir = "{shared}"\n'
        repository.write("configuration.toml", text)
        given = repository.settings_and_paths()
        lines = "\n".join(overlay_prune_lines(*given, asked=True)).replace(" \\\n", "")
        works.add(re.search(r"/cache/overlays/longship-[0-9a-f]{12}(?= )", lines)[0])
    assert len(works) == 2


@pytest.mark.parametrize("memory", ["2", "G", "2 G", "2g", "-1G", "2GB"])
def test_memory_that_no_packer_understands_is_told(memory, configured):
    with pytest.raises(LongshipError, match="packages.memory") as error:
        configured(text=f'{CONFIGURED}memory = "{memory}"\n')
    assert '"2G"' in error.value.hint


# --- what is compiled


PINS = "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
FROZEN_AT = 315532800  # all times in it: 1980-01-01


@pytest.fixture
def freeze(run, clean_environment, tmp_path):
    """Give a function that compiles a tree as a build does, and returns its packages."""

    def freeze_tree(pins=PINS):
        tree = tmp_path / "tree"
        packages = make_tree(tree)
        (tmp_path / "pins.txt").write_text(pins)
        (tmp_path / "requirements.txt").write_text("a\n")
        (tree / "bin").mkdir()
        (tree / "bin/python").symlink_to(sys.executable)
        lines = [
            'inside() { "$@"; }',
            f"requirements_begin '' '' '' -r {tmp_path}/requirements.txt",
            f"longship_library={quote(str(ROOT))}/lib",
            f"overlay_work={tmp_path} overlay_tree={tree} overlay_prefix={tree}",
            "overlay_processors=2 overlay_method=bind",
            "overlay_image_id='sha256:1\"' overlay_python=3.12.1 arch=amd64 base=/an/image",
            "overlay_steps=5",
            "overlay_freeze 'uv 1'",
        ]
        environment = {**clean_environment, "PYTHONHASHSEED": "0"}  # as a build sets it
        run(["bash", "-c", render("a test", lines)], env=environment)
        return packages

    return freeze_tree


def make_tree(tree):
    packages = tree / "lib/python3/site-packages/a"
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text("VALUE = {'b', 'c', 1}\n")
    (packages / "template.py").write_text("this is {{ no Python\n")
    (packages / "nul.py").write_bytes(b"x = 1\n\0")
    (tree / "lib64").symlink_to("lib")
    return packages


def test_frozen_packages_say_what_they_are_and_not_when_they_were_made(freeze, tmp_path):
    packages = freeze()
    manifest = json.loads((tmp_path / "tree/longship-overlay.json").read_text())
    assert manifest == {
        "format": "7",
        "image": 'sha256:1"',
        "python": "3.12.1",
        "architecture": "amd64",
        "uv": "uv 1",
        "lock": "a==1",
        "requirements": "a",
    }
    # compiled for the time that the source has once it is packed
    (compiled,) = packages.rglob("*.pyc")
    assert int.from_bytes(compiled.read_bytes()[8:12], "little") == FROZEN_AT
    # the source is a link to uv's cache, which keeps its time
    assert (packages / "__init__.py").stat().st_mtime > FROZEN_AT


@pytest.mark.parametrize(
    "pins",
    [
        PINS + "b @ https://example.org/b.whl \\\n    --hash=sha256:3\n",
        "b @ https://me:" + "secret@example.org/b.whl --hash=sha256:3\na==1 --hash=sha256:1\n",
        "--extra-index-url https://example.org\na==1\n\nb @ https://example.org/b.whl\n",
    ],
)
def test_lock_of_the_manifest_has_one_form(pins, freeze, tmp_path):
    freeze(pins)
    manifest = json.loads((tmp_path / "tree/longship-overlay.json").read_text())
    assert manifest["lock"] == "a==1\nb @ https://example.org/b.whl"


def test_failure_to_compile_is_told(run, clean_environment, tmp_path):
    lines = [
        "inside() { echo reason >&2; return 1; }",
        f"longship_library= venv_disk={tmp_path}",
        f"venv_compile {tmp_path} 0 ''",
    ]
    done = run(["bash", "-c", render("a test", lines)], env=clean_environment, check=False)
    error = f"error: cannot byte-compile the packages in {tmp_path}"
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == ["reason", error]


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


def begin_build(run, clean_environment, works):
    lines = [
        "umask 007",  # of a group's scratch directory
        "overlay_target=/user-software",
        f"overlay_begin /scratch/overlays/my_1_amd64.sqsh '{works}' '' zstd 0 '' '{works}'",
    ]
    return run(["bash", "-c", render("a test", lines)], env=clean_environment, check=False)


def test_build_directory_in_tmp_is_for_the_user_alone(run, clean_environment, tmp_path):
    works, own = tmp_path / "tmp/longship-1", tmp_path / f"tmp/longship-1.{os.getuid()}"
    works.parent.mkdir()
    works.parent.chmod(0o1777)
    for _ in range(2):
        assert begin_build(run, clean_environment, works).returncode == 0
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert (own / "my_1_amd64/root/user-software").is_dir()


def test_build_directory_that_another_user_has_prepared_is_refused(
    run, clean_environment, tmp_path
):
    works, own = tmp_path / "tmp/longship-1", tmp_path / f"tmp/longship-1.{os.getuid()}"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    works.parent.mkdir()
    works.parent.chmod(0o1777)
    own.symlink_to(theirs)
    done = begin_build(run, clean_environment, works)
    error, hint = done.stderr.splitlines()
    assert done.returncode == 1
    assert error == f"error: other users own the build directory, or can write to it: {own}"
    assert hint.startswith(f"hint: run: rm -r {own}; or set packages.work_dir")
    assert not list(theirs.iterdir())


def test_passwords_are_left_out(run, clean_environment):
    text = (
        "--extra-index-url https://me:" + "secret@example.org/simple\nx @ https://a.org/x@1.whl\n"
        "--index-url https://me:" + "an@secret@example.org/simple\n"
    )
    command = ["bash", "-c", render("a test", ["strip_passwords"])]
    done = run(command, env=clean_environment, input=text)
    assert "secret" not in done.stdout and "https://example.org/simple" in done.stdout
    assert "https://a.org/x@1.whl" in done.stdout
    for login in (
        "${TOKEN}",
        "me:${MY_TOKEN}",
        "${ME}:${TOKEN}",
    ):  # pip and uv put the values there
        text = f"--index-url https://{login}@example.org/simple\n"
        assert run(command, env=clean_environment, input=text).stdout == text
    for login in (
        "me:" + "secret",
        "${ME}:" + "secret",
        "secret${TOKEN}",
        "me:" + "secret${TOKEN}",
    ):
        text = f"--index-url https://{login}@example.org/simple\n"
        shown = run(command, env=clean_environment, input=text).stdout
        assert shown == "--index-url https://example.org/simple\n"
