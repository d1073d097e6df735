"""The runtime enroot: images are SquashFS files.

It starts with an empty environment, its own home directory and its own /tmp, so what Apptainer
keeps automatically is requested here. A hook of enroot adds GPUs.
"""

from __future__ import annotations

from pathlib import Path

from lib import ROOT
from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.runtimes.recipe import ADDRESS, PARTIAL, Recipe
from lib.script.command import array, assign, call, export
from lib.script.quoting import Expansion, Word

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # enroot's names


def prepare(env: Environment) -> list[str]:
    """Return the lines that check the image and collect the runtime's options.

    They fill the array ``options``.
    """
    return [
        call("check_program", env.runtime),
        *check(env),
        call("check_host_arch", env.paths.arch, Expansion('"the image $image"')),
        array("options", env.machine.runtime_options),
        assign("bind_in_words_of", "add_enroot_bind"),
        *bind_lines(env),
        *overlay_lines(env, "bind_unpacked_overlay"),
        call("add_bind", "/tmp"),
        export("ENROOT_MOUNT_HOME", "yes"),
        export("ENROOT_LOGIN_SHELL", "no"),  # /etc/profile would overwrite the image's PATH
        'export LONGSHIP_WORKING_FOLDER="$PWD"',
        call("add_environment", env.runtime),
    ]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [assign("image", env.image), call("check_sqsh", IMAGE, env.image_hint)]


def words(env: Environment) -> list[Word]:
    """Return the words before the user's command."""
    return [
        *(Expansion('"${WITHOUT_GPUS[@]}"'), *_start(env.runtime, env.paths.root)),
        *(Expansion('"${options[@]}"'), IMAGE),
        *("/bin/sh", "-c", Expansion('"${longship_decode-}$longship_contract"'), "longship"),
    ]


def probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    return [*map(str, start_plainly(program, Path(ROOT))), image, "/bin/true"]


def works(program: str) -> list[str]:
    """Return the command that succeeds if this runtime can build."""
    return [program, "version"]


def start_plainly(program: str, root: Path) -> list[Word]:
    """Return the words before an image and a command, without binds or environment."""
    return ["env", "NVIDIA_VISIBLE_DEVICES=void", *_start(program, root)]


def _start(program: str, root: Path) -> list[Word]:
    return [program, "start", "--rc", root / "lib/runtimes/inside/enroot.rc"]


def folders(program: str, work: Path) -> list[str]:
    """Return the lines that keep this runtime's files out of the home directory and of /tmp."""
    return [
        'export ENROOT_CACHE_PATH="$work"/cache ENROOT_TEMP_PATH="$tmp"',
        'export PARALLEL_HOME="$tmp" TMPDIR="$tmp"',
    ]


def make_image(recipe: Recipe) -> list[str]:
    """Return the lines that build ``$partial`` from ``$address``."""
    kind = recipe.source.kind
    if kind == "docker":
        return [call("import_from_registry", _ARCHITECTURES[recipe.arch])]
    if kind == "docker-daemon":
        return [call("import_from_docker", Expansion('"${address#*:}"'))]
    if kind == "dockerfile":
        tag = f"{recipe.tag}-partial"
        return [
            call("build_tag", "docker", ADDRESS, recipe.arch, tag),
            call("import_from_docker", tag),
            call("docker", "rmi", tag),
        ]
    if kind == "sqsh":
        return [call("copy_image", ADDRESS, PARTIAL)]
    return [assign("archive", Expansion('"${address#*:}"')), *from_archive(recipe)]


def from_archive(recipe: Recipe) -> list[str]:
    """Return the lines that build ``$partial`` from ``$archive``, which requires docker."""
    tag = f"{recipe.tag}-partial"
    return [
        call("load_archive", "docker", Expansion('"$archive"'), tag),
        call("import_from_docker", tag),
        call("docker", "rmi", tag),
    ]
