"""files.md: where files are stored on a machine, and their records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lib import ROOT
from lib.configuration.paths import Paths
from writers.markdown import code, first_line, listed, page, plain, table

_INTRO = """\
This page shows where Longship stores files on a machine. `<project_dir>`, `<scratch_dir>`,
`<checkpoint_dir>` and `<shared_dir>` are set in [`[paths]`](configuration.md#paths); `<shared_dir>`
is `<scratch_dir>` unless it is set; `<arch>` is `amd64` or `arm64`.
The repository itself contains `.venv/` and `.cache/`, the lock files in `requirements/`, and the
patches that `save-patches` writes.

A file under its final name is complete: the name of an unfinished file ends in `.partial`, and
that of an image begins with `partial-`. A directory whose name ends in `.lock` names the owner of a
lock; a stale lock is taken over."""

# Paths of the code -> paths of the page.
PLACES = Paths(
    root=Path("<repository>"),
    project_dir=Path("<project_dir>"),
    scratch_dir=Path("<scratch_dir>"),
    checkpoint_dir=Path("<checkpoint_dir>"),
    shared_dir=Path("<shared_dir>"),
    shared_owner="",
    stack="<stack>",
    arch="<arch>",
)
_ROOTS = [
    (str(PLACES.scratch_dir / "data"), "Data that `preprocess_data.py` wrote."),
    (
        str(PLACES.checkpoint_dir),
        "One directory per training run: checkpoints, metrics, loss curve.",
    ),
]


def files_page() -> str:
    """Return the page."""
    return page(
        "Files on disk",
        _INTRO,
        "## Directories",
        table(("path", "meaning"), _folders()),
        "## Images",
        "In `<shared_dir>/containers/`:",
        _listed("lib/images/versions.bash"),
        "Each image and each archive has a record next to it, `<file>.json`:",
        _listed("lib/images/image.bash"),
        "## Overlays",
        "In `<shared_dir>/overlays/`:",
        _listed("lib/packages/overlay.bash"),
        "## Runs",
        "In `<scratch_dir>/runs/<job>-<name>/`, the run directory; the log is next to it. "
        "`python3 submit.py rerun RUN` re-runs the job:",
        _listed("lib/jobs/run.bash"),
        "In `<scratch_dir>/runs/code/`, the frozen code of all jobs; "
        "see [Frozen code](../how-to/jobs.md#frozen-code):",
        _listed("extras/frozen/frozen_code.bash"),
        "Each line of `usage/NODE.csv` has these columns; not measured: empty; of a total: 0:",
        _listed("extras/usage/sampler.py"),
        "## Repositories",
        "In the git repository of each directory of `<project_dir>/repos/`; "
        "`git for-each-ref refs/longship` lists them:",
        _listed("lib/repositories/repositories.bash"),
    )


def _folders() -> Iterable[tuple[str, str]]:
    found = [
        (str(getattr(PLACES, name)), f"{first_line(declared)}.")
        for name, declared in vars(Paths).items()
        if isinstance(declared, property) and name not in ("roots", "trees", "is_shared")
    ]
    return [(code(path), about) for path, about in sorted([*found, *_ROOTS])]


def _listed(script: str) -> str:
    rows = listed(Path(ROOT, script))
    return table(("name", "meaning"), ((code(name), plain(about)) for name, about in rows))
