"""container_run.py with the real runtimes: one environment inside, whatever starts it."""

import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support import processes
from support.environments import AWKWARD, SECRET, put_tag_in_use
from support.registry import without
from support.repository import toml

SECONDS = 300  # what a test waits for at most


def show(clone, *names, env=None, options=()):
    """Give the values of variables inside; None for what is not set."""
    done = clone.container_run(*options, "env", "-0", env=env)
    found = dict(each.split("=", 1) for each in done.stdout.split("\0")[:-1])
    return found if not names else {name: found.get(name) for name in names}


def is_told(done, message, code=1):
    """Check for one line that says what is wrong and one that says what to type."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert done.returncode == code, done.stderr
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("error: ") and message in lines[0]
    assert lines[1].startswith("hint: ")
    return lines[1]


# Exit codes


@pytest.mark.parametrize("code", [1, 255])  # 0 is that of most tests
def test_exit_code_is_the_programs(code, clone):
    done = clone.container_run("sh", "-c", f"exit {code}", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_exit_code_says_which_signal_ended_the_program(clone, run):
    shell = ["bash", "-c", '"$@"; exit "$?"', "bash"]  # what the caller's shell sees
    command = clone.command("container_run.py", "sh", "-c", "kill -TERM $$")
    done = run([*shell, *command], env=clone.environment, cwd=clone.root, check=False)
    assert done.returncode == 143


def test_missing_command_ends_with_127(clone):
    done = clone.container_run("no-such-command", "x", check=False)
    hint = is_told(done, 'command not found inside the environment: "no-such-command"', code=127)
    assert "set_up.py install" in hint


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (
            ["python train.py --steps 5"],
            "type it without the quotes around it: python train.py --steps 5",
        ),
        (["train.py", "--steps", "5"], "run: python train.py --steps 5"),
        (["cd", "/tmp", "&&", "ls"], "run: bash -c 'cd ... && COMMAND'"),
    ],
)
def test_command_that_means_another_is_told(words, meant, prepared):
    done = prepared("host").container_run(*words, check=False)
    name = f'command not found inside the environment: "{words[0]}"'
    assert is_told(done, name, code=127) == f"hint: {meant}"


# Signals

WAIT = """
import signal, sys
numbers = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
print("got", signal.Signals(signal.sigwait(numbers)).name)
sys.exit(5)
"""


@pytest.fixture
def start():
    """Give a function that starts a program inside; what still runs at the end is killed."""
    started = []

    def start_program(clone, *command, **options):
        process = clone.start("container_run.py", *command, cwd=clone.root, **options)
        started.append(process)
        return process

    yield start_program
    for process in started:
        # docker's containers are no children of ours: they end when they are told
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(Exception):
                process.wait(timeout=10)
        processes.end_group(process)
        process.communicate()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_signal_reaches_the_program(name, clone, start):
    process = start(clone, "python3", "-c", WAIT)
    assert process.stdout.readline() == "ready\n"
    if clone.runtime == "podman":
        time.sleep(2)  # before 4.5 it passes signals on only a moment after the program has begun
    process.send_signal(getattr(signal, name))
    output, errors = process.communicate(timeout=SECONDS)
    assert output == f"got {name}\n", errors
    assert process.returncode == 5


@pytest.mark.root
def test_nothing_stands_between_the_caller_and_the_program(prepared, start):
    process = start(prepared("host"), "python3", "-c", "import os; print(os.getpid())")
    output, _ = process.communicate(timeout=SECONDS)
    assert output == f"{process.pid}\n"


# Input, terminals, shells


def test_standard_input_passes(clone):
    text = "".join(map(chr, range(256))) * 100 + "\udcff"
    assert clone.container_run("cat", input=text).stdout == text


def test_standard_error_stays_apart(clone):
    done = clone.container_run("sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


# docker tells the size only after the program has started.
TERMINAL = """
import os, time
end = time.monotonic() + 30
while not os.get_terminal_size().columns and time.monotonic() < end:
    time.sleep(0.05)
