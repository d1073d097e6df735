"""What is installed, and when there is nothing to install."""

import os
import re
import sys
from pathlib import Path

import pytest
from support.git import make_upstream

import lib
from lib.configuration.layers import load_settings
from lib.packages.install import data_command
from lib.packages.set_up import install_lines, update_lines
from lib.runtimes.environment import Environment
from lib.runtimes.packages import Packages
from lib.script.command import assign
from lib.script.errors import LongshipError
from lib.script.render import render


@pytest.fixture
def bash(run, tmp_path):
    """Give a function that runs lines with what install.py sets; `inside` says a text."""

    def run_lines(*lines, said="", **options):
        (tmp_path / "r.txt").write_text("# numppy\nNumppy>=1\n")
        (tmp_path / "other.txt").write_text("numpy\n")
        assigned = [
            "inside() { printf '%s\\n' \"$TEXT\" >&2; return 1; }",
            f"requirements_begin '' '' offline-mode -r {tmp_path}/r.txt -r {tmp_path}/other.txt",
            f"venv_installer=uv venv_uv={tmp_path}/tools/uv",
            assign("longship_library", f"{lib.ROOT}/lib"),
        ]
        command = ["bash", "-c", render("a test", [*assigned, *lines])]
        return run(command, env={"PATH": os.environ["PATH"], "TEXT": said}, check=False, **options)

    return run_lines


def test_venv_is_wanted_for_a_requirements_file(repository):
    settings, paths = repository.settings_and_paths()
    assert Packages(settings, paths).venv == paths.venv


def test_no_requirements_want_no_venv_and_nothing_is_installed(repository):
    repository.write("configuration.toml", '[packages]\nrequirements = ""\n')
    settings, paths = repository.settings_and_paths()
    assert Packages(settings, paths).venv is None
    with pytest.raises(
        LongshipError, match="nothing to install: packages.requirements is empty"
    ) as error:
        install_lines(Environment(settings, paths, "host"), "x")
    assert "set packages.requirements" in error.value.hint


def test_update_of_some_leaves_the_others(repository):
    tables = "".join(f'[[repositories]]\nurl = "/r/{name}.git"\n' for name in ("one", "two"))
    repository.write("configuration.toml", tables)
    env = Environment(*repository.settings_and_paths(), "host")

    def updated(*names):
        lines = "\n".join(update_lines(env, "x", names))
        return {each for each in ("/r/one", "/r/two", "lockfile_update") if f"{each}" in lines}

    assert updated() == {"/r/one", "/r/two", "lockfile_update"}
    assert updated("two") == {"/r/two"}
    assert updated("packages") == {"lockfile_update"}
    assert updated("packages", "one") == {"/r/one", "lockfile_update"}
    with pytest.raises(LongshipError, match='nothing to update: "tow"') as error:
        updated("tow")
    assert 'did you mean "two"?' in error.value.hint


def test_update_beside_an_overlay_resolves_in_the_image(repository):
    """With an overlay, and a repository that is not installed, nothing else needs the image."""
    table = '[[repositories]]\nurl = "/r/one.git"\ninstall = "none"\n'
    repository.write("configuration.toml", f'[packages]\noverlay = "mine"\n{table}')
    env = Environment(*repository.settings_and_paths(), "host")
    lines = "\n".join(update_lines(env, "x"))
    assert "lockfile_update" in lines
    assert "longship_library=" in lines and "inside()" in lines
    assert "inside()" not in "\n".join(update_lines(env, "x", ["one"]))


def test_next_command_names_the_stack_that_was_typed(repository):
    repository.write("requirements/environment.txt", "numpy\n")
    repository.write("configuration.toml", '[packages]\noverlay = "mine"\n')
    env = Environment(*repository.settings_and_paths(stack="pytorch"), "host")
    lines = install_lines(env, "x", offline=True)
    note = "the Python packages are in the overlay, see: python3 build_overlay.py --stack=pytorch"
    assert f"note '{note}'" in lines
    assert lines[-1] == "next_step 'python3 build_overlay.py offline --stack=pytorch'"


def test_requirements_stand_behind_their_option(repository):
    settings, paths = repository.settings_and_paths()
    lines = "\n".join(install_lines(Environment(settings, paths, "host"), "x")).replace(
        " \\\n   ", ""
    )
    assert f"-r {paths.root}/requirements/environment.txt" in lines


def test_change_of_a_copied_repository_is_noticed_with_an_external_diff(
    bash, clean_environment, tmp_path
):
    repository = make_upstream(tmp_path / "repos/one", clean_environment)
    repository.git("config", "diff.external", "true")  # git itself then prints nothing
    lines = [f"repositories_directory={tmp_path}/repos", "requirements_add one '' ./one"]
    before = bash(*lines, "sources_code_sum").stdout
    repository.replace("model.py", "line 1\n", "line one\n")
    assert before and bash(*lines, "sources_code_sum").stdout not in ("", before)


