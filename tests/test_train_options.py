"""The options of train.py and preprocess_data.py: the parser refuses values out of range."""

import sys

import pytest
from writers.commands import payload_parser

from lib import ROOT

TRAIN = [
    *("--checkpoint-every=0", "--batch-size=-8", "--vocab-size=-1", "--steps=0", "--steps=1e3"),
    *("--steps=100000000", "--layers=0", "--heads=0", "--width=0", "--sequence-length=0"),
    *("--learning-rate=-1", "--learning-rate=nan", "--learning-rate=inf", "--warmup-steps=-1"),
    *("--weight-decay=-0.1", "--clip-norm=-1", "--dropout=1", "--dropout=-0.1", "--seed=-1"),
    *("--seed=9223372036854775808", "--micro-batch-size=-1", "--validation-fraction=1"),
    *("--validation-fraction=nan", "--validate-every=0", "--validation-sequences=0"),
]
PREPROCESS = [
    *("--vocab-size=100", "--vocab-size=-5", "--vocab-size=x", "--max-megabytes=0"),
    *("--max-megabytes=-1", "--max-megabytes=nan", "--max-megabytes=inf", "--rank=-1"),
    *("--world-size=0", "--world-size=-2"),
]


@pytest.mark.parametrize(
    ("script", "option"),
    [
        *(("train.py", each) for each in TRAIN),
        *(("preprocess_data.py", each) for each in PREPROCESS),
    ],
)
def test_value_out_of_range_is_told(script, option, capsys):
    name, _, value = option.partition("=")
    with pytest.raises(SystemExit) as ended:
        payload_parser(script).parse_args([option])
    assert ended.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: argument {name}: expected a") and repr(value) in error
    assert hint == f"hint: list all options: python3 container_run.py python {script} --help"


@pytest.mark.parametrize("script", ["train.py", "preprocess_data.py"])
def test_script_outside_the_environment_is_told(script, run, clean_environment):
    command = [sys.executable, "-S", f"{ROOT}/{script}"]  # without any package
    for inside, hint in (
        ({}, f"hint: run: python3 container_run.py python {script}"),
        ({"LONGSHIP_ROOT": ROOT}, "hint: run: python3 set_up.py install"),
    ):
        done = run(command, env={**clean_environment, **inside}, check=False)
        error, told = done.stderr.splitlines()
        assert error.startswith(f"error: {script} needs ") and done.returncode == 1
        assert told == hint


def test_edges_of_the_ranges_are_taken():
    edges = ("--steps=99999999", "--batch-size=0", "--clip-norm=0", "--dropout=0")
    given = payload_parser("train.py").parse_args([*edges, "--learning-rate=1e-5"])
    assert (given.steps, given.batch_size, given.learning_rate) == (99999999, 0, 1e-5)
    assert payload_parser("preprocess_data.py").parse_args(["--vocab-size=257"]).vocab_size == 257


def test_data_options_cannot_be_shortened(capsys):
    """submit.py checks the file of --input before the job, and would not see --inp."""
    with pytest.raises(SystemExit) as ended:
        payload_parser("preprocess_data.py").parse_args(["--inp=text.jsonl"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --inp=text.jsonl" in capsys.readouterr().err
