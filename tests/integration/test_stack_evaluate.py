"""From a training with train.py to a number: `submit.py --then evaluate`.

All of it in Slurm jobs, inside containers of the test's image, without network. The exported model
computes what train.py's does.
"""

import json
import os
from pathlib import Path

import pytest
from support.jobs import TEXT, TRAINING, tiny_task
from support.lab import is_told

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


def test_training_becomes_a_number_by_one_command(make_job_clone, harness, slurm, tmp_path):
    clone = make_job_clone(tmp_path, tiny_task(tmp_path / "tasks"))
    command = ("local/run_training_local.sbatch", "--then", "evaluate", "--", *TRAINING)
    refused = clone.submit(*command, check=False)
    is_told(refused, "not installed", "python3 set_up.py install --stack evaluate")
    assert refused.stdout == ""
    (clone.scratch / f"venv_evaluate_{own_arch()}").symlink_to(harness)

    clone.finish("local/preprocess_data_local.sbatch", "--", *TEXT)
    sent = clone.submit(*command, "--run-name", "gpt", "--steps", "50")
    trained, evaluated = map(clone.run, sent.stdout.split())
    for each in (trained, evaluated):
        assert slurm.wait(each.job, timeout=600) == "COMPLETED", slurm.log(each.job)
    exported = trained.folder / "exported"
    (results,) = exported.glob("evaluation/results_*.json")
    assert f"results: {exported}/evaluation\n" in sent.stderr
    assert json.loads(results.read_text())["results"]["tiny"]["acc,none"] == 1.0
    assert (trained.record["stack"], evaluated.record["stack"]) == ("pytorch", "evaluate")
    assert "|tiny" in evaluated.log and str(exported) in evaluated.record["arguments"]
    assert Path(evaluated.record["venv"]) == Path(os.path.realpath(harness))

    run = clone.scratch / "checkpoints/gpt"
    model = run / "step-00000050-hf"
    assert exported.resolve() == model
    again = clone.container_run("bash", "stacks/pytorch/export.sh", "gpt")
    assert again.stdout == f"{model}\n" and "already exported" in again.stderr
    scored = (model, TEXT_TO_SCORE)
    ours = clone.container_run("python", "-c", OURS, clone.root, run / "step-00000050.pt", *scored)
    chosen = {"LONGSHIP_STACK": "evaluate"}
    theirs = clone.container_run("python", "-c", THEIRS, *scored, env=chosen).stdout.split()
    assert theirs[:2] == ["LlamaForCausalLM", "<|endoftext|>"]
    # float32; only the order of additions differs
    assert float(theirs[2]) == pytest.approx(float(ours.stdout), abs=1e-5)
