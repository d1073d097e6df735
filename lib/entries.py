"""What each of several tables of the same name takes: [[repositories]] and [[assets]]."""

from __future__ import annotations

from lib.tables import Key

INSTALLS = ("editable", "plain", "requirements", "none")


# What each of the [[repositories]] takes; lib/repositories.py reads them.
REPOSITORY = {
    "name": Key("text", "names its folder; the last part of the URL unless given"),
    "url": Key("text", "what git clones"),
    "ref": Key("text", "a tag, branch or commit; the default branch unless given"),
    "upstream": Key("text", "the original's URL, where `url` is a fork"),
    "install": Key("text", "how it gets into the venv", INSTALLS, INSTALLS[0]),
    "extras": Key("list", "optional dependencies: NAME[extra]"),
    "requirements": Key("text", "its file for install = requirements", (), "requirements.txt"),
    "script": Key("text", "a script of this repository that is run inside, after that"),
}

# What each of the [[assets]] takes; lib/assets.py reads them.
ASSET = {
    "name": Key("text", "tells it from others of the same repo"),
    "repo": Key("text", "a repository on the Hugging Face hub, such as openai-community/gpt2"),
    "kind": Key("text", "a tokenizer is a model's", ("model", "dataset"), "model"),
    "revision": Key("text", "a commit; a branch or tag moves, and is told as a commit", (), "main"),
    "include": Key("list", "patterns of the files that are wanted; all unless given"),
    "exclude": Key("list", "patterns of those that are not"),
}
