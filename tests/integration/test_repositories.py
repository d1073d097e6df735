"""set_up.py install, update, save-patches: external repositories, with real git."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from support import processes
from support.git import Repository, configuration, restore_saved
from support.lab import is_told
from support.terminal import Terminal


def test_install_clones_at_the_configured_ref(work):
    mine = work.install()
    assert mine.head() == work.upstream.head("v1")
    assert mine.files() == work.upstream.files()
    assert mine.git("status", "--short") == ""


def test_second_install_leaves_the_users_code_alone(work):
    mine = work.install()
    mine.commit("mine", mine__py="x = 1\n")
    mine.write("model.py", "changed\n")
    before = mine.state()
    done = work.set_up("install")
    assert mine.state() == before
    assert done.stderr == ""


def test_update_replays_everything(work):
    mine = work.install()
    mine.git("checkout", "-q", "-b", "my-branch")
    mine.commit("[WIP] my commit", mine__py="x = 1\n")
    mine.replace("model.py", "line 5\n", "line five\n")
    mine.git("add", "model.py")
    mine.replace("data.py", "line 5\n", "LINE 5\n")
    mine.write("notes/it's new.txt", "untracked\n", 0o600)
    mine.write("image.bin", bytes(range(256)) * 9)
    mine.git("add", "image.bin")
    mine.write("image.bin", bytes(reversed(range(256))) * 9)
    (mine.folder / "run.sh").chmod(0o644)
    work.release(model__py=("line 25\n", "line 25!\n"), data__py=("line 25\n", "line 25!\n"))
    shown = ["status", "--porcelain"], ["diff", "--stat"], ["diff", "--cached", "--stat"]
    before = [mine.git(*each) for each in shown]
    done = work.update()
    assert [mine.git(*each) for each in shown] == before
    assert mine.git("log", "--format=%s|%an") == (
        "[WIP] my commit|A. Nordic\nv2|A. Nordic\nfirst|A. Nordic\n"
    )
    assert mine.git("symbolic-ref", "HEAD") == "refs/heads/my-branch\n"
    text = (mine.folder / "model.py").read_text()
    assert "line five\n" in text and "line 25!\n" in text
    assert (mine.folder / "image.bin").read_bytes() == bytes(reversed(range(256))) * 9
    note = mine.folder / "notes/it's new.txt"
    assert note.read_text() == "untracked\n" and note.stat().st_mode & 0o777 == 0o600
    (saved,) = mine.refs("saved")
    assert saved in done.stderr and "v1-1-g" in done.stderr and "-> v2" in done.stderr
    assert not work.second.folder.exists()
    done = work.update()
    assert done.stderr == "[1/1] Updating torchtitan\ntorchtitan is up to date: v2\n"


def test_saved_commit_gives_the_changes_back(work):
    mine = work.install()
    mine.commit("mine", mine__py="x = 1\n")
    mine.replace("model.py", "line 5\n", "line five\n")
    mine.git("add", "model.py")
    mine.replace("model.py", "line 9\n", "line nine\n")
    mine.write("new.bin", bytes(range(256)))
    before = mine.state()
    work.release(data__py=("line 25\n", "line 25!\n"))
    work.update()
    again = restore_saved(mine, work.folder / "again")
    files, staged, _, head = again.state()
    assert (files, staged, head) == (before[0], before[1], before[3])


def test_conflict_stops_and_can_be_taken_back(work):
    mine = work.install()
    mine.replace("model.py", "line 5\n", "mine\n")
    mine.write("new.py", "new\n")
    mine.git("add", "new.py")
    before = mine.state()
    work.release(model__py=("line 5\n", "theirs\n"))
    is_told(work.update(check=False), "conflicts in model.py", "--continue")
    assert mine.state() == before
    assert "<<<<<<<" in (work.second.folder / "model.py").read_text()
    assert "model.py" in work.second.git("diff", "--name-only", "--diff-filter=U")
    is_told(work.update(check=False), "waiting for you", "--abort")
    is_told(work.set_up("install", check=False), "waiting for you", "--abort")
    is_told(work.set_up("save-patches", check=False), "waiting for you", "--abort")
    is_told(work.update("--continue", check=False), "unresolved conflicts in model.py", "--abort")
    work.update("--abort")
    assert mine.state() == before
    assert not work.second.folder.exists()
    is_told(work.update("--abort", check=False), "no update in progress", "update")


def test_hints_name_the_stack_of_the_command_line(work):
    mine = work.install()
    stack = ("--stack", "pytorch")
    done = work.update("--abort", *stack, check=False)
    is_told(done, "no update in progress", "python3 set_up.py --stack=pytorch update")
    mine.replace("model.py", "line 5\n", "mine\n")
    work.release(model__py=("line 5\n", "theirs\n"))
    done = work.update(*stack, check=False)
    is_told(done, "conflicts in model.py", "python3 set_up.py --stack=pytorch update --continue")
    assert "on_interrupt 'python3 set_up.py update --stack pytorch'" in (
        work.update(*stack, "--dry-run").stdout
    )


def test_resolved_conflict_goes_on_and_the_index_is_as_it_was(work):
    mine = work.install()
    mine.write("staged.py", "staged\n")
    mine.git("add", "staged.py")
    mine.replace("model.py", "line 5\n", "mine\n")
    work.release(model__py=("line 5\n", "theirs\n"))
    is_told(
        work.update(check=False),
        "cannot apply your uncommitted changes to the new version",
        "--abort",
    )
    work.second.write("model.py", "resolved\n")
    work.second.git("add", "model.py")
    work.update("--continue")
    assert mine.git("status", "--porcelain") == " M model.py\nA  staged.py\n"
    assert (mine.folder / "model.py").read_text() == "resolved\n"
    assert mine.head() == work.upstream.head("v2")


def conflict_in_files(work, **release):
    """Stop at an edit that is not committed."""
    mine = work.install()
    mine.replace("model.py", "line 5\n", "mine\n")
    work.release(model__py=("line 5\n", "theirs\n"), **release)
    is_told(work.update(check=False), "conflicts in model.py", "--continue")
    return mine


def resolve(work):
    work.second.write("model.py", "resolved\n")
    work.second.git("add", "model.py")


def test_conflict_that_the_user_commits_is_resolved(work):
    mine = conflict_in_files(work)
    work.second.commit("resolved", model__py="resolved\n")
    work.update("--continue")
    assert mine.git("status", "--porcelain") == " M model.py\n"
    assert (mine.folder / "model.py").read_text() == "resolved\n"


@pytest.mark.parametrize("name", ["new.py", "data.py"])
def test_what_is_not_staged_in_a_resolution_is_told(name, work):
    mine = conflict_in_files(work)
    resolve(work)
    work.second.write(name, "for the resolution\n")
    is_told(work.update("--continue", check=False), f"not staged in {name}", "git add")
    work.second.git("add", name)
    work.update("--continue")
    assert (mine.folder / name).read_text() == "for the resolution\n"


def test_edits_during_a_conflict_are_replayed_too(work):
    mine = conflict_in_files(work, data__py=("line 25\n", "25\n"))
    mine.replace("data.py", "line 5\n", "while it waited\n")
    resolve(work)
    work.update("--continue")
    text = (mine.folder / "data.py").read_text()
    assert "while it waited\n" in text and "\n25\n" in text
    assert (mine.folder / "model.py").read_text() == "resolved\n"
    (saved,) = mine.refs("saved")
    assert "while it waited\n" in mine.git("show", f"{saved}:data.py")


def test_commit_during_a_conflict_is_not_mixed_up(work):
    mine = conflict_in_files(work)
    mine.commit("while it waited")
    before = mine.state()
    resolve(work)
    is_told(work.update("--continue", check=False), "you have committed or staged", "--abort")
    work.update("--abort")
    assert mine.state() == before


def conflict_in_commit(work):
    """Stop at the first of two commits of the user's."""
    mine = work.install()
    mine.git("checkout", "-q", "-b", "my-branch")
    mine.replace("model.py", "line 5\n", "mine\n")
    mine.commit("first of mine")
    mine.commit("second of mine", second__py="x\n")
    mine.write("third.py", "not committed\n")
    before = mine.state()
    work.release(model__py=("line 5\n", "theirs\n"))
    is_told(
        work.update(check=False),
        '"first of mine" to the new version: conflicts in model.py',
        "--continue",
    )
    return mine, before


