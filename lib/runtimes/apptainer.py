"""The runtimes apptainer and singularity (SingularityCE): images are SIF files."""

from __future__ import annotations

from pathlib import Path

from lib.runtimes.environment import IMAGE, Environment, bind_lines, overlay_lines
from lib.runtimes.recipe import ADDRESS, PARTIAL, Recipe
from lib.script.command import array, assign, call
from lib.script.errors import LongshipError
from lib.script.quoting import Expansion, Word


def prepare(env: Environment) -> list[str]:
    """Return the lines that check the image and collect the runtime's options.

    They fill the array ``options``.
    """
    return [
        call("check_program", env.runtime),
        *check(env),
        call("check_host_arch", env.paths.arch, Expansion('"the image $image"')),
        array("options", env.machine.runtime_options),
        call("add_home"),
        *bind_lines(env),
        *overlay_lines(env, "mount_overlay"),
        *([call("add_nvidia_gpus")] if env.machine.gpu in ("cuda", "auto") else []),
        *([call("add_amd_gpus")] if env.machine.gpu == "auto" else []),
    ]


def check(env: Environment) -> list[str]:
    """Return the lines that check the image, on any machine where its file is visible."""
    return [
        assign("image", env.image),
        call("check_sif", IMAGE, env.paths.arch, env.image_hint),
    ]


def words(env: Environment) -> list[Word]:
    """Return the words before the user's command.

    Environment and working directory need no options: this runtime keeps both.
    """
    return [
        *(env.runtime, "--quiet", "exec", Expansion('"${options[@]}"'), IMAGE),
        *("/bin/sh", "-c", Expansion('"${longship_decode-}$longship_contract"'), "longship"),
    ]


def probe(program: str, image: str) -> list[str]:
    """Return the command that succeeds if this runtime can start this image."""
    return [program, "--quiet", "exec", image, "/bin/true"]


def works(program: str) -> list[str]:
    """Return the command that succeeds if this runtime can build."""
    return [program, "--version"]


def start_plainly(program: str, root: Path) -> list[Word]:
    """Return the words before an image and a command, without binds or environment."""
    return [program, "--quiet", "exec"]


def folders(program: str, work: Path) -> list[str]:
    """Return the lines that keep this runtime's files out of the home directory and of /tmp.

    Raises
    ------
    LongshipError
        If the path contains a quote: Apptainer 1.4 inserts it unquoted into a shell's text.
    """
    if "'" in str(work):
        raise LongshipError(
            f"{program} cannot build in a directory with a quote in its path: {work}",
            "set paths.scratch_dir in configuration.toml to another directory",
        )
    prefix = program.upper()
    return [
        f'export {prefix}_CACHEDIR="$work"/cache',
        f'export {prefix}_TMPDIR="$tmp"',
    ]


def make_image(recipe: Recipe) -> list[str]:
    """Return the lines that build ``$partial`` from ``$address``.

    A registry's image is built, not pulled: `pull` keeps a second copy of the SIF in its cache.
    """
    kind = recipe.source.kind
    if kind == "sif":
        return [call("copy_image", ADDRESS, PARTIAL)]
    if kind in ("oras", "library"):  # the SIF itself: a build would unpack and pack it again
        options = ["--force", "--disable-cache", *_arch(recipe)]
        pull = call("watched", recipe.runtime, "pull", *options, PARTIAL, ADDRESS)
        return [pull, 'digest=$(checksum "$partial")']
    if kind == "dockerfile":
        return [
            assign("archive", Expansion('"$tmp"/image.tar')),
            call(
                "build_dockerfile",
                ADDRESS,
                recipe.arch,
                Expansion('"$archive"'),
                f"{recipe.tag}-archive",
            ),
            *from_archive(recipe),
        ]
    lines = [call("watched", *_build(recipe), PARTIAL, ADDRESS)]
    return [*lines, 'digest=$(fetched_digest "$work"/cache)'] if kind == "docker" else lines


def from_archive(recipe: Recipe) -> list[str]:
    """Return the lines that build ``$partial`` from ``$archive``."""
    return [call("sif_from_archive", *_build(recipe))]


def _build(recipe: Recipe) -> list[str]:
    return [recipe.runtime, "build", "--force", *_arch(recipe)]


def _arch(recipe: Recipe) -> list[str]:
    # before version 4, SingularityCE's option of this name has another meaning
    return ["--arch", recipe.arch] if recipe.runtime == "apptainer" else []
