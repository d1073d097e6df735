"""Skip a test with a reason when the machine lacks what it needs; with ``--no-skip``, fail it.

A test says ``@pytest.mark.needs("apptainer")``, a fixture calls ``require("apptainer")``. The names
are those of ``tests/install_tools.sh --list``; any other name is a program on PATH.
"""

import collections
import functools
import glob
import os
import shutil
import subprocess
from pathlib import Path

import pytest

EXTRAS = Path(__file__).resolve().parents[2] / "extras"
INSTALL_TOOLS = Path(__file__).resolve().parents[1] / "install_tools.sh"


def pytest_addoption(parser):
    parser.addoption(
        "--no-skip",
        action="store_true",
        help="what is missing on this machine fails a test instead of skipping it",
    )


def pytest_collection_modifyitems(config, items):
    """Leave tests out that need what no command installs here, such as a GPU."""
    config.stash[left_out] = []
    for marker, (what, is_there) in _ONLY_WHERE.items():
        lacking = [item for item in items if item.get_closest_marker(marker)]
        if lacking and not is_there():
            items[:] = [item for item in items if item not in lacking]
            config.hook.pytest_deselected(items=lacking)
            config.stash[left_out].append(f"{len(lacking)} tests left out: no {what} here")
    lacking = [item for item in items if _lacks_extras(item)]
    if lacking:
        items[:] = [item for item in items if item not in lacking]
        config.hook.pytest_deselected(items=lacking)
        config.stash[left_out].append(f"{len(lacking)} tests left out: of extras that are removed")


def _lacks_extras(item):
    """Say whether a test asks for extras that this clone lacks; one without names, for any."""
    names = [name for marker in item.iter_markers("extras") for name in marker.args or ("",)]
    return not all((EXTRAS / name).is_dir() for name in names)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # below the list of what failed
def pytest_terminal_summary(terminalreporter, config):
    """Tell what was skipped, a line for each reason: the same program enables many tests."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = collections.Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count} test{'s'[: count > 1]}: {reason}")
    for line in config.stash.get(left_out, []):
        terminalreporter.write_line(line)


def pytest_runtest_setup(item):
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            _skip_without(name, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With ``--no-skip`` no skip counts as passed, whoever asked for it."""
    report = yield
    if item.config.getoption("no_skip") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        if isinstance(report.longrepr, tuple):
            report.longrepr = str(report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def require(pytestconfig):
    """Give a function that skips the test unless all names are there, or fails it instead."""

    def check(*names):
        for name in names:
            _skip_without(name, pytestconfig)

    return check


left_out = pytest.StashKey()


def _skip_without(name, config):
    reason = missing(name)
    if reason is None:
        return
    if config.getoption("no_skip"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def missing(name):
    """Say why `name` cannot be used on this machine and which command mends it, or give None."""
    if name in _tools():
        absent = _output("bash", INSTALL_TOOLS, "--missing", name)
        if absent:
            return f"needs {name}; missing: {absent}. Install: sudo tests/install_tools.sh {name}"
    elif shutil.which(name) is None:
        return f"needs the program {name}, which this machine does not have"
    return _unusable(name)


# Debian has no enroot; it is on the sites that use it.
_ONLY_WHERE = {
    "gpu": ("GPU", lambda: glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/kfd")),
    "enroot": ("enroot", lambda: shutil.which("enroot")),
    "only_root": ("rights of root", lambda: os.geteuid() == 0),
}


def _unusable(name):
    """Say why what is installed cannot be used, and what mends it."""
    # root starts a daemon or a cluster of its own, see docker_environment and slurm_cluster
    is_root = os.geteuid() == 0
    if name == "docker" and not is_root and not _succeeds("docker", "version"):
        return (
            "needs a docker daemon, and none answers (`docker version`). Start one: sudo "
            "tests/integration/servers/dockerd.sh start FOLDER $(id -gn), then export DOCKER_HOST"
        )
    if name == "slurm" and not is_root and not cluster_answers():
        return (
            "needs a Slurm for tests, and SLURM_CONF names none that answers (`sinfo`). Start one: "
            "sudo tests/integration/servers/slurm.sh start FOLDER, then export SLURM_CONF"
        )
    if name in ("apptainer", "fuse") and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return (
            "needs /dev/fuse, which this user may not open. Mend: sudo tests/install_tools.sh fuse"
        )
    unshare = ("unshare", "--user", "--map-root-user", "--net", "true")
    if name in ("apptainer", "namespaces") and not _succeeds(*unshare):
        return (
            "needs user namespaces, which this machine refuses to ordinary users. Mend: "
            "sudo sysctl user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1"
        )
    if name in ("podman", "mmdebstrap") and not is_root:
        user = _output("id", "-un")
        for table in map(Path, ("/etc/subuid", "/etc/subgid")):
            if not table.exists() or f"\n{user}:" not in f"\n{table.read_text()}":
                return (
                    f"{name} needs a range of user ids for {user} in {table}. Mend: sudo usermod "
                    f"--add-subuids 200000-265535 --add-subgids 200000-265535 {user}"
                )
    return None


def cluster_answers():
    """Say whether SLURM_CONF names a running cluster of slurm.sh.

    No other cluster will do: on a site's login node the tests' jobs would be paid for.
    """
    settings = os.environ.get("SLURM_CONF", "")
    if not os.access(settings, os.R_OK):
        return False
    return "ClusterName=longship" in Path(settings).read_text().split() and _succeeds("sinfo")


@functools.cache
def _tools():
    return frozenset(_output("bash", INSTALL_TOOLS, "--list").split())


def _output(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _succeeds(*argv):
    try:
        return subprocess.run(argv, capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
