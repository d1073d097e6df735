#!/usr/bin/env python3
"""Measure train.py on one GPU: its speed, its memory, how it resumes, and what reads the GPU.

    python3 benchmarks/gpu.py [--scratch DIR] [--json FILE] [--sizes NAME...] [--quick]

Needs a GPU and a Python that has what train.py imports; no container, no network, no installation.
It takes some five minutes, prints a page in Markdown, and tells its progress on standard error.

Each size is trained by train.py, compiled and not, and then by plain_gpt.py with the same options,
compiled. Speed is that of the median step after the first ones, by wall time. MFU is the
share of the GPU's peak, by the vendor's data sheet, that the model's own FLOPs need; train.py
records it. Peak memory is what PyTorch has allocated. The batch of the largest size is the largest
that `estimated_bytes` lets fit. `--quick` has tiny sizes and also runs without a GPU, as a test.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from side_by_side import machine
from tables import Table, written

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = "not measured"
WARM_UP = 5  # steps that do not count, as in plain_gpt.py
MODULES = "torch, numpy, tokenizers, megatron-core, tensorboard and matplotlib"
GIB = 1 << 30
MEGABYTES = 8  # of text

# Runs a script until a file has a number of lines, or to its end, and tells the most memory that it
# had allocated. So train.py writes no checkpoint of its last step, which can have many gigabytes.
UNTIL = """
import atexit, os, runpy, sys, threading, time, torch
def tell():
    print("peak", torch.cuda.max_memory_allocated(), file=sys.stderr, flush=True)
def wait(file, lines):
    while not os.path.exists(file) or sum(1 for _ in open(file)) < lines:
        time.sleep(0.02)
    tell()
    os._exit(0)
file, lines, *sys.argv = sys.argv[1:]
atexit.register(tell)
threading.Thread(target=wait, args=(file, int(lines)), daemon=True).start()
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# The GPU, and the rate of a matrix product that is as large as the largest model's.
FACTS = """
import json, sys, time, torch
size = int(sys.argv[1])
facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "name": "", "bytes": 0}
if torch.cuda.is_available():
    facts["name"] = torch.cuda.get_device_name()
    facts["bytes"] = torch.cuda.mem_get_info()[0]
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rates = []
    for _ in range(30):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        rates.append(2 * size**3 / (time.perf_counter() - begin))
    facts["flops"] = sorted(rates[5:])[12]
print(json.dumps(facts))
"""


class Size(NamedTuple):
    """A model and its batch; 0 sequences: as many as fit."""

    name: str
    layers: int
    heads: int
    width: int
    length: int
    sequences: int
    steps: int

    def options(self, vocab_size: int, sequences: int) -> list[str]:
        """Return the options that train.py and plain_gpt.py have in common."""
        values = {
            **{"layers": self.layers, "heads": self.heads, "width": self.width},
            **{"sequence-length": self.length, "batch-size": sequences, "steps": self.steps},
            "vocab-size": vocab_size,
        }
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


SIZES = (
    Size("small", 12, 12, 768, 1024, 32, 45),
    Size("medium", 12, 16, 2048, 2048, 16, 20),
    Size("large", 12, 24, 3072, 2048, 0, 15),
)
QUICK = (Size("small", 2, 2, 64, 64, 4, 12), Size("large", 2, 2, 128, 64, 0, 12))


