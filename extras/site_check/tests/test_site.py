"""doctor.py --site: changes of site.toml, and what is made of whatever the machine reports."""

import copy
import itertools
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import processes
from support.forks import clone_with_forks

from extras.site_check import site, site_facts, site_new
from extras.site_check.site_edit import change, unified_diff
from extras.site_check.site_facts import Partition, Slurm, available_modules, read_slurm
from lib import ROOT
from lib.configuration.layers import load_settings
from lib.configuration.sites import load_machines
from lib.configuration.tables import read_toml, toml_reader
from lib.doctor.report import Diagnosis
from lib.script.execute import Output

tomllib = toml_reader()
TEXT = """\
# Jülich \N{LINE SEPARATOR} is one line
[common]
arch = "amd64"   # all

[machines.a]
description = "A"
recognise.environment = { S = "x" }
binds = [
    "/a", "/b=c",   # why
]
partitions.p = { max_time = "1:00:00", price = { gpu = 5.6 } }   # keep
partitions.q = {}

[machines."b c".partitions]
# note
r = { max_nodes = 3 }
[machines."b c".partitions.s]
max_time = "2:00:00"
[machines."b c".configuration]
paths.x = "/y\""""
A, B = ("machines", "a"), ("machines", "b c")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ((*A, "arch"), "arm64", 'arch = "arm64"'),
        (("common", "arch"), "arm64", 'arch = "arm64"   # all'),
        ((*A, "recognise", "environment", "S"), "z", 'recognise.environment = { S = "z" }'),
        ((*A, "binds"), ["/a"], 'binds = ["/a"]'),
        (
            (*A, "partitions", "p", "max_time"),
            "2-00:00:00",
            'partitions.p = { max_time = "2-00:00:00", price = { gpu = 5.6 } }   # keep',
        ),
        ((*A, "partitions", "q", "max_nodes"), 4, "partitions.q = { max_nodes = 4 }"),
        ((*A, "partitions", "p"), None, ""),
        ((*A, "partitions", "x.y"), {"max_nodes": 1}, 'partitions."x.y" = { max_nodes = 1 }'),
        ((*B, "partitions", "s"), None, ""),
        ((*A, "partitions", "z"), {}, "partitions.z = {}"),
        ((*B, "partitions", "s", "max_time"), "9", 'max_time = "9"'),
        ((*B, "partitions", "r", "max_nodes"), None, "r = {}"),
        ((*B, "partitions", "t"), {"max_nodes": 1}, "t = { max_nodes = 1 }"),
        ((*B, "qos", "t"), {"max_gpus": 1}, "t = { max_gpus = 1 }"),
        ((*B, "configuration", "environment", "set", "E"), "x", 'environment.set.E = "x"'),
    ],
    ids=str,
)
def test_change_leaves_the_rest_and_git_applies_it(key, value, line, run, tmp_path):
    for eol, ending in itertools.product(("\n", "\r\n"), ("", "\n")):
        check_change((TEXT + ending).replace("\n", eol), key, value, line, eol)
    new = change(TEXT, key, value)
    file = tmp_path / "a site/site.toml"
    file.parent.mkdir()
    file.write_bytes(TEXT.encode())
    (tmp_path / "a.patch").write_bytes(unified_diff("a site/site.toml", TEXT, new).encode())
    run(["git", "apply", "a.patch"])
    assert file.read_bytes().decode() == new


def check_change(old, key, value, line, eol):
    """Compare all values before and after, and the lines that are gone."""
    new = change(old, key, value)
    wanted = table = tomllib.loads(old)
    for each in key[:-1]:
        table = table.setdefault(each, {})
    table.pop(key[-1], None) if value is None else table.update({key[-1]: value})
    assert tomllib.loads(new) == wanted
    assert line in [each.rstrip("\r") for each in new.split("\n")]
    lost = {*old.split(eol)} - {*re.split("\r?\n", new)}
    assert len(lost) <= (3 if key[-1] == "binds" else 2)