def test_conflict_in_a_commit_is_taken_back(work):
    mine, before = conflict_in_commit(work)
    work.update("--abort")
    assert mine.state() == before


def test_conflict_in_a_commit_is_resolved(work):
    mine, before = conflict_in_commit(work)
    assert mine.state() == before
    resolve(work)
    work.update("--continue")
    assert mine.git("log", "--format=%s") == "second of mine\nfirst of mine\nv2\nfirst\n"
    assert mine.git("symbolic-ref", "--short", "HEAD") == "my-branch\n"
    assert mine.git("status", "--porcelain") == "?? third.py\n"


def test_commit_that_the_user_gives_up_is_told(work):
    mine, _ = conflict_in_commit(work)
    work.second.git("reset", "-q", "--hard")
    done = work.update("--continue")
    assert '"first of mine" was left out; see: refs/longship/saved/' in done.stderr
    assert mine.git("log", "--format=%s") == "second of mine\nv2\nfirst\n"


def test_commit_that_upstream_has_taken_is_left_out(work):
    mine = work.install()
    mine.commit("mine", model__py="taken\n")
    work.release(model__py="taken\n", other__py="x\n")
    assert '"mine" is already in the new version' in work.update().stderr
    assert mine.head() == work.upstream.head("v2")


def test_history_with_merges_is_replayed_as_one(work):
    mine = work.install()
    mine.git("checkout", "-q", "-b", "mine")
    mine.git("checkout", "-q", "-b", "side")
    mine.commit("side", side__py="side\n")
    mine.git("checkout", "-q", "mine")
    mine.commit("other", other__py="other\n")
    mine.git("merge", "-q", "--no-edit", "side")
    mine.write("other.py", "a fix that only the merge has\n")
    mine.git("commit", "-q", "--amend", "--no-edit", "-a")
    work.release(model__py=("line 5\n", "theirs\n"))
    work.update()
    assert (mine.folder / "other.py").read_text() == "a fix that only the merge has\n"
    assert (mine.folder / "side.py").exists()
    assert mine.git("rev-list", "--count", "origin/main..HEAD") == "1\n"


def test_history_with_merges_stays_where_nothing_is_new(work):
    mine = work.install()
    mine.git("branch", "mine")
    mine.git("branch", "side")
    for number, branch in enumerate(["mine", "side", "mine", "side"]):  # each commit is a day later
        mine.environment["GIT_COMMITTER_DATE"] = f"2026-01-0{number + 1}T00:00:00Z"
        mine.git("checkout", "-q", branch)
        mine.commit(branch, **{f"{branch}{number}": "x\n"})
    mine.git("merge", "-q", "--no-edit", "mine")
    before = mine.state()
    assert "torchtitan is up to date" in work.update().stderr
    assert mine.state() == before


def test_untracked_file_that_upstream_has_now(work):
    mine = work.install()
    mine.write("same.py", "same\n")
    mine.write("other.py", "mine\n")
    before = mine.state()
    work.release(same__py="same\n", other__py="theirs\n")
    is_told(work.update(check=False), "conflicts in other.py", "--abort")
    work.update("--abort")
    assert mine.state() == before


