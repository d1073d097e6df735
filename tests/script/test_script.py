"""An emitted script holds the functions that it uses, and needs no other file."""

import os
import re

from support import processes

from lib.script.command import call, text_below
from lib.script.quoting import Expansion
from lib.script.render import definitions, render, shell_files


def test_every_function_of_the_shell_files_is_found():
    pattern = re.compile(r"^\s*(?:function\s+)?([A-Za-z_]\w*)\s*\(\)", re.MULTILINE)
    written = [name for path in shell_files() for name in pattern.findall(path.read_text())]
    # of the job script: in watcher.bash and at_exit.bash
    written = [name for name in written if name not in ("srun", "trap")]
    assert written
    assert sorted(written) == sorted(set(written)), "two functions of one name"
    assert set(written) <= set(definitions())


# A name with an underscore where a command begins, but not that of a variable.
CALLED = re.compile(
    r"(?:^|[;&|({!]|\$\(|\b(?:then|else|do|if|elif|while|until)\b)\s*"
    r"([a-z]+(?:_[a-z0-9]+)+)(?=[\s;)]|$)(?! ?[=<>*)])"
)
# Emitted scripts define these themselves.
EMITTED = {"card_inside", "image_check_active", "inside_run", "pyxis_add_binds", "start_image"}


def test_every_function_that_is_called_is_defined():
    """Renaming one must not leave a caller behind in another package."""
    missing = []
    for path in shell_files():
        before = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            code = re.sub(r"'[^']*'|\(\(.*?\)\)", "", line).partition(" #")[0]
            if not line.lstrip().startswith("#") and not before.endswith("\\"):
                missing += [(path.name, name) for name in CALLED.findall(code)]
            before = line
    known = definitions().keys() | EMITTED
    assert len(missing) > 500
    assert [each for each in missing if each[1] not in known] == []


def test_every_constant_of_the_shell_files_is_found():
    pattern = re.compile(r"^(?:readonly|declare -g?[aA]?) (\w+)=", re.MULTILINE)
    written = [name for path in shell_files() for name in pattern.findall(path.read_text())]
    assert written
    assert set(written) <= set(definitions())


def test_definition_is_whole_with_the_comment_above_it():
    text = definitions()["lock_run"]
    assert text.startswith("# lock_run PATH FUNCTION")
    assert text.endswith("\n}")
    assert "lock_hold" in text and "\nhold_lock() {" not in text


# One bash for all, as there are hundreds; what stands behind `false` is read and not run.
READ_EACH = r"""
while IFS= read -r -d '' name && IFS= read -r -d '' text; do
  eval "if false; then"$'\n'"$text"$'\n'"fi" || printf 'not bash by itself: %s\n' "$name"
done
"""


def test_each_definition_is_bash_by_itself(run):
    assert definitions()
    given = {**definitions(), "broken": "broken() {\n  echo 'it\n}", "open": "open() {\n  {\n}"}
    texts = "".join(f"{name}\0{text}\0" for name, text in given.items())
    done = run(["bash", "-c", READ_EACH], input=texts)
    assert done.stdout.splitlines() == [
        f"not bash by itself: {each}" for each in ("broken", "open")
    ], done.stderr


def test_script_holds_what_it_uses_and_nothing_else():
    script = render("x", [call("lock_run", "/x", "next_step", "y")])
    for name in ("lock_run", "lock_take", "lock_is_stale", "lock_patience", "fail", "next_step"):
        assert definitions()[name] in script
    for name in ("venv_install", "sif_check", "command_set"):
        assert definitions()[name] not in script


def test_script_without_functions_is_short():
    begin = "#!/usr/bin/env bash\n# a title\nset -euo pipefail\n\nlongship_main() {\n  true\n}\n\n"
    assert render("a title", ["true"]) == (
        f"{begin}# ---------- lib/script/exported.bash\n\n{definitions()['exported_keep']}\n\n"
        'exported_keep\n\nlongship_main "$@"\n'
    )


def test_script_begins_with_its_plan(run):
    text = text_below("longship_greeting", "of\n  two lines", "What is said.")
    lines = [text, call("note", Expansion('"$longship_greeting"')), "", "", call("next_step", "y")]
    script = render("x", lines)
    head, _, rest = script.partition("\n\n# ---------- lib/script/exported.bash\n\n")
    assert head.splitlines()[4:] == [
        "longship_main() {",
        '  note "$longship_greeting"',
        "",
        "  next_step y",
        "}",
        "",
        "# What is said.",
        "# shellcheck disable=SC2016,SC2034 # expanded where it is used, not here",
        "longship_greeting='of",
        "  two lines'",
    ]
    assert rest.endswith('\n\nlongship_main "$@"\n')
    assert run(["bash", "-c", script]).stderr == "note: of\n  two lines\nnext: y\n"


