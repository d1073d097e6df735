"""The stack torchtitan: what TorchTitan is started with."""

import tempfile
from pathlib import Path

import pytest
from support.stacks import refusal, settings_of, start, words_of

from lib.assets.assets import configured_assets
from lib.script.errors import LongshipError

STACK = "stacks/torchtitan"


@pytest.fixture
def run_training(root, tmp_path):
    """Give a function that runs run_training.sh as on JUWELS Booster, with a group's settings."""

    def run(*arguments, nodes=2, gpus=4, training=""):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        shape = {"nodes": nodes, "more": {"GPUS_PER_NODE": str(gpus)}}
        configuration = f"[training]\n{training}"
        return start(
            root, "torchtitan", "jwb", folder, arguments, configuration=configuration, **shape
        )

    return run


def options_of(run):
    """Give the value of each option; the last one wins, as in TorchTitan."""
    _, _, *words = words_of(run)  # -m torchtitan.train
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def test_passes_the_flags_that_are_listed_and_no_other(root, run_training):
    plain = options_of(run_training())
    changed = "global_batch_size = 16\ncompile = 0\nvalidation_data = []\n"
    more = options_of(run_training(training=changed))
    listed = (root / "tests/flags/torchtitan.txt").read_text().splitlines()
    assert sorted({*plain, *more}) == listed
    assert "--compile.enable" in plain and "--compile.enable" not in more
    assert "--validator.enable" in plain and "--validator.enable" not in more


def test_settings_arrive_as_they_are(run_training):
    training = """
        data = ["/p/a_text_document", "/p/b, c"]
        validation_data = ["/p/v"]
        validation_interval = 7
        tokenizer = "/p/my tokenizer"
        run_name = "a/b"
    """
    options = options_of(run_training(training=training))
    assert options["--dataloader.files"] == "/p/a_text_document\n/p/b, c"
    assert options["--validator.dataloader.files"] == "/p/v"
    assert options["--validator.freq"] == "7"
    assert options["--tokenizer.path"] == options["--hf_assets_path"] == "/p/my tokenizer"
    assert options["--dump_folder"].endswith("/checkpoints/a/b")
    assert "--training.global_batch_size" not in options  # TorchTitan's own: a pass of each GPU


def test_arguments_come_last(run_training):
    arguments = ["--training.steps=3", "--metrics.save_tb_folder=a b\n'c'"]
    assert words_of(run_training(*arguments))[-2:] == arguments


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_replica", "tensor_parallel", "replicas"),
    [(2, 4, 0, 1, 2), (2, 4, 8, 2, 1), (2, 4, 2, 2, 4), (1, 1, 0, 1, 1), (4, 8, 16, 8, 2)],
)
def test_replicas_follow_from_the_job(
    run_training, nodes, gpus, per_replica, tensor_parallel, replicas
):
    training = f"gpus_per_replica = {per_replica}\ntensor_parallel = {tensor_parallel}"
    options = options_of(run_training(nodes=nodes, gpus=gpus, training=training))
    assert options["--parallelism.data_parallel_replicate_degree"] == str(replicas)
    assert options["--parallelism.tensor_parallel_degree"] == str(tensor_parallel)


WRONG = [
    ("data = []", (), "training.data is empty"),
    ("gpus_per_replica = 3", (), "8 GPUs are not a multiple of training.gpus_per_replica = 3"),
    ("tensor_parallel = 8", (), "training.tensor_parallel = 8 does not divide the 4 GPUs of a"),
    ("tensor_parallel = 0", (), "training.tensor_parallel = 0 does not divide the 4 GPUs of a"),
    ("tensor_parallel = 4\nsequence_length = 6", (), "is not a multiple of tensor_parallel = 4"),
    ("global_batch_size = 12", (), "12 is not a multiple of the 8 sequences of a pass"),
]


@pytest.mark.parametrize(("training", "arguments", "message"), WRONG)
def test_what_cannot_run_is_told_before_a_rank_starts(run_training, training, arguments, message):
    done, calls = run_training(*arguments, training=training)
    assert (done.returncode, calls) == (1, [])
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and message in error
    assert hint.startswith("hint: ") and "in [training] of configuration.toml" in hint


