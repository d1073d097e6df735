"""The stack olmo-core: what its scripts start; the real OLMo-core is in tests/integration/."""

import json
from pathlib import Path

import pytest
from support.stacks import refusal, start, words_of

STACK = "stacks/olmo-core"
CALLBACK = '--trainer.callbacks.longship={"_CLASS_":"longship_olmo.RunCallback"}'


def training(root, folder, *arguments, nodes=2, gpus=4, settings=""):
    """Run run_training.sh as on JUWELS Booster; give how it ended, and what was started."""
    folder.mkdir(exist_ok=True)
    given = {"configuration": f"[training]\n{settings}", "more": {"GPUS_PER_NODE": str(gpus)}}
    return start(root, "olmo-core", "jwb", folder, arguments, nodes=nodes, **given)


def options_of(run):
    """Give the value of each option."""
    pairs = (word.partition("=") for word in words_of(run)[1:])
    return {name: value for name, _, value in pairs}


def test_passes_the_flags_that_are_listed_and_no_other(root, tmp_path):
    plain = options_of(training(root, tmp_path / "plain"))
    sharded = options_of(training(root, tmp_path / "one", settings="gpus_per_replica = 8\n"))
    listed = (root / "tests/flags/olmo-core.txt").read_text().splitlines()
    assert sorted({*plain, *sharded}) == listed  # the real parser: tests/integration/


def test_settings_arrive_as_they_are(root, tmp_path):
    settings = """
        data = ["/p/a b/*.npy", "/p/it's.bin"]
        validation_data = []
        tokenizer = "/p/my tokenizer"
        model = "olmo3_7B"
        run_name = "a/b"
        sequence_length = 8192
        micro_batch = 2
        global_batch = 64
        compile = 0
    """
    options = options_of(training(root, tmp_path, settings=settings))
    assert options["--data"] == "/p/a b/*.npy\n/p/it's.bin"
    assert options["--validation-data"] == ""
    assert options["--tokenizer"] == "/p/my tokenizer"
    assert options["--model"] == "olmo3_7B"
    assert options["--save-folder"].endswith("/checkpoints/a/b")
    assert options["--data_loader.global_batch_size"] == str(64 * 8192)
    assert options["--train_module.rank_microbatch_size"] == str(2 * 8192)
    assert options["--train_module.compile_model"] == "false"


def test_arguments_come_last(root, tmp_path):
    arguments = ["--init_seed=3", "--trainer.callbacks.wandb.notes=a b\n'c'"]
    assert words_of(training(root, tmp_path, *arguments))[-2:] == arguments


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_replica", "kind", "degree"),
    [
        (2, 4, 0, "hsdp", "4"),
        (2, 4, 8, "fsdp", None),
        (1, 4, 0, "fsdp", None),
        (2, 4, 2, "hsdp", "2"),
    ],
)
def test_replicas_follow_from_the_job(root, nodes, gpus, per_replica, kind, degree, tmp_path):
    settings = f"gpus_per_replica = {per_replica}\n"
    options = options_of(training(root, tmp_path, nodes=nodes, gpus=gpus, settings=settings))
    assert options["--train_module.dp_config.name"] == kind
    assert options.get("--train_module.dp_config.shard_degree") == degree
    assert options["--data_loader.global_batch_size"] == str(nodes * gpus * 4096)  # one pass


def test_official_script_gets_what_every_run_needs_and_the_users_arguments(root, tmp_path):
    settings = 'script = "/p/OLMo-core/train 7B.py"\nmodel = "olmo2_1B"\ndata = []\n'
    words = words_of(training(root, tmp_path, "--trainer.no_evals=true", settings=settings))
    assert words[0] == "/p/OLMo-core/train 7B.py"
    assert [word.partition("=")[0] for word in words[1:]] == [
        *("--name", "--save-folder", "--trainer.callbacks.longship", "--trainer.no_evals")
    ]
    assert CALLBACK in words


WRONG = [
    ("data = []", (), "training.data is empty"),
    ("gpus_per_replica = 3", (), "8 GPUs are not a multiple of training.gpus_per_replica = 3"),
    ("global_batch = 12", (), "12 is not a multiple of the 8 sequences of a pass"),
    ("micro_batch = 0", (), "is not a multiple of the 0 sequences of a pass"),
]


