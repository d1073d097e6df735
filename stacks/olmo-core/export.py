"""Write the newest checkpoint of a run in Hugging Face's format, with OLMo-core's converter.

    python3 container_run.py bash stacks/olmo-core/export.sh olmo-core

The directory CHECKPOINT_DIR/RUN_NAME/step400-hf then contains what transformers, lm-eval and vLLM
load: weights, configuration and tokenizer. The converter compares the logits of both models.
"""

import sys
from argparse import ArgumentParser
from contextlib import redirect_stdout
from pathlib import Path

from olmo_core.config import DType
from olmo_core.nn.hf import convert_checkpoint_to_hf, load_config
from olmo_core.train import Checkpointer
from olmo_core.utils import prepare_cli_environment

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run import fail  # noqa: E402
from training_run.export import export, fail_without_checkpoint, read_run  # noqa: E402


def write(checkpoint: Path, directory: Path, dtype: str) -> None:
    """Write the model of a checkpoint to an empty directory."""
    with redirect_stdout(sys.stderr):
        prepare_cli_environment()
        configuration = load_config(checkpoint)
        convert_checkpoint_to_hf(
            checkpoint,
            directory,
            configuration["model"],
            configuration["dataset"]["tokenizer"],
            dtype=DType(dtype),
            max_sequence_length=configuration["dataset"]["sequence_length"],
        )


def main() -> None:
    """Export the newest checkpoint, unless that is done already."""
    parser = ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--dtype", default="float32", help="type of the weights (default: float32), or bfloat16")
    run, args = read_run(parser)
    try:
        newest = Path(Checkpointer.latest_checkpoint(run))
    except FileNotFoundError:
        fail_without_checkpoint(run)
    directory = newest.with_name(f"{newest.name}-hf")
    try:
        export(directory, lambda partial: write(newest, partial, args.dtype), newest)
    except (AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        fail(f"cannot export {newest}: {reason}", "export a model of OLMo 2 or OLMo 3")


if __name__ == "__main__":
    main()
