"""Measure a step of train.py on this CPU, with real tensors, and print it beside its estimate.

python measure.py train.py [ARGUMENT...]
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
sys.path[:0] = [str(ROOT / "extras/estimate/inside"), str(ROOT)]

import stack_pytorch  # noqa: E402
import torch  # noqa: E402
from torch.profiler import profile  # noqa: E402

import train  # noqa: E402


def measure(words):
    """Return the bytes of a second step: its states, what is saved, and its peak."""
    sys.argv[:] = words
    args = train.parse_arguments()
    train.check_arguments(args, sys.maxsize, sys.maxsize, 1)
    args.compile = False
    trainer = train.Trainer(args, train.Process(0, 1, torch.device("cpu")), (None, None), None)
    trainer.bfloat16 = torch.autocast("cpu", torch.bfloat16)
    weights = list(trainer.gpt.parameters())
    size = args.micro_batch_size or args.batch_size
    ids = torch.randint(args.vocab_size, (size, args.sequence_length))
    batches = [(ids, ids)] * (args.batch_size // size)
    take(trainer, batches)
    own = {each.untyped_storage().data_ptr() for each in [*weights, *trainer.gpt.buffers()]}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), trainer.bfloat16:
        trainer.model(ids, ids)
    activations = sum(each.nbytes() for pointer, each in saved.items() if pointer not in own)
    saved.clear()
    states = [each for state in trainer.optimizer.state.values() for each in state.values()]
    found = {"parameters": bytes_of(weights), "optimizer": bytes_of(states)}
    trainer.optimizer.zero_grad()  # which the profiler would not see
    with profile(profile_memory=True) as measured:
        take(trainer, batches)
    events = measured.profiler.kineto_results.events()
    events = sorted((x for x in events if x.name() == "[memory]"), key=lambda x: x.start_ns())
    now = peak = sum(found.values())
    for each in events:
        now += each.nbytes()
        peak = max(peak, now)
    return {**found, "activations": activations, "total": peak}


def take(trainer, batches):
    """Take a step."""
    trainer.accumulate_gradient(batches)
    torch.nn.utils.clip_grad_norm_(trainer.gpt.parameters(), 1.0)
    trainer.optimizer.step()


def bytes_of(tensors):
    """Return the size of tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)


measured = measure(sys.argv[1:])
rows = [each._asdict() for each in stack_pytorch.rows(sys.argv, 1, 1)]
print(json.dumps({"measured": measured, "estimated": rows}))
