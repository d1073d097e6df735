"""[[repositories]]: names, layers, and what git would misread."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.git import make_upstream, record_code

from lib import ROOT
from lib.configuration.repositories import configured_repositories
from lib.packages.set_up import repositories_alone_lines
from lib.repositories import clone, inspection
from lib.repositories.git import Git
from lib.repositories.repositories import repository_lines
from lib.repositories.repository import Configured, Progress, Repository
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

URL = "https://example.org/nordic/torchtitan.git"
SECRET = "hunter2"
# the switch by which git tests how it treats another user's repository
WORKER = (sys.executable, Path(ROOT, "lib/repositories/worker.py"))
WORKER += ("--repositories", "PARENT", "--configured", "group", URL, "", "", "/patches")
FOREIGN = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}


def configured(repository, text):
    repository.write("configuration.toml", text)
    return configured_repositories(repository.settings())


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (URL, "torchtitan"),
        ("https://example.org/nordic/torchtitan/", "torchtitan"),
        ("git@example.org:nordic/a.b.git", "a.b"),
        ("git@example.org:titan", "titan"),
        ("/a/path/titan.git", "titan"),
    ],
)
def test_name_is_the_last_part_of_the_url(repository, url, name):
    (found,) = configured(repository, f'[[repositories]]\nurl = "{url}"\n')
    assert (found.name, found.url, found.ref, found.install) == (name, url, "", "editable")


def test_entry_of_the_same_name_changes_the_stacks(repository):
    repository.write(
        "stacks/pytorch/stack.toml",
        f'[[configuration.repositories]]\nurl = "{URL}"\nref = "v1"\nextras = ["dev"]\n',
    )
    text = (
        '[[repositories]]\nname = "torchtitan"\nurl = "https://fork.org/x.git"\n'
        '[[repositories]]\nurl = "https://example.org/other.git"\n'
    )
    changed, other = configured(repository, text)
    assert changed.url == "https://fork.org/x.git"
    assert (changed.ref, changed.extras) == ("v1", ("dev",))
    assert other.name == "other"


@pytest.mark.parametrize(
    ("entry", "message", "hint"),
    [
        ('name = "a"', '"a" has no url', "url ="),
        (f'url = "{URL}"\nname = "../a"', '"../a" is not a valid directory name', "letters"),
        (f'url = "{URL}"\nname = ".git"', '".git" is not a valid directory name', "letters"),
        ('url = "--upload-pack=x"\nname = "a"', "url of repository a", "git"),
        (f'url = "{URL}"\nref = "-x"', "ref of repository torchtitan", "git"),
        # Named: pytest keeps the ids of tests in a file, where a password looks like a real one.
        pytest.param(
            *(
                f'url = "https://me:{SECRET}@example.org/a.git"',
                "contains a password",
                "credential",
            ),
            id="password in url",
        ),
        pytest.param(
            *(f'url = "https://{SECRET}@example.org/a.git"', "contains a password", "credential"),
            id="token in url",
        ),
        pytest.param(
            *(f'url = "{URL}"\nupstream = "https://me:{SECRET}@b.org/a"', "upstream", "credential"),
            id="password in upstream",
        ),
        (f'url = "{URL}"\nreff = "v1"', 'unknown key "repositories.reff"', '"ref"'),
        (f'url = "{URL}"\ninstall = "edit"', 'install: "edit"', '"editable"'),
        (f'url = "{URL}"\nextras = "dev"', "extras: expected", "write "),
        (f'url = "{URL}"\n[[repositories]]\nurl = 3', "url: expected", "write "),
    ],
)
def test_mistakes_are_told(repository, entry, message, hint):
    with pytest.raises(LongshipError, match=re.escape(message)) as told:
        configured(repository, f"[[repositories]]\n{entry}\n")
    assert hint in told.value.hint
    assert SECRET not in str(told.value) + told.value.hint


def test_repositories_as_one_table_are_refused(repository):
    with pytest.raises(LongshipError, match="repositories: expected") as told:
        configured(repository, f'[repositories]\nurl = "{URL}"\n')
    assert "[[repositories]]" in told.value.hint


def test_login_name_is_no_password(repository):
    url = "ssh://git@example.org/a.git"
    assert configured(repository, f'[[repositories]]\nurl = "{url}"\n')[0].url == url


def test_lines_name_each_repository(repository):
    repository.write("configuration.toml", f'[[repositories]]\nurl = "{URL}"\nref = "it\'s"\n')
    lines = repository_lines(*repository.settings_and_paths(), "update")
    words = f"torchtitan {URL} 'it'\"'\"'s' '' {repository.root}/patches/torchtitan"
    assert lines[0].endswith(f"\n    --configured {words})")
    folder = "/home/me/longship-data/project/repos"
    assert f"--repositories={folder}\n" in lines[0] and "--bundles" not in lines[0]
    assert lines[1] == f'repositories_run update {folder} "${{repositories[@]}}"'
    assert "--typed" not in lines[0]
    typed = {"stack": "pytorch", "machine": "local"}
    lines = repository_lines(*repository.settings_and_paths(**typed), "update")
    assert "\n    --typed=--machine=local\n    --typed=--stack=pytorch\n" in lines[0]


def test_nothing_is_emitted_without_repositories(repository):
    settings, paths = repository.settings_and_paths()
    assert repository_lines(settings, paths, "install") == []
    with pytest.raises(LongshipError, match="no repository is configured"):
        repositories_alone_lines(settings, paths, "continue", "x")


def test_progress_of_an_update_is_complete_and_forgotten_at_once(tmp_path, run):
    run(["git", "init", "-q", tmp_path / "titan"])
    repository = Repository(Configured(tmp_path, None, "titan", URL, "", "", Path("/patches")))
    assert repository.progress() is None
    repository.save(Progress(["a b", "\udcff"], target="x", todo=[["commit", "y"]]))
    file = repository.state / "progress.json"
    file.with_name("progress.json.partial").write_text("{")  # killed while it was written
    assert repository.progress() == Progress(["a b", "\udcff"], "x", todo=[["commit", "y"]])
    repository.state.with_name("longship-update.removed").mkdir()  # killed while it was removed
    repository.forget(repository.progress())
    assert not list(repository.own.glob("longship-*"))


OF_DOCTOR = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lib.doctor.node import find_clone
from lib.doctor.report import Diagnosis
report = Diagnosis(as_json=False)
for each in find_clone(Path(sys.argv[2])):
    report.add(each)
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([call(sys.executable, "-c", OF_DOCTOR, ROOT, "FOLDER")], "warning"),
        ([call(*WORKER, "check", "--name=group")], "error: "),
    ],
    ids=["doctor.py", "set_up.py"],
)
def test_clone_of_another_user_is_named_with_what_allows_it(
    lines, expected, run, clean_environment, tmp_path
):
    folder = tmp_path / "group"
    run(["git", "init", "--quiet", folder])
    lines = [line.replace("FOLDER", str(folder)) for line in lines]
    lines = ["exec 2>&1", *(line.replace("PARENT", str(tmp_path)) for line in lines)]
    environment = {**clean_environment, "HOME": str(tmp_path), **FOREIGN}
    script = ["bash", "-c", render("a test", lines)]
    done = run(script, env=environment, check=False).stdout
    assert done.lstrip().startswith(expected), done
    assert "belongs to another user, and git refuses to read it" in " ".join(done.split())
    command = re.search(r"run: (git config --global --add safe.directory /.*)", done)
    assert command, done
    run(["bash", "-c", command[1]], env=environment)
    assert "belongs to another user" not in run(script, env=environment, check=False).stdout


def test_code_of_another_user_is_recorded_with_a_job(run, clean_environment, tmp_path):
    git = ["git", "-C", tmp_path, "-c", "user.name=A", "-c", "user.email=a@example.org"]
    run(["git", "init", "--quiet", tmp_path])
    run([*git, "commit", "--quiet", "--allow-empty", "--message=first"])
    commit = run([*git, "rev-parse", "HEAD"]).stdout
    environment = {**clean_environment, "HOME": str(tmp_path), **FOREIGN}
    theirs = record_code(run, tmp_path, tmp_path / "theirs", env=environment)
    assert theirs.with_suffix(".commit").read_text().startswith(f"commit {commit}")


def test_repository_whose_status_takes_too_long_is_not_called_unchanged(tmp_path, monkeypatch):
    """As on a slow file system."""

    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    given = (tmp_path, None, "titan", URL, "", "", tmp_path)
    repository = Repository(Configured(*given))
    monkeypatch.setattr(Repository, "text", lambda *_: "")
    monkeypatch.setattr(Repository, "commit_of", lambda *_: "")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(LongshipError, match="no response within 30 s") as error:
        inspection._is_changed(repository)
    assert error.value.hint == f"run: git -C {tmp_path / 'titan'} status"


def test_signature_is_no_part_of_what_git_prints(tmp_path, run, clean_environment, monkeypatch):
    """Of a user who has log.showSignature; gpg prints what it says of the signature first."""
    gpg = tmp_path / "gpg"
    gpg.write_text("#!/bin/sh\necho 'gpg: Good signature' >&2\n")
    gpg.chmod(0o755)
    text = f"[log]\nshowSignature = true\n[gpg]\nprogram = {gpg}\n"
    (tmp_path / "config").write_text(text)
    git = ("git", "-C", tmp_path)
    run([*git, "init", "-q"])
    tree = run([*git, "mktree"], input="").stdout.strip()
    who = "a <a@b> 1000000000 +0000"
    signed = f"tree {tree}\nauthor {who}\ncommitter {who}\ngpgsig -----BEGIN PGP SIGNATURE-----\n"
    signed += " \n -----END PGP SIGNATURE-----\n\nx\n"
    commit = run([*git, "hash-object", "-t", "commit", "-w", "--stdin"], input=signed).stdout
    run([*git, "update-ref", "HEAD", commit.strip()])
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    assert Git(tmp_path).text("log -1 --format=%at") == "1000000000"


def test_mirror_is_read_where_git_trusts_no_bare_repository(tmp_path, run, monkeypatch):
    run(["git", "init", "-q", "--bare", tmp_path / "mirror.git"])
    (tmp_path / "config").write_text("[safe]\nbareRepository = explicit\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    assert Git(tmp_path / "mirror.git").text("rev-parse --is-bare-repository") == "true"


@pytest.mark.parametrize("kind", ["cut short", "changed"])
def test_damaged_bundle_is_made_again(kind, tmp_path, clean_environment, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    upstream = make_upstream(tmp_path / "group", clean_environment)
    bundle, mirrors = tmp_path / "bundles/group.bundle", tmp_path / "mirrors"
    mirrors.mkdir()
    where = (tmp_path, None, "group", str(upstream.folder), "", "", Path("/patches"))
    clone.download(Configured(*where), bundle.parent, mirrors)
    data, times = bundle.read_bytes(), bundle.stat()
    bundle.write_bytes(data[:-1] if kind == "cut short" else data[:-1] + b"x")
    if kind == "cut short":  # as a copy that keeps the times
        os.utime(bundle, ns=(times.st_atime_ns, times.st_mtime_ns))
    clone.download(Configured(*where), bundle.parent, mirrors)
    assert bundle.read_bytes() == data
    made = bundle.stat().st_ino
    clone.download(Configured(*where), bundle.parent, mirrors)
    assert bundle.stat().st_ino == made


def test_download_goes_on_after_a_git_that_was_killed(tmp_path, clean_environment, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    upstream = make_upstream(tmp_path / "group", clean_environment)
    bundles, mirrors = tmp_path / "bundles", tmp_path / "mirrors"
    mirrors.mkdir()
    where = (tmp_path, None, "group", str(upstream.folder), "", "", Path("/patches"))
    clone.download(Configured(*where), bundles, mirrors)
    commit = upstream.commit("second")
    (mirrors / "group.git/refs/heads/main.lock").touch()
    (bundles / "group.bundle.partial.lock").touch()
    clone.download(Configured(*where), bundles, mirrors)
    assert commit in upstream.git("bundle", "list-heads", bundles / "group.bundle")


def test_cherry_pick_with_commits_to_come_is_not_mixed_up(tmp_path, clean_environment):
    """As after a conflict that was resolved with `git commit`; --quit would forget the others."""
    mine = make_upstream(tmp_path / "titan", clean_environment)
    repository = Repository(Configured(tmp_path, None, "titan", URL, "", "", Path("/patches")))
    repository.check_not_busy()
    for number in range(2):
        mine.commit(f"change {number}", model__py=f"{number}\n")
    mine.git("checkout", "-q", "-b", "mine", "v1")
    mine.commit("mine", model__py="mine\n")
    mine.git("cherry-pick", "v1..main", check=False)
    mine.commit("resolved", model__py="resolved\n")
    with pytest.raises(LongshipError, match="a cherry-pick or revert is in progress"):
        repository.check_not_busy()