print([os.isatty(number) for number in (0, 1, 2)], tuple(os.get_terminal_size()))
"""


def test_terminal_passes(clone, terminal):
    there = terminal(clone, "container_run.py", "python3", "-c", TERMINAL, columns=77)
    assert there.end() == 0, there.said
    assert "[True, True, True] (77, 50)" in there.said


BASHRC = """
export PATH=/usr/bin:/bin:$PATH PYTHONPATH=/nonsense
alias mine='echo my alias'
"""


def test_interactive_shell_keeps_the_venv_whatever_the_bashrc_does(clone, terminal):
    bashrc = Path(clone.environment["HOME"], ".bashrc")
    bashrc.write_text(BASHRC)
    try:
        there = terminal(clone, "container_run.py")
        there.type("mine; echo [$(command -v python)] [$PYTHONPATH] [$-]\n")
        there.type('echo "[$PS1]"\n')  # a runtime can tell the width late, and a prompt is cut
        there.type("python -c 'import longship_tiny as t; print(\"version\", t.VERSION)'; exit 9\n")
        assert there.end() == 9, there.said
    finally:
        bashrc.unlink()
    arch = os.path.realpath(_venv(clone))
    assert f"[{arch}/bin/python] []" in there.said
    assert "my alias\r\n" in there.said
    assert "version 1.0\r\n" in there.said
    assert "[(pytorch)" in there.said  # the prompt says where one is


def _venv(clone):
    (venv,) = clone.scratch.glob("venv_*")
    return venv


def test_shell_without_a_terminal_reads_commands(clone):
    done = clone.container_run(input="echo hello; exit 3\n", check=False)
    assert done.stdout == "hello\n"
    assert done.returncode == 3


@pytest.mark.needs("registry", "skopeo")
@pytest.mark.parametrize("runtime", ["apptainer", "docker"])
def test_image_without_bash_has_a_shell_too(runtime, lab, registry):
    clone = lab(registry.name("lab/tiny:1"), runtime)
    clone.build_and_move()
    done = clone.container_run(input="echo hello; exit 3\n", check=False)
    assert (done.stdout, done.returncode) == ("hello\n", 3), done.stderr
    assert "error: " not in done.stderr
    done = clone.container_run("bash", check=False)
    assert done.returncode == 127 and "or choose an image that has it" in done.stderr


# The environment


def test_program_knows_where_it_is(clone):
    found = show(clone)
    assert found["LONGSHIP_ROOT"] == str(clone.root)
    assert found["LONGSHIP_MACHINE"] == "local"
    assert found["LONGSHIP_SCRATCH_DIR"] == str(clone.scratch)
    assert found["HF_HOME"] == f"{clone.scratch}/cache/huggingface"
    assert found["PYTHONNOUSERSITE"] == "1"


def test_cache_of_the_caller_is_kept_and_what_is_replaced_is_told(clone):
    command = ["sh", "-c", 'echo 1 >"$TRITON_CACHE_DIR/x"; echo "$HF_HUB_OFFLINE $TORCH_HOME"']
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # not visible unless bound
        env = {"TRITON_CACHE_DIR": folder, "HF_HUB_OFFLINE": "0", "TORCH_HOME": "/my/home"}
        done = clone.container_run(*command, env=env)
        assert Path(folder, "x").exists()
    assert done.stdout == "1 /my/home\n"
    (note,) = [line for line in done.stderr.splitlines() if "replaced" in line]
    assert note.endswith(": HF_HUB_OFFLINE (--online, environment.set)")


def test_packages_of_the_venv_are_there(clone):
    python = "import longship_tiny, sys; print(longship_tiny.VERSION, sys.prefix)"
    done = clone.container_run("python", "-c", python)
    assert done.stdout == f"1.0 {os.path.realpath(_venv(clone))}\n"
    assert clone.container_run("longship_tiny").stdout == "1.0\n"


def test_packages_of_the_image_are_there_too(contained):
    assert contained.container_run("python", "-c", "import yaml").returncode == 0


def test_packages_of_the_host_are_not(prepared):
    done = prepared("host").container_run("python", "-c", "import yaml", check=False)
    assert "ModuleNotFoundError" in done.stderr


def test_packages_in_the_home_folder_are_never_seen(clone):
    home = Path(clone.environment["HOME"])
    version = clone.container_run(
        "python", "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"
    ).stdout.strip()
    folder = home / ".local/lib" / version / "site-packages"
    folder.mkdir(parents=True)
    (folder / "sneaky.py").touch()
    try:
        assert clone.container_run("test", "-e", folder / "sneaky.py").returncode == 0
        done = clone.container_run("python", "-c", "import sneaky", check=False)
    finally:
        shutil.rmtree(home / ".local/lib")  # beside it lies what the session uses
    assert "ModuleNotFoundError" in done.stderr


LEAKING = [
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPATH", "CMAKE_PREFIX_PATH", "LESSOPEN"),
    *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "_CE_M"),
]


def test_what_is_on_the_list_does_not_leak_from_the_host(clone):
    found = show(clone, env=dict.fromkeys(LEAKING, "/of the host"))
    assert "/of the host" not in found.values()


def test_options_of_the_runtime_are_not_those_of_the_callers_shell(prepared, tmp_path):
    clone = prepared("apptainer")
    asked = {
        "APPTAINERENV_PYTHONPATH": "/of the host",
        "APPTAINER_CLEANENV": "1",
        "APPTAINER_PWD": "/",
        "SINGULARITYENV_CC": "/of the host",
    }
    kept = {"HF_TOKEN": SECRET, "APPTAINER_BIND": f"{tmp_path}:/mnt:rw,ro"}
    words = ["sh", "-c", 'pwd; ls /mnt; echo "[$PYTHONPATH] [$CC] [$HF_TOKEN]"']
    (tmp_path / "a file").touch()
    done = clone.container_run(*words, env={**asked, **kept}, cwd=tmp_path)
    assert done.stdout == f"{tmp_path}\na file\n[] [] [{SECRET}]\n"
    assert f"note: ignoring from the environment: {' '.join(asked)}\n" in done.stderr
    quiet = clone.container_run("true", env={**asked, "SLURM_PROCID": "1"})
    assert "ignoring" not in quiet.stderr


def test_missing_directory_of_a_bind_of_the_callers_shell_is_told(prepared):
    env = {"APPTAINER_BINDPATH": "/etc,/no such:/mnt"}
    done = prepared("apptainer").container_run("true", env=env, check=False)
    hint = is_told(done, "APPTAINER_BINDPATH names a path that does not exist: /no such")
    assert hint.endswith("run: unset APPTAINER_BINDPATH")


def test_preloaded_library_does_not_leak(clone, tmp_path):
    program = ["sh", "-c", "echo [$LD_PRELOAD] [$BASH_ENV] [$ENV]"]
    env = {"LD_PRELOAD": f"{tmp_path}/none.so", "BASH_ENV": "/dev/null", "ENV": "/dev/null"}
    assert clone.container_run(*program, env=env).stdout == "[] [] []\n"


def test_values_arrive_as_they_are(clone):
    found = show(clone, "AWKWARD", "MINE", "EMPTY", env={"MINE": AWKWARD, "EMPTY": ""})
    assert found == {"AWKWARD": AWKWARD, "MINE": AWKWARD, "EMPTY": ""}


def test_variable_that_no_posix_shell_has_is_told(clone):
    env = {"a.b": "1", "BASH_FUNC_mine%%": "() { echo ran; }"}
    done = clone.container_run("sh", "-c", "env; mine || echo no function", env=env)
    assert "note: not passed on, because their names are not POSIX names: a.b\n" in done.stderr
    assert "a.b" not in done.stdout and done.stdout.endswith("no function\n")


def test_exported_decode_is_not_run(clone):
    """Recipes for speech export it; the start once ran a variable of that name."""
    canary = {"decode": "exit 3; "}
    assert show(clone, "decode", "PYTHONNOUSERSITE", env=canary) == {
        **canary,
        "PYTHONNOUSERSITE": "1",
    }


def test_variables_of_a_job_arrive(clone):
    env = {"SLURM_PROCID": "3", "MASTER_ADDR": "node1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert show(clone, *env, env=env) == env


def test_home_and_user_are_the_callers(clone):
    done = clone.container_run("sh", "-c", 'echo "$HOME"; id -u; id -g')
    assert done.stdout == f"{clone.environment['HOME']}\n{os.getuid()}\n{os.getgid()}\n"


def test_other_home_than_that_of_the_passwd_file_is_shown(contained):
    """The tests' own HOME is one; a user's can be, and root's in a user namespace."""
    home = Path(contained.environment["HOME"])
    (home / "a file").write_text("content")
    done = contained.container_run("sh", "-c", 'cat ~/"a file"')
    (home / "a file").unlink()
    assert done.stdout == "content"


