"""Longship takes no code and no settings from where it happens to stand, if others can write there.

A second member of the group, mallory, can write to the directory above the victim's, or has made
the one in which the victim types.
"""

import json
import os
import re
import textwrap

import pytest
from integration.test_hostile_member import PRINT, told, with_packages  # noqa: F401
from support.members import writable

pytestmark = [pytest.mark.root, pytest.mark.only_root]


def doctor(member, cwd=None):
    """Run doctor.py; return what it prints, without line breaks."""
    done = member.run(["python3", "doctor.py"], cwd=cwd or member.root, check=False)
    return " ".join(done.stdout.split())


# He puts a directory of his own in the place of the victim's, with what the victim can still read.
SWAP = """
cd -- "$1" && mv victim away && mkdir -p victim/scratch/runs
ln -s "$1/away/project" victim/project && cd victim/scratch && chmod -R a+rwX "$1/victim" && %s
"""
SWAPPED = {
    "files of his": """
        mkdir -p "runs/code/$5/lib/shell" && echo "$2" >"runs/code/$5/lib/shell/job.bash" &&
        echo "$2" >runs/code/code-0.tar""",
    # the archive and its name are right, the configuration is his
    "a configuration of his": """
        ln -s "$1/away/scratch/runs/code" runs/code && mkdir runs/configurations &&
        echo "$3" >"runs/configurations/$4.json" """,
    "overrides of his": """
        ln -s "$1/away/scratch/runs/code" runs/code && mkdir runs/configurations &&
        ln -s "$1/away/scratch/runs/configurations/$4.json" runs/configurations &&
        printf '[environment.set]\nPATH = "%s"\n' "$6" >"runs/configurations/$4.local.toml" """,
}


@pytest.mark.parametrize("swapped", SWAPPED)
def test_waiting_job_starts_nothing_of_a_directory_that_was_swapped(make_village, swapped):
    """While it waits he has hours; Slurm keeps what it starts with."""
    village = make_village()
    victim, mallory = village.victim, village.mallory
    number = victim.submit(victim.job("train", PRINT), "--", "once more")
    text = (victim.home / f"slurm/{number}/environment").read_text()
    found = dict(each.partition("=")[::2] for each in text.split("\0"))
    kept = os.path.basename(found["LONGSHIP_CONFIGURATION"]).removesuffix(".json")
    programs = mallory.home / "bin"
    write = 'printf "#!/bin/bash\n%s\n" "$1" | tee bin/sh bin/python3; chmod a+rx ~ bin bin/*'
    mallory.bash(f"umask 022; mkdir bin; {write}", village.payload)
    own = {"scratch_dir": f"{victim.home}/s", "project_dir": f"{victim.home}/p"}
    path = f"{programs}:/usr/bin:/bin"
    configuration = {"machine": "local", "paths": own, "environment": {"set": {"PATH": path}}}
    configuration |= {"container": {"runtime": "host"}, "packages": {"requirements": ""}}
    words = (village.payload, json.dumps(configuration, default=str), kept)
    start = os.path.basename(found.get("LONGSHIP_ROOT") or "start-0")  # as it was
    mallory.bash(SWAP % SWAPPED[swapped], village.parent, *words, start, programs)
    code, log = victim.run_job(number)
    assert village.stolen() == []
    assert code != 0 and re.search("^error: .*\nhint: ", log, re.MULTILINE), log
    assert "mine: once more" not in log


EVIL_BYTECODE = """
import importlib._bootstrap_external as made, importlib.util as names, os, sys
clone, payload = sys.argv[1:]
for source in ("__init__", "script/errors", "packages/inside/install_packages"):
    path = f"{clone}/lib/{source}.py"
    facts = os.stat(path)
    text = open(path).read() + f"\\nimport os; os.system({payload!r})\\n"
    code = made._code_to_timestamp_pyc(compile(text, path, "exec"), facts.st_mtime, facts.st_size)
    cached = names.cache_from_source(path)
    os.replace(cached, f"{cached}.old") if os.path.exists(cached) else None
    open(cached, "wb").write(code)
"""


@pytest.mark.parametrize("parent", ["setgid", "acl"])
def test_bytecode_of_a_clone_in_the_directory_of_a_group(make_village, parent):
    """The clone was closed with chmod; the directories that Python makes have the umask's mode."""
    village = make_village(parent, "002")
    victim, clone = village.victim, village.parent / "clone of the victim"
    victim.bash('git clone -q clone "$1" && cp -r clone/stacks/pytorch "$1/stacks/"', clone)
    for each in (
        "lib",
        "lib/script",
        "lib/packages/inside",
    ):  # as an earlier version of Python or Longship made them
        victim.bash('mkdir -p "$1/__pycache__"', clone / each)
    assert "problem owners other users own " in doctor(victim, clone)
    victim.bash('find "$1" -name __pycache__ -prune -o ! -type l -exec chmod go-w {} +', clone)
    village.mallory.run(["python3", "-c", EVIL_BYTECODE, clone, village.payload])
    for _ in range(2):
        victim.run(["python3", "submit.py", "status"], cwd=clone, umask="000")
        victim.run(["python3", "doctor.py"], cwd=clone, umask="000", check=False)
    inside = ("python3", "lib/packages/inside/__main__.py", "install_packages.print_variables")
    victim.run(inside, cwd=clone, umask="000")
    assert village.stolen() == []
    assert [each for each in writable(clone) if "__pycache__" not in each] == []
    assert len([*clone.rglob("*.pyc")]) == 3  # his


