"""Fine-tune a language model on pairs of texts, and score how it translates.

All of a run is in one folder, --output_dir: checkpoints, the model at the end, its scores and its
translations. The same command again goes on from the newest checkpoint. On SIGUSR1 or SIGTERM,
which Slurm sends before the time limit, a run finishes its step, writes a checkpoint and ends.
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
from arguments import TrainingArguments, TranslationArguments, parse_arguments
from pairs import read_pairs
from problem import InputError, check_model, first_line, is_local
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerState
from translation import StopAtSignal, TranslationTrainer, with_prompts

if TYPE_CHECKING:
    from peft import LoraConfig

STATE = "trainer_state.json"


def load_model(
    name: str, training: TrainingArguments
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load a model with its tokenizer.

    Raises
    ------
    InputError
        If it is not there, or no language model.
    """
    check_model(name)
    path = str(Path(name).expanduser()) if is_local(name) else name
    # TRL's own way to load a model cannot tell that it is missing from other errors. As there, the
    # weights are float32 unless --model_init_kwargs says otherwise; autocast computes in bfloat16.
    words = {"dtype": "float32", **(training.model_init_kwargs or {})}
    training.model_init_kwargs = None
    words.setdefault("trust_remote_code", training.trust_remote_code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path,
            revision=words.get("revision", "main"),
            trust_remote_code=words["trust_remote_code"],
        )
        model = AutoModelForCausalLM.from_pretrained(path, **words)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the model {name} cannot be loaded: {first_line(error)}",
            "is it whole, and a language model? a gated one of the hub needs: export HF_TOKEN=...",
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def newest_checkpoint(folder: Path) -> tuple[str, int]:
    """Return the newest whole checkpoint and its step; "" and 0 where there is none."""
    found = folder.glob("checkpoint-*")
    steps = [int(number) for path in found if (number := path.name.partition("-")[2]).isdigit()]
    for step in sorted(steps, reverse=True):
        path = folder / f"checkpoint-{step}"
        try:  # what a trainer writes last
            return str(path), TrainerState.load_from_json(str(path / STATE)).global_step
        except (OSError, ValueError):
            print(f"warning: not whole, so not used: {path}", file=sys.stderr)
    return "", 0


def find_checkpoint(training: TrainingArguments) -> tuple[str, int]:
    """Return the checkpoint to go on from and its step; "" and 0 to begin with the model.

    A parallel file system can show the nodes different things for a while: the first rank decides.
    """
    if training.resume_from_checkpoint:
        asked = Path(training.resume_from_checkpoint)
        if not (asked / STATE).is_file():
            message = f"--resume_from_checkpoint: there is no checkpoint {asked}"
            raise InputError(message, f"leave it out for the newest in {training.output_dir}")
        return str(asked), TrainerState.load_from_json(str(asked / STATE)).global_step
    found: list[tuple[str, int]] = [("", 0)]
    if training.process_index == 0:
        found = [newest_checkpoint(Path(training.output_dir))]
    if training.world_size > 1:
        broadcast_object_list(found)
    return found[0]


def check_rank(checkpoint: str, peft_config: LoraConfig | None) -> None:
    """Refuse a checkpoint with other trained weights than those of this run."""
    file = Path(checkpoint) / "adapter_config.json"
    saved = json.loads(file.read_text(encoding="utf-8"))["r"] if file.is_file() else None
    wanted = peft_config.r if peft_config else None
    if saved != wanted:
        saved, wanted = (f"LoRA of rank {each}" if each else "no LoRA" for each in (saved, wanted))
        message = f"{checkpoint} was written with {saved}, and this run has {wanted}"
        raise InputError(message, "give the same options, or another --run_name")


def read_data(
    options: TranslationArguments,
    training: TrainingArguments,
    tokenizer: transformers.PreTrainedTokenizerBase,
) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """Read what is trained and what is evaluated with, the first rank before the others."""
    is_chat = bool(tokenizer.chat_template or training.chat_template_path)
    source, target = options.train_source_field, options.train_target_field
    with training.main_process_first(local=False):
        pairs = read_pairs(options.train_dataset, source, target)
        train = with_prompts(pairs, options.prompt, is_chat)
        if not options.eval_dataset:
            return train, None
        source = options.eval_source_field or source
        target = options.eval_target_field or target
        pairs = read_pairs(options.eval_dataset, source, target)
        return train, with_prompts(pairs, options.prompt, is_chat)


