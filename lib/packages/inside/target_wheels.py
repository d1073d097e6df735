"""The wheels of a target, often a machine of another architecture: uv chooses, pip downloads.

Two files of the wheelhouse list the needs of one stack on one architecture: ``NAME.lock``, what is
installed, and ``NAME.sha256``, the checksum of every file, and how many there are. WORK is a
directory for unfinished files, with ``target/`` (describe_image.py) and ``pins.txt``
(resolve_packages.py).
Everything here runs with a Python whose venv contains pip, build and uv.
"""

import concurrent.futures
import contextlib
import errno
import glob
import hashlib
import itertools
import os
import subprocess
import sys
import urllib.parse

import build
import build.env
import describe_image
import pyproject_hooks
import resolve_packages
from packaging import utils

MISSING, FULL = 3, 4  # exit codes: a package has no wheel, the disk is full
UV = os.path.join(os.path.dirname(sys.executable), "uv")
# the backend of repositories that name none, and what a script of the user may need
ALWAYS = ("setuptools", "wheel", "pip", "-r", os.path.join(os.path.dirname(__file__), "uv.txt"))


class Wanted:
    """One package of the list with this number, and the file that the target needs.

    `file` is "" if no wheel of `package`, from a pylock.toml, has one of the hashes of `line`.
    """

    def __init__(self, number, package, line):
        self.number, self.line = number, line
        self.name, self.version = package["name"], package["version"]
        self.file = self.url = self.digest = ""
        for wheel in package.get("wheels", ()):
            if wheel["hashes"]["sha256"] in line:
                self.url, self.digest = wheel["url"], wheel["hashes"]["sha256"]
                self.file = urllib.parse.unquote(os.path.basename(self.url))


def fetch(directory, name, arch, work, repositories, *arguments):
    """Download every wheel that exists, and list packages that have none in ``missing.txt``.

    The arguments are the repositories to build, ``--``, and options of pip.
    """
    split = arguments.index("--")
    resolve_builds(work, arch, repositories, arguments[:split])
    wanted = choose(work, arch)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sums = pool.map(checksum, [os.path.join(directory, each.file) for each in wanted])
        todo = [each for each, found in zip(wanted, sums) if each.file and found != each.digest]
    download(directory, work, todo, arguments[split + 1 :])
    missing = [each.line for each in wanted if not each.file]
    sources = resolve_packages.index_options(resolve_packages.read(work, "pins.txt"))
    with open(os.path.join(work, "missing.txt"), "w", encoding="utf-8") as file:
        file.writelines([*sources, *missing] if missing else [])


def resolve_builds(work, arch, repositories, sources):
    """Resolve the build requirements, one file ``build_NAME`` for each repository.

    Two repositories may need different versions; ``build_`` is for all of them. The sources are
    ``./NAME[EXTRA]``, after ``-e`` if they are editable.
    """
    wanted = {"": ALWAYS}
    words = iter(sources)
    for word in words:
        name = (next(words) if word == "-e" else word)[len("./") :].partition("[")[0]
        kind = "editable" if word == "-e" else "wheel"
        try:
            wanted[name] = required_by(os.path.join(repositories, name), kind)
        except subprocess.CalledProcessError as error:
            sys.stderr.buffer.write(error.stdout or b"")
            sys.stderr.buffer.write(error.stderr or b"")
            sys.exit(f"cannot list the build requirements of repository {name}")
        except (build.BuildException, build.BuildBackendException) as error:
            sys.exit(f"cannot list the build requirements of repository {name}: {error}")
    own = os.path.join(work, "target")
    described = [resolve_packages.read(own, each) for each in ("python", "glibc")]
    target = os.path.join(work, "build target")  # a build does not see the image's packages
    describe_image.write_description(target, *described)
    for name, requirements in wanted.items():
        out = os.path.join(work, f"build_{name}")
        resolve_packages.resolve(UV, target, arch, "", "", repositories, out, *requirements)


def required_by(repository, kind):
    """Return what the build of a repository requires: what it lists, and what its backend adds."""
    with build.env.DefaultIsolatedEnv() as environment:
        run = pyproject_hooks.quiet_subprocess_runner
        builder = build.ProjectBuilder.from_isolated_env(environment, repository, run)
        environment.install(builder.build_system_requires)
        return sorted(builder.build_system_requires | builder.get_requires_for_build(kind))


