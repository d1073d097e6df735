"""Models and datasets: the real huggingface_hub, and a server that stands for the hub."""

import os
import random
import re
import shutil
import signal
import stat
from pathlib import Path

import pytest
from support import cache, processes
from support.environments import SECRET
from support.hub import TOKEN, Repo, running_hub
from support.lab import fill, is_told
from support.repository import toml
from support.tiers import slow

from lib import ROOT
from lib.assets.assets import asset_download_lines, asset_offline_lines
from lib.configuration.layers import load_settings
from lib.configuration.paths import derive_paths
from lib.configuration.sites import own_arch
from lib.script.command import assign, call
from lib.script.render import render

METRIC = {
    "tiny.py": b"""\
import datasets, evaluate
from .parts import same
class Tiny(evaluate.Metric):
    def _info(self):
        features = {name: datasets.Value("string") for name in ("predictions", "references")}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(features)
        )
    def _compute(self, predictions, references):
        return {"tiny": sum(map(same, predictions, references)) / len(references)}
""",
    "parts.py": b"def same(a, b):\n    return a == b\n",
    "README.md": b"a metric",
}
SECONDS = 300  # what a test waits for at most
LARGE = random.Random(0).randbytes(2_000_000)
FILES = {"config.json": b'{"a": 1}', "a folder/model.bin": LARGE, "README.md": b"hello"}


@pytest.fixture(scope="session")
def hub_venv(session_environment):
    """Give a venv with huggingface_hub, fetched from the package index once."""

    pins = Path(ROOT, "lib/assets/inside/hub.txt")

    def build(partial):
        processes.run(["/usr/bin/python3", "-m", "venv", partial], env=session_environment)
        install = [partial / "bin/python", "-m", "pip", "install", "--quiet", "-r", pins]
        processes.run(install, env=session_environment)

    return cache.cached(f"huggingface_hub-{cache.fingerprint(pins)}", build)


@pytest.fixture
def hub():
    with running_hub() as hub:
        repo = hub.repos["lab/tiny"] = Repo()
        repo.old = repo.commit({"config.json": b"old"})
        repo.new = repo.commit(FILES)
        hub.repos["datasets/lab/text"] = Repo()
        hub.repos["datasets/lab/text"].commit({"train.jsonl": b'{"text": "a"}\n'})
        hub.repos["spaces/evaluate-metric/tiny"] = Repo()
        hub.repos["spaces/evaluate-metric/tiny"].commit(METRIC)
        hub.repos["lab/gated"] = Repo(gated=True)
        hub.repos["lab/gated"].commit({"config.json": b"{}"})
        yield hub


@pytest.fixture
def make(make_clone, tmp_path, hub, hub_venv):
    """Give a function that makes a clone with assets, which finds the hub."""

    def make(text, folder=tmp_path, runtime="host", scratch=None):
        clone = make_clone(folder, runtime)
        configuration = (clone.root / "configuration.toml").read_text()
        if runtime != "host":
            bind = f"[container]\nbinds = [{toml(hub_venv)}]\n"
            configuration = configuration.replace("[container]\n", bind)
        if scratch:
            configuration = configuration.replace(str(clone.scratch), str(scratch))
            clone.scratch = scratch
        clone.configure(configuration + text)
        tools = clone.scratch / f"tools_{own_arch()}"
        tools.mkdir(parents=True)
        (tools / "hub").symlink_to(hub_venv)
        clone.environment = {**clone.environment, **hub.environment}
        return clone

    return make


def asset(repo="lab/tiny", more=""):
    return f'[[assets]]\nrepo = "{repo}"\n{more}'


def find(clone, repo, *more, wrap=list, check=True):
    """Let the libraries find it offline, as a program inside does; return its folder."""
    python = str(clone.scratch / f"tools_{own_arch()}/hub/bin/python")
    code = "import sys, huggingface_hub as h; print(h.snapshot_download(*sys.argv[1:2], %s))"
    options = ", ".join(f"{key}={value!r}" for key, value in more)
    command = clone.command("container_run.py", python, "-c", code % options, repo)
    done = processes.run(wrap(command), env=clone.environment, cwd=clone.root, check=check)
    return done.stdout.rstrip("\n")


