"""The lines that make an image."""

import pytest

from lib.images.build import offline_lines, online_lines
from lib.images.download import download_lines
from lib.runtimes.image import ENDINGS
from lib.script.errors import LongshipError

GIVEN = {"digest": "", "again": False, "typed": "python3 build_container.py"}


def configure(repository, image, site=""):
    repository.write("configuration.toml", f"[container]\nimage = '''{image}'''\n")
    repository.write("local/site.toml", f'[machines.local]\ndescription = "here"\n{site}')
    return repository.settings_and_paths(arch="amd64")


def online(repository, runtime, image="docker://x/base:1", site="", **given):
    return online_lines(*configure(repository, image, site), runtime, **{**GIVEN, **given})


@pytest.mark.parametrize(
    ("runtime", "image", "line"),
    [
        ("apptainer", "docker://x/y:1", "watched apptainer build --force --arch amd64"),
        ("singularity", "docker://x/y:1", 'watched singularity build --force "$partial"'),
        ("apptainer", "oras://x/y:1", "watched apptainer pull --force --disable-cache"),
        ("apptainer", "/x.sif", 'copy_image "$address" "$partial"'),
        ("apptainer", "/x.def", "watched apptainer build --force"),
        ("apptainer", "/x/Dockerfile", 'build_dockerfile "$address" amd64'),
        ("docker", "docker://x/y:1", "watched docker pull --platform linux/amd64"),
        ("podman", "/x/Dockerfile", 'build_tag podman "$address" amd64'),
        ("docker", "docker-archive:/x.tar", 'load_archive docker "$archive"'),
        ("enroot", "docker://x/y:1", "import_from_registry x86_64"),
        ("enroot", "docker-daemon:y:1", 'import_from_docker "${address#*:}"'),
    ],
)
def test_image_is_made_by(runtime, image, line, repository):
    found = online(repository, runtime, image)
    assert any(each.strip().startswith(line) for each in found), found


def test_wanted_digest_is_what_is_fetched(repository):
    found = online(repository, "apptainer", digest="sha256:12")
    assert "source=docker://x/base:1" in found
    assert "address=docker://x/base@sha256:12" in found
    assert "digest=sha256:12" in found


def test_modules_come_before_the_program(repository):
    found = online(repository, "apptainer", site='modules = ["load GCC"]\n')
    load = found.index("load_modules apptainer 'load GCC'")
    assert found[load + 1] == "check_program apptainer"


@pytest.mark.parametrize("runtime", ENDINGS)
def test_caches_and_temporary_files_lie_under_scratch(runtime, repository):
    found = online(repository, runtime)
    work = next(line for line in found if line.startswith("work="))
    file = f"base_1_amd64.{ENDINGS[runtime]}"
    expected = f"work=/home/me/longship-data/scratch/cache/containers/{file}"
    assert work == f'{expected}."$UID"'
    folders = [line for line in found if "TMPDIR" in line or "CACHE" in line]
    assert folders and all('"$tmp"' in line or '"$work"' in line for line in folders)


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_quote_in_the_path_is_refused_where_apptainer_breaks_on_it(runtime, repository):
    repository.write(
        "configuration.toml",
        '[paths]\nscratch_dir = "/it\'s"\n[container]\nimage = "docker://x/y:1"\n',
    )
    settings, paths = repository.settings_and_paths()
    with pytest.raises(LongshipError, match="quote in its path") as error:
        online_lines(settings, paths, runtime, **GIVEN)
    assert "paths.scratch_dir" in error.value.hint


@pytest.mark.parametrize("image", ["/x.def", "/x/Dockerfile"])
def test_site_that_forbids_builds_is_told_before_anything_starts(image, repository):
    site = 'definition_builds = "forbidden"\nbuild_hint = "use cotainr"\n'
    told = f"building from {image} is not allowed on here"
    with pytest.raises(LongshipError, match=told) as error:
        online(repository, "apptainer", image, site)
    assert error.value.hint == "use cotainr"
    online(repository, "apptainer", "docker://x/y:1", site)


def test_download_is_named_after_the_target_and_lies_here(repository):
    settings, _ = configure(repository, "docker://x/base:1", 'arch = "arm64"\n')
    _, here = repository.settings_and_paths(arch="amd64")
    found = download_lines(settings, here, "apptainer", **GIVEN)
    assert "base=/home/me/longship-data/scratch/offline/containers/base_1_arm64" in found
    assert 'choose_fetcher "$base" apptainer singularity' in found
    found = download_lines(settings, here, "docker", **GIVEN)
    assert 'choose_fetcher "$base"' in found  # a SIF is of no use to docker


def test_download_of_a_file_that_is_ready_is_refused(repository):
    settings, paths = configure(repository, "/x.sqsh")
    with pytest.raises(LongshipError, match="it is a file already"):
        download_lines(settings, paths, "enroot", **GIVEN)


def test_offline_asks_no_registry(repository):
    settings, paths = configure(repository, "docker://x/base:1")
    for runtime in ENDINGS:
        found = offline_lines(settings, paths, runtime, again=False, typed="x")
        assert not any("docker://" in line for line in found)
        assert "  verify_archive" in found
