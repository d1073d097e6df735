"""The stack olmo-core with the real OLMo-core, on a CPU: data, two ranks, stop, kill, export."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support import cache, processes
from support.inside import Inside
from support.repository import toml

# The framework is installed whole; tests/test_stack_olmo_core.py reads its command lines.
pytestmark = pytest.mark.slow

STEPS = 24
# Documents whose words repeat, so that a small model learns within a few steps.
TEXTS = [f"document {number}: " + "row, row, row the boat. " * 8 for number in range(400)]
SETTINGS = f"""
[training]
model = "olmo2_14M"
sequence_length = 64
micro_batch = 4
steps = {STEPS}
warmup_steps = 2
learning_rate = "1e-3"
checkpoint_interval = 4
validation_interval = 6
validation_steps = 2
"""
ON_CPU = ("--train_module.dp_config.param_dtype=float32", "--data_loader.num_workers=0")
PATIENCE = 600  # seconds that a command can take on a busy machine
TWO_RANKS = ("env", "GPUS_PER_NODE=2", "OMP_NUM_THREADS=1")

# The logits of transformers, and those of OLMo-core's own model of the checkpoint.
COMPARE = """
import sys
import torch, transformers
from olmo_core.distributed.checkpoint import load_model_and_optim_state
from olmo_core.nn.hf import load_config
from olmo_core.nn.transformer import TransformerConfig

checkpoint, exported, text = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
ids = torch.tensor([tokenizer(text)["input_ids"]])
theirs = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
ours = TransformerConfig.from_dict(load_config(checkpoint)["model"]).build()
load_model_and_optim_state(f"{checkpoint}/model_and_optim", ours)
with torch.no_grad():
    logits = theirs(ids).logits
    difference = (ours.eval()(ids)[..., : len(tokenizer)] - logits).abs().max().item()
print(type(theirs).__name__, tokenizer.eos_token, theirs.config.eos_token_id, logits.dtype)
print(ids.shape[1], logits.std().item(), difference)
"""


@pytest.fixture(scope="module")
def olmo_core(root, session_environment, tmp_path_factory):
    """Give ``olmo_core(*argv)``, which runs where set_up.py has installed the stack."""
    if sys.version_info < (3, 11):
        pytest.skip("pandas 3 and transformers 5 need Python 3.11")
    inputs = [root / "requirements/torch.txt", root / "stacks/olmo-core/requirements.txt"]
    name = f"olmo-core-{cache.fingerprint(*inputs)}"
    folder = cache.cache_folder() / name
    own = tmp_path_factory.mktemp("it's olmo-core")
    text = (
        f"paths.project_dir = {toml(folder / 'project')}\n"
        f"paths.scratch_dir = {toml(folder / 'scratch')}\n"
        f"paths.checkpoint_dir = {toml(own / 'checkpoints')}\n"
        'container.runtime = "host"\n'
    )
    for split, texts in (("train", TEXTS[20:]), ("validation", TEXTS[:20])):
        lines = (json.dumps({"text": each}) for each in texts)
        (own / f"{split}.jsonl").write_text("\n".join(lines))
    data = "".join(
        f"{key} = {toml(own / f'{split}.jsonl')}\n"
        for key, split in (("text", "train"), ("validation_text", "validation"))
    )
    (own / "configuration.toml").write_text(f"{text}{SETTINGS}{data}")
    environment = {
        **session_environment,
        "LONGSHIP_CONFIGURATION": str(own / "configuration.toml"),
        "LONGSHIP_MACHINE": "local",
        "LONGSHIP_STACK": "olmo-core",
    }
    with cache.locked(name):
        processes.run([sys.executable, root / "set_up.py", "install"], env=environment, timeout=900)
    return Inside(root, environment)


@pytest.fixture(scope="module")
def checkpoints(root, olmo_core):
    """Make the data; give the directory of all runs."""
    script = root / "stacks/olmo-core/preprocess_data.sh"
    olmo_core("bash", script, "--vocab-size", "300")
    return Path(olmo_core.environment["LONGSHIP_CONFIGURATION"]).with_name("checkpoints")


@pytest.fixture(scope="module")
def command(root):
    """Give a function that returns the words that train a run on two ranks."""
    script = root / "stacks/olmo-core/run_training.sh"
    return lambda name, *more: (
        *TWO_RANKS,
        f"TRAINING_RUN_NAME={name}",
        *("bash", script, *ON_CPU, *more),
    )


@pytest.fixture(scope="module")
def whole(olmo_core, checkpoints, command):
    """Train a run that nothing interrupts; give its lines."""
    done = olmo_core(*command("whole"), timeout=PATIENCE)
    assert "Training complete" in done.stdout + done.stderr
    return lines_of(checkpoints / "whole")


def lines_of(run):
    """Give the metrics of a run, also while it is written."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(lines):
    return {line["step"]: line["loss"] for line in lines}


def wait_for_step(process, run, step):
    deadline = time.monotonic() + PATIENCE
    while len(lines_of(run)) < step:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


def processes_below(process):
    """Give IDs and command lines of all descendants; the ranks are in a session of their own."""
    parents, found = {}, {process.pid: ""}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents[int(folder.name)] = parent, (folder / "cmdline").read_text()
    for pid, (parent, line) in sorted(parents.items()):  # a child has a higher ID
        if parent in found:
            found[pid] = line
    return found