@pytest.mark.parametrize(
    "text",
    ['[machines.a]\narch = """\namd64"""\n', "[machines.a]\n\"arch\" = '''amd64'''\n"],
)
def test_change_that_is_not_understood_is_not_made(text):
    assert change(text, (*A, "arch"), "arm64") is None


# --- what Slurm reports


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
    monkeypatch.setattr(site_facts, "mounted_formats", lambda _: ["zstd"])
    monkeypatch.setattr(site_facts, "available_modules", lambda _: None)
    monkeypatch.setattr(site, "load_modules", lambda *_: None)
    return texts


HOSTILE = (
    *(
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
        "",
    ),
    *(
        "0" * 5000,
        "9" * 5000,
        "UNLIMITED",
        "1-",
        "--",
        "1e9",
        "NONE",
        "None",
        "a,b",
        "{user}",
        "\0",
    ),
)


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_values_are_left_out(value, answers, tmp_path):
    partition = f"PartitionName={value} MaxTime={value} MaxNodes={value} Default=YES\n"
    partition += f"PartitionName=good MaxTime={value} MaxNodes={value} QoS={value}\n"
    node = (
        f"NodeName={value} Arch={value} CPUTot={value} Gres=gpu:{value}:{value} Partitions=good\n"
    )
    node += node.replace(f"NodeName={value}", "NodeName=n1", 1)
    config = f"ClusterName = {value}\nAccountingStorageType = {value}\nGresTypes = gpu\n"
    for what, text in {"partition": partition, "node": node, "config": config}.items():
        answers[what] = Output(text, 0)
    answers["format=Name,MaxWall,MaxTRES"] = Output(f"{value}|{value}|node={value}\n", 0)
    slurm = read_slurm()
    assert "good" in slurm.partitions
    text = '[machines.local]\nrecognise.host = "x"\npartitions.good = {}\ncores_per_node = 1\n'
    new = text
    settings = load_settings(Path(ROOT), {"machine": "local"}, {"HOME": "/home/me", "USER": "me"})
    compared = site.Comparison(settings, tomllib.loads(text), slurm, {"links": ["lo"]})
    for key, found in _findings(compared) and compared.changes.items():
        new = change(new, ("machines", "local", *key), found)
    (tmp_path / "local").mkdir()
    (tmp_path / "local/site.toml").write_text(new)
    machine = load_machines(tmp_path)["local"]
    assert {*machine.partitions} <= {"good", value, *value.split()}
    assert all(site_facts.NAME.fullmatch(each) for each in machine.partitions)
    assert "\x1b" not in new and "$(" not in new and len(new) < 400


FIELDS = st.sampled_from(
    ["PartitionName", "MaxTime", "MaxNodes", "NodeName", "CPUTot", "Gres", "QoS"]
)
VALUES = st.text(st.sampled_from("0123456789:-,=ag \t\n\"'\\"), max_size=12)


@given(st.lists(st.tuples(FIELDS, VALUES), max_size=12))
def test_no_answer_of_slurm_is_an_error_of_ours(fields):
    text = " ".join(f"{name}={value}" for name, value in fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_facts, "read_output", lambda *_: Output(text, 0))
        for partition in read_slurm().partitions.values():
            assert isinstance(partition.limits.get("max_nodes", 1), int)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Output("", 127), "Slurm not found on this machine: scontrol is missing"),
        (Output("", 124), "Slurm does not respond"),
        (Output("slurm_load: error: Unable to contact", 1), "Slurm does not respond: Unable to"),
    ],
)
def test_slurm_that_does_not_answer_has_a_reason(answer, error, answers):
    answers["partition"] = answer
    assert read_slurm().error.startswith(error)


def test_limits_of_the_partitions_qos_count_too(answers):
    answers["partition"] = Output("PartitionName=a MaxTime=2-0 MaxNodes=9 QoS=q\n", 0)
    answers["format=Name,MaxWall,MaxTRES"] = Output("q|1-00:00:00|gres/gpu=8,node=12\n", 0)
    limits = read_slurm().partitions["a"].limits
    assert limits == {"max_time": "1-00:00:00", "max_nodes": 9, "max_gpus": 8}


