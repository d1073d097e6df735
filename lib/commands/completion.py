"""completion.py: the text for a shell, and the answer when TAB is pressed.

The text is a file of ``lib/commands/completion/``. On TAB it looks for the script on the command
line and calls ``completion.py answer SCRIPT WORD...`` of its own clone, never the script
itself: a TAB starts nothing. click completes; `lib/commands/values.py` knows what it cannot.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from lib import ROOT
from lib.commands import offered
from lib.script.command import call

SHELLS = {
    "bash": ("~/.bashrc", 'eval "$({} bash)"'),
    "zsh": ("~/.zshrc", 'eval "$({} zsh)"'),
    "fish": ("~/.config/fish/config.fish", "{} fish | source"),
}
_PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(9, 20)))


def lines_to_put(script: str) -> str:
    """Return the line for each shell, and the file that it goes to.

    Parameters
    ----------
    script : str
        What calls this script, such as ``python3 ~/longship/completion.py``.
    """
    return "\n".join(f"  {file:28}{line.format(script)}" for file, line in SHELLS.values())


@click.command(
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    epilog=f"\b\nAdd this line to your shell's start-up file, for a clone in ~/longship:\n"
    f"{lines_to_put('python3 ~/longship/completion.py')}\n\n"
    "In ~/.zshrc, put it after compinit, if that is called. One clone's line serves all clones: "
    "completion always comes from the script on the command line.",
)
@click.argument("shell", metavar="bash|zsh|fish", required=False, shell_complete=offered("shells"))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
def completion(shell: str | None, words: tuple[str, ...]) -> None:
    """Print the shell code for tab completion of these scripts.

    It completes options, modes, machines, stacks, job scripts, runs, image versions, sbatch options
    and partitions. Completion only reads files; it starts no program and does not query Slurm.
    """
    if shell == "answer" and len(words) > 1:
        _answer(*words)
    elif shell in SHELLS and not words:
        click.echo(_text(shell), nl=False)
    else:
        here = call("python3", f"{ROOT}/completion.py")
        raise click.UsageError(f"choose a shell: bash, zsh or fish:\n{lines_to_put(here)}")


def _text(shell: str) -> str:
    """Return a shell's functions, and the call that registers the names of all scripts."""
    functions = Path(ROOT, f"lib/commands/completion/longship.{shell}").read_text(encoding="utf-8")
    return f"{functions}\n_longship_register {' '.join([*_PYTHONS, *scripts()])}\n"


def scripts() -> list[str]:
    """Return the names of the scripts that are completed: each has a module of its name here."""
    modules = (each.name for each in Path(__file__).parent.glob("*.py"))
    return sorted(each for each in modules if Path(ROOT, each).is_file())


def _answer(script: str, *words: str) -> None:
    """Write what can stand in place of the last word.

    Parameters
    ----------
    script : str
        The name of an entry script.
    *words : str
        What stands behind it up to the cursor, quoted as it was typed.
    """
    name = script[: -len(".py")]
    if script in scripts():
        command = getattr(import_module(f"lib.commands.{name}"), name)
        click.echo(_Answer(command, script, words).complete())


class _Answer(ShellComplete):
    """click's completion, of words that come as arguments and not in variables.

    Its lines hold TYPE, VALUE and HELP with tabs between. A ``plain`` VALUE is the whole word, not
    quoted; ``file`` and ``dir`` ask for the shell's own, behind VALUE (``--configuration=``); with
    ``command`` the last VALUE words before this one are a command that is the user's own.
    """

    def __init__(self, command: click.Command, script: str, words: tuple[str, ...]) -> None:
        super().__init__(command, {}, script, "")
        self._words = [" ".join(split_arg_string(each)) for each in words]
        self._before = ""  # the part of the last word that is no value: `--machine=`

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the last one, and the last."""
        return self._words[:-1], self._words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Ask click, but for what is not ours: a user's command, and all that follows ``--``."""
        with self.cli.make_context(self.prog_name, list(args), resilient_parsing=True) as context:
            words = context.params.get("command")
        if words:
            return [CompletionItem(str(len(words)), type="command")]
        if "--" in args:
            return [CompletionItem("0", type="file" if words is None else "command")]
        name, equals, value = incomplete.partition("=")
        if name.startswith("--") and equals:
            self._before = f"{name}="
            args, incomplete = [*args, name], value
        return super().get_completions(args, incomplete)

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line of the answer."""
        if item.type in ("file", "dir"):
            return f"{item.type}\t{self._before}\t"
        before = self._before if item.type == "plain" else ""
        return f"{item.type}\t{before}{item.value}\t{' '.join((item.help or '').split())}"
