"""The plan of each machine and command, compared with checked-in files.

The first plan of a kind is kept as it is: title, plan, long texts, and the names of the functions
that it uses, which have their own tests. So is the first launch of each runtime, one with its
functions, as a user sees it. Of all others, sites.txt says what they have more (+) and less (-).
After a change that is meant, PYTHONPATH=. .venv-tests/bin/python tests/test_golden.py writes the
files anew; read the diff.
"""

import re
import tempfile
from functools import cache, partial
from pathlib import Path
from unittest import mock

import pytest
from support.emitted import EXTRAS, GOLDEN_OF, can_start, emit, environment_of
from support.plans import difference, facts_of, lines_of, plan_of, table
from support.repository import SITES
from support.stacks import OTHERS, SHIPPED, STACKS, command_of

from lib import ROOT
from lib.configuration.sites import load_machines

pytestmark = pytest.mark.extras

GOLDEN = Path(__file__).with_name("golden")
FOLDERS = {GOLDEN, *GOLDEN_OF.values()}
INPUTS = {"configuration.toml", "overlay.toml", "requirements.txt"}

# machine, and what runs the image there; local shows the runtimes that no site has
LAUNCHES = [
    *(("jpb", "apptainer"), ("jwb", "apptainer"), ("jwc", "apptainer"), ("jrc", "apptainer")),
    *(("olivia", "apptainer"), ("lumi", "singularity"), ("berzelius", "apptainer")),
    *(("aws", "enroot"), ("leonardo", "singularity"), ("arrhenius", "apptainer")),
    *(("isambard", "apptainer"), ("marenostrum", "singularity"), ("alps", "enroot")),
    *(("frontier", "apptainer"), ("roihu", "apptainer"), ("local", "docker")),
    *(("jeanzay", "singularity"), ("snellius", "apptainer"), ("local", "podman")),
    *(("capella", "singularity"), ("local", "enroot"), ("local", "host")),
]
SHOWN = {machine for machine, _ in LAUNCHES}
# In a clone without the extra of a runtime its plans are not compared, nor tables with them.
MISSING = [each for each in LAUNCHES if not can_start(*each)]
LAUNCHES = [each for each in LAUNCHES if each not in MISSING]

# Kind, machine and runtime. Images and overlays are made in the same way on all machines.
PLANS = [
    *((kind, *launch) for kind in ("container_run", "set_up") for launch in LAUNCHES),
    *(
        (kind, machine, runtime)
        for kind in ("launcher", "submit", "job_start")
        for machine, runtime in LAUNCHES
        if machine != "local"
    ),
    ("job_start", "local", "apptainer"),
    ("build_container_online", "jpb", "apptainer"),
    ("build_container_online", "lumi", "singularity"),
    ("build_container_online", "local", "docker"),
    ("build_container_online", "local", "enroot"),
    ("move_built_container_to_active", "jpb", "apptainer"),
    ("move_built_container_to_active", "local", "docker"),
    ("build_overlay", "jpb", "apptainer"),
    ("build_overlay", "olivia", "apptainer"),
    ("build_overlay", "local", "host"),
    *(
        (kind, "jpb", "apptainer")
        for kind in (
            *("build_container_download", "build_overlay_prune", "set_up_download"),
            *("set_up_update_continue", *EXTRAS),
        )
    ),
]
PLANS = [plan for plan in PLANS if can_start(*plan[1:])]
# Kept as the difference from another kind: with an overlay, without a network, of another job.
JPB, JWB, PODMAN = ("jpb", "apptainer"), ("jwb", "apptainer"), ("local", "podman")
LOCAL = [each for each in LAUNCHES if each[0] == "local"]
VARIANTS = [
    (
        "container_run_overlay",
        "container_run",
        [JPB, *LOCAL],
    ),
    ("set_up_overlay", "set_up", [JPB]),
    ("set_up_offline", "set_up", [JPB]),
    ("build_container_offline", "build_container_online", [JPB, PODMAN]),
    ("build_overlay_offline", "build_overlay", [JPB]),
    ("submit_array", "submit", [JWB, ("local", "host")]),
    ("job_start_watched", "job_start", [JWB]),
]
VARIANTS = [
    (*kinds, [launch for launch in launches if can_start(*launch)]) for *kinds, launches in VARIANTS
]
CONTRACT = re.compile(r"^longship_contract='(.*?exec \"\$@\")'$", re.MULTILINE | re.DOTALL)
ALIKE = {"singularity": "apptainer", "podman": "docker"}
FIRST = {}
for plan in reversed(PLANS):
    FIRST[plan[0]] = FIRST[plan[0], ALIKE.get(plan[2], plan[2])] = plan


def reference(plan):
    """Give the plan that another one is compared with: itself if it is kept as it is."""
    first = FIRST[plan[0], ALIKE.get(plan[2], plan[2])]
    return first if plan != first or plan[0] in ("container_run", "launcher") else FIRST[plan[0]]


