"""Pass options of pip on as pip's variables, to a command that does not take them.

Usage: python pip_options.py [OPTION...] -- COMMAND...
"""

import argparse
import os
import sys
import urllib.parse

_SINGLE = {"--index-url": "-i", "--cert": None, "--proxy": None}
_SEVERAL = {"--extra-index-url": None, "--find-links": "-f", "--trusted-host": None}


def variables(options):
    """Return the options about sources of packages as variables, such as ``PIP_INDEX_URL``.

    Other options are ignored. A list is appended to the value of its variable.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for table, action in ((_SINGLE, "store"), (_SEVERAL, "append")):
        for name, short in table.items():
            parser.add_argument(*filter(None, (short, name)), action=action)
    parser.add_argument("--no-index", action="store_const", const="1")
    found = {}
    for name, value in vars(parser.parse_known_args(list(options))[0]).items():
        variable = f"PIP_{name.upper()}"
        if isinstance(value, list):
            before = os.environ.get(variable, "").split()
            found[variable] = " ".join([*before, *map(_without_spaces, value)])
        elif value is not None:
            found[variable] = value
    if "PIP_PROXY" in found:
        found["HTTPS_PROXY"] = found["HTTP_PROXY"] = found["PIP_PROXY"]
    return found


def _without_spaces(source):
    """Turn a folder's path into a URL: the variables are split at spaces, and uv's at commas."""
    if os.path.isdir(source):
        return "file://" + urllib.parse.quote(os.path.abspath(source))
    return source


def main(*words):
    """Become the command."""
    split = words.index("--")
    os.environ.update(variables(words[:split]))
    os.execvp(words[split + 1], words[split + 1 :])


if __name__ == "__main__":
    main(*sys.argv[1:])
