"""Repositories and packages of many kinds to install, and the folder that they are found in."""

import json

from support import processes
from support.environments import write_wheel

HATCHLING = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "modern"
version = "1.0"
dependencies = ["longship_tiny"]
optional-dependencies.extra = ["longship_extra"]

[tool.hatch.build.targets.wheel]
packages = ["src/modern"]
"""
# what it needs is known only once this runs
SETUP = """\
from setuptools import setup

wanted = open("wanted.txt").read().split()
setup(name="classic", version="1.0", py_modules=["classic"], install_requires=wanted)
"""
REPOSITORIES = """
[[repositories]]
url = {modern}
extras = ["extra"]
script = "requirements/script.sh"

[[repositories]]
url = {classic}
install = "plain"

[[repositories]]
url = {listed}
install = "requirements"
requirements = "needs.txt"
"""
NAMES = ("modern", "classic", "listed")


def configured_repositories(servers):
    """Give the tables of configuration.toml for what `write_repositories` makes."""
    urls = {name: json.dumps((servers / name).as_uri()) for name in NAMES}
    return REPOSITORIES.format(**urls)


def write_repositories(clone, servers):
    """Make three repositories for `set_up.py` to clone, and the script of one.

    Return the folder that they are cloned to.
    """
    files = {
        "modern/pyproject.toml": HATCHLING,
        "modern/src/modern/__init__.py": "VALUE = 1\n",
        "classic/setup.py": SETUP,
        "classic/wanted.txt": "longship_tiny\n",
        "classic/classic.py": "VALUE = 1\n",
        "listed/needs.txt": "longship_listed\n",
    }
    for name, text in files.items():
        path = servers / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in NAMES:
        git = ["git", "-C", servers / name, "-c", "user.name=me", "-c", "user.email=me@example.org"]
        for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=all"]):
            processes.run([*git, *words], env=clone.environment)
    script = 'command -v python >"$VIRTUAL_ENV/script"\npwd >>"$VIRTUAL_ENV/script"\n'
    (clone.root / "requirements/script.sh").write_text(script)
    return clone.scratch.parent / "the project/repos"


def write_packages(folder):
    """Fill a folder with small packages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("longship_tiny", "longship_extra", "longship_listed"):
        write_wheel(folder, name, "1.0")
    return folder
