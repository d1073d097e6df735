"""The checks of the software: runtime, image, overlay, venv and repositories."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from lib.configuration.layers import Settings
from lib.configuration.paths import Paths, pinned
from lib.configuration.repositories import configured_repositories
from lib.configuration.sites import Machine, own_arch
from lib.doctor.node import Driver, find_gpus, find_user_rights
from lib.doctor.report import PRINTED, Finding, asked, bash, ok, problem, warning
from lib.images.list import find_damages, new_image
from lib.repositories.repositories import WORKER, listed_lines
from lib.runtimes import apptainer
from lib.runtimes.environment import Environment, check_overlay, module_lines
from lib.runtimes.image import active_image
from lib.runtimes.launch import image_lines, inside_lines
from lib.runtimes.packages import MOUNTED_AT, SET_UP_COMMAND
from lib.runtimes.runtime import answer_lines
from lib.script.command import assign, call
from lib.script.quoting import NAME
from lib.script.records import readable_values

SIF_RUNTIMES = tuple(apptainer.ENDINGS)
FORMATS = ("zstd", "lz4", "xz", "gzip")
# In POSIX sh: the GPUs that are visible, the image's CUDA or ROCm, and whether the image brings the
# libraries with which its programs run on an older driver.
_ASK_ABOUT_GPU = r"""echo "seen=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)"
cuda=${CUDA_VERSION:-$(cat /usr/local/cuda/version.json 2>/dev/null | tr -d " \n" |
  sed "s/.*\"cuda\":{[^}]*\"version\":\"//; s/\".*//")}
echo "cuda=$cuda"
if [ -r /dev/kfd ] && [ -w /dev/kfd ]; then echo kfd=yes; fi
echo "rocm=${ROCM_VERSION:-$(cat /opt/rocm/.info/version 2>/dev/null)}"
ls /usr/local/cuda/compat/lib*/libcuda.so* /usr/local/cuda/compat/libcuda.so* >/dev/null 2>&1 &&
  echo compatible=yes
exit 0"""
_UNKNOWN = "of a version that it does not say"


def find_software(env: Environment, why: str) -> Iterator[Finding]:
    """Check runtime, image, overlay and venv, as other scripts use them."""
    runtime = env.runtime
    load_modules(env.machine, runtime)
    yield from find_runtime(runtime, why)
    if runtime in SIF_RUNTIMES:
        yield from find_user_rights(runtime, env.machine)
    driver = yield from find_gpus(env.machine)
    binds = tuple(env.venv_binds) if env.venv and os.path.exists(env.venv) else ()
    inside = inside_lines(env._replace(held={"overlay": ""}, more_binds=binds))
    usable = not env.image or (yield from _find_image(env))
    usable = usable and own_arch() == env.machine.arch
    starts = usable and (yield from _find_inside(inside))
    if starts and (driver.cuda or driver.amd):
        asked_inside = bash(*inside, call("inside", "sh", "-c", _ASK_ABOUT_GPU))
        yield from find_gpus_inside(driver, asked_inside.text)
    if starts and runtime in SIF_RUNTIMES:
        yield from _find_mount(env)
    if env.overlay:
        yield from _find_overlay(env)
    if env.venv:
        yield from _find_venv(env, inside if starts else [])


def load_modules(machine: Machine, runtime: str) -> None:
    """Load the modules that the site's runtime comes from, for all programs that follow."""
    if lines := module_lines(machine, runtime):
        variables = bash("exec 2>/dev/null", *lines, "env -0").text.split("\0")
        pairs = (each.partition("=")[::2] for each in variables)
        os.environ.update({name: value for name, value in pairs if NAME.fullmatch(name)})


def find_runtime(runtime: str, why: str) -> Iterator[Finding]:
    """Check the program that starts the image; `why` it was chosen, if there was a choice."""
    if runtime == "host":
        yield ok("runtime", f"host (no container){why and f': {why}'}")
        return
    broken = call("fail", f"{runtime} is installed but does not work", f"run: {runtime} version")
    works = f"{call(runtime, 'version')} &>/dev/null || {broken}"
    lines = (call("program_check", runtime), works, call("program_version", runtime))
    version = yield from asked("runtime", *lines, text=f"{PRINTED}{why and f', {why}'}")
    found = re.match(r"apptainer version (\d+)\.(\d+)\.(\d+)", version or "")
    if found and tuple(map(int, found.groups())) < (1, 5, 1):
        text = f"{found[0]} has a vulnerability of limit container paths: CVE-2026-48785"
        yield warning("security", text, "ask your site for 1.5.1 or newer")


