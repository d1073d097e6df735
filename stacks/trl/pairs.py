"""Pairs of source text and translation, from JSON Lines files or datasets of the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, DatasetDict, Value, get_dataset_config_names, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from problem import InputError, first_line, is_local, is_offline, not_in_the_cache

FILES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
# A split can be a slice: train[:1000].
NOTATION = re.compile(r"(?P<name>.+?)(:(?P<configuration>[\w.+-]+))?:(?P<split>\w+(\[[^\]]*\])?)")
HINT = "write FILE.jsonl, FILE.jsonl:SPLIT, NAME:SPLIT or NAME:CONFIGURATION:SPLIT"


class Source(NamedTuple):
    """A dataset: a file, a directory or a name on the hub.

    Parameters
    ----------
    configuration : str or None
        One of the configurations of a dataset on the hub, such as a pair of languages.
    split : str
        A split, or a slice of one in the notation of `datasets`.
    """

    name: str
    configuration: str | None
    split: str


def parse_source(text: str) -> Source:
    """Separate a dataset's name, configuration and split.

    Parameters
    ----------
    text : str
        ``FILE.jsonl[:SPLIT]`` or ``NAME[:CONFIGURATION]:SPLIT``.

    Raises
    ------
    InputError
        If a split is missing, or a file has a configuration.
    """
    if text.endswith(FILES):
        return Source(text, None, "train")
    found = NOTATION.fullmatch(text)
    if not found:
        raise InputError(f"not a dataset with a split: {text}", HINT)
    if found["configuration"] and found["name"].endswith(FILES):
        raise InputError(f"{text}: a file has no configuration", HINT)
    return Source(found["name"], found["configuration"], found["split"])


def read_pairs(text: str, source_field: str, target_field: str) -> Dataset:
    """Read pairs of source text and translation.

    Parameters
    ----------
    text : str
        The dataset, as for `parse_source`.
    source_field, target_field : str
        Fields with the text and its translation; dots separate the names of nested fields.

    Returns
    -------
    datasets.Dataset
        With the columns ``source`` and ``target``, without pairs of which one side is empty.

    Raises
    ------
    InputError
        If the dataset, its split or a field does not exist, or if it contains no pairs.
    """
    dataset = load(parse_source(text)).flatten()
    for field in (source_field, target_field):
        if field not in dataset.column_names:
            fields = ", ".join(dataset.column_names)
            raise InputError(f"{text} has no field {field}", f"its fields are: {fields}")
        feature = dataset.features[field]
        if not isinstance(feature, Value) or feature.dtype not in ("string", "large_string"):
            raise InputError(f"the field {field} of {text} is not text", "name a field with text")
    pairs = dataset.map(
        lambda row: {"source": row[source_field], "target": row[target_field]},
        remove_columns=dataset.column_names,
    ).filter(lambda pair: bool(pair["source"] and pair["target"]))
    if not len(pairs):
        raise InputError(
            f"{text} has no pairs of texts in {source_field} and {target_field}",
            "name another split, or other fields",
        )
    return pairs


def load(source: Source) -> Dataset:
    """Read a dataset; `InputError` if it, its configuration or its split does not exist."""
    arguments = _load_arguments(source)
    try:
        splits: DatasetDict = load_dataset(**arguments)
        name = source.split.partition("[")[0]
        if name not in splits:
            names = ", ".join(splits)
            raise InputError(f"{source.name} has no split {name}", f"use one of: {names}")
        return load_dataset(**arguments, split=source.split)
    except DatasetGenerationError as error:
        reason = first_line(error.__cause__ or error)
        raise InputError(
            f"cannot read {source.name}: {reason}", "write one JSON object per line"
        ) from error
    except DatasetNotFoundError as error:
        hint = "check the name; for a gated dataset, run: export HF_TOKEN=..."
        raise InputError(first_line(error), hint) from error
    except (OSError, ValueError) as error:
        hint = HINT
        if "Config" in first_line(error):  # missing or unknown
            names = ", ".join(get_dataset_config_names(arguments["path"]))
            hint = f"write NAME:CONFIGURATION:SPLIT with one of the configurations {names}"
        raise InputError(f"cannot read {source.name}: {first_line(error)}", hint) from error


def _load_arguments(source: Source) -> dict[str, Any]:
    """Return the arguments for `load_dataset`."""
    path = Path(source.name).expanduser()
    if source.name.endswith(FILES):
        if not path.is_file():
            raise InputError(f"file not found: {source.name}", "name a JSON Lines file")
        if not path.stat().st_size:
            raise InputError(f"the file {source.name} is empty", "name a JSON Lines file")
        return {"path": "json", "data_files": str(path)}
    if is_local(source.name):
        if not path.is_dir():
            raise InputError(f"directory not found: {source.name}", HINT)
        return {"path": str(path), "name": source.configuration}
    name = source.name
    try:
        if is_offline():  # load_dataset does not find by name what set_up.py downloaded
            name = snapshot_download(name, repo_type="dataset")
    except LocalEntryNotFoundError as error:
        raise not_in_the_cache("dataset", source.name) from error
    except HFValidationError as error:
        raise InputError(f"neither a file nor a name on the hub: {source.name}", HINT) from error
    return {"path": name, "name": source.configuration}
