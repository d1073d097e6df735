"""--help, which has to do without any documentation."""

import re

import pytest
from click.testing import CliRunner

from lib.cli.build_container import build_container
from lib.cli.bundle import bundle
from lib.cli.set_up import set_up


@pytest.mark.parametrize("command", [build_container, set_up, bundle], ids=lambda each: each.name)
def test_help_explains_each_mode_on_a_line_of_its_own(command):
    text = CliRunner().invoke(command, ["--help"]).output
    (modes,) = (each.type.choices for each in command.params if each.name == "mode")
    for mode in modes:
        assert re.search(rf"^  {mode} +\w", text, re.MULTILINE), text
    assert "\\b" not in text
