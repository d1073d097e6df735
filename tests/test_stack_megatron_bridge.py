"""The stack megatron-bridge: what its scripts start; tests/integration/ runs the real one."""

import os

import pytest
from support.stacks import refusal, start, words_of

PRETRAIN = 'recipe = "qwen3_8b_pretrain_config"\n'
TUNE = 'recipe = "qwen3_8b_sft_config"\n'
ALL = """
    data = ["0.3", "/p/a b", "0.7", "/p/it's, x_text_document"]
    tensor_parallel = 2
    pipeline_parallel = 2
    context_parallel = 1
    sequence_length = 8192
    micro_batch = 2
    global_batch = 64
    learning_rate = "1e-4"
    run_name = "a b/c"
"""


def training(root, folder, settings="", *arguments):
    """Run run_training.sh on two nodes of JUWELS Booster; give how it ended, and its calls."""
    folder.mkdir(exist_ok=True)
    configuration = f"[training]\n{settings}"
    return start(root, "megatron-bridge", "jwb", folder, arguments, configuration=configuration)


def options_of(run):
    """Give the value of each option of the runner, and of each override."""
    _, *words = words_of(run)
    options, words = {}, iter(words)
    for word in words:
        name, equals, value = word.partition("=")
        options[name] = value if equals else next(words)
    return options


def test_passes_the_options_that_are_listed_and_no_other(root, tmp_path):
    runs = (PRETRAIN + ALL, TUNE + 'model = "/p/m"\ndata = ["/p/d"]\n')
    made = [options_of(training(root, tmp_path / str(n), each)) for n, each in enumerate(runs)]
    listed = (root / "tests/flags/megatron-bridge.txt").read_text().splitlines()
    assert sorted({*made[0], *made[1]}) == listed  # the real parser: tests/integration/


def test_settings_arrive_as_they_are(root, tmp_path):
    options = options_of(training(root, tmp_path, PRETRAIN + ALL))
    assert options["--recipe"] == "qwen3_8b_pretrain_config"
    assert options["--save_dir"] == options["--load_dir"]
    assert options["--save_dir"].endswith("/checkpoints/a b/c")
    # strings of Hydra's grammar, which splits at commas
    assert options["dataset.data_path"] == r"['0.3','/p/a b','0.7','/p/it\'s, x_text_document']"
    assert options["tokenizer.tokenizer_model"] == r"'/p/it\'s, x_tokenizer'"
    assert options["dataset.split"] == "'98,1,1'"
    assert (options["--tensor_model_parallel_size"], options["--lr"]) == ("2", "1e-4")
    assert options["model.sequence_parallel"] == "true"


def test_indices_of_data_that_were_made_again_are_others(root, tmp_path):
    found = []
    for text in ("", "", "more"):
        (tmp_path / "my data.idx").write_text(text)
        os.utime(tmp_path / "my data.idx", (1, 1))
        folder = tmp_path / str(len(found))
        data = f'{PRETRAIN}data = ["{tmp_path}/my data"]\ntokenizer = "/p/t"\n'
        found.append(options_of(training(root, folder, data))["dataset.path_to_cache"])
    assert found[0] == found[1] != found[2]


def test_what_is_not_set_is_the_recipes(root, tmp_path):
    options = options_of(training(root, tmp_path))
    own = {"--recipe", "--max_steps", "--warmup_iters", "--save_dir", "--load_dir"}
    assert {name for name in options if name.startswith("--")} == {*own, "--save_interval"}
    assert not any(name.startswith(("dataset.", "tokenizer.", "model.")) for name in options)


def test_fine_tuning_reads_a_directory_and_the_models_tokenizer(root, tmp_path):
    settings = 'model = "me/base"\ndata = ["/p/my data"]\n'
    options = options_of(training(root, tmp_path, TUNE + settings))
    assert options["--dataset"] == "local-jsonl"
    assert options["dataset.dataset_root"] == "'/p/my data'"
    assert not {"dataset.data_path", "tokenizer.tokenizer_model"} & options.keys()


def test_model_brings_its_tokenizer_unless_one_is_set(root, tmp_path):
    settings = f'{PRETRAIN}model = "/p/m"\ndata = ["/p/a_text_document"]\n'
    plain = options_of(training(root, tmp_path / "plain", settings))
    other = options_of(training(root, tmp_path / "other", settings + 'tokenizer = "/p/t"\n'))
    assert "tokenizer.tokenizer_model" not in plain
    assert other["tokenizer.tokenizer_model"] == "'/p/t'"


def test_arguments_come_last(root, tmp_path):
    arguments = ["--max_steps", "7", "model.activation_func=silu", "a b\n'c'"]
    assert words_of(training(root, tmp_path, "", *arguments))[-4:] == arguments


WRONG = [
    ('recipe = "qwen3_8b"', (), 'unknown recipe: "qwen3_8b"'),
    (TUNE + 'data = ["/p/d"]', (), "training.model is empty"),
    (TUNE + 'model = "/p/m"', (), "training.data is empty"),
    ("warmup_steps = 100", (), "training.warmup_steps = 100 is not below steps = 100"),
    (
        "tensor_parallel = 2\npipeline_parallel = 1\ncontext_parallel = 1\n"
        "micro_batch = 2\nglobal_batch = 12",
        (),
        "global_batch 12 is not a multiple of micro_batch 2 x 4 replicas",
    ),
]


@pytest.mark.parametrize(("settings", "arguments", "message"), WRONG)
def test_what_cannot_run_is_told_before_a_rank_starts(root, settings, arguments, message, tmp_path):
    done, calls = training(root, tmp_path, settings, *arguments)
    assert (done.returncode, calls) == (1, [])
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and message in error
    assert hint.startswith("hint: ") and "in [training] of configuration.toml" in hint


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoint.pretrained_checkpoint=/p/m", "--dataset", "squad"),
        ("--dataset=squad", "checkpoint.pretrained_checkpoint=/p/m"),
    ],
)
def test_arguments_can_bring_model_and_data_of_a_fine_tuning(root, arguments, tmp_path):
    assert words_of(training(root, tmp_path, TUNE, *arguments))


def test_what_cannot_run_is_refused_before_submission(root, tmp_path):
    configuration = f"[training]\n{TUNE}"
    job = "jsc/run_training_jwb.sbatch"
    done = refusal(root, "megatron-bridge", job, tmp_path, configuration=configuration)
    assert done.returncode == 1 and "training.model is empty" in done.stderr.splitlines()[0]


@pytest.mark.parametrize("job", ["run_training_jwb", "preprocess_data_parallel_jrc"])
def test_what_can_run_is_not_refused(root, job, tmp_path):
    job = f"jsc/{job}.sbatch"
    done = refusal(root, "megatron-bridge", job, tmp_path, "--", "--vocab-size", "512")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("settings", "tokenizer"),
    [
        ("", None),
        ('model = "/p/m"\n', "/p/m"),
        ('model = "/p/m"\ntokenizer = "/p/t"\n', "/p/t"),
    ],
)
def test_data_step_uses_the_tokenizer_of_the_training(root, settings, tokenizer, tmp_path):
    done, calls = start(
        *(root, "megatron-bridge", "jwb", tmp_path, ["prepare"]),
        script="preprocess_data.sh",
        configuration=f"[training]\n{settings}",
    )
    variables, words = calls[0]
    assert any(each.startswith("PYTHONPATH=") and "/Megatron-LM" in each for each in variables)
    found = words[1:] if words[0].endswith("find_tokenizer.py") else [None]
    assert found == [tokenizer]
