"""Every script in the tree, and every emitted one, passes shellcheck; what is exported stays."""

import itertools
import os
import re
from functools import partial
from pathlib import Path

import pytest
from support.emitted_jobs import JOBS
from support.repository import toml
from support.shellchecks import of_different_functions, read_emitted, shellcheck
from support.tree import own_files

from lib.assets.assets import download_lines as download_assets
from lib.assets.assets import offline_lines as offline_assets
from lib.bundle.bundle import pack_lines, unpack_lines, verify_lines
from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.schema import RUNTIMES
from lib.configuration.sites import load_machines
from lib.images.build import build_lines as build_image
from lib.images.build import download_lines
from lib.images.versions import move_lines, prune_lines, use_lines
from lib.packages.overlay import build_lines
from lib.packages.overlay import download_lines as download_overlay
from lib.packages.overlay import prune_lines as prune_overlays
from lib.packages.set_up import download_lines as set_up_download_lines
from lib.packages.set_up import install_lines, update_lines
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.render import render

ROOT = Path(__file__).resolve().parents[1]


def is_script(path):
    if path.suffix in (".sh", ".bash", ".sbatch", ".salloc"):
        return True
    if path.suffix:
        return False
    first = path.read_bytes()[:64].split(b"\n")[0]
    return first.startswith(b"#!") and first.endswith((b"sh", b"bash"))


def scripts():
    """Give every script of the working tree by its folder; golden ones are among the emitted ones.

    A site or a stack is a folder, whatever is below it; the root of the repository is ".".
    """
    found = {}
    for path in filter(is_script, own_files(ROOT)):
        parts = path.relative_to(ROOT).parts
        if parts[:2] != ("tests", "golden"):
            depth = 2 if parts[0] in ("lib", "stacks") else 1
            found.setdefault("/".join(parts[:-1][:depth]) or ".", []).append(path)
    return found


SCRIPTS = scripts()


@pytest.mark.parametrize("folder", sorted(SCRIPTS))
def test_scripts_of_a_folder_pass(folder, run):
    files = [path for paths in SCRIPTS.values() for path in paths]
    shellcheck(run, "--external-sources", *SCRIPTS[folder], reads=files, cwd=ROOT)


def test_scripts_of_all_kinds_are_found():
    names = {str(path.relative_to(ROOT)) for paths in SCRIPTS.values() for path in paths}
    assert names >= {".ci/run", "quickstart.sh", "run_tests.sh", "lib/runtimes/launch.bash"}


CONFIGURATION = """
[project]
name = "p"
account = "a"
[container]
image = "docker://example.org/lab/base:1"
binds = ["/data", "/it's:/inside:ro"]
patched_files = { "/usr/lib/a b.py" = "patches/files/it's.py" }
[environment]
unset = ["MINE", "OURS_*"]
set = { A = "it's \\"$HOME\\"", B = "a\\nb" }
[[assets]]
repo = "lab/tiny"
include = ["*.json", "it's here"]
[[repositories]]
url = "https://example.org/one.git"
extras = ["a"]
script = "it's.sh"
[[repositories]]
url = "https://example.org/two.git"
install = "requirements"
"""


START = ["LIBRARY=lib", "export LIBRARY", "on_interrupt x"]

