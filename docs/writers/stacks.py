"""stack_toml.md: every key of a stack's file, and the variables of its scripts."""

from __future__ import annotations

from lib.configuration.stacks import FILE, IMAGES, KINDS, METRICS, SETTING
from writers.markdown import code, keys_table, kind, page, table

# besides the settings: those of the environment inside and of jobs
_VARIABLES = (
    *("LONGSHIP_ROOT", "LONGSHIP_MACHINE", "LONGSHIP_STACK", "LONGSHIP_PROJECT_DIR"),
    *("LONGSHIP_SCRATCH_DIR", "LONGSHIP_CHECKPOINT_DIR", "LONGSHIP_REPOSITORIES"),
    *("RUN_DIR", "NUM_NODES", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT"),
    *("HF_HOME", "USER"),
)

_INTRO = """\
This page lists the keys of `stack.toml` in a directory under `stacks/`. All keys are optional.
Unknown keys and wrong types are errors."""

_SETTINGS = """\
`[training]` contains one table per setting, `NAME = { kind = "...", default = ..., about = "..."
}`. A group sets it in `[training]` of [configuration.toml](configuration.md#training); the scripts
of the stack read it from the variable `TRAINING_NAME`, with one line per entry of a list. Write a
path in the project or scratch directory as `{project_dir}/...` or `{scratch_dir}/...`."""


def stack_page() -> str:
    """Return the page."""
    return page(
        "stack.toml",
        _INTRO,
        "## The file",
        keys_table(FILE),
        "## `[images]`",
        'A string, or one for each architecture: `{ amd64 = "...", arm64 = "..." }`.',
        keys_table(IMAGES, prefix="images."),
        "## `[training]`",
        _SETTINGS,
        keys_table(SETTING, "training.NAME."),
        table(
            ("kind", "type", "meaning"),
            ((code(name), kind(key), key.help) for name, key in KINDS.items()),
        ),
        "## `[metrics]`",
        keys_table(METRICS, prefix="metrics."),
        "## `[configuration]`",
        "Any table of [configuration.toml](configuration.md); a group can override its values.",
        "## Variables in templates",
        "`lib/jobs/inside/template.bash` replaces `@NAME@`, for every setting and variable of "
        "`environment.set`, and for these variables:",
        table(("variable",), ((code(each),) for each in _VARIABLES)),
    )
