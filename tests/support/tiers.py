"""The three tiers of the tests, and who runs beside whom.

fast   no container, no cluster, no network: what lies in tests/ itself
real   the real programs: what lies in a folder integration/. Those of tests/directories.txt run in
       .ci/run if their directory changed
slow   what a change seldom breaks and takes minutes: marked so, with a smaller test of the same
       promise among the real ones
"""

import os
from pathlib import Path

import pytest

from support import directories

ROOT = Path(__file__).resolve().parents[2]

# What another Python can break: imports, --help, plans, TOML, argparse, processes, archives.
# .ci/run repeats these tests with the oldest and the newest Python.
PYTHONS = {
    *("tests/script", "tests/configuration", "tests/commands/test_cli.py", "tests/test_golden.py"),
    *(
        "tests/test_structure.py",
        "tests/test_train_options.py",
        "extras/frozen/tests/test_frozen_code.py",
    ),
    *("extras/bundle/tests", "tests/repositories"),
    "extras/overlay_speed/tests/test_module_index.py",
}

CLUSTERS = os.environ.get("SLURM_CONF", "").split(":")

# Fixtures that lead to a store of images which all processes share. Its tests list, prune and count
# what is in it, so one process after the other.
STORES = {
    "docker": {"docker_environment", "docker_image"},
    "podman": {"podman_environment", "podman_image"},
}


# podman is given the words that docker is given, but for user, home and store. What
# depends on these is tested with both, and the rest at night.
OF_PODMAN = {
    *("test_hostile_arguments_arrive", "test_terminal_passes"),
    *("test_signal_reaches_the_program", "test_home_and_user_are_the_callers"),
    *("test_files_written_inside_are_the_callers", "test_swap_roll_back_and_forth"),
    *("test_secret_of_the_environment_arrives_and_is_seen_nowhere",),
}

# What takes a minute or more, the longest first: at the end no process waits for another one.
LONG = (
    *("test_jobs", "test_repositories", "test_doctor", "test_offline_packages", "test_overlays"),
    *("test_train", "test_submit", "test_container_kills", "docker", "test_bundle"),
    *("test_job_sites", "test_watcher", "test_set_up", "test_build_container", "doctor_site"),
    *("test_preprocess_data", "test_assets", "test_air_gap", "test_jobs_interactive"),
    *("test_contributing", "test_repository_kills", "test_pyxis", "test_move_built_container"),
)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest selects by marker, and xdist by group
def pytest_collection_modifyitems(items):
    order = {}
    for item in items:
        own = item.path.relative_to(ROOT)
        if PYTHONS & {str(own), str(own.parent)}:
            item.add_marker("pythons")
        if str(own) in directories.TABLE:
            item.add_marker("by_directory")
            if not item.get_closest_marker("slow"):
                item.add_marker("real")
        if item.get_closest_marker("needs") or "require" in item.fixturenames:
            item.add_marker("tools")
        if item.get_closest_marker("unsteady"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if "integration" in own.parts:
            if "podman" in item.name and item.originalname not in OF_PODMAN:
                item.add_marker("slow")
            if not item.get_closest_marker("slow"):
                item.add_marker("real")
            if not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(group_of(item)))
        group = item.get_closest_marker("xdist_group")
        name = group.args[0] if group else item.nodeid.partition("::")[0]
        order[item] = LONG.index(name) if name in LONG else len(LONG) + (group is None)
    items.sort(key=order.get)
    return (yield)


def slow(*values):
    """Mark a row of `parametrize` as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def group_of(item):
    """Name the group of a real test, whose tests run one after the other in the same process.

    It is the file, which shares what is slow to make, unless the test needs what all share.
    """
    fixtures = set(item.fixturenames)
    for store, names in STORES.items():
        if names & fixtures or store in item.name:
            return store
    if "slurm_cluster" in fixtures and _clusters_are_shared():
        return "slurm"
    return item.path.stem


def pytest_configure(config):
    """Give each process a cluster of its own: SLURM_CONF can name several, with colons between."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.environ["SLURM_CONF"] = CLUSTERS[_worker() % len(CLUSTERS)]


def _clusters_are_shared():
    """Say whether two processes would end each other's jobs. Root starts a cluster for each."""
    if os.geteuid() == 0 and CLUSTERS == [""]:
        return False
    return len(CLUSTERS) < int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _worker():
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