OVERLAY = (
    CONFIGURATION
    + """
[packages]
overlay = "myenv"
work_dir = "/it's here"
"""
)
OVERLAYS = {
    "overlay": partial(build_lines, command_line="x y"),
    "overlay offline": partial(build_lines, offline=True, force=True, command_line="x y"),
    "overlay download": partial(download_overlay, command_line="x y"),
    "overlay prune": lambda env: prune_overlays(env.settings, env.paths, asked=False),
    "overlay set_up": install_lines,
    "overlay container_run": run_lines,
}
BUNDLES = {  # no matter the runtime
    "pack": lambda env: pack_lines(
        *(env.settings, env.paths, "/it's"), typed="x", allowed=["a b", "it's"]
    ),
    "verify": lambda _: verify_lines(ROOT, "/it's", typed="x y"),
    "unpack": lambda env: unpack_lines(*(env.settings, env.paths, "/it's"), typed="x"),
}
IMAGES = {
    "online build": partial(build_image, digest="sha256:12", force=True, command_line="x y"),
    "offline build": partial(build_image, force=False, command_line="x y", offline=True),
    "download": partial(download_lines, digest="", force=False, command_line="x y"),
    **BUNDLES,
    "move": partial(move_lines, following=["x y"]),
    "rollback": partial(use_lines, following=[], version=None),
    "use": partial(use_lines, following=["x y"], version="1"),
    "prune": prune_lines,
    "assets download": lambda env: [*START, *download_assets(env.settings, env.paths)],
    "assets offline": lambda env: [*START, *offline_assets(env.settings, env.paths)],
}
SET_UPS = {
    "set_up": install_lines,
    "set_up update": update_lines,
    "set_up offline": partial(install_lines, offline=True),
    "set_up download": partial(set_up_download_lines, command_line="x y"),
}


def emitted(name, machine, runtime, configuration):
    """Give the script that an entry script would emit."""
    environ = {"HOME": "/home/me", "USER": "me", "PATH": ""}
    options = {"machine": machine, "configuration": str(configuration)}
    settings = load_settings(ROOT, options, environ)
    paths = derive_paths(settings)
    env = Environment(settings, paths, runtime)
    if name in OVERLAYS:
        return render(name, OVERLAYS[name](env))
    if name in JOBS:
        return render(
            name, JOBS[name](settings, paths, runtime), sourced=name.startswith("job_start")
        )
    if name in SET_UPS:
        return render(name, SET_UPS[name](env))
    if name in IMAGES:
        return render(name, IMAGES[name](env))
    return render(name, run_lines(env, online=name == "online"))


def runtimes_of(name):
    """Give the runtimes whose scripts differ."""
    if name in BUNDLES:
        return ["apptainer"]
    if name in OVERLAYS or name in JOBS or name in SET_UPS and name != "set_up":
        return ["apptainer", "docker", "host"]
    without = {"auto", "host"} if name in IMAGES else {"auto"}
    return [each for each in RUNTIMES if each not in without]


# What is emitted, and the machines on which that differs by more than values; container_run is
# emitted for each machine below. With modules and without; images are made at Olivia by a job.
EMITTED = {
    **dict.fromkeys(["container_run", "online", *IMAGES, *SET_UPS, *OVERLAYS], ("local",)),
    **dict.fromkeys(JOBS, ("local", "jwb", "aws")),
    "set_up": ("local", "jwb"),
    "online build": ("local", "olivia"),
    "overlay": ("local", "olivia"),
}


def all_emitted(name, folder):
    """Give the scripts of a name, by machine and runtime."""
    configuration = folder / "configuration.toml"
    configuration.write_text(OVERLAY if name in OVERLAYS else CONFIGURATION)
    return {
        f"{machine} {runtime}": emitted(name, machine, runtime, configuration)
        for machine, runtime in itertools.product(EMITTED[name], runtimes_of(name))
    }


@pytest.mark.parametrize("name", EMITTED)
def test_emitted_scripts_pass(name, run, tmp_path):
    read_emitted(run, all_emitted(name, tmp_path), tmp_path)


@pytest.mark.parametrize("machine", sorted(load_machines(ROOT)))
def test_emitted_script_of_a_machine_passes(machine, run, tmp_path):
    configuration = tmp_path / "configuration.toml"
    configuration.write_text(CONFIGURATION)
    runtime = load_machines(ROOT)[machine].runtime.replace("auto", "apptainer")
    file = tmp_path / "container_run.sh"
    file.write_text(emitted("container_run", machine, runtime, configuration))
    shellcheck(run, file)