def finish(directory, name, arch, work, on_target):
    """Take the wheels that were built, write the lists and print the sum.

    `on_target` is yes if the wheels were built by the target, which can use those for one machine.
    """
    built = {}
    for path in sorted(glob.glob(f"{glob.escape(work)}/built/*.whl")):
        file = os.path.basename(path)
        if on_target == "yes" or file.endswith("-none-any.whl"):
            built[utils.parse_wheel_filename(file)[:2]] = file
            os.replace(path, os.path.join(directory, file))
    wanted = choose(work, arch)
    for each in wanted:
        key = utils.canonicalize_name(each.name), utils.Version(each.version)
        if not each.file and key in built:
            each.file = built[key]
            each.digest = checksum(os.path.join(directory, each.file))
    missing = [f"{each.name} {each.version}" for each in wanted if not each.file]
    if missing:
        print(", ".join(missing))
        sys.exit(MISSING)
    write_lists(directory, name, wanted, resolve_packages.read(work, "header"))
    print_sum(directory, wanted)


def choose(work, arch):
    """Return all packages, each once: of the list that is installed, then of those of builds."""
    found = {}
    builds = sorted(glob.glob(f"{glob.escape(work)}/build_*"))
    for number, name in enumerate(["pins.txt", *map(os.path.basename, builds)]):
        pins = resolve_packages.read_pins(resolve_packages.read(work, name))
        out = f"pylock.{number}.toml"
        if not os.path.exists(os.path.join(work, out)):
            resolve_packages.choose_wheels(UV, work, arch, name, out)
        packages = resolve_packages.tomllib.loads(resolve_packages.read(work, out)).get(
            "packages", ()
        )
        packages = {f"{each['name']}=={each.get('version')}": each for each in packages}
        for pin, line in pins.items():
            if pin not in packages:
                sys.exit(
                    f"cannot download {pin}, a requirement with a URL: download its wheel into a "
                    "directory, and add that with --find-links"
                )
            found.setdefault(pin, Wanted(number, packages[pin], line))
    return list(found.values())


def checksum(path):
    """Return the sha256 of a file, in hexadecimal digits; "" if it is not one."""
    if not os.path.isfile(path):
        return ""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def download(directory, work, wanted, options):
    """Download wheels; a pip takes only one version of each package."""
    done = os.path.join(work, "downloaded")
    requirements = os.path.join(work, "download.txt")
    for _, group in itertools.groupby(wanted, lambda each: each.number):
        group = list(group)
        tags = {tag for each in group for tag in utils.parse_wheel_filename(each.file)[3]}
        with open(requirements, "w", encoding="utf-8") as file:
            file.writelines(f"{x.name} @ {x.url} --hash=sha256:{x.digest}\n" for x in group)
        command = [
            *(sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "download"),
            *("--no-deps", "--require-hashes", "--only-binary=:all:", f"--dest={done}"),
            f"--python-version={resolve_packages.read(os.path.join(work, 'target'), 'python')}",
            *sorted({f"--platform={tag.platform}" for tag in tags}),
            *([] if sys.stderr.isatty() else ["--quiet"]),
            *options,
        ]
        result = subprocess.run(
            [*command, "-r", requirements],
            stdout=sys.stderr,  # its progress
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            close_fds=False,  # the file of the lock that the caller holds
        )
        if os.strerror(errno.ENOSPC) in result.stderr:
            sys.exit(FULL)
        sys.stderr.write(result.stderr)
        if result.returncode:
            sys.exit(1)
        for file in os.listdir(done):
            os.replace(os.path.join(done, file), os.path.join(directory, file))


def write_lists(directory, name, wanted, header):
    """Write both lists, and remove files that only the previous lists contained."""
    before = listed(directory)
    pins = sorted(
        f"{each.name}=={each.version} --hash=sha256:{each.digest}\n"
        for each in wanted
        if each.number == 0
    )
    lock, record = (os.path.join(directory, f"{name}.{kind}") for kind in ("lock", "sha256"))
    replace_file(lock, [header, *pins])
    files = {each.file: each.digest for each in wanted}
    files[f"{name}.lock"] = checksum(lock)
    lines = sorted(f"{digest}  {file}\n" for file, digest in files.items())
    replace_file(record, [*lines, f"# {len(files)} files in all\n"])
    for file in before - listed(directory):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, file))


def replace_file(path, lines):
    """Write a file; at any moment it is the old one or the complete new one."""
    with open(f"{path}.partial", "w", encoding="utf-8", opener=closed) as file:
        file.writelines(lines)
    os.replace(f"{path}.partial", path)


def closed(path, flags):
    """Create a file to which nobody else can write, whatever umask and default ACL."""
    return os.open(path, flags, 0o644)


def listed(directory):
    """Return the names of the files of all lists."""
    found = set()
    for path in glob.glob(os.path.join(glob.escape(directory), "*.sha256")):
        with open(path, encoding="utf-8") as lines:
            found.update(line[66:].rstrip("\n") for line in lines if line[0] != "#")
    return found


def print_sum(directory, wanted):
    """Print number and size of all packages."""
    total = sum(os.path.getsize(os.path.join(directory, each.file)) for each in wanted)
    print(f"{len(wanted)} packages, {total / 1e6:.1f} MB")
