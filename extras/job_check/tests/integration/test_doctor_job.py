"""doctor.py --job on a real Slurm: a healthy job, and nodes that were broken on purpose.

What is broken is broken on one node alone: by a program that stands before the real one on PATH and
does as that one does on the others, or by a step that runs beside the doctor. A node's network,
names and files are those of namespaces which an ordinary user may make; only its clock is
pretended, in Python, as no namespace has a clock of its own that tells the date.
"""

import json
import os
import re
import signal
import sys

import pytest
from support import processes

# Some tests stop ranks of doctor.py by their names, whose ever they are.
pytestmark = pytest.mark.xdist_group("doctor_job")

# What stands before a program on one node, once: it starts others of the same name.
BEFORE = """\
#!/bin/bash
if [[ ${{SLURMD_NODENAME:-}} == {node} && -z ${{BROKEN:-}} ]]; then
    export BROKEN=1
    {body}
fi
exec {program} "$@"
"""
OWN_NAMESPACE = "exec unshare --user --map-current-user --keep-caps"
# For each rank of a node, as soon as it runs, what `$pid` is done to.
AMONG_RANKS = """\
: >"$READY"
declare -A seen=()
while sleep 0.1; do
    for pid in $(pgrep -f 'check_ranks.py rank'); do
        grep -qzx SLURMD_NODENAME={node} "/proc/$pid/environ" 2>/dev/null || continue
        if [[ -n ${{seen[$pid]:-}} ]]; then continue; fi
        seen[$pid]=yes
        {action} &
    done
done
"""


@pytest.fixture(scope="module")
def clone(make_job_clone, tmp_path_factory):
    """Give a clone whose jobs have PyTorch.

    It waits longer for the ranks, which import PyTorch: the machine can be busy.
    """
    clone = make_job_clone(tmp_path_factory.mktemp("doctor"))
    check = clone.root / "extras/job_check/inside/check_ranks.py"
    text, limits = check.read_text(), "ARRIVE, STEP = 40.0, 20.0"
    assert limits in text
    check.write_text(text.replace(limits, "ARRIVE, STEP = 300.0, 100.0"))
    return clone


class Doctor:
    """Runs doctor.py --job in jobs of its own."""

    def __init__(self, clone, folder):
        self.clone = clone
        self.temporary = folder / "temporary files"
        self.temporary.mkdir()
        self.programs = folder / "programs"
        self.environment = {"TMPDIR": str(self.temporary)}
        self.beside = None

    def break_program(self, name, node, body):
        """Let a program do something else on one node."""
        self.programs.mkdir(exist_ok=True)
        text = BEFORE.format(node=node, body=body, program=f"/usr/bin/{name}")
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)
        self.environment["PATH"] = f"{self.programs}:{self.clone.environment['PATH']}"

    def run_beside(self, node, text):
        """Let a step of the same job do something on one node meanwhile, once it made $READY."""
        file = self.programs.parent / "beside.sh"
        file.write_text(text)
        step = "srun --overlap --nodes=1 --ntasks=1 --nodelist"
        ready = file.with_name("ready")
        self.beside = (
            f"READY='{ready}' {step}={node} bash '{file}' >/dev/null 2>&1 &\nbeside=$!\n"
            f"until [[ -e '{ready}' ]]; do sleep 0.1; done"
        )

    def __call__(self, *options):
        """Run it with options of salloc to its end."""
        words = [sys.executable, str(self.clone.root / "doctor.py"), "--job", "--json"]
        if self.beside:
            words = ["bash", "-c", f'{self.beside}\n"$@"\nkill $beside\nwait', "bash", *words]
        return self._run(["salloc", "--quiet", *options, *words], {})

    def look_at(self, job):
        """Run it for a job from outside, by its id."""
        words = [sys.executable, str(self.clone.root / "doctor.py"), "--job", "--json"]
        return self._run(words, {"SLURM_JOB_ID": job})

    def _run(self, command, more):
        environment = {**self.clone.environment, **self.environment, **more}
        done = processes.run(command, env=environment, cwd=self.clone.root, check=False)
        assert not list(self.temporary.iterdir())
        try:
            return Report(json.loads(done.stdout), done.returncode)
        except json.JSONDecodeError:
            pytest.fail(f"no report: {done.stdout}\n{done.stderr}", pytrace=False)


