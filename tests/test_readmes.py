"""What the READMEs say: their commands are taken, their files are there, the others can go."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
from support import processes
from support.documentation import blocks, read, script_calls, simple_commands
from support.forks import clone_with_forks
from support.repository import SITES as SHIPPED_SITES
from support.repository import Clone

from lib.configuration.sites import load_machines
from lib.configuration.stacks import load_stack

pytestmark = pytest.mark.extras

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib  # before Python 3.11

ROOT = Path(__file__).resolve().parents[1]
SITES = sorted(path.parent.name for path in ROOT.glob("*/site.toml"))
SHIPPED_FILES = {f"{each}/site.toml" for each in SHIPPED_SITES}
STACKS = sorted(f"stacks/{path.parent.name}" for path in ROOT.glob("stacks/*/README.md"))
JOB_FILE = re.compile(r"[\w./-]+\.(?:sbatch|salloc)\b")


def text_of(page):
    """Give a page, or the README of a site or stack."""
    return read(page if page.endswith(".md") else Path(page, "README.md"))


def toml_of(page):
    return blocks(text_of(page), "toml")


def commands(page):
    """Give the words of each call of a script."""
    code = blocks(text_of(page), "bash")
    return [words for block in code for words in script_calls(simple_commands(block))]


@pytest.fixture(scope="module")
def shared_clone(root, tmp_path_factory):
    """Give a clone that JUPITER's compute nodes see."""
    with clone_with_forks(root, tmp_path_factory.mktemp("readmes") / "clone") as clone:
        site = clone.root / "jsc/site.toml"
        folders = site.read_text().replace('["/e"]', f'["/e", "{clone.root}"]')
        assert str(clone.root) in folders
        site.write_text(folders)
        yield clone


@pytest.fixture
def clone(shared_clone, clean_environment, tmp_path):
    """Give that clone; a test may change its configuration."""
    clone = copy.copy(shared_clone)
    clone.configure("")
    # Where no site says what makes images, a program on PATH does; it is not run.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apptainer").write_text("#!/bin/sh\n")
    (programs / "apptainer").chmod(0o755)
    allowed = {"SINGULARITY_ALLOWED_DIR": "/allowed"}  # Jean Zay sets it
    path = f"{programs}:{processes.PATH}"
    clone.environment = {**clean_environment, **allowed, "PATH": path}
    return clone


@pytest.mark.parametrize("site", SITES)
def test_each_command_is_taken_with_the_configuration_shown(site, clone):
    machines = load_machines(ROOT).values()
    first = next(each.name for each in machines if each.site_file == f"{site}/site.toml")
    clone.configure("\n".join(toml_of(site)))
    assert commands(site)
    for script, *arguments in commands(site):
        assert (ROOT / script).is_file()
        assert clone.type(script, "--dry-run", *arguments, env={"LONGSHIP_MACHINE": first}).stdout


@pytest.mark.parametrize("stack", STACKS)
def test_each_command_of_a_stack_is_taken_with_each_configuration_shown(stack, clone):
    job = '[project]\naccount = "a"\nname = "p"\n[paths]\nscratch_dir = "/e/scratch/me"\n'
    assert commands(stack)
    # without an account: here, or where there are none
    machine = "local" if "cpu" in load_stack(ROOT, Path(stack).name).images else "aws"
    for text in toml_of(stack):
        (clone.root / "shown.toml").write_text(text)
        settings = {"LONGSHIP_CONFIGURATION": "shown.toml", "LONGSHIP_STACK": Path(stack).name}
        environment = {**settings, "LONGSHIP_MACHINE": machine}
        clone.type("container_run.py", "--dry-run", "true", env=environment)
    shown = tomllib.loads("".join(toml_of(stack)[:1]))
    own = {"machine": "auto", "stack": Path(stack).name, **tomllib.loads(job)}
    (clone.root / "shown.json").write_text(json.dumps({**shown, **own}))
    environment = {"LONGSHIP_CONFIGURATION": str(clone.root / "shown.json")}
    for script, *arguments in commands(stack):
        assert (ROOT / script).is_file()
        assert clone.type(script, "--dry-run", *arguments, env=environment).stdout


@pytest.mark.parametrize("stack", STACKS)
def test_readme_of_a_stack_names_each_of_its_settings(stack):
    for name in load_stack(ROOT, Path(stack).name).settings:
        assert f"`{name}`" in text_of(stack), name


