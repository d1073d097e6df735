"""A docker archive of a SIF file, for machines without a registry."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tarfile
from pathlib import Path

from workplace import need, run

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def archive_of(image: Path, folder: Path) -> Path:
    """Write the archive that `docker save` would write for this image, with one layer.

    Parameters
    ----------
    image, folder : pathlib.Path
        A SIF file, and the directory of the archive.

    Returns
    -------
    pathlib.Path
        The archive.
    """
    need("building", ("apptainer",))
    tree, layer = folder / "tree", folder / "layer.tar"
    run(["apptainer", "build", "--sandbox", str(tree), str(image)])
    run(["tar", "--create", "--file", str(layer), "--directory", str(tree), "--exclude=./dev", "."])
    run(["chmod", "-R", "u+w", str(tree)])
    shutil.rmtree(tree)
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    arch = ARCH.get(platform.machine(), platform.machine())
    layers = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    configuration = {"architecture": arch, "os": "linux", "config": {}, "rootfs": layers}
    manifest = [
        {"Config": "config.json", "RepoTags": ["benchmark:1"], "Layers": ["layer.tar"]},
    ]
    (folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    archive = folder / "benchmark.tar"
    with tarfile.open(archive, "w") as file:
        for name in ("manifest.json", "config.json", "layer.tar"):
            file.add(folder / name, name)
    layer.unlink()
    return archive
