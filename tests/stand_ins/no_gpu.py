"""Stand-ins for a GPU, TransformerEngine and Python 3.12, so that Megatron-Bridge trains on a CPU.

A `.pth` file imports this module when Python starts. Tensors on a GPU are on the CPU, layers are
Megatron-Core's own instead of TransformerEngine's, and functions of `torch.cuda` that a training
calls do nothing. The rest is the real Megatron-Bridge.
"""

import importlib.abc
import importlib.machinery
import sys
import typing


class Changed(importlib.abc.SourceLoader):
    """Load a module from its source with a change."""

    def __init__(self, path, change):
        self.path, self.change = path, change

    def get_filename(self, name):
        return self.path

    def get_data(self, path):
        with open(path, "rb") as file:
            source = file.read().decode()
        changed = self.change(source)
        assert changed != source, f"{path} is not what the test was written for"
        return changed.encode()

    def path_stats(self, path):
        raise OSError  # no bytecode is read or written


def without_engine(source):
    """Do not import TransformerEngine, whose names are in annotations."""
    return source.replace("import transformer_engine.pytorch as te\n", "te = None\n").replace(
        "import math\n", "from __future__ import annotations\nimport math\n", 1
    )


def with_local_layers(source):
    """Use Megatron-Core's layers."""
    return source.replace("return transformer_engine_layer_spec(", "return local_layer_spec(")


def with_own_adam(source):
    """Let a distributed optimizer resume with PyTorch's Adam, which at first has no steps."""
    return source.replace(
        "assert len(steps) == 1\n            step = steps[0]", "step = max(steps, default=0)"
    )


def without_gpu(source):
    """Replace torch.cuda at the end of the import of PyTorch."""
    return f"{source}\nimport no_gpu\nno_gpu.replace_cuda()\n"


CHANGES = {
    "torch": without_gpu,
    "megatron.bridge.peft.lora_layers": without_engine,
    "megatron.bridge.models.gpt_provider": with_local_layers,
    "megatron.core.optimizer.distrib_optimizer": with_own_adam,
}


class Finder(importlib.abc.MetaPathFinder):
    """Find the modules that are changed."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec:
            spec.loader = Changed(spec.origin, CHANGES[name])
        return spec


def start():
    """Change modules from now on."""
    sys.meta_path.insert(0, Finder())
    if not hasattr(typing, "override"):  # Python 3.12
        typing.override = lambda function: function


def on_cpu(device):
    """Give the CPU for a GPU, which can be given by its number."""
    return "cpu" if isinstance(device, int) or str(device).startswith("cuda") else device


def replace_cuda():
    """Let PyTorch report two GPUs, and put what belongs on them on the CPU."""
    import contextlib
    import types

    import torch
    from torch.overrides import TorchFunctionMode

    class OnCPU(TorchFunctionMode):
        def __torch_function__(self, function, kinds, arguments=(), options=None):
            options = dict(options or {})
            if function is torch.Tensor.cuda:
                return arguments[0]
            if options.get("device") is not None:
                options["device"] = on_cpu(options["device"])
            arguments = tuple(
                on_cpu(each) if isinstance(each, (str, torch.device)) else each
                for each in arguments
            )
            result = function(*arguments, **options)
            if function is torch.Tensor.type and len(arguments) == 1:
                return result.replace("torch.", "torch.cuda.")  # Megatron's optimizers ask
            return result

    class Nothing:
        def __init__(self, *arguments, **options): ...

        def __getattr__(self, name):
            return lambda *arguments, **options: 0

        def __enter__(self):
            return self

        def __exit__(self, *raised): ...

    cuda = torch.cuda
    gpu = types.SimpleNamespace(
        name="a CPU", total_memory=1 << 34, major=8, minor=0, multi_processor_count=1
    )
    for name, value in {
        "is_available": True,
        "device_count": 2,
        "current_device": 0,
        "get_device_name": gpu.name,
        "get_device_capability": (8, 0),
        "get_device_properties": gpu,
        "is_current_stream_capturing": False,
        "memory_stats": {},
        "current_stream": Nothing(),
        "default_stream": Nothing(),
        "_lazy_init": None,
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "set_stream")),
        **dict.fromkeys(("reset_peak_memory_stats", "ipc_collect")),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), 0),
        **dict.fromkeys(("memory_reserved", "max_memory_reserved"), 0),
    }.items():
        setattr(cuda, name, lambda *arguments, value=value, **options: value)
    for name in ("stream", "device"):
        setattr(cuda, name, lambda *arguments: contextlib.nullcontext())
    cuda.Stream = cuda.Event = Nothing
    cuda.nvtx = Nothing()
    cuda._lazy_call = lambda call, **options: call()
    cuda.manual_seed = cuda.manual_seed_all = torch.default_generator.manual_seed
    cuda.initial_seed = torch.initial_seed
    cuda.default_generators = (torch.default_generator,) * 2
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda *arguments, **options: torch.get_rng_state()
        module.set_rng_state = lambda state, *arguments, **options: torch.set_rng_state(state)
    torch.Tensor.is_cuda = property(lambda tensor: True)
    OnCPU().__enter__()


start()