# --- the comparison


def _findings(compared):
    report = Diagnosis(as_json=True)
    for topic, check in compared.checks():
        report.run(topic, check)
    assert "problem" not in {each.state for each in report.findings}, report.findings
    return report.findings


@pytest.mark.parametrize("name", sorted({*load_machines(Path(ROOT))} - {"local"}))
def test_each_value_of_each_site_has_a_verdict(name, answers):
    settings = load_settings(Path(ROOT), {"machine": name}, {"HOME": "/home/me", "USER": "me"})
    tables, _ = read_toml(Path(ROOT, settings.machine.site_file), "site.toml")
    compared = site.Comparison(settings, tables, Slurm("no Slurm here"), {})
    topics = {each.topic for each in _findings(compared)}
    for key, _ in site._leaves({**tables.get("common", {}), **tables["machines"][name]}):
        own = ".".join(key[:2] if key[0] in ("partitions", "qos") else key)
        assert own in topics
    assert not {key for key, found in compared.changes.items() if found is None}


def partition(**nodes):
    """Give a partition of three nodes with these values."""
    from collections import Counter

    facts = dict.fromkeys(("arch", "cores_per_node", "gpus_per_node", "gpu", "memory"), ())
    counts = {
        fact: Counter({value: 3} if value else ()) for fact, value in {**facts, **nodes}.items()
    }
    return Partition({}, False, True, counts)


def test_architecture_is_that_of_the_nodes_with_gpus(answers):
    settings = load_settings(Path(ROOT), {"machine": "local"}, {"HOME": "/home/me", "USER": "me"})
    tables = tomllib.loads('[machines.local]\narch = "arm64"\n')
    partitions = {
        "accel": partition(arch="arm64", gpus_per_node=4),
        "small": partition(arch="amd64"),
        "large": partition(arch="amd64"),
    }
    compared = site.Comparison(settings, tables, Slurm(partitions=partitions), {"links": ["lo"]})
    (found,) = [each for each in _findings(compared) if each.topic == "arch"]
    assert found.state == "confirmed"
    assert found.text == "arm64 (arm64 in accel; amd64 in small, large)"


@pytest.mark.parametrize(
    ("stated", "state"),
    [(["account"], "confirmed"), (["account", "mem"], "undecided"), (["mem"], "different")],
)
def test_slurm_tells_of_the_account_alone_that_it_is_required(stated, state, answers):
    settings = load_settings(Path(ROOT), {"machine": "local"}, {"HOME": "/home/me", "USER": "me"})
    tables = {"machines": {"local": {"required": stated}}}
    slurm = Slurm(config={"AccountingStorageEnforce": "associations,limits"})
    compared = site.Comparison(settings, tables, slurm, {"links": ["lo"]})
    (found,) = [each for each in _findings(compared) if each.topic == "required"]
    assert found.state == state
    assert compared.changes == ({("required",): ["account", "mem"]} if stated == ["mem"] else {})


@pytest.mark.parametrize(
    ("node", "state"),
    [({}, "undecided"), ({"gpus_per_node": 4, "gpu": "rocm"}, "confirmed"), ({"gpu": "cuda"}, "")],
)
def test_node_of_a_job_knows_what_slurm_does_not(node, state, answers):
    settings = load_settings(Path(ROOT), {"machine": "local"}, {"HOME": "/home/me", "USER": "me"})
    tables = {"machines": {"local": {"gpu": "rocm", "gpus_per_node": 4, "cores_per_node": 2}}}
    slurm = Slurm(partitions={"a": partition(cores_per_node=2)})
    found = _findings(site.Comparison(settings, tables, slurm, {"links": ["lo"], **node}))
    states = {each.topic: each.state for each in found}
    assert states["cores_per_node"] == "confirmed"
    assert states["gpu"] == (state or "different")
    assert states["gpus_per_node"] == (state or "undecided")