def fine_tune(told: threading.Event) -> None:
    """Train to the last step, from the newest checkpoint where there is one; then evaluate.

    Parameters
    ----------
    told : threading.Event
        Set when the process is to end.
    """
    options, training, peft_config = parse_arguments(__doc__)
    if training.disable_tqdm:
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
    checkpoint, step = find_checkpoint(training)
    # the trainer would take one step more
    is_trained = 0 < training.max_steps <= step
    if checkpoint:
        check_rank(checkpoint, peft_config)
    is_whole = is_trained and not peft_config
    model, tokenizer = load_model(checkpoint if is_whole else options.model, training)
    if is_trained and peft_config:
        from peft import PeftModel

        model, peft_config = PeftModel.from_pretrained(model, checkpoint), None
    train_pairs, eval_pairs = read_data(options, training, tokenizer)
    if (training.do_eval or training.eval_on_start) and eval_pairs is None:
        message = "the evaluation has no dataset"
        raise InputError(message, "give --eval_dataset, or leave out the options of the evaluation")
    try:
        trainer = TranslationTrainer(
            model,
            training,
            train_dataset=train_pairs,
            eval_pairs=eval_pairs,
            processing_class=tokenizer,
            peft_config=peft_config,
            callbacks=[StopAtSignal(told)],
            generation={
                "do_sample": False,
                "num_beams": options.num_beams,
                "max_new_tokens": options.max_new_tokens,
                "pad_token_id": tokenizer.pad_token_id,
            },
            bleu_tokenizer=options.bleu_tokenizer,
            told=told,
        )
    except ValueError as error:  # options that do not go together, or name no module of the model
        raise InputError(first_line(error), "see the options: fine_tune.py --help") from error
    is_first = training.process_index == 0
    if not is_first:
        trainer.remove_callback(PrinterCallback)  # which would print on every node
    else:
        place = f"{training.world_size} x {training.device.type}"
        print(f"from {checkpoint or 'the beginning'} on {place}", flush=True)
    if not is_trained:
        step = trainer.train(resume_from_checkpoint=checkpoint or None).global_step
    is_trained = is_trained or step >= trainer.state.max_steps
    if is_trained:
        trainer.save_model()
    if is_trained and eval_pairs is not None and not told.is_set():
        trainer.save_metrics("eval", trainer.evaluate())
    if is_first:
        summarize(trainer, step, is_trained)


def summarize(trainer: TranslationTrainer, step: int, is_trained: bool) -> None:
    """Say what came of the run."""
    training = trainer.args
    if is_trained:
        what = "adapters" if is_peft_model(trainer.model) else "model"
        print(f"finished after step {step}\n{what}  {training.output_dir}")
    else:
        print(f"stopped by a signal after step {step}")
        print(f"the same command goes on from {training.output_dir}/checkpoint-{step}")
    if "wandb" in training.report_to:
        end_wandb()


def end_wandb() -> None:
    """Write all of the run, and say how it gets to the server where it was not sent."""
    import wandb

    run = wandb.run
    if run is None:
        return
    folder = Path(run.dir).parent
    wandb.finish()
    if run.offline:
        print("W&B: where there is a network, with WANDB_API_KEY set, type:")
        print(f"python3 container_run.py --online wandb sync {shlex.quote(str(folder))}")


def end(status: int) -> NoReturn:
    """Leave the process group and end."""
    if not dist.is_initialized():
        sys.exit(status)
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end would race with gloo's threads, which a data parallel module keeps
    # alive: one that frees a tensor then aborts the process.
    os._exit(status)


def main() -> None:
    """Fine-tune; tell what the user can mend in two lines, once per node."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: told.set())
    try:
        fine_tune(told)
    except InputError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        end(1)
    end(0)


if __name__ == "__main__":
    main()