def test_directories_with_what_starts_are_refused_if_others_can_write_there(make_village):
    """Below a scratch_dir that others can enter, without a shared_dir."""
    village = make_village()
    victim, scratch = village.victim, village.scratch(village.victim)
    image = village.share_image()
    file = victim.root / "configuration.toml"
    file.write_text(re.sub("shared_.*\n", "", file.read_text()))
    victim.type("move_built_container_to_active.py", "--prune", check=False)
    victim.bash('mkdir -p "$1"; cp "$2" "$1"', scratch / "containers/versions", image)
    victim.type("move_built_container_to_active.py", "--use", image.name)
    tools = scratch / f"tools_{image.name.split('_')[2]}"
    victim.bash('mkdir -m 700 "$1"; chmod g+rx "$2" "$2"/..; mkdir "$2/tools_mine"', tools, scratch)
    assert "started in" in victim.type("container_run.py", "true").stderr
    versions = scratch / "containers/versions"
    victim.run(["chmod", "g+rx", scratch / "containers", versions])
    for wrong in (scratch / "containers", versions, versions / image.name, tools):
        before = wrong.stat().st_mode & 0o777
        victim.run(["chmod", "g+rwx", wrong])
        for words in (["container_run.py", "true"], ["submit.py", victim.job("train", PRINT)]):
            error = told(victim.type(*words, check=False))
            assert str(wrong) in error and "started in" not in error
        wrong.chmod(before)
    assert "started in" in victim.type("container_run.py", "true").stderr


def test_temporary_directory_of_a_group_is_not_used(make_village):
    village = make_village()
    victim, shared = village.victim, village.parent / "tmp"
    village.mallory.run(["mkdir", "-m", "770", shared])
    victim.environment["TMPDIR"] = str(shared)
    said = f"warning: TMPDIR, {shared}, does not exist, or other users can exchange your files"
    done = victim.type("container_run.py", "sh", "-c", "echo $TMPDIR")
    assert said in done.stderr and done.stdout == f"{village.scratch(victim)}/tmp\n"
    assert said.replace("warning: ", "warning temporary ") in doctor(victim)
    own = village.scratch(victim) / "tmp"
    own.chmod(0o770)
    assert f"other users can write to {own}" in told(victim.type("container_run.py", check=False))
    own.chmod(0o700)
    job = victim.job("train", 'srun "$LAUNCHER" sh -c "echo at: \\$TMPDIR"')
    made = 'while sleep 0.01; do for each in "$1"/longship*; do echo "$each" >>seen; done; done'
    village.mallory.start(["bash", "-c", f"shopt -s nullglob; {made}", "bash", shared])
    done = victim.type("submit.py", job)
    assert said in done.stderr and "at: /tmp\n" in victim.run_job(done.stdout.split()[0])[1]
    number = victim.submit(job, env={"TMPDIR": "/tmp"})  # a node can have another one
    _, log = victim.run_job(number, TMPDIR=str(shared))
    assert said in log and "at: /tmp\n" in log
    assert not (village.mallory.home / "seen").exists()
    victim.environment["TMPDIR"] = str(victim.home)
    assert said not in victim.type("container_run.py", "true").stderr


MODULES = (
    "platform importlib venv zipfile pip tokenize json ensurepip compileall sysconfig re typing"
)


@pytest.mark.parametrize("above", [False, True])
def test_nothing_is_taken_from_the_working_directory(with_packages, above):  # noqa: F811
    """His modules and settings of uv, where the victim types, or above the clone."""
    village = with_packages()
    victim, his = village.victim, village.mallory.home / "his"
    if above:
        his = village.parent
        victim.bash('mv clone "$1/clone" && ln -s "$1/clone" clone', his)
    settings = textwrap.dedent(f"""
        [pip]
        find-links = ["{village.mallory.home}/wheels"]
        no-index = true
        no-binary = [":all:"]
    """)
    write = (
        'umask 022; mkdir -p his; chmod a+rx ~ his; cd "$1"; for each in $2; do '
        'echo "import os; os.system(\\"\\"\\"$3\\"\\"\\")" >$each.py; done; echo "$4" >uv.toml; '
        'printf "[project]\\nname = \\"x\\"\\nversion = \\"1\\"\\n[tool.uv]\\nno-binary = true\\n" '
        ">pyproject.toml"
    )
    village.mallory.bash(write, his, MODULES, village.payload, settings)
    clone = his / "clone" if above else victim.root
    cwd = clone if above else his
    victim.environment["PYTHONPATH"] = "/nowhere:"  # the empty entry is the working directory
    victim.run(["python3", clone / "doctor.py"], cwd=cwd, check=False)
    victim.run(["python3", clone / "set_up.py", "install"], cwd=cwd)
    victim.run(["python3", clone / "set_up.py", "update"], cwd=cwd)
    victim.run(["python3", clone / "submit.py", "status"], cwd=cwd)
    del victim.environment["PYTHONPATH"]
    show = ("python", "-c", "import longship_tiny; print(longship_tiny.VERSION)")
    done = victim.run(["python3", clone / "container_run.py", *show], cwd=victim.home)
    assert done.stdout == "1.0\n"
    assert village.stolen() == []


