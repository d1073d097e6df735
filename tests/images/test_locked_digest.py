"""Which digest `--locked` takes."""

import json

import pytest

from lib.images.build import image_download_lines, recorded_digest
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_source
from lib.script.errors import LongshipError


@pytest.fixture
def records(repository, tmp_path):
    repository.write("configuration.toml", f'[paths]\nscratch_dir = "{tmp_path}"\n')
    settings, paths = repository.settings_and_paths(arch="amd64")
    source = image_source(settings)

    def write(name, digest, address=source.address):
        file = tmp_path / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"source": address, "digest": digest}))

    write.find = lambda: recorded_digest(Environment(settings, paths, "apptainer"))
    write.folder = tmp_path
    return write


def test_image_in_use_counts_most_then_the_new_one_then_the_last_version(records):
    records("offline/containers/base_1_amd64.tar", "of the archive")
    assert records.find() == "of the archive"
    records("containers/versions/base_1_amd64_1_a.sif", "of version 1")
    records("containers/versions/base_1_amd64_2_b.sif", "of version 2")
    assert records.find() == "of version 2"
    records("containers/build/base_1_amd64.sif", "of the new one")
    assert records.find() == "of the new one"
    (records.folder / "containers/versions/base_1_amd64_1_a.sif").touch()
    link = records.folder / "containers/base_1_amd64.sif"
    link.symlink_to("versions/base_1_amd64_1_a.sif")
    assert records.find() == "of version 1"


def test_download_takes_the_digest_of_the_target(repository, tmp_path):
    """Not that of the image that this machine has built for itself."""
    image = '[container]\nimage = "docker://example.org/lab/base:1"\n'
    repository.write("configuration.toml", f'{image}[paths]\nscratch_dir = "{tmp_path}"\n')
    repository.write("far/site.toml", '[machines.far]\narch = "arm64"\ngpu = "cpu"\n')
    settings, here = repository.settings_and_paths(arch="amd64", machine="far")
    for name, arch in (("containers/build", "amd64"), ("offline/containers", "arm64")):
        file = tmp_path / f"{name}/base_1_{arch}.{'sif' if arch == 'amd64' else 'tar'}.json"
        file.parent.mkdir(parents=True)
        record = {"source": "docker://example.org/lab/base:1", "digest": f"sha256:{arch}"}
        file.write_text(json.dumps(record))
    env = Environment(settings, here, "apptainer")
    lines = image_download_lines(env, locked=True, force=False, command_line="x")
    assert [each for each in lines if each.startswith("build_from ")] == [
        "build_from docker docker://example.org/lab/base:1 sha256:arm64"
    ]


def test_record_of_another_source_does_not_count(records):
    records("containers/build/base_1_amd64.sif", "x", address="docker://elsewhere/base:1")
    with pytest.raises(LongshipError, match="no digest of docker://example.org/lab/base:1"):
        records.find()


def test_broken_record_is_told(records):
    records("containers/build/base_1_amd64.sif", "x")
    (records.folder / "containers/build/base_1_amd64.sif.json").write_text("{")
    with pytest.raises(LongshipError, match="cannot read the record") as error:
        records.find()
    assert error.value.hint.startswith("rm ")
