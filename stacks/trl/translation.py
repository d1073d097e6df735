"""TRL's trainer for supervised fine-tuning, extended: it also translates and scores."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from sacrebleu.metrics import BLEU, CHRF
from trl import SFTTrainer
from trl.models import unwrap_model_for_generation

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run import unfinished  # noqa: E402

# Templates of models that reason, such as Qwen3's, put an empty block of reasoning before an answer
# without one: into the prompt, so that it is neither translated nor scored.
NO_REASONING = {"enable_thinking": False}


def with_prompts(pairs: Dataset, template: str, is_chat: bool) -> Dataset:
    """Add prompt and completion, so that only the translation contributes to the loss.

    Parameters
    ----------
    pairs : datasets.Dataset
        With the columns ``source`` and ``target``.
    template : str
        The prompt, with ``{source}`` in place of the source text.
    is_chat : bool
        Whether the prompt is a user's message, and the translation the assistant's answer.
    """

    def add(pair: dict[str, str]) -> dict[str, Any]:
        prompt, completion = template.replace("{source}", pair["source"]), pair["target"]
        if not is_chat:
            return {"prompt": prompt, "completion": completion}
        return {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": completion}],
            "chat_template_kwargs": NO_REASONING,
        }

    return pairs.map(add)


class TranslationTrainer(SFTTrainer):
    """TRL's trainer with an evaluation that also translates: BLEU and chrF by sacrebleu.

    Parameters
    ----------
    eval_pairs : datasets.Dataset or None
        Pairs to translate, from `with_prompts`.
    generation : dict
        Options of the model's ``generate``.
    bleu_tokenizer : str
        Tokenizer of sacrebleu, such as ``13a``.
    stop : threading.Event
        Set by a signal that asks the process to end.
    """

    def __init__(
        self,
        *arguments: Any,
        eval_pairs: Dataset | None,
        generation: dict[str, Any],
        bleu_tokenizer: str,
        stop: threading.Event,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, eval_dataset=eval_pairs, **more)
        self.eval_pairs = eval_pairs
        self.generation = generation
        self.bleu = BLEU(tokenize=bleu_tokenizer)
        self.chrf = CHRF()
        self.stop = stop

    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """Return the metrics of SFTTrainer, ``eval_bleu`` and ``eval_chrf``."""
        metrics = super().evaluate(*arguments, **more)
        translations = self.translate()
        if translations is None:
            return metrics
        references = [self.eval_pairs["target"]]
        bleu = self.bleu.corpus_score(translations, references)
        chrf = self.chrf.corpus_score(translations, references)
        scores = {"eval_bleu": bleu.score, "eval_chrf": chrf.score}
        self.log(scores)
        if self.is_world_process_zero():
            self.write(translations)
            print(f"{bleu.format()} ({self.bleu.get_signature()})")
            print(f"{chrf.format()} ({self.chrf.get_signature()})", flush=True)
        return {**metrics, **scores}

    def translate(self) -> list[str] | None:
        """Translate all source texts, each rank its share; None if a signal interrupts it."""
        pairs, rank, world_size = self.eval_pairs, self.args.process_index, self.args.world_size
        mine = list(range(rank, len(pairs), world_size))
        batch_size = self.args.per_device_eval_batch_size
        done = []
        with (
            torch.no_grad(),
            self.accelerator.autocast(),
            unwrap_model_for_generation(self.model_wrapped, self.accelerator) as model,
        ):
            model.eval()
            for first in range(0, len(mine), batch_size):
                if self.stop.is_set():
                    break
                batch = mine[first : first + batch_size]
                done += zip(batch, self.generate(model, pairs[batch]["prompt"]), strict=True)
        everything = sorted(gather_object(done))
        return [text for _, text in everything] if len(everything) == len(pairs) else None

    def generate(self, model: torch.nn.Module, prompts: list[Any]) -> list[str]:
        """Translate a batch."""
        tokenizer = self.processing_class
        is_chat = not isinstance(prompts[0], str)
        if is_chat:
            prompts = tokenizer.apply_chat_template(
                prompts, add_generation_prompt=True, tokenize=False, **NO_REASONING
            )
        inputs = tokenizer(
            prompts,
            add_special_tokens=not is_chat,  # the chat template adds them
            padding=True,
            padding_side="left",
            return_token_type_ids=False,
            return_tensors="pt",
        ).to(self.args.device)
        tokens = model.generate(**inputs, **self.generation)
        tokens = tokens[:, inputs["input_ids"].size(1) :]
        return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def write(self, translations: list[str]) -> None:
        """Write source, reference and translation of each pair, to be read by people."""
        pairs = zip(self.eval_pairs["source"], self.eval_pairs["target"], translations, strict=True)
        path = Path(self.args.output_dir) / "translations.jsonl"
        partial = unfinished(path)
        with partial.open("w", encoding="utf-8") as file:
            for source, target, translation in pairs:
                line = {"source": source, "target": target, "translation": translation}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        partial.replace(path)
