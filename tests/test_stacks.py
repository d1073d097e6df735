"""A stack is a folder with a stack.toml."""

import pytest

from lib.errors import LongshipError
from lib.stacks import load_stack


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


def test_unknown_stack_names_those_that_are_there(repository):
    with pytest.raises(LongshipError, match='there is no stack "pytoch"') as error:
        load_stack(repository.root, "pytoch")
    assert error.value.hint == 'did you mean "pytorch"? allowed: pytorch'


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('\nimage = "x"\n', 'stack.toml, line 2: unknown key "image"', '"images"'),
        ('[images]\nnvidia = "x"\n', 'line 2: unknown key "images.nvidia"', "cuda, rocm, cpu"),
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
