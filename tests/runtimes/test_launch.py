"""The functions of lib/runtimes/launch.bash, run by bash as they stand in a script."""

import csv
import io
import itertools
import os
import shutil

import pytest
from support import processes

from lib.configuration.sites import own_arch
from lib.script.command import call
from lib.script.quoting import Expansion
from lib.script.render import definitions, render

OTHER_ARCH = {"amd64": "arm64", "arm64": "amd64"}[own_arch()]
CODES = {"amd64": b"02", "arm64": b"04"}


@pytest.fixture
def bash(run, clean_environment):
    """Give a function that runs lines as a script, with arguments and added variables."""

    def run_script(*lines, arguments=(), env=None, **options):
        command = ["bash", "-c", render("a test", lines), "a test", *arguments]
        return run(command, env={**clean_environment, **(env or {})}, **options)

    return run_script


def fails(done, message):
    """Check for one line that says what is wrong and one that says what to type."""
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and message in error, error
    assert hint.startswith("hint: "), hint


def write_sif(path, code):
    """Write the beginning of a SIF file: a launch line, then magic, version and architecture."""
    path.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\0" + code + b"\0" * 50)
    return path


def sif_check(bash, path, **options):
    return bash(call("sif_check", path, own_arch(), "make it"), check=False, **options)


