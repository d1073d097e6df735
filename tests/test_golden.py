"""The plan of each machine and command, compared with a checked-in file.

A golden file holds what is the script's own (title, plan, long texts) and the names of the
functions that it uses, which have their own tests: a changed word in a function changes no golden
file but the specimens, which are whole scripts. A plan that hardly differs from another one is kept
as the difference. After a change that is meant, PYTHONPATH=. .venv-tests/bin/python
tests/test_golden.py writes the files anew; read the diff.
"""

import tempfile
from functools import cache, partial
from pathlib import Path
from unittest import mock

import pytest
from support.emitted_jobs import JOBS
from support.plans import difference, placeless, plan_of
from support.stacks import CLONE as STACK_CLONE
from support.stacks import OTHERS, SHIPPED, STACKS, command_of, launcher_of, settings_of

from lib import ROOT
from lib.assets.assets import download_lines as download_assets
from lib.assets.assets import offline_lines as offline_assets
from lib.bundle.bundle import pack_lines, unpack_lines, verify_lines
from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.sites import load_machines
from lib.images.build import build_lines as build_image
from lib.images.build import download_lines
from lib.images.versions import move_lines
from lib.packages.overlay import build_lines
from lib.packages.overlay import prune_lines as prune_overlays
from lib.packages.set_up import download_lines as set_up_download_lines
from lib.packages.set_up import install_lines, repositories_alone_lines
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.command import call
from lib.script.render import render

GOLDEN = Path(__file__).with_name("golden")
CONFIGURATION = GOLDEN / "configuration.toml"
ENVIRON = {"HOME": "/home/me", "USER": "me", "PATH": "/usr/bin:/bin"}
CLONE = Path("/home/me/long ship")  # a space: whoever reads the files sees what is quoted

# machine, and what runs the image there; local shows the runtimes that no site has
LAUNCHES = [
    ("jwb", "apptainer"),
    ("jwc", "apptainer"),
    ("jrc", "apptainer"),
    ("jpb", "apptainer"),
    ("olivia", "apptainer"),
    ("lumi", "singularity"),
    ("berzelius", "apptainer"),
    ("aws", "enroot"),
    ("leonardo", "singularity"),
    ("arrhenius", "apptainer"),
    ("isambard", "apptainer"),
    ("marenostrum", "singularity"),
    ("alps", "enroot"),
    ("frontier", "apptainer"),
    ("local", "docker"),
    ("local", "podman"),
    ("local", "enroot"),
    ("local", "host"),
]

# Their installations differ from the others' as their launches do.
LIKE_OTHERS = {"leonardo", "arrhenius", "isambard", "marenostrum", "alps", "frontier"}


def like(command, machine, runtime):
    """Name the plan that another one is kept as the difference from; None keeps it as it is."""
    if command == "container_run_overlay" or (command, machine) == ("launcher", "jwb"):
        return "container_run", machine, runtime
    if command in ("set_up_assets", "set_up_overlay"):
        return "set_up", machine, runtime
    if command == "build_overlay" and machine == "olivia":
        return "build_overlay_offline", "lumi", "singularity"
    if command == "submit_array":
        return "submit", "jwb", "apptainer"
    if command in ("container_run", "set_up") and (machine, runtime) == ("local", "podman"):
        return command, "local", "docker"
    if (command, machine, runtime) == ("container_run", "local", "enroot") or machine == "alps":
        return command, "aws", "enroot"
    alike = command == "container_run" and machine not in ("jwb", "berzelius", "aws", "local")
    if alike or (command in ("set_up", "submit", "job_start") and runtime != "host"):
        return (command, "jwb", "apptainer") if machine != "jwb" else None
    return None


# Kept whole, functions and all, as a user sees it.
SPECIMENS = {("container_run", "berzelius", "apptainer")}


# A group's own site, in the same tree, is not ours to test.
SITES = {
    *("alps", "arrhenius", "aws", "berzelius", "frontier", "isambard", "jsc", "leonardo", "local"),
    *("lumi", "marenostrum", "olivia"),
}

TYPED = "python3 build_container.py"


def _here(env):
    """Give the environment of a download, whose paths are those of this machine."""
    return env._replace(paths=env.paths._replace(scratch_dir=HERE, shared_dir=HERE))