@pytest.mark.parametrize(
    ("training", "arguments", "message"), [each for each in WRONG if "parallel = " not in each[0]]
)
def test_what_cannot_run_is_refused_before_submission(training, arguments, message, root, tmp_path):
    words = ["--", *arguments]
    job = "jsc/run_training_jwb.sbatch"
    configuration = f"[training]\n{training}"
    if training.startswith("gpus"):  # submit.py itself divides
        with pytest.raises(LongshipError, match="8 GPUs cannot be divided"):
            refusal(root, "torchtitan", job, tmp_path, *words, configuration=configuration)
        return
    done = refusal(root, "torchtitan", job, tmp_path, *words, configuration=configuration)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and message in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "job", ["run_training_jwb", "preprocess_data_jwc", "preprocess_data_parallel_jwc"]
)
def test_what_can_run_is_not_refused(job, root, tmp_path):
    done = refusal(root, "torchtitan", f"jsc/{job}.sbatch", tmp_path, "--", "--vocab-size", "512")
    assert (done.returncode, done.stderr) == (0, "")


def data_step(root, folder, *words, training=""):
    """Give the arguments of each preprocess_data.py that the data step starts."""
    configuration = f"[training]\n{training}"
    given = {"script": "preprocess_data.sh", "configuration": configuration}
    done, calls = start(root, "torchtitan", "jwc", folder, words, **given)
    assert done.returncode == 0, done.stderr
    assert all(Path(words[0]).name == "preprocess_data.py" for _, words in calls)
    return [words[1:] for _, words in calls]


@pytest.mark.parametrize("mode", ["all", "prepare", "shard", "merge"])
def test_both_splits_are_made_in_each_mode(mode, root, tmp_path):
    text = 'text = "/p/c4.jsonl"\nvalidation_text = "/p/held out.jsonl"\n'
    trained, held_out = data_step(root, tmp_path, mode, "--vocab-size=512", training=text)
    assert trained == [
        *(mode, "--name=torchtitan_train", "--input=/p/c4.jsonl", "--vocab-size=512")
    ]
    assert held_out[:3] == [mode, "--name=torchtitan_validation", "--input=/p/held out.jsonl"]
    # the tokenizer that was trained on the training data, and what the training looks for
    assert held_out[3].startswith("--tokenizer=/p/scratch/")
    assert held_out[3].endswith("/data/torchtitan_train_tokenizer.json")


def test_training_reads_what_the_data_step_writes(root, tmp_path, run_training):
    (held_out,) = data_step(root, tmp_path)[1:]
    options = options_of(run_training())
    assert f"--tokenizer={options['--tokenizer.path']}" in held_out
    folder = Path(options["--tokenizer.path"]).parent
    assert options["--hf_assets_path"] == str(folder)  # TorchTitan looks for weights in it
    for split, option in (("train", "--dataloader"), ("validation", "--validator.dataloader")):
        assert options[f"{option}.files"] == f"{folder}/torchtitan_{split}_text_document"


def test_no_validation_text_is_no_validation_data(root, tmp_path):
    assert len(data_step(root, tmp_path, training='validation_text = ""')) == 1


@pytest.mark.parametrize(
    ("words", "training", "message"),
    [
        (["shard"], 'text = ""', "training.text is empty"),
        (["all", "--input", "x"], "", "the data step does not accept --input"),
        (["prepare", "--name=x"], "", "the data step does not accept --name=x"),
    ],
)
def test_data_step_that_would_do_something_else_is_refused(
    words, training, message, root, tmp_path
):
    given = {"script": "preprocess_data.sh", "configuration": f"[training]\n{training}"}
    done, calls = start(root, "torchtitan", "jwb", tmp_path, words, **given)
    assert (done.returncode, calls) == (1, [])
    first, second = done.stderr.splitlines()
    assert first == f"error: {message}"
    assert second.startswith("hint: ") and "in [training] of configuration.toml" in second


def test_install_fetches_nothing_from_the_hub(root, tmp_path):
    settings = settings_of(root, "torchtitan", "jwb", tmp_path)
    assert configured_assets(settings) == ()