def test_lines_have_what_every_stack_reports(whole):
    assert [line["step"] for line in whole] == list(range(1, STEPS + 1))
    always = {"step", "time", "loss", "grad_norm", "learning_rate"}
    assert all(always <= line.keys() for line in whole)
    # OLMo-core does not measure the first step of a job
    assert all(line["tokens_per_s"] > 0 and line["seconds"] > 0 for line in whole[1:])
    tokens = {round(line["tokens_per_s"] * line["seconds"]) for line in whole[1:]}
    assert tokens == {2 * 4 * 64}  # of both ranks
    assert [line["step"] for line in whole if "validation_loss" in line] == [6, 12, 18, 24]
    assert whole[-1]["loss"] < whole[0]["loss"] - 1
    assert abs(whole[-1]["validation_loss"] - whole[-1]["loss"]) < 1
    assert whole[1]["learning_rate"] == pytest.approx(1e-3)


def test_killed_run_resumes_with_the_same_losses(olmo_core, checkpoints, command, whole):
    run = checkpoints / "killed"
    process = olmo_core.start(*command("killed"))
    wait_for_step(process, run, 10)
    for pid in processes_below(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    done = olmo_core(*command("killed"), timeout=PATIENCE)
    assert re.search(r"Loading checkpoint from .*/killed/step[1-9]", done.stdout)
    assert losses(lines_of(run)) == losses(whole)


def test_signal_of_one_rank_stops_all_with_a_checkpoint(olmo_core, checkpoints, command, whole):
    run = checkpoints / "stopped"
    process = olmo_core.start(*command("stopped"))
    wait_for_step(process, run, 5)
    ranks = [pid for pid, line in processes_below(process).items() if "train.py\0--name" in line]
    os.kill(max(ranks), signal.SIGUSR1)  # torchrun and the script have lower IDs
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    last = lines_of(run)[-1]["step"]
    assert 5 <= last < STEPS and (run / f"step{last}/.metadata.json").exists()
    olmo_core(*command("stopped"), timeout=PATIENCE)
    assert losses(lines_of(run)) == losses(whole)


def test_signal_of_the_job_stops_the_run(olmo_core, checkpoints, command):
    run = checkpoints / "asked"
    endless = command("asked", "--trainer.max_duration.value=1000000")
    process = olmo_core.start(*endless)
    wait_for_step(process, run, 3)
    second = olmo_core(*endless, check=False, timeout=PATIENCE)
    assert second.returncode == 1
    assert f"another process already trains the run in {run}: process " in second.stderr
    process.send_signal(signal.SIGUSR1)  # as Slurm does, to the first process of a task
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert (run / f"step{lines_of(run)[-1]['step']}/.metadata.json").exists()


def test_finished_run_keeps_its_last_checkpoint(olmo_core, checkpoints, command, whole):
    record = checkpoints / f"whole/step{STEPS}/.metadata.json"
    before = record.stat()
    olmo_core(*command("whole"), timeout=PATIENCE)
    assert record.stat().st_mtime_ns == before.st_mtime_ns


def test_exported_model_has_the_same_logits(root, olmo_core, checkpoints, whole):
    checkpoint = checkpoints / f"whole/step{STEPS}"
    exported = checkpoint.with_name(f"step{STEPS}-hf")
    export = ("bash", root / "stacks/olmo-core/export.sh", "whole")
    assert olmo_core(*export, timeout=PATIENCE).stdout == f"{exported}\n"
    assert olmo_core(*export).stdout == f"{exported}\n"
    assert not list(exported.parent.glob("*.partial"))
    done = olmo_core("python", "-c", COMPARE, checkpoint, exported, TEXTS[0])
    facts, numbers = done.stdout.splitlines()[-2:]
    assert facts.split() == ["Olmo2ForCausalLM", "<|endoftext|>", "0", "torch.float32"]
    length, spread, difference = map(float, numbers.split())
    assert length > 20 and spread > 0.1
    assert difference < 1e-5  # float32; only the order of additions differs

    missing = olmo_core(*export[:-1], "none", check=False)
    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-2] == f"error: no checkpoint in {checkpoints}/none"


def test_script_in_the_form_of_the_official_ones_is_recorded(
    olmo_core, checkpoints, root, tmp_path
):
    script = tmp_path / "an official script.py"
    script.write_text(
        "from olmo_core.script_utils import main\n"
        "from train import build_config, parser\n"
        "main(build_config, parser())\n"  # on a CPU, each rank trains alone
    )
    scratch = olmo_core("printenv", "LONGSHIP_SCRATCH_DIR").stdout.strip()
    data = f"{scratch}/data/olmo-core_train"
    olmo_core(
        *("env", "OMP_NUM_THREADS=1", f"TRAINING_SCRIPT={script}", "TRAINING_RUN_NAME=official"),
        *("bash", root / "stacks/olmo-core/run_training.sh", "--model=olmo2_1M"),
        *(f"--tokenizer={data}_tokenizer", f"--data={data}_text_document.bin"),
        *(
            "--sequence-length=64",
            "--train_module.dp_config=null",
            "--trainer.max_duration.value=3",
        ),
        "--data_loader.num_workers=0",
    )
    assert [line["step"] for line in lines_of(checkpoints / "official")] == [1, 2, 3]
