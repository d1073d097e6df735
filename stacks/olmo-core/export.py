"""Write the newest checkpoint of a run in Hugging Face's format, with OLMo-core's converter.

    python3 container_run.py bash stacks/olmo-core/export.sh olmo-core

The directory CHECKPOINT_DIR/RUN_NAME/step400-hf then contains what transformers, lm-eval and vLLM
load: weights, configuration and tokenizer. The converter compares the logits of both models.
"""

import os
import shutil
import sys
from argparse import ArgumentParser
from contextlib import redirect_stdout
from pathlib import Path

from olmo_core.config import DType
from olmo_core.nn.hf import convert_checkpoint_to_hf, load_config
from olmo_core.train import Checkpointer
from olmo_core.utils import prepare_cli_environment

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run import fail, unfinished  # noqa: E402


def export(checkpoint: Path, directory: Path, dtype: str) -> None:
    """Write the model of a checkpoint to a directory, complete or not at all."""
    configuration = load_config(checkpoint)
    partial = unfinished(directory)
    try:
        partial.mkdir()
        convert_checkpoint_to_hf(
            checkpoint,
            partial,
            configuration["model"],
            configuration["dataset"]["tokenizer"],
            dtype=DType(dtype),
            max_sequence_length=configuration["dataset"]["sequence_length"],
        )
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main() -> None:
    """Export the newest checkpoint, unless that is done already."""
    parser = ArgumentParser(description=__doc__.split("\n\n")[0])
    scratch = Path(os.environ.get("LONGSHIP_SCRATCH_DIR", "."))
    default = Path(os.environ.get("LONGSHIP_CHECKPOINT_DIR", scratch / "checkpoints"))
    add = parser.add_argument
    add("run", type=Path, help=f"directory of the run, or its name in {default}")
    add("--dtype", default="float32", help="type of the weights (default: float32), or bfloat16")
    args = parser.parse_args()
    run = default / args.run
    try:
        newest = Path(Checkpointer.latest_checkpoint(run))
    except FileNotFoundError:
        fail(f"no checkpoint in {run}", f"list the runs: ls {default}")
    directory = newest.with_name(f"{newest.name}-hf")
    if directory.exists():
        print("already exported:", file=sys.stderr)
        print(directory)
        return
    try:
        with redirect_stdout(sys.stderr):
            prepare_cli_environment()
            export(newest, directory, args.dtype)
    except OSError as error:
        fail(f"cannot write {directory}: {error}", "check permissions and free space")
    except (AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        fail(f"cannot export {newest}: {reason}", "export a model of OLMo 2 or OLMo 3")
    print(directory)


if __name__ == "__main__":
    main()