class Report:
    """What it found."""

    def __init__(self, said, code):
        self.found = said["findings"]
        self.code = code

    def texts(self, state, topic=None):
        """Give the texts of a state, and of a topic."""
        return [
            each["text"]
            for each in self.found
            if each["state"] == state and topic in (None, each["topic"])
        ]

    def wrong(self):
        """Give the problems, but for a node that other work on this one machine made slow."""
        return [each for each in self.texts("problem") if " is slow: " not in each]

    def problem(self, topic):
        """Give the text and the fix of the one problem of a topic."""
        (found,) = [e for e in self.found if (e["state"], e["topic"]) == ("problem", topic)]
        return found["text"], found["fix"]


@pytest.fixture
def doctor(clone, slurm, tmp_path):
    """Give a function that runs it in a job, with what a test has broken."""
    return Doctor(clone, tmp_path)


def test_healthy_nodes_are_well_and_the_map_is_complete(doctor):
    report = doctor("--nodes=3")
    assert report.wrong() + report.texts("warning") == []
    assert report.code == bool(report.texts("problem"))
    where = [text.split(", cores")[0] for text in report.texts("ok", "binding")]
    assert where == [f"rank {rank}: node{rank // 2 + 1}" for rank in range(6)]
    (all_ranks,) = [text for text in report.texts("ok", "all_reduce") if "6 ranks" in text]
    assert "on 3 nodes by gloo" in all_ranks
    assert report.texts("ok", "network")[-1].startswith("not tested: no GPUs")
    topics = {each["topic"] for each in report.found}
    assert topics >= {"nodes", "address", "port", "clock", "files", "temporary", "memory", "links"}


@pytest.mark.slow  # as the first test, in a job file
def test_line_of_a_job_file_looks_at_tasks_that_slurm_starts(doctor, slurm):
    clone = doctor.clone
    (clone.root / "local/look.sbatch").write_text(
        "#!/usr/bin/env bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n"
        'source "${LONGSHIP_ROOT:-$SLURM_SUBMIT_DIR}/lib/shell/job.bash" || exit\n'
        'start_job local "$@"\npython3 doctor.py --job || exit\nsrun echo "the job goes on"\n'
    )
    log = clone.finish("local/look.sbatch").log
    assert "4 ranks on 2 nodes by gloo" in log
    # nothing is bound on this Slurm
    assert log.count("share cores") == 2
    assert "problems: 0, warnings: 2" in log
    assert log.count("the job goes on") == 4


def test_clock_that_is_off_and_gpus_that_are_not_there(doctor, tmp_path):
    """Two faults in one job, as most of its time goes into the ranks, which import PyTorch."""
    late = "import time\nnow = time.time\ntime.time = lambda: now() - 90\n"
    (tmp_path / "sitecustomize.py").write_text(late)
    doctor.break_program("python3", "node2", f"export PYTHONPATH={tmp_path}")
    report = doctor("--nodes=2", "--gpus-per-node=2")  # of this Slurm: no GPU is behind them
    text, fix = report.problem("clock")
    offset, exact = re.match(
        r"node2 differs from node1 by (-\d+) ms \(measured to (\d+) ms\)", text
    ).groups()
    assert abs(int(offset) + 90000) <= int(exact)
    assert "--exclude=node2" in fix
    gpus = [f"node{number} has 0 visible GPUs, but the job has 2 on it" for number in (1, 2)]
    assert report.texts("problem", "gpus") == gpus
    binding = [
        f"node{number}: rank {ranks} sees no GPU, but the job has 2 on each node"
        for number, ranks in ((1, "0-1"), (2, "2-3"))
    ]
    assert report.texts("problem", "binding") == binding
    assert report.code == 1
    assert len(report.wrong()) == 5


@pytest.mark.slow  # as those that are real, with another fault
def test_port_that_is_taken(doctor):
    listen = (
        "import os, socket, time; s = socket.create_server(('', 20123)); "
        "open(os.environ['READY'], 'w'); time.sleep(600)"
    )
    doctor.run_beside("node1", f'exec python3 -c "{listen}"')
    doctor.environment.update(MASTER_ADDR="node1", MASTER_PORT="20123")
    text, fix = doctor("--nodes=2").problem("port")
    assert text.startswith("MASTER_PORT, 20123, is in use on node1 by process ")
    assert "create_server" in text
    assert "MASTER_PORT=20124" in fix