@pytest.mark.parametrize(
    ("stated", "in_job", "state"),
    [
        ("hsn", True, "confirmed"),
        ("=hsn0,hsn1", True, "confirmed"),
        ("ib0", True, "different"),
        ("ib0", False, "undecided"),
        ("^lo,docker", True, "undecided"),
        ("mlx5_0:1", True, "confirmed"),
        ("mlx5_9", True, "different"),
    ],
)
def test_interfaces_in_job_scripts_are_compared(stated, in_job, state, answers, monkeypatch):
    variable = "NCCL_IB_HCA" if "mlx" in stated else "GLOO_SOCKET_IFNAME"
    settings = load_settings(Path(ROOT), {"machine": "jwb"}, {"HOME": "/home/me", "USER": "me"})
    tables, _ = read_toml(Path(ROOT, settings.machine.site_file), "site.toml")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"export {variable}={stated}   # why\n")
    job = type("Job", (), {"machine": "jwb"})
    monkeypatch.setattr(site, "read_job_file", lambda *_: job)
    node = {"links": ["lo", "hsn0", "hsn1", "mlx5_0"]} if in_job else {}
    compared = site.Comparison(settings, tables, Slurm("none"), node)
    assert [(each.state, each.topic) for each in compared._test_job_scripts()] == [
        (state, f"export.{variable}")
    ]


MODULE = """() {
    case "$*" in
        "-t avail Stages") printf '%s\\n' /m: Stages/2024 'Stages/2026(default)' StagesX/1 >&2 ;;
        "-t avail GCC") if [[ -n ${loaded:-} ]]; then echo GCC/13.3.0; fi ;;
        "load Stages/2025") loaded=yes ;;
    esac
}"""


def test_modules_of_a_hierarchy_are_found(monkeypatch):
    monkeypatch.setenv("BASH_FUNC_module%%", MODULE)
    found = available_modules(["purge", "load Stages/2025 GCC", "try-load Apptainer-Tools"])
    assert found == {
        "Stages/2025": ["Stages/2024", "Stages/2026"],
        "GCC": ["GCC/13.3.0"],
        "Apptainer-Tools": [],
    }
    settings = load_settings(Path(ROOT), {"machine": "local"}, {"HOME": "/home/me", "USER": "me"})
    compared = site.Comparison(settings, {"machines": {"local": {}}}, Slurm("none"), {})
    stated = ["load Stages/2025 GCC", "try-load Apptainer-Tools"]
    assert compared._modules(stated).value == ["load Stages/2026 GCC", stated[1]]
    assert compared._modules(["load Nowhere"]) == ("nothing", "not available: Nowhere")
    for module, value in {"Stages/2026": "module load Stages/2026", "Stages/9": "nothing"}.items():
        assert compared._check(("newer_python",), f"module load {module}").value == value


def test_runtime_of_a_new_site_can_come_from_a_module(monkeypatch):
    monkeypatch.setenv(
        "BASH_FUNC_module%%", "() { if [[ $3 == Apptainer ]]; then echo $3/1.4; fi; }"
    )
    found = {("runtime",): "apptainer", ("modules",): ["load Apptainer/1.4"]}
    assert site_new._runtime_module({}) == found
    assert site_new._runtime_module({("runtime",): "enroot"}) == {}


