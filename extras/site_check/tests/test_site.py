"""doctor.py --site: what is made of whatever Slurm reports, and the comparison with a site.toml."""

import copy
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.forks import clone_with_forks

from extras.site_check import site, site_facts, site_new
from extras.site_check.site_facts import Partition, Slurm, loaded_modules, read_slurm
from lib import ROOT
from lib.configuration.layers import load_settings
from lib.configuration.sites import load_machines
from lib.configuration.tables import read_toml, toml_reader
from lib.script.errors import LongshipError
from lib.script.execute import Output

tomllib = toml_reader()


def settings_of(machine):
    return load_settings(Path(ROOT), {"machine": machine}, {"HOME": "/home/me", "USER": "me"})


def node_of(**fields):
    """Give the facts of a node from its fields."""
    return site_facts._facts({key: str(value) for key, value in fields.items()}, True)


@pytest.mark.parametrize(
    ("cores", "fields"),
    [
        (56, {"CPUTot": 128, "CPUEfctv": 112, "CoreSpecCount": 8, "ThreadsPerCore": 2}),  # LUMI
        (56, {"CPUTot": 128, "CoreSpecCount": 8, "ThreadsPerCore": 2}),  # an older Slurm
        (64, {"CPUTot": 128, "ThreadsPerCore": 2}),
        (64, {"CPUTot": 64, "ThreadsPerCore": 2}),  # the threads are not counted
        (64, {"CPUTot": 64, "ThreadsPerCore": 1}),
        (None, {}),
        (None, {"CPUTot": "many", "ThreadsPerCore": "0"}),
    ],
)
def test_cores_are_those_that_jobs_get(cores, fields):
    assert node_of(Sockets=2, CoresPerSocket=32, **fields)["cores_per_node"] == cores


@pytest.mark.parametrize(
    ("gres", "gpus", "kind"),
    [
        ("gpu:4", 4, None),
        ("gpu:a100:4(S:0-1)", 4, "cuda"),
        ("nvme:1,gpu:gh200:4(S:0,2),gpu:gh200:1", 5, "cuda"),
        ("gpu:nvidia_a100-sxm4-80gb:8", 8, "cuda"),
        ("gpu:mi250:8(S:0-7)", 8, "rocm"),
        ("gpu:h200", 1, "cuda"),
        ("(null)", 0, None),
        ("gpu:$(reboot):4", 0, None),
        ("", 0, None),
    ],
)
def test_gpus_are_counted(gres, gpus, kind):
    found = node_of(Gres=gres)
    assert (found["gpus_per_node"], found["gpu"]) == (gpus, kind)


@pytest.fixture
def answers(monkeypatch):
    """Let programs print what a test gives, by the last word of the command; others are missing."""
    texts = {}

    def output(command, seconds, **_):
        return texts.get(command[-1], Output("", 127))

    for module in (site, site_facts):
        monkeypatch.setattr(module, "read_output", output)
    monkeypatch.setattr(site_facts, "loaded_modules", lambda _: None)
    monkeypatch.setattr(site, "load_modules", lambda *_: None)
    return texts


HOSTILE = [
    'gpu";\\n[x',
    "a'b",
    "$(touch x)",
    "`x`",
    "\x1b[31mred",
    "a b",
    "..",
    "-x",
    "ü",
    "\udcff",
]
HOSTILE += [
    "",
    "0" * 5000,
    "9" * 5000,
    "UNLIMITED",
    "1-",
    "--",
    "1e9",
    "NONE",
    "{user}",
    "\0",
    "a,b",
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_values_are_left_out(value, answers, capfdbinary):
    partition = f"PartitionName={value} MaxTime={value} MaxNodes={value} Default=YES\n"
    partition += f"PartitionName=good MaxTime={value} MaxNodes={value} QoS={value} State={value}\n"
    node = (
        f"NodeName={value} Arch={value} CPUTot={value} Gres=gpu:{value}:{value} Partitions=good\n"
    )
    node += node.replace(f"NodeName={value}", "NodeName=n1", 1)
    config = f"ClusterName = {value}\nAccountingStorageType = {value}\nGresTypes = gpu\n"
    for what, text in {"partition": partition, "node": node, "config": config}.items():
        answers[what] = Output(text, 0)
    answers["format=Name,MaxWall,MaxTRES"] = Output(f"{value}|{value}|node={value}\n", 0)
    site_new.describe(settings_of("local"), "skald")
    text = capfdbinary.readouterr().out.decode()
    machine = tomllib.loads(text)["machines"]["skald"]
    assert "good" in machine["partitions"]
    assert all(site_facts.NAME.fullmatch(each) for each in machine["partitions"])
    assert "\x1b" not in text and "$(" not in text and len(text) < 1500


FIELDS = st.sampled_from(
    ["PartitionName", "MaxTime", "MaxNodes", "NodeName", "CPUTot", "Gres", "QoS"]
)
VALUES = st.text(st.sampled_from("0123456789:-,=ag \t\n\"'\\"), max_size=12)


@given(st.lists(st.tuples(FIELDS, VALUES), max_size=12))
def test_no_answer_of_slurm_is_an_error_of_ours(fields):
    text = "PartitionName=a " + " ".join(f"{name}={value}" for name, value in fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_facts, "read_output", lambda *_: Output(f"{text}\nPartitionName=b\n", 0))
        for partition in read_slurm().partitions.values():
            assert isinstance(partition.limits.get("max_nodes", 1), int)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Output("", 127), "scontrol not found"),
        (Output("", 124), "no answer"),
        (Output("", 0), "it shows no partitions"),
        (Output("slurm_load: error: Unable to contact", 1), "Unable to contact"),
    ],
)
def test_slurm_that_does_not_respond_has_a_reason(answer, reason, answers):
    answers["partition"] = answer
    with pytest.raises(LongshipError, match=f"Slurm does not respond: {reason}"):
        read_slurm()


