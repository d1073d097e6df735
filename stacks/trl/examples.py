"""Examples for DPO and GRPO: prompts, and for DPO a better and a worse answer to each."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, Value
from datasets.features.features import FeatureType
from pairs import Source, load, parse_source
from problem import InputError

# The keys that each row needs; reward functions get the other ones too.
KEYS = {"dpo": ("prompt", "chosen", "rejected"), "grpo": ("prompt",)}


def check_method(method: str) -> None:
    """Report a training method that does not exist."""
    if method not in ("sft", *KEYS):
        raise InputError(f"unknown method: {method}", f"use one of: {', '.join(('sft', *KEYS))}")


def read_examples(text: str, method: str) -> Dataset:
    """Read examples, whose values are texts or lists of messages.

    Parameters
    ----------
    text : str
        The dataset, as for `pairs.parse_source`.
    method : str
        ``dpo`` or ``grpo``.

    Raises
    ------
    InputError
        If the dataset does not exist, a row has no value for a key, or a value is neither.
    """
    source, keys = parse_source(text), KEYS[method]
    rows = load(source)
    if not len(rows):
        raise InputError(f"{text} is empty", "name another dataset, or another split")
    for key in keys:
        row = _first_without(rows, key)
        if row is not None:
            named = ", ".join(keys)
            raise InputError(
                f'{text}, {_place(source, row)}: no "{key}"', f"{method} needs {named}"
            )
    kinds = {_kind(rows.features[key]) for key in keys}
    if len(kinds) > 1 or None in kinds:
        raise InputError(
            f"{text}: {', '.join(keys)} must each be text, or each be messages",
            'write each as text, or each as a list of {"role": ..., "content": ...}',
        )
    return rows


def has_messages(examples: Dataset) -> bool:
    """Tell whether the prompts are messages, for which a model needs a chat template."""
    return _kind(examples.features["prompt"]) == "messages"


def _first_without(rows: Dataset, key: str) -> int | None:
    if key not in rows.column_names:
        return 0
    return next((number for number, value in enumerate(rows[key]) if not value), None)


def _place(source: Source, row: int) -> str:
    """Return the line of a row in a file that is read as a whole; blank lines are no rows."""
    if not source.name.endswith(".jsonl") or "[" in source.split:
        return f"row {row + 1}"
    with Path(source.name).expanduser().open(encoding="utf-8") as file:
        return f"line {[number for number, line in enumerate(file, 1) if line.strip()][row]}"


def _kind(feature: FeatureType) -> str | None:
    if isinstance(feature, Value):
        return "text" if feature.dtype in ("string", "large_string") else None
    message = getattr(feature, "feature", None)
    return "messages" if isinstance(message, dict) and {"role", "content"} <= {*message} else None