def test_directories_of_a_new_site_have_placeholders(monkeypatch, tmp_path):
    (tmp_path / "ACC/me").mkdir(parents=True)
    for name, value in {"PROJECT": "ACC", "SCRATCH": "ACC/me", "WORK": "nowhere"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr(site_new, "own_user", lambda: "me")
    settings = load_settings(Path(ROOT), {"machine": "local"}, {"HOME": "/home/me", "USER": "me"})
    project = settings.configuration.project._replace(account="ACC")
    configuration = settings.configuration._replace(project=project)
    found = site_new._roots(settings._replace(configuration=configuration))
    assert {*found.values()} == {f"{tmp_path}/{{account}}/{{user}}/longship"}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("kind", "quota"),
    [
        ("ext4", ""),
        ("lustre", "; quota: /d 1k 2k; quota: /d 1k 2k; quota: /d 1k 2k"),
        ("gpfs", "; quota: USR 3G"),
    ],
)
def test_disk_is_described_with_its_quotas(kind, quota, monkeypatch, tmp_path):
    def output(command, seconds):
        texts = {"df": f"Type Avail\n{kind} 5000000000\n", "lfs": " /d\n  1k   2k\n"}
        if command[:2] == ["lfs", "project"]:
            return Output(f"    7 P {tmp_path}\n", 0)
        return Output(texts.get(command[0], "USR\n3G\n"), 0)

    monkeypatch.setattr(site_facts, "read_output", output)
    assert site_facts.describe_disk(str(tmp_path)) == f"{kind}, 5.0 GB free{quota}"


# --- as a user types it