def test_hugging_face_is_offline_unless_online(clone):
    assert show(clone, "HF_HUB_OFFLINE") == {"HF_HUB_OFFLINE": "1"}
    assert show(clone, "HF_HUB_OFFLINE", options=["--online"]) == {"HF_HUB_OFFLINE": None}


def test_working_folder_is_kept(clone, tmp_path):
    folder = tmp_path / 'it\'s, "a" folder'
    folder.mkdir()
    for there in (folder, clone.root / "lib", Path(clone.environment["HOME"])):
        assert clone.container_run("pwd", cwd=there).stdout == f"{there}\n"


def test_working_folder_that_is_not_visible_is_no_error(clone):
    assert clone.container_run("true", cwd="/etc").returncode == 0


def test_files_written_inside_are_the_callers(clone, tmp_path):
    clone.container_run("touch", clone.scratch / "file", tmp_path / "file")
    for file in (clone.scratch / "file", tmp_path / "file"):
        assert file.stat().st_uid == os.getuid()
        file.unlink()


@pytest.mark.parametrize("runtime", ["docker"])
def test_groups_of_the_caller_are_had_inside(runtime, prepared, tmp_path):
    """Those of a shared folder: `id` tells of one more than this user has."""
    program = tmp_path / "bin/id"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {os.getgid()} 4242\n")
    program.chmod(0o755)
    clone = prepared(runtime)
    path = f"{program.parent}:{clone.environment['PATH']}"
    assert "4242" in clone.container_run("/usr/bin/id", "-G", env={"PATH": path}).stdout.split()


