"""What an hour of a job costs, by the prices of sites."""

import math
from pathlib import Path

import pytest

from lib.configuration.partitions import Price, read_price
from lib.configuration.sites import load_machines
from lib.configuration.tables import read_toml
from lib.jobs.cost import per_hour
from lib.jobs.size import Size

ROOT = Path(__file__).resolve().parents[2]


def cost(price, *, nodes=1, cores=1, gpus=0, memory=0, constraint=""):
    named = {"name": "", "partition": "", "qos": "", "account": "", "constraint": constraint}
    size = {"nodes": nodes, "cores": cores, "gpus": gpus, "memory": memory}
    return per_hour(Size(**named, **size, hours=1, jobs=1), price)


def test_price_is_the_sum_of_what_is_asked_for():
    price = Price("units", node=100, gpu=10, core=1)
    assert cost(price, nodes=2, cores=7, gpus=3) == 237


def test_whole_nodes_of_jsc_cost_their_cores():
    assert cost(Price("core-hours", node=48), nodes=4, cores=4, gpus=16) == 192


@pytest.mark.parametrize(
    ("cores", "memory", "gpus", "slices"),
    [
        (1, 0, 1, 1),
        (8, 64, 1, 1),
        (9, 64, 1, 2),
        (8, 64.5, 1, 2),
        (7, 60, 4, 4),
        (56, 480, 8, 8),
        (8, 512, 1, 8),
        (1, 0, 0, 1),
    ],
)
def test_small_g_of_lumi_charges_the_largest_share(cores, memory, gpus, slices, tmp_path):
    text = 'price = { unit = "GPU-hours", slice = 0.5, slice_cores = 8, slice_memory = 64 }\n'
    (tmp_path / "site.toml").write_text(text)
    tables = read_toml(tmp_path / "site.toml", "x/site.toml")
    price = read_price(tables["price"], "x/site.toml", "price")
    assert cost(price, cores=cores, memory=memory, gpus=gpus) == slices * 0.5
    assert max(math.ceil(cores / 8), math.ceil(memory / 64), gpus) == slices


@pytest.mark.parametrize(
    ("constraint", "factor"),
    [
        ("", 1),
        ("thin", 1),
        ("fat", 2),
        ("fat&ib", 2),
        ("[thin|fat]", 2),
        ("fat*1", 2),
        ("fatter", 1),
    ],
)
def test_fat_nodes_of_berzelius_cost_twice_as_much(constraint, factor):
    price = Price("GPU-hours", gpu=1, constraints={"thin": 1, "fat": 2})
    assert cost(price, gpus=4, constraint=constraint) == 4 * factor


@pytest.mark.parametrize(
    ("machine", "partition", "asked", "by_hand"),
    [
        ("jrc", "dc-gpu", {"nodes": 3, "gpus": 12}, 3 * 128),
        ("jeanzay", "gpu_p6", {"cores": 192, "gpus": 8, "memory": 900}, 8),
        ("jeanzay", "gpu_p6", {"cores": 48, "gpus": 1}, 2),
        ("jeanzay", "prepost", {"cores": 16}, 0),
        ("snellius", "gpu_h100", {"cores": 128, "gpus": 8}, 8 * 192),
        ("snellius", "gpu_h100", {"cores": 16, "gpus": 1, "memory": 360}, 2 * 192),
        ("snellius", "rome", {"cores": 64}, 64),
        ("capella", "capella", {"cores": 112, "gpus": 8, "memory": 1420}, 8),
        ("capella", "capella-interactive", {"cores": 1, "gpus": 1}, 0.143),
        ("roihu", "gpumedium", {"cores": 288, "gpus": 4}, 4 * 200),
        ("olivia", "accel", {"nodes": 2, "gpus": 8}, 8 * 5.6),
        ("olivia", "small", {"cores": 16, "memory": 32}, 16 * 0.04),
        ("olivia", "small", {"cores": 1, "memory": 100}, 50 * 0.04),  # at least 34 units
        ("olivia", "large", {"nodes": 2, "cores": 2}, 2 * 256 * 0.04),
    ],
)
def test_prices_of_sites_are_those_computed_by_hand(machine, partition, asked, by_hand):
    machine = load_machines(ROOT)[machine]
    price = machine.partitions[partition].price or machine.price
    assert cost(price, **asked) == pytest.approx(by_hand)
