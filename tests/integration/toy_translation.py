"""Make a tiny language model with its tokenizer, and data of number words to train it with.

Runs inside the environment of the stack trl. Usage: python toy_translation.py FOLDER
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

WORDS = {"one": "en", "two": "to", "three": "tre", "four": "fire", "five": "fem"}
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


def main(folder):
    """Write FOLDER/model, preferences.jsonl, and pairs.jsonl, whose fields are nested."""
    pairs = [
        # four words, as BLEU counts sequences of up to four
        {"en": f"{a} {b} {b} {a}", "no": f"{WORDS[a]} {WORDS[b]} {WORDS[b]} {WORDS[a]}"}
        for a in WORDS
        for b in WORDS
    ]
    lines = (json.dumps({"translation": pair}) + "\n" for pair in pairs)
    (folder / "pairs.jsonl").write_text("".join(lines))
    preferences = [
        {"prompt": f"{a} =", "chosen": f" {WORDS[a]}", "rejected": f" {b}", "letter": "e"}
        for a in WORDS
        for b in WORDS
    ]
    lines = (json.dumps(each) + "\n" for each in preferences)
    (folder / "preferences.jsonl").write_text("".join(lines))

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((" ".join(pair.values()) for pair in pairs), trainer)
    own = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    own.save_pretrained(folder / "model")

    set_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    ids = {
        name.replace("_token", "_token_id"): own.convert_tokens_to_ids(SPECIAL[name])
        for name in SPECIAL
    }
    config = LlamaConfig(
        vocab_size=len(own), num_attention_heads=2, max_position_embeddings=128, **shape, **ids
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