def test_ignored_file_that_upstream_has_now_is_not_overwritten(work):
    mine = work.install()
    mine.write("outputs/result", "mine\n")
    mine.write("outputs/more", "mine\n")
    before = mine.state()
    work.upstream.write(".gitignore", "*.pyc\n")
    work.release(**{"outputs/result": "theirs\n"})
    is_told(work.update(check=False), "outputs/result", "mv ")
    assert mine.state() == before


def test_files_to_which_a_link_leads_stay(work):
    work.upstream.commit("with data", **{"data/empty": "", "data/x": "x\n"})
    work.upstream.git("tag", "v1d")
    mine = work.install(ref="v1d")
    elsewhere = (mine.folder / "data").rename(work.folder / "elsewhere")
    (mine.folder / "data").symlink_to(elsewhere)
    files = mine.files()
    work.release(model__py=("line 5\n", "theirs\n"))
    work.update()
    assert mine.files() == {**files, "model.py": work.upstream.files()["model.py"]}
    assert sorted(each.name for each in elsewhere.iterdir()) == ["empty", "x"]


def test_what_lies_beside_new_files_is_not_in_their_way(work):
    mine = work.install()
    mine.write("package/x.pyc", "ignored\n")
    mine.write("package/mine.py", "mine\n")
    mine.write("folder", "a file where upstream has a folder\n")
    work.release(**{"package/new.py": "new\n"})
    work.update()
    assert (mine.folder / "package/x.pyc").exists() and (mine.folder / "package/new.py").exists()
    before = mine.state()
    work.release("v3", **{"folder/new.py": "new\n"})
    is_told(work.update(check=False), "cannot apply", "--abort")
    work.update("--abort")
    assert mine.state() == before


def test_file_that_commits_add_and_take_out_again(work):
    mine = work.install()
    mine.write("secret.txt", "old\n")
    mine.replace("model.py", "line 5\n", "mine\n")
    mine.commit("with a file too many")
    mine.git("rm", "-q", "--cached", "secret.txt")
    mine.git("commit", "-q", "-m", "without it")
    mine.write("secret.txt", "newer\n")
    work.release(data__py="2\n")
    work.update()
    assert mine.git("log", "--format=%s") == "without it\nwith a file too many\nv2\nfirst\n"
    assert mine.git("status", "--porcelain") == "?? secret.txt\n"
    assert (mine.folder / "secret.txt").read_text() == "newer\n"
    mine.write(".git/info/exclude", "secret.txt\n")
    work.release("v3", data__py="3\n")
    work.update()
    assert (mine.folder / "secret.txt").read_text() == "newer\n"


def test_repository_of_the_user_where_upstream_has_a_submodule(work, with_submodule, run):
    _, _, sub = with_submodule
    work.scratch = work.folder / "other scratch"
    mine = Repository(work.scratch / "project/repos/torchtitan", work.environment)
    work.use("v1")
    work.set_up("install")
    own = Repository(mine.folder / "third party/sub", work.environment)
    run(["git", "clone", "-q", f"file://{sub.folder}", own.folder], env=own.environment)
    own.commit("precious", precious="x\n")
    before = mine.state(), own.state()
    work.use("v1s")
    is_told(work.update(check=False), "third party/sub blocks the update", "mv ")
    assert (mine.state(), own.state()) == before


def test_submodule_that_cannot_be_fetched(work, with_submodule):
    _, _, sub = with_submodule
    work.scratch = work.folder / "other scratch"
    mine = Repository(work.scratch / "project/repos/torchtitan", work.environment)
    work.use("v1")
    work.set_up("install")
    work.use("v1s")
    sub.folder.rename(sub.folder.with_name("gone"))
    is_told(work.update(check=False), "cannot fetch its submodules", "run the command again")
    mine.commit("meanwhile", meanwhile__py="x\n")
    mine.replace("model.py", "line 5\n", "mine\n")
    sub.folder.with_name("gone").rename(sub.folder)
    work.update()
    assert mine.git("log", "-1", "--format=%s") == "meanwhile\n"
    assert mine.git("status", "--porcelain") == " M model.py\n"
    assert (mine.folder / "third party/sub/model.py").exists()


def test_what_the_user_did_during_a_conflict_is_kept_when_taken_back(work):
    mine = conflict_in_files(work)
    work.second.write("model.py", "half resolved\n")
    ref = re.search(r"refs/longship/given-up/\S+", work.update("--abort").stderr)[0]
    assert mine.git("show", f"{ref}:model.py") == "half resolved\n"


def remote(mine, *push):
    mine.git("remote", "add", "mine", mine.git("remote", "get-url", "origin").strip())
    mine.git("push", "-q", "mine", *push)


@pytest.mark.parametrize(
    "push",
    [
        lambda mine: mine.git("push", "-q", "origin", "HEAD:refs/heads/alice-wip"),
        lambda mine: remote(mine, "HEAD:refs/heads/alice-wip"),
    ],
)
def test_commits_that_were_pushed_elsewhere_are_replayed(work, push):
    mine = work.install()
    mine.commit("mine", mine__py="x\n")
    push(mine)
    work.release(model__py="2\n")
    work.update()
    assert mine.git("log", "--format=%s") == "mine\nv2\nfirst\n"


def test_filter_that_changes_what_git_stores(work):
    """As of notebooks, whose output a filter takes out: the output is in no object of git's."""
    mine = work.install()
    mine.git("config", "filter.strip.clean", "sed s/OUTPUT.*/OUTPUT/")
    mine.write(".git/info/attributes", "*.py filter=strip\n")
    for name in ("model.py", "data.py", "new.py"):
        mine.write(name, "OUTPUT of three days\n")
    work.release(model__py=("line 5\n", "theirs\n"), new__py="theirs\n")
    is_told(work.update(check=False), "conflicts in model.py, new.py", "--abort")
    for name in ("model.py", "new.py"):
        work.second.write(name, "resolved\n")
        work.second.git("add", name)
    done = work.update("--continue")
    assert (mine.folder / "data.py").read_text() == "OUTPUT of three days\n"
    (ref,) = mine.refs("replaced")
    assert ref in done.stderr
    for name in ("model.py", "new.py"):
        assert (mine.folder / name).read_text() == "resolved\n"
        assert mine.git("cat-file", "blob", f"{ref}:{name}") == "OUTPUT of three days\n"