def test_host_file_of_certificates_is_readable_inside(contained):
    # a file of the host that neither the image nor a bind of /tmp and home would show
    file = sorted(Path("/usr/share/doc").glob("*/copyright"))[0]
    done = contained.container_run(
        "sh", "-c", 'cat "$SSL_CERT_FILE"', env={"SSL_CERT_FILE": str(file)}
    )
    assert done.stdout == file.read_text(encoding="utf-8", errors="surrogateescape")


def test_folders_of_pips_configuration_are_readable_inside(contained, tmp_path):
    folder = sorted(Path("/usr/share/doc").glob("*/copyright"))[0].parent
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nfind-links = {folder}\n")
    env = {"PIP_CONFIG_FILE": str(settings)}
    done = contained.container_run("cat", settings, folder / "copyright", env=env)
    assert done.stdout.startswith("[global]") and len(done.stdout) > 100


def test_configured_bind_is_seen_inside(contained, make_clone, tmp_path):
    data = tmp_path / 'some data, "mine"'
    data.mkdir()
    (data / "file").write_text("content")
    more = f'[container]\nruntime = "{contained.runtime}"\nimage = {toml(contained.image)}\n'
    more += f"binds = {toml([data, f'{data}:/seen/here:ro'])}\n"
    clone = make_clone(tmp_path, contained.runtime)
    text = (clone.root / "configuration.toml").read_text()
    before, rest = text.split("[container]")
    clone.configure(f"{before}{more}[packages]{rest.split('[packages]')[1]}")
    done = clone.container_run("cat", data / "file", "/seen/here/file")
    assert done.stdout == "contentcontent"
    assert clone.container_run("touch", "/seen/here/new", check=False).returncode != 0


