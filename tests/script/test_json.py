"""Text in JSON, as records have it."""

import json
import os
import subprocess

from lib.script.render import render


def test_any_text_is_read_back(hostile_arguments):
    print_all = 'for each; do json_text "$each"; printf \'"%s"\\n\' "$REPLY"; done'
    command = ["bash", "-c", render("x", [print_all]), "x", *hostile_arguments]
    lines = os.fsdecode(subprocess.check_output(command)).split("\n")[:-1]
    assert [json.loads(line) for line in lines] == list(hostile_arguments)
