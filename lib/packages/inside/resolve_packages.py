"""Resolve the version of every package that an image lacks, and write them with their hashes.

uv resolves for the Python and the platform of the target. Packages of the image count as installed:
they stay unless a requirement needs another version, and the image's PyTorch always stays.
"""

import os
import re
import subprocess
import sys

import install_packages

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    try:
        from pip._vendor import tomli as tomllib
    except ImportError:  # an image can lack pip, or have an old one
        tomllib = None

# values of --python-platform: https://docs.astral.sh/uv/reference/cli/#uv-pip-compile
GLIBCS = ("17", "28", *map(str, range(31, 41)))
EXCLUDED = "excluded.txt"  # packages that the image is expected to have, if it cannot be read
TORCH = {"torch", "torchvision", "torchaudio"}  # their builds belong together
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# options of a requirements file that say where packages are, in their long form
_SOURCES = {
    **dict.fromkeys(("--index-url", "--pypi-url", "-i"), "--index-url"),
    "--extra-index-url": "--extra-index-url",
    **dict.fromkeys(("--find-links", "-f"), "--find-links"),
    "--trusted-host": "--trusted-host",
}


def resolve(uv, target, arch, gpu, torch, repositories, out, *requirements):
    """Resolve the versions, and write those that the image lacks to the file `out`.

    The directory `target` is from describe_image.py. A requirement can be ``-r FILE``, or
    ``-e ./NAME[EXTRA]`` or ``./NAME[EXTRA]`` for a directory in `repositories`: only its
    dependencies are locked.
    """
    present = dict(line.split("==") for line in read(target, "packages.txt").splitlines())
    arguments = prepare(target, torch, repositories, requirements, present)
    environment = sources(target, torch, gpu, present)
    with open(os.path.join(target, "pins.txt"), "w", encoding="utf-8") as file:
        file.write(read(target, "packages.txt"))  # uv keeps these versions if they fit
    options = ["--generate-hashes", "--no-annotate", "--output-file", "pins.txt", *arguments]
    run_uv(uv, target, arch, environment, options)
    chosen = read_pins(read(target, "pins.txt"))
    own = {re.sub(r"\[.*", "", each) for each in requirements if each.startswith("./")}
    files = [path for option, path in zip(requirements, requirements[1:]) if option == "-r"]
    lines = dict.fromkeys(line for path in files for line in asked_sources(path))
    asked = asked_hashes(files)
    indexed = [pin.partition("==")[::2] for pin in chosen]
    new = {name for name, version in indexed if present.get(name) != version}
    check_sources(new, [os.path.join(repositories, each) for each in own], files)
    for pin, text in sorted(chosen.items()):
        name, _, version = pin.partition("==")
        path = pin[3:] if pin.startswith("-e ") else pin
        if path in own or present.get(name) == version:
            continue
        if "--hash=" not in text:
            sys.exit(f"cannot lock {pin}, which has no hash: add it to [[repositories]]")
        lines[keep_hashes(pin, text, asked[name]) if name in asked else text] = None
    with open(out, "w", encoding="utf-8") as file:
        file.writelines(lines)


def read(directory, name):
    """Return one file of a target's description."""
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        return file.read()


