"""Jobs that somebody works in: a shell on a compute node, JupyterLab, an SSH server for editors."""

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from support import processes
from support.tiers import slow

ROOT = Path(__file__).resolve().parents[4]
SHELL = "jsc/interactive_jwb.salloc"
JUPYTER = "jsc/jupyter_jwb.sbatch"
SSH = "jsc/ssh_jwb.sbatch"
ONE_GPU = "--gres=gpu:1"


def files(pattern, *real):
    """Give the files of all sites: some for each round, the others for the night."""
    found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"*/{pattern}"))
    return [each if each in real else slow(each) for each in found]


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


@pytest.mark.parametrize("file", files("*.salloc", "local/interactive.salloc"))
def test_shell_of_each_site(file, jobs, terminal):
    show = ["sh", "-c", "echo $(hostname) has ${APPTAINER_CONTAINER##*/}"]
    shell = terminal(jobs, "submit.py", file, "--", *show)
    assert shell.end() == 0, shell.said
    assert re.search(r"node\d has base-\w+\.sif", shell.said)
    run = run_of(jobs, shell.said)
    assert run.record["exit_code"] == "0"
    assert run.record["site"] == f"{file.split('/')[0]}/site.toml"


@pytest.mark.parametrize("code", [slow(0), 3])
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
    assert "error: sbatch failed: Invalid partition name specified" in shell.said
    assert "partitions: sinfo" in shell.said


@pytest.mark.parametrize("file", files("jupyter*.sbatch"))
def test_jupyter_of_each_site(file, notebook, slurm):
    number = notebook.job(file)
    notebook.wait_until(number, lambda: "is running at" in slurm.log(number))
    (node, port) = re.search(r"ssh -N -L \d+:(\w+):(\d+) ", slurm.log(number)).groups()
    token = notebook.run(number).written("jupyter/token").strip()
    other = "node2" if node == "node1" else "node1"  # a job may have all of its node
    assert ask(slurm, other, f"{node}:{port}", token) == "200"


@pytest.fixture(scope="module")
def notebook(make_job_clone, jupyter_environment, tmp_path_factory):
    """Give a clone whose environment has JupyterLab."""
    return make_job_clone(tmp_path_factory.mktemp("notebook"), packages=jupyter_environment)


def ask(slurm, node, address, token=None):
    """Ask the server from another node; return the HTTP status."""
    query = f"?token={token}" if token else ""
    curl = ["curl", "--silent", "--insecure", "--max-time", "100", "--output", "/dev/null"]
    asked = [*curl, "--write-out", "%{http_code}", f"https://{address}/api/status{query}"]
    return slurm.on_node(node, asked, check=False).stdout


def test_tensorboard_is_served_through_jupyter(notebook, slurm):
    number = notebook.job("local/jupyter.sbatch", "--nodelist=node1")
    notebook.wait_until(number, lambda: "is running at" in slurm.log(number))
    (port,) = re.findall(r"ssh -N -L (\d+):node1:\1 ", slurm.log(number))
    run = notebook.run(number)
    token = run.written("jupyter/token").strip()
    step = ["srun", "--overlap", f"--jobid={number}", "--ntasks=1", run.folder / "launcher"]
    command = [*step, "tensorboard", "--logdir", run.folder, "--port=6006"]
    board = processes.start(command, env=slurm.environment)
    query = f"proxy/6006/data/environment?token={token}"
    curl = ["curl", "--silent", "--insecure", "--max-time", "100", f"https://node1:{port}/{query}"]
    notebook.wait_until(
        number,
        lambda: '"version"' in slurm.on_node("node2", curl, check=False).stdout,
    )
    assert ask(slurm, "node2", f"node1:{port}/proxy/6006") in ("302", "403")  # without a token
    slurm.run(["scancel", number])
    board.communicate(timeout=processes.PATIENCE)


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
    processes.wait_until(lambda: "ended" in run.record)  # the job's own shell ends after its step
    assert run.record["exit_code"] == "143"
    assert "jupyterlab==" in run.written("packages.txt")


