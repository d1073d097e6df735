"""files.md: what lies where on a machine, and what is kept beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lib import ROOT
from lib.paths import Paths
from writers.markdown import code, first_line, listed, page, plain, table

_INTRO = """\
Where things lie on a machine. `<project_dir>`, `<scratch_dir>` and `<checkpoint_dir>` are
[`[paths]`](configuration.md#paths); `<arch>` is `amd64` or `arm64`. In the repository itself
there are `.venv/` and `.cache/`, the locks in `requirements/`, and the patches that
`save-patches` writes.

A file under its final name is complete: what is being written ends in `.partial`. A folder that
ends in `.lock` says who is working there; one whose owner is gone is taken over."""

# Paths of the code -> paths of the page.
PLACES = Paths(
    root=Path("<repository>"),
    project_dir=Path("<project_dir>"),
    scratch_dir=Path("<scratch_dir>"),
    checkpoint_dir=Path("<checkpoint_dir>"),
    stack="<stack>",
    arch="<arch>",
)
_ROOTS = [
    (str(PLACES.scratch_dir / "data"), "Data that `preprocess_data.py` has made."),
    (str(PLACES.checkpoint_dir), "A folder for each training: checkpoints, metrics, loss curve."),
]


def files_page() -> str:
    """Return the page."""
    return page(
        "Files on disk",
        _INTRO,
        "## Folders",
        table(("path", "meaning"), _folders()),
        "## Images",
        "In `<scratch_dir>/containers/`:",
        _listed("shell/versions.bash"),
        "Beside each image and each archive lies its record, `<file>.json`:",
        _listed("shell/image.bash"),
        "## Overlays",
        "In `<scratch_dir>/overlays/`:",
        _listed("shell/overlay_build.bash"),
        "## Runs",
        "In `<scratch_dir>/runs/<job>-<name>/`; its log lies beside it, and "
        "`python3 submit.py rerun RUN` starts the same again:",
        _listed("shell/run.bash"),
        "## Repositories",
        "In the git repository of each folder of `<project_dir>/repos/`; "
        "`git for-each-ref refs/longship` lists them:",
        _listed("shell/update.bash"),
    )


def _folders() -> Iterable[tuple[str, str]]:
    found = [
        (str(getattr(PLACES, name)), f"{first_line(declared)}.")
        for name, declared in vars(Paths).items()
        if isinstance(declared, property) and name != "roots"
    ]
    return [(code(path), about) for path, about in sorted([*found, *_ROOTS])]


def _listed(script: str) -> str:
    rows = listed(Path(ROOT, "lib", script))
    return table(("name", "meaning"), ((code(name), plain(about)) for name, about in rows))