def test_limits_of_the_partitions_qos_count_too(answers):
    answers["partition"] = Output("PartitionName=a MaxTime=2-0 MaxNodes=9 QoS=q\n", 0)
    answers["format=Name,MaxWall,MaxTRES"] = Output("q|1-00:00:00|gres/gpu=8,node=12\n", 0)
    limits = read_slurm().partitions["a"].limits
    assert limits == {"max_time": "1-00:00:00", "max_nodes": 9, "max_gpus": 8}


# --- the comparison


def partition(state="UP", **nodes):
    """Give a partition of three nodes with these values."""
    counts = {
        fact: Counter({nodes[fact]: 3} if fact in nodes else ()) for fact in site_facts.NODE_FACTS
    }
    return Partition({}, False, True, state, counts)


def compare(text, slurm):
    """Give the rows of the machine `local` with this site.toml, by their keys."""
    stated = site.stated_of(tomllib.loads(text), "local")
    facts = site.reported(settings_of("local"), stated, slurm, set())
    return {each.key: each for each in site.compared(stated, facts)}


@pytest.mark.parametrize("name", sorted({*load_machines(Path(ROOT))} - {"local"}))
def test_each_value_of_each_site_has_a_verdict(name, answers):
    settings = settings_of(name)
    tables = read_toml(Path(ROOT, settings.machine.site_file), "site.toml")
    stated = site.stated_of(tables, name)
    facts = site.reported(settings, stated, Slurm({}, {"other": partition()}), set())
    rows = {each.key: each.state for each in site.compared(stated, facts)}
    keys = {".".join(key) for key in stated}
    assert keys <= {*rows} and {*rows} - keys <= {"partitions.other"}
    assert rows.get("price", "undecided") == rows["description"] == "undecided"
    assert all(rows[each] == "different" for each in keys if each.startswith("partitions."))


@pytest.mark.parametrize(("stated", "state"), [("arm64", "confirmed"), ("amd64", "different")])
def test_architecture_is_that_of_the_nodes_with_gpus(stated, state, answers):
    partitions = {
        "accel": partition(arch="arm64", gpus_per_node=4),
        "small": partition(arch="amd64"),
        "large": partition(arch="amd64"),
    }
    text = f'[machines.local]\narch = "{stated}"\n'
    assert compare(text, Slurm({}, partitions))["arch"] == (
        *(state, "arch", f'"{stated}"', '"arm64"', "scontrol show node"),
    )


@pytest.mark.parametrize(
    ("stated", "machine"),
    [('["account"]', None), ('["account", "mem"]', None), ('["mem"]', '["account", "mem"]')],
)
def test_slurm_tells_of_the_account_alone_that_it_is_required(stated, machine, answers):
    slurm = Slurm({"AccountingStorageEnforce": "associations,limits"}, {"a": partition()})
    row = compare(f"[machines.local]\nrequired = {stated}\n", slurm)["required"]
    assert (row.state, row.machine) == (
        "different" if machine else "confirmed",
        machine or stated,
    )