def environment(kind, machine, runtime, stack=""):
    name = "overlay" if "overlay" in kind else "configuration"
    return environment_of(machine, runtime, GOLDEN / f"{name}.toml", stack)


@cache  # others are compared with it
@mock.patch("sys.executable", "/usr/bin/python3")
def script_of(*plan):
    return emit(plan[0], environment(*plan))


def own_lines(*plan):
    env = environment(*plan)
    return lines_of(script_of(*plan), env.settings, env.paths)


def sites():
    """Give what the machines differ in."""
    parts = {}
    for launch in dict.fromkeys(plan[1:] for plan in PLANS):
        facts = facts_of(environment("container_run", *launch).paths)
        columns = {
            plan[0]: difference(own_lines(*plan), own_lines(*reference(plan)))
            for plan in PLANS
            if plan[1:] == launch
        }
        parts[" ".join(launch)] = [f"{word} = {fact}" for word, fact in facts.items()]
        parts[" ".join(launch)] += table(columns)
    return paragraphs(parts)


def variants():
    """Give what a kind of plan has more and less than another one."""
    parts = {}
    for kind, other, launches in VARIANTS:
        columns = {
            " ".join(launch): difference(own_lines(kind, *launch), own_lines(other, *launch))
            for launch in launches
        }
        parts[f"{kind}, compared with {other}"] = table(columns)
    return paragraphs(parts)


def stack(name):
    """Give what a stack has more and less in its launcher, and what its script starts.

    Of the second machine it is what differs from the first.
    """
    launchers, commands = {}, {}
    script, arguments = OTHERS.get(name, ("run_training.sh", []))
    for _, machine, runtime, per_rank in (each for each in STACKS if each[0] == name):
        launch = ("launcher", machine, runtime)
        launchers[machine] = difference(own_lines(*launch, name), own_lines(*launch))
        with tempfile.TemporaryDirectory() as folder:
            command = command_of(
                *(ROOT, name, machine, Path(folder), arguments), per_rank=per_rank, script=script
            )
        first, *_ = (*commands.values(), None)
        commands[machine] = difference(command, first) if first else command
    commands = {f"command, {machine}": lines for machine, lines in commands.items()}
    return paragraphs({"launcher": table(launchers), **commands})


def kept_plan(plan):
    """Give a plan; of the environment inside, what it has more and less than that of the first."""
    text, first = plan_of(script_of(*plan)), CONTRACT.search(script_of(*PLANS[0]))
    if found := CONTRACT.search(text):
        more = difference(found[1].splitlines(), first[1].splitlines())
        text = text.replace(
            found[1], "\n".join(["(as in container_run_apptainer.sh, but:)", *more])
        )
    return text


def paragraphs(parts):
    return "\n".join("\n".join([f"## {name}", *lines, ""]) for name, lines in parts.items())


def file_of(kind, runtime):
    """Give the file of a plan; that of an extra is in its own folder."""
    return GOLDEN_OF.get(kind, GOLDEN) / f"{kind}_{runtime}.plan"


FILES = {
    **{
        file_of(plan[0], plan[2]): partial(kept_plan, plan)
        for plan in PLANS
        if reference(plan) == plan != PLANS[0]
    },
    GOLDEN / "container_run_apptainer.sh": partial(script_of, *PLANS[0]),
}
if not MISSING:
    FILES.update({GOLDEN / "sites.txt": sites, GOLDEN / "variants.txt": variants})
    FILES.update({GOLDEN / f"stacks/{name}.txt": partial(stack, name) for name in SHIPPED})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_plans_are_the_checked_in_ones(file):
    assert FILES[file]() == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "calls"), [("submit", 15), ("container_run", 21), ("build_overlay", 45)]
)
def test_plans_are_read_at_a_glance(kind, calls):
    plan = script_of(kind, *JPB).partition("longship_main() {\n")[2].partition("\n}\n")[0]
    lines = plan.replace(" \\\n", " ").splitlines()
    assert sum(bool(re.match("  [^ #]", line)) for line in lines) <= calls


def test_every_machine_of_every_site_has_golden_plans():
    machines = load_machines(Path(ROOT))
    shipped = {name for name, each in machines.items() if Path(each.site_file).parent.name in SITES}
    assert shipped == SHOWN


def test_each_stack_has_a_golden_file_of_two_sites():
    assert len(SHIPPED) == 9
    machines = {(name, machine) for name, machine, *_ in STACKS}
    assert all(sum(name == each for each, _ in machines) == 2 for name in SHIPPED)


def test_golden_files_can_be_read_in_a_review():
    files = [path for each in FOLDERS for path in each.rglob("*.*")]
    assert MISSING or {*files} == {*FILES, *(GOLDEN / name for name in INPUTS)}
    assert sum(len(path.read_bytes().splitlines()) for path in files) <= 4000


def write_golden_files():
    texts = {file: text() for file, text in FILES.items()}
    for path in (path for each in FOLDERS for path in each.rglob("*.*")):
        if path.name not in INPUTS:
            path.unlink()
    for file, text in texts.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_golden_files()