@pytest.mark.parametrize("attribute", ["filter=strip", "text", "crlf=input"])
def test_file_that_is_modified_when_it_is_checked_out(attribute, work, run):
    """As a notebook with output, a file that should be in LFS, or one with CRLF."""
    text = "OUTPUT\r\n"
    work.upstream.commit(**{"it's a": text, "b": text})
    mine = work.install(ref="main")
    mine.git("config", "filter.strip.clean", "sed s/OUTPUT.*/OUTPUT/")
    mine.write(".git/info/attributes", f"*a {attribute}\nb {attribute}\n")
    mine.replace("data.py", "line 5\n", "line five\n")
    before = mine.state()
    work.release(model__py="2\n")
    done = work.update(check=False)
    is_told(done, f"as soon as they are checked out ({attribute}", "/.git/info/attributes")
    assert "): b, it's a\n" in done.stderr
    assert mine.state() == before
    command = re.search("hint: .*?: (printf .*); then", done.stderr)[1]
    run(["bash", "-c", command], env=work.environment)
    work.update()
    assert (mine.folder / "it's a").read_bytes() == text.encode()
    assert mine.git("diff", "--name-only") == "data.py\n"


@pytest.mark.parametrize("driver", ["ours", "union"])
@pytest.mark.parametrize("saved", [False, True], ids=["commit", "patch"])
def test_no_merge_driver_decides_over_a_change(saved, driver, work):
    work.upstream.write(".gitattributes", f"model.py merge={driver}\n")
    work.upstream.commit("attributes")
    mine = work.install(ref="main")
    mine.git("config", "merge.ours.driver", "true")
    mine.replace("model.py", "line 5\n", "")
    mine.replace("model.py", "line 15\n", "line fifteen\n")
    mine.commit("mine", mine__py="x\n")
    if saved:
        work.set_up("save-patches")
    work.release(model__py=("line 5\n", "line V\n"))
    is_told(work.update(check=False), "conflicts in model.py", "--continue")
    text = (work.second.folder / "model.py").read_text()
    assert "<<<<<<< " in text and "line V\n" in text and "line fifteen\n" in text
    resolve(work)


def test_changed_url_is_taken_over(work, run):
    mine = work.install()
    mine.commit("mine", mine__py="x\n")
    fork = Repository(work.folder / "servers/fork", work.environment)
    run(["git", "clone", "-q", work.url, fork.folder], env=fork.environment)
    fork.commit("of the fork", fork__py="x\n")
    fork.git("tag", "v1-fork")
    work.use("v1-fork", url=f"file://{fork.folder}", upstream=work.url)
    done = work.update()
    assert f"before: {work.url}" in done.stderr
    assert mine.git("log", "--format=%s") == "mine\nof the fork\nfirst\n"
    assert mine.git("remote", "get-url", "upstream").strip() == work.url
    work.use("v1-fork", url=f"file://{work.folder}/nowhere")
    is_told(work.update(check=False), "git cannot fetch file://", "git ls-remote file://")
    assert mine.git("remote").split() == ["origin", "upstream"]


def test_branch_and_commit_as_refs(work):
    mine = work.install(ref="main")
    assert mine.git("symbolic-ref", "--short", "HEAD") == "main\n"
    work.release("v2", model__py="2\n")
    work.use("main")
    work.update()
    assert mine.head() == work.upstream.head("v2")
    assert mine.git("status", "-sb") == "## main...origin/main\n"
    work.use(work.upstream.head("v1"))
    work.update()
    assert mine.head() == work.upstream.head("v1")
    work.use("")
    work.update()
    assert mine.head() == work.upstream.head("main")


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_ref_that_the_server_no_longer_has_is_refused(kind, work):
    up = work.upstream
    up.git(kind, "topic")
    mine = work.install(ref="topic")
    mine.git("config", "fetch.pruneTags", "true")
    mine.git("tag", "my-tag")
    up.git(kind, "-D" if kind == "branch" else "-d", "topic")
    before = mine.state()
    is_told(work.update(check=False), "tag, branch or commit not found", "git ls-remote")
    assert mine.state() == before
    # git cannot store both names next to each other
    up.git("branch", "topic/new")
    work.use("topic/new")
    work.update()
    assert mine.git("tag", "--list", "my-tag") == "my-tag\n"


def test_commits_that_the_user_pulled_are_not_the_users(work):
    mine = work.install()
    work.release("v2", model__py="2\n")
    work.release("v3", data__py="3\n")
    mine.git("fetch", "-q")
    mine.git("checkout", "-q", "main")
    mine.git("pull", "-q", "--ff-only")
    work.use("v2")
    work.update()
    assert mine.head() == work.upstream.head("v2")
    assert mine.refs("saved") == []


def test_pushed_branch_of_the_user_is_replayed(work):
    mine = work.install()
    mine.git("checkout", "-q", "-b", "my-branch")
    mine.commit("mine", mine__py="x\n")
    mine.git("push", "-q", "-u", "origin", "my-branch")
    work.release(model__py="2\n")
    work.update()
    assert mine.git("log", "--format=%s") == "mine\nv2\nfirst\n"


