"""The environment definition file (EDF) of a site whose srun reads one; pyxis.*."""

import json

import pytest
from support.repository import toml

from extras.pyxis import pyxis
from lib.runtimes.environment import Environment
from lib.runtimes.launch import check_lines
from lib.script.errors import LongshipError
from lib.script.render import render

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib  # before Python 3.11

SITE = """\
[machines.local]
pyxis = "edf"
runtime = "enroot"
annotations = { "com.hooks.one.enabled" = "true", "com.hooks.one.variant" = 'a "b" \\ c' }
"""


@pytest.fixture
def start(repository, run, tmp_path):
    """Give a function that starts a job in a folder, and returns the words of srun."""

    def start(folder, overlay="", **variables):
        folder.mkdir()
        image = tmp_path / "image.sqsh"
        image.write_bytes(b"hsqs and more")
        repository.write("local/site.toml", SITE)
        repository.write(
            "configuration.toml", f"[paths]\nscratch_dir = {toml(tmp_path / 'scratch')}\n"
        )
        settings, paths = repository.settings_and_paths()
        if overlay:
            record = f'{{\n  "base": {json.dumps(str(image))},\n  "python": "3.12"\n}}\n'
            repository.write(f"{overlay}.json", record)
            overlay = str(repository.write(overlay, "hsqs"))
        held = {"image": str(image), "overlay": overlay, "venv": ""}
        env = Environment(settings, paths, "enroot", "job")._replace(held=held)
        lines = [*pyxis.options(env), 'printf "%s\\0" "${CONTAINER_OPTIONS[@]}"']
        script = repository.write("start.sh", render("x", lines))
        variables = {
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            **variables,
        }
        return run(["bash", script], env=variables, cwd=folder, check=False)

    return start


def test_image_mounts_and_annotations_are_in_the_file(start, tmp_path):
    run_folder = tmp_path / "run"
    done = start(tmp_path / "here", RUN_DIR=str(run_folder), MINE="a secret", NCCL_DEBUG="INFO")
    file, variables = done.stdout.split("\0")[:-1]
    assert file == f"--environment={run_folder}/environment.toml"
    assert {"MINE", "NCCL_DEBUG"} <= set(variables.partition("=")[2].split(","))
    text = (run_folder / "environment.toml").read_text()
    assert "secret" not in text
    found = tomllib.loads(text)
    assert found["image"] == f"{tmp_path}/image.sqsh"
    assert found["workdir"] == f"{tmp_path}/here"
    assert found["mounts"][:2] == [
        f"{tmp_path}:{tmp_path}",  # home
        f"{tmp_path}/image.sqsh:/longship-image:ro",
    ]
    assert found["annotations"]["com"]["hooks"]["one"] == {
        "enabled": "true",
        "variant": 'a "b" \\ c',
    }
    assert [each.name for each in run_folder.iterdir()] == ["environment.toml"]


def test_outside_of_a_run_the_file_is_among_the_runs(start, tmp_path):
    done = start(tmp_path / "here")
    assert done.stdout.startswith(f"--environment={tmp_path}/scratch/runs/7/environment.toml\0")


@pytest.mark.parametrize("name", ["a b", "a,b", "a$b", 'a"b', "a\\b"])
def test_folder_that_the_file_would_change_is_refused(name, start, tmp_path):
    done = start(tmp_path / name, RUN_DIR=str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: Pyxis cannot bind {tmp_path}" in done.stderr


@pytest.mark.parametrize("bind", ["/a,b:/c", "/a:/b c"])
@pytest.mark.parametrize("pyxis", ["yes", "edf"])
def test_bind_that_pyxis_cannot_make_is_refused_without_a_script(bind, pyxis, repository):
    """So ``--dry-run`` reports it too."""
    repository.write("local/site.toml", SITE.replace("edf", pyxis))
    repository.write("configuration.toml", f"container.binds = {toml([bind])}\n")
    env = Environment(*repository.settings_and_paths(), "enroot", "job")
    path = max(bind.split(":"), key=len)
    with pytest.raises(LongshipError, match=f"Pyxis cannot bind {path}: it contains a space"):
        check_lines(env)


def test_overlay_is_mounted_as_a_squashfs_file(start, repository, tmp_path):
    done = start(tmp_path / "here", overlay="o.sqsh", RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    found = tomllib.loads((tmp_path / "run/environment.toml").read_text())
    assert f"{repository.root}/o.sqsh:/user-software:sqsh" in found["mounts"]


def test_file_that_cannot_be_written_starts_nothing(start, tmp_path):
    (tmp_path / "run").write_text("a file")
    done = start(tmp_path / "here", RUN_DIR=str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: cannot use the directory {tmp_path}/run: " in done.stderr
