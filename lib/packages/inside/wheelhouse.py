"""The wheelhouse: a directory with the wheels that a target, often another machine, needs.

Two files list the needs of one stack on one architecture: ``NAME.lock``, what is installed, and
``NAME.sha256``, every file, with what builds need. WORK is a directory for unfinished files, with
``target/`` (describe_image.py) and ``pins.txt`` (resolve_packages.py). Everything here runs with a
Python whose venv contains pip and uv.
"""

import concurrent.futures
import errno
import glob
import hashlib
import os
import re
import subprocess
import sys
import tempfile

import build_requirements
import resolve_packages
from pip._vendor.packaging import tags, utils

BATCH, AT_ONCE = 12, 4  # packages a pip, and pips
MISSING, FULL = 3, 4  # exit codes: a package has no wheel, the disk is full
_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")


def fetch(folder, name, arch, work, repositories, *arguments):
    """Download every wheel that exists, and list packages that have none in ``missing.txt``.

    The arguments are the repositories to build, ``--``, and options of pip.
    """
    split = arguments.index("--")
    house = Wheelhouse(folder, name, arch, work)
    build_requirements.resolve(work, arch, repositories, arguments[:split])
    wanted = read_wanted(work)
    held = house.held(wanted)
    sources = resolve_packages.index_options(resolve_packages.read(work, "pins.txt"))
    todo = [each for each in wanted if each not in held]
    missing = download(house, todo, sources, arguments[split + 1 :])
    with open(os.path.join(work, "missing.txt"), "w", encoding="utf-8") as file:
        file.writelines([*sources, *(each.line for each in missing)] if missing else [])


def finish(folder, name, arch, work, on_target):
    """Take the wheels that were built, write the lists and print the table.

    `on_target` is yes if the wheels were built by the target, which can use those for one machine.
    """
    house = Wheelhouse(folder, name, arch, work)
    for path in sorted(glob.glob(f"{glob.escape(work)}/built/*.whl")):
        file = os.path.basename(path)
        if house.fits(file) and (on_target == "yes" or file.endswith("-none-any.whl")):
            os.replace(path, house.path(file))
            house.record_built(file)
    wanted = read_wanted(work)
    held = house.held(wanted)
    missing = [f"{each.name} {each.version}" for each in wanted if each not in held]
    if missing:
        print(", ".join(missing))
        sys.exit(MISSING)
    house.write_lists(held, resolve_packages.read(work, "header"))
    print_table(house, held)


class Wanted:
    """One package of the wheelhouse; not `installed` if only a build needs it."""

    def __init__(self, pin, line, installed):
        self.name, _, self.version = pin.partition("==")
        if not self.version:
            sys.exit(
                f"cannot download {pin}, a requirement with a URL: download its wheel into a "
                "directory, and add that with --find-links"
            )
        self.line = line
        self.installed = installed
        self.hashes = set(re.findall(r"--hash=sha256:([0-9a-f]+)", line))
        self.key = (utils.canonicalize_name(self.name), utils.Version(self.version))


def read_wanted(work):
    """Return all packages that were resolved, each once."""
    found = {}
    builds = sorted(glob.glob(f"{glob.escape(work)}/build_*"))
    for name in ["pins.txt", *map(os.path.basename, builds)]:
        for pin, line in resolve_packages.read_pins(resolve_packages.read(work, name)).items():
            found.setdefault(pin, Wanted(pin, line, name == "pins.txt"))
    return list(found.values())