def test_update_says_where_the_locked_versions_are(bash, tmp_path):
    done = bash(
        "requirements_check() { :; }; uv_find() { :; }",
        'target_describe() { mkdir "$1"; touch "$1/python" "$1/glibc"; }',
        'packages_resolve() { touch "$1/pins.txt"; }; inside() { :; }',
        f"base=host arch=amd64 repositories_directory={tmp_path}",
        f"lockfile_begin {tmp_path}/pytorch_amd64.lock host",
        f"lockfile_update {tmp_path}/unfinished uv",
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/pytorch_amd64.lock" in done.stderr
    assert "commit this file" in " ".join(done.stderr.split())


@pytest.mark.parametrize("line", ["installer_run '/a venv' '' a", "packages_resolve /a uv inside"])
def test_installer_says_itself_why_it_fails(line, bash):
    done = bash(
        "arch=amd64 gpu=cpu repositories_directory=/r venv_disk=/", line, said="No solution found"
    )
    said, error, hint = done.stderr.splitlines()
    assert (done.returncode, said) == (1, "No solution found")
    assert error.startswith("error: cannot ") and hint.endswith("without network: offline-mode")


@pytest.mark.parametrize(
    ("content", "error", "hint"),
    [
        (b"-e .\nsix\n", "{0} names a directory: -e .", "name the project under [[repositories]]"),
        (b"  ./libs/x[all]\n", "{0} names a directory: ./libs/x[all]", "under [[repositories]]"),
        (b"--editable=../x\n", "{0} names a directory: --editable=../x", "[[repositories]]"),
        ("six==1\n".encode("utf-16"), "is UTF-16, not UTF-8: {0}", "run: iconv -f UTF-16"),
        (
            b"six\ncolorama @ file:///croot/colorama_1/work\n",
            "{0} names a file of another machine: colorama @ file:///croot/colorama_1/work",
            "pip list --format=freeze",
        ),
        (b"-r it.txt\nsix\n", "includes itself: {0}", "remove the line: -r it.txt"),
    ],
)
def test_file_that_means_something_else_elsewhere_is_refused(content, error, hint, bash, tmp_path):
    (tmp_path / "it.txt").write_bytes(content)
    done = bash(
        "repositories_directory=/r", f"requirements=(-r {tmp_path}/it.txt)", "requirements_check"
    )
    told = done.stderr.splitlines()
    assert done.returncode == 1 and len(told) == 2, done.stderr
    assert told[0] == f"error: requirements file {error.format(tmp_path / 'it.txt')}"
    assert hint in told[1]


@pytest.mark.parametrize("name", ["environment.yml", "poetry.lock", "pylock.toml"])
def test_file_of_another_tool_is_refused(name, bash, tmp_path):
    (tmp_path / name).write_text("a: b\n")
    done = bash(
        "repositories_directory=/r", f"requirements=(-r {tmp_path}/{name})", "requirements_check"
    )
    assert f"error: not a requirements file of pip: {tmp_path}/{name}\n" in done.stderr


def test_ordinary_files_are_accepted(bash, tmp_path):
    (tmp_path / "wheels").mkdir()
    text = f"-e git+https://example.org/x.git#egg=x\n-f ./wheels\na @ file://{tmp_path}/wheels\n"
    (tmp_path / "it.txt").write_text(f"{text}-r more.txt\n-c ./constraints.txt\n# -e .\n")
    (tmp_path / "more.txt").write_text("b[c]>=1.2; python_version > '3'  # ./x\n")
    done = bash(
        "repositories_directory=/r",
        f"requirements=(-r {tmp_path}/it.txt)",
        "requirements_check",
        "echo fine",
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (3, "the new environment lacks six of r.txt; the active one is unchanged"),
        (1, "cannot use the new environment /v; the active one is unchanged"),
    ],
)
def test_check_that_fails_is_not_taken_for_a_lost_package(code, error, bash):
    inside = f"inside() {{ echo 'six of r.txt'; return {code}; }}"
    done = bash("base=host", inside, "venv_check_packages /v")
    assert done.returncode == 1 and done.stderr.splitlines()[-2] == f"error: {error}"


def test_disk_that_is_full_at_the_end_is_told(bash, tmp_path):
    done = bash(
        "venv_files() { echo 'sort: write error' >&2; return 2; }",
        f"venv={tmp_path}/venv venv_new={tmp_path}/new venv_overlay='' base=host",
        'mkdir "$venv_new"; trap venv_discard EXIT; venv_activate inputs',
    )
    error, hint = done.stderr.splitlines()[1:]
    assert (done.returncode, error) == (1, f"error: cannot list the files of {tmp_path}/new")
    assert hint.startswith("hint: ") and not (tmp_path / "new").exists()


