"""Files and directories that nobody else can change, in bash and Python, and who is trusted."""

import os
import stat
import struct

import pytest

from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.execute import make_directory, write_file
from lib.script.render import render
from lib.script.trust import check_trusted, is_own, links_on_the_way, refuse_default_acl

GROUP = 61000  # nobody's
# A default ACL that gives a group everything: version 2, then tag, permissions and ID of each entry
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in (
        (0x01, 7, 0xFFFFFFFF),
        (0x04, 7, 0xFFFFFFFF),
        (0x08, 7, GROUP),
        (0x10, 7, 0xFFFFFFFF),
        (0x20, 0, 0xFFFFFFFF),
    )
)


@pytest.fixture(params=[0o002, 0o022, 0o077, "default ACL"])
def place(request, tmp_path):
    """Give a directory, with a umask or a default ACL that decides about what is new in it."""
    directory = tmp_path / "a place"
    directory.mkdir()
    umask = 0
    if request.param == "default ACL":
        try:
            os.setxattr(directory, "system.posix_acl_default", ACL)
        except OSError:
            pytest.fail("the file system of the tests has no ACLs")
    else:
        umask = request.param
    before = os.umask(umask)
    yield directory
    os.umask(before)


@pytest.fixture
def bash(run):
    """Give a function that runs lines of a script."""
    return lambda *lines: run(["bash", "-c", render("a test", lines)], check=False)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("wanted", [0o600, 0o644, 0o755])
def test_written_file_has_the_mode_that_was_asked_for(wanted, place, bash):
    write_file(place / "by python", "text", wanted)
    assert not bash(call("file_write", place / "by bash", "text", f"{wanted:o}")).stderr
    for file in place.iterdir():
        assert (mode(file), file.read_text()) == (wanted, "text")


def test_directory_is_closed_with_all_that_are_missing_above_it(place, bash):
    make_directory(place / "python/a")
    assert not bash(call("directory_make", place / "bash/a")).stderr
    assert {mode(each) for each in place.rglob("*")} == {0o700}
    assert len([*place.rglob("*")]) == 4


def test_shared_directory_is_open_to_readers_only(place, bash):
    assert (
        "the shared directory does not exist" in bash(call("shared_make", place / "shared")).stderr
    )
    assert not bash(call("mkdir", "-m", "750", place / "shared")).stderr
    lines = [call("shared_make", place / "shared", "one", "one/two")]
    lines += [call("pins_make", place / "shared/one/pins"), f': >"{place}/shared/one/two/file"']
    lines += [call("shared_open", place / "shared/one/two")]
    for _ in range(2):
        assert not bash(*lines).stderr
    assert mode(place / "shared") == 0o750
    assert mode(place / "shared/one") == mode(place / "shared/one/two") == 0o755
    assert mode(place / "shared/one/pins") == 0o1777
    assert mode(place / "shared/one/two/file") == 0o644


def test_default_acl_of_a_shared_directory_is_refused(tmp_path, run):
    refuse_default_acl(tmp_path)
    refuse_default_acl(tmp_path / "none")
    os.setxattr(tmp_path, "system.posix_acl_default", ACL)
    with pytest.raises(LongshipError, match="default ACL of .* lets others write") as raised:
        refuse_default_acl(tmp_path)
    assert raised.value.hint == f"run: setfacl -k {tmp_path}"


