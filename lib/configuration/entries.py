"""What each of several tables of the same name takes: [[repositories]] and [[assets]]."""

from __future__ import annotations

from lib.configuration.tables import Key

INSTALLS = ("editable", "plain", "requirements", "none")


# What each of the [[repositories]] takes; lib/repositories/repositories.py reads them.
REPOSITORY = {
    "name": Key("string", "name of its directory (default: the last part of the URL)"),
    "url": Key("string", "URL or path that git clones"),
    "ref": Key("string", "tag, branch or commit (default: the default branch)"),
    "upstream": Key("string", "URL of the original, if `url` is a fork"),
    "install": Key("string", "how it is installed into the venv", INSTALLS, INSTALLS[0]),
    "extras": Key("list", "optional dependencies: NAME[extra]"),
    "requirements": Key(
        "string", "its requirements file, for install = requirements", (), "requirements.txt"
    ),
    "script": Key("string", "script of the clone to run afterwards, inside the environment"),
}

# What each of the [[assets]] takes; lib/assets/assets.py reads them.
ASSET = {
    "name": Key("string", "label that distinguishes entries with the same repo"),
    "repo": Key("string", "repository on the Hugging Face Hub, such as openai-community/gpt2"),
    "kind": Key(
        "string", "type of the repository; use model for a tokenizer", ("model", "dataset"), "model"
    ),
    "revision": Key(
        "string", "commit; a branch or tag can move, so its commit is printed", (), "main"
    ),
    "include": Key("list", "patterns of files to download (default: all)"),
    "exclude": Key("list", "patterns of files to leave out"),
}