def test_shallow_clone_is_completed(work, run):
    work.use()
    work.release(model__py="2\n")
    mine = work.mine
    mine.folder.parent.mkdir(parents=True)
    shallow = ["git", "clone", "-q", "--depth=1", work.url, mine.folder]
    run(shallow, env=mine.environment)
    mine.write("mine.py", "x\n")
    work.release("v3", data__py="3\n")
    work.update()
    assert mine.head() == work.upstream.head("v3")
    assert mine.git("rev-parse", "--is-shallow-repository") == "false\n"
    assert (mine.folder / "mine.py").exists()


def rebase(mine):
    mine.git("checkout", "-q", "-b", "mine")
    mine.commit("a", model__py="a\n")
    mine.git("checkout", "-q", "-b", "other", "v1")
    mine.commit("b", model__py="b\n")
    mine.git("rebase", "mine", check=False)


def merge(mine):
    mine.git("checkout", "-q", "-b", "mine")
    mine.commit("a", model__py="a\n")
    mine.git("checkout", "-q", "-b", "other", "v1")
    mine.commit("b", model__py="b\n")
    mine.git("merge", "mine", check=False)


def lock(mine):
    mine.write(".git/index.lock", "")


def look_away(mine):
    mine.write("model.py", "mine\n")
    mine.git("update-index", "--assume-unchanged", "model.py")


def narrow(mine):
    mine.git("sparse-checkout", "set", "package")  # files at the top are not hidden


@pytest.mark.parametrize(
    ("make_busy", "message"),
    [
        (rebase, "a rebase is in progress"),
        (merge, "a merge is in progress"),
        (lock, "another git process is running"),
        (look_away, "git ignores changes"),
        (narrow, "a sparse checkout cannot be updated"),
    ],
)
def test_busy_repository_is_left_alone_and_told(work, make_busy, message):
    mine = work.install()
    make_busy(mine)
    before = mine.files(), mine.git("for-each-ref")
    work.release(data__py="2\n")
    is_told(work.update(check=False), message, "")
    assert (mine.files(), mine.git("for-each-ref")) == before


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ({"ref": "v9"}, "tag, branch or commit not found in file://", "git ls-remote"),
        ({"url": "file:///nowhere/x"}, "git cannot fetch file:///nowhere/x", "git ls-remote"),
        (
            {"url": "https://127.0.0.1:9/x.git"},
            "git cannot fetch https://127",
            "set_up.py download",
        ),
    ],
)
def test_install_that_cannot_work_leaves_nothing(work, keys, message, hint):
    work.use(**{"ref": "v1", "url": work.url, **keys})
    is_told(work.set_up("install", check=False), message, hint)
    assert not work.mine.folder.exists()
    assert not list(work.mine.folder.parent.glob("*"))


def test_one_that_stops_does_not_keep_the_others(work):
    entries = [
        {"name": name, "url": work.url, "ref": ref, "install": "none"}
        for name, ref in (("one", "v1"), ("two", "v9"), ("three", "v1"))
    ]
    work.configure(configuration(work.scratch, *entries))
    done = work.set_up("install", check=False)
    assert done.returncode == 1
    assert "failed: two; the other repositories are done" in done.stderr
    assert sorted(path.name for path in work.mine.folder.parent.iterdir()) == ["one", "three"]


def test_old_contents_are_not_fetched(work):
    work.release(model__py="2\n", data__py="2\n")
    mine = work.install(ref="v2")
    missing = mine.git("rev-list", "--objects", "--all", "--missing=print")
    assert any(line.startswith("?") for line in missing.splitlines())


def test_what_is_no_repository_is_left_alone(work):
    work.mine.write("precious", "x\n")
    work.use()
    assert "is not a git repository; left unchanged" in work.set_up("install").stderr
    is_told(work.update(check=False), "is not a git repository", "mv ")
    assert (work.mine.folder / "precious").exists()


def test_large_and_nested_files_stay(work):
    mine = work.install()
    with open(mine.folder / "checkpoint", "wb") as file:
        file.truncate((100 << 20) + 1)
    nested = Repository(mine.folder / "nested", work.environment)
    nested.folder.mkdir()
    nested.git("init", "-q")
    nested.write("file", "x\n")
    work.release(model__py="2\n")
    done = work.update()
    assert (
        "checkpoint is larger than 100 MB" in done.stderr
        and "nested/ is a git repository itself" in done.stderr
    )
    assert (mine.folder / "checkpoint").stat().st_size == (100 << 20) + 1
    assert (nested.folder / "file").read_text() == "x\n"
    assert mine.head() == work.upstream.head("v2")


LOCKS = ("index", "longship-index", "HEAD", "ORIG_HEAD", "packed-refs", "config")
LOCKS += ("refs/heads/main", "refs/remotes/origin/main")


@pytest.mark.parametrize("abort", [False, True])
def test_locks_of_a_killed_update_are_removed(abort, work):
    """It was killed before its first step: all that is known is which locks were there before."""
    mine = work.install()
    own = mine.folder / ".git"
    (own / "longship-update").mkdir()
    theirs = str(own / "refs/heads/theirs.lock")
    (own / "longship-update/progress.json").write_text(json.dumps({"locks": [theirs]}))
    for name in (*LOCKS, "refs/heads/theirs"):
        (own / f"{name}.lock").parent.mkdir(parents=True, exist_ok=True)
        (own / f"{name}.lock").touch()
    work.release(data__py="2\n")
    if abort:
        work.update("--abort")
        assert not (own / "index.lock").exists()
    work.update()
    assert [path.name for path in own.rglob("*.lock")] == ["theirs.lock"]
    assert mine.head() == work.upstream.head("v2")


def test_lock_of_another_git_is_named_and_stays(work):
    mine = work.install()
    work.release(data__py="2\n")
    lock = mine.folder / ".git/index.lock"
    lock.touch()
    is_told(work.update(check=False), "another git process is running", "rm ")
    assert lock.exists()
    lock.unlink()
    work.update()