BUILDS = {
    "build_container_online": partial(build_image, force=False, command_line=TYPED),
    "build_container_offline": partial(
        build_image, force=False, command_line=f"{TYPED} offline", offline=True
    ),
    "build_container_download": lambda env: download_lines(
        _here(env),
        digest="",
        force=False,
        command_line=f"{TYPED} download",
    ),
    "set_up_download": lambda env: set_up_download_lines(
        _here(env),
        "python3 set_up.py download --machine jpb",
    ),
    "set_up_offline": partial(install_lines, offline=True),
}
START = ['LIBRARY="$PWD"/lib', call("on_interrupt", TYPED)]  # as set_up.py has it
# Models and datasets, and a file in place of one of the image's.
ASSETS = {
    "set_up_assets": install_lines,
    "set_up_update_continue": lambda env: repositories_alone_lines(
        env.settings, env.paths, "continue", "python3 set_up.py update --continue"
    ),
    "set_up_assets_download": lambda env: [
        *START,
        *download_assets(env.settings, env.paths),
    ],
    "set_up_assets_offline": lambda env: [*START, *offline_assets(env.settings, env.paths)],
}
OVERLAYS = {
    "build_overlay": partial(build_lines, command_line="python3 build_overlay.py"),
    "build_overlay_offline": partial(
        build_lines, offline=True, command_line="python3 build_overlay.py offline"
    ),
    "build_overlay_prune": lambda env: prune_overlays(env.settings, env.paths, asked=False),
    "container_run_overlay": None,
    "set_up_overlay": install_lines,
}
HERE = Path("/home/me/longship-data/scratch")  # of the machine that downloads
BUNDLE = "/media/a stick"
BUNDLES = {
    "bundle_pack": lambda settings, paths: pack_lines(
        *(settings, paths._replace(scratch_dir=HERE), BUNDLE),
        typed=f"python3 bundle.py pack '{BUNDLE}'",
    ),
    "bundle_verify": lambda settings, paths: verify_lines(
        *(paths.root, BUNDLE), typed="python3 bundle.py verify"
    ),
    "bundle_unpack": lambda settings, paths: unpack_lines(
        *(settings, paths, BUNDLE),
        typed=f"python3 bundle.py unpack '{BUNDLE}'",
    ),
}


def configured(command, machine):
    """Give the settings and paths that a plan is computed from."""
    name = {**dict.fromkeys(ASSETS, "assets"), **dict.fromkeys(OVERLAYS, "overlay")}
    configuration = GOLDEN / f"{name.get(command, 'configuration')}.toml"
    options = {"machine": machine, "configuration": str(configuration)}
    settings = load_settings(Path(ROOT), options, ENVIRON)
    paths = derive_paths(settings)
    return settings, paths._replace(root=CLONE, arch=_arch(settings))


@cache  # others are kept as the difference from it
@mock.patch("sys.executable", "/usr/bin/python3")
def emit(command, machine, runtime):
    settings, paths = configured(command, machine)
    title = f"Longship: {command}.py, machine {machine} ({settings.machine.site_file})"
    if command in JOBS:
        if settings.machine.compute_directories:
            paths = paths._replace(root=Path("/e/project1/me/long ship"))
        if machine in ("aws", "alps"):  # Pyxis binds no path with a space
            paths = paths._replace(root=Path("/fsx/me/long-ship"))
        return render(title, JOBS[command](settings, paths, runtime))
    env = Environment(settings, paths, runtime)
    if command in ("container_run", "container_run_overlay"):
        return render(title, run_lines(env))
    if command in ASSETS:
        lines = ASSETS[command](env)
    elif command == "set_up":
        lines = install_lines(env)
    elif command in OVERLAYS:
        lines = OVERLAYS[command](env)
    elif command in BUNDLES:
        lines = BUNDLES[command](settings, paths)
    elif command == "move_built_container_to_active":
        lines = move_lines(env, ["python3 set_up.py install"])
    else:
        lines = BUILDS[command](env)
    return render(title, lines)


def site_of(file):
    """Name the site that a file describes; None for any other file."""
    return Path(file).parent.name if Path(file).name == "site.toml" else None


# Jobs differ by the machine where they are submitted and started.
OF_JOBS = [
    *(
        (command, machine, runtime)
        for command in ("submit", "job_start")
        for machine, runtime in LAUNCHES
        if machine != "local"
    ),
    ("submit_array", "local", "host"),
    ("job_start", "local", "apptainer"),
    ("job_start_watched", "jwb", "apptainer"),
    ("launcher", "jwb", "apptainer"),
    ("launcher", "aws", "enroot"),
]
# Images and bundles are made in the same way on all machines: one script for each way.
IMAGES = [
    ("build_container_online", "jwb", "apptainer"),
    ("build_container_online", "lumi", "singularity"),
    ("build_container_online", "local", "docker"),
    ("build_container_online", "local", "enroot"),
    ("build_container_offline", "jpb", "apptainer"),
    ("build_container_offline", "local", "podman"),
    ("build_container_download", "jpb", "apptainer"),
    ("set_up_download", "jpb", "apptainer"),
    ("set_up_offline", "jpb", "apptainer"),
    ("move_built_container_to_active", "jwb", "apptainer"),
    ("move_built_container_to_active", "local", "docker"),
    *((command, "jpb", "apptainer") for command in ASSETS),
    ("build_overlay", "olivia", "apptainer"),
    ("build_overlay_offline", "lumi", "singularity"),
    ("build_overlay", "local", "host"),
    ("build_overlay_prune", "jpb", "apptainer"),
    ("set_up_overlay", "jpb", "apptainer"),
    ("container_run_overlay", "jpb", "apptainer"),
    *(("container_run_overlay", "local", runtime) for runtime in ("docker", "enroot", "host")),
    *((command, "jpb", "apptainer") for command in BUNDLES),
]