def test_arguments_exit_codes_and_exec_pass_through_the_plan(run, hostile_arguments):
    lines = [
        "shift",
        call("exec", "sh", "-c", 'printf "%s\\0" "$@"; exit 7', "0", Expansion('"$@"')),
    ]
    done = run(["bash", "-c", render("x", lines), "name", *hostile_arguments], check=False)
    assert done.stdout.split("\0")[:-1] == hostile_arguments[1:]
    assert done.returncode == 7


def test_script_stops_at_the_first_failure(run):
    done = run(["bash", "-c", render("x", ["false", "echo on"])], check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_arrays_of_a_script_that_a_function_sources_are_global(run, tmp_path):
    """As a job script's start_job does."""
    file = tmp_path / "start.bash"
    lines = ["bound[a]=b", 'held_locks+=("$1")', "longship_facts=(x)"]
    file.write_text(render("x", lines, sourced=True))
    begin = f'start() {{ source "{file}"; }}\nset -eu; start "c d"\n'
    show = 'bound[/e f]=g; echo "${!bound[@]} ${held_locks[0]} ${longship_facts[0]}"'
    done = run(["bash", "-c", begin + show])
    assert sorted(done.stdout.split()) == ["/e", "a", "c", "d", "f", "x"]


def test_what_a_job_script_exports_is_given_back(run, tmp_path):
    """Under names that the script uses for arrays, in functions and for its constants."""
    file = tmp_path / "start.bash"
    lines = ["bound[a]=b", "REPLY=x", call("lock_take", "/x"), "options=(a b)", "longship_log=y"]
    file.write_text(
        render("x", lines[:2] + lines[3:] + [f"if false; then {lines[2]}; fi"], sourced=True)
    )
    names = ["bound", "REPLY", "options", "lock_patience", "held_locks"]
    canaries = dict.fromkeys(names, " the user's\n$(touch x) ")
    begin = f'job=mine options_of_mine=1; start() {{ source "{file}"; }}\nset -u; start\n'
    done = run(
        ["bash", "-c", f'{begin}env -0; printf %s "$longship_log"'],
        env={**os.environ, **canaries},
        cwd=tmp_path,
    )
    *lines, last = done.stdout.split("\0")
    seen = dict(each.split("=", 1) for each in lines)
    assert last == "y" and {name: seen.get(name) for name in names} == canaries
    assert "job" not in seen and "options_of_mine" not in seen
    assert not (tmp_path / "x").exists()


def test_shell_options_of_ours_are_not_the_programs(run):
    environ = {**os.environ, "SHELLOPTS": "braceexpand:hashall", "BASHOPTS": "extglob"}
    script = render("x", [call("command_exec", "bash", "-c", "false; echo $-")])
    assert "e" not in run(["bash", "-c", script], env=environ).stdout


def test_locale_that_is_not_installed_is_told_by_bash_alone(run):
    lines = [call("printable", "x"), call("command_exec", "sh", "-c", 'echo "$LC_ALL"')]
    environ = {"PATH": processes.PATH, "LC_ALL": "xx_YY"}
    done = run(["bash", "-c", render("x", lines)], env=environ)
    assert done.stdout == "xx_YY\n"
    assert [each.partition(": ")[0] for each in done.stderr.splitlines()] == ["bash"]


def test_title_cannot_become_a_command(run):
    script = render("two\nlines\rand more; touch x", ["echo end"])
    assert run(["bash", "-c", script]).stdout == "end\n"


def test_script_runs_where_the_repository_is_not(run, tmp_path):
    script = render("x", [call("next_step", "it's $this"), call("fail", "a", "b")])
    done = run(["bash", "-c", script], env={"PATH": processes.PATH}, cwd="/", check=False)
    assert done.returncode == 1
    assert done.stderr == "next: it's $this\nerror: a\nhint: b\n"


def test_no_name_is_defined_twice():
    text = "".join(path.read_text() for path in shell_files())
    names = re.findall(r"^(?:(\w+)\(\) \{|(?:readonly|declare -g[aA]?) (\w+)=)", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(definitions())


def test_same_input_gives_the_same_script():
    lines = [call("lock_run", "/x", "venv_install")]
    assert render("x", lines) == render("x", lines)