def content(folder):
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(path, name)
            with open(file, "rb") as opened:
                found[os.path.relpath(file, folder)] = opened.read()
    return found


def test_asset_is_fetched_once_and_found_offline_by_name_and_revision(make, hub, airgapped):
    clone = make(asset() + asset("lab/text", 'kind = "dataset"\n'))
    done = clone.set_up("install")
    commit = hub.repos["lab/tiny"].new
    assert "[1/2] Downloading the model lab/tiny, main" in done.stderr
    assert f'to keep this version, set: revision = "{commit}"' in done.stderr
    assert content(find(clone, "lab/tiny", wrap=airgapped)) == FILES
    assert content(find(clone, "lab/tiny", ("revision", commit))) == FILES
    assert "train.jsonl" in content(find(clone, "lab/text", ("repo_type", "dataset")))
    hub.asked.clear()
    shutil.rmtree(clone.scratch / f"tools_{own_arch()}")  # nothing is started for it either
    done = clone.set_up("install")
    assert hub.asked == []
    assert done.stderr.count(" is already ") == 2


def test_pinned_commit_is_what_the_name_alone_means(make, hub):
    old = hub.repos["lab/tiny"].old
    clone = make(asset(more=f'revision = "{old}"\n'))
    done = clone.set_up("install")
    assert "to keep this version, set" not in done.stderr
    assert content(find(clone, "lab/tiny")) == {"config.json": b"old"}


def test_patterns_choose_the_files_and_the_folder_counts_as_complete(make, hub):
    clone = make(asset(more='include = ["*.json", "*.md"]\nexclude = ["README*"]\n'))
    clone.set_up("install")
    assert hub.sent() == ["config.json"]
    assert content(find(clone, "lab/tiny")) == {"config.json": FILES["config.json"]}


def test_connection_that_breaks_off_is_resumed(make, hub):
    large = random.Random(1).randbytes(25_000_000)
    hub.repos["lab/tiny"].commit({"model.bin": large})
    hub.cut = 22_000_000
    clone = make(asset())
    clone.set_up("install")
    assert content(find(clone, "lab/tiny")) == {"model.bin": large}
    resumed = [range for _, _, range in hub.asked if range]
    assert len(resumed) == 1 and resumed[0] >= "bytes=10000000-"  # it writes 10 MB at a time


def test_half_an_asset_is_not_complete_without_the_hub(make, hub):
    """huggingface_hub before 1.28 returned what it had."""
    clone = make(asset())
    clone.set_up("install")
    os.unlink(os.path.join(find(clone, "lab/tiny"), "config.json"))
    done = clone.set_up("install", env={"HF_ENDPOINT": "http://127.0.0.1:9"}, check=False)
    is_told(done, "cannot download the model lab/tiny, main", "hf's output above")


def test_deleted_file_is_fetched_again(make, hub):
    clone = make(asset())
    clone.set_up("install")
    os.unlink(os.path.realpath(os.path.join(find(clone, "lab/tiny"), "config.json")))
    hub.asked.clear()
    clone.set_up("install")
    assert hub.sent() == ["config.json"]
    assert content(find(clone, "lab/tiny")) == FILES


def spoil(file, kind):
    """Damage a file in its place, as a full disk, a purge or a program can."""
    file, times = Path(os.path.realpath(file)), file.stat()
    file.write_bytes({"cut short": LARGE[:-1], "empty": b"", "changed": LARGE[::-1]}[kind])
    if kind != "changed":  # as a copy that keeps the times
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("kind", ["cut short", "empty", "changed"])
def test_damaged_file_is_fetched_again(kind, make, hub):
    clone = make(asset())
    clone.set_up("install")
    folder = Path(find(clone, "lab/tiny"))
    for path in folder.rglob("*.*"):
        os.utime(path)  # as against a purge: newer than the record, and unchanged
    spoil(folder / "a folder/model.bin", kind)
    hub.asked.clear()
    done = clone.set_up("install")
    assert hub.sent() == ["a folder/model.bin"]
    assert "a folder/model.bin is damaged; downloading it again" in done.stderr
    assert content(find(clone, "lab/tiny")) == FILES
    assert "is already downloaded" in clone.set_up("install").stderr
    assert hub.sent() == ["a folder/model.bin"]