def holds_token(folder, file, token):
    """Hold that only one file of the record has the token, and nobody else may read it."""
    for path in folder.rglob("*"):
        if path.is_file() and path != file:
            assert token not in path.read_text(errors="replace"), path
    for path in (file, folder / "jupyter/key"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path


@pytest.fixture
def connect(jobs, slurm, tmp_path):
    """Give a function that runs a program of OpenSSH on another node, as the user's own machine."""

    def client(number, program, *words, **options):
        (own,) = jobs.run(number).folder.glob("longship-*/")
        copy = tmp_path / own.name
        if not copy.exists():
            shutil.copytree(own, copy)
        text = (copy / "config").read_text().replace("~/.ssh", str(tmp_path))
        (tmp_path / "config").write_text(text)
        node = "node2" if "HostName node1" in text else "node1"
        start = [program, "-F", tmp_path / "config", "-o", "ProxyJump=none", "-o", "BatchMode=yes"]
        return slurm.on_node(node, [*start, *words], **options)

    return client


@pytest.mark.needs("ssh")
def test_editor_connects_with_the_key_of_the_job_alone(jobs, slurm, connect, tmp_path):
    number = jobs.job(SSH, ONE_GPU, "--nodelist=node1", env={"HF_TOKEN": "hf_secret"})
    jobs.wait_until(number, lambda: "Server listening" in slurm.log(number))
    log, run = slurm.log(number), jobs.run(number)
    assert f"{run.folder}'/longship-jwb ~/.ssh/" in log
    assert (run.folder / "longship-jwb/config").read_text() in log
    show = (
        "echo $(hostname) has ${APPTAINER_CONTAINER##*/} $HF_TOKEN $LONGSHIP_ROOT $SSH_TTY; exit 7"
    )
    shown = connect(number, "ssh", "longship-jwb", show, check=False)
    assert shown.returncode == 7
    assert re.fullmatch(rf"node1 has base-\w+\.sif hf_secret {jobs.root}", shown.stdout.strip())
    # as VS Code starts its server: from the input of a shell, to stay when the session has ended
    left = f"setsid sh -c 'sleep 3; test -e /bin/true && echo $$ >{tmp_path}/left; exec sleep 600'"
    typed = f"{left} >/dev/null 2>&1 </dev/null &\npython3 -c 'import torch'; echo [$?]\n"
    told = connect(number, "ssh", "-T", "longship-jwb", "bash", input=typed)
    assert told.stdout == "[0]\n"
    jobs.wait_until(number, (tmp_path / "left").exists)
    shell = connect(
        number,
        "ssh",
        "-tt",
        "longship-jwb",
        input="echo $((40 + 2)) $SSH_TTY; exit 3\n",
        check=False,
    )
    assert shell.returncode == 3
    assert re.search(r"42 /dev/pts/\d+\r", shell.stdout) and "(pytorch) " in shell.stdout
    assert "job control" not in shell.stdout
    (tmp_path / "file").write_text("content")
    connect(number, "scp", tmp_path / "file", f"longship-jwb:{tmp_path}/copy")
    assert (tmp_path / "copy").read_text() == "content"
    for path in run.folder.glob("longship-jwb/*"), run.folder.glob("ssh/*"):
        assert {stat.S_IMODE(each.stat().st_mode) for each in path if each.suffix != ".pub"} == {
            0o600
        }
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    other = ["-o", f"IdentityFile={tmp_path}/other"]
    (tmp_path / "longship-jwb/key").unlink()
    refused = connect(number, "ssh", *other, "longship-jwb", "true", check=False)
    assert refused.returncode == 255 and "Permission denied (publickey)" in refused.stderr
    slurm.run(["scancel", number])
    assert slurm.wait(number) == "CANCELLED"
    assert not any(b"hf_secret" in each.read_bytes() for each in run.folder.glob("ssh/*"))


@pytest.mark.needs("ssh")
@pytest.mark.parametrize("file", files("ssh*.sbatch"))
def test_editor_of_each_site(file, jobs, slurm, connect):
    number = jobs.job(file)
    jobs.wait_until(number, lambda: "Server listening" in slurm.log(number))
    (name,) = re.findall(r"Host (longship-\w+)", slurm.log(number))
    shown = connect(number, "ssh", name, "echo ${APPTAINER_CONTAINER##*/}")
    assert re.match(r"base-\w+\.sif", shown.stdout)
