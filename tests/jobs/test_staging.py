"""Staging: what a job's start is told, and when it is worth it."""

import os
import subprocess
from pathlib import Path

import pytest

from lib import ROOT
from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.jobs.rerun import NAMED
from lib.jobs.staging import staging_lines
from lib.runtimes.container import run_lines
from lib.script.command import assign
from lib.script.errors import LongshipError
from lib.script.render import render

NAMES = {
    **dict.fromkeys(NAMED, ""),
    "image": "/i.sif",
    "overlay": "/it's/o.sqsh",
    "image_sha256": "sha256:12",
}


def lines(tmp_path, machine, runtime, configuration="", environ=None):
    file = tmp_path / "configuration.toml"
    file.write_text(configuration)
    environ = {"HOME": "/home/me", "USER": "me", "SLURM_JOB_ID": "7", **(environ or {})}
    options = {"machine": machine, "configuration": str(file)}
    return staging_lines(load_settings(Path(ROOT), options, environ), runtime, NAMES)


def pays(nodes, size):
    """Ask the function that a job's start asks."""
    script = f'source "$1/lib/jobs/stage.bash"; staging_pays {nodes} {size}'
    return subprocess.run(["bash", "-c", script, "bash", ROOT]).returncode == 0


def test_job_is_told_what_to_copy_and_where_to(tmp_path):
    assert lines(tmp_path, "olivia", "apptainer") == [
        "stage_roots=(/cluster/gpuscratch/jobs/7 /dev/shm)",
        "stage_image=/i.sif",
        "stage_image_sum=sha256:12",
        "stage_overlay='/it'\"'\"'s/o.sqsh'",
        "stage_overlay_sum=''",
        "stage_as=packed",
        "stage_runtime=apptainer",
        "stage_job auto",
    ]


def test_pyxis_is_told_anew_where_things_lie(tmp_path):
    found = lines(tmp_path, "aws", "enroot")
    assert found[0] == "stage_roots=(/opt/dlami/nvme /scratch /dev/shm)"
    assert "stage_as=unpacked" in found  # enroot mounts no overlay
    assert found[-1] == "set_container_options"


@pytest.mark.parametrize(
    ("runtime", "configuration"),
    [("apptainer", 'jobs.stage = "never"\n'), ("docker", ""), ("host", ""), ("enroot", "")],
)
def test_nothing_is_said_where_nothing_is_copied(tmp_path, runtime, configuration):
    assert lines(tmp_path, "jwb", runtime, configuration) == []


def test_folder_must_be_a_path(tmp_path):
    with pytest.raises(LongshipError) as raised:
        lines(tmp_path, "jwb", "apptainer", 'jobs.stage_dirs = ["nvme"]\n')
    assert "jobs.stage_dirs in" in str(raised.value)
    with pytest.raises(LongshipError):
        lines(tmp_path, "jwb", "apptainer", 'jobs.stage_dirs = ["$NOT_SET/x"]\n')


def test_staging_pays_for_large_files_on_many_nodes():
    gigabyte = 10**9
    assert not pays(64, 20 * gigabyte)
    assert not pays(400, 100 * gigabyte)  # whatever the size
    assert not pays(512, 2 * gigabyte)
    assert pays(512, 20 * gigabyte)
    assert pays(4096, gigabyte)
    assert not pays(4096, gigabyte // 10)  # a tenth: too little to gain


@pytest.mark.parametrize("missing", ["stage_image", "stage_overlay"])
def test_what_is_missing_is_left_to_the_launcher(tmp_path, missing):
    (tmp_path / "there").touch()
    files = {"stage_image": tmp_path / "there", "stage_overlay": tmp_path / "there"}
    files[missing] = tmp_path / "gone"
    script = render("a test", [*(assign(*each) for each in files.items()), "stage_job always"])
    environ = {"PATH": os.environ["PATH"], "RUN_DIR": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


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
    script = 'PATH=$1:$PATH; source "$2/lib/runtimes/apptainer.bash"; has_setuid_starter apptainer'
    done = subprocess.run(["bash", "-c", script, "bash", tmp_path, ROOT])
    assert (done.returncode == 0) == setuid


def test_ranks_look_for_copies_unless_there_are_none(tmp_path):
    def emitted(stage):
        file = tmp_path / "configuration.toml"
        file.write_text(f'project.account = "acc"\njobs.stage = "{stage}"\n')
        options = {"machine": "jpb", "configuration": str(file)}
        environ = {"HOME": "/home/me", "USER": "me"}
        settings = load_settings(Path(ROOT), options, environ)
        paths = derive_paths(settings)
        return run_lines(settings, paths, "apptainer", online=False, venv=None, for_ranks=True)

    assert "use_staged_image" in emitted("auto")
    assert "use_staged_image" not in emitted("never")
