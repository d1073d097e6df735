"""What of an emitted script is its own, in a form that a reviewer can read: the golden plans."""

import difflib
import re
import textwrap
from pathlib import Path

_PART = re.compile(r"\n\n# ---------- (?:lib/)?(?=\w+/)")
_FUNCTION = re.compile(r"^(\w+)\(\) \{", re.MULTILINE)


def plan_of(script):
    """Give title, plan and long texts of a script, and the functions below them by their files."""
    own, *parts = _PART.split(script)
    assert parts and 'longship_main "$@"\n' in parts[-1][-60:], script[-200:]
    own += "\n"
    for part in parts[1:]:  # the first is exported.bash, as in all of them
        file, _, text = part.partition("\n")
        names = " ".join(_FUNCTION.findall(text))
        own += "\n" + textwrap.fill(f"# {file}: {names}", 116, subsequent_indent="#   ")
    return f"{own}\n"


def facts_of(paths):
    """Give the places that differ from machine to machine anyway, by a word for each."""
    return {
        "SCRATCH": str(paths.scratch_dir),
        "PROJECT": str(paths.project_dir),
        "CHECKPOINTS": str(paths.checkpoint_dir),
        "ARCH": paths.arch,
    }


def lines_of(text, settings, paths):
    """Give the lines of a script's plan, a call on each, with words in the place of facts.

    The functions that it uses follow from these. The start of a run has a line for each fact.
    """
    text = _PART.split(text)[0]
    site, machine = Path(settings.machine.site_file).parent, settings.machine.name
    text = re.sub(rf"(?<![\w./-]){site}/", "SITE/", text)
    facts = {**facts_of(paths), "CLONE": str(paths.root), "MACHINE": machine}
    for word, fact in sorted(facts.items(), key=lambda each: -len(each[1])):
        text = re.sub(rf"(?<![a-z0-9./-]){re.escape(fact)}(?![a-z0-9-])", word, text)
    text = re.sub(r"configurations/\w{32}", "configurations/CHECKSUM", text)
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
