"""Enroot: which sources it takes, and what a build and a launch run."""

import pytest
from support.builds import GIVEN, configure

from lib.images.build import image_download_lines
from lib.runtimes.choice import choose_builder
from lib.runtimes.environment import Environment
from lib.runtimes.image import check_usable, image_source
from lib.runtimes.launch import run_lines
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render


def test_ready_file_is_started_by_enroot_alone(repository, tmp_path):
    repository.write("configuration.toml", 'container.image = "/x/image.sqsh"\n')
    with pytest.raises(LongshipError, match="apptainer cannot build from") as error:
        check_usable("apptainer", image_source(repository.settings()))
    assert 'container.runtime = "enroot"' in error.value.hint
    repository.environ["PATH"] = str(tmp_path)
    for name in ("apptainer", "enroot"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    choice = choose_builder(repository.settings(), lambda command: True)
    assert choice.runtime == "enroot"


def test_definition_file_is_refused(repository):
    repository.write("configuration.toml", 'container.image = "/x.def"\n')
    with pytest.raises(LongshipError, match="enroot cannot build from"):
        check_usable("enroot", image_source(repository.settings()))


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ("docker://x/y:1", "enroot import --arch x86_64 --output partial docker://x/y:1"),
        ("docker-daemon:y:1", "enroot import --output partial dockerd://y:1"),
        ("{file}.sqsh", "image_copy"),
    ],
)
def test_image_is_made_by(image, line, built_by):
    found = built_by("enroot", image)
    assert any(each.startswith(line) for each in found), found


def test_download_of_a_file_that_is_ready_is_refused(repository):
    settings, paths = configure(repository, "/x.sqsh")
    with pytest.raises(LongshipError, match="it is a file already"):
        image_download_lines(Environment(settings, paths, "enroot"), **GIVEN)


def test_archive_without_docker_is_told_before_enroot_starts(run, tmp_path, clean_environment):
    lines = [
        "docker() { exit 127; }",
        "unset -f docker",
        "build_kind=docker-archive build_work=w build_tmp=t",
    ]
    lines += [f"build_file={tmp_path}/x.tar build_partial=x", call("enroot_build_image", "x")]
    (tmp_path / "bash").symlink_to("/bin/bash")
    path = {**clean_environment, "PATH": str(tmp_path)}
    done = run(["bash", "-c", render("x", lines)], env=path, check=False)
    error, hint = done.stderr.splitlines()
    assert error == f"error: docker not found, with which enroot reads {tmp_path}/x.tar"
    assert "python3 build_container.py; or " in hint


def test_last_line_becomes_the_command(repository):
    last = run_lines(Environment(*repository.settings_and_paths(), "enroot"))[-1]
    assert last.startswith('command_exec "${options[@]}" "$image" /bin/sh ')
