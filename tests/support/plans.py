"""What of an emitted script is its own, in a form that a reviewer can read: the golden plans."""

import difflib
import re
import textwrap
from pathlib import Path

from lib.script.render import shell_files

_HEADING = "\n\n# ---------- "
_FUNCTION = re.compile(r"^(\w+)\(\) \{", re.MULTILINE)
_LAST = re.compile(r'\n\nlongship_main "\$@"\n(exported_restore\n)?\Z')


# The functions that each bash file of lib/ defines, where it is more than one.
_FILES = {
    path.name: names
    for path in shell_files()
    if len(names := _FUNCTION.findall(path.read_text(encoding="utf-8"))) > 1
}


def _shortened(names):
    """Name a bash file in the place of all that it defines."""
    short = dict.fromkeys(names)
    for file, defined in _FILES.items():
        if short.keys() >= set(defined):
            short = {file if each == defined[0] else each: None for each in short}
            short = {each: None for each in short if each not in defined}
    return short


def plan_of(script):
    """Give title, plan and long texts of a script, and the names of the functions below them.

    A bash file all of whose functions are there is named in their place.
    """
    own, _, rest = script.partition(f"{_HEADING}lib/script/exported.bash\n")  # as in all of them
    assert rest and _LAST.search(script), script[-200:]
    _, _, rest = rest.partition(_HEADING)
    names = " ".join(_shortened(_FUNCTION.findall(rest)))
    uses = textwrap.fill(
        f"uses: {names}", 116, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
    )
    return f"{own}\n\n{uses}\n"


def facts_of(paths):
    """Give the places that differ from machine to machine anyway, by a word for each."""
    return {
        "SCRATCH": str(paths.scratch_dir),
        "PROJECT": str(paths.project_dir),
        "CHECKPOINTS": str(paths.checkpoint_dir),
        "ARCH": paths.arch,
    }


def lines_of(text, settings, paths):
    """Give the lines of a plan, a call on each, with words in the place of facts.

    The functions that it uses follow from these. The start of a run has a line for each fact.
    """
    text = text.partition("\n\n# uses: ")[0]
    site, machine = Path(settings.machine.site_file).parent, settings.machine.name
    text = re.sub(rf"(?<![\w./-]){site}/", "SITE/", text)
    facts = {**facts_of(paths), "CLONE": str(paths.root), "MACHINE": machine}
    for word, fact in sorted(facts.items(), key=lambda each: -len(each[1])):
        text = re.sub(rf"(?<![a-z0-9./-]){re.escape(fact)}(?![a-z0-9-])", word, text)
    text = re.sub(r"configurations/\w{12}", "configurations/CHECKSUM", text)
    calls, run_begin, run_facts = text.partition("  run_begin ")
    return (re.sub(r" \\\n +", " ", calls) + run_begin + run_facts).splitlines()


def difference(lines, others):
    """Give the lines that others lack (+), and the other way round (-), without their places."""
    found = list(difflib.unified_diff(others, lines, n=0, lineterm=""))[2:]
    return [each for each in found if not each.startswith("@@") and each[1:].strip()]


def table(columns):
    """Give the lines of some columns by name, below the names of all that have them."""
    owners, groups = {}, {}
    for name, lines in columns.items():
        for number, line in enumerate(lines):
            owners.setdefault((line, lines[:number].count(line)), []).append(name)
    for (line, _), names in owners.items():
        groups.setdefault(f"# {', '.join(names)}", []).append(line)
    return [line for names, lines in groups.items() for line in [names, *lines]]