STAND_IN = """#!/bin/sh
case "$*" in
*"show partition") echo 'PartitionName=gpu MaxTime=30 MaxNodes=UNLIMITED Default=YES' ;;
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
    """Give a clone on a machine whose Slurm has one partition; a test may change jsc/site.toml."""
    for each in (shared_clone.root / "skald", shared_clone.root / ".cache"):
        shutil.rmtree(each, ignore_errors=True)  # what the test before has made
    shutil.copy(root / "jsc/site.toml", shared_clone.root / "jsc")
    for name, text in {
        "scontrol": STAND_IN,
        "sacctmgr": "#!/bin/sh\nexit 1\n",
        "mksquashfs": "#!/bin/sh\nexit 1\n",
        "sbatch": "#!/bin/sh\nexit 0\n",
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


def test_new_site_is_complete_and_read(clone):
    clone.environment["SCRATCH"] = str(clone.root.parent)
    done = clone.type("doctor.py", "--site", "--new", "skald")
    assert "next: " in done.stderr
    text = (clone.root / "skald/site.toml").read_text()
    assert 'partitions.gpu = { max_time = "00:30:00" }' in text
    assert (
        f'paths.scratch_dir = "{clone.root.parent}'.replace(
            f"/{clone.environment['USER']}/", "/{user}/"
        )
        in text
    )
    names = sorted(each.name for each in (clone.root / "skald").iterdir())
    assert names == sorted(
        each.name.replace("_local", "_skald")
        for each in (clone.root / "local").iterdir()
        if each.suffix != ".md"
    )
    job = (clone.root / "skald/run_training_skald.sbatch").read_text()
    assert "#SBATCH --time=00:30:00" in job and "start_job skald" in job and "local" not in job
    for each in (clone.root / "skald").glob("*.s*"):
        assert not re.search(r"\blocal\b|_local", each.read_text()), each
    job = (clone.root / "skald/run_evaluation_skald.sbatch").read_text()
    assert "--gpus-per-node=2 " in job and "# Evaluate a model on skald: " in job
    assert "machine skald" in clone.dry_run("container_run.py", "--machine", "skald", "true")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--site", "--new", "a b"], 1, 'invalid name of a machine: "a b"'),
        (["--site", "--new", "../x"], 1, 'invalid name of a machine: "../x"'),
        (["--site", "--new", ""], 1, 'invalid name of a machine: ""'),
        (["--site", "--new", "auto"], 1, 'invalid name of a machine: "auto"'),
        (["--site", "--new", "docs"], 1, "docs exists already"),
        (["--site", "--new", "jwb"], 1, "jwb exists already"),
        (["--new", "skald"], 2, "no such option: --new"),
        (["--site", "--job", "--new", "skald"], 2, "--new and --job cannot be combined"),
        (["--site"], 1, "no site was detected: this machine has no site.toml"),
        (["--site", "explain"], 2, "got unexpected extra argument (explain)"),
    ],
)
def test_wrong_call_is_explained_and_changes_nothing(arguments, code, error, clone):
    before = sorted(clone.root.rglob("*.toml"))
    done = clone.type("doctor.py", *arguments, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(f"error: {error}\nhint: "), done.stderr
    assert sorted(clone.root.rglob("*.toml")) == before
    assert not list(clone.root.glob(".*partial*"))


@pytest.mark.parametrize("option", [(), ("--site",), ("--job",)])
def test_mistake_in_the_file_of_another_site_is_found(option, clone):
    (clone.root / "jsc/site.toml").write_text('[machines.jwb]\ngpu = "nvidia"\n')
    assert clone.dry_run("container_run.py", "true")
    done = clone.type("doctor.py", *option, check=False)
    assert done.returncode == 1
    told = " ".join(f"{done.stdout} {done.stderr}".split())  # a report is wrapped
    assert 'jsc/site.toml, line 2: unknown value of machines.jwb.gpu: "nvidia"' in told


def test_new_site_needs_slurm(clone, tmp_path):
    (tmp_path / "programs/scontrol").write_text("#!/bin/sh\nexit 127\n")
    done = clone.type("doctor.py", "--site", "--new", "skald", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: Slurm not found on this machine: scontrol is missing\nhint: "
    )
    assert not (clone.root / "skald").exists()


def test_dry_run_changes_nothing(clone):
    for words in (["--site", "--new", "skald"], ["--site", "--machine", "jwb"]):
        assert "# Longship: doctor.py" in clone.type("doctor.py", *words, "--dry-run").stdout
    assert not (clone.root / "skald").exists() and not (clone.root / ".cache").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_new_site_leaves_nothing(number, clone, tmp_path):
    ready = tmp_path / "ready"
    (tmp_path / "programs/srun").write_text(f"#!/bin/sh\n: >'{ready}'\nsleep 100\n")
    process = clone.start("doctor.py", "--site", "--new", "skald")
    processes.wait_until(ready.exists)
    assert list(clone.root.glob(".skald.partial.*"))
    os.kill(process.pid, number)
    assert processes.finish(process)[0] == 128 + number
    assert not list(clone.root.glob("*skald*")) + list(clone.root.glob(".skald*"))


def test_report_ends_with_patch_and_next_step(clone):
    clone.type("doctor.py", "--site", "--new", "skald")
    file = clone.root / "skald/site.toml"
    file.write_text(file.read_text().replace("gpus_per_node = 2", "gpus_per_node = 4"))
    done = clone.type("doctor.py", "--site", "--machine", "skald", check=False)
    assert done.returncode == 1
    assert re.search(r"(?m)^different  gpus_per_node +2 found, 4 stated$", done.stdout)
    assert "\n+gpus_per_node = 2    # proposal\n" in done.stdout
    *_, following, share = done.stdout.splitlines()
    assert following == "next: git apply .cache/doctor/site-skald.patch"
    assert share.endswith(" .cache/doctor/site-skald.txt")
    processes.run(following.split()[1:], env=clone.environment, cwd=clone.root)
    done = clone.type("doctor.py", "--site", "--machine", "skald", "--json")
    assert json.loads(done.stdout)["counts"]["different"] == 0


def test_secrets_of_a_proxy_are_not_shown(clone):
    clone.type("doctor.py", "--site", "--new", "skald")
    text = (clone.root / "skald/site.toml").read_text()
    text += '[machines.skald.configuration.environment.set]\nhttp_proxy = "http://proxy:1/"\n'
    (clone.root / "skald/site.toml").write_text(text)
    proxy = {"http_proxy": "http://me:se/cr@et@127.0.0.1:9/"}
    done = clone.type("doctor.py", "--site", "--machine", "skald", check=False, env=proxy)
    shared = (clone.root / ".cache/doctor/site-skald.txt").read_text()
    assert "cr@et" not in done.stdout + done.stderr + shared