# Secrets


def test_secret_of_the_environment_arrives_and_is_seen_nowhere(clone, start, run):
    wait = "import os, sys; print(os.environ['HF_TOKEN'] * 2, flush=True); sys.stdin.read()"
    secret = f"{SECRET} 'of' {os.urandom(8).hex()}"
    process = start(
        clone, "python3", "-c", wait, env={"HF_TOKEN": secret}, stdin=processes.subprocess.PIPE
    )
    assert process.stdout.readline() == f"{secret}{secret}\n"
    assert_nobody_sees(secret)
    if clone.runtime in ("docker", "podman"):
        assert not list(Path("/dev/shm").glob(f"longship-secrets-{process.pid}.*"))
        listed = run([clone.runtime, "ps", "--quiet"], env=clone.environment).stdout.split()
        inspect = [clone.runtime, "inspect", *listed]
        shown = run(inspect, env=clone.environment).stdout
        assert "LONGSHIP_SCRATCH_DIR" in shown and secret[-16:] not in shown
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    if clone.runtime == "podman":
        info = ["podman", "info", "--format", "{{.Store.GraphRoot}}"]
        store = run(info, env=clone.environment).stdout.strip()
        (database,) = Path(store, "libpod").glob("*.db")
        assert secret[-16:].encode() not in database.read_bytes()


@pytest.mark.parametrize("runtime", ["docker"])
def test_secret_of_a_start_that_failed_is_removed_by_the_next(runtime, prepared, run):
    clone = prepared(runtime)
    left = Path(run(["mktemp", "/dev/shm/longship-secrets-999999999.XXXXXXXX"]).stdout.strip())
    assert show(clone, "HF_TOKEN", env={"HF_TOKEN": SECRET}) == {"HF_TOKEN": SECRET}
    assert not left.exists()


def assert_nobody_sees(secret):
    """Check the arguments of every process of this machine, as `ps` shows them."""
    seen = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if secret.encode() in file.read_bytes():
                seen.append(file)
    assert not seen


def test_secret_of_the_token_file_arrives_and_is_seen_nowhere(clone, start):
    token = Path(clone.environment["HOME"], ".cache/huggingface/token")
    token.parent.mkdir(parents=True, exist_ok=True)
    token.write_text(f"{SECRET}\n")
    try:
        wait = "import os, sys; print(os.environ['HF_TOKEN'], flush=True); sys.stdin.read()"
        process = start(clone, "python3", "-c", wait, stdin=processes.subprocess.PIPE)
        assert process.stdout.readline() == f"{SECRET}\n"
        assert_nobody_sees(SECRET)
        process.communicate(timeout=SECONDS)
        assert SECRET not in clone.container_run("--dry-run", "true").stdout
        assert show(clone, "HF_TOKEN", env={"HF_TOKEN": "another"}) == {"HF_TOKEN": "another"}
    finally:
        token.unlink()


def test_secret_stands_in_no_script(clone, tmp_path):
    env = {"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET}
    assert SECRET not in clone.container_run("--dry-run", "true", env=env).stdout
    clone.container_run("--launcher", tmp_path / "launcher", env=env)
    assert SECRET not in (tmp_path / "launcher").read_text()


# Dry run and launcher


def test_dry_run_changes_nothing_and_needs_no_program(contained, make_clone, tmp_path):
    clone = make_clone(tmp_path / "clone", contained.runtime)
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in str(path))
    done = clone.container_run("--dry-run", "touch", tmp_path / "x", env={"PATH": "/nothing"})
    after = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in str(path))
    assert after == before
    assert done.stdout.startswith("#!/usr/bin/env bash\n# Longship: container_run.py")
    assert done.stderr == ""