def test_lock_that_does_not_match_is_renewed_for_its_stack(bash, tmp_path):
    """The command line can have named the stack: the configured one has another lock file."""
    lock = tmp_path / "my_stack_amd64.lock"
    lock.write_text("# image: host\n# requirements: others\n")
    done = bash(f"repositories_directory={tmp_path}; lockfile_begin {lock} host; lockfile_choose")
    assert "does not match" in done.stderr
    assert "run: python3 set_up.py update --stack my_stack;" in done.stderr


def test_index_without_uv_is_told(bash):
    done = bash("venv_overlay= lockfile=", "installer_choose ''", said="No match for uv")
    *_, said, error, hint = done.stderr.splitlines()
    assert (done.returncode, said, error) == (1, "No match for uv", "error: cannot install uv")
    assert 'packages.installer = "pip"' in hint


@pytest.mark.parametrize("lockfile", ["", "/a/lock"])
def test_packages_above_an_overlay_are_installed_by_pip_and_not_locked(lockfile, bash):
    """uv does not see what the overlay has."""
    done = bash(
        f"venv_overlay=/an/overlay venv_installer=uv venv_new=/v lockfile={lockfile}",
        "requirements=(-r /r) requirements_torch= requirements_sources=()",
        "requirements_above=(-r /above)",
        "installer_choose ''; echo \"$venv_installer\"",
        "installer_run() { printf '%s|' \"$@\"; }; venv_install_packages ''",
    )
    assert (done.returncode, done.stdout) == (0, "pip\n/v||-r|/above|")


@pytest.mark.parametrize("lockfile", ["", "/a/lock"])
def test_packages_above_an_overlay_keep_its_torch(lockfile, bash, tmp_path):
    done = bash(
        f"venv_overlay=/an/overlay venv_installer=pip venv_new={tmp_path} lockfile={lockfile}",
        "requirements=() requirements_torch=/torch requirements_sources=()",
        "requirements_above=(-r /above)",
        "installer_run() { printf '%s|' \"${@:3}\"; }; venv_install_packages 2.9.0+cpu",
    )
    constraints = tmp_path / "longship-constraints.txt"
    assert (done.returncode, done.stdout) == (0, f"-r|/above|-c|{constraints}|")
    assert constraints.read_text() == "torch==2.9.0+cpu\n"


@pytest.mark.parametrize(
    ("lockfile", "installer", "found"),
    [("", "pip", True), ("", "uv", True), ("LOCK", "uv", True), ("LOCK", "pip", False)],
)
def test_uv_is_wanted_by_who_uses_it(lockfile, installer, found, bash, tmp_path):
    """To resolve versions, or to install them."""
    (tmp_path / "lock").write_text("a==1\n")
    lock = tmp_path / "lock" if lockfile else ""
    done = bash(
        "uv_find() { echo found; }; target_describe() { :; }; packages_resolve() { :; }",
        f"overlay_work={tmp_path} venv_installer={installer} lockfile={lock}",
        "overlay_resolve",
    )
    assert (done.returncode, done.stdout) == (0, "found\n" if found else "")


