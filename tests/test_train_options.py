"""The options of preprocess_data.py: the parser refuses values out of range."""

import pytest
from writers.commands import payload_parser

PREPROCESS = [
    *("--vocab-size=100", "--vocab-size=-5", "--vocab-size=x", "--max-megabytes=0"),
    *("--max-megabytes=-1", "--max-megabytes=nan", "--max-megabytes=inf", "--rank=-1"),
    *("--world-size=0", "--world-size=-2"),
]


@pytest.mark.parametrize(
    ("script", "option"),
    [*(("preprocess_data.py", each) for each in PREPROCESS)],
)
def test_value_out_of_range_is_told(script, option, capsys):
    name, _, value = option.partition("=")
    with pytest.raises(SystemExit) as ended:
        payload_parser(script).parse_args([option])
    assert ended.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: argument {name}: expected a") and repr(value) in error
    assert hint == f"hint: show all options with: python3 container_run.py python {script} --help"


def test_edges_of_the_ranges_are_taken():
    assert payload_parser("preprocess_data.py").parse_args(["--vocab-size=257"]).vocab_size == 257