def test_each_job_of_the_page_on_jobs_is_taken(clone):
    clone.configure('[project]\naccount = "a"\n[paths]\nscratch_dir = "~/scratch"\n')
    for number in ("4802", "4711"):
        recorded = Path(clone.environment["HOME"], f"scratch/runs/{number}-train")
        recorded.mkdir(parents=True)
        (recorded / "record.json").write_text(f'{{\n  "job": "{number}"\n}}\n')
    (recorded / "arguments").write_text("")
    (recorded / "launcher").write_text("")
    (recorded / "job.sbatch").write_text((ROOT / "jsc/run_training_jwb.sbatch").read_text())
    (recorded / "configuration.json").write_text('{ "project": { "account": "a" } }')
    (clone.root / "lr.txt").write_text("1e-4\n" * 8)
    submitted = [words for words in commands("docs/how-to/jobs.md") if words[0] == "submit.py"]
    assert len(submitted) > 5
    for script, *words in submitted:
        arguments = [str(recorded) if each.startswith("/scratch/bob/") else each for each in words]
        assert clone.type(script, "--dry-run", *arguments).stdout


@pytest.mark.parametrize("site", SITES)
def test_job_files_that_are_named_are_those_that_are_there(site):
    named = set(JOB_FILE.findall(text_of(site)))
    own = {f"{site}/{path.name}" for path in (ROOT / site).iterdir() if JOB_FILE.match(path.name)}
    assert own <= named
    assert [each for each in named if not (ROOT / each).is_file()] == []


def test_sites_are_listed_with_whether_a_user_has_confirmed_them():
    lines = read("docs/sites.md").splitlines()
    found = (re.match(r"\| \[.*?\]\(\.\./(\w+)/", line) for line in lines)
    rows = {match[1]: match.string for match in found if match}
    assert set(rows) >= set(SHIPPED_SITES)
    assert all(line.count("|") == 6 and line.rstrip("| ")[-1] for line in rows.values())
    machines = [each for each in load_machines(ROOT).values() if each.site_file in SHIPPED_FILES]
    assert (len(machines), len(SHIPPED_SITES)) == (19, 16)
    assert "Nineteen machines at sixteen sites: " in "\n".join(lines)
    readme = " ".join(read("README.md").split())
    names = [re.match(r"\| \[(.*?)\]", rows[each])[1] for each in SHIPPED_SITES]
    assert [each for each in names if each != "local" and each not in readme] == []
    confirmed = [each.name for each in machines if each.confirmed]
    assert ("No user has confirmed" in readme) == (confirmed == [])
    for site in SHIPPED_SITES:  # a page that nobody has confirmed begins with that
        of_site = [each for each in machines if each.site_file == f"{site}/site.toml"]
        is_open = site != "local" and not any(each.confirmed for each in of_site)
        begin = " ".join(read(f"{site}/README.md").partition("\n|")[0].split())
        assert (re.search("Nobody has confirmed this page", begin) is not None) == is_open, site


@pytest.mark.parametrize("site", SITES)
def test_a_job_of_each_kind_is_submitted(site):
    submitted = {Path(words[1]).name for words in commands(site) if words[0] == "submit.py"}
    for kind in ("preprocess_data", "run_training", "interactive", "jupyter", "status"):
        assert any(name.startswith(kind) for name in submitted), kind


def test_what_the_readme_lets_one_delete_is_not_needed(root, clean_environment, tmp_path):
    text = read("README.md").partition("Delete what you do not use: sites other than yours")[2]
    named = re.findall(r"`([^`]+)`", text.partition("\n\n")[0])
    assert "stacks" in text and len(named) > 5
    clone = Clone(root, tmp_path / "clone", clean_environment)
    others = [clone.root / each for each in named]
    others += [path.parent for path in clone.root.glob("*/site.toml")]
    others += [path.parent for path in clone.root.glob("stacks/*/stack.toml")]
    for path in others:
        if path.is_dir() and path.name not in ("jsc", "local", "pytorch"):
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    tables = (
        '[project]\naccount = "a"',
        '[packages]\noverlay = "mine"',
        '[container]\nruntime = "apptainer"',
    )
    clone.configure("\n".join(tables))
    calls = [words for words in commands("README.md") if (clone.root / words[0]).is_file()]
    assert len({words[0] for words in calls}) == 6
    for script, *arguments in (*calls, ["build_overlay.py"]):
        assert clone.dry_run(script, *arguments)
