"""Tokenize text for `train.py`.

    python3 container_run.py python preprocess_data.py           all three steps, one process

Large inputs are divided among ranks and their workers, and the result is the same, byte for byte:

    prepare     write the text as JSON Lines, `{"text": ...}`, and train a tokenizer; once
    shard       tokenize this rank's shards of the text, one per worker; once per rank, in parallel
    merge       join all shards, in order, to one dataset; once

The text is the source code of Python's standard library, or your own file (`--input`). The dataset
has the format of Megatron's IndexedDataset: `NAME_text_document.bin` contains the token IDs of all
documents, `NAME_text_document.idx` the positions of the documents.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import math
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from training_run import lacks_package

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ModuleNotFoundError as error:
    lacks_package("preprocess_data.py", error)

from training_run.directory_lock import DirectoryLock

if TYPE_CHECKING:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

COMMAND = "python3 container_run.py python preprocess_data.py"
BATCH_CHARACTERS = 4 * 2**20
SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


def fail(message: str, hint: str, code: int = 1) -> NoReturn:
    """Exit with two lines: what is wrong, and what to do."""
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


def show_line(line: str) -> None:
    """Show the progress on a terminal, in a line that the next one replaces."""
    if sys.stdout.isatty():
        print(f"\r\033[K{line}", end="", flush=True)


@dataclass(frozen=True)
class Product:
    """The files that a step writes, and a record of its inputs next to them.

    Parameters
    ----------
    files : tuple of Path
        Final names; the record has the first one's name and the suffix `.record.json`.
    made_from : dict
        Inputs that determine the content, as JSON values. If they change, the product is outdated.
    """

    files: tuple[Path, ...]
    made_from: dict[str, Any]

    @property
    def record(self) -> Path:
        """Path of the record, which is written last and removed first."""
        return self.files[0].with_suffix(".record.json")

    def result(self) -> dict[str, Any] | None:
        """Return the result that `write` recorded, or None if the product must be made."""
        try:
            record = json.loads(self.record.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        try:
            is_current = record["made_from"] == self.made_from and record["bytes"] == self._sizes()
            return record["result"] if is_current else None
        except (LookupError, TypeError, FileNotFoundError):
            return None

    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in self.files]

    @contextmanager
    def write(self, *, locked: bool = True) -> Iterator[tuple[list[Path], dict[str, Any]]]:
        """Make the product: yield the files to write, and a dictionary for the result's properties.

        All files get their final names at the end, or none of them on an error. The owner of the
        lock removes what killed processes have left.
        """
        # Host and process ID, because two users or two jobs can make the same product.
        mark = f".partial-{platform.node()}-{os.getpid()}"
        partial = [file.with_name(file.name + mark) for file in (*self.files, self.record)]
        result: dict[str, Any] = {}
        self.record.parent.mkdir(parents=True, exist_ok=True)
        for file in (*self.files, self.record) if locked else ():
            for left in file.parent.glob(f"{glob.escape(file.name)}.partial-*"):
                with suppress(OSError):  # it can be another user's
                    left.unlink()
        try:
            yield partial[:-1], result
            sizes = [file.stat().st_size for file in partial[:-1]]
            record = {"made_from": self.made_from, "bytes": sizes, "result": result}
            partial[-1].write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            self.record.unlink(missing_ok=True)
            for source, file in zip(partial, (*self.files, self.record)):
                with source.open("rb") as written:
                    os.fsync(written.fileno())
                source.replace(file)
        finally:
            for file in partial:
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Layout:
    """Paths of all products, and their inputs, from the options of the command line."""

    options: argparse.Namespace

    @property
    def text(self) -> Path:
        """JSON Lines file to tokenize."""
        return self.options.input or self._named(".jsonl")

    @property
    def tokenizer(self) -> Path:
        """Tokenizer in the `tokenizers` package's format."""
        return self.options.tokenizer or self._named("_tokenizer.json")

    def corpus(self) -> Product:
        """Text of the standard library, used without `--input`."""
        made_from = {
            "python": platform.python_version(),
            "max_megabytes": self.options.max_megabytes,
        }
        return Product((self.text,), made_from)

    def trained_tokenizer(self) -> Product:
        """Tokenizer trained on the text, used without `--tokenizer`."""
        made_from = {
            "text": text_version(self.text),
            "max_megabytes": self.options.max_megabytes,
            "vocab_size": self.options.vocab_size,
            "end_of_text": self.options.end_of_text,
        }
        return Product((self.tokenizer,), made_from)

    def dataset(self) -> Product:
        """Tokens of the whole text."""
        return self._tokens(self._named("_text_document"))

    def shard(self, rank: int, world_size: int) -> Product:
        """Tokens of one rank's share of the text."""
        return self._tokens(self.shards_dir / f"{rank:05d}-of-{world_size:05d}")

    @property
    def lock(self) -> Path:
        """Lock of all products except the shards."""
        return self._named(".lock")

    @property
    def shards_dir(self) -> Path:
        """Directory of the shards until they are merged.

        Shards have no lock: other inputs use another directory, and the same inputs give the same
        bytes, whoever writes them.
        """
        made_from = json.dumps(self._tokens_made_from, sort_keys=True).encode()
        return self._named("_shards") / hashlib.sha256(made_from).hexdigest()[:12]

    def _named(self, suffix: str) -> Path:
        return self.options.data_dir / (self.options.name + suffix)

    @cached_property
    def _tokens_made_from(self) -> dict[str, Any]:
        return {
            "text": text_version(self.text),
            "tokenizer_sha256": hashlib.sha256(self.tokenizer.read_bytes()).hexdigest(),
            "end_of_text": self.options.end_of_text,
        }

    def _tokens(self, prefix: Path) -> Product:
        return Product((Path(f"{prefix}.bin"), Path(f"{prefix}.idx")), self._tokens_made_from)