def test_dry_run_is_what_is_run(clone, tmp_path, run, hostile_arguments):
    script = tmp_path / "script"
    script.write_text(clone.container_run("--dry-run", "true").stdout)
    show_all = ["printf", "%s\\0", *hostile_arguments]
    done = run(["bash", script, *show_all], env=clone.environment, cwd=clone.root)
    assert done.stdout.split("\0")[:-1] == hostile_arguments
    assert done.stdout == clone.container_run(*show_all).stdout
    code = run(["bash", script, "sh", "-c", "exit 7"], env=clone.environment, check=False)
    assert code.returncode == 7


def test_launcher_does_the_same_without_python(clone, tmp_path, run):
    launcher = tmp_path / "it's a launcher"
    done = clone.container_run("--launcher", launcher)
    assert (done.stdout, done.stderr) == ("", f"next: srun {shlex.quote(str(launcher))} COMMAND\n")
    environment = without(clone.environment, tmp_path / "programs", "python3", "python")
    done = run([launcher, "python", "-c", "import longship_tiny; print(1)"], env=environment)
    assert done.stdout == "1\n"
    assert os.access(launcher, os.X_OK)


def test_launcher_that_cannot_be_written_is_told(prepared, read_only_folder):
    clone = prepared("host")
    done = clone.container_run("--launcher", read_only_folder / "launcher", check=False)
    is_told(done, f"cannot write {read_only_folder}/launcher")


@pytest.mark.needs("strace")
def test_launcher_starts_no_process_before_apptainer(prepared, tmp_path, run):
    clone = prepared("apptainer")
    launcher = tmp_path / "launcher"
    clone.container_run("--launcher", launcher)
    log = tmp_path / "log"
    strace = ["strace", "-e", "trace=execve,clone,clone3,fork,vfork", "-o", log]
    done = run([*strace, launcher, "true"], env=clone.environment, check=False)
    lines = log.read_text().splitlines()
    apptainer = next(n for n, line in enumerate(lines) if "/apptainer" in line and " = 0" in line)
    assert all(line.startswith("execve") for line in lines[:apptainer]), lines[:apptainer]
    assert done.returncode == 0, done.stderr


# Bad input


@pytest.mark.parametrize(
    "runtime", [pytest.param("apptainer", marks=pytest.mark.needs("apptainer")), "docker", "podman"]
)
def test_missing_image_is_told_with_what_makes_it(runtime, make_clone, tmp_path):
    clone = make_clone(tmp_path, runtime, image="docker://longship.example/lab/none:1")
    done = clone.container_run("true", check=False)
    hint = is_told(done, "none_1")
    assert (
        hint == "hint: run: python3 build_container.py && python3 move_built_container_to_active.py"
    )


def truncated_copy(image, path, code=None):
    """Copy the head of a SIF file, which tells its architecture, and change that."""
    with open(image, "rb") as file:
        head = bytearray(file.read(1 << 16))
    place = head.index(b"SIF_MAGIC\0") + len(b"SIF_MAGIC\0") + len(b"01\0")
    if code:
        head[place : place + 2] = code
    path.write_bytes(head)
    return path


def test_image_of_another_architecture_is_told_before_it_is_started(
    base_image, make_clone, tmp_path
):
    from lib.configuration.sites import own_arch

    code, other = {"amd64": (b"04", "arm64"), "arm64": (b"02", "amd64")}[own_arch()]
    image = truncated_copy(base_image, tmp_path / "other.sif", code)
    clone = make_clone(tmp_path, "apptainer", image=image)
    is_told(
        clone.container_run("true", check=False), f"other.sif has the wrong architecture: {other}"
    )


