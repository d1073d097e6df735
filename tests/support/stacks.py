"""What a stack starts on a machine: its command line, and the launcher that starts it."""

import os
import subprocess
from pathlib import Path

from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.training import Training
from lib.jobs.job_files import read_job_file
from lib.runtimes.contract import environment_script
from lib.runtimes.environment import Environment
from support.plans import lines_of
from support.requests import lines_for

# Each stack at its home site, with Slurm's own start of the ranks where that is its way, and at one
# where it is a guest: stack, machine, runtime, a task per rank.
STACKS = [
    ("pytorch", "jwb", "apptainer", False),
    ("pytorch", "lumi", "singularity", True),
    ("torchtitan", "jwb", "apptainer", False),
    ("torchtitan", "olivia", "apptainer", False),
    ("nemo", "aws", "enroot", False),
    ("nemo", "jwb", "apptainer", False),
    ("olmo-core", "lumi", "singularity", True),
    ("olmo-core", "jwb", "apptainer", False),
    ("olmo", "lumi", "singularity", True),
    ("olmo", "berzelius", "apptainer", False),
    ("megatron-lm", "berzelius", "apptainer", False),
    ("megatron-lm", "jpb", "apptainer", False),
    ("megatron-bridge", "olivia", "apptainer", False),
    ("megatron-bridge", "jpb", "apptainer", False),
    ("trl", "olivia", "apptainer", False),
    ("trl", "jwb", "apptainer", False),
    ("evaluate", "jwb", "apptainer", False),
    ("evaluate", "lumi", "singularity", False),
]
# What starts a stack that trains nothing: its script, and the user's arguments.
OTHERS = {"evaluate": ("run_evaluation.sh", ["lab/model"])}

# A group's own stack, in the same tree, is not ours to test.
SHIPPED = sorted({stack for stack, *_ in STACKS})

ENVIRON = {"HOME": "/home/me", "USER": "me", "PATH": "/usr/bin:/bin"}
ENVIRON["SINGULARITY_ALLOWED_DIR"] = "/allowed"  # Jean Zay's, which starts images of it alone
CONFIGURATION = (
    '[project]\nname = "my-project"\naccount = "my-account"\n'
    '[machines.jeanzay]\ncontainer.image = "$SINGULARITY_ALLOWED_DIR/x.sif"\n'
)

# It stands for Python and prints what it was started with. Only compose.py of nemo also says which
# file it has written.
PYTHON = """\
#!/usr/bin/env bash
number=$(find "$STARTED" -name '*.words' | wc -l)
env -0 >"$STARTED/$number.variables"
printf '%s\\0' "$@" >"$STARTED/$number.words"
if [[ $1 == */nemo/compose.py ]]; then echo '/a run/gpt3_7m/gpt3_7m_hydra.yaml'; fi
"""
# They differ from machine to machine and say nothing.
_UNSAID = {"_", "SHLVL", "PWD", "OLDPWD"}


def settings_of(root, stack, machine, folder, configuration=""):
    """Give the settings of a group that uses a stack on a machine."""
    file = folder / "configuration.toml"
    file.write_text(CONFIGURATION + configuration, encoding="utf-8")
    options = {"machine": machine, "stack": stack, "configuration": str(file)}
    return load_settings(Path(root), options, ENVIRON)


def start(
    root,
    stack,
    machine,
    folder,
    arguments=(),
    *,
    nodes=2,
    configuration="",
    more=(),
    script="run_training.sh",
):
    """Run a script of a stack in the environment that it has there; its Python only tells.

    The folder is empty; `configuration` and `more` variables are added. Give how it ended, and the
    variables and arguments of each Python that it started.
    """
    settings = settings_of(root, stack, machine, folder, configuration)
    paths = derive_paths(settings)
    text = environment_script(settings, paths, Training.read(settings, paths), online=False)
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python").write_text(PYTHON)
    (programs / "python").chmod(0o755)
    started = folder / "started"
    started.mkdir()
    environment = {
        **{"HOME": "/home/me", "USER": "me", "PATH": f"{programs}:{os.environ['PATH']}"},
        **{"STARTED": str(started), "OMP_NUM_THREADS": "7", "SLURM_JOB_ID": "12"},
        **{"NUM_NODES": str(nodes), "GPUS_PER_NODE": str(settings.machine.gpus_per_node or 1)},
        **{"MASTER_ADDR": "node1", "MASTER_PORT": "20012", "SLURM_NODEID": "0"},
        "RUN_DIR": "/scratch/runs/12-train",
        **dict(more),
    }
    script = Path(root) / "stacks" / stack / script
    command = ["/bin/sh", "-c", text, "longship"]
    inside = subprocess.run(
        [*command, "env", "-0"], env=environment, capture_output=True, text=True, check=True
    )
    done = subprocess.run(
        [*command, "bash", script, *arguments], env=environment, capture_output=True, text=True
    )
    before = set(inside.stdout.split("\0"))
    found = []
    for number in range(len(list(started.glob("*.words")))):
        variables = (started / f"{number}.variables").read_text().split("\0")
        own = {each for each in set(variables) - before if each.partition("=")[0] not in _UNSAID}
        found.append((sorted(own), (started / f"{number}.words").read_text().split("\0")[:-1]))
    return done, found


def command_of(root, stack, machine, folder, arguments=(), *, per_rank=False, **options):
    """Give what run_training.sh starts: lines of variables that it sets, and of words."""
    if per_rank:
        ranks = {"RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "NODE_RANK": "1"}
        options["more"] = {**ranks, "LOCAL_WORLD_SIZE": "8", **dict(options.get("more", ()))}
    done, calls = start(root, stack, machine, folder, arguments, **options)
    assert done.returncode == 0, done.stderr
    lines = []
    for variables, words in calls:
        lines += [*variables, "python", *(f"  {word}" for word in words)]
    settings = settings_of(root, stack, machine, folder)
    return lines_of("\n".join(lines), settings, derive_paths(settings))


def refusal(root, stack, job, folder, *words, configuration="", then=""):
    """Give what the stack says of a job before its submission, and that alone."""
    job = read_job_file(root, job)
    settings = settings_of(root, stack, job.machine, folder, configuration)
    env = Environment(settings, derive_paths(settings), "apptainer", "job")
    options = {"configuration": str(folder / "configuration.toml")}
    check, *_ = lines_for(env, job, *words, options=options, **({"then": then} if then else {}))
    assert "check_job.sh" in check
    return subprocess.run(["bash", "-c", check], capture_output=True, text=True)


def words_of(run):
    """Give the script or module that the ranks run, and its arguments."""
    done, calls = run
    assert done.returncode == 0, done.stderr
    ((_, words),) = calls
    return words[words.index("--tee=3") + 1 :]
