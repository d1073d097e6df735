"""What the documentation says: its commands are taken, its links lead somewhere."""

import filecmp
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs/reference"


def test_reference_is_what_the_code_says(run, tmp_path):
    """After a change that is meant: python3 docs/write_reference.py; read the diff."""
    written = tmp_path / "written"
    run([sys.executable, ROOT / "docs/write_reference.py", written])
    names = sorted(path.name for path in written.iterdir())
    assert names == sorted(path.name for path in REFERENCE.iterdir())
    _, different, missing = filecmp.cmpfiles(written, REFERENCE, names, shallow=False)
    assert (different, missing) == ([], [])
