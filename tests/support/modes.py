"""Who can do what with the files that Longship makes: listed from a real directory, as a table."""

import re
import stat

# Parts of a path that differ from run to run, and what stands for them; the first that matches.
NAMES = (
    (r"scratch/runs/\d+-[^/]*\.log", "scratch_dir/runs/RUN.log"),
    (r"scratch/runs/\d+-[^/]*\.then", "scratch_dir/runs/RUN.then"),
    (r"scratch/runs/\d+-[^/]*", "scratch_dir/runs/RUN"),
    (r"(\S*)/longship-[0-9a-f]+-[0-9a-f]+\.(\w+)", r"\1/NAME-ID-COMMIT.\2"),
    (r"(\S*)/longship-[0-9a-f]+", r"\1/NAME-ID"),
    (r"(\S*)/longship\.(commit|patch)", r"\1/NAME.\2"),
    (r"(\S*)/node\d+\.csv", r"\1/NODE.csv"),
    (r"(\S*)/[0-9a-f]{12}\.json", r"\1/ID.json"),
    (r"(\S*)/(venv|tools)_(\w+_)?(amd|arm)64", r"\1/\2_ARCH"),
    (r"(\S*)/base_1_(amd|arm)64[^/]*(\.\w+)", r"\1/IMAGE\3"),
    (r"(\S*/pins)/.+", r"\1/PIN"),
    (r"(\S*)/longship-local", r"\1/longship-MACHINE"),
)
ROOTS = ("scratch", "project", "shared")
# Directories that the pages tell how to open: what is in them is listed although they are closed.
OPENED = ("scratch_dir", "scratch_dir/runs", "project_dir", "shared_dir")


def effective(path):
    """Give the permission bits of a path; those of the group also limit every entry of an ACL."""
    return stat.S_IMODE(path.lstat().st_mode)


def listed(top):
    """Yield all paths below a directory, but what links lead to."""
    for each in sorted(top.iterdir()):
        yield each
        if each.is_dir() and not each.is_symlink():
            yield from listed(each)


def reachable(path, top):
    """Say whether others can look a path up: they can enter each directory from the top on."""
    above = [each for each in path.parents if top in each.parents or each == top]
    return all(effective(each) & 0o011 for each in above)


def writable(top):
    """List what others can reach below a directory and write to; sticky directories are told."""
    found = []
    for each in listed(top):
        if not each.is_symlink() and effective(each) & 0o022 and reachable(each.parent / "x", top):
            found.append(f"{effective(each):o} {each.relative_to(top)}")
    return found


def pattern_of(path):
    """Give a path as the pages write it: without the names of one run."""
    for root in ROOTS:
        path = re.sub(rf"^(victim/)?{root}(?=/|$)", root, path)
    for given, wanted in NAMES:
        path = re.sub(rf"(?<![^/]){given}(?=/|$)", wanted, path)
    return re.sub(r"^(scratch|project|shared)(?=/|$)", r"\1_dir", path)


def table(parent):
    """Render the table of security.md from the directories below the parent."""
    rows = {}
    for each in listed(parent):
        if each.is_symlink() or ".partial" in each.name:
            continue
        name = pattern_of(str(each.relative_to(parent)))
        if not name.startswith(tuple(f"{root}_dir" for root in ROOTS)):
            continue
        above = [name[: place.start()] for place in re.finditer("/", name)]
        closed = [
            part for part in above if part not in OPENED and not rows.get(part, (0o700,))[0] & 0o011
        ]
        if closed:
            continue  # whoever cannot enter a directory cannot reach what is in it
        mode = effective(each)
        earlier = rows.get(name, (mode,))[0]
        rows[name] = (mode | earlier, each.is_dir())
    lines = ["| path | mode | who |", "|---|---|---|"]
    for name, (mode, is_directory) in sorted(rows.items()):
        shown = f"`{name}/`" if is_directory else f"`{name}`"
        lines.append(f"| {shown} | {mode & 0o1777:03o} | {_who(name, mode)} |")
    return "\n".join(lines) + "\n"


def _who(name, mode):
    owner = "its owner" if name.startswith("shared_dir") else "you"
    if mode & 0o1000:
        return "whoever can enter `shared_dir` adds files, and removes only their own"
    if not mode & 0o077:
        return owner
    above = [each for each in OPENED if name.startswith(f"{each}/")]
    others = "others write too" if mode & 0o022 else "others read"
    where = f", if they can enter `{max(above, key=len)}`" if above else ""
    return f"{owner}; {others}{where}"