@pytest.mark.parametrize(("settings", "arguments", "message"), WRONG)
def test_what_cannot_run_is_told_before_a_rank_starts(root, settings, arguments, message, tmp_path):
    done, calls = training(root, tmp_path, *arguments, settings=settings)
    assert (done.returncode, calls) == (1, [])
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and message in error
    assert hint.startswith("hint: ") and "in [training] of configuration.toml" in hint


def test_arguments_that_set_the_parallelism_are_not_judged(root, tmp_path):
    arguments = ['--train_module.tp_config={"degree":4}']
    assert words_of(training(root, tmp_path, *arguments, settings="global_batch = 2\n"))


def test_what_cannot_run_is_refused_before_submission(root, tmp_path):
    job = "jsc/run_training_jwb.sbatch"
    done = refusal(root, "olmo-core", job, tmp_path, configuration="[training]\nglobal_batch = 3\n")
    assert done.returncode == 1 and "is not a multiple of" in done.stderr.splitlines()[0]


@pytest.mark.parametrize("job", ["run_training_jwb", "preprocess_data_parallel_jwc"])
def test_what_can_run_is_not_refused(root, job, tmp_path):
    done = refusal(root, "olmo-core", f"jsc/{job}.sbatch", tmp_path, "--", "--vocab-size", "512")
    assert (done.returncode, done.stderr) == (0, "")


def data_step(root, folder, *words, settings=""):
    """Run preprocess_data.sh where a tokenizer was trained; give what was started, and its data."""
    data = folder / "a scratch/data"
    data.mkdir(parents=True)
    (data / "olmo-core_train_tokenizer.json").write_text('{"trained": 1}')
    paths = f"[paths]\nscratch_dir = {json.dumps(str(data.parent))}\n"
    given = {"script": "preprocess_data.sh", "configuration": f"{paths}[training]\n{settings}"}
    done, calls = start(root, "olmo-core", "jwc", folder, words, **given)
    assert done.returncode == 0, done.stderr
    assert all(Path(words[0]).name == "preprocess_data.py" for _, words in calls)
    return [words[1:] for _, words in calls], data


@pytest.mark.parametrize("mode", ["all", "prepare", "shard", "merge"])
def test_both_splits_are_made_in_each_mode(root, mode, tmp_path):
    text = 'text = "/p/c4.jsonl"\nvalidation_text = "/p/held out.jsonl"\n'
    made, data = data_step(root, tmp_path, mode, "--vocab-size=512", settings=text)
    tokenizer = f"--tokenizer={data}/olmo-core_train_tokenizer.json"
    assert made == [
        [mode, "--name=olmo-core_train", "--input=/p/c4.jsonl", "--vocab-size=512"],
        [
            *(mode, "--name=olmo-core_validation", "--input=/p/held out.jsonl"),
            *(tokenizer, "--vocab-size=512"),
        ],
    ]
    saved = data / "olmo-core_train_tokenizer"
    assert saved.is_dir() == (mode in ("all", "prepare"))  # by one rank
    if saved.is_dir():
        assert (saved / "tokenizer.json").read_text() == '{"trained": 1}'
        assert json.loads((saved / "tokenizer_config.json").read_text())["eos_token"]


def test_training_reads_what_the_data_step_writes(root, tmp_path):
    _, data = data_step(root, tmp_path)
    options = options_of(training(root, tmp_path / "training"))
    names = {Path(value).name for name, value in options.items() if "data" in name and "/" in value}
    assert names == {f"olmo-core_{each}_text_document.bin" for each in ("train", "validation")}
    assert Path(options["--tokenizer"]).name == (data / "olmo-core_train_tokenizer").name


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (["shard"], 'text = ""', "training.text is empty"),
        (["prepare", "--name=x"], "", "the data step does not accept --name=x"),
    ],
)
def test_data_step_that_would_do_something_else_is_refused(
    root, words, settings, message, tmp_path
):
    given = {"script": "preprocess_data.sh", "configuration": f"[training]\n{settings}"}
    done, calls = start(root, "olmo-core", "jwb", tmp_path, words, **given)
    assert (done.returncode, calls) == (1, [])
    assert done.stderr.splitlines()[0] == f"error: {message}"