class Wheelhouse:
    """The directory, as one target sees it; `name` is that of its lists: ``pytorch_arm64``."""

    def __init__(self, folder, name, arch, work):
        self.folder = folder
        self.name = name
        self.work = work
        target = os.path.join(work, "target")
        self.python = resolve_packages.read(target, "python")
        newest = int(resolve_packages.read(target, "glibc").partition(".")[2] or 28)
        machine = resolve_packages.MACHINES[arch]
        self.platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
        self.platforms += [f"{each}_{machine}" for each in _LEGACY]
        version = tuple(map(int, self.python.split(".")))
        platforms = [*self.platforms, f"linux_{machine}"]  # the last is for one machine alone
        self._tags = {
            *tags.cpython_tags(version, platforms=platforms),
            *tags.compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        }
        self._digests = {}

    def path(self, file):
        """Return the path of a file in the directory."""
        return os.path.join(self.folder, file)

    def fits(self, file):
        """Return whether the target can use a file, by its name."""
        try:
            return bool(utils.parse_wheel_filename(file)[3] & self._tags)
        except utils.InvalidWheelFilename:
            return False

    def held(self, wanted):
        """Return the file of each package that exists and is undamaged."""
        files = {}
        for file in filter(self.fits, sorted(os.listdir(self.folder))):
            files.setdefault(utils.parse_wheel_filename(file)[:2], []).append(file)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            needed = [file for each in wanted for file in files.get(each.key, ())]
            list(pool.map(self.digest, needed))
        built = self._recorded()
        return {
            each: file
            for each in wanted
            for file in files.get(each.key, ())
            if self.digest(file) in each.hashes or built.get(file) == self.digest(file)
        }

    def digest(self, file):
        """Return the sha256 of a file, in hexadecimal digits; it is computed once."""
        if file not in self._digests:
            digest = hashlib.sha256()
            with open(self.path(file), "rb") as opened:
                for block in iter(lambda: opened.read(1 << 20), b""):
                    digest.update(block)
            self._digests[file] = digest.hexdigest()
        return self._digests[file]

    def _recorded(self):
        """Return the checksums of all lists: no index has wheels that were built here."""
        found = {}
        for path in glob.glob(self.path("*.sha256")):
            with open(path, encoding="utf-8") as lines:
                found.update(reversed(line.rstrip("\n").split("  ")) for line in lines)
        return found

    def record_built(self, file):
        """Record a wheel that was built here from its sdist, before all is complete."""
        with open(self.path(f"{self.name}_built.sha256"), "a", encoding="utf-8") as lines:
            lines.write(f"{self.digest(file)}  {file}\n")

    def write_lists(self, held, header):
        """Write both lists, and remove files that only the previous lists contained."""
        before = set(self._recorded())
        pins = sorted(
            f"{each.name}=={each.version} --hash=sha256:{self.digest(file)}\n"
            for each, file in held.items()
            if each.installed
        )
        files = sorted({f"{self.digest(file)}  {file}\n" for file in held.values()})
        for kind, lines in (("sha256", files), ("lock", [header, *pins])):
            path = self.path(f"{self.name}.{kind}")
            with open(f"{path}.partial", "w", encoding="utf-8") as file:
                file.writelines(lines)
            os.replace(f"{path}.partial", path)
        built = self.path(f"{self.name}_built.sha256")
        if os.path.exists(built):
            os.remove(built)
        for path in map(self.path, before - set(self._recorded())):
            if os.path.exists(path):
                os.remove(path)


def download(house, wanted, sources, options):
    """Download packages with several pips; return those that have no wheel for the target.

    `sources` are the lines of a requirements file that say where packages are.
    """
    platforms = [f"--platform={each}" for each in house.platforms]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:"),
        *(f"--python-version={house.python}", *platforms, *options),
    ]

    def run(batch):
        """Return None after success, else pip's output."""
        with tempfile.TemporaryDirectory(dir=house.work) as folder:
            requirements = os.path.join(folder, "requirements.txt")
            with open(requirements, "w", encoding="utf-8") as file:
                file.writelines([*sources, *(each.line for each in batch)])
            files = os.path.join(folder, "files")
            done = subprocess.run(
                [*command, "--dest", files, "-r", requirements],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                close_fds=False,  # the file of the lock that the caller holds
            )
            if done.returncode:
                return done.stdout
            for file in os.listdir(files):
                os.replace(os.path.join(files, file), house.path(file))
            return None

    def without_wheel(batch):
        output = run(batch)
        if output is None:
            return []
        if len(batch) > 1:
            return [missing for each in batch for missing in without_wheel([each])]
        if "No matching distribution found" in output and "Retrying (" not in output:
            return batch
        if os.strerror(errno.ENOSPC) in output:
            sys.exit(FULL)
        sys.exit(output)

    missing, done = [], 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(without_wheel, batch): batch for batch in batches(wanted)}
        try:
            for each in concurrent.futures.as_completed(running):
                missing += each.result()
                done += len(running[each])
                found = done - len(missing)
                print(f"{found} of {len(wanted)} packages downloaded", file=sys.stderr)
        except KeyboardInterrupt:
            os._exit(130)  # without waiting for the pips: they got the signal too
    return missing


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


def print_table(house, held):
    """Print a line for each package."""
    rows = [("package", "version", "file", "size")]
    total = 0
    for each, file in sorted(held.items(), key=lambda item: item[0].key):
        size = os.path.getsize(house.path(file))
        total += size
        kind = "wheel" if house.digest(file) in each.hashes else "wheel built on this machine"
        use = "" if each.installed else ", for builds"
        rows.append((each.name, each.version, kind + use, f"{size / 1e6:.1f} MB"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*map(str.ljust, row[:3], widths), row[3].rjust(9)]))
    print(f"{len(held)} packages, {total / 1e6:.1f} MB")
