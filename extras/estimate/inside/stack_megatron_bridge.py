"""The memory of a training with Megatron-Bridge, by its own formulas."""

import copy
import os
import sys
from pathlib import Path

from estimate import MICRO_BATCHES, Row, divisions

METHOD = "Megatron-Bridge's estimate_training_memory, of the GPU with the most"


def rows(words, nodes, gpus_per_node):
    """Yield the memory of the job's layout, then that of others on the same GPUs."""
    ranks = nodes * gpus_per_node
    config = _configuration(words, ranks)
    model = config.model
    for name, covered in {
        "optimizer": config.optimizer.optimizer == "adam",
        "use_precision_aware_optimizer": not config.optimizer.use_precision_aware_optimizer,
        "use_megatron_fsdp": not config.ddp.use_megatron_fsdp,
        "grad_reduce_in_fp32": config.ddp.grad_reduce_in_fp32,
        "bf16": model.bf16,
        "peft": config.peft is None,
    }.items():
        if not covered:
            raise ValueError(f"Megatron-Bridge's formulas do not cover this value of {name}")
    yield _row(config)
    heads, context = (
        model.num_query_groups or model.num_attention_heads,
        model.context_parallel_size,
    )
    for tensor, pipeline in divisions(ranks // context, gpus_per_node, heads, model.num_layers):
        replicas = ranks // (tensor * pipeline * context)
        for size in MICRO_BATCHES:
            if config.train.global_batch_size % (size * replicas) == 0:
                yield _row(_changed(config, tensor, pipeline, replicas, size))


def _configuration(words, ranks):
    """Return the configuration with which the stack's train.py would begin to train."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(ranks))
    # Else a recipe that sets variables starts the script again, and that would train.
    os.environ["_MB_TRAINING_RECIPE_ENV_BOOTSTRAPPED"] = str(os.getpid())
    repositories = os.environ["LONGSHIP_REPOSITORIES"]
    scripts = f"{repositories}/Megatron-Bridge/scripts/training"
    sys.path[:0] = [str(Path(words[0]).parent), scripts]
    sys.argv[:] = words
    import longship_bridge
    import recipe_runner
    from megatron.bridge.training.config import runtime_config_update

    found = []
    recipe_runner._load_train_function = lambda mode: lambda config, *_, **__: found.append(config)
    longship_bridge.main()
    (config,) = found
    runtime_config_update(config)
    return config


def _changed(config, tensor, pipeline, replicas, size):
    """Return the configuration with another layout."""
    config = copy.copy(config)
    config.model, config.train = copy.copy(config.model), copy.copy(config.train)
    config.model.tensor_model_parallel_size = tensor
    config.model.pipeline_model_parallel_size = pipeline
    config.model.virtual_pipeline_model_parallel_size = None
    config.model.sequence_parallel = tensor > 1
    config.train.micro_batch_size, config.data_parallel_size = size, replicas
    return config


def _row(config):
    from megatron.bridge.training.utils.theoretical_memory_utils import estimate_training_memory

    model, size = config.model, config.train.micro_batch_size
    # The formula of activations covers nothing else, as Megatron-Bridge's own report has it.
    covered = model.sequence_parallel and model.recompute_granularity == "selective"
    micro_batches = config.train.global_batch_size // (size * config.data_parallel_size)
    found = estimate_training_memory(config, micro_batches, include_activation=covered)
    return Row(
        data_parallel=config.data_parallel_size,
        tensor_parallel=model.tensor_model_parallel_size,
        pipeline_parallel=model.pipeline_model_parallel_size,
        context_parallel=model.context_parallel_size,
        recomputation=model.recompute_granularity or "none",
        micro_batch=size,
        states=found.weight_and_optimizer_bytes,
        activations=found.activation.memory_bytes if covered else None,
        total=found.total_memory_bytes if covered else None,
    )
