"""TAB, pressed on a terminal in each of the three shells."""

import contextlib
import re

import pytest
from support.repository import Clone
from support.terminal import Terminal

SHELLS = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}
LOAD = {
    "bash": 'eval "$("{}" "{}" bash)"',
    "zsh": 'eval "$("{}" "{}" zsh)"',
    "fish": '"{}" "{}" fish | source',
}
BEGIN = "\x01"  # Ctrl-A: to the begin of the line
KILL = "\x15"  # Ctrl-U: away with the line

each_shell = pytest.mark.parametrize("name", [
    "bash",
    pytest.param("zsh", marks=pytest.mark.needs("shells")),
    pytest.param("fish", marks=pytest.mark.needs("shells")),
])


class Shell(Terminal):
    """A shell that somebody types in."""

    def __init__(self, name, *, env, cwd, load):
        super().__init__(SHELLS[name], env={**env, "PS1": "$ "}, cwd=cwd)
        self.name = name
        self.do(load, "ready")

    def do(self, line, said):
        """Type a line that says a word, which the line itself does not hold in one piece."""
        self.type(f"{line}; printf '%s%s\\n' {said[:2]} {said[2:]}\n")
        self.expect(said)

    def words(self, typed):
        """Give the words of the line, after what was typed, TAB and Enter."""
        self.type(f"{typed}\t{BEGIN}printf '<%s>' \n")
        end = self.said
        self.do("", "done")
        return re.findall(r"<([^>\n]+)>", self.said[len(end):])