@pytest.mark.parametrize(
    ("variables", "state"), [({}, "undecided"), ({"SLURMD_NODENAME": "n1"}, "different")]
)
def test_only_a_compute_node_decides_on_its_directories(variables, state, answers, monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    answers["/here"] = Output("", 0)
    text = '[machines.local]\nbinds = ["/here", "/there"]\n'
    text += 'compute_directories = ["/here"]\n[machines.local.configuration]\n'
    text += 'paths.project_dir = "/here/{account}/x"\npaths.scratch_dir = "/nowhere/{user}"\n'
    rows = compare(text, Slurm({}, {"a": partition()}))
    assert rows["binds"].state == state
    assert rows["compute_directories"].state == "confirmed"
    assert rows["configuration.paths.project_dir"].state == "confirmed"
    missing = rows["configuration.paths.scratch_dir"]
    assert (missing.state, missing.command) == ("different", "ls -d /nowhere")


MODULE = """() {
    case "$*" in
        "load Stages/2025 GCC" | "load Stages/2025") LOADED="Stages/2025 GCC/13.3.0" ;;
        "load Old") ;;
        "-t list") echo "Currently Loaded Modulefiles:"; printf '%s\\n' $LOADED ;;
    esac
}"""


@pytest.mark.parametrize(
    ("calls", "command"),
    [
        (["purge", "load Stages/2025 GCC", "try-load Apptainer-Tools"], "module list"),
        (["load Stages/2025 Old"], "module load Stages/2025 Old"),
        (["load Stages/2025", "load GCC/14"], "module load GCC/14"),
    ],
)
def test_modules_that_load_nothing_are_found(calls, command, monkeypatch):
    """An old Environment Modules exits with 0 if there is no such module."""
    monkeypatch.setenv("BASH_FUNC_module%%", MODULE)
    assert site._of_modules(calls) == (calls if command == "module list" else None, command)


def test_machine_without_modules_decides_nothing(monkeypatch):
    monkeypatch.delenv("BASH_FUNC_module%%", raising=False)
    monkeypatch.setenv("LMOD_PKG", "/nowhere")
    assert loaded_modules(["load GCC"]) is None and site._of_modules(["load GCC"]) is None


def test_directories_of_a_new_site_have_placeholders(monkeypatch, tmp_path):
    (tmp_path / "ACC/me").mkdir(parents=True)
    for name, value in {"PROJECT": "ACC", "SCRATCH": "ACC/me", "WORK": "nowhere"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr(site_new, "own_user", lambda: "me")
    settings = settings_of("local")
    project = settings.configuration.project._replace(account="ACC")
    configuration = settings.configuration._replace(project=project)
    found = dict(site_new._of_login_node(settings._replace(configuration=configuration)))
    paths = [fact for key, fact in found.items() if key[0] == "configuration"]
    path = f"{tmp_path}/{{account}}/{{user}}/longship"
    assert paths == [(path, "printenv PROJECT"), (path, "printenv SCRATCH")]


# --- as a user types it


STAND_IN = """#!/bin/sh
case "$*" in
*"show partition")
    echo 'PartitionName=gpu MaxTime=30 MaxNodes=UNLIMITED Default=YES State=UP'
    echo 'PartitionName=new MaxTime=60 State=INACTIVE' ;;
*"show config") echo 'GresTypes               = gpu' ;;
*"show node")
    echo 'NodeName=n1 Arch=x86_64 CPUTot=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1' \\
        'Gres=gpu:a100:2 Partitions=gpu' ;;
esac
"""


@pytest.fixture(scope="module")
def shared_clone(root, tmp_path_factory):
    with clone_with_forks(root, tmp_path_factory.mktemp("site") / "a clone") as clone:
        yield clone


@pytest.fixture
def clone(shared_clone, root, clean_environment, tmp_path):
    """Give a clone on a machine whose Slurm has two partitions; a test may change jsc/site.toml."""
    shutil.rmtree(shared_clone.root / "skald", ignore_errors=True)  # of the test before
    (shared_clone.root / "jsc/site.toml").write_text((root / "jsc/site.toml").read_text())
    for name, text in {
        "scontrol": STAND_IN,
        "sacctmgr": "#!/bin/sh\nexit 1\n",
        "srun": "#!/bin/sh\nexit 0\n",
    }.items():
        file = tmp_path / "programs" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    path = f"{tmp_path}/programs:{clean_environment['PATH']}"
    clone = copy.copy(shared_clone)
    clone.environment = {**clean_environment, "PATH": path}
    return clone


def test_new_site_is_not_printed_as_json(clone):
    done = clone.type("doctor.py", "--site", "--new", "skald", "--json", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--new cannot be used with --json" in done.stderr


def test_new_site_is_read_and_confirmed(clone):
    text = clone.type("doctor.py", "--site", "--new", "skald").stdout
    assert '\npartitions.gpu = { max_time = "00:30:00" }    # scontrol show partition\n' in text
    assert re.search(r"(?m)^# partitions.new +INACTIVE  scontrol show partition$", text)
    (clone.root / "skald").mkdir()
    file = clone.root / "skald/site.toml"
    file.write_text(text)
    assert "machine skald" in clone.dry_run("container_run.py", "--machine", "skald", "true")
    again = clone.type("doctor.py", "--site", "--machine", "skald")
    assert "\nundecided: description, recognise.host\n" in again.stdout
    proposed = again.stdout.splitlines()[-1].partition("[machines.skald]: ")[2]
    assert re.fullmatch(r'confirmed = "\d{4}-\d\d-\d\d, Slurm \S+"', proposed)
    head, _, rest = text.partition("[machines.skald]\n")
    text = f"{head}[machines.skald]\n{proposed}\n{rest}"
    file.write_text(text)
    again = clone.type("doctor.py", "--site", "--machine", "skald")
    assert "\nundecided: description, recognise.host\n" in again.stdout
    file.write_text(text.replace("gpus_per_node = 2 ", "gpus_per_node = 4 "))
    done = clone.type("doctor.py", "--site", "--machine", "skald", check=False)
    assert done.returncode == 1
    heading, gpus, *others = done.stdout.splitlines()
    assert heading.split() == ["key", "described", "machine", "command"]
    assert gpus.split() == ["gpus_per_node", "4", "2", "scontrol", "show", "node"]
    assert others[0].split()[:2] == ["partitions.new", "INACTIVE"]
    assert others[-1].endswith(": attach .cache/doctor/site-skald.txt to an issue")
    shared = (clone.root / ".cache/doctor/site-skald.txt").read_text().splitlines()
    assert shared[1:] == done.stdout.splitlines()[:-1] and "skald/site.toml" in shared[0]
    done = clone.type("doctor.py", "--site", "--machine", "skald", "--json", check=False)
    states = [(each["key"], each["state"]) for each in json.loads(done.stdout)]
    assert ("gpus_per_node", "different") in states and ("arch", "confirmed") in states


@pytest.mark.parametrize("kind", ["linuxproc", "cgroup"])
def test_signals_to_all_processes_of_a_step_are_named(kind, clone, tmp_path):
    config = f"echo 'ProctrackType = proctrack/{kind}'; echo 'GresTypes"
    (tmp_path / "programs/scontrol").write_text(STAND_IN.replace("echo 'GresTypes", config))
    said = clone.type("doctor.py", "--site", "--machine", "leonardo", check=False).stdout
    assert ("\nProctrackType is proctrack/linuxproc: Slurm " in said) == (kind == "linuxproc")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--site", "--new", "a b"], 1, 'invalid name of a machine: "a b"'),
        (["--site", "--new", "../x"], 1, 'invalid name of a machine: "../x"'),
        (["--site", "--new", ""], 1, 'invalid name of a machine: ""'),
        (["--site", "--new", "auto"], 1, 'invalid name of a machine: "auto"'),
        (["--new", "skald"], 2, "no such option: --new"),
        (["--site"], 1, "no site was detected: this machine has no site.toml"),
        (["--site", "explain"], 2, "got unexpected extra argument (explain)"),
    ],
)
def test_wrong_call_is_explained(arguments, code, error, clone):
    done = clone.type("doctor.py", *arguments, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {error}\nhint: "), done.stderr


@pytest.mark.parametrize("option", [(), ("--site",), ("--job",)])
def test_mistake_in_the_file_of_another_site_is_found(option, clone):
    (clone.root / "jsc/site.toml").write_text('[machines.jwb]\ngpu = "nvidia"\n')
    assert clone.dry_run("container_run.py", "true")
    done = clone.type("doctor.py", *option, check=False)
    assert done.returncode == 1
    told = " ".join(f"{done.stdout} {done.stderr}".split())  # a report is wrapped
    assert 'jsc/site.toml: unknown value of machines.jwb.gpu: "nvidia"' in told


@pytest.mark.parametrize("arguments", [["--new", "skald"], ["--machine", "jwb"]])
def test_without_slurm_there_is_one_error(arguments, clone, tmp_path):
    (tmp_path / "programs/scontrol").write_text("#!/bin/sh\nexit 127\n")
    done = clone.type("doctor.py", "--site", *arguments, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Slurm does not respond: scontrol not found\nhint: ")


def test_dry_run_changes_nothing(clone):
    done = clone.type("doctor.py", "--site", "--machine", "lumi", "--dry-run")
    assert "# Longship: doctor.py" in done.stdout
    assert not (clone.root / ".cache/doctor/site-lumi.txt").exists()
