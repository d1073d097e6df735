"""completion.py: click's completion for bash, zsh and fish, also after `python3`.

The shell gets click's function, and one that calls it if a script of this clone is on the command
line. TAB runs this script, never the one on the command line, and reads only files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from click import shell_completion
from click.shell_completion import CompletionItem, split_arg_string

from lib import ROOT
from lib.commands import Invocation
from lib.commands.options import version_option
from lib.commands.verbs import find_command, find_scripts
from lib.configuration.sites import load_machines
from lib.configuration.stacks import load_stack, stack_names
from lib.jobs.job_files import job_files
from lib.script.errors import LongshipError
from lib.script.quoting import word as quoted

_VARIABLE = "_LONGSHIP_COMPLETE"
_FILES = {"command": "file", "configuration": "file", "directory": "dir", "file": "file"}


def _values_of(kind: str, context: click.Context, word: str) -> list[CompletionItem]:
    """Return the completions of a word, which are files of the shell's if there is no other."""
    found = []
    with suppress(LongshipError, OSError):
        for value, about in _values(kind, context):
            if value.startswith(word) and re.fullmatch(r"[\w@%+:,./-]+", value):
                found.append(CompletionItem(value, help=about))
    if not found and kind in (*_FILES, "job", "log"):
        found.append(CompletionItem(word, type=_FILES.get(kind, "file")))
    return found


def _values(kind: str, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the values of a kind, each with its help."""
    if kind == "machine":
        yield from ((each.name, each.description) for each in load_machines(Path(ROOT)).values())
    elif kind == "stack":
        for name in stack_names(Path(ROOT)):
            yield name, load_stack(Path(ROOT), name).description
    elif kind in ("job", "verb"):
        yield from ((str(x.name), x.get_short_help_str(60)) for x in context.command.shown_verbs())
        if kind == "job":
            yield from ((str(path.relative_to(ROOT)), "") for path in job_files(Path(ROOT)))
    elif kind in ("run", "job_id", "log"):
        names = ("machine", "stack", "configuration")
        typed = {each: os.path.expanduser(context.params.get(each) or "") for each in names}
        runs = Invocation.read(typed, dry_run=True).paths.runs
        # the number of a newer job is longer
        for name in sorted(os.listdir(runs), key=lambda x: (x.find("-"), x), reverse=True):
            number, _, about = name.partition("-")
            if (runs / name / "record.json").is_file():
                yield (name, "") if kind == "run" else (number, about)


class _Scripts(shell_completion.ShellComplete):
    """Shared by the shells: the script can follow `python3`."""

    def source_vars(self) -> dict[str, str]:
        """Return the values of click's template of shell code."""
        names = [f"{each}.py" for each in find_scripts()]
        scripts = f"({'|'.join(find_scripts())})[.]py"
        more = {"directory": quoted(ROOT), "names": " ".join(["python", "python3", *names])}
        return {**super().source_vars(), **more, "scripts": scripts}

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words after the script, and find its command."""
        args, incomplete = super().get_completion_args()
        words = [*split_arg_string(os.environ["COMP_WORDS"])[:1], *args]
        at = 0
        if re.fullmatch(r"python3?", os.path.basename(words[0])):
            at = next((n for n, each in enumerate(words) if n and not each.startswith("-")), 0)
        path = os.path.expandvars(os.path.expanduser(words[at]))
        path = os.path.realpath(path if at or "/" in path else shutil.which(path) or path)
        script, ending = os.path.splitext(os.path.basename(path))
        if os.path.dirname(path) == ROOT and ending == ".py" and script in find_scripts():
            self.cli = find_command(script)
            return words[at + 1 :], incomplete
        return ["--"], incomplete  # another program's: files

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Ask click; complete files in a user's command and after ``--``."""
        with self.cli.make_context("", list(args), resilient_parsing=True) as context:
            if context.params.get("command") or "--" in args:
                return [CompletionItem(incomplete, type="file")]
        return super().get_completions(args, incomplete)


class _Bash(_Scripts, shell_completion.BashComplete):
    source_template = (
        shell_completion.BashComplete.source_template
        + r"""
_longship() {
    local completion type value
    COMPREPLY=()
    if [[ "${COMP_WORDS[*]:0:COMP_CWORD}" =~ %(scripts)s ]]; then
        PATH=%(directory)s:$PATH %(complete_func)s %(prog_name)s
    fi
}
complete -o nosort -o bashdefault -o default -F _longship %(names)s
"""
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Leave out the ``=`` at which bash splits words."""
        args, incomplete = super().get_completion_args()
        return [each for each in args if each != "="], incomplete


class _Zsh(_Scripts, shell_completion.ZshComplete):
    source_template = (
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n"
        + shell_completion.ZshComplete.source_template
        + r"""
_longship() {
    local -x PATH=%(directory)s:$PATH
    if [[ "$words[1,CURRENT-1]" =~ '%(scripts)s' ]]; then
        compset -P '--*='
        %(complete_func)s
    else
        _default
    fi
}
compdef _longship %(names)s
"""
    )


class _Fish(_Scripts, shell_completion.FishComplete):
    source_template = (
        shell_completion.FishComplete.source_template
        + r"""
function _longship
    set -lx PATH %(directory)s $PATH
    %(complete_func)s
end
for name in %(names)s
    complete --no-files --keep-order --command $name --arguments '(_longship)' \
        --condition "commandline -opc | string match --quiet --regex '%(scripts)s'"
end
"""
    )


_SHELLS = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


@click.command(
    context_settings={"max_content_width": 100},
    epilog="\b\nAdd this line to your shell's start-up file, for a clone in ~/longship:\n"
    '  ~/.bashrc                   eval "$(python3 ~/longship/completion.py bash)"\n'
    '  ~/.zshrc                    eval "$(python3 ~/longship/completion.py zsh)"\n'
    "  ~/.config/fish/config.fish  python3 ~/longship/completion.py fish | source\n\n"
    "In ~/.zshrc, put the line after compinit. It completes the scripts of that clone; after "
    "python3, it replaces the completion that the shell had.",
)
@click.argument("shell", metavar="bash|zsh|fish", required=False, type=click.Choice(list(_SHELLS)))
@version_option
def completion(shell: str | None) -> None:
    """Print the shell code for tab completion of these scripts.

    It completes options, modes, verbs, machines, stacks, job scripts and runs. Completion only
    reads files; it starts no program and does not query Slurm.
    """
    asked = os.environ.get(_VARIABLE, "").partition("_")[0]
    if shell is None and asked not in _SHELLS:
        raise click.UsageError("choose a shell: bash, zsh or fish")
    texts = _SHELLS[shell or asked](completion, {"obj": _values_of}, "completion.py", _VARIABLE)
    if shell:
        click.echo(texts.source())
    else:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads an error on TAB
        click.echo(texts.complete())
