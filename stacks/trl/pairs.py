"""Pairs of texts, source and translation, from JSON lines or from datasets of the hub."""

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
# a split can be a part of one: train[:1000]
NOTATION = re.compile(r"(?P<name>.+?)(:(?P<configuration>[\w.+-]+))?:(?P<split>\w+(\[[^\]]*\])?)")
HINT = "it is FILE.jsonl, FILE.jsonl:SPLIT, NAME:SPLIT or NAME:CONFIGURATION:SPLIT"


class Source(NamedTuple):
    """Where pairs come from.

    Parameters
    ----------
    name : str
        A file, a folder, or a name on the hub.
    configuration : str or None
        Which of several that a dataset of the hub has, such as a pair of languages.
    split : str
        A split, or a part of one in the notation of `datasets`.
    """

    name: str
    configuration: str | None
    split: str


def parse_source(text: str) -> Source:
    """Take a dataset's name and split apart.

    Parameters
    ----------
    text : str
        ``FILE.jsonl[:SPLIT]`` or ``NAME[:CONFIGURATION]:SPLIT``.

    Raises
    ------
    InputError
        If there is no split where one is needed, or a configuration where none can be.
    """
    if text.endswith(FILES):
        return Source(text, None, "train")
    found = NOTATION.fullmatch(text)
    if not found:
        raise InputError(f"{text} is no dataset with a split", HINT)
    if found["configuration"] and found["name"].endswith(FILES):
        raise InputError(f"{text}: a file has no configuration", HINT)
    return Source(found["name"], found["configuration"], found["split"])


def read_pairs(text: str, source_field: str, target_field: str) -> Dataset:
    """Read pairs of texts.

    Parameters
    ----------
    text : str
        The dataset, as for `parse_source`.
    source_field, target_field : str
        Fields with the text and its translation; a dotted name leads into nested ones.

    Returns
    -------
    datasets.Dataset
        With the columns ``source`` and ``target``; pairs of which one side is empty are left out.

    Raises
    ------
    InputError
        If the dataset, its split or a field is not there, or there are no pairs in it.
    """
    dataset = _load(parse_source(text)).flatten()
    for field in (source_field, target_field):
        if field not in dataset.column_names:
            fields = ", ".join(dataset.column_names)
            raise InputError(f"{text} has no field {field}", f"its fields are: {fields}")
        feature = dataset.features[field]
        if not isinstance(feature, Value) or feature.dtype not in ("string", "large_string"):
            raise InputError(f"the field {field} of {text} is no text", "name one with text")
    pairs = dataset.map(
        lambda row: {"source": row[source_field], "target": row[target_field]},
        remove_columns=dataset.column_names,
    ).filter(lambda pair: bool(pair["source"] and pair["target"]))
    if not len(pairs):
        raise InputError(
            f"{text} has no pair of texts in {source_field} and {target_field}",
            "name another split, or other fields",
        )
    return pairs


def _load(source: Source) -> Dataset:
    words = _words_for_datasets(source)
    try:
        there: DatasetDict = load_dataset(**words)
        name = source.split.partition("[")[0]
        if name not in there:
            splits = ", ".join(there)
            raise InputError(f"{source.name} has no split {name}", f"its splits are: {splits}")
        return load_dataset(**words, split=source.split)
    except DatasetGenerationError as error:
        reason = first_line(error.__cause__ or error)
        raise InputError(
            f"{source.name} cannot be read: {reason}", "each line must be one JSON object"
        ) from error
    except DatasetNotFoundError as error:
        hint = "is the name right? for a gated one: export HF_TOKEN=..."
        raise InputError(first_line(error), hint) from error
    except (OSError, ValueError) as error:
        hint = HINT
        if "Config" in first_line(error):  # none is named, or one that is not there
            names = ", ".join(get_dataset_config_names(words["path"]))
            hint = f"NAME:CONFIGURATION:SPLIT, of which its configurations are: {names}"
        raise InputError(f"{source.name} cannot be read: {first_line(error)}", hint) from error


def _words_for_datasets(source: Source) -> dict[str, Any]:
    """Return what `load_dataset` is called with."""
    path = Path(source.name).expanduser()
    if source.name.endswith(FILES):
        if not path.is_file():
            raise InputError(f"there is no file {source.name}", "name a file of JSON lines")
        if not path.stat().st_size:
            raise InputError(f"the file {source.name} is empty", "name a file of JSON lines")
        return {"path": "json", "data_files": str(path)}
    if is_local(source.name):
        if not path.is_dir():
            raise InputError(f"there is no folder {source.name}", HINT)
        return {"path": str(path), "name": source.configuration}
    name = source.name
    try:
        if is_offline():  # what set_up.py fetched, which load_dataset does not find by its name
            name = snapshot_download(name, repo_type="dataset")
    except LocalEntryNotFoundError as error:
        raise not_in_the_cache("dataset", source.name) from error
    except HFValidationError as error:
        raise InputError(f"{source.name} is no file, and no name on the hub", HINT) from error
    return {"path": name, "name": source.configuration}
