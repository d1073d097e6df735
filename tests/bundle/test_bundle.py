"""Which parts a bundle has, and which names and texts are let into it."""

import re
from pathlib import Path

import pytest
from support.tree import own_files

from lib import ROOT
from lib.bundle.bundle import pack_lines, unpack_lines
from lib.configuration.sites import own_arch
from lib.script.command import assign, call
from lib.script.errors import LongshipError
from lib.script.render import definitions, render


def packing(repository, folder="/b", configuration="", **options):
    repository.write("configuration.toml", configuration)
    repository.write(
        "requirements/host.txt", '# ours\nclick>=8.1\ntomli>=2; python_version < "3.11"\n'
    )
    settings, paths = repository.settings_and_paths()
    return pack_lines(settings, paths, folder, typed="t", python="python3", **options)


def test_image_packages_and_repositories_are_needed(repository):
    lines = packing(
        repository,
        configuration='[packages]\nrequirements = "r.txt"\n[[repositories]]\nurl = "https://e.org/x.git"\n',
    )
    needed = [line.split(" python3 ")[0] for line in lines if line.startswith("need_")]
    (archive, *files) = needed
    assert re.fullmatch(
        r"need_archive /home/me/longship-data/scratch/offline/containers/base_1_\w+ 'python3 bu.*",
        archive,
    )
    assert [each.split()[:2] for each in files] == [
        ["need_file", f"pip/pytorch_{own_arch()}.lock"],
        ["need_packages_of_image", f"pip/pytorch_{own_arch()}.lock"],
        ["need_file", "repos/x.bundle"],
    ]


@pytest.mark.parametrize(
    "configuration",
    ['[container]\nruntime = "host"\n', '[container]\nimage = "/site/ready.sif"\n'],
)
def test_machine_without_an_image_of_ours_needs_no_archive(configuration, repository):
    assert not any(
        line.startswith("need_archive") for line in packing(repository, "/b", configuration)
    )


def test_folders_in_the_repository_are_left_out(repository):
    inside = repository.root / "it's inside"
    configuration = f'[paths]\nscratch_dir = "{repository.root}/scratch"\n'
    (line,) = (
        line
        for line in packing(repository, str(inside), configuration)
        if line.startswith("left_out=")
    )
    assert line == (
        "left_out=(.git .venv .cache configuration.local.toml 'it'\"'\"'s inside' scratch)"
    )


def test_packages_of_the_scripts_are_for_every_python(repository):
    assert any(line.endswith("pack_bundle 'click>=8.1' 'tomli>=2'") for line in packing(repository))


def test_folder_with_a_newline_is_refused(repository):
    with pytest.raises(LongshipError, match="newline"):
        packing(repository, "/a\nb")


@pytest.mark.parametrize(("runtime", "steps"), [("host", 1), ("apptainer", 3)])
def test_next_steps_are_those_of_the_runtime(runtime, steps, repository):
    repository.write("configuration.toml", f'[container]\nruntime = "{runtime}"\n')
    settings, paths = repository.settings_and_paths()
    lines = unpack_lines(settings, paths, "/b", typed="t")
    assert sum(line.startswith("next_step 'python3 ") for line in lines) == steps


def bash(run, *lines):
    return run(["bash", "-c", render("a test", lines)], check=False)


@pytest.mark.parametrize("name", ["a", "a b/c", "-x", ".hidden/..x", "ü/$(x)/*", "it's"])
def test_name_below_the_folder_is_let_in(name, run):
    assert bash(run, call("stays_inside", name)).returncode == 0


@pytest.mark.parametrize(
    "name",
    ["", "/", "/a", "..", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "a\nb", "a\\b", "\x7f"],
)
def test_name_that_leaves_the_folder_is_not(name, run):
    assert bash(run, call("stays_inside", name)).returncode == 1


@pytest.mark.parametrize("target", ["b", "../b", "../c/d", "./b", "..", "c/"])
def test_link_to_something_packed_is_let_in(target, run):
    assert bash(run, call("link_stays_inside", "offline/assets/link", target)).returncode == 0


@pytest.mark.parametrize("target", ["", "/b", "../..", "../../b", "c/../../../x", "c/../d", "a\nb"])
def test_link_that_leads_out_is_not(target, run):
    assert bash(run, call("link_stays_inside", "offline/assets/link", target)).returncode == 1


