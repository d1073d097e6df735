#!/usr/bin/env python3
"""Measure the speed of preprocess_data.py and train.py against plain implementations.

    python3 benchmarks/training.py [--scratch DIR] [--rounds 3]

Installs the requirements of the stack pytorch in a venv without a container, so it needs a network
or a pip that finds them, and 3 GB. Preprocessing: the same text, tokenizer and number of processors
as benchmarks/megatron_loop.py, and the same bytes. Training: the same sizes and data as
benchmarks/plain_gpt.py. The speed is that of the median step by wall time, as recorded by train.py,
without the time of recording. CPU time is that of the whole program, including its start and its
checkpoints. Without a GPU, both trainers run a second time beside busy loops, two for each core.
Ranks: train.py by torchrun with gloo, one core each. All run alternately. On a machine with a GPU,
training uses it and its MFU is reported; `gpu.py` measures more of a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from side_by_side import children_cpu, machine
from tables import Compared, Table, quartiles, seconds, spread_text, written
from workplace import ROOT, Workplace, run

END_OF_TEXT = "<|endoftext|>"
SIZES = {"layers": 4, "heads": 4, "width": 128, "sequence-length": 128, "batch-size": 8}
GPU_SIZES = {"layers": 12, "heads": 12, "width": 768, "sequence-length": 1024, "batch-size": 32}
SPEED = "tokens/s by wall time"
WARM_UP = 5  # steps that do not count, as in plain_gpt.py
OTHER_TOOL = "Megatron-LM's method, `megatron_loop.py`"
PLAIN = "`plain_gpt.py`"
VERSIONS = """
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("torch", "tokenizers", "megatron-core")))
"""
HAS_GPU = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


class Round(NamedTuple):
    """One round: tokens per second of wall time, and seconds of CPU time."""

    speed: float
    cpu_seconds: float


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, help="directory for all temporary files")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        tables = results(Path(name).resolve(), arguments.rounds)
    print(f"{machine()}\n\n{written(tables)}")


def results(folder: Path, rounds: int, steps: int = 40, megabytes: int = 16) -> list[Table]:
    """Install, and measure all three in an empty directory."""
    bench = Bench(folder, megabytes)
    tables = [bench.preprocessing(rounds), bench.training(rounds, steps)]
    if not bench.gpu:
        tables.append(bench.busy_training(rounds, steps // 2 + WARM_UP))
    return [*tables, bench.ranks(rounds, steps)]


class Bench:
    """An environment and its data.

    Parameters
    ----------
    folder : pathlib.Path
        Directory for both.
    megabytes : int
        Size of the text.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        place = Workplace(folder)
        place.configure("host", str(ROOT / "requirements/environment.txt"))
        place.script("host", "set_up.py", "install")
        self.launcher, self.data = str(place.launcher("host")), folder / "host/data"
        self.limit = ("--max-megabytes", str(megabytes))
        self.environ = dict(os.environ)
        self.inside("preprocess_data.py", *self.limit)
        record = json.loads(Path(f"{self.dataset}.record.json").read_text("utf-8"))
        self.vocab_size = record["result"]["vocab_size"]
        self.gpu = self.inside("-c", HAS_GPU)
        self.metrics: list[dict[str, float]] = []  # of train.py's last run, without its start

    @property
    def dataset(self) -> Path:
        """Prefix of the tokens."""
        return self.data / "corpus_text_document"

    def inside(self, script: str, *words: str, environ: dict[str, str] | None = None) -> str:
        """Run a Python script inside; return its output."""
        script = script if script == "-c" else str(ROOT / script)
        environ = {**self.environ, **(environ or {})}
        return run([self.launcher, "python", script, *words], environ)

    def preprocessing(self, rounds: int) -> Table:
        """Compare preprocess_data.py with the method of Megatron-LM's tool."""
        cores = len(os.sched_getaffinity(0))
        text, tokenizer = self.data / "corpus.jsonl", self.data / "corpus_tokenizer.json"

        def other() -> float:
            words = (str(text), str(tokenizer), f"{self.data}/other", str(cores), END_OF_TEXT)
            quiet = {"TOKENIZERS_PARALLELISM": "false"}
            return float(self.inside("benchmarks/megatron_loop.py", *words, environ=quiet))

        def ours() -> float:
            for file in self.data.glob("own_*"):
                file.unlink()
            words = ("--name", "own", "--input", str(text), "--tokenizer", str(tokenizer))
            output = self.inside(
                "preprocess_data.py", *words, environ={"RAYON_NUM_THREADS": str(cores)}
            )
            return float(re.search(r"([\d,]+) tokens/s", output)[1].replace(",", ""))

        taken = in_turn({OTHER_TOOL: other, "`preprocess_data.py`": ours}, rounds)
        same = digest(self.data / "other.bin") == digest(self.data / "own_text_document.bin")
        note = f"{cores} processors; both wrote {'the same' if same else 'DIFFERENT'} bytes."
        note += f" {self.inside('-c', VERSIONS).strip()}."
        return speeds(taken, "preprocessing", note)

    def training(self, rounds: int, steps: int) -> Table:
        """Compare train.py with the plain loop."""
        taken = in_turn(self.trainers(steps), rounds)
        where = self.gpu or "the CPU"
        note = f"On {where}. What `train.py` writes down of a step is not in the step's time."
        return speeds(taken, "training", f"{note} {self.utilisation(taken)}".strip())

    def busy_training(self, rounds: int, steps: int) -> Table:
        """Compare train.py with the plain loop beside programs that use every core."""
        count = 2 * len(os.sched_getaffinity(0))
        with busy_loops(count):
            taken = in_turn(self.trainers(steps), rounds)
        return speeds(
            taken, f"training beside {count} busy loops", "Loops in bash, two for each core."
        )

    def trainers(self, steps: int) -> dict[str, Callable[[], float]]:
        """Return the plain loop and train.py, with the same sizes."""
        sizes = self.sizes(steps)

        def other() -> float:
            return float(self.inside("benchmarks/plain_gpt.py", str(self.dataset), *sizes))

        return {PLAIN: other, "`train.py`": lambda: self.train(sizes)}

    def ranks(self, rounds: int, steps: int) -> Table:
        """Compare one rank with several, each with its own core or GPU."""
        count = int(self.inside("-c", "import torch; print(torch.cuda.device_count())"))
        most = count or len(os.sched_getaffinity(0))
        sizes = self.sizes(steps)
        numbers = [each for each in (1, 2, 4, 8) if each <= most]
        ways = {
            f"{each} rank{'s' * (each > 1)}": lambda each=each: self.train(sizes, each)
            for each in numbers
        }
        note = f"By torchrun, {'a GPU' if count else 'gloo, a core'} each; the same batch in all."
        return speeds(in_turn(ways, rounds), "train.py on several ranks", note)

    def sizes(self, steps: int) -> list[str]:
        """Return the options of both trainers."""
        chosen = GPU_SIZES if self.gpu else SIZES
        sizes = {**chosen, "vocab-size": self.vocab_size, "steps": steps}
        return [word for name, value in sizes.items() for word in (f"--{name}", str(value))]

    def train(self, sizes: Sequence[str], ranks: int = 0) -> float:
        """Return the median tokens per second that train.py recorded; 0 ranks: without torchrun."""
        name = "benchmark"
        folder = self.data.parent / "checkpoints" / name
        words = ["--run-name", name, "--data", str(self.dataset), *sizes]
        run(["rm", "-rf", str(folder)])
        if ranks:
            start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            command = [self.launcher, "python", *start, str(ROOT / "train.py"), *words]
            run(command, {**self.environ, "OMP_NUM_THREADS": "1"})
        else:
            self.inside("train.py", *words)
        lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
        self.metrics = [json.loads(line) for line in lines[WARM_UP:]]
        return statistics.median(line["tokens_per_s"] for line in self.metrics)

    def utilisation(self, taken: dict[str, list[Round]]) -> str:
        """Report the step time and the GPU utilisation that train.py recorded in its last run."""
        if not self.gpu:
            return ""
        speed = statistics.median(each.speed for each in taken["`train.py`"])
        step = GPU_SIZES["batch-size"] * GPU_SIZES["sequence-length"] / speed
        mfu = [line["mfu"] for line in self.metrics if "mfu" in line]
        share = f", {statistics.median(mfu):.0%} of the GPU's peak" if mfu else ""
        return f"A step takes {step * 1000:.0f} ms{share}."


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run loops that use a core each, until the block ends."""
    loops = [subprocess.Popen(["bash", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def in_turn(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[Round]]:
    """Measure the alternatives alternately, several times."""
    taken: dict[str, list[Round]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before = children_cpu()
            taken[name].append(Round(way(), children_cpu() - before))
    return taken


def speeds(taken: dict[str, list[Round]], name: str, note: str) -> Table:
    """Return a table of tokens per second; the first alternative is the reference."""
    rows, compared = [], []
    first, base = next(iter(taken.items()))
    for way, values in taken.items():
        ratios = [one.speed / other.speed for one, other in zip(values, base)]
        ratio, spread = statistics.median(ratios), quartiles(ratios)
        rows.append(
            (way, speed_text(values), f"{ratio:.2f}", spread_text(spread), cpu_text(values))
        )
        if way != first:
            ours, other = speed_text(values), f"{speed_text(base)}, {first}"
            compared.append(Compared(f"{name}, {SPEED}: {way}", ours, other, ratio, spread))
    columns = (name, SPEED, "ratio", "quartiles of the ratio", "CPU time, whole program")
    figures = {way: [each.speed for each in values] for way, values in taken.items()}
    return Table(columns, rows, note, compared, figures)


def speed_text(rounds: Sequence[Round]) -> str:
    """Write the median speed."""
    return f"{statistics.median(each.speed for each in rounds):,.0f}"


def cpu_text(rounds: Sequence[Round]) -> str:
    """Write the median of the CPU time, and its range."""
    taken = [each.cpu_seconds for each in rounds]
    low, middle, high = (seconds(each(taken)) for each in (min, statistics.median, max))
    return f"{middle}, {low} to {high}"


def digest(path: Path) -> str:
    """Return the checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
