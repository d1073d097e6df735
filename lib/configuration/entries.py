"""What each of several tables of the same name takes: [[repositories]] and [[assets]]."""

from __future__ import annotations

from lib.configuration.tables import Key

INSTALLS = ("editable", "plain", "requirements", "none")


# What each of the [[repositories]] takes; lib/repositories/repositories.py reads them.
REPOSITORY = {
    "name": Key("text", "name of its directory (default: the last part of the URL)"),
    "url": Key("text", "URL or path that git clones"),
    "ref": Key("text", "tag, branch or commit (default: the default branch)"),
    "upstream": Key("text", "URL of the original, if `url` is a fork"),
    "install": Key("text", "how it is installed into the venv", INSTALLS, INSTALLS[0]),
    "extras": Key("list", "optional dependencies: NAME[extra]"),
    "requirements": Key(
        "text", "its requirements file, for install = requirements", (), "requirements.txt"
    ),
    "script": Key("text", "script of the clone to run afterwards, inside the environment"),
}

# What each of the [[assets]] takes; lib/assets/assets.py reads them.
ASSET = {
    "name": Key("text", "label that distinguishes entries with the same repo"),
    "repo": Key("text", "repository on the Hugging Face Hub, such as openai-community/gpt2"),
    "kind": Key(
        "text", "type of the repository; use model for a tokenizer", ("model", "dataset"), "model"
    ),
    "revision": Key(
        "text", "commit; a branch or tag can move, so its commit is printed", (), "main"
    ),
    "include": Key("list", "patterns of files to download (default: all)"),
    "exclude": Key("list", "patterns of files to leave out"),
}