def prepare(target, torch, repositories, requirements, present):
    """Write uv's input into the target's directory, and return its arguments.

    A requirements file cannot contain every path: files are arguments, repositories are linked.
    """
    lines, files, words = [], [], iter(requirements)
    for word in words:
        if word == "-r":
            files.append(os.path.abspath(next(words)))
            continue
        path = next(words) if word == "-e" else word
        lines.append(f"-e {path}" if word == "-e" else path)
        name = re.fullmatch(r"\./([^[]+).*", path)
        if name and not os.path.islink(os.path.join(target, name[1])):
            os.symlink(os.path.join(repositories, name[1]), os.path.join(target, name[1]))
    constraints = [f"torch=={present['torch']}"] if "torch" in present else []
    excluded = os.path.exists(os.path.join(target, EXCLUDED))
    if torch and not constraints and not excluded:
        files.append(os.path.abspath(torch))
    for name, content in (("wanted.in", lines), ("constraints.txt", constraints)):
        with open(os.path.join(target, name), "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in content))
    more = ["--excludes", EXCLUDED] if excluded else []
    return ["wanted.in", *files, "--constraints", "constraints.txt", *more]


def sources(target, torch, gpu, present):
    """Return uv's environment, with the sources of packages; the image is one of them."""
    configuration = install_packages.pip_configuration()
    found = {**install_packages.uv_environment(configuration), **os.environ}
    directories = [each for each in (found.get("UV_FIND_LINKS"), "wheels") if each]
    found["UV_FIND_LINKS"] = ",".join(directories)
    chosen_here = torch and "torch" not in present and gpu in ("cpu", "auto")
    if chosen_here and not install_packages.has_wheel(torch, configuration, python_tag(target)):
        found.setdefault("UV_TORCH_BACKEND", gpu)
    return found


def choose_wheels(uv, work, arch, pins, out):
    """Let uv choose the wheel of each pin for the target, and write them to a pylock.toml."""
    configuration = install_packages.pip_configuration()
    environment = {**install_packages.uv_environment(configuration), **os.environ}
    target, pinned = os.path.join(work, "target"), os.path.join(work, pins)
    torch = install_packages.locked_torch_build(pinned)
    if torch and not install_packages.has_wheel(pinned, configuration, python_tag(target)):
        environment.setdefault("UV_TORCH_BACKEND", torch)
    paths = ["--output-file", os.path.join(work, out), pinned]
    options = ["--no-deps", "--format", "pylock.toml", *paths]
    run_uv(uv, target, arch, environment, options)


def python_tag(target):
    """Return the tag of the target's Python in names of wheels, such as ``cp312``."""
    return "cp" + read(target, "python").replace(".", "")


def run_uv(uv, target, arch, environment, options):
    """Let uv resolve for the target; exit if it fails."""
    command = [
        *(uv, "pip", "compile", "--quiet", "--no-header", "--python", sys.executable),
        *("--python-version", read(target, "python")),
        *("--python-platform", platform(arch, read(target, "glibc"))),
        *install_packages.uv_options(install_packages.pip_configuration()),
        *options,
    ]
    # the file of the lock that the caller holds stays open
    done = subprocess.run(
        command, cwd=target, env=environment, stdout=subprocess.DEVNULL, close_fds=False
    )
    if done.returncode:
        sys.exit(done.returncode)


def platform(arch, glibc):
    """Return uv's name of the target's platform; enterprise Linux 8 if its C library is unknown."""
    minor = int(glibc.partition(".")[2] or 28)
    known = [each for each in GLIBCS if int(each) <= minor] or GLIBCS[:1]
    return f"{MACHINES[arch]}-manylinux_2_{known[-1]}"


def read_pins(text):
    """Return the requirements of a lock file, each with its hashes, by ``NAME==VERSION``."""
    pins = {}
    for block in re.split(r"\n(?![ #])", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE)):
        if block.strip() and not block.startswith("--"):
            pins[block.split(" \\\n")[0].strip()] = block.rstrip() + "\n"
    return pins


def index_options(text):
    """Return the lines of a lock file that say where its packages are, see `asked_sources`."""
    return re.findall(r"^--.*\n", text, flags=re.MULTILINE)


def requirement_lines(path, kinds="rc"):
    """Yield file and line, continuations joined, of a requirements file and those it includes.

    Without ``c`` in `kinds`, those of constraints are left out.
    """
    with open(path, encoding="utf-8") as file:
        lines = file.read().replace("\\\n", " ").splitlines()
    for line in lines:
        included = re.match(r"\s*(?:-[rc]|--requirement|--constraint)[ =]*(\S+)", line)
        more = included and os.path.join(os.path.dirname(path), included[1])
        if more and os.path.isfile(more):  # not an address
            if included[0].lstrip(" -\t")[0] in kinds:
                yield from requirement_lines(more, kinds)
        else:
            yield path, line


def required(files):
    """Yield file and line of what requirements files require, see `requirement_lines`."""
    for path in files:
        yield from requirement_lines(path, "r")