def wanted():
    """Give command, machine and runtime of every golden script."""
    for machine, runtime in LAUNCHES:
        yield "container_run", machine, runtime
        if machine not in LIKE_OTHERS:
            yield "set_up", machine, runtime
    yield from OF_JOBS
    yield from IMAGES


def _arch(settings):
    """Return the same architecture wherever the tests run."""
    return "amd64" if settings.machine.name == "local" else settings.machine.arch


def file_of(*which):
    """Name a golden file, by command, machine and runtime."""
    kind = "sh" if which in SPECIMENS else "diff" if like(*which) else "plan"
    return f"{'_'.join(which)}.{kind}"


def golden(command, machine, runtime):
    """Give what a golden file must hold."""
    script = emit(command, machine, runtime)
    if (command, machine, runtime) in SPECIMENS:
        return script
    similar = like(command, machine, runtime)
    if similar:
        own = placeless(plan_of(script), configured(command, machine)[1])
        return difference(own, placeless_plan(*similar))
    return plan_of(script)


def placeless_plan(command, machine, runtime):
    return placeless(plan_of(emit(command, machine, runtime)), configured(command, machine)[1])


@pytest.mark.parametrize(("command", "machine", "runtime"), list(wanted()))
def test_plan_is_the_checked_in_one(command, machine, runtime):
    name = file_of(command, machine, runtime)
    assert golden(command, machine, runtime) == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_machine_of_every_site_has_a_golden_script():
    machines = load_machines(Path(ROOT))
    shipped = {name for name, each in machines.items() if site_of(each.site_file) in SITES}
    assert shipped == {machine for machine, _ in LAUNCHES}


def test_no_golden_file_is_left_over():
    expected = {file_of(*each) for each in wanted()}
    assert {path.name for path in GOLDEN.glob("*_*.*")} == expected


def test_golden_files_can_be_read_in_a_review():
    lines = [len(path.read_bytes().splitlines()) for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(lines) < 5750


def of_stack(stack, machine, runtime, per_rank, folder):
    """Give the golden files of a stack on a machine: the launcher, and what its script starts.

    The launcher is kept as its difference from the script of container_run.py there.
    """
    name = f"stacks/{stack}_{machine}"
    paths = derive_paths(settings_of(ROOT, stack, machine, folder))
    launcher = launcher_of(ROOT, stack, machine, runtime, folder)
    plan = placeless(plan_of(launcher), paths._replace(root=STACK_CLONE))
    script, arguments = OTHERS.get(stack, ("run_training.sh", []))
    return {
        f"{name}.diff": difference(plan, placeless_plan("container_run", machine, runtime)),
        f"{name}.txt": command_of(
            *(ROOT, stack, machine, folder, arguments), per_rank=per_rank, script=script
        ),
    }


@pytest.mark.parametrize(("stack", "machine", "runtime", "per_rank"), STACKS)
def test_stack_is_started_as_checked_in(stack, machine, runtime, per_rank, tmp_path):
    for name, text in of_stack(stack, machine, runtime, per_rank, tmp_path).items():
        assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_each_stack_has_golden_files_at_two_sites():
    sites = {(stack, machine) for stack, machine, *_ in STACKS}
    assert len(SHIPPED) == 9
    assert all(sum(stack == each for stack, _ in sites) >= 2 for each in SHIPPED)
    expected = {f"{stack}_{machine}{end}" for stack, machine in sites for end in (".diff", ".txt")}
    assert {path.name for path in (GOLDEN / "stacks").iterdir()} == expected


def write_golden_files():
    for path in (*GOLDEN.glob("*_*.*"), *GOLDEN.glob("stacks/*")):
        path.unlink()
    for each in wanted():
        (GOLDEN / file_of(*each)).write_text(golden(*each), encoding="utf-8")
    (GOLDEN / "stacks").mkdir(exist_ok=True)
    for each in STACKS:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in of_stack(*each, Path(folder)).items():
                (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_golden_files()
