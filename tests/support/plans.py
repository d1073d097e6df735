"""What of an emitted script is its own, in a form that a reviewer can read: the golden plans."""

import difflib
import re
import textwrap
from pathlib import Path

_HEADING = "\n\n# ---------- "
_FUNCTION = re.compile(r"^(\w+)\(\) \{", re.MULTILINE)
_LAST = re.compile(r'\n\nlongship_main "\$@"\n(exported_restore\n)?\Z')
_LIB = Path(__file__).resolve().parents[2] / "lib"


# The functions that each bash file of lib/ defines, where it is more than one.
_FILES = {
    path.name: names
    for path in sorted(_LIB.glob("*/*.bash"))
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


def placeless(plan, paths):
    """Give a plan with words in place of the folders in which two machines differ anyway."""
    roots = {
        paths.root: "CLONE",
        paths.checkpoint_dir: "CHECKPOINTS",
        paths.project_dir: "PROJECT",
        paths.scratch_dir: "SCRATCH",
    }
    for root in sorted(roots, key=lambda path: -len(str(path))):
        plan = plan.replace(f"'{root}'", roots[root]).replace(str(root), roots[root])
    return plan


def difference(plan, similar):
    """Give the lines of a plan that a similar one lacks (+), and the other way round (-)."""
    (own, names), (others, other_names) = (each.split("# uses: ") for each in (plan, similar))
    lines = difflib.unified_diff(
        others.splitlines(keepends=True), own.splitlines(keepends=True), n=0
    )
    # Where they stand is left out: a line more in one place would change all numbers after it.
    text = "".join(line if line[0] in "+-" else "\n" for line in list(lines)[2:])
    mine, theirs = (set(each.replace("#", " ").split()) for each in (names, other_names))
    for sign, more in ("-", theirs - mine), ("+", mine - theirs):
        text += f"\n{sign}# uses: {' '.join(sorted(more))}" if more else ""
    return f"{text.strip()}\n"
