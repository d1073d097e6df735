"""completion.py: click's completion for bash, zsh and fish, also after `python3`.

The shell gets click's function and a wrapper. The wrapper calls click's function if one of the
scripts is on the command line, and otherwise the completion that was there before. TAB runs this
script, never the script on the command line. values.py completes values.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

import click
from click import shell_completion
from click.shell_completion import CompletionItem, split_arg_string

from extras.completion.values import values_of
from lib import ROOT
from lib.commands.options import version_option
from lib.commands.verbs import find_command, find_scripts
from lib.script.command import call
from lib.script.execute import become
from lib.script.quoting import word as quoted

_PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(9, 20)))
_VARIABLE = "_LONGSHIP_COMPLETE"


class _Scripts(shell_completion.ShellComplete):
    """Shared by the shells: the script can follow `python3`, and can be another clone's."""

    def source_vars(self) -> dict[str, str]:
        """Return the values of click's template of shell code."""
        return {
            **super().source_vars(),
            "directory": quoted(ROOT),
            "names": " ".join([*_PYTHONS, *(f"{each}.py" for each in find_scripts())]),
            "scripts": f"({'|'.join(find_scripts())})[.]py",
        }

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words after the script, and find its command."""
        args, incomplete = super().get_completion_args()
        words = [*split_arg_string(os.environ["COMP_WORDS"])[:1], *args]
        at = 0
        if re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
            at = next((n for n, each in enumerate(words) if n and not each.startswith("-")), 0)
        path = os.path.expandvars(os.path.expanduser(words[at]))
        directory, name = os.path.split(path if at or "/" in path else shutil.which(path) or path)
        answering = os.path.join(directory or ".", "completion.py")
        script, ending = os.path.splitext(name)
        if ending != ".py" or script not in find_scripts() or not os.path.isfile(answering):
            return ["--"], incomplete
        if not os.path.samefile(directory or ".", ROOT):
            become(call("exec", sys.executable, answering), "longship", (), os.environ)
        self.cli = find_command(script)
        return words[at + 1 :], incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Ask click; complete files in a user's command and after ``--``."""
        with self.cli.make_context("", list(args), resilient_parsing=True) as context:
            if context.params.get("command") or "--" in args:
                return [CompletionItem(incomplete, type="file")]
        option = re.match("(--[^=]*)=", incomplete)
        if not option:
            return super().get_completions(args, incomplete)
        found = super().get_completions([*args, option[1]], incomplete[option.end() :])
        if self.name == "bash":  # it splits words at =
            return found
        return [CompletionItem(option[0] + each.value, each.type, each.help) for each in found]


class _Bash(_Scripts, shell_completion.BashComplete):
    source_template = (
        shell_completion.BashComplete.source_template
        + r"""
if ! declare -F _longship >/dev/null; then
    # the current completion of python3; bash-completion loads it on demand
    if ! complete -p python3 &>/dev/null && [[ $(complete -p -D 2>&1) =~ \ -F\ ([^ ]+) ]]; then
        "${BASH_REMATCH[1]}" python3 &>/dev/null
    fi
    [[ $(complete -p python3 2>&1) =~ \ -F\ ([^ ]+) ]]
    _longship_before=${BASH_REMATCH[1]-}
fi
_longship() {
    local completion type value
    COMPREPLY=()
    if [[ "${COMP_WORDS[*]:0:COMP_CWORD}" =~ %(scripts)s ]]; then
        PATH=%(directory)s:$PATH %(complete_func)s %(prog_name)s
    elif [[ -n $_longship_before && ${1##*/} == python* ]]; then
        "$_longship_before" "$@"
    fi
}
complete -o nosort -o bashdefault -o default -F _longship %(names)s
"""
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Join the words that bash splits at ``=``, up to the cursor."""
        pieces = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        text = re.sub(r"\n=(\n|$)", "=", "\n".join(pieces))
        os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = text, str(text.count("\n"))
        return super().get_completion_args()

    def format_completion(self, item: CompletionItem) -> str:
        """Quote plain values: bash quotes only files."""
        value = quoted(item.value) if item.type == "plain" else item.value
        return super().format_completion(CompletionItem(value, item.type))


class _Zsh(_Scripts, shell_completion.ZshComplete):
    source_template = (
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n"
        + shell_completion.ZshComplete.source_template
        + r"""
if (( ! $+functions[_longship] )); then
    _longship_before=${_comps[python3]:-${_postpatcomps[(K)python3]:-_default}}
fi
_longship() {
    local -x PATH=%(directory)s:$PATH
    if [[ "$words[1,CURRENT-1]" =~ '%(scripts)s' ]]; then
        compset -P '--*='
        %(complete_func)s
    else
        eval $_longship_before
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
    "In ~/.zshrc, put the line after compinit. One clone's line serves all clones: "
    "completion always comes from the script on the command line.",
)
@click.argument("shell", metavar="bash|zsh|fish", required=False, type=click.Choice(list(_SHELLS)))
@version_option
def completion(shell: str | None) -> None:
    """Print the shell code for tab completion of these scripts.

    It completes options, modes, machines, stacks, job scripts, runs, image versions, sbatch options
    and partitions. Completion only reads files; it starts no program and does not query Slurm.
    """
    asked = os.environ.get(_VARIABLE, "").partition("_")[0]
    if shell is None and asked not in _SHELLS:
        raise click.UsageError("choose a shell: bash, zsh or fish")
    context = {"obj": values_of}
    texts = _SHELLS[shell or asked](completion, context, "completion.py", _VARIABLE)
    if shell:
        click.echo(texts.source())
    else:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads an error on TAB
        click.echo(texts.complete())
