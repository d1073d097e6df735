"""Files and directories that matter are made by one function, in Python and in bash.

`write_file` and `make_directory` in Python, `file_write` or `file_begin` with `file_publish` and
`directory_make` in bash: with their final mode before their content, whatever umask, default ACL
and links. What writes otherwise is listed here, with the reason.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Why files and functions may write otherwise. One that no longer writes fails.
PLAIN = {
    "in the bundle that the user names, or checked and complete before it is used": """
        extras/bundle/tree.py: replace_file copy_one copy_files _copy
        extras/bundle/unpack.py: verify
    """,
    "in the user's clone, whose permissions are the user's choice": """
        lib/packages/lock_packages.bash: lockfile_update
        lib/repositories/patches.py: write_commit
        lib/repositories/update.py: _replace_series
        lib/repositories/move.py: _exchange _lock_index _make_parents _put
    """,
    "in a closed directory of the run": """
        extras/interactive/ssh.bash: ssh_configure_server ssh_configure_client
    """,
    "in a temporary directory of its own, which is closed": """
        lib/jobs/working_tree.py: _borrow
        lib/images/build.bash: archive_copy
        lib/packages/overlay.bash: overlay_can_mount
        extras/docker/docker.bash: engine_secrets_text
    """,
    "in a directory that is closed until it is complete": """
        lib/assets/assets.bash: asset_add_metric asset_copy_files
        lib/packages/overlay.bash: overlay_resolve
        lib/packages/wheelhouse.bash: wheelhouse_describe wheelhouse_resolve wheelhouse_list
        lib/packages/inside/describe_image.py: write_description
        lib/packages/inside/resolve_packages.py: resolve prepare
        lib/packages/inside/target_wheels.py: fetch download replace_file
        extras/docker/docker.bash: engine_keep_tag
    """,
    "in a venv, whose directory is closed": """
        lib/packages/venv.bash: venv_install_packages venv_list_files venv_activate
        lib/packages/inside/compile_packages.py: compile_module
        lib/packages/inside/layer_venv.py: _name_packages layer
        extras/overlay_speed/inside/module_index.py: write
    """,
    "in scratch_dir/cache, which is closed, or where the user wants uv's cache": """
        lib/packages/inside/install_packages.py: can_link
    """,
    "in project_dir, which is closed": """
        lib/repositories/clone.py: _clone_to _make_bundle
        lib/repositories/replay.py: prepare
        lib/repositories/repository.py: copy_index save _replace
    """,
    "with its mode from the first moment, and no umask": """
        extras/usage/sampler.py: main
    """,
    "a result of the user's, with the user's umask": """
        extras/reports/inside/sync_wandb.bash:
        lib/jobs/inside/template.bash: fill_template
    """,
    "empty: only its time counts": """
        lib/runtimes/overlay.bash: overlay_record_use
        lib/script/lock.bash: lock_is_stale
    """,
    "a lock: whoever can enter its directory can read it": """
        lib/script/lock.bash: lock_make
    """,
}


def python_writers(text):
    """Yield function and call of what creates a file or directory in Python."""

    def walk(node, function):
        for each in ast.iter_child_nodes(node):
            name = each.name if isinstance(each, (ast.FunctionDef, ast.ClassDef)) else function
            if isinstance(each, ast.Call) and _creates(each):
                yield function, ast.unparse(each.func)
            yield from walk(each, name)

    yield from walk(ast.parse(text), "")


def _creates(call):
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    owner = getattr(getattr(call.func, "value", None), "id", "")
    named = {each.arg: each.value for each in call.keywords}
    if name == "open" and owner == "os":
        return any("O_CREAT" in ast.unparse(each) for each in call.args)
    if name == "open" and owner != "tarfile":
        place = 1 if isinstance(call.func, ast.Name) else 0  # of the mode; Path.open has no path
        mode = named.get("mode") or (call.args[place] if len(call.args) > place else None)
        if isinstance(call.func, ast.Name) and _is_descriptor(call.args[0]):
            return False
        return mode is not None and not re.fullmatch(r"'r?[bt]*'", ast.unparse(mode))
    if name in ("mkdir", "makedirs"):
        place = 1 if owner == "os" else 0
        return name == "makedirs" or not (named.get("mode") or call.args[place:])
    if owner == "shutil":
        return name in ("copy", "copy2", "copyfile", "copytree", "move")
    return name in ("write_text", "write_bytes", "touch")


def _is_descriptor(node):
    """Say whether a file is opened that has been created before, by its number."""
    return ast.unparse(node) in ("file", "number") or ast.unparse(node).startswith("os.open(")


# A redirection is written as everywhere here: `x >file`, and a comparison as `a > b`.
BASH = re.compile(
    r"^(?P<function>\w+)\(\) \{|(?P<end>^\})|(?:^|(?<=\s))#.*"
    r"|(?<![\w./-])mkdir\b(?P<directory>[^\n;|&]*)"
    r"|(?:(?<=[\s(;])|(?<=[\s(;]\d)|(?<=\w\}))(?:>>?|<>)\|?(?: (?=[\"/]))?(?![=%])"
    r"(?P<target>(?:\"(?:[^\"$]|\$\([^)]*\)|\$)*\"|[^\s;|&()<>\"'])+)",
    re.MULTILINE,
)


def bash_writers(text):
    """Yield function and target of what creates a file, or a directory without a mode, in bash.

    The file that `file_begin` has made is none of them.
    """
    function = begun = ""
    for match in BASH.finditer(text):
        target, directory = match["target"] or "", match["directory"]
        if match["function"] or match["end"]:
            function = match["function"] or ""
            begun = "file_begin " in text[match.start() : text.find("\n}", match.start())]
        elif directory is not None and not re.search(r" -\w*m\b", directory):
            yield function, "mkdir"
        elif begun and target in ('"$REPLY"', '"$partial"'):
            continue
        elif target and not target.startswith(("/dev/", '"/dev/tcp/')):
            yield function, target


def sources():
    for top in ("lib", "extras"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix in (".py", ".bash", ".sh") and "tests" not in file.parts:
                yield file


def found_writers():
    """Give the calls of each file and function."""
    found = {}
    for file in sources():
        read = python_writers if file.suffix == ".py" else bash_writers
        for function, call in read(file.read_text(encoding="utf-8")):
            found.setdefault((str(file.relative_to(ROOT)), function), []).append(call)
    return found


@pytest.mark.extras
def test_writers_that_set_no_mode_are_known():
    lines = [line.strip().partition(":") for text in PLAIN.values() for line in text.splitlines()]
    known = {(file, name) for file, _, names in lines if file for name in names.split() or [""]}
    found = found_writers()
    unknown = {each: calls for each, calls in found.items() if each not in known}
    assert unknown == {}, "use write_file, make_directory, file_write or directory_make"
    assert known - found.keys() == set(), "no longer writes: remove the entry"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("f() {\n  echo x >file\n}\n", [("f", "file")]),
        ('f() {\n  echo "$(cat <a 2>"$b")" >>"$c/d"\n}\n', [("f", '"$b"'), ("f", '"$c/d"')]),
        ("f() {\n  echo '>a' \">b\" # >c\n  x >&2 2>/dev/null 2>&1\n}\n", []),
        ("f() {\n  ((a > b)) && [[ a > b ]] && echo $((1 > 0))\n}\n", []),
        ('f() {\n  cat <<EOF > "c"\na > b\nEOF\n}\n', [("f", '"c"')]),
        ('f() {\n  exec {x}<> <(:) 4> >(cat)\n  cat <<<"$x" >y\n}\n', [("f", "y")]),
        ("f() {\n  mkdir -p a\n  mkdir -m 700 b\n}\n", [("f", "mkdir")]),
        (
            'f() {\n  file_begin x\n  echo x >"$REPLY"\n}\ng() {\n  echo >"$REPLY"\n}\n',
            [("g", '"$REPLY"')],
        ),
    ],
)
def test_bash_is_read_as_bash_does(text, wanted):
    assert list(bash_writers(text)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("open(f)", 0), ("open(f, 'rb')", 0), ("open(f, 'w')", 1), ("p.open('a')", 1),
        ("open(f, mode='x')", 1), ("p.write_text(t)", 1), ("p.mkdir()", 1), ("p.mkdir(0o700)", 0),
        ("p.mkdir(mode=0o700)", 0), ("os.makedirs(p)", 1), ("os.open(p, os.O_CREAT, 0o600)", 1),
        ("shutil.copy(a, b)", 1), ("tarfile.open(a, 'w')", 0),
    ],
)  # fmt: skip
def test_python_is_read(text, wanted):
    assert len(list(python_writers(text))) == wanted
