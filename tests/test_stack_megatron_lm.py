"""What the stack megatron-lm starts: pretrain_gpt.py with the settings of [training]."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.stacks import refusal, start

TRAINER = "/proj/my-project/users/me/longship/repos/Megatron-LM/pretrain_gpt.py"


@pytest.fixture
def train(root, tmp_path):
    """Give a function that starts a training on Berzelius with settings, and returns its words.

    They are those after the trainer's own name. A start that fails gives the error's lines.
    """

    def run(settings="", arguments=(), **options):
        configuration = f"[training]\n{settings}\n"
        folder = tmp_path / "start"
        folder.mkdir()
        options = {"configuration": configuration, **options}
        done, calls = start(root, "megatron-lm", "berzelius", folder, arguments, **options)
        if done.returncode:
            assert not calls
            return done.stderr.splitlines()
        ((_, words),) = calls
        return words[words.index(TRAINER) + 1 :]

    return run


def value_of(words, flag):
    """Give what follows a flag, up to the next one."""
    (at,) = [index for index, word in enumerate(words) if word.partition("=")[0] == flag]
    if "=" in words[at]:
        return words[at].partition("=")[2]
    rest = words[at + 1 :]
    ends = (index for index, word in enumerate(rest) if word.startswith("--"))
    return rest[: next(ends, len(rest))]


def test_parallel_sizes_reach_megatron(train):
    words = train("tensor_parallel = 4\npipeline_parallel = 2")
    assert value_of(words, "--tensor-model-parallel-size") == "4"
    assert value_of(words, "--pipeline-model-parallel-size") == "2"
    assert "--sequence-parallel" in words


def test_sequence_parallel_is_for_tensor_parallel_alone(train):
    assert "--sequence-parallel" not in train("pipeline_parallel = 2")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("tensor_parallel = 3", "tensor_parallel 3 x pipeline_parallel 1 does not divide 16 GPUs"),
        ("tensor_parallel = 0", "tensor_parallel 0 x pipeline_parallel 1 does not divide 16 GPUs"),
        ("tensor_parallel = 8\npipeline_parallel = 4", "8 x pipeline_parallel 4 does not divide"),
        ("tensor_parallel = 8", "tensor_parallel 8 does not divide heads 12"),
        ("pipeline_parallel = 8", "pipeline_parallel 8 does not divide layers 12"),
        ("global_batch = 96", "global_batch 96 is not a multiple of micro_batch 4 x 16 replicas"),
        ("micro_batch = 0", "micro_batch 0 x 16 replicas"),
        ('profile = "0"\nsteps = 11', "cannot profile the 11th and 12th step: steps is 11"),
    ],
)
def test_sizes_that_do_not_fit_are_told_before_a_rank_starts(settings, told, train):
    error, hint = train(settings)
    assert error.startswith("error: ") and told in error
    assert hint == "hint: change these values in [training] of configuration.toml"


def test_replicas_are_counted_without_the_parallel_sizes(train):
    words = train("tensor_parallel = 4\nglobal_batch = 16")  # 4 replicas of 4 GPUs, 4 samples each
    assert value_of(words, "--global-batch-size") == "16"


JOB = "berzelius/run_training_berzelius.sbatch"
LLAMA = [
    "--swiglu",
    "--normalization=RMSNorm",
    "--position-embedding-type=rope",
    "--disable-bias-linear",
]
DATA = '[stacks.megatron-lm.training]\ndata = ["/proj/d_text_document"]\n'


@pytest.fixture
def check(root, tmp_path):
    """Give a function that tells what the stack says of a training before its submission."""

    def run(arguments, configuration=DATA, then="evaluate"):
        words = ("--", *arguments)
        options = {"configuration": configuration, "then": then}
        return refusal(root, "megatron-lm", JOB, tmp_path, *words, **options).stderr

    return run


@pytest.mark.extras("evaluate")
@pytest.mark.parametrize("without", LLAMA)
def test_evaluation_of_a_model_without_an_export_is_refused(without, check):
    arguments = [each for each in LLAMA if each != without]
    error, hint = check(arguments).splitlines()
    assert error.startswith("error: --then evaluate requires a Llama, but the arguments")
    assert error.endswith(f" do not contain {without.replace('=', ' ')}")
    assert "stacks/megatron-lm/README.md" in hint and "leave out --then" in hint
    assert check(arguments, then="") == ""


@pytest.mark.extras("evaluate")
def test_evaluation_after_mock_data_is_refused(check):
    error, hint = check(LLAMA, configuration="").splitlines()
    assert error == "error: --then evaluate requires a tokenizer, which mock data do not have"
    assert hint.startswith("hint: set data in [training]")


@pytest.mark.extras("evaluate")
def test_evaluation_of_a_llama_is_not_refused(check):
    assert check(LLAMA) == check(" ".join(LLAMA).replace("=", " ").split()) == ""
    assert check([*LLAMA[:2], "--use-rotary-position-embeddings", LLAMA[3]]) == ""
    assert check(["--use-checkpoint-args"]) == ""


NAMES = ("attention-dropout", "hidden-dropout", "weight-decay", "adam-beta2", "min-lr", "clip-grad")


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ("", ("0", "0", "0.1", "0.95", "3e-05", "1.0")),
        ('learning_rate = "0.0016"', ("0", "0", "0.1", "0.95", "0.00016", "1.0")),
        ('recipe = "gpt2"', ("0.1", "0.1", "0.01", "0.999", "0", "1.0")),
    ],
)
def test_recipe_is_todays_and_the_old_one_by_name(settings, values, train):
    words = train(settings)
    assert tuple(value_of(words, f"--{name}") for name in NAMES) == values


def test_unknown_recipe_is_told(train):
    error, hint = train('recipe = "gpt4"')
    assert error == 'error: unknown recipe: "gpt4"'
    assert '"llama" or "gpt2"' in hint


def test_without_data_it_trains_on_mock_data(train):
    words = train()
    assert "--mock-data" in words and "--data-path" not in words
    assert value_of(words, "--tokenizer-type") == "NullTokenizer"


def test_data_bring_the_tokenizer_made_with_them(train, tmp_path):
    (tmp_path / "my data_tokenizer").mkdir()
    prefix = tmp_path / "my data_text_document"
    words = train(f"data = [{json.dumps(str(prefix))}]")
    assert "--mock-data" not in words
    assert value_of(words, "--data-path") == [str(prefix)]
    assert value_of(words, "--tokenizer-type") == "HuggingFaceTokenizer"
    assert value_of(words, "--tokenizer-model") == str(tmp_path / "my data_tokenizer")


@pytest.mark.parametrize("form", [["--tokenizer-type", "GPT2BPETokenizer"], ["--tokenizer-type=X"]])
def test_tokenizer_among_the_arguments_replaces_that_of_the_data(form, train):
    words = train('data = ["/x/a_text_document"]', [*form, "--vocab-file", "/x/vocab.json"])
    assert words[-len(form) - 2 :] == [*form, "--vocab-file", "/x/vocab.json"]
    assert sum(each.startswith("--tokenizer-type") for each in words) == 1
    assert not any(each.startswith("--tokenizer-model") for each in words)


def test_weights_stand_between_the_prefixes(train):
    words = train('data = ["0.3", "/x/a", "0.7", "{scratch_dir}/b"]\ntokenizer = "me/tokens"')
    scratch = "/proj/my-project/users/me/longship"
    assert value_of(words, "--data-path") == ["0.3", "/x/a", "0.7", f"{scratch}/b"]
    assert value_of(words, "--tokenizer-model") == "me/tokens"


def test_indices_of_data_that_were_made_again_are_others(train, tmp_path):
    prefix = tmp_path / "my data"
    data = f'data = ["1.0", {json.dumps(str(prefix))}]\ntokenizer = "me/tokens"\nsplit = "1"'
    found = []
    for number, made in enumerate((1, 1, 2)):
        header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08"
        Path(f"{prefix}.idx").write_bytes(header + (3).to_bytes(8, "little"))
        os.utime(f"{prefix}.idx", (made, made))
        found.append(value_of(train(data), "--data-cache-path"))
        (tmp_path / "start").rename(tmp_path / f"start-{number}")
    first, second, other = found
    assert first == second != other
    assert first.startswith("/proj/my-project/users/me/longship/cache/megatron-lm/")


def test_data_without_a_tokenizer_are_told(train):
    error, hint = train('data = ["/x/a_text_document"]')
    assert error == "error: the data's tokenizer was not found: /x/a_tokenizer"
    assert hint.startswith("hint: set tokenizer in [training]")


@pytest.mark.parametrize(
    ("documents", "split", "fits"),
    [
        (100, "98,1,1", True),
        (99, "98,1,1", False),
        (1, "1,0,0", True),
        (2, "1, 1", True),
        (0, "1,0,0", False),
    ],
)
def test_share_without_a_document_is_told(documents, split, fits, train, tmp_path):
    prefix = tmp_path / "some text"
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08"  # of an IndexedDataset
    Path(f"{prefix}.idx").write_bytes(header + documents.to_bytes(8, "little"))
    data = f'data = ["0.5", {json.dumps(str(prefix))}]\ntokenizer = "me/tokens"'
    words = train(f'{data}\nsplit = "{split}"')
    if fits:
        assert value_of(words, "--split") == split
    else:
        assert f"split {split} leaves a share empty: {prefix} has {documents} doc" in words[0]


@pytest.mark.parametrize("split", ["0.98,0.01,0.01", "09,1,1", "", "a", "1;1"])
def test_split_that_is_no_list_of_whole_shares_is_told(split, train, tmp_path):
    data = f'data = [{json.dumps(str(tmp_path / "text"))}]\ntokenizer = "me/tokens"'
    error, _ = train(f"{data}\nsplit = {json.dumps(split)}")
    assert error == f'error: split: expected integers separated by commas, got "{split}"'


def test_run_saves_where_it_loads_and_takes_the_signal(train):
    words = train('run_name = "first"')
    checkpoints = "/proj/my-project/users/me/longship/checkpoints/first"
    assert value_of(words, "--save") == value_of(words, "--load") == checkpoints
    assert "--exit-signal-handler" in words


def test_profile_starts_its_ranks_through_nsight_and_has_no_checkpoint(train, root):
    words = train('profile = "0 8"')
    assert value_of(words, "--profile-ranks") == ["0", "8"]
    assert not {"--save", "--load"} & {word.partition("=")[0] for word in words}


def test_arguments_come_last_as_they_are(train):
    own = ["--train-iters", "7", "", "a b\n'c'"]
    assert train(arguments=own)[-4:] == own


def test_flags_are_those_checked_against_megatron(train, root, tmp_path):
    known = (root / "tests/flags/megatron-lm.txt").read_text().split()
    assert known == sorted(set(known))
    passed = set()
    for number, settings in enumerate(
        (
            "tensor_parallel = 2",
            'recipe = "gpt2"',
            'data = ["/x/a"]\ntokenizer = "me/tokens"',
            'profile = "0"',
        )
    ):
        words = train(settings)
        (tmp_path / "start").rename(tmp_path / f"start-{number}")
        passed |= {word.partition("=")[0] for word in words if word.startswith("--")}
    assert passed == set(known)


@pytest.fixture
def profile_ranks(root, tmp_path):
    """Give a function that starts profile_ranks.py as a rank and returns what it became."""

    def run(rank, **variables):
        programs = tmp_path / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "nsys").write_text("#!/bin/sh\nprintf '%s\\n' nsys \"$@\"\n")
        (programs / "nsys").chmod(0o755)
        trainer = tmp_path / "trainer.py"
        trainer.write_text("import sys\nprint('trainer', *sys.argv[1:], sep='\\n')\n")
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LONGSHIP_SCRATCH_DIR": str(tmp_path),
            "TRAINING_PROFILE": "0 8",
            "RANK": rank,
            **variables,
        }
        script = root / "stacks/megatron-lm/profile_ranks.py"
        command = [sys.executable, script, trainer, "--steps", "a b"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


def test_profiled_rank_becomes_nsight_with_the_trainer(profile_ranks, tmp_path):
    run_dir = tmp_path / "run"
    words = profile_ranks("8", RUN_DIR=str(run_dir))
    assert words[:2] == ["nsys", "profile"]
    assert f"--output={run_dir}/profile_rank8" in words
    assert "--capture-range=cudaProfilerApi" in words
    assert words[-4:] == [sys.executable, str(tmp_path / "trainer.py"), "--steps", "a b"]


def test_profile_outside_of_a_job_lies_in_the_scratch_folder(profile_ranks, tmp_path):
    assert f"--output={tmp_path}/profiles/profile_rank0" in profile_ranks("0")
    assert (tmp_path / "profiles").is_dir()


def test_other_ranks_become_the_trainer(profile_ranks):
    assert profile_ranks("1") == ["trainer", "--steps", "a b"]
    assert profile_ranks("80") == ["trainer", "--steps", "a b"]


# Stand-ins for what record_metrics.py meets in the environment, and a trainer that logs as
# Megatron's training_log() does at the pinned release.
STANDINS = {
    "torch/__init__.py": "class cuda:\n    get_device_name = lambda: 'NVIDIA A100-SXM4-40GB'\n",
    "torch/utils/__init__.py": "",
    "torch/utils/tensorboard.py": """
