"""Write the newest checkpoint of a run in Hugging Face's format, with Megatron-Bridge's converter.

    python3 container_run.py bash stacks/megatron-bridge/export.sh megatron-bridge

The directory CHECKPOINT_DIR/RUN_NAME/step-0000400-hf then contains what transformers, lm-eval and
vLLM load: weights, configuration and tokenizer. The conversion runs in one process on the CPU.
"""

import shutil
import sys
from argparse import ArgumentParser
from contextlib import redirect_stdout
from pathlib import Path

with redirect_stdout(sys.stderr):  # for the log
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.utils.checkpoint_utils import read_run_config
    from transformers import AutoConfig

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run import fail  # noqa: E402
from training_run.export import export, newest_of_megatron, read_run  # noqa: E402


def bridge_like(like: str, checkpoint: Path) -> AutoBridge:
    """Return what converts a checkpoint to a model of the same architecture.

    Raises
    ------
    ValueError
        If that model cannot be read, or has no converter.
    """
    try:
        bridge = AutoBridge.from_auto_config(str(checkpoint), like)
        # Megatron only knows the length of the sequences that it was trained with
        length = getattr(AutoConfig.from_pretrained(like), "max_position_embeddings", 0)
    except OSError as error:
        raise ValueError(str(error)) from error
    if length > getattr(bridge.hf_pretrained, "max_position_embeddings", length):
        bridge.hf_pretrained.max_position_embeddings = length
    return bridge


def write(checkpoint: Path, like: str, directory: Path) -> None:
    """Write the model of a checkpoint to an empty directory."""
    with redirect_stdout(sys.stderr):
        bridge = bridge_like(like, checkpoint)
        bridge.export_ckpt(checkpoint, directory, show_progress=False, strict=True)
    # that of the training, which need not be that of the model it is like
    for file in (checkpoint / "tokenizer").glob("*.json"):
        shutil.copy(file, directory)


def main() -> None:
    """Export the newest checkpoint, unless that is done already."""
    parser = ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--like", help="model of the same architecture (default: training.model, or the recipe's)")
    run, args = read_run(parser)
    newest, directory = newest_of_megatron(run)
    if read_run_config(str(newest / "run_config.yaml")).get("peft"):
        hint = "merge them with examples/peft/merge_lora.py of Megatron-Bridge"
        fail(f"{newest} contains adapters, not a model", hint)
    like = args.like or AutoBridge.get_hf_model_id_from_checkpoint(newest)
    hint = "name a model of the same architecture in Hugging Face's format: --like MODEL"
    if not like:
        fail(f"the recipe of {newest} has no model in Hugging Face's format", hint)
    try:
        export(directory, lambda partial: write(newest, like, partial), newest)
    except (KeyError, NotImplementedError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        fail(f"cannot export {newest} like {like}: {reason}", hint)


if __name__ == "__main__":
    main()