@pytest.mark.slow  # it waits for what does not come
def test_ranks_that_do_not_reach_the_first_node_by_its_name(doctor, make_job_clone, tmp_path):
    patient = doctor.clone
    doctor.clone = make_job_clone(tmp_path)  # which waits as long as that of a user
    # Inside, the plain names lead nowhere; torchrun would wait there in vain.
    doctor.environment.update(doctor.clone.only_second_names())
    doctor.environment.update(MASTER_ADDR="node1", MASTER_PORT="20124")
    first_two = "--nodelist=node[1-2]"  # the nodes of the job before can still be completing
    report = doctor("--nodes=2", first_two)
    texts = " ".join(report.texts("problem", "all_reduce"))
    # which of the two comes first depends on how long the ranks import PyTorch
    told = (
        "node2 cannot reach the first rank at node1",
        "node2: only 0 of 2 ranks reported within 40 s",
    )
    assert any(each in texts for each in told), texts
    doctor.clone = patient
    doctor.environment.update(MASTER_ADDR="node1i", GLOO_SOCKET_IFNAME="ib0")
    report = doctor("--nodes=2", first_two)
    assert report.wrong() == []
    assert any("4 ranks on 2 nodes" in each for each in report.texts("ok", "all_reduce"))


@pytest.mark.slow  # as those that are real, with another fault
def test_node_without_network(doctor):
    doctor.break_program("python3", "node2", f'{OWN_NAMESPACE} --net /usr/bin/python3 "$@"')
    report = doctor("--nodes=3")
    text, fix = report.problem("network")
    assert text.startswith("node2 cannot connect to node1")
    assert "--nodelist=node2 ip address" in fix
    # the others are measured
    assert any("4 ranks on 2 nodes" in each for each in report.texts("ok", "all_reduce"))


