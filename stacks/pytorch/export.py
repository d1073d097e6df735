"""Write the newest checkpoint of `train.py` as a model in Hugging Face's format.

    python3 container_run.py bash stacks/pytorch/export.sh gpt

The directory CHECKPOINT_DIR/gpt/step-00000400-hf, which is printed, then contains what
transformers, lm-eval and vLLM load: weights, configuration and tokenizer. The GPT of `train.py`
computes the same as transformers' LlamaForCausalLM with tied embeddings, so no code of this
repository is needed to use the model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

# Ctrl-C ends the program without a traceback, also while PyTorch is being imported.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from training_run import fail  # noqa: E402
from training_run.export import export, fail_without_checkpoint, read_run  # noqa: E402
from training_run.run_directory import is_intact  # noqa: E402


def llama_weights(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of train.py's GPT, and split the matrices that it multiplies as one."""
    found = {"model.embed_tokens.weight": model["embedding.weight"]}
    found["model.norm.weight"] = model["norm.weight"]
    renamed = {
        "attention_norm": "input_layernorm",
        "attention_out": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "mlp_out": "mlp.down_proj",
    }
    split = {
        "query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "gate_and_up": ("mlp.gate_proj", "mlp.up_proj"),
    }
    for name, weight in model.items():
        if not name.startswith("blocks."):
            continue
        _, layer, part, _ = name.split(".")
        names = split.get(part) or (renamed[part],)
        for new, rows in zip(names, weight.chunk(len(names))):
            found[f"model.layers.{layer}.{new}.weight"] = rows.contiguous()
    return found


def llama_configuration(arguments: dict[str, Any], model: dict[str, Tensor]) -> dict[str, Any]:
    """Return transformers' configuration of the model that these arguments of train.py describe."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model["embedding.weight"].shape[0],
        "hidden_size": arguments["width"],
        "intermediate_size": model["blocks.0.mlp_out.weight"].shape[1],
        "num_hidden_layers": arguments["layers"],
        "num_attention_heads": arguments["heads"],
        "num_key_value_heads": arguments["heads"],
        "max_position_embeddings": arguments["sequence_length"],
        "rms_norm_eps": torch.finfo(torch.float32).eps,  # RMSNorm's default
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def find_tokenizer(arguments: dict[str, Any], given: Path | None) -> tuple[Path, str]:
    """Return the tokenizer of a dataset, and its end-of-text token; fail if it is another.

    Parameters
    ----------
    arguments : dict
        Those of train.py: the dataset can have been made again since, with another tokenizer.
    given : Path, optional
        Tokenizer to use instead of the one next to the dataset.
    """
    data, hint = Path(arguments["data"]), "give it with --tokenizer FILE"
    path = given or data.with_name(data.name.replace("_text_document", "_tokenizer.json"))
    try:
        made_from = json.loads(Path(f"{data}.record.json").read_text("utf-8"))["made_from"]
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, LookupError) as error:
        fail(f"the tokenizer of {data} was not found: {error}", hint)
    if checksum != (arguments.get("tokenizer_sha256") or made_from["tokenizer_sha256"]):
        fail(f"{path} is not the tokenizer that made {data}", hint)
    return path, made_from["end_of_text"]


def write(state: dict[str, Any], tokenizer: Path, end_of_text: str, directory: Path) -> None:
    """Write the model of a checkpoint to an empty directory."""
    model, arguments = state["model"], state["arguments"]
    save_file(llama_weights(model), directory / "model.safetensors", {"format": "pt"})
    shutil.copyfile(tokenizer, directory / "tokenizer.json")
    token = Tokenizer.from_file(str(tokenizer)).token_to_id(end_of_text)
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end_of_text}
    configuration = {**llama_configuration(arguments, model), "eos_token_id": token}
    for file, values in (("config", configuration), ("tokenizer_config", names)):
        (directory / f"{file}.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def main() -> None:
    """Export the newest checkpoint, unless that is done already."""
    parser = ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--tokenizer", type=Path, help="tokenizer.json (default: the one that made the dataset)")
    run, args = read_run(parser)
    checkpoints = sorted(run.glob("step-*.pt"), reverse=True)
    newest = next(filter(is_intact, checkpoints), None)
    if newest is None:
        fail_without_checkpoint(run)
    for damaged in checkpoints[: checkpoints.index(newest)]:
        print(f"warning: skipping a damaged checkpoint: {damaged}", file=sys.stderr)

    def convert(directory: Path) -> None:
        state = torch.load(newest, map_location="cpu", weights_only=True)
        tokenizer, end_of_text = find_tokenizer(state["arguments"], args.tokenizer)
        write(state, tokenizer, end_of_text, directory)

    export(newest.with_name(f"{newest.stem}-hf"), convert, newest)


if __name__ == "__main__":
    main()
