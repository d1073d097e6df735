"""The worker that freezes the code of jobs; frozen_code.bash starts it.

  python3 -X utf8 freeze_worker.py ACTION ARGUMENT...

A job runs the files of this clone and of the external repositories as they were at submission.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python imports: no traceback

# ruff: noqa: E402
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NoReturn

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lib.jobs.record_worker import main
from lib.jobs.working_tree import WorkingTree, checksum
from lib.repositories.git import GitError, join_names, split_names
from lib.script.errors import LongshipError, print_messages, write_error
from lib.script.execute import make_directory, read_output
from lib.script.records import content_of
from lib.script.trust import check_trusted

_LIVE = "to run the files as they are when the job starts, add: --live"
# compiled extensions, generated modules and metadata, which git ignores
_BUILT = ("*.so", "*.so.*", "*.py", "*.egg-info/*", ":(exclude,glob)**/site-packages/**")
_IGNORED = "ls-files -z --others --ignored --exclude-standard"
_ID = "[0-9a-f]{12}"
_UNUSED_DAYS = 30
_LONGEST_LISTING = 20  # seconds


class Frozen:
    """The copy of a repository: where it is, what is in it, and how it is made."""

    def __init__(self, store: Path, name: str, code: WorkingTree) -> None:
        """Find what git does not track, but a job needs.

        Of an external repository this is what its installation has built in it; of this clone,
        where the copy is the working directory of a job, links to data, outputs and .venv.
        """
        self.store, self.code, self.parts = store, code, dict(code.with_submodules())
        self.files, self.large = {}, []
        for below, part in self.parts.items():
            for path in part.files.keys() - part.parts.keys():
                self.files[f"{below}{path}"] = part.files[path]
            self.large += [f"{below}{path}" for path in part.large]
        self.links = self._links() if name == "longship" else {}
        self.built = {} if name == "longship" else self._built()
        self.content = checksum({**self.files, **self.built})
        self.all = {**self.files, **self.built, **self.links}
        self.target = store / f"{name}-{checksum(self.all)[:12]}"
        self.name = f"{self.target.name}-{code.commit[:12]}"

    def _links(self) -> dict[str, str]:
        """Return the target of each link: ignored, large, or what a link outside leads to."""
        top, found = self.code.directory, [*self.large]
        for below, part in self.parts.items():
            above = "/"  # the last directory
            for path in part.names(f"{_IGNORED} --directory"):
                if path.startswith(above) or path.endswith((".pyc", "__pycache__/")):
                    continue
                found.append(f"{below}{path.rstrip('/')}")
                above = path if path.endswith("/") else above
        root = os.path.realpath(top)
        for path, entry in self.files.items():
            if entry.startswith("120000 ") and (top / path).is_symlink():
                outside = not os.path.realpath(top / path).startswith(f"{root}/")
                if outside and ".." in os.readlink(top / path):
                    found.append(path)
        return {path: str(top / path) for path in found}

    def _built(self) -> dict[str, str]:
        """Return a checksum of each file that an installation has built."""
        found = {}
        for path in self.code.names(f"{_IGNORED} --", *_BUILT):
            if (self.code.directory / path).is_file():
                digest = hashlib.sha256()
                with open(self.code.directory / path, "rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
                found[path] = digest.hexdigest()
        return found

    def keep(self) -> None:
        """Make the copy and its record, complete under their names.

        If files were removed from a copy, as sites do with old files, only these are made again.
        """
        made = Path(f"{self.target}.made")
        if self.target.is_dir():
            if not made.exists():
                made.write_bytes(join_names([*self.all]))
            finished = made.stat().st_mtime_ns
            for path in self._write(self.target):  # no job wrote it
                os.utime(self.target / path, ns=(finished, finished), follow_symlinks=False)
        else:
            partial = Path(tempfile.mkdtemp(prefix=".partial.", dir=self.store))
            listed = Path(f"{partial}.made")
            try:
                self._write(partial)
                partial.chmod(0o755)
                listed.write_bytes(join_names([*self.all]))
                listed.replace(made)
                partial.rename(self.target)
            except OSError:
                if not self.target.is_dir():  # another submission has made it
                    raise
            finally:
                listed.unlink(missing_ok=True)
                shutil.rmtree(partial, ignore_errors=True)
        lines = (f"content {self.content}", f"frozen {self.name}")
        self.code.describe(self.store / self.name, *lines)

    def _write(self, place: Path) -> list[str]:
        """Write what a directory lacks, and return it; read-only: nobody changes it by mistake."""
        lacking = [path for path in self.all if not os.path.lexists(place / path)]
        tracked = {path for path in lacking if path not in self.links and path not in self.built}
        for below, part in self.parts.items():
            paths = [path for path in part.files if f"{below}{path}" in tracked]
            if paths:
                prefix = f"--prefix={place}/{below}"
                part.run("checkout-index -z --stdin", prefix, given=join_names(paths))
        for path in lacking:
            file = place / path
            if path not in tracked:
                file.parent.mkdir(parents=True, exist_ok=True)
            if path in self.links:
                file.symlink_to(self.links[path])
            elif path in self.built:
                # With a new time: make, which Megatron-LM calls, would build again what is older.
                shutil.copy(self.code.directory / path, file)
            if file.is_file() and not file.is_symlink():
                file.chmod(file.stat().st_mode & ~0o222)
        return lacking


def freeze(store: str, *words: str, run: Path | None = None) -> None:
    """Keep the code of a job, as it is now or as it was in a run.

    WORDS are name and directory of each repository, this clone first. The script gets a
    NAME-ID-COMMIT for each that is kept.
    """
    directory, frozen = _make_store(store), []
    for name, top in zip(words[::2], words[1::2]):
        needed = f"{run}/repositories/{name}.commit" if run else top
        if name != "longship" and not os.path.exists(needed):
            continue
        try:
            if run:
                frozen += _restore(directory, run, name, Path(top))
            else:
                code = WorkingTree(Path(top), directory.parents[1])  # without the scratch directory
                frozen += _keep(Frozen(directory, name, code))
        except (OSError, GitError) as error:
            reason = getattr(error, "strerror", error)
            _refuse(name, f"cannot read {top}: {reason}")
    copies = [each.rpartition("-")[0] for each in frozen]
    with suppress(OSError, ValueError):
        for each in copies:
            os.utime(directory / each)
        _prune(directory)
    print(*frozen)
    text = f"frozen in {directory}: {' '.join(copies)}; later changes do not reach this job"
    print_messages(code=text)


def restore(store: str, run: str, *words: str) -> None:
    """Find or make the code of a run; stop if it is not available."""
    freeze(store, *words, run=Path(run))


def _make_store(store: str) -> Path:
    """Make the directory of all copies, which can contain what nobody else is to read."""
    if not shutil.which("git"):
        hint = f"load its module (module load git); or {_LIVE}"
        raise LongshipError("cannot freeze the code: git not found on this machine", hint)
    directory = Path(store)
    make_directory(directory)
    check_trusted(directory, directory)
    os.umask(0o022)
    return directory


def _refuse(name: str, reason: str) -> NoReturn:
    """Stop, as the code of a job is not what it has to be."""
    raise LongshipError(f"cannot freeze the code of {name}: {reason}", _LIVE)


def _keep(frozen: Frozen) -> list[str]:
    """Copy the files of a repository, and return NAME-ID-COMMIT.

    In this clone large files become links. An external repository with such files is not frozen:
    the copy is mounted over it, where a link to itself leads nowhere.
    """
    name, directory = frozen.target.name.rpartition("-")[0], frozen.code.directory
    files = f"{', '.join(frozen.large[:5])}{', ...' if frozen.large[5:] else ''}"
    if files and name == "longship":
        reason = "as git does not track them and they are large"
        print_messages(note=f"not frozen but linked to, {reason}: {files}")
    elif files:
        reason = "git neither tracks nor ignores these large files in"
        hint = "move them to another directory, or add them to its .gitignore "
        print_messages(
            warning=f"{name} is not frozen: {reason} {directory}: {files}",
            hint=f"{hint}if the job does not need them",
        )
        return []
    try:
        frozen.keep()
    except (OSError, GitError, LongshipError) as error:
        reason = getattr(error, "strerror", str(error))
        message = f"cannot copy the code of {name} to {frozen.store}"
        hint = "check the reason above, then run the command again"
        raise write_error(frozen.store, message, hint, reason) from error
    return [frozen.name]


def _restore(store: Path, run: Path, name: str, top: Path) -> list[str]:
    """Find or make the copy of a repository in the record of a run, and return NAME-ID-COMMIT."""
    record = run / "repositories" / name
    lines = os.fsdecode(content_of(Path(f"{record}.commit"))).split("\n")
    facts = {key: value for key, _, value in (line.partition(" ") for line in lines)}
    if "files" not in facts:
        raise LongshipError(
            f"the record of {run.name} does not have the code of {name}: an older version wrote "
            "it, or the job ended early",
            f"run it with the current code: python3 submit.py rerun {run.name} --live",
        )
    frozen = facts.get("frozen", "")
    is_name = re.fullmatch(f"{re.escape(name)}-{_ID}-({_ID})?", frozen)
    if is_name and _is_complete(store / frozen.rpartition("-")[0]):
        for kind in ("commit", "patch"):
            with suppress(FileNotFoundError):
                shutil.copy(f"{record}.{kind}", store / f"{frozen}.{kind}")
        return [frozen]
    if not top.is_dir():
        _refuse(name, f"it no longer exists: {top}")
    code = WorkingTree(top, store.parents[1])
    if checksum(code.files) != facts["files"]:
        _apply(code, name, facts, Path(f"{record}.patch"))
    if checksum(code.files) != facts["files"]:
        left = " ".join(f"some files are {line}" for line in lines if line.startswith("left out"))
        _refuse(name, f"its record is not complete: {left}")
    kept = Frozen(store, name, code)
    if facts.get("content", kept.content) != kept.content:
        _refuse(name, f"compiled files or submodules in {top} have changed since {run.name}")
    return _keep(kept)


def _is_complete(copy: Path) -> bool:
    """Tell whether no file of a copy is missing."""
    made = Path(f"{copy}.made")
    names = split_names(content_of(made))
    return made.exists() and all(os.path.lexists(copy / each) for each in names)


def _apply(code: WorkingTree, name: str, facts: dict[str, str], patch: Path) -> None:
    """Replace the files by the recorded commit and changes."""
    base = facts.get("base", "")
    if not base:
        _refuse(name, f"{code.directory} has changed, and was not recorded from a git repository")
    if not code.succeeds("cat-file -e", f"{base}^{{commit}}"):
        _refuse(name, f"commit {base} is no longer in {code.directory}")
    try:
        code.apply(base, facts["commit"], patch)
    except GitError:
        _refuse(name, f"git cannot apply {patch}")


def _prune(store: Path) -> None:
    """Remove copies that no job has used for a month, but not those with files that a job wrote.

    A job that waits since longer may still need one.
    """
    limit = time.time() - _UNUSED_DAYS * 86400
    found = [each for each in os.scandir(store) if each.is_dir(follow_symlinks=False)]
    old = [Path(each) for each in found if each.stat().st_mtime < limit]
    queued = read_output(["squeue", "--me", "--noheader", "--format=%V"], 20) if old else None
    if not queued or queued.code:
        return
    if any(datetime.fromisoformat(each).timestamp() < limit for each in queued.text.split()):
        return
    for copy in old:
        with suppress(OSError):
            if copy.name.startswith(".partial.") or not any(written(copy)):
                shutil.rmtree(copy)
                for each in store.iterdir():
                    if each.name.startswith((f"{copy.name}-", f"{copy.name}.made")):
                        each.unlink()


def written(copy: Path) -> Iterator[str]:
    """Yield the files that jobs wrote into a copy, also those with an old time (cp -p, tar).

    It is an OSError if some may be missing: the list is, or the file system is too slow.
    """
    made, end = Path(f"{copy}.made"), time.monotonic() + _LONGEST_LISTING
    frozen, finished = set(split_names(made.read_bytes())), made.stat().st_mtime_ns
    for directory, names, files in os.walk(copy, onerror=_raise):
        for each in [*files, *(name for name in names if Path(directory, name).is_symlink())]:
            file = Path(directory, each)
            path = str(file.relative_to(copy))
            is_new = path not in frozen or file.lstat().st_mtime_ns > finished
            if is_new and file.suffix != ".pyc":
                yield path
            if time.monotonic() > end:
                raise TimeoutError


def _raise(error: OSError) -> NoReturn:
    raise error


def return_files(copy: str, clone: str) -> None:
    """Give the clone links to what a job wrote with relative paths, for the next job."""
    done = set()
    with suppress(OSError):
        for path in written(Path(copy)):
            name = path.partition("/")[0]
            link, file = Path(clone, name), Path(copy, name)
            if name in done or (link.exists() and link.samefile(file)):
                continue
            done.add(name)
            try:
                link.symlink_to(file)
                text = f"{link} is now a link to what the job wrote in {copy}"
            except OSError:
                text = f"the job wrote {copy}/{path}, not into the clone"
            print(f"longship: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main({"freeze": freeze, "restore": restore, "return": return_files})