def test_file_that_was_damaged_before_is_not_recorded(make, hub):
    """Another revision has the same file, which huggingface_hub takes unread."""
    clone = make(asset())
    clone.set_up("install")
    spoil(Path(find(clone, "lab/tiny"), "a folder/model.bin"), "changed")
    commit = hub.repos["lab/tiny"].commit({**FILES, "README.md": b"new"}, "new")
    clone.configure((clone.root / "configuration.toml").read_text() + f'revision = "{commit}"\n')
    is_told(clone.set_up("install", check=False), "a folder/model.bin is damaged", "again")
    clone.set_up("install")
    folder = find(clone, "lab/tiny", ("revision", commit))
    assert content(folder) == {**FILES, "README.md": b"new"}


@pytest.mark.parametrize(
    ("text", "env", "message", "hint"),
    [
        (asset("lab/gated"), {}, "'lab/gated' requires approval", "export HF_TOKEN=..."),
        slow(asset("lab/gated"), {"HF_TOKEN": SECRET}, "requires approval", "export HF_TOKEN"),
        slow(asset("lab/none"), {}, "'lab/none' not found", "hf's output above"),
        slow(asset(more='revision = "v9"\n'), {}, "Revision not found", "hf's output above"),
        (asset(more='include = ["*.x"]\n'), {}, "select no file of lab/tiny", "include and"),
        (
            asset(),
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "Connection refused",
            "set_up.py download --machine local; then here: python3 set_up.py offline",
        ),
    ],
)
def test_what_is_wrong_is_told_with_hfs_own_words(text, env, message, hint, make):
    clone = make(text)
    done = clone.set_up("install", env=env, check=False)
    is_told(done, "select no file" if "include" in text else "cannot download the model", hint)
    assert message in done.stderr and "Traceback" not in done.stderr
    assert SECRET not in done.stderr
    assert not list(clone.scratch.glob("cache/huggingface/longship/*"))


def test_gated_asset_is_fetched_with_the_token_of_the_file_and_the_token_stays_there(make):
    clone = make(asset("lab/gated"))
    file = os.path.join(clone.environment["HOME"], ".cache/huggingface/token")
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "w") as opened:
        opened.write(f"{TOKEN}\n")
    try:
        clone.set_up("install")
        assert TOKEN not in clone.dry_run("set_up.py")
        for path, text in content(clone.scratch / "cache/huggingface").items():
            assert TOKEN.encode() not in text, path
    finally:
        os.unlink(file)  # the home folder is the session's


def test_full_disk_is_told_and_the_next_call_goes_on(make, hub, small_disk, tmp_path):
    disk = small_disk(4)
    clone = make(asset(), scratch=disk / "scratch")
    ballast = fill(disk, leave=1_000_000)
    done = clone.set_up("install", check=False)
    is_told(done, "No space left on device", "free some space")
    assert not list(clone.scratch.glob("cache/huggingface/longship/*.asset*"))
    ballast.unlink()
    clone.set_up("install")
    assert content(find(clone, "lab/tiny")) == FILES


@pytest.mark.slow  # pip installs it: all the other tests
def test_huggingface_hub_is_fetched_where_there_is_none(make, hub):
    clone = make(asset())
    (clone.scratch / f"tools_{own_arch()}/hub").unlink()
    done = clone.set_up("install", env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}, check=False)
    is_told(done, "cannot install huggingface_hub", "check the network")
    clone.set_up("install")
    assert content(find(clone, "lab/tiny")) == FILES


@pytest.fixture
def stuck(make, hub):
    """Give a clone and its installation, which waits in the middle of a file."""
    hub.hold.clear()
    clone = make(asset())
    process = clone.start("set_up.py", "install", cwd=clone.root)
    assert hub.held.wait(SECONDS)
    yield clone, process
    processes.end_group(process)
    process.communicate()
    hub.hold.set()


def test_ctrl_c_names_the_step_and_the_next_call_goes_on(stuck, hub):
    clone, process = stuck
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "error: interrupted in step 1/1, Downloading the model lab/tiny, main" in errors
    assert "hint: no work is lost; resume with: python3 set_up.py install" in errors
    assert "Traceback" not in errors
    hub.hold.set()
    clone.set_up("install")
    assert content(find(clone, "lab/tiny")) == FILES


