"""stack_toml.md: every key of a stack's file, and what its scripts find."""

from __future__ import annotations

from lib.stacks import FILE, IMAGES, KINDS, SETTING, Setting, Stack
from lib.training import VARIABLES
from writers.markdown import code, keys_table, kind, page, table

_INTRO = """\
What the `stack.toml` of a folder below `stacks/` can say. All keys can be left out. Unknown keys
and wrong types are errors."""

_SETTINGS = """\
`[training]` has a table for each setting, `NAME = { kind = "...", default = ..., about = "..."
}`. A group sets it in `[training]` of [configuration.toml](configuration.md#training); the
scripts of the stack find it as `TRAINING_NAME`, the entries of a list on a line each. A path
below the project or scratch folder is written `{project_dir}/...` or `{scratch_dir}/...`."""


def stack_page() -> str:
    """Return the page."""
    return page(
        "stack.toml",
        _INTRO,
        "## The file",
        keys_table(FILE, Stack),
        "## `[images]`",
        'A text, or one for each architecture: `{ amd64 = "...", arm64 = "..." }`.',
        keys_table(IMAGES, prefix="images."),
        "## `[training]`",
        _SETTINGS,
        keys_table(SETTING, Setting, "training.NAME."),
        table(
            ("kind", "takes", "meaning"),
            ((code(name), kind(key), key.about) for name, key in KINDS.items()),
        ),
        "## `[configuration]`",
        "Any table of [configuration.toml](configuration.md): what a group can say otherwise.",
        "## What a template can name",
        "`lib/inside/template.bash` fills in `@NAME@`, for every setting and every variable of "
        "`environment.set`, and for these:",
        table(("variable",), ((code(each),) for each in VARIABLES)),
    )
