"""Jobs that somebody works in: a shell on a compute node, and JupyterLab there."""

import os
import re
import shlex
import stat
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL = "jsc/interactive_jwb.salloc"
JUPYTER = "jsc/jupyter_jwb.sbatch"
ONE_GPU = "--gres=gpu:1"


def files(pattern):
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"*/{pattern}"))


def run_of(jobs, said):
    """Give the run that a terminal tells of."""
    return jobs.run(re.search(r"longship: run .*/(\d+)-interactive", said)[1])


def test_shell_on_a_compute_node_is_inside_the_environment(jobs, terminal):
    shell = terminal(jobs, "submit.py", SHELL, ONE_GPU)
    shell.expect("(pytorch) ")
    shell.type("echo on=$(hostname) machine=$LONGSHIP_MACHINE in=${APPTAINER_CONTAINER##*/}\n")
    shell.expect("on=node")
    shell.type("python3 -c 'import torch, sys; print(torch.__name__, sys.prefix)'\n")
    shell.expect("torch /")
    shell.type("exit 7\n")
    assert shell.end() == 7
    assert re.search(r"\non=node\d machine=jwb in=base-\w+\.sif\r", shell.said)
    record = run_of(jobs, shell.said).record
    assert record["exit_code"] == "7"
    assert record["machine"] == "jwb"
    assert record["partition"] == "develbooster"
    assert record["started"] <= record["ended"]


@pytest.mark.parametrize("file", files("*.salloc"))
def test_shell_of_each_site(file, jobs, terminal):
    show = ["sh", "-c", "echo $(hostname) has ${APPTAINER_CONTAINER##*/}"]
    shell = terminal(jobs, "submit.py", file, "--", *show)
    assert shell.end() == 0, shell.said
    assert re.search(r"node\d has base-\w+\.sif", shell.said)
    run = run_of(jobs, shell.said)
    assert run.record["exit_code"] == "0"
    assert run.record["site"] == f"{file.split('/')[0]}/site.toml"


@pytest.mark.parametrize("code", [0, 3])
def test_command_instead_of_a_shell(code, jobs, terminal):
    command = ["sh", "-c", f'echo "on=$(hostname) [$1]"; exit {code}', "sh", "a  'b' $HOME"]
    shell = terminal(jobs, "submit.py", SHELL, ONE_GPU, "--", *command)
    assert shell.end() == code
    assert re.search(r"on=node\d \[a  'b' \$HOME\]", shell.said)
    run = run_of(jobs, shell.said)
    assert run.record["exit_code"] == str(code)
    assert run.written("arguments").split("\0")[:-1] == command
    assert "torch==" in run.written("packages.txt")


def test_interrupt_in_the_shell_ends_only_what_runs_in_it(jobs, terminal):
    shell = terminal(jobs, "submit.py", SHELL, ONE_GPU)
    shell.expect("(pytorch) ")
    # What says that it begins has the terminal: bash loses a Ctrl-C between two commands of a line.
    shell.type("sh -c 'echo $((40 + 2)) begins; exec sleep 600'\n")
    shell.expect("42 begins")
    shell.type("\x03")
    shell.expect("(pytorch) ")
    shell.type("echo $((40 + 3)) is shown; exit\n")
    shell.expect("43 is shown")
    shell.end()
    assert run_of(jobs, shell.said).record["exit_code"] in ("0", "130")


def test_shell_takes_options_of_the_command_line(jobs, terminal):
    options = ["--nodes=2", "--ntasks-per-node=1", ONE_GPU, "--time=5"]
    command = ["sh", "-c", "echo $SLURM_JOB_NUM_NODES of $SLURM_JOB_PARTITION, $MASTER_ADDR"]
    shell = terminal(jobs, "submit.py", SHELL, *options, "--", *command)
    assert shell.end() == 0
    assert re.search(r"2 of develbooster, node\di", shell.said)
    assert run_of(jobs, shell.said).record["time_limit"] == "00:05:00"


def test_shell_that_slurm_refuses_is_told_as_a_job_is(jobs, terminal):
    shell = terminal(jobs, "submit.py", "local/interactive.salloc", "--partition=nowhere")
    assert shell.end() == 1
    assert "error: Slurm rejected the job: Invalid partition name specified" in shell.said
    assert "hint: use one of the partitions: " in shell.said


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(each, marks=() if each == "aws/jupyter.sbatch" else pytest.mark.slow)
        for each in files("jupyter*.sbatch")
        if each != JUPYTER
    ],
)
def test_jupyter_of_each_site(file, notebook, slurm):
    number = notebook.job(file)
    notebook.wait_until(number, lambda: "is running at" in slurm.log(number))
    (node, port) = re.search(r"ssh -N -L \d+:(\w+):(\d+) ", slurm.log(number)).groups()
    token = notebook.run(number).written("jupyter.token").strip()
    other = "node2" if node == "node1" else "node1"  # a job may have all of its node
    assert ask(slurm, other, f"{node}:{port}", token) == "200"


@pytest.fixture(scope="module")
def notebook(make_job_clone, jupyter_environment, tmp_path_factory):
    """Give a clone whose environment has JupyterLab."""
    return make_job_clone(tmp_path_factory.mktemp("notebook"), packages=jupyter_environment)


def ask(slurm, node, address, token=None):
    """Ask the server from another node; return the HTTP status."""
    query = f"?token={token}" if token else ""
    curl = ["curl", "--silent", "--insecure", "--max-time", "20", "--output", "/dev/null"]
    asked = [*curl, "--write-out", "%{http_code}", f"https://{address}/api/status{query}"]
    return slurm.on_node(node, asked, check=False, timeout=60).stdout


def command_lines():
    """Give the argument lists of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:  # it has ended
            continue


def test_jupyter_is_served_to_whoever_has_the_token(notebook, slurm):
    options = ["--cpus-per-task=2", ONE_GPU, "--nodelist=node1"]
    number = notebook.job(JUPYTER, *options)
    notebook.wait_until(number, lambda: "is running at" in slurm.log(number))
    log = slurm.log(number)
    run = notebook.run(number)
    (port,) = re.findall(r"ssh -N -L (\d+):node1:\1 ", log)
    assert f"https://localhost:{port}/lab" in log
    file = Path(shlex.split(re.search(r"cat .*", log)[0])[1])
    token = file.read_text().strip()
    assert re.fullmatch("[0-9a-f]{48}", token)
    assert ask(slurm, "node2", f"node1:{port}", token) == "200"
    assert ask(slurm, "node2", f"node1:{port}", "0" * 48) == "403"
    assert ask(slurm, "node2", f"node1:{port}") == "403"
    holds_token(run.folder, file, token)
    assert token not in slurm.log(number)
    lines = list(command_lines())
    assert any(b"--ServerApp.root_dir" in line for line in lines)
    assert not any(token.encode() in line for line in lines)
    slurm.run(["scancel", number])
    assert slurm.wait(number) == "CANCELLED"
    deadline = time.monotonic() + 60  # the job's own shell ends after its step
    while "ended" not in run.record and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run.record["exit_code"] == "143"
    assert "jupyterlab==" in run.written("packages.txt")


def holds_token(folder, file, token):
    """Hold that only one file of the record has the token, and nobody else may read it."""
    for path in folder.rglob("*"):
        if path.is_file() and path != file:
            assert token not in path.read_text(errors="replace"), path
    for path in (file, folder / "jupyter.key"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path
