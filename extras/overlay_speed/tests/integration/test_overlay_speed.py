"""What makes imports fast in a real overlay: the module index, and parts that are read ahead."""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from support.environments import write_wheel
from support.overlays import TINY, path_with_refusal

IMAGES = ("apptainer", "docker", "podman")
# Without an image the machine itself packs; an image brings its own packer.
HOST = pytest.param("host", marks=pytest.mark.needs("mksquashfs"))

LOADER = "import longship_tiny as tiny; print(type(tiny.__loader__).__name__, tiny.VERSION)"


@pytest.mark.parametrize("runtime", [*IMAGES, HOST])
def test_modules_come_from_the_index_where_files_cannot_change(runtime, with_overlay):
    clone = with_overlay(runtime)
    expected = "SourceFileLoader" if runtime == "host" else "IndexedLoader"
    assert clone.container_run("python", "-c", LOADER).stdout == f"{expected} 1.0\n"
    without = clone.container_run("python", "-c", LOADER, env={"LONGSHIP_MODULE_INDEX": "0"})
    assert without.stdout == "SourceFileLoader 1.0\n"


def test_patched_file_of_the_overlay_wins_over_its_index(with_overlay, tmp_path):
    clone = with_overlay()
    show = "import longship_tiny; print(longship_tiny.__file__)"
    file = clone.container_run("python", "-c", show).stdout.strip()
    (tmp_path / "tiny.py").write_text('VERSION = "patched"\n')
    bind = f"{tmp_path}/tiny.py:{file}"
    done = clone.container_run("python", "-c", LOADER, env={"APPTAINER_BIND": bind})
    assert done.stdout == "SourceFileLoader patched\n"


def test_launch_reads_ahead_what_an_import_reads(make_overlay_clone, base_image, tmp_path, run):
    image = shutil.copy(base_image, tmp_path)  # nobody else reads it now
    folder = tmp_path / "clone"
    clone = make_overlay_clone(folder, requirements=[TINY, "longship_large"], image=image)
    more = tmp_path / "wheels"
    more.mkdir()
    # text that no compression makes small, and no import reads
    write_wheel(more, "longship_large", "1.0", data=random.randbytes(24 << 20).hex())
    clone.overlay(env={"PIP_FIND_LINKS": f"{clone.find['PIP_FIND_LINKS']} {more}"})
    file = clone.link().resolve()
    record = json.loads(Path(f"{file}.json").read_text())
    size = {"overlay_reads": file.stat().st_size, "image_reads": os.path.getsize(image)}
    for name, all_bytes in size.items():
        parts = [int(each) for each in re.findall("count=([0-9]+)", record[name])]
        assert 0 < sum(parts) < 0.95 * all_bytes, name
    trace, launcher = tmp_path / "trace", tmp_path / "launcher"
    clone.container_run("--launcher", launcher)
    strace = ["strace", "-f", "-qq", "-e", "trace=execve", "-s", "999", "-o", trace]
    run([*strace, "bash", launcher, "true"], env=clone.environment)
    started = re.findall(r'execve\("[^"]*/dd", \["dd", "if=([^"]*)"', trace.read_text())
    assert set(started) == {str(file), str(image)}


@pytest.mark.slow  # a rare refusal, and no loss
def test_reads_that_cannot_be_recorded_are_told(fresh, tmp_path):
    done = fresh.overlay(env={"PATH": path_with_refusal(tmp_path, "--contain")})
    assert "refused\n" in done.stderr
    assert "note: launches will not read ahead: cannot record what an import reads;" in done.stderr
    assert fresh.container_run("longship_tiny").stdout == "1.0\n"
    record = json.loads(fresh.link().resolve().with_suffix(".sqsh.json").read_text())
    assert "overlay_reads" not in record and "image_reads" not in record


def test_without_it_an_overlay_is_built_as_another_version(
    with_overlay, make_overlay_clone, tmp_path
):
    """The bytes are others, so the name is another."""
    clone = make_overlay_clone(tmp_path)
    shutil.rmtree(clone.root / "extras/overlay_speed")
    done = clone.overlay()
    assert "[5/5] Packing" in done.stderr and clone.left() == []
    assert clone.container_run("python", "-c", LOADER).stdout == "SourceFileLoader 1.0\n"
    assert clone.versions() != with_overlay().versions()
    assert "up to date" in clone.overlay().stderr
