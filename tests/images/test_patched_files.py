"""Files in place of the image's own: what may be configured, how originals are compared."""

import os

import pytest

from lib.images.patched_files import check_patched_files, compare_patched_files
from lib.runtimes.contract import patched_files
from lib.runtimes.environment import IMAGE, Environment
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

# The machine itself stands for an image.
START = 'image_ask() {\n  shift 2\n  "$@"\n}'


def configured(repository, line):
    repository.write("configuration.toml", f"[container.patched_files]\n{line}\n")
    return repository.settings_and_paths()


def test_file_lies_in_the_repository_unless_its_path_is_absolute(repository):
    text = '"/usr/lib/a.py" = "patches/files/a.py"\n"/usr/lib/b c.py" = "~/b.py"'
    first, second = patched_files(*configured(repository, text))
    assert first == (f"{repository.root}/patches/files/a.py", "/usr/lib/a.py", True)
    assert second == ("/home/me/b.py", "/usr/lib/b c.py", True)


@pytest.mark.parametrize(
    "line", ['"a.py" = "a.py"', '"/usr/lib/" = "a.py"', '"/a.py" = ""', '"/a\\nb" = "a.py"']
)
def test_what_cannot_be_a_file_is_told(line, repository):
    with pytest.raises(LongshipError, match="container.patched_files in configuration.toml") as e:
        patched_files(*configured(repository, line))
    assert "patches/files/file.py" in e.value.hint


def test_nothing_configured_adds_no_line(repository):
    settings, paths = repository.settings_and_paths()
    assert check_patched_files(Environment(settings, paths, "apptainer")) == []
    assert compare_patched_files(Environment(settings, paths, "apptainer"), IMAGE) == []


@pytest.fixture
def compare(run, tmp_path):
    """Give a function that compares, and returns what it says; target and ours are there."""
    target, ours = tmp_path / "target", tmp_path / "a folder" / "it's ours"
    ours.parent.mkdir()
    target.write_bytes(b"\0binary\xff\nno newline at the end")
    ours.write_text("ours")

    def compare(start=START, **options):
        line = call("patched_file_check", "the image", ours, target)
        done = run(["bash", "-c", render("a test", [start, "", line])], **options)
        return done.stderr

    compare.target, compare.ours = target, ours
    compare.original = ours.with_name("it's ours.original")
    return compare


def test_original_is_kept_byte_for_byte_and_compared(compare):
    assert f" as {compare.original}; commit it" in compare()
    assert compare.original.read_bytes() == compare.target.read_bytes()
    assert compare() == ""
    compare.target.write_text("new")
    said = compare()
    assert said.startswith(f"warning: image the image has another {compare.target} than the one")
    assert "git merge-file" in said
    compare.target.write_bytes(compare.original.read_bytes())  # such as after a rollback
    assert compare() == ""
    assert {path.name for path in compare.ours.parent.iterdir()} == {
        "it's ours",
        "it's ours.original",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not hold root back")
def test_clone_that_cannot_be_written_to_is_no_error(compare):
    compare.ours.parent.chmod(0o555)
    said = compare()
    compare.ours.parent.chmod(0o755)
    assert said.startswith("warning: cannot save the image's own file as")
    assert len(said.splitlines()) == 2


def test_image_that_does_not_start_is_told(compare):
    assert "was not compared: image the image does not start" in compare("image_ask() { false; }")


def test_image_without_the_file_is_told(compare):
    compare.target.unlink()
    assert "warning: image the image has no file" in compare()


def test_missing_file_of_ours_is_told(compare):
    compare.ours.unlink()
    assert "error: file not found: " in compare(check=False)
