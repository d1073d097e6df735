"""The documentation as a site, by the real Sphinx."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support import cache, processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sphinx(session_environment):
    """Give the Python of an environment with Sphinx, which needs 3.11."""
    pins = ROOT / "requirements/docs.txt"
    # not that of the test environment, whose path is another one in each clone
    names = [os.path.realpath(sys.executable)] if sys.version_info >= (3, 11) else []
    names += ["python3.14", "python3.13", "python3.12", "python3.11"]
    python = next(filter(None, map(shutil.which, names)), None)
    if python is None:
        pytest.skip("needs Python 3.11 or newer for Sphinx, and finds none on PATH")

    def build(partial):
        processes.run([python, "-m", "venv", partial], env=session_environment)
        install = [partial / "bin/python", "-m", "pip", "install", "--quiet", "-r", pins]
        done = processes.run(install, env=session_environment, check=False)
        if done.returncode:
            pytest.skip(f"needs Sphinx from the package index: {done.stderr.strip()[-300:]}")

    return cache.cached(f"sphinx-{cache.fingerprint(pins, python)}", build) / "bin/python"


@pytest.fixture(scope="module")
def site(sphinx, session_environment, tmp_path_factory):
    """Build the site; give its folder and what Sphinx says."""
    folder = tmp_path_factory.mktemp("site")
    command = [sphinx, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", "docs"]
    words = [*command, "-d", folder / "doctrees", ".", folder / "site"]
    done = processes.run(words, cwd=ROOT, env=session_environment, check=False)
    return folder / "site", done.stderr


def test_site_is_built_without_a_warning(site):
    folder, warnings = site
    assert warnings == ""
    assert (folder / "docs/index.html").is_file()
    assert os.path.getsize(folder / "docs/reference/commands.html") > 10000


def test_code_has_a_button_to_copy_it_and_the_tutorial_its_picture(site):
    page = (site[0] / "docs/tutorial.html").read_text(encoding="utf-8")
    assert "copybutton.js" in page
    assert (site[0] / "_static/copybutton.js").is_file()
    assert "../_images/loss.png" in page and (site[0] / "_images/loss.png").is_file()
