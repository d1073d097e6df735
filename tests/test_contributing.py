"""What greets contributors: hooks, workflow and templates fit the repository."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())


def test_files_are_yaml():
    for path in ROOT.glob(".github/**/*.yml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hook_has_the_pins_of_the_tests(hook):
    text = "".join((ROOT / f"requirements/{name}.txt").read_text() for name in ("host", "test"))
    pins = [line.partition("#")[0].strip() for line in text.splitlines()]
    assert [each for each in hook["additional_dependencies"] if each not in pins] == []


def steps(job):
    return [each["run"] for each in WORKFLOW["jobs"][job]["steps"] if "run" in each]


def test_workflow_calls_the_same_scripts_as_a_user():
    assert any(each.startswith("./run_tests.sh") for each in steps("python"))
    assert "sudo .ci/run" in steps("all")
    assert 'run_tests.sh" --all' in (ROOT / ".ci/run").read_text()
    for step in (each for job in WORKFLOW["jobs"] for each in steps(job)):
        for word in shlex.split(step):
            if re.match(r"(\./|\.ci/|tests/|requirements/)", word):
                assert (ROOT / word).is_file(), word


def test_workflow_tests_every_python_that_the_scripts_run_with():
    from lib import OLDEST_PYTHON

    tested = WORKFLOW["jobs"]["python"]["strategy"]["matrix"]["python"]
    assert tested[0] == "{}.{}".format(*OLDEST_PYTHON)
    assert tested == [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], 15)]


def test_workflow_builds_the_site_as_contributors_do():
    build = next(each for each in steps("documentation") if "sphinx" in each)
    assert build.partition(" -m ")[2] in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_form_asks_for_what_doctor_says(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    labels = [each["attributes"]["label"] for each in form["body"]]
    assert {"python3 doctor.py --json", "python3 doctor.py --site"} & {*labels}
    assert len({each["id"] for each in form["body"]}) == len(labels)