def test_two_at_once_fetch_once(stuck, hub):
    clone, process = stuck
    second = clone.start("set_up.py", "install", cwd=clone.root)
    assert "waiting for " in second.stderr.readline()
    hub.hold.set()
    for each in (process, second):
        _, errors = each.communicate(timeout=SECONDS)
        assert each.returncode == 0, errors
    assert sorted(hub.sent()) == sorted(FILES)
    assert not list(clone.scratch.glob("cache/huggingface/longship/*.lock*"))


def test_hub_that_the_user_names_is_asked_from_within_a_container(make, hub):
    clone = make(asset(), runtime="apptainer")
    clone.set_up("install")
    assert content(find(clone, "lab/tiny")) == FILES


# To a machine without network


def script(clone, lines):
    """Give the script that set_up.py makes of such lines."""
    settings = load_settings(clone.root, {}, clone.environment)
    start = [
        assign("longship_library", clone.root / "lib"),
        call("on_interrupt", "python3 set_up.py"),
    ]
    return render("test", [*start, *lines(settings, derive_paths(settings))])


def run_lines(clone, lines, wrap=list, **options):
    command = wrap(["bash", "-c", script(clone, lines)])
    return processes.run(command, env=clone.environment, **options)


@pytest.fixture
def carried(make, tmp_path):
    """Give a clone to which another one's download was copied, as plain files are."""
    text = asset() + asset("lab/text", 'kind = "dataset"\n')
    connected = make(text, tmp_path / "connected")
    run_lines(connected, asset_download_lines)
    there = connected.scratch / "offline/assets"
    for path, folders, names in os.walk(there):
        for name in [*folders, *names]:
            mode = os.lstat(os.path.join(path, name)).st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    clone = make(text, tmp_path / "target")
    shutil.copytree(there, clone.scratch / "offline/assets")
    return clone


def test_what_was_downloaded_is_found_without_a_network(carried, hub, airgapped):
    hub.asked.clear()
    run_lines(carried, asset_offline_lines, airgapped)
    assert content(find(carried, "lab/tiny", wrap=airgapped)) == FILES
    commit = hub.repos["lab/tiny"].new
    assert content(find(carried, "lab/tiny", ("revision", commit), wrap=airgapped)) == FILES
    assert "train.jsonl" in content(find(carried, "lab/text", ("repo_type", "dataset")))
    again = run_lines(carried, asset_offline_lines, airgapped)
    assert "[1/2]" not in again.stderr and again.stderr.count(" is already ") == 2
    shutil.rmtree(carried.scratch / "offline")  # the cache does not need it
    assert content(find(carried, "lab/tiny", wrap=airgapped)) == FILES
    run_lines(carried, asset_offline_lines, airgapped)
    assert hub.asked == []


@pytest.mark.parametrize("kind", ["cut short", slow("empty"), "changed"])
def test_download_renews_a_damaged_copy(kind, make):
    clone = make(asset())
    run_lines(clone, asset_download_lines)
    (file,) = clone.scratch.glob("offline/assets/models--lab--tiny/*/a folder/model.bin")
    spoil(file, kind)  # and with it the cache: it is a hard link
    run_lines(clone, asset_download_lines)
    assert file.read_bytes() == LARGE
    assert "is already downloaded" in run_lines(clone, asset_download_lines).stderr


@pytest.mark.parametrize("kind", ["cut short", slow("empty"), "changed"])
def test_file_that_is_damaged_in_the_cache_is_copied_again(kind, carried, hub):
    run_lines(carried, asset_offline_lines)
    file = Path(find(carried, "lab/tiny"), "a folder/model.bin")
    shutil.copy2(file, carried.scratch / "of its own")
    os.replace(carried.scratch / "of its own", file)
    spoil(file, kind)
    run_lines(carried, asset_offline_lines)
    assert content(find(carried, "lab/tiny")) == FILES


