"""set_up.py download and offline: external repositories without any server."""

import os

import pytest
from support.git import Repository
from support.lab import is_told

SUBMODULE = "third party/sub"


@pytest.fixture
def carried(work, with_submodule):
    """Give a workplace where v1s was downloaded, and a function that takes the servers away."""
    servers = work.folder / "servers"

    def away(gone=True):
        other = servers.with_name("gone")
        (servers if gone else other).rename(other if gone else servers)

    def download(ref):
        work.use(ref)
        done = work.set_up("download")
        return done

    work.scratch = work.folder / "other scratch"
    work.mine = Repository(work.scratch / "project/repos/torchtitan", work.environment)
    work.bundles = work.scratch / "offline/repos"
    download("v1s")
    # another machine: nothing but what was carried
    for name in ("project", "cache"):
        (work.scratch / name).rename(work.scratch / f"{name} of the first machine")
    return work, download, away


def test_offline_clones_from_what_was_carried(carried, airgapped, run):
    work, _, away = carried
    away()
    offline = airgapped(work.command("set_up.py", "offline"))
    run(offline, env=work.environment, cwd=work.root)
    inner = Repository(work.mine.folder / SUBMODULE, work.environment)
    assert work.mine.git("describe", "--tags") == "v1s\n"
    assert work.mine.git("remote", "get-url", "origin").strip() == work.url
    assert work.mine.git("status", "--porcelain") == ""
    assert inner.git("log", "--format=%s") == "first\n"
    assert inner.git("remote", "get-url", "origin").startswith("file://")
    done = run(offline, env=work.environment, cwd=work.root)
    assert "torchtitan is up to date" in done.stderr


def test_offline_moves_what_is_there_with_the_changes_on_top(carried):
    work, download, away = carried
    work.set_up("offline")
    mine = work.mine
    inner = Repository(mine.folder / SUBMODULE, work.environment)
    mine.commit("mine", mine__py="x\n")
    mine.replace("model.py", "line 5\n", "line five\n")
    download("v2s")
    away()
    work.set_up("offline")
    assert mine.git("log", "-2", "--format=%s") == "mine\nnewer submodule\n"
    assert mine.git("status", "--porcelain") == " M model.py\n"
    assert "line 25!\n" in (inner.folder / "model.py").read_text()


def test_second_download_writes_nothing(carried):
    work, download, _ = carried
    bundle = work.bundles / "torchtitan.bundle"
    before = os.stat(bundle)
    download("v1s")
    assert os.stat(bundle) == before
    assert (work.bundles / f"torchtitan/{SUBMODULE}.bundle").exists()


def test_damaged_and_missing_bundles_are_told(carried):
    work, _, _ = carried
    bundle = work.bundles / "torchtitan.bundle"
    os.truncate(bundle, bundle.stat().st_size - 100)
    is_told(work.set_up("offline", check=False), "git cannot fetch /", "python3 set_up.py download")
    assert not work.mine.folder.exists()
    bundle.unlink()
    is_told(work.set_up("offline", check=False), "bundle not found: ", "python3 set_up.py download")


def test_commit_that_no_branch_holds(work):
    work.use()
    work.upstream.git("checkout", "-q", "--detach", "v1")
    commit = work.upstream.commit("on no branch", lost__py="x\n")
    work.upstream.git("checkout", "-q", "main")
    mine = work.install(ref=commit)
    assert mine.head() == commit
    work.set_up("download")
    (work.scratch / "project").rename(work.scratch / "project of the first machine")
    work.set_up("offline")
    assert mine.head() == commit
