"""Estimate the memory of each GPU in a training, by the estimator of its stack.

Runs inside the environment, once and without a GPU: the arguments are the command of a rank, and
standard input is the JSON of extras/estimate/submit_estimate.py.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

sys.path.insert(1, str(Path(__file__).parents[3]))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from lib.script.execute import write_file  # noqa: E402

LEFT_OUT = "CUDA's context, NCCL's buffers, work space of kernels, fragmentation"
TIGHT = 0.9  # share of a GPU's memory: what is left out takes some of the rest
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


class Row(NamedTuple):
    """A layout, and its bytes per GPU; None is what an estimator does not tell."""

    data_parallel: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context_parallel: int | None = None
    recomputation: str | None = None
    micro_batch: int | None = None
    parameters: float | None = None
    gradients: float | None = None
    optimizer: float | None = None
    states: float | None = None  # parameters, gradients and optimizer
    activations: float | None = None  # what the forward pass saves
    total: float | None = None  # the peak

    def in_gib(self, memory):
        """Return the row with the names of the JSON, for GPUs of so many GB (0: unknown)."""
        values = self._asdict()
        sizes = {name: values.pop(name) for name in self._fields[6:]}
        sizes = {f"{name}_gib": size and round(size / 2**30, 3) for name, size in sizes.items()}
        need = (self.total or self.states) / 2**30
        fits = "no" if need > memory else "tight" if need > TIGHT * memory else "yes"
        known = memory and (self.total or fits == "no")
        return {**values, **sizes, "fits": fits if known else None}


def divisions(ranks, gpus_per_node, heads, layers):
    """Yield the tensor and pipeline parallel sizes that divide a model on these GPUs."""
    for pipeline, tensor in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8)):
        fits = tensor <= gpus_per_node and heads % tensor == 0 and layers % pipeline == 0
        if fits and ranks % (pipeline * tensor) == 0:
            yield tensor, pipeline


def report(given, method, rows):
    """Return the report; its first layout is the job's."""
    layouts = [each.in_gib(given["gpu_memory"]) for each in rows]
    peak, total = given["last_peak_gib"], layouts[0]["total_gib"]
    return {
        **{name: given[name] for name in ("machine", "stack", "nodes", "gpus")},
        "gpu_memory": given["gpu_memory"] or None,
        "estimated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **{"method": method, "left_out": LEFT_OUT, "last_run": given["last_run"]},
        "last_peak_gib": peak,
        "difference_percent": round(100 * (total / peak - 1), 1) if peak and total else None,
        "layouts": layouts,
    }


def text(found):
    """Return the report as text: the job, and the largest micro batch that fits in each layout."""
    job, *others = found["layouts"]
    largest = {tuple(each.values())[:5]: each for each in others if each["fits"] != "no"}
    rows = [job, *largest.values()]
    names = [name for name in job if any(row[name] is not None for row in rows)]
    cells = [["", *(name.removesuffix("_gib").removesuffix("_parallel") for name in names)]]
    for row in rows:
        values = ("-" if row[name] is None else row[name] for name in names)
        shown = [f"{each:.2f}" if isinstance(each, float) else str(each) for each in values]
        cells.append(["this job:" if row is job else "or:", *shown])
    widths = [max(map(len, column)) for column in zip(*cells)]
    memory = found["gpu_memory"]
    size = f"{memory} GB each" if memory else "memory not known, so what fits is not known"
    last = "no run to compare with: none of this kind has recorded its GPU memory"
    if found["last_run"]:
        percent = found["difference_percent"]
        last = f"{found['last_run']} used {found['last_peak_gib']:.2f} GiB; "
        last += "no total to compare" if percent is None else f"this estimate is {percent:+.0f} %"
    return "\n".join(
        [
            f"{found['stack']} on {found['machine']}, {found['gpus']} GPUs: {size}; GiB per GPU",
            *("  ".join(map(str.rjust, line, widths)) for line in cells),
            *(
                f"method: {found['method']}",
                f"left out: {found['left_out']}",
                f"last run: {last}\n",
            ),
        ]
    )


def main():
    """Print the report, and keep it for later submissions."""
    given = json.load(sys.stdin)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # frameworks print their arguments
            stack = importlib.import_module(f"stack_{given['stack'].replace('-', '_')}")
            rows = stack.rows(sys.argv[1:], given["nodes"], given["gpus_per_node"])
            found = report(given, stack.METHOD, list(rows))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        sys.exit(
            f"error: cannot estimate a training of {given['stack']} here: {reason}\n"
            "hint: check its arguments and settings; if it needs a GPU, estimate on a compute node"
        )
    content = json.dumps(found, indent=2) + "\n"
    write_file(Path(given["file"]), content, 0o600)
    print(content if given["as_json"] else text(found), end="")


if __name__ == "__main__":
    sys.modules["estimate"] = sys.modules["__main__"]  # which the stacks import
    main()
