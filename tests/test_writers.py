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

BUNDLE = "in the bundle that the user names, or checked and complete before it is used"
CLONE = "in the user's clone, whose permissions are the user's choice"
CODE = "in runs/code or a run's repositories/, which are closed"
RUN = "in a closed directory of the run"
TEMPORARY = "in a temporary directory of its own, which is closed"
UNFINISHED = "in a directory that is closed until it is complete"
VENV = "in a venv, whose directory is closed"
PROJECT = "in project_dir, which is closed"
OUTPUT = "a result of the user's, with the user's umask"
EMPTY = "empty: only its time counts"
LOCK = "a lock: whoever can enter its directory can read it"

# File and function: why it may write so. An entry that no longer writes fails.
PLAIN = {
    "lib/bundle/pack.py check": BUNDLE,
    "lib/bundle/pack.py pack": BUNDLE,
    "lib/bundle/pack.py _pack": BUNDLE,
    "lib/bundle/pack.py _collect": BUNDLE,
    "lib/bundle/tree.py replace_file": BUNDLE,
    "lib/bundle/tree.py copy_one": BUNDLE,
    "lib/bundle/tree.py copy_files": BUNDLE,
    "lib/bundle/tree.py _copy": BUNDLE,
    "lib/bundle/unpack.py verify": BUNDLE,
    "lib/bundle/unpack.py _unpack": BUNDLE,
    "lib/bundle/unpack.py _make_link": BUNDLE,
    "lib/bundle/unpack.py _install_packages": BUNDLE,
    "lib/doctor/site_new.py create": CLONE,
    "lib/images/patched_files.bash patched_file_check": CLONE,
    "lib/images/patched_files.bash patched_file_keep": CLONE,
    "lib/packages/lock_packages.bash lockfile_update": CLONE,
    "lib/repositories/patches.py write_commit": CLONE,
    "lib/repositories/patches.py write_series": CLONE,
    "lib/repositories/update.py _replace_series": CLONE,
    "lib/jobs/freeze_worker.py keep": CODE,
    "lib/jobs/freeze_worker.py _write": CODE,
    "lib/jobs/freeze_worker.py _restore": CODE,
    "lib/jobs/freeze_worker.py record": CODE,
    "lib/jobs/ssh.bash ssh_configure_server": RUN,
    "lib/jobs/ssh.bash ssh_configure_client": RUN,
    "lib/jobs/working_tree.py _borrow": TEMPORARY,
    "lib/images/build.bash archive_copy": TEMPORARY,
    "lib/packages/overlay.bash overlay_can_mount": TEMPORARY,
    "lib/runtimes/docker.bash engine_secrets_text": TEMPORARY,
    "lib/assets/assets.bash asset_add_metric": UNFINISHED,
    "lib/assets/assets.bash asset_copy_files": UNFINISHED,
    "lib/assets/inside/fetch_assets.py write_record": UNFINISHED,
    "lib/packages/overlay.bash overlay_resolve": UNFINISHED,
    "lib/packages/wheelhouse.bash wheelhouse_describe": UNFINISHED,
    "lib/packages/wheelhouse.bash wheelhouse_resolve": UNFINISHED,
    "lib/packages/wheelhouse.bash wheelhouse_list": UNFINISHED,
    "lib/packages/inside/describe_image.py write_description": UNFINISHED,
    "lib/packages/inside/resolve_packages.py resolve": UNFINISHED,
    "lib/packages/inside/resolve_packages.py prepare": UNFINISHED,
    "lib/packages/inside/target_wheels.py fetch": UNFINISHED,
    "lib/packages/inside/target_wheels.py download": UNFINISHED,
    "lib/packages/inside/target_wheels.py write_lists": UNFINISHED,
    "lib/images/build.bash engine_keep_tag": UNFINISHED,
    "lib/packages/venv.bash venv_install_packages": VENV,
    "lib/packages/venv.bash venv_activate": VENV,
    "lib/packages/inside/layer_venv.py layer": VENV,
    "lib/packages/inside/module_index.py write": VENV,
    "lib/repositories/changes.py take_snapshot": PROJECT,
    "lib/repositories/changes.py save_unfiltered": PROJECT,
    "lib/repositories/changes.py restore_unfiltered": PROJECT,
    "lib/repositories/changes.py save_changes": PROJECT,
    "lib/repositories/changes.py save_unfiltered_changes": PROJECT,
    "lib/repositories/changes.py _write_patches": PROJECT,
    "lib/repositories/clone.py clone": PROJECT,
    "lib/repositories/clone.py _make_bundle": PROJECT,
    "lib/repositories/replay.py undo_update": PROJECT,
    "lib/repositories/repository.py save": PROJECT,
    "lib/repositories/repository.py begin_work": PROJECT,
    "lib/repositories/update.py _start_update": PROJECT,
    "lib/jobs/inside/sync_wandb.bash": OUTPUT,
    "lib/jobs/inside/template.bash fill_template": OUTPUT,
    "lib/jobs/usage.bash usage_sample": OUTPUT,
    "lib/runtimes/overlay.bash overlay_record_use": EMPTY,
    "lib/script/lock.bash lock_is_stale": EMPTY,
    "lib/script/lock.bash lock_make": LOCK,
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


class Bash:
    """The redirections of a bash file to paths, and its directories without a mode.

    It reads what bash reads: no comment, string, here-document or arithmetic is a redirection.
    """

    CLOSING = {"(": ")", "{": "}", '"': '"', "((": "))", "[[": "]]"}

    def __init__(self, text):
        self.text, self.place, self.function = text, 0, ""
        self.found, self.begins = [], {}
        self.stack, self.documents = [], []

    def writers(self):
        """Return function and target of each."""
        while self.place < len(self.text):
            self._step()
        return self.found

    def _step(self):
        text, place = self.text, self.place
        top = self.stack[-1] if self.stack else ""
        here = text[place]
        if here == "\\":
            self.place += 2
        elif top == '"':
            self._in_string(here)
        elif top in ("((", "[[", "{"):
            self._in_other(here, top)
        elif here == "\n":
            self._new_line()
        elif here == "#" and (not place or text[place - 1] in " \t\n;("):
            self.place = text.find("\n", place)
            if self.place < 0:
                self.place = len(text)
        else:
            self._in_code(here)

    def _in_string(self, here):
        if here == '"':
            self.stack.pop()
            self.place += 1
        else:
            self._expansion()

    def _in_other(self, here, top):
        closing = self.CLOSING[top]
        if self.text.startswith(closing, self.place):
            self.stack.pop()
            self.place += len(closing)
        elif here == "'":
            self._quoted()
        elif here == '"':
            self._push('"', 1)
        else:
            self._expansion()

    def _in_code(self, here):
        text, place = self.text, self.place
        match = re.compile(r"(\w+)\(\) \{").match(text, place)
        if match and (not place or text[place - 1] == "\n"):
            self.function = match[1]
            self.place = match.end()
        elif here == "'":
            self._quoted()
        elif here == '"':
            self._push('"', 1)
        elif text.startswith("((", place):
            self._push("((", 2)
        elif re.compile(r"(?<![^\s;(!])\[\[\s").match(text, place):
            self._push("[[", 2)
        elif (
            re.compile(r"<<-?\s*(['\"]?)(\w+)\1").match(text, place)
            and text[place : place + 3] != "<<<"
        ):
            match = re.compile(r"<<-?\s*(['\"]?)(\w+)\1").match(text, place)
            self.documents.append(match[2])
            self.place = match.end()
        elif text.startswith("<<<", place):
            self.place += 3
        elif re.compile(r"[<>]\(").match(text, place):
            self._push("(", 2)
        elif here == "(":
            self._push("(", 1)
        elif here == ")":
            if self.stack and self.stack[-1] == "(":
                self.stack.pop()
            self.place += 1
        elif here == ">" or text.startswith("<>", place):
            self._redirection()
        elif match := re.compile(r"(?<![\w./-])mkdir\b([^\n;|&]*)").match(text, place):
            if not re.search(r" -\w*m\b| -m ", match[1]):
                self.found.append((self.function, "mkdir"))
            self.place += len("mkdir")
        else:
            self._expansion()

    def _redirection(self):
        match = re.compile(r"[<>]>?[|&]?\s*").match(self.text, self.place)
        self.place = match.end()
        if match[0].startswith(">&") or self.text[self.place] in "(<>":  # or a program
            return
        word = re.compile(r"(\"(\\.|[^\"\\])*\"|'[^']*'|[^\s;|&()<>\"'])+").match(
            self.text, self.place
        )
        target = word[0] if word else ""
        if not target.startswith(("/dev/", '"/dev/tcp/')):
            self.found.append((self.function, target))

    def _expansion(self):
        for opening, kind in (("$((", "(("), ("$(", "("), ("${", "{")):
            if self.text.startswith(opening, self.place):
                self._push(kind, len(opening))
                return
        self.place += 1

    def _quoted(self):
        """Skip a string in single quotes, with escapes after a dollar sign."""
        dollar = self.place and self.text[self.place - 1] == "$"
        pattern = r"'(\\.|[^'\\])*'" if dollar else r"'[^']*'"
        match = re.compile(pattern, re.DOTALL).match(self.text, self.place)
        self.place = match.end() if match else self.place + 1

    def _push(self, kind, length):
        self.stack.append(kind)
        self.place += length

    def _new_line(self):
        self.place += 1
        for name in self.documents:
            end = re.compile(rf"^\t*{name}$", re.MULTILINE).search(self.text, self.place)
            self.place = end.end() if end else len(self.text)
        self.documents = []
        if self.text.startswith("}\n", self.place):  # functions end at the left margin
            self.stack, self.function = [], ""


def bash_writers(text):
    """Yield function and target, but for the file that `file_begin` has made."""
    begun = {
        match[1]
        for match in re.finditer(r"^(\w+)\(\) \{\n(.*?)^\}", text, re.M | re.S)
        if "file_begin " in match[2]
    }
    for function, target in Bash(text).writers():
        if not (function in begun and target in ('"$REPLY"', '"$partial"')):
            yield function, target


def sources():
    for top in ("lib", "extras"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix in (".py", ".bash", ".sh") and "tests" not in file.parts:
                yield file


def found_writers():
    found = {}
    for file in sources():
        read = python_writers if file.suffix == ".py" else bash_writers
        for function, call in read(file.read_text(encoding="utf-8")):
            name = f"{file.relative_to(ROOT)} {function}".rstrip()
            found.setdefault(name, []).append(call)
    return found


def test_writers_that_set_no_mode_are_known():
    found = found_writers()
    unknown = {name: calls for name, calls in found.items() if name not in PLAIN}
    assert unknown == {}, "use write_file, make_directory, file_write or directory_make"
    assert [name for name in PLAIN if name not in found] == [], "no longer writes: remove the entry"
    assert all(PLAIN.values())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("f() {\n  echo x >file\n}\n", [("f", "file")]),
        ('f() {\n  echo "$(cat <a 2>"$b")" >>"$c/d"\n}\n', [("f", '"$b"'), ("f", '"$c/d"')]),
        ("f() {\n  echo '>a' \">b\" # >c\n  x >&2 2>/dev/null 2>&1\n}\n", []),
        ("f() {\n  ((a > b)) && [[ a > b ]] && echo $((1 > 0))\n}\n", []),
        ("f() {\n  cat <<EOF\na > b\nEOF\n  cat > c\n}\n", [("f", "c")]),
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
