"""The lines that make an image, and the commands that the functions run for them."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from support.builds import GIVEN, build, configure

from lib.configuration.layers import load_settings
from lib.configuration.runtimes import find_runtimes
from lib.configuration.sites import own_arch
from lib.images.build import image_build_lines, image_download_lines
from lib.runtimes.environment import Environment
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

ENDINGS = {name: each.ending for name, each in find_runtimes() if each.ending}
CACHE = re.compile(r"\w*TMPDIR=|(APPTAINER|SINGULARITY|ENROOT)_(?!USERNS)|PARALLEL_HOME")


@pytest.mark.parametrize(
    ("runtime", "image", "line"),
    [
        ("apptainer", "docker://x/y:1", "apptainer build --force --arch amd64 partial docker://x"),
        ("singularity", "docker://x/y:1", "singularity build --force partial docker://x/y:1"),
        (
            "apptainer",
            "oras://x/y:1",
            "apptainer pull --force --arch amd64 --disable-cache",
        ),
        ("apptainer", "{file}.sif", "image_copy"),
        ("apptainer", "{file}.def", "apptainer build --force --arch amd64 partial {file}.def"),
        ("apptainer", "{file}.Dockerfile", "docker build --platform linux/amd64 --file {file}"),
        ("apptainer", "oci-archive:{file}.tar", "apptainer build --force --arch amd64 partial oci"),
    ],
)
def test_image_is_made_by(runtime, image, line, built_by):
    found = built_by(runtime, image)
    assert any(each.startswith(line) for each in found), found


@pytest.mark.parametrize("waiting", ["configured", "other"])
def test_new_image_is_not_activated_once_the_configuration_is_changed_back(waiting, run, tmp_path):
    """The active image is the configured one, and a new one of an edited file waits."""
    definition, new = tmp_path / "x.def", tmp_path / "build/x.sif"
    active, version = tmp_path / "x.sif", tmp_path / "versions/x_1_2.sif"
    definition.write_text("configured")
    write_image(version, definition, "configured")
    write_image(new, definition, waiting)
    active.symlink_to("versions/x_1_2.sif")
    lines = [
        f"arch={own_arch()} machine=local runtime=apptainer",
        call("build_from", "definition", definition, ""),
        call("build_begin", new, tmp_path / "work", "", "activate", active),
        "echo built",
    ]
    done = run(["bash", "-c", render("x", lines)])
    assert done.stdout == "" and active.read_text() == "configured"
    left = sorted(each.name for each in new.parent.iterdir())
    assert left == (["x.sif", "x.sif.json"] if waiting == "configured" else [])
    assert (f"note: removed the new image {new}: " in done.stderr) == (waiting == "other")


def write_image(file, definition, text):
    """Write a file with a record, as the build of a definition file with this text leaves them."""
    file.parent.mkdir()
    file.write_text(text)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    values = {"source": str(definition), "digest": digest, "sha256": digest}
    values.update(bytes=str(len(text)), modified="", script="")
    file.with_name(f"{file.name}.json").write_text(json.dumps(values, indent=2) + "\n")


def test_modules_come_before_the_program(repository):
    found = build(repository, "apptainer", site='modules = ["load GCC"]\n')
    load = found.index("modules_load apptainer 'load GCC'")
    assert found[load + 1] == "program_check apptainer"


@pytest.mark.parametrize("runtime", ENDINGS)
def test_caches_and_temporary_files_lie_under_scratch(runtime, repository, run, tmp_path):
    file = f"base_1_amd64.{ENDINGS[runtime]}"
    work = f"/home/me/longship-data/scratch/cache/containers/{file}"
    line = " ".join("".join(build(repository, runtime)).replace("\\", "").split())
    assert f"/build/{file} {work} '' " in line
    lines = [
        f"build_image=x.{ENDINGS[runtime]} build_work={tmp_path} build_tmp={tmp_path}/tmp",
        "build_make_directories",
        "env",
    ]
    found = run(["bash", "-c", render("x", lines)]).stdout.splitlines()
    found = dict(line.split("=", 1) for line in found if CACHE.match(line))
    # programs of the image would see this one while a SIF is built
    assert (found.pop("TMPDIR", "") == f"{tmp_path}/tmp") == (ENDINGS[runtime] != "sif")
    assert {f"{tmp_path}/cache", f"{tmp_path}/tmp"} == set(found.values())


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_quote_in_the_path_is_refused_where_apptainer_breaks_on_it(runtime, repository):
    repository.write(
        "configuration.toml",
        '[paths]\nscratch_dir = "/it\'s"\n[container]\nimage = "docker://x/y:1"\n',
    )
    settings, paths = repository.settings_and_paths()
    with pytest.raises(LongshipError, match="quote in its path") as error:
        image_build_lines(Environment(settings, paths, runtime), **GIVEN)
    assert "paths.scratch_dir" in error.value.hint


@pytest.mark.parametrize("image", ["/x.def", "/x/Dockerfile"])
def test_site_that_forbids_builds_is_told_before_anything_starts(image, repository):
    site = 'definition_builds = "forbidden"\nbuild_hint = "use cotainr"\n'
    told = f"building from {image} is not allowed on here"
    with pytest.raises(LongshipError, match=told) as error:
        build(repository, "apptainer", image, site)
    assert error.value.hint == "use cotainr"
    build(repository, "apptainer", "docker://x/y:1", site)


def test_hint_names_a_typed_option_once(root):
    settings = load_settings(root, {"machine": "olivia"}, {"HOME": "/home/me"})
    words = ("python3", "build_container.py", "download", "--machine", "olivia")
    assert settings.command(*words) == " ".join(words)
    assert settings.command(*words[:3]) == f"{' '.join(words[:3])} --machine=olivia"


def test_download_is_named_after_the_target_and_lies_here(repository):
    settings, _ = configure(repository, "docker://x/base:1", 'arch = "arm64"\n')
    _, here = repository.settings_and_paths(arch="amd64")
    found = image_download_lines(Environment(settings, here, "apptainer"), **GIVEN)
    (begin,) = [" ".join(line.split()) for line in found if line.startswith("archive_begin ")]
    assert " /home/me/longship-data/scratch/offline/containers/base_1_arm64 " in begin
    assert begin.endswith(" apptainer singularity")


def test_archive_that_offline_cannot_read_is_not_downloaded(repository):
    settings, here = configure(repository, "oci-archive:/x/mine.tar")
    with pytest.raises(LongshipError, match="it is a file already"):
        image_download_lines(Environment(settings, here, "apptainer"), **GIVEN)


@pytest.mark.parametrize("runtime", ["apptainer", "another"])
def test_archive_is_of_a_form_that_the_runtime_can_read(runtime, run, tmp_path):
    base = tmp_path / "x_amd64"
    for each in (f"{base}.tar", f"{base}.sif"):
        Path(each).write_text("")
        Path(f"{each}.json").write_text('{\n  "bytes": "0",\n  "last": ""\n}\n')
    os.utime(f"{base}.tar", (0, 0))
    lines = ["machine=here", "arch=amd64", f"runtime={runtime}", "image_check() { :; }"]
    lines += [call("build_from_archive", base), 'echo "$build_kind $build_file"']
    found = run(["bash", "-c", render("x", lines)]).stdout
    form = "sif" if runtime == "apptainer" else "docker-archive"
    assert found == f"{form} {base}.{form.replace('docker-archive', 'tar')}\n"


def test_offline_asks_no_registry(repository):
    settings, paths = configure(repository, "docker://x/base:1")
    for runtime in ENDINGS:
        found = image_build_lines(Environment(settings, paths, runtime), **GIVEN, offline=True)
        assert not any("docker://" in line for line in found)
        assert any(line.startswith("build_from_archive ") for line in found)