def test_image_for_this_machine_passes(bash, tmp_path):
    done = sif_check(bash, write_sif(tmp_path / "it's an image", CODES[own_arch()]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_image_for_another_architecture_is_told(bash, tmp_path):
    done = sif_check(bash, write_sif(tmp_path / "i.sif", CODES[OTHER_ARCH]))
    fails(done, f"i.sif has the wrong architecture: {OTHER_ARCH}, expected {own_arch()}")


def test_image_for_an_unknown_architecture_is_told(bash, tmp_path):
    fails(
        sif_check(bash, write_sif(tmp_path / "i.sif", b"09")),
        "unknown architecture (code 09)",
    )


def test_missing_image_is_told_with_what_makes_it(bash, tmp_path):
    done = sif_check(bash, tmp_path / "i.sif")
    fails(done, f"image not found: {tmp_path}/i.sif")
    assert "hint: make it" in done.stderr


@pytest.mark.parametrize("content", [b"", b"text\n", b"\0\0\0\0", b"<html>" * 1000, b"\x7fELF\0"])
def test_file_that_is_no_image_is_told(content, bash, tmp_path):
    (tmp_path / "i.sif").write_bytes(content)
    fails(sif_check(bash, tmp_path / "i.sif"), f"not a SIF image: {tmp_path}/i.sif")


def test_folder_is_no_image(bash, tmp_path):
    fails(sif_check(bash, tmp_path), "not a SIF image")


def test_image_that_cannot_be_read_is_told(bash, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read anything")
    image = write_sif(tmp_path / "i.sif", CODES[own_arch()])
    image.chmod(0)
    fails(sif_check(bash, image), "cannot read the image")


def test_image_of_the_compute_nodes_cannot_run_here(bash):
    done = bash(call("host_check_arch", OTHER_ARCH, "the image i.sif"), check=False)
    fails(done, f"the image i.sif is for {OTHER_ARCH}, but this machine is {own_arch()}")
    assert "compute node" in done.stderr


@pytest.mark.parametrize("value", ["x86_64-linux", "arm64", "nonsense"])
def test_architecture_is_the_machines_own_whatever_the_environment_says(value, bash):
    """tcsh exports a HOSTTYPE of its own, and bash takes it over."""
    words = ["host_check_arch", own_arch(), "the image"]
    done = bash(call(*words), env={"HOSTTYPE": value, "MACHTYPE": value})
    assert (done.returncode, done.stderr) == (0, "")


SHOW_OPTIONS = "printf '%s\\0' \"${options[@]}\""


def binds(done):
    """Give what the options bind, as the runtimes read it: CSV records."""
    options = done.stdout.split("\0")[:-1]
    assert options[::2] == ["--mount"] * (len(options) // 2)
    found = []
    for record in options[1::2]:
        (fields,) = csv.reader(io.StringIO(record, newline=""), strict=True)
        assert fields[0] == "type=bind"
        entries = dict(field.split("=", 1) for field in fields[1:] if "=" in field)
        found.append((entries["src"], entries["dst"], "ro" in fields))
    return found


def test_path_of_any_form_is_bound(bash, tmp_path, hostile_arguments):
    names = [each for each in hostile_arguments if each.strip(". ") and "/" not in each]
    for name in names:
        (tmp_path / name).mkdir()
    paths = [str(tmp_path / name) for name in names]
    loop = 'for path; do bind_add "$path"; bind_add "$path" "/inside$path" ro; done'
    found = binds(bash("options=()", loop, SHOW_OPTIONS, arguments=paths))
    expected = [[(path, path, False), (path, f"/inside{path}", True)] for path in paths]
    assert found == list(itertools.chain(*expected))


def test_same_target_is_bound_once(bash, tmp_path):
    add = call("bind_add", tmp_path)
    found = binds(bash("options=()", add, add, call("bind_add", "/", tmp_path), SHOW_OPTIONS))
    assert found == [(str(tmp_path), str(tmp_path), False)]


def test_folder_that_is_not_there_is_told(bash, tmp_path):
    done = bash("options=()", call("bind_add", tmp_path / "none"), check=False)
    fails(done, f"cannot bind {tmp_path}/none: no such file or directory")


def test_folder_of_the_site_is_bound_where_it_exists(bash, tmp_path):
    lines = [call("bind_add_if_exists", each) for each in (tmp_path / "none", tmp_path)]
    assert binds(bash("options=()", *lines, SHOW_OPTIONS)) == [(str(tmp_path),) * 2 + (False,)]


def host_files(bash, env):
    """Give what is bound for an environment, besides what this machine's own files name."""
    unset = "unset ${!PIP_@} ${!UV_@} ${!SSL_@} REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO"
    unset += " AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS TMPDIR XDG_CONFIG_HOME"
    given = [call("export", f"{name}={value}") for name, value in env.items()]
    found = []
    for lines in (["export HOME=/nowhere"], given):
        found.append(
            set(
                binds(
                    bash(
                        unset,
                        *lines,
                        "options=()",
                        "bind_host_files",
                        "bind_pip_sources",
                        SHOW_OPTIONS,
                    )
                )
            )
        )
    assert all(source == target for source, target, _ in found[1])
    return {source: read_only for source, _, read_only in found[1] - found[0]}


@pytest.mark.parametrize(
    "variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"]
)
def test_certificates_in_use_are_shown(variable, bash, tmp_path, clean_environment):
    file = tmp_path / 'my, "own" certificates.pem'
    file.touch()
    home = {"HOME": str(tmp_path)}
    assert host_files(bash, {variable: file, **home}) == {str(file): True}
    assert host_files(bash, {variable: tmp_path / "none", **home}) == {}
    assert host_files(bash, {variable: "relative.pem", **home}) == {}


def test_folders_and_files_of_pips_configuration_are_shown(bash, tmp_path):
    names = ["in file", "url", "listed", "variable", "index/simple", "unused"]
    folders = {name: tmp_path / "wheels" / name.replace(" ", "_") for name in names}
    for folder in folders.values():
        folder.mkdir(parents=True)
    configuration = tmp_path / "home/.config/pip/pip.conf"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text(
        f"[global]\nfind-links = {folders['in file']} file://{folders['url']}\n"
        f"    {folders['listed']}\nindex-url = file://{folders['index/simple']}\n"
        "extra-index-url = https://example.org/*\n"
        f"constraint = {tmp_path}/constraints.txt\n"
    )
    (tmp_path / "constraints.txt").write_text("six<2\n")
    found = host_files(
        bash, {"HOME": tmp_path / "home", "PIP_FIND_LINKS": f"{folders['variable']} /none"}
    )
    expected = [folders[name] for name in ("in file", "url", "listed", "variable")]
    expected += [folders["index/simple"].parent, tmp_path / "constraints.txt"]
    assert found == {str(folder): True for folder in expected}


def test_words_of_pips_configuration_are_no_patterns(bash, tmp_path):
    home = tmp_path / "another home"
    (home / ".pip").mkdir(parents=True)
    (home / ".pip/pip.conf").write_text(f"[global]\nfind-links = {tmp_path}/*\n")
    assert host_files(bash, {"HOME": home}) == {}


def test_temporary_folder_elsewhere_is_shown(bash, tmp_path):
    found = host_files(bash, {"HOME": tmp_path, "TMPDIR": "/usr"})
    assert found == {"/usr": False}
    assert host_files(bash, {"HOME": tmp_path, "TMPDIR": "/tmp"}) == {}


def test_environment_without_a_home_is_no_error(bash):
    done = bash("unset HOME", "options=()", "bind_host_files", "bind_pip_sources", check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_home_with_a_colon_is_told(bash, tmp_path):
    home = tmp_path / "a:b"
    home.mkdir()
    done = bash("options=()", "sif_add_home", "echo on", env={"HOME": home}, check=False)
    assert done.stdout == ""
    fails(done, f"HOME contains a colon, which Apptainer does not allow: {home}")


# Table 3-7 of the Unicode standard: the first and last of each row, and their neighbours.
UTF8 = [
    "\x01",
    "\x7f",
    "\x80",
    "\u07ff",
    "\u0800",
    "\u0fff",
    "\u1000",
    "\ucfff",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0003ffff",
    "\U00040000",
    "\U000fffff",
    "\U0010ffff",
]
NOT_UTF8 = [
    b"\x80",
    b"\xbf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc2",
    b"\xe0\x80\x80",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xef\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xff",
    b"a\xc3(",
    b"\xe2\x82",
    b"\xc3\xa9\xa9",
]


def checked(bash, *arguments):
    lines = [call("command_set", "rc file", Expansion('"$@"')), "command_check_text", "echo text"]
    return bash(*lines, arguments=arguments, check=False)


@pytest.mark.parametrize(
    "some", [*UTF8, "ü" * 60000, "\\" * 131000], ids=lambda text: ascii(text[:6])
)
def test_text_is_passed_on(bash, some):
    assert checked(bash, "a", some, "$x").stdout == "text\n"


@pytest.mark.parametrize(
    "some", [*NOT_UTF8, "ü".encode() * 60000 + b"\xff"], ids=lambda text: ascii(text[:6])
)
def test_argument_that_is_not_utf8_is_refused(bash, some):
    done = checked(bash, "a", os.fsdecode(some), "b")
    assert done.stdout == ""
    fails(done, "argument is not UTF-8")


@pytest.mark.parametrize(("there", "shown"), [("bash", "--rcfile /rc file -i"), ("sh", "-i")])
def test_no_command_is_an_interactive_shell(there, shown, bash, tmp_path):
    """Started with a PATH that has only one of the two: an image can lack bash."""
    program = tmp_path / there
    program.write_text(f'#!/bin/sh\necho {there} "$@"\n')
    program.chmod(0o755)
    take = call("command_set", "/rc file", Expansion('"$@"'))
    done = bash(take, f"PATH={tmp_path}", '"${command[@]}"')
    assert done.stdout == f"{there} {shown}\n"


def test_modules_are_loaded_in_order_where_the_program_is_missing(bash):
    module = "module() { printf '%s\\n' \"$#: $*\"; }"
    loading = call("modules_load", "no-such-program", "purge", "load Stages/2025 GCC")
    assert bash(module, loading).stdout == "1: purge\n3: load Stages/2025 GCC\n"
    assert bash(module, call("modules_load", "sh", "purge")).stdout == ""


def test_failing_module_does_not_end_the_script(bash):
    module = 'module() { echo "$unset_variable"; return 1; }'
    done = bash(module, call("modules_load", "no-such-program", "purge"), "echo went on")
    assert done.stdout == "\nwent on\n"


def test_folders_are_made_and_what_cannot_be_made_is_told(bash, tmp_path, read_only_folder):
    wanted = [tmp_path / "it's/a folder", tmp_path / "-p"]
    bash(call("directory_make", *wanted))
    bash(call("directory_make", *wanted))
    assert all(folder.is_dir() for folder in wanted)
    done = bash(call("directory_make", read_only_folder / "scratch"), check=False)
    fails(done, f"cannot use the directory {read_only_folder}/scratch: ")
    assert "[paths]" in done.stderr


def test_folder_that_cannot_be_entered_is_told(run, clean_environment, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    command = ["bash", "-c", render("a test", [call("directory_make", closed)])]
    if os.geteuid() == 0:  # root without what lets root pass
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    done = run(command, env=clean_environment, check=False)
    closed.chmod(0o755)  # or pytest could not delete it
    fails(done, f"cannot use the directory {closed}: Permission denied")


def test_venv_is_checked(bash, tmp_path):
    check = call("venv_check", tmp_path, "image 1")
    fails(bash(check, check=False), f"not installed: {tmp_path} not found")
    (tmp_path / "longship-base").write_text("image 1\n")
    assert bash(check).stderr == ""
    (tmp_path / "longship-base").write_text("image 2\n")
    fails(
        bash(check, check=False), f"in {tmp_path} were installed on top of image 2, not of image 1"
    )


def test_missing_program_is_told(bash):
    fails(bash(call("program_check", "no-such"), check=False), "no-such not found")
    assert bash(call("program_check", "sh")).stderr == ""


def test_no_function_leaves_its_options_set(bash):
    """`set -f` of one function must not reach the rest of the script."""
    done = bash(
        "options=()", "before=$-", "bind_host_files", "bind_pip_sources", '[[ $- == "$before" ]]'
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("tasks", "node", "local"),
    [
        ("8(x2)", 0, 8),
        ("8(x2)", 1, 8),
        ("3(x2),1", 2, 1),
        ("2,1(x3)", 0, 2),
        ("2,1(x3)", 3, 1),
        ("5", 0, 5),
    ],
)
def test_rank_is_read_from_slurm(tasks, node, local, run, clean_environment):
    step = {"STEP_NUM_TASKS": "7", "PROCID": "4", "LOCALID": "1", "NODEID": str(node)}
    environment = {f"SLURM_{name}": value for name, value in step.items()}
    environment["SLURM_STEP_TASKS_PER_NODE"] = tasks
    show = "echo $RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK $LOCAL_WORLD_SIZE"
    script = f"{definitions()['rank_export']}\nset -eu; rank_export; {show}"
    told = run(["bash", "-c", script], env={**clean_environment, **environment}).stdout.split()
    assert told == ["4", "7", "1", str(node), str(local)]


def test_batch_script_is_no_rank(run, clean_environment):
    environment = {**clean_environment, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    script = f'{definitions()["rank_export"]}\nset -eu; rank_export; echo "${{RANK-none}}"'
    assert run(["bash", "-c", script], env=environment).stdout == "none\n"


@pytest.mark.parametrize(
    ("step", "end", "stays"),
    [("7", "exit 3", True), ("7", "exec bash -c 'exit 3'", False), ("", "exit 3", False)],
)
def test_rank_that_cannot_start_stays_until_slurm_has_read_why(
    step, end, stays, run, clean_environment
):
    environment = {**clean_environment, **({"SLURM_STEP_NUM_TASKS": step} if step else {})}
    lines = ["sleep() { echo stays; }", "exit_delay", "lock_run a_lock :", end]
    script = render("a rank that takes a lock to unpack an overlay", lines)
    done = run(["bash", "-c", script], env=environment, check=False)
    assert (done.stdout == "stays\n", done.returncode) == (stays, 3)


# --- reading ahead

# dd, with what it reads in a file of its own
STORE = 'exec "$DD" "$@" of="$STORED/$$" 2>"$STORED.errors"\n'
RECORD = """\
{
  "mounted_by": "bind",
  "overlay_reads": "skip=1 count=2",
  "image_reads": "skip=3 count=4"
}
"""


def test_parts_that_an_import_reads_are_read_ahead(bash, repository, tmp_path):
    file = tmp_path / 'over "lay" $x'
    file.write_text("".join(f"{number:05}" for number in range(2000)))
    stored = tmp_path / "stored"
    stored.mkdir()
    program = repository.write("bin/dd", f"#!/bin/bash\n{STORE}")
    program.chmod(0o755)
    env = {"DD": shutil.which("dd"), "STORED": str(stored)}
    env["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    line = call("file_read_ahead", file, "skip=10 count=5 skip=9000 count=1000")
    done = bash(line, "echo started", env=env)
    assert (done.stdout, done.stderr) == ("started\n", "")
    expected = ["00002", "".join(f"{x:05}" for x in range(1800, 2000))]
    processes.wait_until(lambda: sorted(x.read_text() for x in stored.iterdir()) == expected)


@pytest.mark.parametrize("parts", ["", "skip=1", "skip=1 count=2 of=file", "skip=1 count=2"])
def test_only_the_options_of_a_record_are_passed_to_dd(parts, bash, tmp_path):
    """A record of the group could be damaged; the output ends after the last process."""
    lines = ["exec 5>&1", "nice() { touch started; }", call("file_read_ahead", "file", parts)]
    bash(*lines, cwd=tmp_path)
    assert (tmp_path / "started").exists() == (parts == "skip=1 count=2")


@pytest.mark.parametrize("variables", [{}, {"SLURM_LOCALID": "0"}])
def test_first_rank_of_a_node_reads_ahead(variables, mount):
    assert mount(**variables) == ["overlay: skip=1 count=2", "image: skip=3 count=4"]


@pytest.mark.parametrize("variables", [{"SLURM_LOCALID": "1"}, {"LONGSHIP_READ_AHEAD": "0"}])
def test_other_ranks_do_not(variables, mount):
    assert mount(**variables) == []


@pytest.fixture
def mount(bash, repository):
    """Give a function that mounts an overlay; it returns what is read ahead."""
    record = repository.write("record", RECORD)

    def give(**variables):
        lines = [
            "options=()",
            f"mapfile -t overlay_record <{record}",
            'file_read_ahead() { echo "$1: $2"; }',
            call("overlay_mount", "overlay", "/user-software", "image"),
        ]
        return bash(*lines, env=variables).stdout.splitlines()

    return give