def _find_image(env: Environment) -> Generator[Finding, None, bool]:
    """Check that the active image is complete and unchanged; its checksum is not computed."""
    active = active_image(env.runtime, env.source, env.paths)
    file = pinned(active) if os.path.islink(active) else Path(env.image)
    usable = (yield from asked("image", *image_lines(env))) is not None
    damage, command = "", env.settings.command
    activate = command("python3", "move_built_container_to_active.py")
    if usable and file.parent.name == "versions":
        damage = find_damages([file], answer_lines(env))[str(file)]
    if damage:
        may, fix = "is", f"{command('python3', 'build_container.py', '--force')} && {activate}"
        if damage.startswith("modified"):
            may, fix = "may be", f"compare its checksum: {activate} --use {file.name}"
        yield problem("image", f"the image {file} {may} damaged: {damage}", fix)
    elif usable:
        yield ok("image", f"{file}{_built(file)}")
    if new_image(active):
        yield warning("image", "a new image is ready to activate", activate)
    return usable and not damage


def _built(file: Path) -> str:
    date = readable_values(Path(f"{file}.json")).get("date", "")
    return f", built {date}" if date else ""


def _find_inside(inside: Sequence[str]) -> Generator[Finding, None, bool]:
    """Check that the image starts as container_run.py starts it."""
    code = "import platform; print(platform.python_version(), 'for', platform.machine())"
    start = call("inside", "python3", "-s", "-c", code)
    return (yield from asked("inside", *inside, start, text=f"Python {PRINTED} starts")) is not None


def find_gpus_inside(driver: Driver, text: str) -> Iterator[Finding]:
    """Check that programs inside the container see the GPUs, and that the driver fits the image.

    A driver runs programs for older versions and, since CUDA 11, for any of the same major number.
    """
    has = dict(re.findall(r"^(\w+)=([\w.]*)", text, re.MULTILINE))
    seen, program = has.get("seen", "0"), "nvidia-smi"
    if driver.amd:
        seen, program = str(has.get("kfd", "0")), "rocminfo"
    cuda = (re.findall(r"^\d+\.\d+", has.get("cuda", "")) or [""])[0]
    state, fix = "ok", ""
    shown = f"{seen} visible; the image has CUDA {cuda or _UNKNOWN}"
    if seen == "0":
        state, shown = "problem", "the GPUs of this node are not visible in the image"
        fix = f"run: python3 container_run.py {program}"
    elif driver.amd:
        # no judgement: AMD supports neighbouring releases of both (LUMI: images older than its
        # driver may fail), but a driver does not tell its release
        rocm = has.get("rocm") or _UNKNOWN
        shown = f"visible; the image has ROCm {rocm}, the driver is {driver.amd}"
    elif cuda and driver.cuda != "unknown" and _major(driver.cuda) < _major(cuda):
        state, limit = "problem", f"supports only {driver.cuda}"
        if "compatible" in has:
            state, limit = "warning", f"supports {driver.cuda}: this works on data-center GPUs only"
        shown = f"the image has CUDA {cuda}, but the driver {limit}"
        fix = "an image of an older release: container.image in configuration.toml"
    yield Finding(state, "GPU inside", shown, fix)


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _find_mount(env: Environment) -> Iterator[Finding]:
    """Report which SquashFS files the runtime can mount, tested with small ones.

    A failure is a problem if an overlay is configured.
    """
    compression, runtime = env.settings.configuration.packages.compression, env.runtime
    bad = problem if env.overlay else warning
    works = mountable(runtime, env.image)
    if works is None:
        text = "not tried: no mksquashfs 4.4 on this machine; the image's packs overlays"
        yield ok("mount", text)
        return
    can, cannot = (" ".join(x for x in FORMATS if works[x] is able) for able in (True, False))
    if works.get(compression):
        others = f", not with {cannot}" if cannot else ""
        by = "the kernel" if works["kernel"] else "FUSE"
        over = f"--overlay {'works' if works['--overlay'] else 'does not work'}"
        yield ok("mount", f"{runtime} mounts overlays by {by}, packed with {can}{others}; {over}")
    elif not can:
        fix = 'use a venv instead: set packages.overlay = "", then run: python3 set_up.py install'
        yield bad("mount", f"{runtime} cannot mount SquashFS files on this machine", fix)
    else:
        text = f"{runtime} mounts no overlay packed with {compression}, but with {can}"
        fix = f'set packages.compression = "{can.split()[0]}" in configuration.toml, then run: '
        yield bad("mount", text, fix + env.settings.command("python3", "build_overlay.py"))