HIS = {
    "files": 'mkdir -p lib/shell && echo "$1" | tee lib/shell/job.bash submit.py',
    # the file is the victim's, what is next to it is not
    "links": 'mkdir -p lib/jobs && ln -s "$2/lib/shell" lib/shell; echo "$1" >lib/jobs/job.bash',
    "link": """
        mkdir -p lib/jobs lib/shell && ln -s "$2/lib/shell/job.bash" lib/shell/
        echo "$1" >lib/jobs/job.bash""",
    "hard link": 'mkdir -p lib/shell && ln "$2/../log" lib/shell/job.bash; echo "$1" >>"$2/../log"',
}


@pytest.mark.parametrize("kind", HIS)
def test_job_that_sbatch_submits_in_the_directory_of_another_is_refused(make_village, kind):
    village = make_village()
    victim, mallory = village.victim, village.mallory
    victim.bash("umask 0; echo true >log")  # which everybody can write to
    make = f"umask 022; chmod a+rx ~; mkdir his; cd his; {HIS[kind]}"
    mallory.bash(make, village.payload, victim.root)
    job = victim.root / "local/run_training_local.sbatch"
    number = victim.bash('cd -- "$1"; sbatch --output="$HOME/log1" "$2"', mallory.home / "his", job)
    code, log = victim.run_job(number.stdout.strip())
    assert village.stolen() == []
    hint = "hint: in it, run: python3 submit.py FILE"
    assert code == 1 and log.splitlines() == ["error: not submitted from your clone", hint]
    number = victim.bash('cd clone; sbatch --output="$HOME/log2" "$1"', job).stdout.strip()
    assert "longship: run " in victim.run_job(number)[1]  # the victim's own clone


def test_packages_of_the_scripts_are_those_of_the_clone_that_submitted(make_village):
    """While a job waits, he renames the clone, and puts one with his .venv in its place."""
    village = make_village()
    victim, clone = village.victim, village.parent / "clone"
    victim.bash('mv clone "$1"; mkdir -p "$1"/.venv/lib/python3/site-packages', clone)
    victim.root = clone
    number = victim.submit(victim.job("train", PRINT), "--", "once more")
    evil = (
        'cd -- "$1" && mv clone away && umask 022 && mkdir -p clone/.venv/lib/python3/site-packages'
        "/click && echo \"import os; os.system('$2')\" >clone/.venv/lib/python3/site-packages"
        "/click/__init__.py"
    )
    village.mallory.bash(evil, village.parent, village.payload)
    code, log = victim.run_job(number)
    assert village.stolen() == [] and code != 0
    assert f"error: {clone} belongs to another user than at the submission\nhint: " in log


def test_image_that_a_link_of_another_names_is_not_started(make_village):
    village = make_village()
    image = village.share_image()
    village.victim.bash('cp "$1" evil.sif; chmod 644 evil.sif; chmod 711 .', image)
    containers = village.shared / "containers"
    village.victim.run(["chmod", "g+w", containers])
    replace = 'cd "$1"; for each in *.sif; do ln -sfn "$2/evil.sif" "$each"; done'
    village.mallory.bash(replace, containers, village.victim.home)
    village.victim.run(["chmod", "g-w", containers])
    error = told(village.victim.type("container_run.py", "true", check=False))
    assert "belongs to mallory" in error and "started in" not in error


@pytest.mark.parametrize("below", ["", "/sub"])
def test_link_of_another_on_the_way_is_refused(make_village, below):
    village = make_village()
    victim, link = village.victim, village.parent / "link"
    victim.bash("umask 077; mkdir -p real/sub")
    victim.home.chmod(0o755)
    village.mallory.run(["ln", "-s", victim.home / "real", link])
    file = victim.root / "configuration.toml"
    text = file.read_text().replace(str(village.scratch(victim)), f"{link}{below}")
    file.write_text(text)
    commands = (["container_run.py", "true"], ["submit.py", victim.job("train", PRINT)])
    for words in commands:
        assert f"{link} belongs to mallory" in told(victim.type(*words, check=False))
    assert f"problem owners {link} belongs to mallory" in doctor(victim)
    link.unlink()
    victim.run(["ln", "-s", victim.home / "real", link])
    assert victim.type("container_run.py", "echo", "mine").stdout == "mine\n"


def test_doctor_names_a_parent_in_which_others_can_rename(make_village):
    village = make_village()
    victim = village.victim
    victim.type("container_run.py", "true")
    said = f"warning owners other users can rename your directories in '{village.parent}', and"
    found = doctor(victim)
    assert found.count(said) == 1 and f"chmod +t '{village.parent}'" in found
    village.parent.chmod(0o3770)
    assert "ok owners only you" in doctor(victim)
