"""From a checkpoint of train.py to a number: train, export, load with transformers, evaluate.

All of it inside containers of the test's image, without network; the evaluation in a Slurm job.
"""

import json
import os
from pathlib import Path

import pytest
from support.jobs import TEXT, TRAINING

from lib.configuration.sites import own_arch

# The harness is installed whole; tests/test_stack_evaluate.py reads its command lines.
pytestmark = [pytest.mark.slow, pytest.mark.needs("apptainer")]

TEXT_TO_SCORE = "import os\ndef main(path):"
# The loss of train.py's GPT, and that of transformers' Llama, each in the environment of its stack.
OURS = """
import sys
from argparse import Namespace
import torch
from tokenizers import Tokenizer
sys.path.insert(0, sys.argv[1])
from train import GPT
state = torch.load(sys.argv[2], map_location="cpu", weights_only=True)
gpt = GPT(Namespace(**state["arguments"]))
gpt.load_state_dict(state["model"])
ids = torch.tensor([Tokenizer.from_file(sys.argv[3] + "/tokenizer.json").encode(sys.argv[4]).ids])
with torch.no_grad():
    print(gpt.eval()(ids[:, :-1], ids[:, 1:]).item())
"""
THEIRS = """
import sys
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
ids = torch.tensor([tokenizer(sys.argv[2])["input_ids"]])
with torch.no_grad():
    logits = model(ids[:, :-1]).logits[0]
print(type(model).__name__, tokenizer.eos_token)
print(torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item())
"""
TASK = """\
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["(self", "zebra zebra zebra zebra"]
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="session")
def harness(root, install_once):
    """Give the venv with the packages of the stack, made on the base image once."""
    inputs = [root / "stacks/evaluate/requirements.txt", root / "requirements/torch.txt"]
    return install_once("evaluate", inputs, "".join(each.read_text() for each in inputs))


def test_checkpoint_becomes_a_number(make_job_clone, harness, slurm, tmp_path):
    clone = make_job_clone(tmp_path)
    clone.finish("local/preprocess_data_local.sbatch", "--", *TEXT)
    trained = ("--run-name", "gpt", "--steps", "50")
    clone.finish("local/run_training_local.sbatch", "--", *TRAINING, *trained)
    run = clone.scratch / "checkpoints/gpt"
    exported = clone.container_run("bash", "stacks/pytorch/export.sh", "--run-name", "gpt")
    model = run / "step-00000050-hf"
    assert f"exported: {model}" in exported.stdout
    again = clone.container_run("bash", "stacks/pytorch/export.sh", "--run-name", "gpt")
    assert f"already exported: {model}" in again.stdout

    scored = (model, TEXT_TO_SCORE)
    ours = clone.container_run("python", "-c", OURS, clone.root, run / "step-00000050.pt", *scored)
    (clone.scratch / f"venv_evaluate_{own_arch()}").symlink_to(harness)
    chosen = {"LONGSHIP_STACK": "evaluate"}
    theirs = clone.container_run("python", "-c", THEIRS, *scored, env=chosen).stdout.split()
    assert theirs[:2] == ["LlamaForCausalLM", "<|endoftext|>"]
    # float32; only the order of additions differs
    assert float(theirs[2]) == pytest.approx(float(ours.stdout), abs=1e-5)

    tasks = clone.scratch / "tasks"
    tasks.mkdir()
    (tasks / "tiny.yaml").write_text(TASK % json.dumps(str(tasks / "tiny.jsonl")))
    rows = [{"text": f"def f{number}", "label": 0} for number in range(6)]
    (tasks / "tiny.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = ("--tasks", "tiny", "--include_path", str(tasks), "--device", "cpu")
    done = clone.finish(
        *("local/run_evaluation_local.sbatch", "--", str(model), *options), env=chosen
    )
    (results,) = (model / "evaluation").glob("results_*.json")
    found = json.loads(results.read_text())["results"]["tiny"]
    assert found["acc,none"] == 1.0
    assert done.record["stack"] == "evaluate" and "|tiny" in done.log
    assert Path(done.record["venv"]) == Path(os.path.realpath(harness))
