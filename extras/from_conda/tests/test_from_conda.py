"""set_up.py from-conda: what becomes a requirement, and what is left out."""

import pytest

FILE = """\
name: mine
channels:
  - pytorch
dependencies:
  - python=3.11
  - pytorch::pytorch=2.3.0=py3.11_cuda12.1_cudnn8.9.2_0
  - numpy=1.26
  - pandas==2.2.2
  - scipy>=1.11,<2
  - conda-forge::transformers 4.41.*
  - ffmpeg   # for audio
  - opencv
  - cuda-version=12.4
  - pip:
    - wandb==0.17.0
    - librosa==0.10.1
    - nvidia-dali-cuda120
    - "tomli>=2 ; python_version<'3.11'"
    - -e .
    - git+https://github.com/x/y.git
    - "torch==2.3.0"
  - tqdm=4.66.4=pyhd8ed1ab_0
prefix: /home/me/miniconda3
"""
KEPT = """\
# From environment.yml
numpy==1.26.*
pandas==2.2.2
scipy>=1.11,<2
transformers==4.41.*
opencv-python-headless
wandb==0.17.0
librosa==0.10.1
nvidia-dali-cuda120
tomli>=2 ; python_version<'3.11'
tqdm==4.66.4
"""


@pytest.fixture
def clone(root, clean_environment, tmp_path):
    from support.repository import Clone

    return Clone(root, tmp_path / "a clone", clean_environment)


def test_what_pip_can_install_is_kept_and_the_rest_is_told(clone, tmp_path):
    (tmp_path / "environment.yml").write_text(FILE)
    done = clone.set_up("from-conda", tmp_path / "environment.yml")
    file = clone.root / "requirements/mine.txt"
    assert file.read_text() == KEPT
    told = dict(line[10:].split(": ", 1) for line in done.stdout.splitlines() if "left" in line)
    left = ["python==3.11.*", "pytorch==2.3.0", "ffmpeg", "cuda-version==12.4.*", "-e ."]
    left.append("git+https://github.com/x/y.git")
    assert list(told) == [*left, "torch==2.3.0"]
    assert "the image has it" in told["pytorch==2.3.0"]
    assert "add-system-packages" in told["ffmpeg"] and "[[repositories]]" in told["-e ."]
    assert 'set packages.requirements = "requirements/mine.txt"' in done.stderr
    again = clone.set_up("from-conda", tmp_path / "environment.yml", check=False)
    assert f"error: {file} exists already\n" in again.stderr and again.returncode == 1
    assert file.read_text() == KEPT


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("transformers[version='>=4.44']", "transformers>=4.44"),
        ("conda-forge::datasets >=2.18,<3", "datasets>=2.18,<3"),
        ("numpy=1.26.4=py311h64a7726_0", "numpy==1.26.4"),
        ("numpy 1.20|1.21", ""),
        ("sel(osx): tensorflow", ""),
        ("|", ""),
        ("pip: [numpy]", ""),
        ("py\x1b[31m", ""),
        ("pip:\n    - wandb[media, aws]>=0.17,!=0.18 ; python_version >= '3.10'", "*"),
        ("pip:\n    - -r ../other.txt", ""),
        ("pip:\n    - --extra-index-url https://example.org/simple", ""),
        ("pip:\n    - flash-attn==2.7.4.post1 --no-build-isolation", ""),
        ("pip:\n    - x @ https://example.org/x-1-py3-none-any.whl", ""),
        ("pip:\n    - https://example.org/x-1-py3-none-any.whl", ""),
        ("pip:\n    - x==1 ; python_version >= '3' \x1b]0;x\x07", ""),
    ],
)
def test_only_requirements_are_written_and_the_rest_is_told_by_line(line, kept, clone, tmp_path):
    text = f"name: 'it'\nvariables:\n  A: 1\ndependencies:\n  - {line}\n"
    (tmp_path / "environment.yml").write_text(text)
    done = clone.set_up("from-conda", tmp_path / "environment.yml")
    word = line.rpartition("- ")[2]
    written = (clone.root / "requirements/it.txt").read_text().splitlines()[1:]
    assert written == ([word if kept == "*" else kept] if kept else [])
    told = [each for each in done.stdout.splitlines() if each.startswith("left out: ")]
    assert told.pop(0).startswith("left out: A: 1: set it under environment.set")
    shown = word.translate({0x1B: "?", 0x07: "?"})
    assert [each.startswith(f"left out: {shown}: ") for each in told] == ([] if kept else [True])
    assert f"{len(written)} packages: requirements/it.txt" in done.stdout


@pytest.mark.parametrize("name", ["..", "a/b", "\x1b[2J", "-r"])
def test_name_that_is_not_one_of_a_file_is_refused(name, clone, tmp_path):
    (tmp_path / "it.yml").write_text(f"name: {name}\ndependencies:\n  - numpy\n")
    before = [*(clone.root / "requirements").iterdir()]
    done = clone.set_up("from-conda", tmp_path / "it.yml", check=False)
    shown = name.replace("\x1b", "?")
    assert f"error: {tmp_path}/it.yml: not a name for a file: {shown}\n" in done.stderr
    assert [*(clone.root / "requirements").iterdir()] == before


@pytest.mark.parametrize("text", ["", "name: mine\n", "\0\n- a\n", "dependencies: [numpy]\n"])
def test_file_without_a_list_is_told(text, clone, tmp_path):
    (tmp_path / "it.yml").write_text(text)
    done = clone.set_up("from-conda", tmp_path / "it.yml", check=False)
    error, hint = done.stderr.splitlines()
    assert error == f"error: cannot read a list of dependencies from {tmp_path}/it.yml"
    assert hint.startswith("hint: write one: conda env export")