def test_emitted_script_with_every_value_hostile_passes(run, tmp_path, hostile_arguments):
    values = [each for each in hostile_arguments if each.isascii() and each.isprintable() and each]
    table = "".join(f"V{number} = {toml(value)}\n" for number, value in enumerate(values))
    binds = toml(["/x " + re.sub("[${}:]", "", value) for value in values])
    configuration = tmp_path / "configuration.toml"
    text = f"[container]\nbinds = {binds}\n[environment.set]\n{table}"
    configuration.write_text(text)
    files = []
    for name, runtime in itertools.product(("container_run", "set_up"), ("apptainer", "docker")):
        files.append(tmp_path / f"{name} {runtime}.sh")
        files[-1].write_text(emitted(name, "local", runtime, configuration))
    # Values that look like expansions stand in single quotes, as they must: only that is remarked.
    remarks = "--exclude=SC1003,SC2016"
    shellcheck(run, remarks, *files)


# Where bash gives a variable a value, in the form in which it prints functions.
BEGIN = r"(?:^|&& |\|\| |; |\{ |\( |! |if |while |until |then |do |else )\s*(?:[A-Z_]+=\S* )*"
GIVEN = [
    re.compile(rf"{BEGIN}([a-z]\w*|REPLY)(?:\[.*?\])?\+?=", re.MULTILINE),
    re.compile(rf"{BEGIN}for ([a-z]\w*) in\b", re.MULTILINE),
    re.compile(r"\(\(\s*([a-z]\w*) = "),
    re.compile(r"\(\(\s*([a-z]\w*)(?:\[.*?\])?\s*(?:[-+*/|%]?=(?!=)|\+\+|--)"),
    re.compile(r"(?:printf -v|mapfile(?: -[a-z]+)*(?: -d '')?) ([a-z]\w*)"),
    re.compile(r"exec \{([a-z]\w*)\}"),
]
VALUE = r"""(?:=(?:'[^']*'|"[^"]*"|\$\(.*|\([^)]*\)|[^\s;]*))?"""
LISTS = re.compile(
    rf"{BEGIN}(?:local|read(?= -))((?: -\w+| '')*)((?: [a-z]\w*{VALUE}(?=[\s;]|$))+)", re.MULTILINE
)


def names_given(text, run):
    """Find the variables that a script assigns, without what lib/script/render.py knows of them."""
    # on standard input, as it can be longer than an argument
    functions = run(["bash", "-s"], input=text.rpartition("\n\n")[0] + "\ndeclare -f\n").stdout
    found = {name for pattern in GIVEN for name in pattern.findall(functions)}
    for _, words in LISTS.findall(functions):
        found.update(re.findall(rf" ([a-z]\w*){VALUE}", words))
    found.update(re.findall(r"^declare(?: -\w+)? (\w+)=", text, re.MULTILINE))
    return {each for each in found if not each.startswith("longship_")}


@pytest.mark.parametrize("name", EMITTED)
def test_what_the_user_exports_reaches_what_emitted_scripts_start(name, run, tmp_path):
    """Whatever its name: a script that assigned to it would give the program another value."""
    for text in of_different_functions(all_emitted(name, tmp_path)).values():
        canaries = dict.fromkeys(names_given(text, run), "the user's")
        own, last = text.rsplit("\n\n", 1)
        hands_over = "\nhand_over() {" in own
        end = "command_exec env -0" if hands_over else "env -0"
        change = "\n".join(f"  {each}=changed" for each in sorted(canaries))
        change = f"longship_main() {{\n{change}\n  {':' if 'exported_restore' in last else end}\n}}"
        after = "env -0" if "exported_restore" in last else ""
        script = tmp_path / "script"  # it can be longer than an argument
        script.write_text(f"{own}\n{change}\n{last}\n{after}")
        done = run(["bash", script], env={"PATH": os.environ["PATH"], **canaries})
        seen = dict(each.split("=", 1) for each in done.stdout.split("\0") if "=" in each)
        seen = {each: value for each, value in seen.items() if each in canaries}
        # a script that hands nothing over gives its own programs no value of ours
        wanted = canaries if hands_over or after else {}
        assert seen == wanted
