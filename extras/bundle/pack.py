"""Packs a bundle: writes what is new, removes what has gone, and never packs a secret."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import suppress
from shlex import quote

from extras.bundle import tree
from lib.script.errors import LongshipError, print_messages, write_error
from lib.script.output import size_text
from lib.script.secrets import SECRET

_SECRET_NAME = re.compile(
    r"(.*/)?(\.netrc|_netrc|id_(rsa|dsa|ecdsa|ed25519).*|token|stored_tokens|\.env|\.git-credentials"
    r"|\.pypirc|credentials|configuration\.local\.toml|\.(ssh|aws|gnupg)/.*)"
)
_TEXT_BYTES = 1 << 20  # larger files are data, which can contain anything that looks like a key
_UNFINISHED = re.compile(r"\.partial([./]|$)|\.incomplete$|\.lock(\..*)?/owner$")
_PIP = (
    "-m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: "
    "--python-version 3.9 --implementation py --abi none --platform any --dest"
)


def check(options: Namespace) -> None:
    """Stop if something has not been downloaded, or if DIR is not a bundle's; create DIR."""
    missing = {}  # the command that downloads it
    for base, command in options.archive:
        if not all(map(os.path.isfile, _archive(base))):
            text = f"image archive {base}.tar or .sif; without a container runtime on the target"
            missing[f'{text}: container.runtime = "host"'] = command
    for name, image, command in options.need:
        path = f"{options.offline}/{name}"
        lines = (line for line in tree.read_lines(path) if line.startswith("# image: "))
        found = next(lines, "# image: ")[9:] if image else ""
        if not os.path.exists(path):
            missing[path] = command
        elif found != image:
            text = f"packages for the image {image}; the downloaded ones are for {found}"
            missing[text] = command
    for part in missing:
        print_messages(note=f"missing: {part}")
    if missing:
        message = f"{len(missing)} parts of the bundle have not been downloaded"
        raise LongshipError(message, f"run: {'; '.join(dict.fromkeys(missing.values()))}")
    bundle = options.bundle
    own = [f"{bundle}/.partial", f"{bundle}/SHA256SUMS"]
    for part in ("containers", "pip", "repos", "assets"):
        if f"{bundle}/".startswith(f"{options.offline}/{part}/"):
            hint = "name a directory outside of the scratch directory"
            raise LongshipError(f"the bundle would contain itself: {bundle}", hint)
    for path in filter(os.path.islink, own):
        hint = "remove the link, or name a new directory"
        raise LongshipError(f"{path} is a symbolic link", hint)
    if os.path.lexists(bundle) and not os.path.isdir(bundle):
        raise LongshipError(f"not a directory: {bundle}", "name a new directory")
    os.makedirs(bundle, exist_ok=True)
    names = [each for each in os.listdir(bundle) if not each.startswith(".partial")]
    if names and not any(map(os.path.exists, own)):
        message = f"the directory contains files that are not part of a bundle: {bundle}"
        raise LongshipError(message, "name a new directory")


def _archive(base: str) -> list[str]:
    """Return the newer archive, as build_container.py offline does, and its record."""
    found = [path for path in (f"{base}.tar", f"{base}.sif") if os.path.exists(path)]
    archive = max(found, key=os.path.getmtime, default=f"{base}.tar")
    return [archive, f"{archive}.json"]


def pack(options: Namespace) -> None:
    """Write what is new, remove what no longer belongs to the bundle, and write the checksums."""
    os.makedirs(f"{options.bundle}/.partial", exist_ok=True)
    try:
        _pack(options, options.bundle, f"{options.bundle}/SHA256SUMS")
    finally:
        if os.path.exists(f"{options.bundle}/SHA256SUMS"):
            shutil.rmtree(f"{options.bundle}/.partial", ignore_errors=True)


def _pack(options: Namespace, bundle: str, manifest: str) -> None:
    options.step("Collecting the files of the bundle")
    log = f"{bundle}/.partial/known"
    lines = [line for path in (log, manifest) for line in tree.read_lines(path)]
    # the checksums of what earlier packing, complete or interrupted, has written
    known = {line[66:]: line[:64] for line in lines if tree.is_inside(line[66:])}
    files = _collect(options)
    _check_bundle(bundle, files, {*files, *known, "SHA256SUMS"})
    changed = _changed(bundle, files, known)
    _check_secrets(files, changed, options)
    gone = known.keys() - files.keys()
    if not changed and not gone:
        with suppress(LongshipError):
            tree.read_manifest(bundle)
            print_messages(note=f"up to date: {bundle}")
            return
    options.step(f"Writing {len(changed) + len(gone)} of {len(files)} files")
    with suppress(FileNotFoundError):
        os.replace(manifest, log)  # from now on the bundle is not complete
    for path in (f"{bundle}/{name}" for name in gone):
        with suppress(FileNotFoundError):
            os.unlink(path)
        with suppress(OSError):
            os.removedirs(os.path.dirname(path))
    with open(log, "ab", buffering=0) as file:
        file.write(b"\n")  # ends a line that was cut off

        def record(target: str, checksum: str) -> None:
            known[target[len(bundle) + 1 :]] = checksum
            file.write(os.fsencode(f"{checksum}  {target[len(bundle) + 1 :]}\n"))

        sources = {f"{bundle}/{name}": files[name] for name in changed}
        tree.copy_files(sources, f"{bundle}/.partial/new", record)
    options.step("Writing the checksums")
    lines = [f"{known[name]}  {name}" for name in sorted(files, key=os.fsencode)]
    tree.replace_file(f"{bundle}/.partial/SHA256SUMS", [*lines, f"# {len(files)} files in all"])
    os.replace(f"{bundle}/.partial/SHA256SUMS", manifest)
    size = sum(os.stat(each).st_size for each in files.values())
    print_messages(note=f"{len(files)} files, {size_text(size)}: {bundle}")