def text_version(path: Path) -> dict[str, int]:
    """Return size (bytes) and modification time (ns), because a text can be too large to hash."""
    stat = path.stat()
    return {"bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}


def standard_library(max_bytes: float) -> Iterator[str]:
    """Yield the standard library's source files, always the same ones in the same order.

    Parameters
    ----------
    max_bytes : float
        Stop before the file that would exceed this size.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_DIRECTORIES.intersection(path.relative_to(root).parts):
            continue
        try:
            source = path.read_bytes()
            text = source.decode("utf-8")
        except (OSError, UnicodeDecodeError):  # dangling links in small images; other encodings
            continue
        max_bytes -= len(source)
        if max_bytes < 0:
            return
        yield text


def read_documents(path: Path, rank: int = 0, world_size: int = 1) -> Iterator[str]:
    """Yield the documents of one rank's share, in order and in constant memory.

    The file is divided into `world_size` equal ranges of bytes, and a line belongs to the range in
    which it begins. So no rank has to count lines, and the shares in order are the whole file.

    Parameters
    ----------
    path : Path
        JSON Lines file, one object with a "text" per line; blank lines are skipped.
    rank, world_size : int
        Index and number of the shares.
    """
    size = path.stat().st_size
    begin, end = size * rank // world_size, size * (rank + 1) // world_size
    with path.open("rb") as lines:
        if begin:
            lines.seek(begin - 1)
            lines.readline()  # began in the previous range, or is only its last line feed
        while (offset := lines.tell()) < end:
            line = lines.readline()
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
                # JSON can contain half a surrogate pair, which no tokenizer accepts.
                yield text.encode("utf-8", "replace").decode("utf-8")
            except (ValueError, LookupError, TypeError, AttributeError):
                fail(
                    f'{path}: line {line_at(path, offset)} is not a JSON object with a "text" key',
                    'write one document per line, as {"text": "..."}',
                )


def line_at(path: Path, offset: int) -> int:
    """Return the number of the line that begins at an offset, in bytes."""
    number = 1
    with path.open("rb") as file:
        while (left := offset - file.tell()) > 0:
            number += file.read(min(left, 2**20)).count(b"\n")
    return number


def batches(texts: Iterable[str], characters: float) -> Iterator[list[str]]:
    """Group texts into batches of at least `characters`, except for the last batch."""
    batch: list[str] = []
    filled = 0
    for text in texts:
        batch.append(text)
        filled += len(text)
        if filled >= characters:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def write_corpus(corpus: Product, max_bytes: float) -> None:
    """Write the source code of the standard library as JSON Lines."""
    with corpus.write() as ((file,), result), file.open("w", encoding="utf-8") as lines:
        documents = 0
        for text in standard_library(max_bytes):
            lines.write(json.dumps({"text": text}) + "\n")
            documents += 1
        result["documents"] = documents
    print(f"text: {documents:,} documents in {corpus.files[0]}")


def train_tokenizer(product: Product, layout: Layout) -> None:
    """Train a byte-level BPE on the beginning of the text, which needs no download."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=layout.options.vocab_size,
        special_tokens=[layout.options.end_of_text],
        # Every byte is a token, so that any text can be encoded.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    beginning = next(batches(read_documents(layout.text), layout.options.max_megabytes * 1e6), [])
    tokenizer.train_from_iterator(beginning, trainer)
    with product.write() as ((file,), result):
        result["vocab_size"] = tokenizer.get_vocab_size()
        file.write_text(tokenizer.to_str(), "utf-8")
    print(f"tokenizer: {result['vocab_size']:,} tokens in {product.files[0]}")


def import_indexed_dataset() -> ModuleType:
    """Import Megatron's format only if there is something to write, because it takes seconds."""
    with warnings.catch_warnings():  # of optional GPU packages, which the data step does not use
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


def open_builder(file: Path, vocab_size: int) -> IndexedDatasetBuilder:
    """Open a dataset's .bin for writing, with the smallest type that holds every token id."""
    module = import_indexed_dataset()
    return module.IndexedDatasetBuilder(str(file), dtype=module.DType.optimal_dtype(vocab_size))


def open_tokenizer(layout: Layout) -> tuple[Tokenizer, int]:
    """Read the tokenizer; return it with the id of its end-of-text token."""
    try:
        tokenizer = Tokenizer.from_file(str(layout.tokenizer))
    except Exception as error:  # the package has no narrower class
        fail(f"cannot read the tokenizer {layout.tokenizer}: {error}", "give a tokenizer.json")
    # A document that quotes the end-of-text token does not end there.
    tokenizer.encode_special_tokens = True
    end_of_text = tokenizer.token_to_id(layout.options.end_of_text)
    if end_of_text is None:
        fail(
            f"{layout.tokenizer} has no token {layout.options.end_of_text!r} to end a document",
            "set --end-of-text to the tokenizer's own token",
        )
    return tokenizer, end_of_text


def prepare(layout: Layout) -> None:
    """Make the text and the tokenizer, unless they exist or the user gives them."""
    if not layout.options.input:
        corpus = layout.corpus()
        if corpus.result() is None:
            write_corpus(corpus, layout.options.max_megabytes * 1e6)
        else:
            print(f"text: already done, see {layout.text}")
    require("text", layout.text, bool(layout.options.input))
    if not layout.options.tokenizer:
        tokenizer = layout.trained_tokenizer()
        if tokenizer.result() is None:
            train_tokenizer(tokenizer, layout)
        else:
            print(f"tokenizer: already done, see {layout.tokenizer}")


def make_shard(layout: Layout, rank: int, world_size: int) -> None:
    """Tokenize this rank's share of the text."""
    product, name = layout.shard(rank, world_size), f"shard of rank {rank} of {world_size}"
    if product.result() is not None:
        print(f"{name}: already done, see {product.files[0]}")
        return
    try:
        write_shard(product, name, layout, rank, world_size)
    except OSError:
        # another job that makes the same data has merged the shards, and removed them
        done = layout.dataset().result()
        if done is None:
            raise
        print(f"dataset: already done, {summary(done)}, see {layout.dataset().files[0]}")


def write_shard(product: Product, name: str, layout: Layout, rank: int, world_size: int) -> None:
    """Write the tokens of a share of the text."""
    tokenizer, end_of_text = open_tokenizer(layout)
    with product.write(locked=False) as ((bin_file, idx_file), result):
        builder = open_builder(bin_file, tokenizer.get_vocab_size())
        documents = tokens = 0
        start = time.perf_counter()
        for texts in batches(read_documents(layout.text, rank, world_size), BATCH_CHARACTERS):
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                ids = [*encoding.ids, end_of_text]
                builder.add_document(ids, [len(ids)])
                documents += 1
                tokens += len(ids)
            show_line(f"{name}: {documents:,} documents, {tokens:,} tokens")
        show_line("")
        builder.finalize(str(idx_file))
        seconds = time.perf_counter() - start
        result.update(documents=documents, tokens=tokens)
    print(f"{name}: {summary(result)}, {tokens / seconds:,.0f} tokens/s")


def make_shards(layout: Layout, rank: int, world_size: int, workers: int) -> None:
    """Tokenize this rank's share of the text, each worker a part of it.

    Workers are forked after the imports: a node with hundreds of cores reads and keeps them once.
    """
    if workers == 1:
        make_shard(layout, rank, world_size)
        return
    import_indexed_dataset()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # or each worker uses all cores
    context = multiprocessing.get_context("fork")
    running = {}
    try:
        for part in range(rank * workers, (rank + 1) * workers):
            arguments = (make_shard, layout, part, world_size * workers)
            process = context.Process(target=report_errors, args=arguments)
            process.start()
            running[process.sentinel] = process
        while running:
            for ended in connection.wait(list(running)):
                process = running.pop(ended)
                process.join()
                if process.exitcode < 0:
                    hint = "request more memory; or start fewer processes: --workers"
                    fail(f"a worker was killed by signal {-process.exitcode}", hint)
                if process.exitcode:
                    sys.exit(process.exitcode)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def merge(layout: Layout, world_size: int) -> None:
    """Join all shards, in the order of ranks, and remove them."""
    shards = [layout.shard(rank, world_size) for rank in range(world_size)]
    merged = {"documents": 0, "tokens": 0}
    for rank, product in enumerate(shards):
        result = product.result()
        if result is None:
            fail(
                f"the shard of rank {rank} of {world_size} is missing in {layout.shards_dir}, "
                "or was made from another text or tokenizer",
                f"run: {COMMAND} shard --rank {rank} --world-size {world_size}",
            )
        merged = {key: total + result[key] for key, total in merged.items()}
    if not merged["documents"]:
        fail(f"{layout.text} contains no documents", "give a text with --input")
    dataset = layout.dataset()
    vocab_size = open_tokenizer(layout)[0].get_vocab_size()
    with dataset.write() as ((bin_file, idx_file), result):
        builder = open_builder(bin_file, vocab_size)
        for product in shards:
            builder.add_index(str(product.files[0].with_suffix("")))
        builder.finalize(str(idx_file))
        result.update(merged, vocab_size=vocab_size)
    remove_shards(layout)
    print(f"dataset: {summary(merged)} in {dataset.files[0]} and .idx")


def remove_shards(layout: Layout) -> None:
    """Remove all shards of the dataset; another job can still write some."""
    shutil.rmtree(layout.shards_dir, ignore_errors=True)
    with suppress(OSError):  # keep shards of other inputs
        layout.shards_dir.parent.rmdir()


def sharded_world_size(shards_dir: Path) -> int:
    """Return the world size of the shards, from their names; of several, one that is complete."""
    found = Counter(int(file.stem.split("-of-")[1]) for file in shards_dir.glob("*-of-*.idx"))
    if not found:
        fail(f"no shards found in {shards_dir}", f"run: {COMMAND} shard")
    # A job that was ended leaves shards, and the next one can have another number of ranks.
    complete = [size for size, shards in found.items() if shards == size]
    if len(found) > 1 and not complete:
        sizes = ", ".join(map(str, sorted(found)))
        fail(
            f"the shards in {shards_dir} have different world sizes: {sizes}",
            "select one with --world-size",
        )
    return (complete or list(found))[0]


def summary(result: dict[str, int]) -> str:
    """Return the size of a dataset as text."""
    return f"{result['tokens']:,} tokens in {result['documents']:,} documents"


def require(noun: str, path: Path, is_own: bool) -> None:
    """Fail if a file is missing or empty: the user's own, or one that `prepare` makes."""
    state = "missing" if not path.is_file() else "empty" if path.stat().st_size == 0 else ""
    if state:
        hint = "give another path" if is_own else f"run: {COMMAND} prepare"
        fail(f"the {noun} is {state}: {path}", hint)


def launched_rank() -> tuple[int, int]:
    """Return rank and world size from torchrun's or Slurm's variables (default: 0 and 1)."""
    for rank, world_size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in os.environ and world_size in os.environ:
            return int(os.environ[rank]), int(os.environ[world_size])
    return 0, 1


def number(kind: type, low: float) -> Callable[[str], float]:
    """Return a parser for an option's value: a finite int or float, at least `low`."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= kind(text) < math.inf:
                return kind(text)
        noun = "an integer" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"expected {noun} >= {low}, got {text!r}")

    return read


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # submit.py looks for some of the options
    )
    parser.error = lambda message: fail(message, f"list all options: {COMMAND} --help", code=2)
    add = parser.add_argument
    data_dir = Path(os.environ.get("LONGSHIP_SCRATCH_DIR", ".")) / "data"
    modes = ("all", "prepare", "shard", "merge")
    add("mode", nargs="?", default="all", choices=modes, help="step to run (default: all)")
    add("--data-dir", type=Path, default=data_dir, help="output directory (default: %(default)s)")
    add("--name", default="corpus", help="prefix of the outputs' names (default: %(default)s)")
    text_help = "JSON Lines file to tokenize (default: the standard library)"
    add("--input", type=Path, help=text_help)
    add("--tokenizer", type=Path, help="path to a tokenizer.json (default: a BPE, trained here)")
    end_help = "token that ends a document (default: %(default)s)"
    add("--end-of-text", default="<|endoftext|>", help=end_help)
    vocabulary_help = "vocabulary size of the BPE (default: %(default)s)"
    vocabulary = number(int, 257)  # each byte, and the end of a document
    add("--vocab-size", type=vocabulary, default=4096, help=vocabulary_help)
    size_help = "size of the standard library's text, and of the text to train the BPE on"
    size_help += " (default: %(default)s)"
    add("--max-megabytes", type=number(float, 0.001), default=16, help=size_help)
    rank_help = "with shard: index of the shard to write (default: RANK, SLURM_PROCID, or 0)"
    add("--rank", type=number(int, 0), help=rank_help)
    shares_help = "with shard or merge: number of shards"
    shares_help += " (default: WORLD_SIZE, SLURM_NTASKS, or 1; for merge: all)"
    add("--world-size", type=number(int, 1), help=shares_help)
    workers_help = "with shard: processes of this rank, each of which writes a shard"
    workers_help += " (default: SLURM_CPUS_PER_TASK, or 1; with --rank or --world-size: 1)"
    add("--workers", type=number(int, 1), help=workers_help)
    options = parser.parse_args()
    for name in ("rank", "workers"):
        if getattr(options, name) is not None and options.mode != "shard":
            parser.error(f"--{name} cannot be used with the mode {options.mode}, only with shard")
    if options.world_size is not None and options.mode not in ("shard", "merge"):
        message = f"--world-size cannot be used with the mode {options.mode}"
        parser.error(f"{message}, only with shard and merge")
    if not options.end_of_text:
        parser.error("argument --end-of-text: expected a token, got ''")
    if options.mode == "shard":
        launched, chosen = launched_rank(), options.rank is not None or options.world_size
        default = 1 if chosen else int(os.environ.get("SLURM_CPUS_PER_TASK", 1))
        options.workers = options.workers or default
        options.rank = launched[0] if options.rank is None else options.rank
        options.world_size = options.world_size or launched[1]
        if not 0 <= options.rank < options.world_size:
            parser.error(f"rank: expected 0 to {options.world_size - 1}, got {options.rank}")
    return options


def make(layout: Layout) -> None:
    """Run the selected step, or all steps."""
    options = layout.options
    if options.mode in ("all", "prepare"):
        prepare(layout)
        if options.mode == "prepare":
            return
    require("text", layout.text, bool(layout.options.input))
    require("tokenizer", layout.tokenizer, bool(layout.options.tokenizer))
    done = layout.dataset().result()
    if done is not None:
        print(f"dataset: already done, {summary(done)}, see {layout.dataset().files[0]}")
        if options.mode == "merge":
            remove_shards(layout)
    elif options.mode == "shard":
        make_shards(layout, options.rank, options.world_size, options.workers)
    elif options.mode == "merge":
        merge(layout, options.world_size or sharded_world_size(layout.shards_dir))
    else:
        make_shard(layout, rank=0, world_size=1)
        merge(layout, world_size=1)


def main() -> None:
    """Run the selected step while no other process makes the same files.

    `shard` needs no lock, because each rank writes its own files.
    """
    layout = Layout(parse_arguments())
    lock = DirectoryLock(layout.lock)
    if layout.options.mode != "shard":
        lock.path.parent.mkdir(parents=True, exist_ok=True)
        if os.access(lock.path.parent, os.W_OK):
            lock.acquire(wait=True)
    try:
        make(layout)
    finally:
        lock.release()


def report_errors(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function; an error of the file system ends this process with a message."""
    try:
        function(*arguments)
    except OSError as error:
        fail(f"cannot read or write: {error}", "check permissions and free space")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    # SIGTERM, at the time limit, unwinds like Ctrl-C, so that no partial file is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report_errors(main)