class SummaryWriter:
    def __init__(self, log_dir, max_queue): pass
    def add_scalar(self, tag, value, step): print(tag, value, step)
""",
    "megatron/training.py": """
class get_args:
    global_batch_size, seq_length = 8, 100
""",
    "numpy.py": """
int32 = uint16 = None
def save(file, array): file.write(array)  # an open file, which is not yet the index
""",
    "beside.py": "",
    "trainer.py": """
import sys
import beside
import numpy
from torch.utils.tensorboard import SummaryWriter

numpy.save(f"{sys.argv[0]}.npy", b"index")
writer = SummaryWriter(log_dir=sys.argv[1], max_queue=9)
for step in range(int(sys.argv[2]), int(sys.argv[3]) + 1):
    writer.add_scalar("learning-rate", 0.1, step)
    writer.add_scalar("learning-rate vs samples", 0.1, 8 * step)
    writer.add_scalar("lm loss", 9.0 - step, step)
    writer.add_scalar("lm loss vs samples", 9.0 - step, 8 * step)
    writer.add_scalar("grad-norm", 0.5, step)
    if step % 2 == 0:
        writer.add_scalar("iteration-time", 2.0, step)
        writer.add_scalar("throughput", 156.0, step)
        writer.add_scalar("lm loss validation", 7.0, step)
        writer.add_scalar("lm loss validation vs samples", 7.0, 8 * step)
