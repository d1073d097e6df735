"""The memory of a training with train.py, which takes two steps here on tensors without data."""

import importlib
import sys
import weakref
from pathlib import Path
from unittest import mock

import torch
from estimate import MICRO_BATCHES, Row
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

METHOD = "steps of train.py on tensors without data: not compiled, and with the CPU's kernels"
UNLIMITED = sys.maxsize  # tokens: the data need not exist yet


class Memory(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make, while they live."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Call the operator."""
        result = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._add, result)
        return result

    def _add(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, storage._cdata, storage.nbytes())

    def _remove(self, key, size):
        self._known.discard(key)
        self.now -= size


def rows(words, nodes, gpus_per_node):
    """Yield the memory of the job's micro batch, then that of others on the same GPUs."""
    ranks = nodes * gpus_per_node
    sys.path.insert(0, str(Path(words[0]).parent))
    train = importlib.import_module(Path(words[0]).stem)
    sys.argv[:] = words
    with mock.patch("torch.cuda.is_available", return_value=True):  # as in the job
        args = train.parse_arguments()
    if args.device != "cuda":
        raise ValueError(f"--device is {args.device}")
    train.check_arguments(args, UNLIMITED, UNLIMITED, ranks)
    args.compile, args.batch_size = False, args.batch_size // ranks
    own = min(args.micro_batch_size or args.batch_size, args.batch_size)
    others = [each for each in MICRO_BATCHES if each < args.batch_size]
    for size in dict.fromkeys((own, *others, args.batch_size)):
        yield _row(train, args, size, ranks)


def _row(train, args, size, ranks):
    """Return the memory of a rank that trains in micro batches of a size."""
    saved = []  # bytes after each forward pass
    with FakeTensorMode(), Memory() as memory:
        process = train.Process(0, 1, torch.device("cpu"))
        trainer = train.Trainer(args, process, (None, None), None)
        trainer.bfloat16 = torch.autocast("cpu", torch.bfloat16)
        trainer.gpt.register_forward_hook(lambda *_: saved.append(memory.now))
        weights = list(trainer.gpt.parameters())
        ids = torch.zeros(size, args.sequence_length, dtype=torch.int64)
        batches = [(ids, ids)] * min(2, -(-args.batch_size // size))  # more add nothing to the peak
        memory.peak = 0
        for _ in range(2):  # the first one makes the optimizer's state
            trainer.accumulate_gradient(batches)
            torch.nn.utils.clip_grad_norm_(weights, args.clip_norm or float("inf"))
            trainer.optimizer.step()
        states = [each for state in trainer.optimizer.state.values() for each in state.values()]
    parameters, optimizer = _bytes(weights), _bytes(states)
    buckets = parameters if ranks > 1 else 0  # in which DDP averages the gradients
    return Row(
        **{"data_parallel": ranks, "micro_batch": size, "parameters": parameters},
        gradients=parameters + buckets,
        optimizer=optimizer,
        states=2 * parameters + buckets + optimizer,
        activations=saved[len(batches)] - parameters - optimizer,  # no gradients exist then
        total=memory.peak + buckets,
    )


def _bytes(tensors):
    return sum(each.numel() * each.element_size() for each in tensors)