def test_repository_of_another_user_is_named_with_what_allows_it(work, run):
    """With the switch by which git tests this itself."""
    mine = work.install()
    mine.replace("model.py", "line 5\n", "mine\n")
    foreign = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    allow = f"git config --global --add safe.directory '{str(mine.folder).replace(chr(39), QUOTE)}'"
    for command in (["install"], ["update"], ["update", "--abort"], ["save-patches"]):
        done = work.set_up(*command, env=foreign, check=False)
        is_told(done, f"{mine.folder} belongs to another user", f"run: {allow}")
    found = work.type("doctor.py", env=foreign, check=False).stdout
    assert f"{mine.folder} belongs to another user" in " ".join(found.split())
    run(["bash", "-c", allow], env=work.environment)
    assert "1 patch in" in work.set_up("save-patches", env=foreign).stderr


def test_upstream_of_another_user_is_named_with_what_allows_it(work, run):
    work.use()
    foreign = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    done = work.set_up("install", env=foreign, check=False)
    is_told(done, f"{work.url} belongs to another user", "--add safe.directory ")
    run(["bash", "-c", done.stderr.rpartition("run: ")[2]], env=work.environment)
    assert run(["git", "ls-remote", work.url], env={**work.environment, **foreign}).stdout


QUOTE = "'\\''"


def write_series(work):
    """Save a commit, an untracked file and an edit as the group's patches."""
    mine = work.install()
    mine.commit("[WIP] mine", mine__py="x\n")
    mine.replace("model.py", "line 5\n", "line five\n")
    mine.write("new.bin", bytes(range(256)))
    done = work.set_up("save-patches")
    assert "torchtitan: 2 patches in " in done.stderr
    assert "next: git add patches stacks && git commit" in done.stderr
    assert [path.name[:4] for path in sorted(work.patches.iterdir())] == ["0001", "0002"]
    return mine


def test_patches_are_written_and_applied_elsewhere(work):
    mine = write_series(work)
    before = mine.state()
    assert "torchtitan is up to date: v1\n" in work.update().stderr
    assert mine.state() == before
    first = {path.name: path.read_bytes() for path in work.patches.iterdir()}
    work.set_up("save-patches")
    assert {path.name: path.read_bytes() for path in work.patches.iterdir()} == first

    files = mine.files()
    heads = []
    for number in range(2):  # somebody else, twice: the same commits for everybody
        work.scratch = work.folder / f"other scratch {number}"
        other = Repository(work.scratch / "project/repos/torchtitan", work.environment)
        work.use()
        work.set_up("install")
        assert other.files() == files
        assert other.git("status", "--porcelain") == ""
        heads.append(other.head())
    assert heads[0] == heads[1]
    assert other.git("log", "--format=%s") == "Changes that were not committed\n[WIP] mine\nfirst\n"


def test_patches_are_replayed_by_update(work):
    mine = write_series(work)
    files = mine.files()
    work.release(data__py="2\n")
    work.update()
    assert mine.files() == {**files, "data.py": ("file", b"2\n")}
    assert mine.git("log", "-1", "--format=%s") == "Changes that were not committed\n"
    assert mine.git("status", "--porcelain") == ""


def test_patch_that_upstream_has_taken_is_left_out(work):
    mine = write_series(work)
    work.release(mine__py="x\n", data__py="2\n")
    done = work.update()
    assert "0001-WIP-mine.patch is already in the new version" in done.stderr
    work.set_up("save-patches")
    assert [path.name for path in work.patches.iterdir()] == [
        "0001-Changes-that-were-not-committed.patch"
    ]
    assert mine.git("status", "--porcelain") == ""


def test_patch_that_no_longer_applies_is_named(work):
    mine = write_series(work)
    mine.write("more.py", "mine\n")
    before = mine.state()
    work.release(model__py=("line 5\n", "theirs\n"))
    done = work.update(check=False)
    is_told(
        done,
        "cannot apply the patch 0002-Changes-that-were-not-committed.patch to the new version",
        "--continue",
    )
    assert "conflicts in model.py" in done.stderr
    assert "both modified:   model.py" in work.second.git("status")
    work.update("--abort")
    assert mine.state() == before
    work.update(check=False)
    resolve(work)
    # the user's own edit, from which the patch was made, is still there, and meets the same
    is_told(work.update("--continue", check=False), "your uncommitted changes", "--continue")
    resolve(work)
    work.update("--continue")
    assert (mine.folder / "model.py").read_text() == "resolved\n"
    assert (mine.folder / "new.bin").exists() and (mine.folder / "more.py").exists()
    assert "torchtitan: 3 patches in " in work.set_up("save-patches").stderr
    assert len(list(work.patches.iterdir())) == 3  # with more.py


def test_commits_whose_patches_are_gone_are_kept(work):
    write_series(work)
    for path in work.patches.iterdir():
        path.unlink()
    work.release(data__py="2\n")
    done = work.update()
    assert "of 1 applied patches, 0 still exist" in done.stderr
    (saved,) = work.mine.refs("saved")
    assert "[WIP] mine" in work.mine.git("log", "--format=%s", saved)


def test_patch_that_could_be_applied_twice(work):
    mine = work.install()
    mine.write("table", "0\n" * 12)
    mine.commit("a table")
    mine.git("push", "-q", "origin", "HEAD:refs/heads/table")
    work.use(mine.head())
    work.update()
    mine.write("table", "0\n" * 13)
    mine.commit("one more")
    work.set_up("save-patches")
    before = mine.files()
    work.use("")
    work.upstream.git("merge", "-q", "--no-edit", "table")
    work.update()
    assert mine.files()["table"] == before["table"]


