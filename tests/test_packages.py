"""What is installed, and when there is nothing to install."""

import pytest

from lib.errors import LongshipError
from lib.packages import install_lines, wanted_venv


def test_venv_is_wanted_for_a_requirements_file(repository):
    settings, paths = repository.settings_and_paths()
    assert wanted_venv(settings, paths) == paths.venv


def test_no_requirements_want_no_venv_and_nothing_is_installed(repository):
    repository.write("configuration.toml", '[packages]\nrequirements = ""\n')
    settings, paths = repository.settings_and_paths()
    assert wanted_venv(settings, paths) is None
    with pytest.raises(LongshipError, match="packages.requirements is empty") as error:
        install_lines(settings, paths, "host")
    assert "nothing to install" in error.value.hint


def test_requirements_stand_behind_their_option(repository):
    settings, paths = repository.settings_and_paths()
    lines = "\n".join(install_lines(settings, paths, "host")).replace("\\\n  ", "")
    assert f"-r {paths.root}/requirements/environment.txt" in lines
