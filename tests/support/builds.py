"""The build of an image, of which only what would change this machine is left out."""

import pytest

from lib.images.build import image_build_lines
from lib.runtimes.environment import Environment
from lib.script.render import render

GIVEN = {"force": False, "command_line": "python3 build_container.py"}

# What would change this machine only says so.
STUBS = r"""
host_arch() { REPLY=amd64; }
build_run() { echo "$@"; }
for each in image_copy engine_keep_tag engine_load docker podman; do
  eval "$each() { echo $each \"\$@\"; }"
done
for each in program_check roots_make shared_make directory_make build_end engine_pulled_digest; do
  eval "$each() { :; }"
done
sif_fetched_digest() { :; }
file_checksum() { :; }
build_begin() { build_partial=partial build_tmp=/tmp build_work=/work; }
"""


def configure(repository, image, site=""):
    """Write the files of an image; give settings and paths."""
    repository.write("configuration.toml", f"[container]\nimage = '''{image}'''\n")
    repository.write("local/site.toml", f'[machines.local]\ndescription = "here"\n{site}')
    return repository.settings_and_paths(arch="amd64")


def build(repository, runtime, image="docker://x/base:1", site="", **given):
    """Give the lines of a build."""
    env = Environment(*configure(repository, image, site), runtime)
    return image_build_lines(env, **{**GIVEN, **given})


@pytest.fixture
def built_by(repository, run, tmp_path):
    """Give a function that says what a build runs; {file} is a path without its ending."""

    def said(runtime, image, **given):
        for ending in ("sif", "def", "Dockerfile", "tar", "sqsh"):
            (tmp_path / f"x.{ending}").touch()
        lines = build(repository, runtime, image.format(file=tmp_path / "x"), **given)
        done = run(["bash", "-c", render("x", [STUBS, *lines])])
        return done.stdout.replace(str(tmp_path / "x"), "{file}").splitlines()

    return said
