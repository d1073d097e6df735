"""The worker that writes the code of a job to an archive, and prints its checksum.

python3 -I -X utf8 freeze_worker.py freeze FILE SCRATCH [NAME DIR]...

code/NAME/                the files of a repository; longship is this clone
repositories/NAME.commit  the commit that they follow from; NAME.patch has all changes since
repositories/NAME.stays   what stays where it is, because git ignores it, each followed by NUL
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
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from lib.jobs.record_worker import main
from lib.jobs.working_tree import WorkingTree
from lib.repositories.git import GitError, join_names
from lib.script.errors import LongshipError, write_error
from lib.script.execute import read_output, write_file

_LIVE = "to run the files as they are when the job starts, add: --live"
_WRITTEN = ("outputs/", "checkpoints/", "wandb/")  # what jobs write; made where git ignores it
_BUILT = r"\.py$|\.so(\.[^/]+)?$"  # what an installation adds to the files that git tracks
_TAR = "tar --create --format=gnu --null --verbatim-files-from --no-unquote --no-recursion "
_TAR += "--hard-dereference --force-local --mtime=@0 --owner=0 --group=0 --numeric-owner "
_TAR += "--mode=u+rw,go=rX"


def _refuse(reason: str, hint: str = _LIVE) -> NoReturn:
    raise LongshipError(f"cannot freeze the code: {reason}", hint)


class Code:
    """What a job needs of a repository, by path."""

    def __init__(self, name: str, top: Path, scratch: Path) -> None:
        """Find it; SCRATCH, which can be in the repository, is not read."""
        self.name, self.is_clone = name, name == "longship"
        self.files: list[str] = []
        self.built: list[str] = []
        self.stays: list[str] = []
        self.tree = WorkingTree(top, scratch)
        self._find(self.tree, "")

    def _find(self, tree: WorkingTree, above: str) -> None:
        """Add what a working tree has, and those in it: submodules, and new repositories."""
        for each in tree.ask("check-ignore --", *_WRITTEN).splitlines():
            with suppress(OSError):
                (tree.directory / each).mkdir(0o755)
        # of the clone without what no job needs: .gitattributes names it
        needed = [":(exclude,attr:export-ignore)"] if self.is_clone else []
        words = "ls-files -z -t --cached --others --exclude-standard --"
        listed = tree.names(words, *needed)
        new, paths = [each[2:] for each in listed if each[0] == "?"], {each[2:] for each in listed}
        large = tree.sort_out(new, paths.difference(new))[1]
        if large:
            _refuse(
                f"too large, and git does not ignore it: {', '.join(large[:5])}",
                f"name it in {tree.directory}/.gitignore, or move it: jobs find ignored "
                f"directories where they are; or {_LIVE}",
            )
        for path in sorted(paths):
            place = tree.directory / path
            if place.is_dir() and not place.is_symlink():
                if (place / ".git").exists():
                    self._find(WorkingTree(place), f"{above}{path.rstrip('/')}/")
            elif os.path.lexists(place):
                leads_out = place.is_symlink() and _leads_out(f"{above}{path}", os.readlink(place))
                (self.stays if leads_out else self.files).append(f"{above}{path}")
        last = "/"  # the last directory, whose files git can list too
        for path in _ignored(tree, any("/" in each for each in new)):
            if not path.startswith(last) and not path.endswith((".pyc", "__pycache__/")):
                last = path if path.endswith("/") else last
                self._add_ignored(f"{above}{path}", tree.directory / path)

    def _add_ignored(self, path: str, place: Path) -> None:
        if path.endswith(".egg-info/") and not self.is_clone:
            self.built += [f"{path}{each.name}" for each in place.iterdir() if each.is_file()]
        elif self.is_clone or path.endswith("/"):
            self.stays.append(path.rstrip("/"))
        elif re.search(_BUILT, path):
            self.built.append(path)

    def describe(self, records: Path) -> None:
        """Write the files in repositories/."""
        stays = "".join(f"{each}\0" for each in sorted(self.stays))
        write_file(records / f"{self.name}.stays", stays)
        try:
            self.tree.describe(records / self.name)
        except (OSError, GitError, LongshipError) as error:
            write_file(records / f"{self.name}.commit", f"commit unknown: {error}\n")


def _leads_out(path: str, target: str) -> bool:
    """Tell whether a link leaves the repository by a relative path, which no copy has."""
    found = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return not os.path.isabs(target) and found.split("/")[0] == ".."


def _ignored(tree: WorkingTree, has_new_directories: bool) -> list[str]:
    """Return what git ignores; git 2.30 names a directory in a new one only in its status."""
    found = tree.names("ls-files -z --others --ignored --exclude-standard --directory")
    if not has_new_directories:
        return sorted(found)
    words = "status -z --porcelain --ignored=matching --untracked-files=all --ignore-submodules=all"
    status = (each[3:] for each in tree.names(words) if each.startswith("!! "))
    return sorted({*found, *(each for each in status if each.endswith("/"))})


def freeze(file: str, scratch: str, *words: str) -> None:
    """Write the code as it is now; WORDS are name and directory of each repository."""
    if not shutil.which("git"):
        _refuse("git not found on this machine", f"load its module (module load git); or {_LIVE}")
    work, names = Path(tempfile.mkdtemp()), []
    (work / "code").mkdir(0o700)
    (work / "repositories").mkdir(0o700)
    for name, top in zip(words[::2], words[1::2]):
        if name != "longship" and not os.path.exists(top):
            continue
        try:
            code = Code(name, Path(top), Path(scratch))
        except (OSError, GitError) as error:
            _refuse(f"cannot read {top}: {getattr(error, 'strerror', '') or error}")
        code.describe(work / "repositories")
        # tar names the files by this link; what is built comes last, or make would build it again
        (work / "code" / name).symlink_to(top)
        names += [f"code/{name}/{path}" for path in (*code.files, *sorted(code.built))]
    names += [f"repositories/{each}" for each in sorted(os.listdir(work / "repositories"))]
    tar = [*_TAR.split(), f"--file={file}", f"--directory={work}", "--files-from=-"]
    done = read_output(tar, 3600, given=os.fsdecode(join_names(names)))
    if done.code:
        reason = done.text.partition("\n")[0] or f"tar ended with code {done.code}"
        hint = "see the reason, then run the command again"
        raise write_error(os.path.dirname(file), "cannot freeze the code", hint, reason)
    os.chmod(file, 0o400)
    print(hashlib.sha256(Path(file).read_bytes()).hexdigest())


if __name__ == "__main__":
    main({"freeze": freeze})