@pytest.mark.slow  # as those that are real, with another fault
def test_name_that_a_node_knows_otherwise(doctor, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n198.51.100.7 node1\n198.51.100.8 node2\n")
    mount = f'mount --bind {hosts} /etc/hosts && exec /usr/bin/python3 "$@"'
    doctor.break_program("python3", "node2", f"{OWN_NAMESPACE} --mount sh -c '{mount}' sh \"$@\"")
    text, fix = doctor("--nodes=3").problem("address")
    assert text.startswith("node1 is 198.51.100.7 on node2 and 198.")
    assert "/etc/hosts" in fix


@pytest.mark.slow  # as those that are real, with another fault
def test_image_that_a_node_does_not_see(doctor, base_image):
    mount = f'mount -t tmpfs none {base_image.parent} && exec /usr/bin/python3 "$@"'
    doctor.break_program("python3", "node3", f"{OWN_NAMESPACE} --mount sh -c '{mount}' sh \"$@\"")
    report = doctor("--nodes=3")
    text, fix = report.problem("files")
    assert text.startswith(f"node3 cannot read {base_image}")
    assert "--exclude=node3" in fix
    assert any("4 ranks on 2 nodes" in each for each in report.texts("ok", "all_reduce"))


@pytest.mark.slow  # it waits for what does not come
def test_node_that_does_not_answer(doctor):
    doctor.break_program("python3", "node3", "exec sleep 300")
    text, fix = doctor("--nodes=3").problem("nodes")
    assert text.startswith("node3 does not respond")
    assert "--nodelist=node3" in fix


@pytest.mark.slow  # as those that are real, with another fault
@pytest.mark.needs("strace")
def test_node_that_is_slow(doctor):
    delay = "-e trace=writev,sendmsg -e inject=writev,sendmsg:delay_enter=20000"
    action = f'strace -f -p "$pid" -o /dev/null {delay}'
    doctor.run_beside("node2", AMONG_RANKS.format(node="node2", action=action))
    report = doctor("--nodes=3")
    text, fix = report.problem("links")
    assert text.startswith("node2 is slow: to its neighbours 0.")
    assert "--exclude=node2" in fix
    assert any(each.startswith("node2 is slow") for each in report.texts("problem", "all_reduce"))


@pytest.mark.slow  # it waits for what does not come
def test_ranks_that_stop(doctor, make_job_clone, tmp_path):
    doctor.clone = make_job_clone(tmp_path)  # which waits as long as that of a user
    # two sockets are those of the store; with more it is among the others
    sockets = "$(ls -l /proc/$pid/fd | grep -c socket:)"
    action = f"(while (({sockets} < 3)); do sleep 0.02; done; kill -STOP $pid)"
    doctor.run_beside("node2", AMONG_RANKS.format(node="node2", action=action))
    report = doctor("--nodes=3")
    assert report.wrong() == ["node2: rank 2-3 has stopped"]
    assert "--nodelist=node2" in report.problem("all_reduce")[1]


@pytest.mark.slow  # as those that are real, with another fault
def test_node_with_other_cores(doctor):
    doctor.break_program("bash", "node2", 'exec taskset --cpu-list 0 /usr/bin/bash "$@"')
    report = doctor("--nodes=3")
    assert report.texts("warning", "binding") == ["node2 has another layout than node1"]
    assert [each for each in report.texts("ok", "binding") if "node2, cores 0, " in each]


@pytest.mark.slow  # as those that are real, with another fault
def test_missing_image_leaves_the_rest_of_the_report(doctor, make_job_clone, tmp_path):
    (tmp_path / "other").mkdir()
    doctor.clone = make_job_clone(tmp_path / "other")
    text = (doctor.clone.root / "configuration.toml").read_text()
    doctor.clone.configure(text.replace("/base-", "/gone-"))
    report = doctor("--nodes=2")
    assert "at most" in report.texts("ok", "clock")[0]
    assert any("gone-" in each for each in report.texts("problem", "all_reduce"))


@pytest.mark.slow  # as those that are real, with another fault
def test_environment_without_pytorch(doctor, make_job_clone, jupyter_environment, tmp_path):
    doctor.clone = make_job_clone(tmp_path, packages=jupyter_environment)
    text, fix = doctor("--nodes=2").problem("all_reduce")
    assert text == "node1 node2: PyTorch not found in the environment: cannot measure the ranks"
    assert "set_up.py install" in fix


def test_interrupted_from_outside_nothing_is_left(doctor, slurm):
    job = slurm.submit("--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait(job, "RUNNING")
    environment = {**doctor.environment, "SLURM_JOB_ID": job}
    process = doctor.clone.start("doctor.py", "--job", env=environment, cwd=doctor.clone.root)
    try:
        processes.wait_until(lambda: ranks_of(job) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=processes.PATIENCE)
        assert process.returncode == 130, said + errors
    finally:
        processes.end_group(process)
        process.communicate()
    assert not list(doctor.temporary.iterdir())
    processes.wait_until(lambda: not ranks_of(job))


@pytest.mark.slow  # test_interrupted... asks from there
def test_job_that_trains_is_looked_at_from_outside_at_another_port(doctor, slurm, tmp_path):
    port = "20000 + int(os.environ['SLURM_JOB_ID']) % 12000"
    listen = f"import os, socket, time; s = socket.create_server(('', {port})); "
    listen += f"open('{tmp_path}/' + os.environ['SLURM_PROCID'], 'w'); time.sleep(600)"
    job = slurm.submit("--nodes=2", "--output=/dev/null", f'--wrap=srun python3 -c "{listen}"')
    processes.wait_until((tmp_path / "0").exists)
    report = doctor.look_at(job)
    assert report.wrong() == []
    (text,) = report.texts("ok", "port")
    assert text == f"MASTER_PORT, {20001 + int(job) % 12000}, is free on node1"


def ranks_of(job):
    """Give the processes of a job's ranks."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if f"SLURM_JOB_ID={job}".encode() in environ and b"check_ranks.py\0rank\0" in command:
            found.append(pid)
    return found


@pytest.mark.slow  # as the first test, in a shell
def test_shell_of_a_step_is_an_allocation_too(doctor):
    clone = doctor.clone
    words = [sys.executable, str(clone.root / "doctor.py"), "--job"]
    command = ["salloc", "--quiet", "--nodes=2", "srun", "--nodes=1", "--ntasks=1", *words]
    done = processes.run(command, env=clone.environment, cwd=clone.root, check=False)
    assert "4 ranks on 2 nodes" in done.stdout
    assert done.returncode == (" is slow: " in done.stdout)


def test_outside_of_a_job_it_says_what_to_type(doctor):
    command = doctor.clone.command("doctor.py", "--job")
    done = processes.run(command, env=doctor.clone.environment, check=False)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert error == "error: not in a job: SLURM_JOB_ID is not set"
    assert "salloc" in hint