def test_users_settings_of_git_change_nothing(work, clean_environment):
    """Settings that each broke an earlier version of this."""
    settings = {
        "format.suffix": ".txt",
        "format.useAutoBase": "true",
        "diff.context": "0",
        "diff.noprefix": "true",
        "diff.orderFile": "/nowhere",
        "clone.defaultRemoteName": "server",
        "core.autocrlf": "input",
        "core.safecrlf": "true",
        "core.hooksPath": "/nowhere",
        "commit.gpgSign": "true",
        "status.showUntrackedFiles": "no",
        "submodule.recurse": "true",
        "merge.renames": "false",
        "index.version": "4",
        "core.splitIndex": "true",
    }
    lines = []
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        lines.append(f"[{section}]\n{key} = {value}\n")
    Path(clean_environment["HOME"]).mkdir(exist_ok=True)
    Path(clean_environment["HOME"], ".gitconfig").write_text("".join(lines))
    mine = work.install()
    for each in (mine, work.upstream):
        each.environment["GIT_CONFIG_GLOBAL"] = "/dev/null"
    mine.commit("mine", mine__py="x\n")
    mine.replace("model.py", "line 5\n", "mine\n")
    mine.git("add", "model.py")
    work.release(model__py=("line 25\n", "25\n"))
    work.update()
    assert mine.git("log", "--format=%s") == "mine\nv2\nfirst\n"
    assert mine.git("status", "--porcelain") == "M  model.py\n"
    work.set_up("save-patches")
    assert len(list(work.patches.glob("*.patch"))) == 2
    files = mine.files()
    work.release("v3", data__py="3\n")
    work.update()
    assert mine.files() == {**files, "data.py": ("file", b"3\n")}


def test_save_patches_after_a_merge_has_everything(work):
    mine = work.install()
    mine.git("checkout", "-q", "-b", "side")
    mine.commit("side", side__py="x\n")
    mine.git("checkout", "-q", "main")
    mine.commit("other", other__py="x\n")
    mine.git("merge", "-q", "--no-edit", "side")
    mine.replace("model.py", "line 5\n", "mine\n")
    assert "torchtitan: 1 patch in " in work.set_up("save-patches").stderr
    (patch,) = work.patches.iterdir()
    assert all(text in patch.read_text() for text in ("side.py", "other.py", "+mine"))


def test_patches_of_others_are_not_overwritten(work):
    mine = work.install()
    mine.commit("mine", mine__py="x\n")
    work.patches.mkdir(parents=True)
    (work.patches / "0001-other.patch").write_text(
        "diff --git a/other.py b/other.py\nnew file mode 100644\n--- /dev/null\n+++ b/other.py\n"
        "@@ -0,0 +1 @@\n+of somebody else\n"
    )
    is_told(work.set_up("save-patches", check=False), "has changed since", "update")
    assert "is not at the configured version" in work.set_up("install").stderr
    work.update()  # a patch without a header, as git diff writes it
    assert mine.git("log", "--format=%s") == "mine\n0001-other.patch\nfirst\n"
    work.set_up("save-patches")
    assert len(list(work.patches.iterdir())) == 2


def test_clone_at_another_commit_without_patches_has_nothing_to_save(work):
    mine = work.install()
    work.release(data__py="2\n")
    work.update()
    mine.git("checkout", "-q", "--detach", "HEAD~1")
    assert "has no local changes" in work.set_up("save-patches").stderr
    mine.replace("model.py", "line 5\n", "mine\n")
    assert "torchtitan: 1 patch in " in work.set_up("save-patches").stderr


def test_series_is_kept_where_the_clone_is_at_another_commit(work):
    mine = write_series(work)
    mine.git("checkout", "-q", "--detach", "refs/longship/base")
    told = work.set_up("save-patches", check=False)
    is_told(told, "is at a commit without the changes in", "check out the branch that has them")
    assert len(list(work.patches.iterdir())) == 2
    mine.git("checkout", "-q", "-")
    work.set_up("save-patches")
    assert len(list(work.patches.iterdir())) == 2


def test_reworked_patches_replace_the_former_ones(work):
    mine = write_series(work)
    mine.git("reset", "-q", "--soft", "HEAD~1")
    told = work.set_up("save-patches", check=False)
    is_told(told, "is at a commit without the changes in", "changes replace them, commit those")
    mine.git("add", "-A")
    mine.git("commit", "-q", "-m", "reworked")
    done = work.set_up("save-patches")
    assert "torchtitan: 1 patch in " in done.stderr
    assert "note: torchtitan: deleted the former 0001-WIP-mine.patch 0002-" in done.stderr
    (patch,) = work.patches.iterdir()
    assert all(text in patch.read_text() for text in ("mine.py", "new.bin", "+line five"))


def test_plain_install_with_a_patch_that_does_not_apply(work):
    work.patches.mkdir(parents=True)
    (work.patches / "0001-other.patch").write_text(
        "diff --git a/model.py b/model.py\n--- a/model.py\n+++ b/model.py\n"
        "@@ -1 +1 @@\n-not there\n+x\n"
    )
    work.use()
    done = work.set_up("install", check=False)
    is_told(done, "cannot apply the patch 0001-other.patch", "correct or remove")
    (work.patches / "0001-other.patch").unlink()
    work.set_up("install")  # completes what was interrupted
    assert work.mine.head() == work.upstream.head("v1")
    assert work.mine.git("status", "--porcelain") == ""
    assert "torchtitan is up to date" in work.update().stderr


def test_submodules_follow(work, with_submodule):
    mine, inner, sub = with_submodule
    inner.write("build/output", "untracked\n")
    mine.replace("model.py", "line 5\n", "line five\n")
    work.use("v2s")
    work.update()
    assert (mine.head(), inner.head()) == (work.upstream.head("v2s"), sub.head("main"))
    assert mine.git("status", "--porcelain", "--ignore-submodules=untracked") == " M model.py\n"
    assert (inner.folder / "build/output").exists()
    assert "torchtitan is up to date" in work.update().stderr


