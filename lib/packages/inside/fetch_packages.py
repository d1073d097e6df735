"""Download wheels for a target, which can be another machine, into its wheelhouse.

Runs on the machine with network, with a Python whose venv contains pip and uv. WORK is a directory
for unfinished files, with ``target/`` (describe_image.py) and ``pins.txt`` (resolve_packages.py).

Usage: python fetch_packages.py fetch  WHEELHOUSE NAME ARCH WORK REPOSITORIES SOURCE... -- OPTION...
       python fetch_packages.py finish WHEELHOUSE NAME ARCH WORK yes|no

``fetch`` lists packages without a wheel in ``missing.txt``; ``finish`` takes the wheels that were
built of them from ``built/``; the last argument is yes if the target built them. OPTIONs are pip's.
"""

import concurrent.futures
import errno
import glob
import os
import subprocess
import sys
import tempfile

import build_requirements
import pip_options
import program
import resolve_packages
from wheelhouse import Wanted, Wheelhouse

BATCH, AT_ONCE = 12, 4  # packages a pip, and pips
MISSING, FULL = 3, 4  # exit codes: a package has no wheel, the disk is full


def read_wanted(work):
    """Return the packages that `fetch` has listed, each once."""
    found = {}
    for path in [
        os.path.join(work, "pins.txt"),
        *sorted(glob.glob(f"{glob.escape(work)}/build_*")),
    ]:
        with open(path, encoding="utf-8") as file:
            for pin, line in resolve_packages.read_pins(file.read()).items():
                found.setdefault(pin, Wanted(pin, line, path.endswith("/pins.txt")))
    return list(found.values())


def batches(wanted):
    """Split packages for several pips; pip takes only one version of each at a time."""
    found = []
    for each in wanted:
        for batch in found:
            if len(batch) < BATCH and each.name not in [other.name for other in batch]:
                batch.append(each)
                break
        else:
            found.append([each])
    return found


class Fetcher:
    """Downloads by several pips; `sources` are the lines that say where packages are."""

    def __init__(self, house, python, work, options, sources):
        self._house = house
        self._work = work
        self._sources = sources
        platforms = [f"--platform={each}" for each in house.platforms]
        self._command = [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download"),
            *("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"),
            *(f"--python-version={python}", *platforms, *options),
        ]

    def fetch(self, wanted):
        """Fetch packages and return those that have no wheel for the target."""
        missing, done = [], 0
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(self._batch, batch) for batch in batches(wanted)]
            try:
                for each in concurrent.futures.as_completed(running):
                    fetched, without = each.result()
                    missing += without
                    done += fetched
                    print(f"{done} of {len(wanted)} packages downloaded", file=sys.stderr)
            except KeyboardInterrupt:
                os._exit(130)  # without waiting for the pips: they got the signal too
        return missing

    def _batch(self, batch):
        output = self._download(batch)
        if output is None:
            return len(batch), []
        if len(batch) > 1:
            parts = [self._batch([each]) for each in batch]
            return sum(part[0] for part in parts), [each for part in parts for each in part[1]]
        if "No matching distribution found" in output and "Retrying (" not in output:
            return 0, batch
        if os.strerror(errno.ENOSPC) in output:
            sys.exit(FULL)
        sys.stderr.write(output)
        sys.exit(1)

    def _download(self, batch):
        """Return None after success, else pip's output."""
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            requirements = os.path.join(folder, "requirements.txt")
            with open(requirements, "w", encoding="utf-8") as file:
                file.writelines([*self._sources, *(each.line for each in batch)])
            files = os.path.join(folder, "files")
            done = subprocess.run(
                [*self._command, "--dest", files, "-r", requirements],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                close_fds=False,  # the file of the lock that the caller holds
            )
            if done.returncode:
                return done.stdout
            for file in os.listdir(files):
                os.replace(os.path.join(files, file), self._house.path(file))
            return None


def fetch(house, python, work, repositories, sources, options):
    """Fetch every wheel that exists, and list packages that have none."""
    os.environ.update(pip_options.variables(options))
    build_requirements.resolve(work, house.arch, repositories, sources)
    wanted = read_wanted(work)
    held = house.held(wanted)
    todo = [each for each in wanted if each not in held]
    sources = resolve_packages.index_options(resolve_packages.read(work, "pins.txt"))
    missing = Fetcher(house, python, work, options, sources).fetch(todo)
    with open(os.path.join(work, "missing.txt"), "w", encoding="utf-8") as file:
        file.writelines([*sources, *(each.line for each in missing)] if missing else [])


def take_built(house, work, on_target):
    """Move the wheels that were built into the wheelhouse, those that the target can use."""
    for path in sorted(glob.glob(f"{glob.escape(work)}/built/*.whl")):
        file = os.path.basename(path)
        if house.fits(file) and (on_target or file.endswith("-none-any.whl")):
            os.replace(path, house.path(file))
            house.record_built(file)


def finish(house, python, work, on_target):
    """Write the lists and print the table; fail if a package has no wheel."""
    take_built(house, work, on_target)
    wanted = read_wanted(work)
    held = house.held(wanted)
    missing = [f"{each.name} {each.version}" for each in wanted if each not in held]
    if missing:
        print(", ".join(missing))
        sys.exit(MISSING)
    with open(os.path.join(work, "header"), encoding="utf-8") as file:
        house.write_lists(held, file.read())
    print_table(house, held)


def print_table(house, held):
    """Print a line for each package."""
    rows = [("package", "version", "file", "size")]
    total = 0
    for each, file in sorted(held.items(), key=lambda item: item[0].key):
        size = os.path.getsize(house.path(file))
        total += size
        kind = "wheel" if house.digest(file) in each.hashes else "wheel built on this machine"
        use = "" if each.installed else ", for builds"
        rows.append((each.name, each.version, kind + use, megabytes(size)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*map(str.ljust, row[:3], widths), row[3].rjust(9)]))
    print(f"{len(held)} packages, {megabytes(total)}")


def megabytes(size):
    """Format a size."""
    return f"{size / 1e6:.1f} MB"


def main(mode, folder, name, arch, work, *arguments):
    """Do one of the two steps."""
    target = os.path.join(work, "target")
    python = resolve_packages.read(target, "python")
    house = Wheelhouse(folder, name, arch, python, resolve_packages.read(target, "glibc"))
    if mode == "finish":
        finish(house, python, work, arguments == ("yes",))
        return
    split = arguments.index("--")
    sources, options = arguments[1:split], arguments[split + 1 :]
    fetch(house, python, work, arguments[0], sources, options)


if __name__ == "__main__":
    program.start(main)
