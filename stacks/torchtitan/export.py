"""Write the newest checkpoint of a run in Hugging Face's format, with TorchTitan's converter.

    python3 container_run.py bash stacks/torchtitan/export.sh torchtitan

The directory CHECKPOINT_DIR/RUN_NAME/step-400-hf, which is printed, then contains what
transformers, lm-eval and vLLM load: weights, configuration and tokenizer. It is not in
RUN_NAME/checkpoint, where TorchTitan would take it for a checkpoint of its own, and remove it.

TorchTitan converts the names and the weights. Its configuration of the model, which a training
keeps in RUN_NAME/configuration.json, becomes that of transformers, whose model must then have
exactly these weights.
"""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from longship_titan import load_tokenizer
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run import fail  # noqa: E402
from training_run.export import export, fail_without_checkpoint, read_run  # noqa: E402

# TorchTitan's converter of each model, and the configuration of what it converts to.
MODELS = {
    "llama3": (Llama3StateDictAdapter, LlamaConfig),
    "qwen3": (Qwen3StateDictAdapter, Qwen3Config),
}


def read_configuration(run: Path) -> Any:
    """Return what TorchTitan recorded of a run; each table is an object."""
    path = run / "configuration.json"
    try:
        text = path.read_text("utf-8")
        return json.loads(text, object_hook=lambda table: SimpleNamespace(**table))
    except (OSError, ValueError) as error:
        hint = "run the training again, which writes this file; it resumes from its checkpoint"
        fail(f"cannot read {path}: {error}", hint)


def rope_parameters(rope: Any) -> dict[str, Any]:
    """Return transformers' parameters of TorchTitan's rotary position embedding."""
    parameters = {"rope_theta": rope.theta}
    if rope.scaling == "none":
        return {"rope_type": "default", **parameters}
    if rope.scaling != "llama":
        raise ValueError(f"position embedding with scaling {rope.scaling}")
    return {
        "rope_type": "llama3",
        **parameters,
        "factor": rope.scaling_factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
    }


def model_configuration(kind: type[PreTrainedConfig], model: Any, length: int) -> PreTrainedConfig:
    """Return transformers' configuration of a model that was trained on sequences of a length.

    Raises
    ------
    ValueError
        If the model has parts that transformers' model does not have.
    """
    layer = model.layers[0]
    if layer.feed_forward is None:
        raise ValueError("mixture of experts")
    attention = layer.attention
    return kind(
        vocab_size=model.vocab_size,
        hidden_size=model.dim,
        intermediate_size=layer.feed_forward.w1.out_features,
        num_hidden_layers=len(model.layers),
        num_attention_heads=attention.n_heads,
        num_key_value_heads=attention.n_kv_heads or attention.n_heads,
        head_dim=attention.head_dim or model.dim // attention.n_heads,
        max_position_embeddings=length,
        rms_norm_eps=model.norm.eps,
        rope_parameters=rope_parameters(attention.rope),
        tie_word_embeddings=model.enable_weight_tying,
    )


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint, however its training was sharded."""
    metadata = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in metadata.items()
        if isinstance(each, TensorStorageMetadata) and not name.startswith("optimizer.")
    }
    try:
        dcp.load(weights, checkpoint_id=checkpoint)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        fail(
            f"cannot read {checkpoint}: {reason}", "remove this checkpoint to export the one before"
        )
    return weights


def write(checkpoint: Path, recorded: Any, dtype: torch.dtype, directory: Path) -> None:
    """Write the model of a checkpoint to an empty directory.

    Raises
    ------
    ValueError
        If there is no model of transformers that computes the same.
    """
    spec = recorded.model_spec
    if spec.name not in MODELS:
        raise ValueError(f"model {spec.name}")
    adapter, kind = MODELS[spec.name]
    configuration = model_configuration(kind, spec.model, recorded.training.seq_len)
    tokenizer = load_tokenizer(recorded.tokenizer.path)
    configuration.eos_token_id = tokenizer.eos_token_id
    ours = read_weights(checkpoint)
    theirs = adapter(spec.model, None).to_hf(ours)
    if configuration.tie_word_embeddings:
        theirs["lm_head.weight"] = theirs["model.embed_tokens.weight"]
    if len(theirs) != len(ours):  # the converter leaves out what it does not know
        raise ValueError("weights that TorchTitan does not convert")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configuration)
    try:
        model.load_state_dict(theirs, assign=True)
    except RuntimeError as error:
        raise ValueError(f"weights that are not those of {kind.__name__}: {error}") from error
    model.tie_weights()
    model.to(dtype).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def main() -> None:
    """Export the newest checkpoint, unless that is done already."""
    parser = ArgumentParser(description=__doc__.split("\n\n")[0])
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    add = parser.add_argument
    add("--dtype", default="float32", choices=types, help="type of the weights (default: float32)")
    run, args = read_run(parser)
    complete = [each.parent for each in run.glob("checkpoint/step-*/.metadata")]
    if not complete:
        fail_without_checkpoint(run)
    newest = max(complete, key=lambda each: int(each.name.removeprefix("step-")))
    recorded = read_configuration(run)
    try:
        export(
            run / f"{newest.name}-hf",
            lambda directory: write(newest, recorded, types[args.dtype], directory),
            newest / ".metadata",
        )
    except (KeyError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        models = " or ".join(MODELS)
        fail(f"cannot export {newest}: {reason}", f"export a dense model of {models}")


if __name__ == "__main__":
    main()
