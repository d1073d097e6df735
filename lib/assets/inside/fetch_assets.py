"""Download a model, dataset or Space of the Hugging Face Hub into its cache, and record its files.

Runs inside the environment, with the Python of a venv that has huggingface_hub. The token is the
environment's (HF_TOKEN). An interrupted download is resumed.
"""

import argparse
import errno
import hashlib
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

BLOCK = 1 << 22  # bytes
TRIES = 5
BUSY = {429, 500, 502, 503, 504}  # status codes of a hub that answers later
PATIENCE = 60  # longest wait before a retry, in seconds
AGAIN = "run the command again; complete files are kept"


class AssetError(Exception):
    """An error with a hint."""

    def __init__(self, what, hint):
        super().__init__(what)
        self.hint = hint


def read_arguments(arguments):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("cache", "record", "machine", "kind", "repo", "revision"):
        parser.add_argument(name)
    parser.add_argument("--include", action="append")
    parser.add_argument("--exclude", action="append")
    return parser.parse_args(arguments)


def fetch(asset):
    """Download an asset, and return its directory, the commit, and its relative paths."""
    if not sys.stderr.isatty():
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import huggingface_hub

    # A separate request: if the hub is not reachable, snapshot_download returns the local files,
    # even if most are missing.
    found = retry(
        huggingface_hub.HfApi().repo_info,
        asset.repo,
        repo_type=asset.kind,
        revision=asset.revision,
    )
    wanted = wanted_files(found, asset)
    directory = retry(
        huggingface_hub.snapshot_download,
        asset.repo,
        repo_type=asset.kind,
        revision=found.sha,
        cache_dir=asset.cache,
        allow_patterns=asset.include,
        ignore_patterns=asset.exclude,
    )
    missing = [each for each in wanted if not os.path.exists(os.path.join(directory, each))]
    if missing:
        raise AssetError(f"file of {asset.repo} was not downloaded: {missing[0]}", AGAIN)
    if len(wanted) < len(found.siblings):
        forget_list(directory, found.sha)
    return directory, found.sha, sorted(wanted)


def wanted_files(found, asset):
    """Return the paths of the hub's files that ``include`` and ``exclude`` select."""
    from huggingface_hub.utils import filter_repo_objects

    wanted = list(
        filter_repo_objects(
            [each.rfilename for each in found.siblings or ()],
            allow_patterns=asset.include,
            ignore_patterns=asset.exclude,
        )
    )
    if not wanted:
        raise AssetError(
            f"include and exclude select no file of {asset.repo} at {asset.revision}",
            "correct include and exclude in [[assets]] of configuration.toml",
        )
    return wanted


def forget_list(directory, commit):
    """Remove the list of all files of a commit.

    Later versions of huggingface_hub keep one, and offline they call a directory incomplete if it
    lacks files that were not selected.
    """
    listed = os.path.join(os.path.dirname(os.path.dirname(directory)), "trees", f"{commit}.json")
    if os.path.exists(listed):
        os.remove(listed)


def retry(function, *arguments, **options):
    """Call a function again if the hub is busy: complete parts are kept."""
    for attempt in range(TRIES - 1):
        try:
            return function(*arguments, **options)
        except Exception as error:
            answer = getattr(error, "response", None)
            if getattr(answer, "status_code", None) not in BUSY:
                raise
            wait = waiting_time(answer.headers.get("Retry-After", ""), attempt)
            print(f"note: {hub()} is busy; retrying in {wait} s", file=sys.stderr)
            time.sleep(wait)
    return function(*arguments, **options)


def waiting_time(asked, attempt):
    """Return the seconds before the next try: those that the hub asks for, else 2, 4, 8, ..."""
    return min(int(asked) if asked.isdecimal() else 2 << attempt, PATIENCE)