def mountable(runtime: str, base: str) -> dict[str, bool] | None:
    """Tell for each compression whether the runtime mounts such a small file.

    The same for --overlay, and whether the kernel serves the mount, under the name "kernel".
    The base is an image. None: there is no program to pack files.
    """
    facts = {"runtime": runtime, "base": base, "overlay_target": MOUNTED_AT}
    assigned = [assign(name, value) for name, value in facts.items()]
    if bash("overlay_can_pack mksquashfs", seconds=15).code:
        return None
    with tempfile.TemporaryDirectory(prefix="longship-doctor.", dir="/tmp") as work:
        tests = {each: [call("overlay_can_mount", work, each)] for each in FORMATS}
        by_kernel = ("grep", "-q", f" {MOUNTED_AT} .* - squashfs ", "/proc/self/mountinfo")
        tests["kernel"] = [call("overlay_try", f"{work}/probe.sqsh", "bind", *by_kernel)]
        over = f"{work}/over.sqsh"
        pack = call("overlay_pack", f"{work}/probe", over, "gzip", "-no-progress")
        tests["--overlay"] = [pack, call("overlay_try", over, "overlay", "true")]
        return {name: not bash(*assigned, *test, seconds=15).code for name, test in tests.items()}


def _find_overlay(env: Environment) -> Iterator[Finding]:
    """Check the overlay as each launch does, and compare it with its record."""
    file = Path(env.overlay)
    if (yield from asked("overlay", check_overlay(env))) is None:
        return
    damage = find_damages([file])[str(file)]
    if damage:
        text = f"the overlay {file} may be damaged: {damage}"
        yield problem("overlay", text, env.settings.command("python3", "build_overlay.py"))
    else:
        yield ok("overlay", f"{file}{_built(file)}")


def _find_venv(env: Environment, inside: Sequence[str]) -> Iterator[Finding]:
    """Check that the venv is complete, and belongs to the image or overlay that it is used with.

    Without the lines of `inside`, as the image does not start, the venv's Python is not started.
    """
    venv = Path(env.venv)
    python = call("inside", venv / "bin/python", "-I", "-c", "import sys; print(sys.version)")
    started = bash(*inside, python).text if inside else ""
    version = re.search(r"^(\d+\.\d+)\.\d", started, re.MULTILINE)
    if inside and not (venv / "longship-base").exists() and (venv / "pyvenv.cfg").exists():
        yield _foreign_venv(venv, version[1] if version else "")
        return
    lines = (call("venv_check", venv, env.overlay or env.base), call("venv_find_lost", venv))
    lost = yield from asked("packages", *lines, 'printf "%s" "$REPLY"')
    if lost == "" and inside and not version:
        lost = "a Python that starts"
    if lost:
        install = env.settings.command(*SET_UP_COMMAND)
        yield problem("packages", f"the venv {venv} lacks {lost}", f"run: {install}")
    elif lost is not None:
        yield ok("packages", str(venv))


def _foreign_venv(venv: Path, version: str) -> Finding:
    """Check that a venv of the user's own has packages for the image's Python."""
    fix = "set container.image to the image that the venv was made with; "
    fix += "or build a new venv: python3 set_up.py install"
    if not version:
        return problem(
            "packages", f"the Python of the venv {venv} does not start in the image", fix
        )
    if not (venv / f"lib/python{version}/site-packages").is_dir():
        text = f"the venv {venv} has no packages for Python {version} of the image"
        return problem("packages", text, fix)
    return ok("packages", f"{venv}, which is not Longship's and is used as it is")


def find_repositories(settings: Settings, paths: Paths) -> Iterator[Finding]:
    """Report where each repository is, and whether the user's changes are saved."""
    configured = configured_repositories(settings)
    if not configured or (yield from asked("git", call("repositories_check_git"))) is None:
        return
    listed = listed_lines(settings, paths)
    for each in configured:
        check = call(WORKER, "check", f"--name={each.name}")
        yield from asked("repository", *listed, check, text=PRINTED)