def test_link_at_the_name_is_replaced_and_not_followed(tmp_path, bash):
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.write_text("mine")
    for write in (
        lambda: write_file(link, "new"),
        lambda: bash(call("file_write", link, "new")),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(mine)
        write()
        assert (link.read_text(), mine.read_text()) == ("new", "mine")
        assert not link.is_symlink()


def test_nobody_can_open_a_file_before_it_has_its_mode(tmp_path, monkeypatch):
    """Whoever has opened it for writing before can write to it for ever."""
    seen = []
    real = os.fchmod

    def look(file, wanted):
        (partial,) = tmp_path.iterdir()
        seen.append((mode(partial), partial.read_text()))
        real(file, wanted)

    monkeypatch.setattr(os, "fchmod", look)
    before = os.umask(0)
    try:
        write_file(tmp_path / "start.bash", "text")
    finally:
        os.umask(before)
    assert seen == [(0o600, "")]


@pytest.mark.parametrize("which", ["scratch", "project", "scratch/venvs", "scratch/cache"])
def test_root_that_others_can_write_to_is_refused(which, place, bash):
    scratch, project = place / "scratch", place / "project"
    line = call("roots_make", scratch, project)
    assert not bash(line).stderr
    assert {mode(each) for each in place.rglob("*")} == {0o700}
    (scratch / "data").mkdir()
    (scratch / "data").chmod(0o777)  # the user's own business
    assert not bash(line).stderr
    (place / which).chmod(0o775)
    error, hint = bash(line).stderr.splitlines()
    assert (
        error == f"error: other users can write to {place / which}, and would decide what you run"
    )
    mend = hint.partition("run: ")[2].partition(";")[0]
    assert hint.startswith("hint: delete what others may have changed in it, and run: chmod go-w ")
    assert not bash(mend, line).stderr


@pytest.mark.parametrize("which", ["shared", "shared/overlays", "shared/overlays/a.sqsh"])
def test_shared_file_that_others_can_write_to_is_not_trusted(which, tmp_path):
    file = tmp_path / "shared/overlays/a.sqsh"
    file.parent.mkdir(parents=True, mode=0o755)
    file.parent.parent.chmod(0o755)
    file.write_text("")
    file.chmod(0o644)
    tmp_path.chmod(0o777)  # what is above is the site's
    check_trusted(file, tmp_path / "shared")
    check_trusted(tmp_path / "shared/overlays/none", tmp_path / "shared")
    (tmp_path / which).chmod(0o664 if which.endswith("sqsh") else 0o775)
    with pytest.raises(LongshipError, match="other users can write to") as raised:
        check_trusted(file, tmp_path / "shared")
    assert raised.value.hint.endswith(f", and run: chmod go-w {tmp_path / which}")


def test_link_to_a_file_is_the_choice_of_who_made_it(tmp_path):
    (tmp_path / "theirs").write_text("")
    (tmp_path / "theirs").chmod(0o666)
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared/image.sif").symlink_to(tmp_path / "theirs")
    check_trusted(tmp_path / "shared/image.sif", tmp_path / "shared")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "shared/versions").symlink_to(tmp_path / "open")
    with pytest.raises(LongshipError, match="other users can write to .*/shared/versions,"):
        check_trusted(tmp_path / "shared/versions/image.sif", tmp_path / "shared")


def test_bash_and_python_find_the_same_links_on_the_way(tmp_path, bash):
    (tmp_path / "real/below").mkdir(parents=True)
    for link, target in {
        "absolute": tmp_path / "relative",
        "relative": "real/../real/./below",
        "real/below/up": "../..",
        "loop": "loop",
        **{f"chain{n}": f"chain{n + 1}" for n in range(39)},
        "chain39": "real",
    }.items():
        (tmp_path / link).symlink_to(target)
    for path, names in {
        "absolute/up/relative/file": "absolute relative real/below/up relative",
        "real/below": "",
        "chain0/below": " ".join(f"chain{n}" for n in range(40)),
        "loop/file": " ".join(["loop"] * 40),
    }.items():
        expected = [str(tmp_path / name) for name in names.split()]
        assert [str(each) for each in links_on_the_way(tmp_path / path)] == expected
        # two paths: each may have as many as the kernel follows
        found = bash(
            "links=()",
            *[call("links_find", tmp_path / path)] * 2,
            "printf '%s\\n' ${links[@]+\"${links[@]}\"}",
        )
        assert found.stdout.split("\n")[:-1] == (expected * 2 or [""]), found.stderr


def test_login_name_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(LongshipError, match='no user of this machine has the login name "nobody1"'):
        check_trusted(tmp_path / "a", tmp_path, "nobody1")


def test_own_is_no_link_and_closed_to_writers(tmp_path, bash):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    file.chmod(0o644)
    link.symlink_to(file)
    for path, expected in ((file, True), (link, False), (tmp_path / "none", False)):
        assert is_own(path) == expected
        assert (bash(f"is_own '{path}' '{file}'").returncode == 0) == expected
    file.chmod(0o664)
    assert not is_own(file) and bash(f"is_own '{file}'").returncode
