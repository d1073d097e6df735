"""Print the directory of the newest model of a run, with LoRA adapters merged into it.

    python3 container_run.py bash stacks/trl/export.sh first

The model is the final one, or that of the newest checkpoint if it was written later. Both have
Hugging Face's format already. A merged model is RUN/merged-model or RUN/merged-checkpoint-400.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from fine_tune import LAST, newest_checkpoint
from problem import InputError, first_line

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.export import export, read_run  # noqa: E402

ADAPTERS = "adapter_config.json"


def newest_model(run: Path) -> Path:
    """Return the directory of the complete final model or newest checkpoint, whichever is newer.

    Raises
    ------
    InputError
        If the run has none.
    """
    checkpoint = Path(newest_checkpoint(run)[0] or run)
    found = [each / LAST for each in (run, checkpoint) if (each / LAST).is_file()]
    if not found:
        raise InputError(f"no model and no complete checkpoint in {run}", f"ls {run.parent}")
    return max(found, key=lambda each: each.stat().st_mtime).parent


def merge(adapters: Path, directory: Path) -> None:
    """Write the model that LoRA adapters and the model under them are to an empty directory."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    try:
        model = AutoPeftModelForCausalLM.from_pretrained(adapters).merge_and_unload()
        model.save_pretrained(directory)
        AutoTokenizer.from_pretrained(adapters).save_pretrained(directory)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot merge the adapters in {adapters}: {first_line(error)}",
            "the model that was trained must be where it was; check permissions and free space",
        ) from error


def main() -> None:
    """Print the directory of the model, after merging adapters unless that is done already."""
    run, _ = read_run(ArgumentParser(description=__doc__.split("\n\n")[0]))
    try:
        model = newest_model(run)
        adapters = model / ADAPTERS
        if not adapters.is_file():
            print(model)
            return
        merged = run / ("merged-model" if model == run else f"merged-{model.name}")
        export(merged, lambda partial: merge(model, partial), adapters)
    except InputError as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")


if __name__ == "__main__":
    main()
