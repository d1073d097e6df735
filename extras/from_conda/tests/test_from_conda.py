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
git+https://github.com/x/y.git
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
    assert list(told) == [*left, "torch==2.3.0"]
    assert "the image has it" in told["pytorch==2.3.0"]
    assert "add-system-packages" in told["ffmpeg"] and "[[repositories]]" in told["-e ."]
    assert 'set packages.requirements = "requirements/mine.txt"' in done.stderr
    again = clone.set_up("from-conda", tmp_path / "environment.yml", check=False)
    assert f"error: {file} exists already\n" in again.stderr and again.returncode == 1
    assert file.read_text() == KEPT


@pytest.mark.parametrize("text", ["", "name: mine\n", "\0\n- a\n", "dependencies: [numpy]\n"])
def test_file_without_a_list_is_told(text, clone, tmp_path):
    (tmp_path / "it.yml").write_text(text)
    done = clone.set_up("from-conda", tmp_path / "it.yml", check=False)
    error, hint = done.stderr.splitlines()
    assert error == f"error: cannot read a list of dependencies from {tmp_path}/it.yml"
    assert hint.startswith("hint: write one: conda env export")
