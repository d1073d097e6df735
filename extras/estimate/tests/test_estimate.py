"""Estimates: what is refused, what is said of the numbers, and the warning at a submission."""

import argparse
import json
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.requests import TRAIN

from extras.estimate.estimates import estimate_file, gpu_memory, last_run, read_estimate
from lib import ROOT
from lib.jobs.job_files import read_job_file
from lib.jobs.options import split_typed
from lib.jobs.submit import request_of
from lib.runtimes.environment import Environment

INSIDE = Path(ROOT, "extras/estimate/inside")
LOCAL = "local/run_training_local.sbatch"
GIB = 2**30


@pytest.fixture
def inside(monkeypatch):
    """Give the module that runs inside the environment."""
    monkeypatch.syspath_prepend(INSIDE)
    yield import_module("estimate")
    for name in [each for each in sys.modules if each.startswith(("estimate", "stack_"))]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def command(run, clean_environment, tmp_path):
    """Give a function that runs submit.py of this clone, in a new home directory."""

    def type_in(*words, check=True):
        env = {**clean_environment, "HOME": str(tmp_path), "LONGSHIP_MACHINE": "local"}
        return run(
            [sys.executable, Path(ROOT, "submit.py"), *words], env=env, cwd=ROOT, check=check
        )

    return type_in


def test_stack_starts_the_estimator_in_place_of_the_ranks(command):
    words = ["--gpu-memory=40", "--nodes=2", "--gpus-per-node=4", "--dry-run", "--", "--x=it's a"]
    plan = command("estimate", LOCAL, *words).stdout.partition("\n}\n")[0]
    (line,) = [each for each in plan.replace("\\\n    ", "").splitlines() if "  set -- " in each]
    assert shlex.split(line)[2:] == [
        *("env", "NUM_NODES=2", "GPUS_PER_NODE=4"),
        f"LONGSHIP_INSTEAD_OF_RANKS={INSIDE}/estimate.py",
        *("bash", f"{ROOT}/stacks/pytorch/run_training.sh", "--x=it's a"),
    ]
    assert "command_exec" in plan and "submission_" not in plan


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["local/preprocess_data_local.sbatch"], "starts no training of a stack", "run_training"),
        (
            [LOCAL, "--stack=olmo"],
            "the stack olmo has no estimator",
            "megatron-bridge, megatron-lm,",
        ),
        ([LOCAL, "--gpus-per-socket=2"], "not known with --gpus-per-socket", "--gpus-per-node"),
        ([LOCAL, "--array=0-1%1"], "--array", "leave it out"),
        ([LOCAL, "--gpu-memory=0"], "--gpu-memory", ""),
    ],
)
def test_what_cannot_be_estimated_is_refused(words, message, hint, command):
    done = command("estimate", *words, "--dry-run", check=False)
    assert done.returncode and message in done.stderr and hint in done.stderr, done.stderr
    assert not done.stdout


