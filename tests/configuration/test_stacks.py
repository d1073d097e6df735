"""A stack is a folder with a stack.toml."""

import re
from pathlib import Path

import pytest
from support.emitted import RUNTIME_OF, training_file
from support.requests import lines_for
from support.stacks import settings_of

from lib import ROOT
from lib.configuration.paths import derive_paths
from lib.configuration.stacks import load_stack, stack_names
from lib.jobs.job_files import read_job_file
from lib.runtimes.environment import Environment
from lib.script.errors import LongshipError


def test_new_stack_needs_no_python(repository):
    repository.write(
        "stacks/mine/stack.toml",
        'description = "mine"\ntorch = "requirements/torch.txt"\n'
        '[images]\ncuda = "docker://x/cuda:1"\nrocm = "docker://x/rocm:1"\n'
        '[configuration.packages]\ninstaller = "pip"\n',
    )
    stack = load_stack(repository.root, "mine")
    assert (stack.name, stack.description) == ("mine", "mine")
    assert stack.torch == "requirements/torch.txt"
    assert stack.images == {"cuda": "docker://x/cuda:1", "rocm": "docker://x/rocm:1"}
    assert stack.configuration.values == {"packages.installer": "pip"}


def test_empty_stack_file_is_enough(repository):
    repository.write("stacks/mine/stack.toml", "")
    stack = load_stack(repository.root, "mine")
    assert (stack.images, stack.settings, stack.torch) == ({}, {}, "")


@pytest.mark.parametrize("name", ["../../x", "..", "../stacks/pytorch", ".", "", "a\nb"])
def test_stack_lies_among_the_stacks(name, repository):
    repository.write("stack.toml", "")
    (repository.root.parent / "x").mkdir()
    (repository.root.parent / "x/stack.toml").write_text("")
    with pytest.raises(LongshipError, match="unknown stack"):
        load_stack(repository.root, name)


def test_unknown_stack_names_those_that_are_there(repository):
    with pytest.raises(LongshipError, match='unknown stack: "pytoch"') as error:
        load_stack(repository.root, "pytoch")
    assert error.value.hint == 'did you mean "pytorch"? valid values: pytorch'


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('\nimage = "x"\n', 'stack.toml: unknown key "image"', '"images"'),
        ('[images]\nnvidia = "x"\n', 'unknown key "images.nvidia"', "cuda, rocm, cpu"),
        ('[configuration.contaner]\nimage = "x"\n', 'unknown table "contaner"', '"container"'),
        ("torch = 3\n", "torch", ""),
        ("images = 3\n", "images", ""),
        ("[images]\ncuda = 3\n", "images", ""),
        ("configuration = 3\n", "configuration", ""),
    ],
)
def test_mistake_in_a_stack_is_told(text, message, hint, repository):
    repository.write("stacks/mine/stack.toml", text)
    with pytest.raises(LongshipError) as error:
        load_stack(repository.root, "mine")
    assert message in str(error.value)
    assert "stacks/mine/stack.toml" in str(error.value)
    assert hint in error.value.hint


def test_checked_in_stacks_load_and_name_files_that_are_there(root):
    folders = [path.parent for path in root.glob("stacks/*/stack.toml")]
    assert folders
    for folder in folders:
        stack = load_stack(root, folder.name)
        assert stack.description
        assert not stack.torch or (root / stack.torch).is_file()


@pytest.mark.parametrize("machine", RUNTIME_OF)
@pytest.mark.parametrize("name", stack_names(Path(ROOT)))
def test_any_stack_is_submitted_on_any_machine_that_it_has_an_image_for(name, machine, tmp_path):
    settings = settings_of(ROOT, name, machine, tmp_path)
    # a clone below what JUPITER's nodes see, and without a space, which Pyxis does not bind
    root = Path("/e/project1/me/longship")
    paths = derive_paths(settings)._replace(root=root)
    file = training_file(settings)
    if not Path(ROOT, file).is_file():  # a group's own site need not evaluate
        assert name == "evaluate"
        return
    job = read_job_file(Path(ROOT), file)
    vendor, arch = settings.machine.gpu, settings.machine.arch
    image = settings.stack.images.get("cpu" if vendor == "auto" else vendor, {})
    there = isinstance(image, str) or arch in image
    runtime = RUNTIME_OF[machine]
    env = Environment(settings, paths, runtime, "job")
    if there:
        lines = lines_for(env, job)
        assert any(each.startswith(f"export LONGSHIP_STACK={name} ") for each in lines)
    else:
        with pytest.raises(LongshipError, match=f"stack {name} has no image for"):
            lines_for(env, job)


@pytest.mark.parametrize("name", stack_names(Path(ROOT)))
def test_each_setting_says_what_it_is(name):
    for setting in load_stack(Path(ROOT), name).settings.values():
        assert setting.about


@pytest.mark.parametrize("name", stack_names(Path(ROOT)))
def test_scripts_of_a_stack_read_no_setting_that_it_has_not(name):
    known = {f"TRAINING_{each.upper()}" for each in load_stack(Path(ROOT), name).settings}
    texts = [
        path.read_text(encoding="utf-8")
        for path in Path(ROOT, "stacks", name).rglob("*")
        if path.is_file() and path.suffix in (".sh", ".py", ".bash", ".yaml", ".template")
    ]
    assert set(re.findall(r"TRAINING_[A-Z0-9_]+", "\n".join(texts))) == known
