"""Options are read as sbatch reads them; where it is there, it is asked."""

import re
import shutil
from pathlib import Path

import pytest

from lib.jobs.options import (
    _FLAGS,
    _VARIABLES,
    _WITH_VALUE,
    Option,
    combined,
    read_header,
    read_options,
    read_variables,
    same_gpus,
    split_typed,
)
from lib.script.errors import LongshipError

HEADER = """\
#!/bin/bash
#SBATCH --nodes=2   # two
#SBATCH --job-name='a b' --comment "x # y" #z
  # an indented comment ends nothing

#SBATCH -t 60#minutes
#SBATCH --hold
##SBATCH --qos=none
# SBATCH --qos=none
#SBATCH
# a line that \u2028 str.splitlines would break
#SBATCH --begin=never
true
#SBATCH --qos=none
"""


@pytest.fixture
def sbatch(clean_environment, run, tmp_path):
    """Give a function that runs sbatch without any cluster: it reads its options first."""
    settings = tmp_path / "slurm.conf"
    settings.write_text("ClusterName=none\nSlurmctldHost=localhost\n")

    def ask(*arguments, env=None, **options):
        environment = {**clean_environment, "SLURM_CONF": str(settings), **(env or {})}
        return run(["sbatch", *arguments], env=environment, check=False, **options)

    return ask


def words(options):
    return [each.word for each in options]


@pytest.mark.needs("sbatch")
def test_every_option_of_sbatch_is_known_with_what_it_takes(sbatch):
    shown = re.findall(r"^  (?:-(\w),?| +) +--([\w-]+)", sbatch("--help").stdout, re.MULTILINE)
    assert len(shown) > 80
    for letter, name in shown:
        needs_one = "requires an argument" in sbatch(f"--{name}", input="").stderr
        expected = Option(name, "value" if needs_one else None)
        rest = ["value"] if needs_one else []
        assert read_options([f"--{name}", *rest]) == [expected]
        if letter:
            assert read_options([f"-{letter}", *rest]) == [expected]


@pytest.mark.needs("sbatch")
def test_option_that_help_leaves_out_takes_what_sbatch_takes(sbatch):
    for name in (*_WITH_VALUE, *_FLAGS):
        said = sbatch(f"--{name}", input="").stderr
        if "unrecognized" not in said:  # those of newer versions
            assert ("requires an argument" in said) == (name in _WITH_VALUE), (name, said)


@pytest.mark.needs("sbatch")
def test_header_is_read_as_sbatch_reads_it(sbatch, tmp_path):
    job = tmp_path / "job.sbatch"
    job.write_text(HEADER)
    said = sbatch("-vvv", job).stderr  # it stops at the time of begin
    found = re.findall('Found in script, argument "(.*)"', said)
    assert read_header(job.read_text(), "job") == read_options(found)


@pytest.mark.needs("sbatch")
def test_variables_are_those_that_sbatch_reads(sbatch, tmp_path):
    job = tmp_path / "job.sbatch"
    job.write_text("#!/bin/bash\ntrue\n")
    values = {"exclusive": "user", "output": "/7", "hint": "nomultithread"}
    for variable, option in _VARIABLES.items():
        value = values.get(option, "7")
        # with -v it says what it was asked for; without any GPUs in its settings it ends there
        said = sbatch("-v", "--gpus-per-task=1", job, env={f"SBATCH_{variable}": value}).stderr
        shown = option == "ignore-pbs" or re.search(rf"^sbatch: {option} +: ", said, re.MULTILINE)
        assert shown, (variable, said)


@pytest.mark.needs("sbatch")
@pytest.mark.parametrize("program", ["SBATCH", "SALLOC"])
def test_variable_that_can_make_a_job_larger_keeps_its_name(program):
    text = Path(shutil.which(program.lower())).read_bytes()
    variables = {
        each.decode() for each in re.findall(rf"{program}_\w+|SLURM_HOST\w+".encode(), text)
    }
    assert len(variables) > 40
    found = read_variables({**dict.fromkeys(variables, "1"), "PATH": "x", "SBATCHES": "1"}, program)
    larger = {f"{program}_{each}" for each in ("CLUSTERS", "CORE_SPEC", "GPUS_PER_SOCKET")}
    larger |= {f"{program}_{each}" for each in ("SPREAD_JOB", "THREAD_SPEC")}
    assert {each.name for each in found if not each.is_read} == {*larger, "SLURM_HOSTFILE"}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["--nodes=2"], ["--nodes=2"]),
        (["--nodes", "2"], ["--nodes=2"]),
        (["-N2", "-t", "60"], ["--nodes=2", "--time=60"]),
        (["-HvN", "2"], ["--hold", "--verbose", "--nodes=2"]),
        (["--exclusive"], ["--exclusive"]),
        (["--exclusive=user"], ["--exclusive=user"]),
        (["--part=x"], ["--partition=x"]),
        (["--time", "60"], ["--time=60"]),
        (["--comment="], ["--comment="]),
        (["--comment", "--nodes=2"], ["--comment=--nodes=2"]),
        (["--comment=a=b c"], ["--comment=a=b c"]),
        (["--tasks-per-node=112", "--tasks", "3"], ["--ntasks-per-node=112", "--ntasks=3"]),
        (["--tasks-per=112"], ["--ntasks-per-node=112"]),
        # of plugins, of newer versions, and mistakes that sbatch names
        (
            ["--uenv=x/y:1", "--disable-dcgm", "-N2"],
            ["--uenv=x/y:1", "--disable-dcgm", "--nodes=2"],
        ),
        (["--partion=x", "--nt=2", "--zzz"], ["--partion=x", "--nt=2", "--zzz"]),
        ([], []),
    ],
)
def test_command_line_is_read_as_getopt_does(typed, expected):
    assert words(read_options(typed)) == expected


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["--chian=2"], "no such option: --chian", "did you mean --chain?"),
        (
            ["--steps", "50"],
            "unknown option: --steps 50",
            "for a job argument: -- --steps 50; for sbatch: --steps=50",
        ),
        (["-Z"], "sbatch has no option -Z", "valid values: "),
        (["--nodes"], "missing value: --nodes", "--nodes=VALUE"),
        (["-N"], "missing value: -N", "--nodes=VALUE"),
        (["--hold", "train.py"], 'unexpected argument: "train.py"', "after `--`, such as: "),
        (["-"], 'unexpected argument: "-"', "after `--`, such as: "),
        ([""], 'unexpected argument: ""', "after `--`, such as: "),
    ],
)
def test_what_is_no_option_is_told(typed, message, hint):
    with pytest.raises(LongshipError) as error:
        read_options(typed, own=["chain"])
    assert message in str(error.value)
    assert hint in error.value.hint