def required_name(line):
    """Return the name of the package that a line requires; "" if it requires none."""
    name = re.match(r"\s*([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:[\[=<>!~@#;]|--|$)", line)
    return plain_name(name[1]) if name else ""


def plain_name(name):
    """Return the name of a package as installers compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_sources(names, repositories, files):
    """Exit if a package from the index is one for which a repository names another source.

    uv does not read ``[tool.uv.sources]`` here, and pip cannot: a commit has no hash, and the image
    or Longship chooses PyTorch. What the files require is the user's choice.
    """
    decided = {required_name(line) for _, line in required(files)} | TORCH
    for repository in repositories:
        ignored = sorted(own_sources(repository) & {*names} - decided)
        if ignored:
            sys.exit(
                f"{repository}/pyproject.toml takes {', '.join(ignored)} from [tool.uv.sources], "
                "which Longship does not read: add each to [[repositories]], or to a requirements "
                "file"
            )


def own_sources(repository):
    """Return the names of the packages in ``[tool.uv.sources]`` of a repository."""
    if not os.path.isfile(os.path.join(repository, "pyproject.toml")):
        return set()
    text = read(repository, "pyproject.toml")
    if "sources" not in text:
        return set()
    if not tomllib:
        sys.exit(f"cannot read {repository}/pyproject.toml: this needs Python 3.11, or pip")
    return set(
        map(plain_name, tomllib.loads(text).get("tool", {}).get("uv", {}).get("sources", ()))
    )


def asked_sources(path):
    """Return the options of a requirements file that say where packages are, as lines.

    Versions that were resolved with them must be downloaded with them too.
    """
    found = []
    for file, line in requirement_lines(path):
        option = re.match(rf"\s*({'|'.join(_SOURCES)})(?:\s*=\s*|\s+|(?<=-[if]))(\S+)", line)
        if option:
            name, value = _SOURCES[option[1]], option[2]
            directory = os.path.join(os.path.dirname(os.path.abspath(file)), value)
            if name == "--find-links" and os.path.isdir(directory):
                value = install_packages.directory_url(directory)
            found.append(f"{name} {value}\n")
        elif re.match(r"\s*--no-index\b", line):
            found.append("--no-index\n")
    return found


def asked_hashes(paths):
    """Return the hashes that requirements files list, a set of ``sha256:...`` by package."""
    found = {}
    for _, line in (each for path in paths for each in requirement_lines(path)):
        name = required_name(line)
        hashes = set(re.findall(r"--hash[= ]+(\w+:[0-9a-f]+)", line))
        if name and hashes:
            found.setdefault(name, set()).update(hashes)
    return found


def keep_hashes(pin, text, asked):
    """Keep only those hashes of a pin that the requirements list; exit if none is left."""
    kept = [each for each in re.findall(r"--hash=(\S+)", text) if each in asked]
    if not kept:
        sys.exit(f"{pin}: none of its files has a hash that the requirements list")
    return " \\\n".join([pin, *(f"    --hash={each}" for each in kept)]) + "\n"


def print_changes(old, new):
    """Print the differences between two lock files; the old one need not exist."""
    found = []
    for path in (old, new):
        directory, name = os.path.split(path)
        found.append(read_pins(read(directory, name)) if os.path.exists(path) else None)
    if found[0] is None:
        print(f"{len(found[1])} packages locked")
    else:
        changes = format_changes(*found)
        print("\n".join(changes or [f"no changes: {len(found[1])} packages"]))


def format_changes(old, new):
    """Return a line for each difference between two lists of ``name==version``."""
    # a package that is required by its address is `name @ address`
    old, new = (dict(re.split(" @ |==", each, maxsplit=1) for each in pins) for pins in (old, new))
    lines = []
    for name in sorted({*old, *new}):
        if name not in old:
            lines.append(f"{name} {new[name]} added")
        elif name not in new:
            lines.append(f"{name} {old[name]} removed")
        elif old[name] != new[name]:
            lines.append(f"{name} {old[name]} -> {new[name]}")
    return lines