@pytest.mark.needs("apptainer")
def test_file_that_is_no_image_is_told(make_clone, tmp_path):
    (tmp_path / "page.sif").write_text("<html>404</html>\n" * 100)
    clone = make_clone(tmp_path, "apptainer", image=tmp_path / "page.sif")
    is_told(clone.container_run("true", check=False), "not a SIF image")


@pytest.mark.parametrize("runtime", ["host", "apptainer"])
def test_missing_venv_is_told_with_what_makes_it(runtime, make_clone, tmp_path):
    clone = make_clone(tmp_path, runtime, ["longship_tiny"])
    hint = is_told(clone.container_run("true", check=False), "packages are not installed")
    assert hint == "hint: python3 set_up.py install --stack pytorch"


def test_venv_of_another_image_is_told(prepared, make_clone, tmp_path):
    other = prepared("host")
    clone = make_clone(tmp_path, "apptainer", ["longship_tiny"])
    clone.scratch.mkdir()
    (clone.scratch / _venv(other).name).symlink_to(os.path.realpath(_venv(other)))
    hint = is_told(
        clone.container_run("true", check=False), "were installed on top of host, not of "
    )
    assert "set_up.py install" in hint


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman"])
def test_missing_runtime_is_told(runtime, make_clone, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "mkdir", "sh", "stat"):
        (bare / name).symlink_to(shutil.which(name))
    clone = make_clone(tmp_path, runtime, image="docker://longship.example/lab/none:1")
    done = clone.container_run("true", env={"PATH": str(bare)}, check=False)
    assert "container.runtime" in is_told(done, f"{runtime} not found")


def test_docker_without_a_daemon_is_told(make_clone, tmp_path):
    clone = make_clone(tmp_path, "docker")
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none"}
    done = clone.container_run("true", env=env, check=False)
    is_told(done, "docker is installed but does not work")


def test_scratch_folder_that_cannot_be_made_is_told(make_clone, tmp_path, read_only_folder):
    clone = make_clone(tmp_path, "host")
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace(toml(clone.scratch), toml(read_only_folder / "scratch")))
    done = clone.container_run("true", check=False)
    assert "[paths]" in is_told(done, f"cannot use the directory {read_only_folder}/scratch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dryrun", "true"], "--dry-run"),
        (["--onlin", "true"], "--online"),
        (["--machin", "local", "true"], "--machine"),
        (["-x", "true"], "-x"),
        (["--launcher"], "--launcher"),
    ],
)
def test_mistyped_option_is_an_error_and_never_part_of_the_command(arguments, message, prepared):
    done = prepared("host").container_run(*arguments, check=False)
    assert done.returncode == 2
    assert message in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("option", "value", "meant"),
    [("--machine", "loacl", "local"), ("--stack", "pytroch", "pytorch")],
)
def test_mistyped_machine_or_stack_has_a_near_miss(option, value, meant, prepared):
    done = prepared("host").container_run(option, value, "true", check=False)
    assert f'did you mean "{meant}"?' in is_told(done, f'"{value}"')


def test_mistyped_key_is_told_with_file_line_and_near_miss(make_clone, tmp_path):
    clone = make_clone(tmp_path, "host")
    clone.configure('# mine\n[container]\nimge = "x"\n')
    hint = is_told(
        clone.container_run("true", check=False),
        'configuration.toml: unknown key "container.imge"',
    )
    assert 'did you mean "image"?' in hint


@pytest.mark.root
def test_options_of_the_command_are_its_own(prepared):
    clone = prepared("host")
    done = clone.container_run("printf", "%s ", "--dry-run", "--help", "--machine", "x", "--")
    assert done.stdout == "--dry-run --help --machine x -- "
    assert clone.container_run("--", "printf", "--", "-%s", "x").stdout == "-x"