writer.add_scalar("lm loss validation", 7.5, step)  # of the test set
sys.exit(3)
""",
}


def test_metrics_are_recorded_in_the_form_of_all_stacks(root, tmp_path):
    for name, text in STANDINS.items():
        file = tmp_path / "it's here" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    run = tmp_path / "run"
    script = root / "stacks/megatron-lm/record_metrics.py"

    def train(first, last, rank="1"):
        words = [script, tmp_path / "it's here/trainer.py", run / "tensorboard", first, last]
        more = {"PYTHONPATH": str(tmp_path / "it's here"), "RANK": rank, "WORLD_SIZE": "2"}
        command = [sys.executable, *map(str, words)]
        environment = {**os.environ, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert train(1, 2, rank="0").returncode == 3 and not run.exists()
    assert [each.name for each in (tmp_path / "it's here").glob("*.npy*")] == ["trainer.py.npy"]
    done = train(1, 3)
    assert done.returncode == 3, done.stderr
    assert "learning-rate vs samples 0.1 24" in done.stdout  # the events are as before
    assert train(3, 4).returncode == 3  # resumed from the checkpoint of step 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line.pop("time") > 0 for line in lines)
    every = {"learning_rate": 0.1, "grad_norm": 0.5}
    speed = {"seconds": 2.0, "tokens_per_s": 400.0, "mfu": 0.5, "validation_loss": 7.0}
    assert lines == [
        {"step": 1, "loss": 8.0, **every},
        {"step": 2, "loss": 7.0, **every, **speed},
        {"step": 3, "loss": 6.0, **every},
        {"step": 4, "loss": 5.0, **every, **speed},
    ]


def test_metrics_are_recorded_unless_ranks_are_profiled(root, tmp_path):
    for number, (settings, expected) in enumerate((("", True), ('profile = "0"', False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        given = {"configuration": f"[training]\n{settings}\n"}
        _, calls = start(root, "megatron-lm", "berzelius", folder, (), **given)
        ((_, words),) = calls
        recorded = f"{words[words.index(TRAINER) - 1]}".endswith("/record_metrics.py")
        assert recorded is expected