@pytest.mark.parametrize("insensitive", [False, True])
def test_names_that_differ_in_case_are_refused_where_one_file_has_both(insensitive, run, tmp_path):
    """As on exFAT. There `.partial` is found under its other name too."""
    (tmp_path / ".partial").mkdir()
    if insensitive:
        (tmp_path / ".PARTIAL").symlink_to(".partial")
    for one, other in (("docs/Page", "docs/page"), ("docs", "Docs")):
        names = (
            f"[a]=1 [{one}]=1 [{other}/b]=1" if one == "docs" else f"[a]=1 [{one}]=1 [{other}]=1"
        )
        lines = [assign("bundle", tmp_path), f"wanted_names=({names})"]
        done = bash(run, *lines, call("check_case"))
        assert done.returncode == (1 if insensitive else 0), done.stderr
        both = f"{one} and {other}\n", f"{other} and {one}\n"
        assert any(f"cannot store both {each}" in done.stderr for each in both) == insensitive


def test_every_file_is_dealt_out_once(run, tmp_path):
    names = [f"{folder}/{number}" for folder in ("a b", "c") for number in range(300)]
    for name in names:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text("x")
    with open(tmp_path / "root/big", "wb") as file:
        file.truncate(20 << 20)
    (tmp_path / "work").mkdir()
    lines = ["nproc() { echo 3; }", call("list_tree", tmp_path / "root")]
    lines += [
        'bundle_names=("${tree_files[@]}")',
        call("hash_files", tmp_path / "root", tmp_path / "work"),
    ]
    done = bash(run, *lines)
    assert done.returncode == 0, done.stderr
    sums = [path.read_text().splitlines() for path in (tmp_path / "work").glob("sums.*")]
    assert len(sums) == 3 and all(len(each) < 400 for each in sums)
    assert sorted(line[66:] for each in sums for line in each) == sorted([*names, "big"])


def test_this_repository_holds_nothing_that_looks_like_a_secret(run):
    """Or nobody could pack it."""
    pattern = definitions()["SECRET"].partition("SECRET=")[2]
    own = own_files(Path(ROOT))
    assert own
    done = run(["bash", "-c", f'exec grep -lIE -e {pattern} -- "$@"', "grep", *own], check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_history_of_this_repository_can_be_packed(run, tmp_path):
    own = tmp_path / "a clone"
    if (Path(ROOT) / ".git").exists():
        run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, own])
    else:
        run(["git", "init", "--quiet", own])  # an unpacked archive has none
        run(
            ["git", "-C", own, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q"]
            + ["--allow-empty", "-m", "x"]
        )
    work = tmp_path / "work"
    work.mkdir()
    lines = [assign("root", own), assign("work", work), "allowed=()", call("check_history")]
    done = bash(run, *lines)
    assert done.returncode == 0, done.stderr


HINTS = {
    "python3 set_up.py install": "python3 set_up.py offline",
    "run: python3 build_overlay.py": "run: python3 build_overlay.py offline",
    "python3 build_container.py --force; a": "python3 build_container.py offline --force; a",
    "python3 build_overlay.py --list": "python3 build_overlay.py --list",
    "python3 build_container.py download -x": "python3 build_container.py download -x",
    "python3 set_up.py offline": "python3 set_up.py offline",
}


@pytest.mark.parametrize("unpacked", [False, True])
def test_hints_name_the_offline_modes_where_a_bundle_was_unpacked(
    unpacked, run, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("lib.script.errors.ROOT", str(tmp_path))
    if unpacked:
        (tmp_path / ".cache/bundle").mkdir(parents=True)
        (tmp_path / ".cache/bundle/unpacked").touch()
    for hint, offline in HINTS.items():
        expected = f"error: python3 set_up.py install\nhint: {offline if unpacked else hint}\n"
        done = bash(run, call("fail", "python3 set_up.py install", hint))
        assert done.stderr == expected
        done = bash(run, "start_report text", call("report", "problem", "packages", "text", hint))
        assert done.stdout.endswith(f"fix: {offline if unpacked else hint}\n")
        LongshipError("python3 set_up.py install", hint).tell()
        assert capfd.readouterr().err == expected
