"""Datasets in Megatron's format, which `preprocess_data.py` writes.

`PREFIX.bin` contains the token IDs of all documents in a row, `PREFIX.idx` their lengths, and
`PREFIX.record.json` the size of the vocabulary. megatron-core's IndexedDataset opens the same
files, but takes several seconds to import, on every rank.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from training_run import fail, unfinished

HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of the IDs, sequences, documents + 1
TYPES = {4: np.int32, 8: np.uint16}
PARTS, PART = 64, 4096  # of a .bin, which can be terabytes: their number, and bytes of each
MAKE_DATA = (
    "correct --data; or make the default data: python3 container_run.py python preprocess_data.py, "
    "or in a job: preprocess_data_*.sbatch of your site"
)


def open_tokens(prefix: Path, validation_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Map a dataset into memory: the training tokens, and the held-out tokens.

    The last documents are held out, as with Megatron's `--split`.

    Parameters
    ----------
    prefix : Path
        The .bin and the .idx file, without the suffix.
    validation_fraction : float
        Share of the documents to hold out; above 0 it is at least one document.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, data):
        if not path.is_file():
            fail(f"training data not found: {path}", MAKE_DATA)
    try:
        with index.open("rb") as file:
            magic, version, type_code, sequences, bounds = HEADER.unpack(file.read(HEADER.size))
            lengths = np.fromfile(file, np.int32, sequences)
            # The first sequence of each document, and the number of sequences; skips the offset of
            # each sequence in the .bin.
            documents = np.fromfile(file, np.int64, bounds, offset=8 * sequences)
        tokens = np.memmap(data, TYPES[type_code], mode="r")
        is_complete = (magic, version) == (b"MMIDIDX\0\0", 1) and lengths.sum() == tokens.size
        held_out = math.ceil(validation_fraction * (bounds - 1))
        first_held_out = lengths[: documents[bounds - 1 - held_out]].sum()
    except (struct.error, KeyError, ValueError, IndexError):
        is_complete = False
    if not is_complete:
        fail(f"{index} and .bin are not a complete dataset in Megatron's format", MAKE_DATA)
    return tokens[:first_held_out], tokens[first_held_out:]


def recorded(prefix: Path, part: str, name: str) -> Any:
    """Return a value of a dataset's record; None without one, as other programs write none."""
    try:
        return json.loads(Path(f"{prefix}.record.json").read_text("utf-8"))[part][name]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def checksum_of(prefix: Path) -> str:
    """Return what tells a dataset from another one: of the whole .idx, and of parts of the .bin."""
    checksum = hashlib.sha256()
    with Path(f"{prefix}.idx").open("rb") as file:
        while block := file.read(1 << 20):
            checksum.update(block)
    data = np.memmap(f"{prefix}.bin", np.uint8, mode="r")
    for begin in range(0, data.size, max(PART, data.size // PARTS)):
        checksum.update(data[begin : begin + PART])
    return checksum.hexdigest()


def record_files(prefix: Path) -> None:
    """Name the files of a dataset in the run directory of a job, for `submit.py card`."""
    if job := os.environ.get("RUN_DIR"):
        names = [os.path.abspath(f"{prefix}{suffix}") for suffix in (".bin", ".idx")]
        file = Path(job, "data.json")
        partial = unfinished(file)
        with suppress(OSError):
            partial.touch(0o644)  # whatever the umask: the card names what this file names
            partial.write_text(json.dumps(names) + "\n", "utf-8")
            partial.replace(file)


def save_whole_files() -> None:
    """Let `numpy.save` name a file when it is complete.

    Megatron caches its indices with it. A killed job would leave a part, which the next one reads.
    """
    save = np.save

    def save_whole(file: Any, *arguments: Any, **options: Any) -> None:
        if not str(file).endswith(".npy"):  # not a path, or one without the ending that NumPy adds
            save(file, *arguments, **options)
            return
        partial = unfinished(Path(file))
        with partial.open("wb") as opened:
            save(opened, *arguments, **options)
        partial.replace(file)

    np.save = save_whole