def _collect(options: Namespace) -> dict[str, str]:
    """Return the source of everything that belongs to the bundle, by its name there."""
    os.makedirs(f"{options.work}/host", exist_ok=True)
    files = {"unpack.sh": f"{options.repository}/extras/bundle/unpack.sh"}
    files.update({f"host/{os.path.basename(path)}": path for path in _wheels(options)})
    history = _history(options)
    if history:
        files["longship.bundle"] = history
    links = []
    for part, directory, name in _candidates(options):
        source = f"{directory}/{name}"
        if not tree.is_inside(name):
            message = f"cannot pack {quote(source)}"
            reason = "the name contains a backslash or a control character"
            raise LongshipError(f"{message}: {reason}", "rename that file")
        if os.path.islink(source):
            target = os.readlink(source)
            if not tree.link_is_inside(f"{part}/{name}", target):
                message = f"the link {source} points outside the bundle: {target}"
                raise LongshipError(message, "replace the link by the file that it points to")
            links.append(f"{target}\t{part}/{name}")
        elif os.path.isfile(source):
            files[f"{part}/{name}"] = source
        elif os.path.isdir(source):
            print_messages(note=f"not packed: {source} is a git repository")
    if links:  # in a list: not every file system that bundles travel on has them
        files["links"] = f"{options.work}/links"
        if tree.read_lines(files["links"]) != links:
            tree.replace_file(files["links"], links)
    return files