def test_start_of_ranks_runs_the_named_program_with_their_command(run, clean_environment, tmp_path):
    (tmp_path / "show.py").write_text("import sys; print(sys.argv[1:], sys.stdin.read())")
    (tmp_path / "python").symlink_to(sys.executable)
    script = f'source "{ROOT}/lib/jobs/inside/ranks.bash"; start_ranks "my train.py" --a "b c"'
    env = {
        **clean_environment,
        **{"LONGSHIP_ROOT": ROOT, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        "LONGSHIP_INSTEAD_OF_RANKS": str(tmp_path / "show.py"),
    }
    done = run(["bash", "-euo", "pipefail", "-c", script], env=env, input="given")
    assert done.stdout == "['my train.py', '--a', 'b c'] given\n"


GIVEN = {
    **{"machine": "m", "stack": "s", "nodes": 1, "gpus_per_node": 4, "gpus": 4, "gpu_memory": 40},
    **{"last_run": "7-train", "last_peak_gib": 40.0, "as_json": False},
}


def rows_of(inside, *totals, states=10):
    return [
        inside.Row(data_parallel=4, micro_batch=size, states=states * GIB, total=total * GIB)
        for size, total in enumerate(totals, 1)
    ]


def test_total_is_compared_with_the_memory_and_the_last_run(inside):
    found = inside.report(GIVEN, "ours", rows_of(inside, 30, 36, 36.1, 40, 40.1))
    assert [each["fits"] for each in found["layouts"]] == ["yes", "yes", "tight", "tight", "no"]
    assert found["difference_percent"] == -25.0
    text = inside.text(found)
    assert "4 GPUs: 40 GB each" in text and "7-train used 40.00 GiB; this estimate is -25 %" in text
    lines = text.splitlines()
    assert lines[2].split()[:3] == ["this", "job:", "4"] and lines[2].split()[3] == "1"
    assert lines[3].split() == ["or:", "4", "4", "10.00", "40.00", "tight"]  # the largest that fits
    assert lines[-2].startswith("left out: CUDA's context, NCCL's buffers")


def test_unknown_memory_makes_no_statement(inside):
    given = {**GIVEN, "gpu_memory": 0, "last_run": "", "last_peak_gib": None}
    found = inside.report(given, "ours", rows_of(inside, 30, 400))
    assert found["gpu_memory"] is None and found["difference_percent"] is None
    assert [each["fits"] for each in found["layouts"]] == [None, None]
    text = inside.text(found)
    assert (
        "memory not known, so what fits is not known" in text and "fits" not in text.split("\n")[1]
    )
    assert "no run to compare with" in text


def test_layout_without_activations_fits_only_not(inside):
    row = inside.Row(states=30 * GIB)
    assert row.in_gib(40)["fits"] is None and row.in_gib(20)["fits"] == "no"
    found = inside.report(GIVEN, "ours", [row])
    assert found["difference_percent"] is None and "no total to compare" in inside.text(found)


def test_divisions_divide_ranks_heads_and_layers(inside):
    found = set(inside.divisions(ranks=16, gpus_per_node=4, heads=6, layers=4))
    assert found == {(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (2, 4)}


def test_estimate_that_fails_is_told_in_two_lines(run, clean_environment, tmp_path):
    words = [sys.executable, INSIDE / "estimate.py", tmp_path / "train.py"]
    given = {**GIVEN, "stack": "megatron-lm", "file": str(tmp_path / "file")}
    done = run(words, env=clean_environment, input=json.dumps(given), check=False)
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: cannot estimate a training of megatron-lm here: ValueError: ")
    assert hint.startswith("hint: check its arguments") and done.returncode == 1
    assert not done.stdout and not (tmp_path / "file").exists()


# ---------- Megatron-LM; integration/test_estimate_megatron.py has the real one

ARGUMENTS = """
import argparse, os

def get_device_arch_version():
    raise RuntimeError("no NVIDIA driver")

def parse_args():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--sequence-parallel", action="store_true")
    args = parser.parse_args()
    args.world_size = int(os.environ["WORLD_SIZE"])
    for name, value in {
        "bf16": True, "optimizer": "adam", "accumulate_allreduce_grads_in_fp32": True,
        "use_precision_aware_optimizer": False, "optimizer_cpu_offload": False,
        "use_torch_fsdp2": False, "use_megatron_fsdp": False, "recompute_granularity": None,
        "group_query_attention": True, "num_query_groups": 2, "num_attention_heads": 8,
        "num_layers": 4, "global_batch_size": 8,
    }.items():
        setattr(args, name, value)
    return args

def validate_args(args, defaults):
    get_device_arch_version()
    size = args.tensor_model_parallel_size * args.pipeline_model_parallel_size
    assert args.world_size % size == 0, "world size is not divisible"
    assert args.pipeline_model_parallel_size < 4, "at most 2"
    args.data_parallel_size = args.world_size // size
    if args.tensor_model_parallel_size == 1:
        args.sequence_parallel = False
"""
FORMULA = """
def report_theoretical_memory(args, num_microbatches=None):
    print("noise")
    assert num_microbatches * args.micro_batch_size * args.data_parallel_size == 8
    states = 1000 / args.tensor_model_parallel_size / args.pipeline_model_parallel_size
    saved = args.micro_batch_size * (1 if args.recompute_granularity else 2)
    return states, saved, states + saved
"""


@pytest.fixture
def megatron(inside, monkeypatch, tmp_path):
    """Give the file of the stack, with a stand-in for Megatron-LM that asks for a GPU."""
    files = {
        "training/arguments.py": ARGUMENTS,
        "training/theoretical_memory_usage.py": FORMULA,
        "core/tokenizers/utils/build_tokenizer.py": "def build_tokenizer(args): pass\n",
    }
    for name, text in files.items():
        path = tmp_path / "megatron" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(argparse.ArgumentParser, "error", argparse.ArgumentParser.error)
    stack = import_module("stack_megatron_lm")

    def rows(*words):
        return list(stack.rows(["record.py", f"{tmp_path}/pretrain_gpt.py", *words], 2, 4))

    yield rows
    for name in [each for each in sys.modules if each.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)


def test_layouts_are_those_that_megatron_accepts(megatron):
    job, *others = megatron("--tensor-model-parallel-size=2", "--micro-batch-size=2")
    assert (job.data_parallel, job.tensor_parallel, job.micro_batch) == (4, 2, 2)
    assert (job.states, job.total, job.recomputation) == (500 * 2**20, 504 * 2**20, "none")
    (job, *_) = megatron("--tensor-model-parallel-size=2", "--sequence-parallel")
    assert (job.states, job.activations, job.total) == (500 * 2**20, None, None)
    layouts = {(row.data_parallel, row.tensor_parallel, row.pipeline_parallel) for row in others}
    assert layouts == {(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 2, 2)}  # two query groups
    # one formula is of sequence parallelism with recomputation, the other of neither
    layouts = {(row.tensor_parallel, row.recomputation) for row in others}
    assert layouts == {(1, "none"), (2, "selective")}
    assert all(row.total for row in others)
    assert {row.micro_batch for row in others if row.data_parallel == 4} == {1, 2}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("--context-parallel-size=2", "do not cover context_parallel_size = 2"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
    ],
)
def test_what_the_formulas_do_not_cover_is_refused(word, reason, megatron):
    with pytest.raises(ValueError, match=reason):
        megatron(word)


# ---------- the submission


@pytest.fixture
def training(submit):
    """Give the lines of a submission of a training on GPUs of 40 GB."""
    site = submit.site.root / "site"
    text = (site / "site.toml").read_text()
    text = text.replace("gpus_per_node = 4\n", "gpus_per_node = 4\ngpu_memory = 40\n")
    text = text.replace("partitions.free = {", "partitions.free = { gpu_memory = 90,")
    (site / "site.toml").write_text(text)
    job = (site / "train.sbatch").read_text()
    (site / "train.sbatch").write_text(f'{job}srun bash "$STACK_DIR/run_training.sh" "$@"\n')
    stack = submit.site.root / "stacks/pytorch"
    stack.mkdir(parents=True, exist_ok=True)
    (stack / "run_training.sh").write_text("")
    return submit


@pytest.fixture
def request_for(training):
    """Give a function that returns the request of a submission of that training."""

    def make(*words):
        settings, paths = training.site.settings_and_paths(machine="m")
        typed, arguments = split_typed(words)
        env = Environment(settings, paths, "host", "job")
        return request_of(env, read_job_file(training.site.root, TRAIN), typed, arguments)

    return make


def warnings_of(lines):
    return [each for each in lines if each.startswith("warn_of") and "does not fit" in each]


def write_estimate(request, states):
    file = estimate_file(request)
    file.parent.mkdir(parents=True, exist_ok=True)
    found = {"estimated": "2026-11-28T08:00:00Z", "layouts": [{"states_gib": states}]}
    file.write_text(json.dumps(found))
    file.chmod(0o600)
    return file


JOB = ("--nodes=2", "--gpus-per-node=4", "--", "--layers", "9")


def test_submission_warns_of_what_surely_does_not_fit(training, request_for):
    assert warnings_of(training(*JOB)) == []
    write_estimate(request_for(*JOB), 40.5)
    (line,) = warnings_of(training(*JOB))
    _, warning, hint = shlex.split(line)
    assert (
        "by the estimate of 2026-11-28" in warning
        and "alone are 40.5 GiB" in warning
        and "a GPU has 40 GB" in warning
    )
    assert hint.endswith(f"python3 submit.py estimate {TRAIN}, with the same options")
    lines = training(*JOB)
    assert lines.index(line) < next(n for n, each in enumerate(lines) if "submission_send" in each)
    # another job: more nodes, other arguments, GPUs with more memory
    assert warnings_of(training("--nodes=4", *JOB[1:])) == []
    assert warnings_of(training(*JOB[:-1], "8")) == []
    write_estimate(request_for("--partition=free", *JOB), 40.5)
    assert warnings_of(training("--partition=free", *JOB)) == []


@pytest.mark.parametrize("states", [39.9, None, "many"])
def test_submission_does_not_warn_of_what_is_not_sure(states, training, request_for):
    write_estimate(request_for(*JOB), states)
    assert warnings_of(training(*JOB)) == []


def test_estimate_that_is_damaged_or_of_others_is_not_read(training, request_for):
    file = write_estimate(request_for(*JOB), 99)
    assert read_estimate(file) == ("2026-11-28", 99)
    file.chmod(0o666)
    assert read_estimate(file) == ("", 0) and warnings_of(training(*JOB)) == []
    file.chmod(0o600)
    for text in ("", "[]", "{", '{"layouts": []}'):
        file.write_text(text)
        assert read_estimate(file) == ("", 0) and warnings_of(training(*JOB)) == []


def test_memory_is_that_of_the_smallest_gpu_that_slurm_can_choose(request_for):
    assert gpu_memory(request_for(*JOB)) == 40
    assert gpu_memory(request_for("--partition=free", *JOB)) == 90
    assert gpu_memory(request_for("--partition=free,devel", *JOB)) == 40


def test_last_run_is_the_newest_of_the_same_kind(request_for):
    request = request_for(*JOB)
    runs = request.env.paths.runs

    def write_run(
        name, ended, peak, arguments="--layers\0009\0", nodes="2", training="{}", code="0"
    ):
        (runs / name).mkdir(parents=True)
        record = {
            **{"machine": "m", "stack": "pytorch", "nodes": nodes, "gpus": "8", "ended": ended},
            **{"gpu_peak_memory_mib": peak, "exit_code": code},
        }
        (runs / name / "record.json").write_text(json.dumps(record, indent=2) + "\n")
        (runs / name / "arguments").write_text(arguments)
        (runs / name / "configuration.json").write_text(f'{{"training": {training}}}')

    assert last_run(request) == ("", None)
    write_run("1-train", "2026-11-01T00:00:00Z", "1024")
    write_run("2-train", "2026-11-03T00:00:00Z", "20480")
    write_run("3-train", "2026-11-02T00:00:00Z", "4096")
    write_run("4-no-gpu-was-measured", "2026-11-09T00:00:00Z", "")
    write_run("5-other-arguments", "2026-11-09T00:00:00Z", "9", arguments="--layers\0008\0")
    write_run("6-other-nodes", "2026-11-09T00:00:00Z", "9", nodes="4")
    write_run("7-other-settings", "2026-11-09T00:00:00Z", "9", training='{"layers": 3}')
    write_run("8-damaged", "2026-11-09T00:00:00Z", "9", training="")
    write_run("9-failed", "2026-11-09T00:00:00Z", "9", code="1")
    assert last_run(request) == ("2-train", 20.0)