def damage(carried, kind):
    folder = next(carried.scratch.glob("offline/assets/models--lab--tiny/*"))
    record = next(carried.scratch.glob("offline/assets/models--lab--tiny-*.asset"))
    file = folder / "a folder/model.bin"
    if kind == "cut short":
        file.write_bytes(file.read_bytes()[:-1])
    elif kind == "missing":
        file.unlink()
    elif kind == "record cut short":
        record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    elif kind == "outside":
        record.write_text(record.read_text().replace("README.md", "../README.md"))
    else:
        record.unlink()


@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        ("cut short", "model.bin is truncated or damaged", "copy it again"),
        slow("missing", "model.bin is missing", "copy it again"),
        ("record cut short", ".asset is truncated", "copy it again"),
        ("outside", "lists files outside of its directory", "do not use it"),
        slow("no record", "asset lab/tiny has not been downloaded", "python3 set_up.py download"),
    ],
)
def test_bad_copy_is_told_and_nothing_of_it_is_taken(kind, message, hint, carried):
    damage(carried, kind)
    is_told(run_lines(carried, asset_offline_lines, check=False), message, hint)
    assert not list(carried.scratch.glob("cache/huggingface/hub/models*/snapshots/*"))
    assert find(carried, "lab/tiny", check=False) == ""


@pytest.mark.slow  # as on the connected machine above
def test_full_disk_of_the_target_is_told(carried, small_disk):
    disk = small_disk(3)
    text = (carried.root / "configuration.toml").read_text()
    more = f'[environment.set]\nHF_HOME = "{disk}/hf"\n'
    carried.configure(text + more)
    ballast = fill(disk, leave=1_000_000)
    done = run_lines(carried, asset_offline_lines, check=False)
    is_told(done, "No space left on device", "free some space")
    assert not list(disk.glob("hf/hub/models*/snapshots/*"))
    ballast.unlink()
    run_lines(carried, asset_offline_lines)  # copies, as links do not lead to another file system
    assert content(next(disk.glob("hf/hub/models*/snapshots/*"))) == FILES


# Code of the hub, which the libraries import


REMOTE = {
    "config.json": b'{"auto_map": {"AutoConfig": "lab/code--tiny.TinyConfig"}, "size": 3}',
}
CODE = {
    "tiny.py": b"""\
import transformers
class TinyConfig(transformers.PretrainedConfig):
    model_type = "tiny"
""",
}
LOAD = """
import evaluate, transformers
print(evaluate.load("tiny").compute(predictions=["a", "b"], references=["a", "c"]))
configuration = transformers.AutoConfig.from_pretrained("lab/remote", trust_remote_code=True)
print(type(configuration).__name__, configuration.size)
"""


@pytest.fixture(scope="session")
def libraries(root, session_environment):
    """Give a venv with evaluate and transformers, in the versions of the stack evaluate."""
    file = root / "stacks/evaluate/requirements.txt"
    pins = [
        each for each in file.read_text().split() if re.match("(transformers|datasets)==", each)
    ]

    def build(partial):
        processes.run(["/usr/bin/python3", "-m", "venv", partial], env=session_environment)
        install = [partial / "bin/python", "-m", "pip", "install", "--quiet", "evaluate==0.4.6"]
        processes.run([*install, *pins], env=session_environment)

    return cache.cached(f"libraries-{cache.fingerprint(*pins)}", build)


@pytest.mark.slow  # as files above, by real libraries
def test_code_of_metrics_and_models_is_found_without_a_network(
    make, hub, libraries, airgapped, tmp_path
):
    hub.repos["lab/remote"], hub.repos["lab/code"] = Repo(), Repo()
    hub.repos["lab/remote"].commit(REMOTE)
    hub.repos["lab/code"].commit(CODE)
    metric = asset("evaluate-metric/tiny", 'kind = "space"\n')
    text = metric + asset("lab/remote") + asset("lab/code")
    connected = make(text, tmp_path / "connected")
    run_lines(connected, asset_download_lines)
    clone = make(text, tmp_path / "target")
    shutil.copytree(connected.scratch / "offline/assets", clone.scratch / "offline/assets")
    for _ in range(2):
        run_lines(clone, asset_offline_lines, airgapped)
    command = clone.command("container_run.py", str(libraries / "bin/python"), "-c", LOAD)
    done = processes.run(airgapped(command), env=clone.environment, cwd=clone.root)
    assert done.stdout == "{'tiny': 0.5}\nTinyConfig 3\n"
