"""Write the newest checkpoint of a run in Hugging Face's format, with NVIDIA's Model Optimizer.

    python3 container_run.py bash stacks/megatron-lm/export.sh megatron-lm

The directory CHECKPOINT_DIR/RUN_NAME/step-0000400-hf, which is printed, then contains what
transformers, lm-eval and vLLM load: weights, configuration and tokenizer. The conversion runs in
one process on the CPU.

Megatron-LM's own script, examples/post_training/modelopt/export.py, starts the same converter, but
needs a GPU, all arguments of the training again, and a model of the hub with the same sizes. Here
the arguments that a checkpoint contains describe a Llama, whose weights must be exactly those of
the checkpoint.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.distributed.checkpoint.api import CheckpointException

with redirect_stdout(sys.stderr):  # for the log
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from modelopt.torch.export import export_mcore_gpt_to_hf
    from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerBase

sys.path.append(str(Path(__file__).parents[2]))  # last, so that its files replace no package
from training_run import fail  # noqa: E402
from training_run.export import export, newest_of_megatron, read_run  # noqa: E402

# Arguments of Megatron-LM that a Llama needs, and the export of its tokenizer. Those that add
# weights, such as biases, are not among them: the weights are compared.
LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "layernorm_zero_centered_gamma": False,
    "apply_residual_connection_post_layernorm": False,
    "glu_linear_offset": 0.0,
    "no_rope_freq": None,
    "qk_l2_norm": False,
    "rotary_interleaved": False,
    "rotary_percent": 1.0,
    "rotary_seq_len_interpolation_factor": None,
    "softmax_type": "vanilla",
    "use_mup": False,
    "use_rope_scaling": False,
    "window_size": None,
    "tokenizer_type": "HuggingFaceTokenizer",
}
# Where the weights of a model are in a checkpoint, which also contains the optimizer's.
MODEL = ("embedding.", "decoder.", "output_layer.", "mtp.")


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a training, a directory or a name on the hub."""
    try:
        return AutoTokenizer.from_pretrained(name)
    except OSError as error:
        reason = str(error).partition("\n")[0]
        hint = (
            "copy it to this directory; or add it to [[assets]], and run: python3 set_up.py install"
        )
        fail(f"cannot read the tokenizer {name}: {reason}", hint)


def llama_configuration(args: Namespace) -> LlamaConfig:
    """Return transformers' configuration of the model that the arguments of a training describe.

    Raises
    ------
    ValueError
        If the model is not a Llama.
    """
    for name, needed in LLAMA.items():
        found = getattr(args, name, needed)
        if found != needed:
            raise ValueError(f"{name} is {found}, not {needed}")
    heads = args.num_attention_heads
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=args.padded_vocab_size,  # Megatron computes logits for the padding, too
        hidden_size=args.hidden_size,
        intermediate_size=args.ffn_hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=heads,
        num_key_value_heads=args.num_query_groups if args.group_query_attention else heads,
        head_dim=args.kv_channels,
        max_position_embeddings=args.max_position_embeddings,
        rms_norm_eps=args.layernorm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": args.rotary_base},
        tie_word_embeddings=not args.untie_embeddings_and_output_weights,
        dtype=args.params_dtype,
    )


def build_model(llama: LlamaConfig) -> GPTModel:
    """Return Megatron-Core's model of a Llama's sizes, made of layers that need no GPU."""
    config = TransformerConfig(
        num_layers=llama.num_hidden_layers,
        hidden_size=llama.hidden_size,
        ffn_hidden_size=llama.intermediate_size,
        num_attention_heads=llama.num_attention_heads,
        num_query_groups=llama.num_key_value_heads,
        kv_channels=llama.head_dim,
        normalization="RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=llama.dtype,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=llama.vocab_size,
        max_sequence_length=llama.max_position_embeddings,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=llama.tie_word_embeddings,
    )
    return model.to(llama.dtype)


def load_weights(model: GPTModel, checkpoint: Path) -> None:
    """Load a checkpoint, however its training was sharded.

    Raises
    ------
    ValueError
        If the checkpoint has other weights than the model.
    """
    metadata = dist_checkpointing.load_content_metadata(str(checkpoint))
    sharded = {"model": model.sharded_state_dict(metadata=metadata)}
    state, left, absent = dist_checkpointing.load(sharded, str(checkpoint), strict="return_all")
    for names, what in ((left, "also has"), (absent, "lacks")):
        # _extra_state is that of TransformerEngine's types of 8 bits
        wrong = [each for each in names if each.startswith(MODEL) and "_extra_state" not in each]
        if wrong:
            raise ValueError(f"it {what} {min(wrong)}")
    model.load_state_dict(state["model"], strict=False)


@contextmanager
def single_process() -> Iterator[None]:
    """Be the only rank of a training on the CPU."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def write(checkpoint: Path, args: Namespace, directory: Path) -> None:
    """Write the model of a checkpoint to an empty directory.

    Raises
    ------
    ValueError
        If the model is not a Llama.
    """
    llama = llama_configuration(args)
    tokenizer = load_tokenizer(args.tokenizer_model)
    llama.bos_token_id, llama.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    with redirect_stdout(sys.stderr), TemporaryDirectory() as like, single_process():
        llama.save_pretrained(like)
        tokenizer.save_pretrained(like)
        model = build_model(llama)
        load_weights(model, checkpoint)
        export_mcore_gpt_to_hf(model, like, dtype=llama.dtype, export_dir=str(directory))
    for each in directory.glob("model-*.json"):  # what the converter makes the index from
        each.unlink()


def main() -> None:
    """Export the newest checkpoint, unless that is done already."""
    run, _ = read_run(ArgumentParser(description=__doc__.split("\n\n")[0]))
    newest, directory = newest_of_megatron(run)
    try:
        args = dist_checkpointing.load_common_state_dict(str(newest))["args"]
        export(directory, lambda partial: write(newest, args, partial), newest)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        hint = "train a model with the arguments of a Llama in stacks/megatron-lm/README.md"
        fail(f"cannot export {newest}: {reason}", hint)
    except (CheckpointException, CheckpointingException, RuntimeError) as error:
        # PyTorch collects the errors of all ranks
        error, _ = getattr(error, "failures", {}).get(0, (error, None))
        reason = str(error).partition("\n")[0] or type(error).__name__
        latest = run / "latest_checkpointed_iteration.txt"
        fail(
            f"cannot read {newest}: {reason}", f"write the step of an older checkpoint to {latest}"
        )


if __name__ == "__main__":
    main()