def checksum(path):
    """Return the SHA-256 of a file, after checking that it matches its name in the cache.

    The cache names a large file by its SHA-256, any other by its git object ID.
    """
    name = os.path.basename(os.path.realpath(path))
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % os.path.getsize(path))
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            sha256.update(block)
            if len(name) == 40:
                git.update(block)
    expected = {64: sha256, 40: git}.get(len(name)) if os.path.islink(path) else None
    if expected and expected.hexdigest() != name:
        os.remove(os.path.realpath(path))
        os.remove(path)
        raise AssetError(f"{path} is damaged: its checksum does not match the hub's", AGAIN)
    return sha256.hexdigest()


def write_record(record, directory, commit, files):
    """Write the commit, the number of files, and their checksums in the form of sha256sum."""
    for each in files:
        if "\n" in each or "\\" in each:
            raise AssetError(
                f"cannot record the file name {each!r}", "add it to exclude in [[assets]]"
            )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sums = list(pool.map(checksum, [os.path.join(directory, each) for each in files]))
    partial = f"{record}.partial"
    with open(partial, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{commit} {len(files)}\n")
        file.writelines(f"{total}  {each}\n" for total, each in zip(sums, files))
    os.replace(partial, record)


def explain(error, asset):
    """Turn an exception into an error with a hint."""
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    names = {each.__name__ for link in chain for each in type(link).__mro__}
    text = " ".join(map(str, chain))
    if any(getattr(link, "errno", 0) in (errno.ENOSPC, errno.EDQUOT) for link in chain) or (
        "No space left" in text or "quota exceeded" in text
    ):
        return AssetError(
            f"{asset.cache}: No space left on device",
            "free some space, or set [paths] in configuration.toml; then run the command again",
        )
    if "PermissionError" in names:
        return AssetError(f"cannot write to {asset.cache}", "ask its owner, or set [paths]")
    first = (str(error).strip().splitlines() or [""])[0]
    statuses = {getattr(getattr(link, "response", None), "status_code", None) for link in chain}
    other = f"cannot download {asset.repo}: {type(error).__name__}: {first}", AGAIN
    return AssetError(*(explain_hub(names, statuses, asset) or other))


def explain_hub(names, statuses, asset):
    """Return error and hint for the hub's answer, or for a hub that is not reachable, or None."""
    page = f"{hub()}/{'' if asset.kind == 'model' else f'{asset.kind}s/'}{asset.repo}"
    token = os.environ.get("HF_TOKEN")
    export = "run: export HF_TOKEN=..."
    if "GatedRepoError" in names:
        reason = "your token has no access to it" if token else "HF_TOKEN is not set"
        return f"{asset.repo} is gated, and {reason}", f"request access at {page}, then {export}"
    if "RevisionNotFoundError" in names:
        hint = f"see {page}/commits/main; then set revision in [[assets]] of configuration.toml"
        return f"{asset.repo} has no revision {asset.revision}", hint
    if "RepositoryNotFoundError" in names:
        reason = "or your token has no access to it" if token else "or it is private"
        hint = "check repo and kind in [[assets]] of configuration.toml; if it is private, "
        return f"{asset.kind} not found: {asset.repo}, {reason}", hint + export
    if statuses & {401, 403}:
        return f"the hub denies access to {asset.repo}", f"see {page}, then {export}"
    if 429 in statuses:
        return "the hub does not allow more downloads for now", f"wait a few minutes; then {AGAIN}"
    if statuses & BUSY:
        return f"{hub()} is not working at the moment", f"wait a few minutes; then {AGAIN}"
    if names & {"ConnectionError", "ConnectError", "NetworkError", "TimeoutException", "Timeout"}:
        hint = (
            "on a machine with network access, run: python3 set_up.py download "
            f"--machine {asset.machine}; then, on this machine: python3 set_up.py offline"
        )
        return f"cannot reach {hub()} from this machine", hint
    return None


def hub():
    """Return the hub's address."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def main(arguments):
    """Download and record an asset; report an error in two lines."""
    # Ctrl-C ends it at once: Python would wait for its threads, and each of them for the hub.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asset = read_arguments(arguments)
    try:
        write_record(asset.record, *fetch(asset))
    except Exception as error:
        reported = error if isinstance(error, AssetError) else explain(error, asset)
        sys.exit(f"error: {reported}\nhint: {reported.hint}")


if __name__ == "__main__":
    main(sys.argv[1:])
