"""The memory of a training with Megatron-LM, by its own formulas: theoretical_memory_usage.py."""

import argparse
import copy
import os
import sys
from pathlib import Path

from estimate import MICRO_BATCHES, Row, divisions

METHOD = "Megatron-LM's report_theoretical_memory, of the GPU with the most"
# What the formulas of core_v0.19 take for granted: with other values they would be wrong.
ASSUMED = {
    **{"bf16": [True], "optimizer": ["adam"], "accumulate_allreduce_grads_in_fp32": [True]},
    **{"use_precision_aware_optimizer": [False], "optimizer_cpu_offload": [False]},
    **{"use_torch_fsdp2": [False], "use_megatron_fsdp": [False], "context_parallel_size": [1]},
    "recompute_granularity": [None, "selective"],
}


def rows(words, nodes, gpus_per_node):
    """Yield the memory of the job's layout, then that of others on the same GPUs."""
    (script,) = (each for each in words if each.endswith("/pretrain_gpt.py"))
    sys.path.insert(0, str(Path(script).parent))
    os.environ.update(RANK="0", WORLD_SIZE=str(nodes * gpus_per_node))
    given = words[words.index(script) :]
    job = _parse(given)
    for name, values in ASSUMED.items():
        if getattr(job, name) not in values:
            raise ValueError(f"Megatron-LM's formulas do not cover {name} = {getattr(job, name)}")
    yield _row(job)
    heads = job.num_query_groups if job.group_query_attention else job.num_attention_heads
    for tensor, pipeline in divisions(job.world_size, gpus_per_node, heads, job.num_layers):
        layout = [f"--tensor-model-parallel-size={tensor}", "--sequence-parallel"]
        layout += [f"--pipeline-model-parallel-size={pipeline}"]
        try:
            yield from _others(_parse([*given, *layout]))
        except AssertionError:  # Megatron-LM refuses it
            continue


def _others(args):
    """Yield the rows of a layout, with each micro batch, such that the formulas cover them."""
    for size in MICRO_BATCHES:
        if args.global_batch_size % (size * args.data_parallel_size) == 0:
            other = copy.copy(args)
            other.micro_batch_size = size
            other.recompute_granularity = "selective" if args.sequence_parallel else None
            yield _row(other)


def _parse(words):
    """Return the arguments, checked by Megatron-LM, with the size of the vocabulary."""
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron.training import arguments

    # Asked of a GPU, only to check CUDA_DEVICE_MAX_CONNECTIONS, which run_training.sh sets.
    arguments.get_device_arch_version = lambda: 10
    argparse.ArgumentParser.error = _refuse  # without the usage, 600 lines
    sys.argv[:] = words
    args = arguments.parse_args()
    arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
    build_tokenizer(args)
    return args


def _refuse(parser, message):
    raise ValueError(message)


def _row(args):
    from megatron.training.theoretical_memory_usage import report_theoretical_memory

    micro_batches = args.global_batch_size // (args.micro_batch_size * args.data_parallel_size)
    found = report_theoretical_memory(args, num_microbatches=micro_batches)
    if not found:
        raise ValueError("Megatron-LM has no formula for hybrid models")
    states, activations, total = (each * 2**20 for each in found)
    # Its two formulas. Without recomputation it takes the second one for sequence parallelism too:
    # up to 3 times too high.
    covered = args.sequence_parallel == (args.recompute_granularity == "selective")
    return Row(
        data_parallel=args.data_parallel_size,
        tensor_parallel=args.tensor_model_parallel_size,
        pipeline_parallel=args.pipeline_model_parallel_size,
        recomputation=args.recompute_granularity or "none",
        micro_batch=args.micro_batch_size,
        states=states,
        activations=activations if covered else None,
        total=total if covered else None,
    )