def test_full_disk_is_told_where_packages_are_installed_in_a_mount(bash):
    """Outside the container there is no such path."""
    done = bash(
        "stat() { if [[ ${*: -1} == /disk ]]; then echo 0 4096 1 9; else return 1; fi; }",
        "venv_disk=/disk venv_installer=uv base=host",
        "(venv_create /user-software) || (venv_compile /user-software 1 '') || "
        "installer_run /user-software ''",
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3
    assert all(each.endswith(": No space left on device") for each in errors)


def test_hint_for_a_missing_requirements_file_names_both_keys(bash, tmp_path):
    done = bash(
        f"repositories_directory={tmp_path}",
        "requirements_above=(-r /nowhere/more.txt); requirements_check",
    )
    error, hint = done.stderr.splitlines()[-2:]
    assert error == "error: requirements file not found: /nowhere/more.txt"
    assert "requirements and venv_requirements in [packages]" in hint


@pytest.mark.parametrize(
    ("version", "kept"), [("PINNED", True), ("PINNED (arm64)", True), ("0.9", False)]
)
def test_uv_of_another_version_is_replaced(version, kept, bash, tmp_path):
    (pin,) = re.findall(
        r"^uv==([\d.]+)$", Path(lib.ROOT, "lib/packages/inside/uv.txt").read_text(), re.M
    )
    uv = tmp_path / "tools/uv"
    uv.parent.mkdir()
    uv.write_text(f"#!/bin/sh\necho 'uv {version.replace('PINNED', pin)}'\n")
    uv.chmod(0o755)
    done = bash('inside() { [[ $1 != sh ]] && "$@"; }', "uv_fetch() { echo fetched; }", "uv_find")
    assert (done.returncode, done.stdout) == (0, "" if kept else "fetched\n")


@pytest.mark.parametrize(("version", "kept"), [("PINNED", True), ("0.9", False)])
def test_venv_for_downloads_with_another_uv_is_replaced(version, kept, bash, tmp_path):
    (pin,) = re.findall(
        r"^uv==([\d.]+)$", Path(lib.ROOT, "lib/packages/inside/uv.txt").read_text(), re.M
    )
    programs = tmp_path / "fetcher/bin"
    programs.mkdir(parents=True)
    for name, said in (("uv", f"uv {version.replace('PINNED', pin)}"), ("python", "")):
        (programs / name).write_text(f"#!/bin/sh\necho {said}\n")
        (programs / name).chmod(0o755)
    stop = "directory_make() { echo replaced; exit; }"
    done = bash(stop, f"wheelhouse_fetcher={tmp_path}/fetcher", "wheelhouse_make_fetcher")
    assert (done.returncode, done.stdout.strip()) == (0, "" if kept else "replaced")


def test_index_of_pytorch_that_is_not_reached_leaves_the_other_one(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(f"{lib.ROOT}/lib/packages/inside")
    install_packages = pytest.importorskip("install_packages")
    monkeypatch.setattr(install_packages, "TORCH_INDEX", "http://127.0.0.1:9/whl/")
    monkeypatch.delitem(sys.modules, "install_packages")
    torch = tmp_path / "torch.txt"
    torch.write_text("torch==2.8.0\n")
    assert install_packages.torch_build(str(torch), ["-r", str(torch)], {}) == ""
    note, hint = capsys.readouterr().err.splitlines()
    assert note.startswith("note: http://127.0.0.1:9/whl/ is not reachable: installing the package")
    assert "export PIP_FIND_LINKS=DIR" in hint


@pytest.mark.parametrize(("wheel", "backend"), [("cp312", ""), ("cp311", "cpu"), ("", "cpu")])
def test_locked_pytorch_of_a_directory_needs_no_index(wheel, backend, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(f"{lib.ROOT}/lib/packages/inside")
    resolve_packages = pytest.importorskip("resolve_packages")
    work, wheels = tmp_path / "work", tmp_path / "wheels"
    (work / "target").mkdir(parents=True)
    wheels.mkdir()
    (work / "target/python").write_text("3.12")
    (work / "pins.txt").write_text("torch==2.13.0+cpu \\\n    --hash=sha256:1\n")
    if wheel:
        (wheels / f"torch-2.13.0+cpu-{wheel}-{wheel}-manylinux_2_28_x86_64.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
    monkeypatch.delenv("UV_TORCH_BACKEND", raising=False)
    asked = []
    monkeypatch.setattr(resolve_packages, "run_uv", lambda *words: asked.append(words[3]))
    resolve_packages.choose_wheels("uv", str(work), "amd64", "pins.txt", "pylock.toml")
    assert asked[0].get("UV_TORCH_BACKEND", "") == backend


def test_lock_has_neither_directories_of_this_machine_nor_credentials(bash, tmp_path):
    pins = (
        "--extra-index-url https://me:" + "secret@x/simple\n--find-links file:///my/wheels\na==1\n"
    )
    (tmp_path / "pins.txt").write_text(pins)
    done = bash(f"lockfile_print_shared {tmp_path}/pins.txt")
    assert done.stdout == "--extra-index-url https://x/simple\na==1\n"


@pytest.mark.parametrize(
    ("machine", "stack", "command"),
    [
        ("lumi", "olmo", "submit.py lumi/preprocess_data_lumi.sbatch {}"),
        ("local", "pytorch", "container_run.py {} python preprocess_data.py"),
        ("local", "trl", "container_run.py {} bash stacks/trl/preprocess_data.sh all"),
        # JUWELS Booster has no such job: its data are made on the others
        ("jwb", "trl", "container_run.py {} bash stacks/trl/preprocess_data.sh all"),
        # what it evaluates with is downloaded, which a job cannot
        (
            "lumi",
            "evaluate",
            "container_run.py {} --online bash stacks/evaluate/preprocess_data.sh",
        ),
    ],
)
def test_data_are_made_by_the_job_of_a_site_for_what_was_typed(root, machine, stack, command):
    typed = {"machine": machine, "stack": stack}
    settings = load_settings(root, typed, {"HOME": "/home/me"})
    options = f"--machine={machine} --stack={stack}"
    assert data_command(settings) == f"python3 {command.format(options)}"
    environ = {f"LONGSHIP_{key.upper()}": value for key, value in typed.items()}
    settings = load_settings(root, {}, {"HOME": "/home/me", **environ})
    assert data_command(settings) == f"python3 {command.format('')}".replace("  ", " ").rstrip()