def test_submodule_in_the_place_of_a_file(work, with_submodule):
    mine, _, sub = with_submodule
    up = work.upstream
    up.git("rm", "-q", "data.py")
    up.git("submodule", "--quiet", "add", f"file://{sub.folder}", "data.py")
    up.commit("a submodule")
    up.git("tag", "v3s")
    work.use("v3s")
    work.update()
    assert (mine.folder / "data.py/model.py").exists()
    before = mine.state()
    work.use("v2s")
    done = work.update(check=False)
    is_told(done, "has a file in the place of this submodule", "submodule deinit")
    assert mine.state() == before
    command = done.stderr.rpartition("hint: ")[2].partition("; then")[0]
    processes.run(["bash", "-c", command], env=mine.environment)
    work.update()
    assert (mine.folder / "data.py").is_file() and mine.git("status", "--porcelain") == ""


def edit(inner):
    inner.replace("model.py", "line 5\n", "line five\n")


def commit(inner):
    inner.commit("mine", mine__py="x\n")


@pytest.mark.parametrize("change", [edit, commit])
def test_changed_submodule_is_refused_before_anything_is_touched(change, work, with_submodule):
    mine, inner, _ = with_submodule
    change(inner)
    before = mine.state(), inner.state(), mine.git("for-each-ref")
    work.use("v2s")
    is_told(work.update(check=False), "the submodule third party/sub has changes", "push them")
    assert (mine.state(), inner.state(), mine.git("for-each-ref")) == before
    if change is commit:
        mine.commit("with mine")
        before = mine.state(), inner.state()
        is_told(work.update(check=False), "your commits change the submodule third party", "push")
        assert (mine.state(), inner.state()) == before


def test_announced_file_is_refused_before_anything_is_touched(work):
    mine = work.install()
    mine.write("announced.py", "soon\n")
    mine.git("add", "-N", "announced.py")
    work.release(data__py="2\n")
    for words in (["update"], ["save-patches"]):
        before = mine.state(), mine.git("for-each-ref")
        done = work.set_up(*words, check=False)
        is_told(done, "cannot keep the mark of git add -N: announced.py", "add -- ")
        assert (mine.state(), mine.git("for-each-ref")) == before
    command = done.stderr.rpartition("its content: ")[2].partition("; then")[0]
    processes.run(["bash", "-c", command], env=mine.environment)
    work.update()
    assert mine.git("status", "--porcelain") == "A  announced.py\n"


def test_what_lies_in_the_place_of_the_second_working_tree_stays(work):
    mine = work.install()
    theirs = mine.folder.with_name(f"{mine.folder.name}.update")
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("mine\n")
    work.update()  # it is up to date
    work.release(data__py="2\n")
    before = mine.state()
    for words in (["update"], ["update"], ["update", "--continue"]):
        done = work.set_up(*words, check=False)
        is_told(done, f"{theirs} is in the way", "move it away")
        assert mine.state() == before
    work.set_up("update", "--abort")
    assert mine.state() == before and (theirs / "thesis.txt").read_text() == "mine\n"
    theirs.rename(work.folder / "moved away")
    work.update()
    assert (mine.folder / "data.py").read_text() == "2\n" and not theirs.exists()


def test_ctrl_c_ends_what_was_started(work):
    waiting = work.folder / "a server that never answers"
    waiting.write_text("#!/bin/sh\necho $$ >" + f"'{work.folder}/pid'" + "\nexec sleep 1000\n")
    waiting.chmod(0o755)
    work.use(url="ssh://example.org/never.git")
    environment = {"GIT_SSH": str(waiting), "GIT_ALLOW_PROTOCOL": "ssh"}
    process = work.start("set_up.py", "install", env=environment, cwd=work.root)
    try:
        while not (work.folder / "pid").exists() or not (work.folder / "pid").read_text().strip():
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=processes.PATIENCE)
    finally:
        processes.end_group(process)
    assert process.returncode == 130
    assert "error: interrupted in step 1/1, Cloning torchtitan" in errors
    assert "hint: no work is lost; resume with: python3 set_up.py install" in errors
    server = Path("/proc", (work.folder / "pid").read_text().strip())
    processes.wait_until(lambda: not server.exists())  # it was sent a signal, and takes a moment
    assert list((work.scratch / "project").rglob("*")) == [work.scratch / "project/repos"]


def test_ssh_that_asks_on_the_terminal_gets_no_answer(work):
    program = work.folder / "bin/ssh"  # as ssh at a server that it does not know
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n(read -r answer </dev/tty) 2>/dev/null\n"
        "echo 'Host key verification failed.' >&2\nexit 255\n"
    )
    program.chmod(0o755)
    work.use(url="ssh://git@example.org/torchtitan.git")
    path = f"{program.parent}:{processes.PATH}"
    env = {**work.environment, "PATH": path, "GIT_ALLOW_PROTOCOL": "ssh"}
    with Terminal(work.command("set_up.py", "install"), env=env, cwd=work.root) as terminal:
        assert terminal.end(60) == 1
    assert "Host key verification failed." in terminal.said
    assert "try: git ls-remote ssh://git@example.org/torchtitan.git" in terminal.said


def test_two_updates_at_once(work):
    mine = work.install()
    mine.commit("mine", mine__py="x\n")
    work.release(model__py="2\n")
    both = [work.start("set_up.py", "update", cwd=work.root) for _ in range(2)]
    errors = [process.communicate(timeout=processes.PATIENCE)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert sum("-> v2" in text for text in errors) == 1
    assert sum("is up to date" in text for text in errors) == 1
    assert mine.git("log", "--format=%s") == "mine\nv2\nfirst\n"