def _candidates(options: Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield what can belong to the bundle: its part, its directory and its name there."""
    git = ("git", "-C", options.repository)
    top = tree.run(*git, "rev-parse", "--show-toplevel")
    if top.returncode or not os.path.samefile(top.stdout.strip("\n"), options.repository):
        text = f"{options.repository} is not a git repository: {tree.last_line(top) or top.stdout}"
        raise LongshipError(text.strip(), "pack from a git clone")
    listed = tree.run(*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed.returncode:
        message = f"git cannot list the files of {options.repository}: {tree.last_line(listed)}"
        raise LongshipError(message, f"run: git -C {quote(options.repository)} status")
    for name in sorted({each.rstrip("/") for each in listed.stdout.split("\0")} - {""}):
        if not any(f"{name}/".startswith(f"{each}/") for each in options.leave_out):
            yield "repository", options.repository, name
    for path in (path for base, _ in options.archive for path in _archive(base)):
        yield "offline", options.offline, os.path.relpath(path, options.offline)
    for part in ("pip", "repos", "assets"):
        if os.path.isdir(f"{options.offline}/{part}"):
            for name, kind in tree.walk(options.offline, f"{part}/"):
                if kind != "other" and not _UNFINISHED.search(name):
                    yield "offline", options.offline, name


def _check_bundle(bundle: str, files: Iterable[str], own: set[str]) -> None:
    """Stop if DIR contains what packing has not put there, or cannot store all names."""
    seen: dict[str, str] = {}
    for name in (each for path in files for each in (*tree.parents(path), path)):
        other = seen.setdefault(name.lower(), name)
        if other != name and os.path.exists(f"{bundle}/.PARTIAL"):
            raise LongshipError(
                f"{bundle} is on a case-insensitive file system, which cannot store both "
                f"{name} and {other}",
                "rename one of them; or pack to another file system",
            )
    for name, kind in tree.walk(bundle):
        if not re.match(r"\.partial(/|\.lock)", name) and (name not in own or kind == "link"):
            hint = "delete or move that file; or name a new directory"
            raise LongshipError(f"not part of the bundle: {bundle}/{name}", hint)


def _changed(bundle: str, files: dict[str, str], known: dict[str, str]) -> list[str]:
    """Return the names of the files that the bundle does not contain as they are."""
    changed, doubtful = [], {}
    for name, source in files.items():
        target, new, old = f"{bundle}/{name}", os.stat(source), None
        with suppress(OSError):
            old = os.lstat(target)
        if name not in known or not old or old.st_size != new.st_size:
            changed.append(name)
        elif old.st_mtime_ns != new.st_mtime_ns:
            doubtful[name] = (new.st_atime_ns, new.st_mtime_ns)
        elif (old.st_mode ^ new.st_mode) & 0o100:
            with suppress(OSError):
                os.chmod(target, new.st_mode & 0o777)
    sums = tree.hash_files(path for name in doubtful for path in (files[name], f"{bundle}/{name}"))
    for name, times in doubtful.items():  # another time, but perhaps the same content
        if files[name] not in sums:
            hint = f"run: chmod u+r {quote(files[name])}"
            raise LongshipError(f"cannot read {files[name]}", hint)
        if sums[files[name]] == sums.get(f"{bundle}/{name}") == known[name]:
            os.utime(f"{bundle}/{name}", ns=times)
        else:
            changed.append(name)
    return changed


def _check_secrets(files: dict[str, str], changed: list[str], options: Namespace) -> None:
    """Stop if one of the changed files is a secret, or a text that contains one."""
    parts = [name for name in changed if name.startswith(("repository/", "offline/"))]
    names = {files[name]: name.partition("/")[2] for name in parts}
    found = [source for source in names if _SECRET_NAME.fullmatch(names[source])]
    texts = [source for source in names if os.stat(source).st_size <= _TEXT_BYTES]
    for start in range(0, len(texts), 1000):
        batch = texts[start : start + 1000]
        found += tree.run("grep", "-lIE", "-e", SECRET, "--", *batch).stdout.split("\n")[:-1]
    for source in found:
        if names[source] not in options.allow:
            hint = "move that file elsewhere; or, if it is not a secret"
            message = f"{source} looks like a token or key"
            raise LongshipError(message, f"{hint}: --allow {quote(names[source])}")


def _wheels(options: Namespace) -> list[str]:
    """Return the wheels of the scripts' own packages, for every Python; download missing ones."""
    directory = f"{options.work}/host"
    lines = tree.read_lines(f"{options.repository}/requirements/host.txt")
    needed = [re.sub("[#;].*", "", line).strip() for line in lines]  # pip would judge the markers
    names = ["", *(each.partition("-")[0] for each in os.listdir(directory))]
    missing = [each for each in needed if re.split("[<>=!~ ]", each)[0] not in names]
    if missing:
        what = " ".join(missing)
        print_messages(note=f"downloading {what}")
        for python in (f"{options.repository}/.venv/bin/python", sys.executable, "python3"):
            if shutil.which(python) and not tree.run(python, "-m", "pip", "--version").returncode:
                break
        else:
            hint = "run: python3 -m venv .venv; then run the same command again"
            raise LongshipError(f"pip not found, to download {what}", hint)
        done = tree.run(python, *_PIP.split(), f"{directory}.partial", *missing)
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
            hint = "check the network; pip's output above has the details"
            message = f"cannot download the packages of the scripts: {what}"
            raise write_error(directory, message, hint)
        for wheel in os.listdir(f"{directory}.partial"):
            os.replace(f"{directory}.partial/{wheel}", f"{directory}/{wheel}")
    return [f"{directory}/{each}" for each in os.listdir(directory)]


def _history(options: Namespace) -> str:
    """Return a git bundle of the current branch, or nothing."""
    git, file = ("git", "-C", options.repository), f"{options.work}/longship.bundle"
    commit = tree.run(*git, "rev-parse", "-q", "--verify", "HEAD").stdout.strip()
    shallow = tree.run(*git, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    if options.no_history:
        return ""
    if not commit or shallow:
        text = "the git history is not packed: this clone has no commits, or is shallow"
        print_messages(note=text)
        return ""
    refs = ["HEAD", *tree.run(*git, "symbolic-ref", "-q", "HEAD").stdout.split()]
    heads = tree.run("git", "bundle", "list-heads", file).stdout.splitlines()
    if set(heads) != {f"{commit} {ref}" for ref in refs}:
        _check_history(options)
        with suppress(FileNotFoundError):  # of a git that was killed
            os.unlink(f"{file}.partial.lock")
        done = tree.run(*git, "bundle", "create", f"{file}.partial", *refs)
        if done.returncode:
            hint = "run: git fsck; or leave out the history: --no-history"
            message = "git cannot pack the history"
            raise write_error(options.work, message, hint, tree.last_line(done))
        os.replace(f"{file}.partial", file)
    return file


def _check_history(options: Namespace) -> None:
    """Stop if a commit contains what looks like a secret."""
    hint = (
        "remove it from the history (git filter-repo); or leave out the history: --no-history; "
        "or accept it: --allow FILE"
    )
    log = ("git", "-C", options.repository, "log", "--name-only")
    for name in tree.run(*log, "--format=", "--no-renames", "-z", "HEAD").stdout.split("\0"):
        if _SECRET_NAME.fullmatch(name) and name not in options.allow:
            message = f"the git history contains a file named like a secret: {name}"
            raise LongshipError(message, hint)
    exclude = [f":(exclude,top,literal){each}" for each in options.allow]
    log = (*log, "-m", "--no-ext-diff", "--no-textconv", "--format=commit %h")
    found = tree.run(*log, f"-G{SECRET}", "HEAD", "--", ".", *exclude).stdout.split("\n")
    if found[0]:
        message = "the git history contains what looks like a token or key"
        raise LongshipError(f"{message}: {' '.join(found[:3])}", hint)
