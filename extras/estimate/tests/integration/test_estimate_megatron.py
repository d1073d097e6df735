"""The estimates of Megatron-LM and Megatron-Bridge, by the frameworks themselves.

They see a stand-in for a GPU, see tests/stand_ins/no_gpu.py, which an estimate does not use.
"""

import json

import pytest
from integration.test_stack_megatron_bridge import bridge, hub  # noqa: F401  (fixtures)

# The frameworks are installed whole; the fast tests have what surrounds the estimate.
pytestmark = pytest.mark.slow

# In place of the ranks: print what a stack's file returns for their command.
SHOW = """
import contextlib, importlib, json, os, sys
sys.path.insert(0, os.environ["LONGSHIP_ROOT"] + "/extras/estimate/inside")
stack = importlib.import_module(os.environ["SHOWN"])
with contextlib.redirect_stdout(sys.stderr):
    rows = [row._asdict() for row in stack.rows(sys.argv[1:], 2, 4)]
print(json.dumps(rows))
"""
LAYERS, HIDDEN, LENGTH = 4, 256, 128
MEGATRON_LM = {
    **{"run_name": "r", "data": "", "tokenizer": "", "split": "98,1,1", "profile": ""},
    **{"layers": LAYERS, "hidden_size": HIDDEN, "heads": 4, "sequence_length": LENGTH},
    **{"tensor_parallel": 1, "pipeline_parallel": 1, "micro_batch": 1, "global_batch": 16},
    **{"steps": 9, "save_interval": 9, "learning_rate": "1e-3", "recipe": "llama"},
}


@pytest.fixture
def rows(root, bridge, tmp_path):  # noqa: F811
    """Give a function that returns the rows of a training on two nodes of four GPUs."""
    (tmp_path / "show.py").write_text(SHOW)

    def show(stack, *arguments, **settings):
        words = (
            *("OMP_NUM_THREADS=1", "TORCHDYNAMO_DISABLE=1", "NUM_NODES=2", "GPUS_PER_NODE=4"),
            *(f"SHOWN=stack_{stack.replace('-', '_')}",),
            f"LONGSHIP_INSTEAD_OF_RANKS={tmp_path / 'show.py'}",
            *(f"TRAINING_{name.upper()}={value}" for name, value in settings.items()),
        )
        script = root / f"stacks/{stack}/run_training.sh"
        done = bridge("env", *words, "bash", script, *arguments, check=False)
        if done.returncode:
            return done.stderr.splitlines()[-1]
        return json.loads(done.stdout.splitlines()[-1])

    return show


def test_rows_of_megatron_lm(rows):
    found = rows("megatron-lm", **MEGATRON_LM)
    vocabulary = 50304  # 50,257 to a multiple of 128
    layer = 12 * HIDDEN**2 + 4 * HIDDEN  # attention and MLP, two norms of weight and bias
    count = vocabulary * HIDDEN + LAYERS * layer + 2 * HIDDEN
    job = found[0]
    assert (job["data_parallel"], job["tensor_parallel"], job["micro_batch"]) == (8, 1, 1)
    # bfloat16 weights and float32 gradients; float32 weights and moments over all replicas
    assert job["states"] == pytest.approx(count * (2 + 4 + 12 / 8))
    assert job["total"] == pytest.approx(job["states"] + job["activations"])
    for row in found:
        tensor, pipeline = row["tensor_parallel"], row["pipeline_parallel"]
        assert row["data_parallel"] * tensor * pipeline == 8 and tensor <= 4 and pipeline <= 4
        assert 16 % (row["data_parallel"] * row["micro_batch"]) == 0
    assert {row["recomputation"] for row in found} == {"none", "selective"}
    assert max(row["pipeline_parallel"] for row in found) == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--context-parallel-size=2"], "do not cover context_parallel_size = 2"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_arguments_that_megatron_lm_cannot_estimate(arguments, reason, rows):
    assert reason in rows("megatron-lm", *arguments, **MEGATRON_LM)


def test_rows_of_megatron_bridge(rows):
    recomputed = "model.recompute_granularity=selective"
    settings = {"recipe": "qwen3_600m_pretrain_config", "sequence_length": 64, "micro_batch": 2}
    settings.update(global_batch=16, tensor_parallel=2)
    found = rows("megatron-bridge", recomputed, **settings)
    job = found[0]
    assert (job["data_parallel"], job["tensor_parallel"], job["micro_batch"]) == (4, 2, 2)
    assert job["total"] == job["states"] + job["activations"] > job["activations"] > 0
    (alone,) = (
        row
        for row in found
        if (row["tensor_parallel"], row["pipeline_parallel"], row["micro_batch"]) == (1, 1, 2)
    )
    assert alone["total"] is None  # its formula has sequence parallelism in it
    hidden, ffn, heads, groups, width, layers = 64, 128, 4, 2, 16, 2
    attention = 2 * hidden * width * (heads + groups)
    layer = attention + 3 * hidden * ffn + 4 * hidden
    count = 2 * 512 * hidden + layers * layer + 2 * hidden  # two embeddings, for input and output
    assert alone["states"] == pytest.approx(count * (2 + 4 + 12 / 8))
    other = "optimizer.optimizer=sgd"
    assert "do not cover" in rows("megatron-bridge", other, **settings)