def test_option_of_the_command_is_no_argument_of_the_job():
    """What somebody types who adds --dry-run at the end would submit a job."""
    own = ["dry-run", "chain"]
    for words in (["--steps", "5", "--dry-run"], ["--chain=3"]):
        with pytest.raises(LongshipError) as error:
            split_typed(["-N2", "--", *words], own)
        assert str(error.value).startswith(f"{words[-1]} after -- is an argument of the job")
        assert error.value.hint.startswith(f"put {words[-1]} before --; or")
        assert split_typed(["-N2", "--", "--", *words], own)[1] == tuple(words)
    assert split_typed(["--", "a", "--", "--dry-run"], own)[1] == ("a", "--", "--dry-run")
    assert split_typed(["--", "--dry-runs", "--help"], own)[1] == ("--dry-runs", "--help")


def test_header_ends_at_the_first_command():
    expected = ["--nodes=2", "--job-name=a b", "--comment=x # y", "--time=60", "--hold"]
    expected.append("--begin=never")
    assert words(read_header(HEADER, "job")) == expected


def test_option_of_a_newer_slurm_is_taken_from_a_header():
    header = "#SBATCH --not-known-yet=3 --environment ngc-pytorch --nor-this\n#SBATCH -N 2\n"
    assert words(read_header(header, "job")) == [
        *("--not-known-yet=3", "--environment=ngc-pytorch", "--nor-this", "--nodes=2")
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#SBATCH --comment='a", "a.sbatch, line 2: No closing quotation"),
        ("#SBATCH --nodes", "a.sbatch: missing value: --nodes"),
        ("#SBATCH --nodes=2 two", 'a.sbatch: unexpected argument: "two"'),
        ("#SBATCH hetjob", "a.sbatch is a heterogeneous job, which Longship cannot start"),
    ],
)
def test_line_that_cannot_be_read_is_told(line, message):
    with pytest.raises(LongshipError) as error:
        read_header(f"#!/bin/bash\n{line}\n", "a.sbatch")
    assert message in str(error.value)


def test_variables_of_sbatch_are_options():
    environ = {"SBATCH_TIMELIMIT": "60", "SBATCH_EXCLUSIVE": "", "SBATCH_UNKNOWN": "1", "PATH": ""}
    assert read_variables(environ) == [
        *(Option("time", "60"), Option("exclusive", None), Option("SBATCH_UNKNOWN", "1"))
    ]
    assert read_variables({"SLURM_HINT": "x", "SLURM_CLUSTERS": "a", "SALLOC_GPUS": "1"}) == [
        *(Option("hint", "x"), Option("SLURM_CLUSTERS", "a"))
    ]


@pytest.mark.parametrize("line", ["#PBS -l nodes=2", "#BSUB -n 4"])
def test_directive_of_another_system_is_noticed_wherever_it_is(line):
    name = line.split()[0]
    for text in (
        f"#SBATCH -N2\n{line}\n",
        f"{line}x\n#SBATCH -N2\ntrue\n",
        f"#SBATCH -N2\ntrue\n{line}",
    ):
        assert read_header(f"#!/bin/bash\n{text}", "job") == [
            Option(name, ""),
            Option("nodes", "2"),
        ]
    assert read_header(f"#!/bin/bash\n# {line}\n", "job") == []


@pytest.mark.parametrize(
    ("header", "typed", "expected"),
    [
        ("--gres=gpu:4", "--gpus-per-node=2", "--gres=gpu:2"),
        ("--gres=gpu:a100:4", "--gpus-per-node=a100:2", "--gres=gpu:a100:2"),
        ("--gres=lustre:1,gpu:4", "--gpus-per-node=2", "--gres=lustre:1,gpu:2"),
        ("--gres=lustre:1", "--gpus-per-node=2", "--gpus-per-node=2"),
        ("--gpus-per-node=4", "--gres=gpu:2", "--gpus-per-node=2"),
        ("--gpus-per-node=4", "--gres=gpu", "--gpus-per-node=1"),
        ("--gpus-per-node=4", "--gres=lustre:1", "--gres=lustre:1"),
        ("--nodes=2", "--gres=gpu:2", "--gres=gpu:2"),
    ],
)
def test_gpus_per_node_are_named_as_in_the_header(header, typed, expected):
    assert words(same_gpus(read_options([header]), read_options([typed]))) == [expected]


def test_later_options_win():
    options = [Option("nodes", "1"), Option("hold", None), Option("nodes", "2")]
    assert combined(options) == {"nodes": "2", "hold": ""}