def weights(size: Size, vocab_size: int) -> int:
    """Return the number of weights of train.py's model."""
    hidden = 64 * -(-8 * size.width // 192)
    layer = 4 * size.width**2 + 3 * size.width * hidden + 2 * size.width
    return size.layers * layer + (64 * -(-vocab_size // 64) + 1) * size.width


def estimated_bytes(size: Size, vocab_size: int, sequences: int) -> int:
    """Return the memory that train.py needs without compilation, in bytes.

    Weights, gradients and two moments in float32, and the weights in bfloat16 for the matrix units.
    Of each layer and token the backward pass needs: two sums in float32, two normed inputs, three
    projections, rotated query and key, attention's result twice, in bfloat16; and of the
    feed-forward part its two inputs, the activated one, and their product. Of each token the
    logits: in bfloat16, in float32, as probabilities, and both gradients.
    """
    hidden = 64 * -(-8 * size.width // 192)
    of_layer = 2 * 4 * size.width + 2 * (2 + 3 + 2 + 2) * size.width + 2 * 4 * hidden
    of_logits = (2 + 4 + 4 + 4 + 2) * vocab_size
    tokens = sequences * size.length
    return 18 * weights(size, vocab_size) + tokens * (size.layers * of_layer + of_logits)


class Speed(NamedTuple):
    """What a trainer reached: tokens per second, MFU and peak bytes, if they are known."""

    tokens: float
    mfu: float | None
    peak: int | None


class Bench:
    """The directory of a measurement, its dataset and its GPU."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.begin = time.monotonic()
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            **{"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
            **{"LONGSHIP_SCRATCH_DIR": str(folder), "PYTHONUNBUFFERED": "1"},
        }
        facts = self.run("the GPU", ["-c", FACTS, "256" if quick else "8192"])
        self.facts: dict[str, Any] = json.loads(facts.stdout)
        self.vocab_size, self.preprocessing = 0, ""
        self.data = folder / "data/corpus_text_document"

    def run(self, what: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run Python; end with its last lines if it fails."""
        self.tell(what)
        command = [sys.executable, *words]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise MeasurementError(
                f"{what}: {(done.stderr.strip() or 'no output').splitlines()[-1]}"
            )
        return done

    def tell(self, what: str) -> None:
        """Tell the progress."""
        print(f"{time.monotonic() - self.begin:4.0f} s  {what}", file=sys.stderr, flush=True)

    def make_data(self) -> None:
        """Tokenize a generated text by preprocess_data.py; without its packages, write tokens."""
        self.data.parent.mkdir()
        text, wanted = self.folder / "text.jsonl", 2048 if self.quick else 16384
        write_text(text, 0.3 if self.quick else MEGABYTES)
        words = ["preprocess_data.py", "--input", str(text), "--vocab-size", str(wanted)]
        try:
            done = self.run("preprocess_data.py", words)
            record = json.loads(Path(f"{self.data}.record.json").read_text("utf-8"))
            self.vocab_size = record["result"]["vocab_size"]
            speed = re.search(r"([\d,]+) tokens/s", done.stdout)
            self.preprocessing = f"{speed[1]} tokens/s" if speed else NOT_MEASURED
        except MeasurementError as error:
            self.vocab_size, self.preprocessing = wanted, f"{NOT_MEASURED}: {error}"
            write_tokens(self.data, wanted)

    def largest(self, size: Size) -> int:
        """Return how many sequences fit into nine tenths of the memory."""
        if size.sequences or not self.facts["bytes"]:
            return size.sequences or 4
        limit = 0.9 * self.facts["bytes"]
        return max(n for n in range(1, 4096) if estimated_bytes(size, self.vocab_size, n) < limit)

    def train(self, size: Size, *, compiled: bool) -> Speed:
        """Measure train.py."""
        name = f"{size.name}-{compiled}"
        until = ["-c", UNTIL, str(self.folder / name / "metrics.jsonl"), str(size.steps)]
        words = self.train_words(size._replace(steps=10 * size.steps), name, compiled=compiled)
        done = self.run(f"train.py {size.name}{', compiled' * compiled}", [*until, *words])
        lines = self.metrics(name)[WARM_UP:]
        shares = [line["mfu"] for line in lines if "mfu" in line]
        speed = statistics.median(line["tokens_per_s"] for line in lines)
        return Speed(speed, statistics.median(shares) if shares else None, peak_of(done))

    def train_words(self, size: Size, name: str, *, compiled: bool) -> list[str]:
        """Return the command of a run."""
        words = ["train.py", "--data", str(self.data), "--run-name", name]
        words += ["--checkpoint-dir", str(self.folder), "--validation-fraction", "0"]
        words += size.options(self.vocab_size, self.largest(size))
        return [*words, "--compile" if compiled else "--no-compile"]

    def plain(self, size: Size, *, compiled: bool) -> float:
        """Return the tokens per second of the plain loop."""
        words = ["benchmarks/plain_gpt.py", str(self.data)]
        words += size.options(self.vocab_size, self.largest(size))
        what = f"plain_gpt.py {size.name}{', compiled' * compiled}"
        return float(self.run(what, [*words, *["--compile"] * compiled]).stdout)

    def metrics(self, name: str) -> list[dict[str, float]]:
        """Return what train.py has recorded of a run."""
        lines = (self.folder / name / "metrics.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def resumed(self, size: Size) -> str:
        """Kill a run and resume it; compare its losses with those of two undisturbed runs."""
        losses = {}
        for name in ("first", "second", "killed"):
            words = self.train_words(size, name, compiled=bool(self.facts["name"]))
            words += ["--checkpoint-every", str(size.steps // 3)]
            if name == "killed":
                self.kill_after_checkpoint(words, self.folder / name)
            self.run(f"train.py, {name}", words)
            losses[name] = [line["loss"] for line in self.metrics(name)]
        again, after = (
            largest_difference(losses["first"], losses[each]) for each in losses if each != "first"
        )
        return (
            f"killed by SIGKILL after a checkpoint, and resumed: {len(losses['killed'])} losses,"
            f" which differ by at most {after:.2g} from those of an undisturbed run; those of two"
            f" undisturbed runs by at most {again:.2g}"
        )

    def kill_after_checkpoint(self, words: Sequence[str], run: Path) -> None:
        """Start a run, and kill it when it has a checkpoint and further steps."""
        with subprocess.Popen(
            [sys.executable, *words],
            env=self.environ,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while not list(run.glob("step-*.pt")) and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Let the sampler of jobs measure meanwhile."""
        environ = {**self.environ, "RUN_DIR": str(self.folder), "SLURMD_NODENAME": "node"}
        rank = subprocess.Popen(["sleep", "3600"])
        words = ("2", "no", str(rank.pid), str(os.getpid()))
        command = [sys.executable, str(ROOT / "extras/usage/sampler.py"), *words]
        with open(self.folder / "sampler.log", "w", encoding="utf-8") as log:
            sampler = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            yield
        finally:
            rank.kill()
            rank.wait()
            try:
                sampler.wait(20)
            except subprocess.TimeoutExpired:
                sampler.kill()

    def samples(self) -> str:
        """Return the last sample of the GPU, with the columns' names."""
        rows = (self.folder / "usage/node.csv").read_text("utf-8").splitlines()
        if len(rows) < 2:
            raise MeasurementError(f"no sample: {(self.folder / 'sampler.log').read_text()[-200:]}")
        names, values = rows[0].split(","), rows[-1].split(",")
        pairs = [f"{name} {value or NOT_MEASURED}" for name, value in zip(names[1:], values[1:])]
        return f"{len(rows) - 1} samples, the last: {', '.join(pairs)}"

    def doctor(self) -> str:
        """Return what doctor.py says of the GPU."""
        command = [sys.executable, "doctor.py", "--json", "--machine", "local"]
        environ = {**self.environ, "HOME": str(self.folder)}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        try:
            found = json.loads(done.stdout)["findings"]
        except ValueError:
            raise MeasurementError((done.stderr.strip() or "no output").splitlines()[0]) from None
        told = [f"{each['state']}: {each['text']}" for each in found if each["topic"] == "GPU"]
        return "; ".join(told) or NOT_MEASURED


class MeasurementError(Exception):
    """Something could not be measured."""


def peak_of(done: subprocess.CompletedProcess[str]) -> int | None:
    """Return the peak that WITH_PEAK has told."""
    found = re.search(r"^peak (\d+)$", done.stderr, re.M)
    return int(found[1]) if found else None


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference of two rows of the same length."""
    if len(one) != len(other):
        raise MeasurementError(f"{len(one)} and {len(other)} steps")
    return max(abs(a - b) for a, b in zip(one, other))


def write_text(path: Path, megabytes: float) -> None:
    """Write documents of generated words, some of them much more frequent than others."""
    state, left = 1, megabytes * 1e6
    with path.open("w", encoding="utf-8") as lines:
        while left > 0:
            words = []
            for _ in range(400):
                state = state * 6364136223846793005 % (1 << 64) + 1442695040888963407
                rank = int(2 ** ((state >> 33) % 4096 / 256))  # of 65,536 words
                words.append(f"{rank * 2654435761 % (1 << 32):x}".translate(LETTERS))
            left -= lines.write(json.dumps({"text": " ".join(words)}) + "\n")


LETTERS = str.maketrans("0123456789abcdef", "etaoinshrdlucmfw")


def write_tokens(prefix: Path, vocab_size: int) -> None:
    """Write a dataset of one document in Megatron's format, of tokens in no order."""
    count, state, tokens = MEGABYTES * 250_000, 1, bytearray()
    for _ in range(count):
        state = state * 1103515245 % (1 << 31) + 12345
        tokens += struct.pack("<H", (state >> 8) % vocab_size)
    Path(f"{prefix}.bin").write_bytes(tokens)
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 1, 2)
    Path(f"{prefix}.idx").write_bytes(index + struct.pack("<iqqq", count, 0, 0, 1))


def attempted(measure: Callable[[], str]) -> str:
    """Return a sentence, or why it is missing."""
    try:
        return measure()
    except (MeasurementError, OSError, IndexError, ImportError) as error:
        return f"{NOT_MEASURED}: {error}"


def row_of(size: Size, bench: Bench, *, compiled: bool) -> dict[str, Any]:
    """Measure a size; the plain loop compiled, where it is compared, or without a GPU."""
    ours = bench.train(size, compiled=compiled)
    compared = compiled or not bench.facts["name"]
    sequences = bench.largest(size)
    return {
        **{"size": size.name, "weights": weights(size, bench.vocab_size), "compiled": compiled},
        **{"sequences": sequences, "sequence_length": size.length, "mfu": ours.mfu},
        **{"tokens_per_s": ours.tokens, "peak_bytes": ours.peak},
        "plain_tokens_per_s": bench.plain(size, compiled=compiled) if compared else None,
        "estimated_bytes": estimated_bytes(size, bench.vocab_size, sequences),
    }


def cells(row: dict[str, Any], rate: float) -> tuple[str, ...]:
    """Write a line of the table; `rate` is the matrix product's share of the peak."""
    mfu, peak, plain = row["mfu"], row["peak_bytes"], row["plain_tokens_per_s"]
    estimate = f"{row['estimated_bytes'] / GIB:.1f}"
    batch = f"{row['sequences']} x {row['sequence_length']}"
    return (
        f"{row['size']}: {row['weights'] / 1e6:,.0f} M, {batch}",
        "compiled" if row["compiled"] else "eager",
        f"{row['tokens_per_s']:,.0f}",
        f"{mfu:.1%}" if mfu else NOT_MEASURED,
        f"{mfu / rate:.0%}" if mfu and rate else NOT_MEASURED,
        f"{plain:,.0f}" if plain else NOT_MEASURED,
        f"{row['tokens_per_s'] / plain:.2f}" if plain else "",
        f"{peak / GIB:.1f}, {estimate}" if peak else f"{NOT_MEASURED}, {estimate}",
    )


COLUMNS = (
    *("weights, batch", "", "`train.py`, tokens/s", "MFU", "of the matrix product's rate"),
    *("`plain_gpt.py`, tokens/s", "ratio", "peak memory and estimate (eager), GiB"),
)


def page(found: dict[str, Any]) -> str:
    """Write all figures."""
    facts, rows = found["gpu"], found["rows"]
    peak = facts.get("peak_flops") or 0
    rate = facts.get("flops", 0) / peak if peak else 0
    product = f"{facts['flops'] / 1e12:.0f} TFLOP/s" if "flops" in facts else NOT_MEASURED
    if rate:
        product += f", {rate:.0%} of the peak that the data sheet gives"
    lines = [
        f"- {name}: {found[name]}."
        for name in ("preprocessing", "resumption", "sampler", "doctor")
        if name in found
    ]
    about = f"{facts['name'] or 'No GPU'}, PyTorch {facts['torch']}, {date.today()};"
    about += f" measured in {found['seconds']} s."
    table = Table(COLUMNS, [cells(row, rate) for row in rows])
    text = f"A product of two matrices in bfloat16, 8192 x 8192: {product}."
    return "\n\n".join((f"{about} {text}", written([table]), "\n".join(lines)))


def measure(
    bench: Bench, wanted: Sequence[str], save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measure everything for the wanted sizes; save what is there after each part."""
    from training_run.metrics import peak_flops

    bench.make_data()
    sizes = [each for each in (QUICK if bench.quick else SIZES) if each.name in wanted]
    facts = {**bench.facts, "peak_flops": peak_flops(bench.facts["name"])}
    found: dict[str, Any] = {"gpu": facts, "machine": machine(), "rows": []}
    found["preprocessing"] = bench.preprocessing
    found["doctor"] = attempted(bench.doctor)
    with bench.sampled():
        found["resumption"] = attempted(lambda: bench.resumed(sizes[0]))
        for size in sizes:
            for compiled in (True, False) if facts["name"] else (False,):
                found["rows"].append(row_of(size, bench, compiled=compiled))
                save(found)
    found["sampler"] = attempted(bench.samples)
    found["seconds"] = round(time.monotonic() - bench.begin)
    save(found)
    return found


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, help="directory for all temporary files")
    parser.add_argument("--json", type=Path, help="file for the figures, written after each part")
    names = [each.name for each in SIZES]
    parser.add_argument("--sizes", nargs="+", choices=names, default=names, help="models to train")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, also without a GPU")
    arguments = parser.parse_args()
    sys.path.append(str(ROOT))  # for training_run and lib

    def save(found: dict[str, Any]) -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")

    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        try:
            bench = Bench(Path(name).resolve(), quick=arguments.quick)
            if not bench.facts["name"] and not arguments.quick:
                sys.exit("error: PyTorch finds no GPU\nhint: run it on a node that has one")
            print(page(measure(bench, arguments.sizes, save)))
        except MeasurementError as error:
            sys.exit(f"error: {error}\nhint: this Python needs {MODULES}: {sys.executable}")


if __name__ == "__main__":
    main()
