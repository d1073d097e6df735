"""The files of the repository itself: what git tracks, or would track."""

import subprocess

# Of an unpacked archive, which no git knows: what lies there only where something has run.
_LEFT_BEHIND = {"__pycache__", "scratch", "project", "configuration.local.toml"}


def own_files(root):
    """Give the paths of all files, sorted, without what .gitignore names: caches and data."""
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = {root / name for name in listed.split("\0") if name}
    except (OSError, subprocess.CalledProcessError):
        found = {path for path in root.rglob("*") if not _is_left_behind(path.relative_to(root))}
    return sorted(path for path in found if path.is_file())


def _is_left_behind(path):
    hidden = path.parts[0].startswith(".") and path.parts[0] not in (".ci", ".github")
    return path.suffix == ".pyc" or hidden or bool(_LEFT_BEHIND & {*path.parts[:1], *path.parts})
