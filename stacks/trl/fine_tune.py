"""Train a language model: on translations (SFT), on preferences (DPO) or on rewards (GRPO).

One directory, --output_dir, contains everything of a run: checkpoints, the final model, its scores
and its translations. The same command resumes from the newest checkpoint. On SIGUSR1 or SIGTERM,
which Slurm sends before the time limit, a run finishes its step, writes a checkpoint and exits.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import datasets
import torch.distributed as dist
import transformers
from accelerate.utils import broadcast_object_list, is_peft_model
from arguments import RunArguments, parse_arguments
from callbacks import RecordMethod, RecordMetrics, StopAtSignal, any_has
from problem import InputError, check_model, first_line
from trainers import make_trainer, read_data
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerState

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run.directory_lock import lock_run  # noqa: E402

if TYPE_CHECKING:
    from peft import LoraConfig

STATE = "trainer_state.json"
LAST = "training_args.bin"  # the last file that the trainer writes of a model


def load_model(
    name: str, training: RunArguments
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load a model with its tokenizer.

    Raises
    ------
    InputError
        If the model does not exist or is not a language model.
    """
    check_model(name)
    # TRL's own loader does not tell a missing model from other errors. As in TRL, the weights are
    # float32 unless --model_init_kwargs changes that; autocast computes in bfloat16.
    load_options = {"dtype": "float32", **(training.model_init_kwargs or {})}
    load_options.setdefault("trust_remote_code", training.trust_remote_code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name,
            revision=load_options.get("revision", "main"),
            trust_remote_code=load_options["trust_remote_code"],
        )
        model = AutoModelForCausalLM.from_pretrained(name, **load_options)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot load the model {name}: {first_line(error)}",
            "give a complete language model; for a gated model, run: export HF_TOKEN=...",
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def newest_checkpoint(directory: Path) -> tuple[str, int]:
    """Return the newest complete checkpoint and its step, or "" and 0."""
    found = directory.glob("checkpoint-*")
    steps = [int(number) for path in found if (number := path.name.partition("-")[2]).isdigit()]
    for step in sorted(steps, reverse=True):
        path = directory / f"checkpoint-{step}"
        try:  # the file that a trainer writes last
            return str(path), TrainerState.load_from_json(str(path / STATE)).global_step
        except (OSError, ValueError):
            print(f"warning: skipping an incomplete checkpoint: {path}", file=sys.stderr)
    return "", 0


def find_checkpoint(training: RunArguments) -> tuple[str, int]:
    """Return the checkpoint to resume from and its step, or "" and 0 to start from the model.

    The first rank decides, because nodes can see different states of a parallel file system.
    """
    if training.resume_from_checkpoint:
        path = Path(training.resume_from_checkpoint)
        if not (path / STATE).is_file():
            message = f"--resume_from_checkpoint: not a checkpoint: {path}"
            raise InputError(message, f"leave it out to use the newest in {training.output_dir}")
        return str(path), TrainerState.load_from_json(str(path / STATE)).global_step
    found: list[tuple[str, int]] = [("", 0)]
    if training.process_index == 0:
        found = [newest_checkpoint(Path(training.output_dir))]
    if training.world_size > 1:
        broadcast_object_list(found)
    return found[0]


def check_checkpoint(checkpoint: str, method: str, peft_config: LoraConfig | None) -> None:
    """Refuse a checkpoint of another method, or with other adapters than those of this run."""
    saved = RecordMethod.read(TrainerState.load_from_json(str(Path(checkpoint) / STATE)))
    if saved != method:
        message = f"{checkpoint} was written by the method {saved}, but this run has {method}"
        raise InputError(message, "give another --run_name; --model can be the model of that run")
    file = Path(checkpoint) / "adapter_config.json"
    saved = json.loads(file.read_text(encoding="utf-8"))["r"] if file.is_file() else None
    given = peft_config.r if peft_config else None
    if saved != given:
        saved, given = (f"LoRA of rank {each}" if each else "no LoRA" for each in (saved, given))
        message = f"{checkpoint} was written with {saved}, but this run has {given}"
        raise InputError(message, "give the same options, or another --run_name")


