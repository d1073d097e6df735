"""Every derived path, and what a configured path may hold; nothing is ever evaluated."""

from pathlib import Path

import pytest

from lib.configuration.paths import check_started, expand, make_lines, open_lines, pinned
from lib.script.errors import LongshipError


def configure(repository, scratch_dir, more=""):
    repository.write("configuration.toml", f"[paths]\nscratch_dir = '''{scratch_dir}'''\n{more}")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a//b/../c/", "/a/c"),
        ("~/x", "/home/me/x"),
        ("~", "/home/me"),
        ("/a/~/x", "/a/~/x"),
        ("/p/{account}/{user}", "/p/acc/me"),
        ("/p/{project}/{machine}", "/p/proj/local"),
        ("$SCRATCH/x", "/scratch me/x"),
        ("${SCRATCH}_x", "/scratch me_x"),
        ('/it\'s "a" folder', '/it\'s "a" folder'),
        ("/$(touch x)`touch x`;*", "/$(touch x)`touch x`;*"),
    ],
)
def test_configured_path_is_expanded(text, path, repository):
    configure(repository, text, '[project]\naccount = "acc"\nname = "proj"\n')
    _, paths = repository.settings_and_paths({"SCRATCH": "/scratch me"})
    assert paths.scratch_dir == Path(path)


def test_what_one_member_builds_is_shared_and_the_rest_is_not(repository):
    configure(repository, "/s/{user}", 'shared_dir = "/group"\nshared_owner = "alice"\n')
    _, paths = repository.settings_and_paths()
    shared = (paths.containers, paths.overlays, paths.offline, paths.hub)
    own = (paths.runs, paths.cache, paths.venv, paths.venvs, paths.tools, paths.checkpoint_dir)
    assert all(str(each).startswith("/group/") for each in shared)
    assert all(str(each).startswith("/s/me/") for each in own)
    assert paths.trees == (*paths.roots, Path("/group"))
    assert make_lines(paths, paths.containers)[1:] == ["shared_make /group containers"]
    assert open_lines(paths, paths.offline) == ["shared_open /group/offline"]


def test_without_a_group_nothing_is_shared(repository):
    configure(repository, "/s")
    _, paths = repository.settings_and_paths()
    assert paths.trees == paths.roots and not paths.is_shared
    assert make_lines(paths, paths.containers)[1:] == ["directory_make /s/containers"]
    assert open_lines(paths, paths.offline) == []


@pytest.mark.parametrize("shared", [True, False])
def test_wheels_that_others_can_write_to_are_refused_if_others_can_enter(
    shared, repository, tmp_path
):
    """In a closed scratch_dir the umask of the user does not matter."""
    wheels = tmp_path / "offline/pip"
    wheels.mkdir(parents=True)
    for each in (tmp_path, wheels.parent, wheels):
        each.chmod(0o755)
    (wheels / "a.whl").write_text("")
    (wheels / "a.whl").chmod(0o664)
    more = f"shared_dir = {str(tmp_path)!r}\n" if shared else ""
    configure(repository, tmp_path / "s" if shared else tmp_path, more)
    _, paths = repository.settings_and_paths()
    if shared:
        with pytest.raises(LongshipError, match=r"other users can write to .*/a\.whl, "):
            check_started(paths, wheels)
    else:
        check_started(paths, wheels)  # pytest's own directory is closed


@pytest.mark.parametrize("home", ["/a $b c", "/a ${b}", "/a {user}", "/a {b}", '/it\'s "a" `b`'])
def test_home_is_taken_as_it_is(home, repository):
    configure(repository, "~/x")
    _, paths = repository.settings_and_paths({"HOME": home})
    assert paths.scratch_dir == Path(f"{home}/x")


@pytest.mark.parametrize("value", ["/a $b", "/a ${b}", "/a {user}"])
def test_variable_is_taken_as_it_is(value, repository):
    configure(repository, "$SCRATCH/x")
    _, paths = repository.settings_and_paths({"SCRATCH": value})
    assert paths.scratch_dir == Path(f"{value}/x")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("/p/{account}/x", "{account} is not set", "project.account in configuration.toml"),
        ("/p/{acount}/x", "{acount} is unknown", "{account}"),
        ("$NOT_SET/x", "variable $NOT_SET is not set", "configuration.local.toml"),
        ("scratch", "is not an absolute path", 'start it with / or ~: "~/scratch"'),
        ("~other/x", "is not an absolute path", "write the whole path"),
        ("", "is not an absolute path", ""),
    ],
)
def test_path_that_cannot_be_had_is_told_with_its_origin(text, message, hint, repository):
    configure(repository, text)
    with pytest.raises(LongshipError) as error:
        repository.settings_and_paths()
    assert f'paths.scratch_dir in configuration.toml is "{text}"' in str(error.value)
    assert message in str(error.value)
    assert hint in error.value.hint


def test_user_comes_from_the_system_where_the_environment_does_not_say(repository):
    import os
    import pwd

    settings = repository.settings({"USER": "", "LOGNAME": ""})
    user = pwd.getpwuid(os.getuid()).pw_name
    assert expand("paths.scratch_dir", "/{user}", settings) == f"/{user}"


def test_user_without_a_name_is_told(repository, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 4242424242)
    settings = repository.settings({"USER": "", "LOGNAME": ""})
    assert expand("paths.scratch_dir", "/s", settings) == "/s"
    with pytest.raises(LongshipError, match="{user} is not set") as error:
        expand("paths.scratch_dir", "/{user}", settings)
    assert error.value.hint == "set the variable USER"


def test_derived_paths_lie_below_the_scratch_folder(repository):
    configure(repository, "/s")
    _, paths = repository.settings_and_paths(arch="arm64")
    assert paths.root == repository.root
    assert paths.venv == Path("/s/venv_pytorch_arm64")
    assert paths.archives == Path("/s/offline/containers")
    for path in (paths.venvs, paths.tools, paths.cache, paths.containers):
        assert path.parent == paths.scratch_dir


def test_link_to_what_is_in_use_is_followed_once(tmp_path):
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions/1.sif").symlink_to("elsewhere")
    (tmp_path / "image.sif").symlink_to("versions/1.sif")
    (tmp_path / "absolute.sif").symlink_to(tmp_path / "versions/1.sif")
    assert pinned(tmp_path / "image.sif") == tmp_path / "versions/1.sif"
    assert pinned(tmp_path / "absolute.sif") == tmp_path / "versions/1.sif"
    assert pinned(tmp_path / "nothing") == tmp_path / "nothing"


def test_home_that_is_no_absolute_path_is_told(repository):
    with pytest.raises(LongshipError, match='HOME is not an absolute path: "me"') as error:
        repository.settings_and_paths({"HOME": "me"})
    assert error.value.hint == "run: unset HOME"