def test_help_shows_the_options_without_any_configuration(make_clone, tmp_path):
    clone = make_clone(tmp_path, "host")
    clone.configure("nonsense")
    done = clone.container_run("--help")
    for option in (
        "--dry-run",
        "--machine",
        "--stack",
        "--configuration",
        "--online",
        "--launcher",
    ):
        assert option in done.stdout


def test_closed_output_is_no_traceback(prepared, run):
    clone = prepared("host")
    command = " ".join(
        processes.shlex.quote(str(each)) for each in clone.command("container_run.py")
    )
    pipe = f"{{ {command} --dry-run true; }} 2>errors | true; cat errors"
    assert "Traceback" not in run(["bash", "-c", pipe], env=clone.environment).stdout


def test_scripts_run_without_their_packages_being_installed_says_so(prepared, run):
    clone = prepared("host")
    command = [sys.executable, "-S", clone.root / "set_up.py", "install"]
    done = run(command, env=clone.environment, check=False)
    is_told(done, "has no package click")


# What is taken where the configuration leaves it open


def automatic(make_clone, tmp_path, image):
    clone = make_clone(tmp_path, "host")
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(
        text.replace('runtime = "host"', 'runtime = "auto"').replace(
            'image = ""', f"image = {toml(image)}"
        )
    )
    return clone


def test_first_runtime_that_has_the_image_is_taken(make_clone, base_image, tmp_path):
    clone = automatic(make_clone, tmp_path, base_image)
    done = clone.container_run("sh", "-c", "echo $APPTAINER_CONTAINER")
    assert done.stdout == f"{base_image}\n"
    assert done.stderr == "note: runtime apptainer (the first that works on this machine)\n"


def test_runtime_without_the_image_is_passed_over(
    make_clone, docker_environment, docker_image, tmp_path
):
    from lib.configuration.sites import own_arch

    tag = docker_image(f"longship/only-docker_1:{own_arch()}_1_a")
    clone = automatic(make_clone, tmp_path, "docker://longship.example/lab/only-docker:1")
    put_tag_in_use(clone.scratch, "docker", f"only-docker_1_{own_arch()}", tag)
    done = clone.container_run("test", "-e", "/.dockerenv", env=docker_environment)
    assert "runtime docker" in done.stderr


@pytest.mark.needs("docker")
def test_docker_without_a_daemon_is_passed_over(make_clone, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "mkdir", "sh", "stat", "docker"):
        (bare / name).symlink_to(shutil.which(name))
    clone = automatic(make_clone, tmp_path, "docker://longship.example/lab/none:1")
    env = {"PATH": str(bare), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    done = clone.container_run("sh", "-c", "echo here", env=env)
    assert done.stdout == "here\n"
    assert done.stderr.startswith("note: running directly on this machine, without a container (f")


# Remembered launches with images


def test_swapped_image_is_noticed(make_clone, base_image, tmp_path):
    link = tmp_path / "latest.sif"
    link.symlink_to(base_image)
    clone = make_clone(tmp_path, "apptainer", image=link)
    for _ in range(3):
        clone.container_run("true")
    (tmp_path / "other.sif").write_text("no image")
    link.unlink()
    link.symlink_to("other.sif")
    is_told(clone.container_run("true", check=False), "not a SIF image")


def test_swapped_active_image_is_noticed(make_clone, base_image, tmp_path):
    from lib.configuration.sites import own_arch

    clone = make_clone(tmp_path, "apptainer", image="docker://longship.example/lab/base:1")
    versions = clone.scratch / "containers/versions"
    versions.mkdir(parents=True)
    link = clone.scratch / f"containers/base_1_{own_arch()}.sif"
    (versions / "1.sif").symlink_to(base_image)
    link.symlink_to("versions/1.sif")
    for _ in range(3):
        clone.container_run("true")
    (versions / "2.sif").write_text("no image")
    partial = link.with_suffix(".partial")
    partial.symlink_to("versions/2.sif")
    partial.replace(link)
    is_told(clone.container_run("true", check=False), "not a SIF image")