def fine_tune(stop: threading.Event) -> None:
    """Train to the last step, from the newest checkpoint if one exists; then evaluate.

    Parameters
    ----------
    stop : threading.Event
        Set by a signal that asks the process to end.
    """
    options, training, peft_config = parse_arguments(__doc__)
    if training.disable_tqdm:
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
    is_first = training.process_index == 0
    if is_first:
        lock_run(Path(training.output_dir))
    checkpoint, step = find_checkpoint(training)
    # The trainer would take one more step.
    is_trained = 0 < training.max_steps <= step
    if checkpoint:
        check_checkpoint(checkpoint, options.method, peft_config)
    is_whole = is_trained and not peft_config
    model, tokenizer = load_model(checkpoint if is_whole else options.model, training)
    model.config.name_or_path = options.model  # where TRL loads the reference model
    data = read_data(options, training, tokenizer)
    has_evaluation = data[1] is not None
    if (training.do_eval or training.eval_on_start) and not has_evaluation:
        message = "cannot evaluate without a dataset"
        raise InputError(message, "give --eval_dataset, or leave out the evaluation's options")
    # The other methods' FLOPs are not those of a pass over each token.
    is_counted = options.method == "sft" and not peft_config
    weights = model.num_parameters(exclude_embeddings=True) if is_counted else 0
    record = RecordMetrics(Path(training.output_dir), weights)
    callbacks = [StopAtSignal(stop), RecordMethod(options.method), record]
    more = {"peft_config": peft_config, "callbacks": callbacks}
    try:
        trainer = make_trainer(options, model, tokenizer, training, data, stop, **more)
    except ValueError as error:  # incompatible options, or an unknown module of the model
        raise InputError(first_line(error), "see the options: fine_tune.py --help") from error
    if not is_first:
        trainer.remove_callback(PrinterCallback)  # it would print on every node
    else:
        place = f"{training.world_size} x {training.device.type}"
        print(f"training from {checkpoint or 'the beginning'} on {place}", flush=True)
    if is_trained and peft_config:
        trainer.model.load_adapter(checkpoint, "default")
    if not is_trained:
        step = trainer.train(resume_from_checkpoint=checkpoint or None).global_step
    is_trained = is_trained or step >= trainer.state.max_steps
    if is_trained:
        if is_first:
            Path(training.output_dir, LAST).unlink(missing_ok=True)
        trainer.save_model()
    if is_trained and has_evaluation and not any_has(stop, training):
        trainer.save_metrics("eval", trainer.evaluate())
    if is_first:
        summarize(trainer, step, is_trained)
        lock_run(Path(training.output_dir)).release()  # `end` leaves no time for it


def summarize(trainer: transformers.Trainer, step: int, is_trained: bool) -> None:
    """Print how the run ended and where its results are."""
    training = trainer.args
    if is_trained:
        product = "adapters" if is_peft_model(trainer.model) else "model"
        print(f"finished after step {step}\n{product}  {training.output_dir}")
    else:
        print(f"stopped by a signal after step {step}")
        print(f"run the same command to resume from {training.output_dir}/checkpoint-{step}")
    if "wandb" in training.report_to:
        end_wandb()


def end_wandb() -> None:
    """Finish writing the run, and print how to upload it if it was recorded offline."""
    import wandb

    run = wandb.run
    if run is None:
        return
    directory = Path(run.dir).parent
    wandb.finish()
    if run.offline:
        print("W&B: to upload the run, with network access and WANDB_API_KEY set, run:")
        print(f"python3 container_run.py --online wandb sync {shlex.quote(str(directory))}")


def end(status: int) -> NoReturn:
    """Leave the process group and exit."""
    if not dist.is_initialized():
        sys.exit(status)
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's shutdown would race with gloo's threads, which a data-parallel module keeps
    # alive: one that frees a tensor then aborts the process.
    os._exit(status)


def main() -> None:
    """Train; report errors that the user can fix in two lines, once per node."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: stop.set())
    try:
        fine_tune(stop)
    except InputError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        end(1)
    end(0)


if __name__ == "__main__":
    main()
