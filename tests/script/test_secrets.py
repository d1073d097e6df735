"""One list of the forms of secrets, and each place that finds or hides them."""

import re
import time
from pathlib import Path

import pytest
from support.git import make_upstream
from support.secret_forms import FORMS, HARMLESS, SHORT, TEXTS, URLS, WITH, WITHOUT, V, secret_of

from lib.configuration import schema, snapshot
from lib.configuration.repositories import _repository
from lib.doctor.checks import as_toml
from lib.doctor.network import without_login
from lib.jobs.working_tree import WorkingTree
from lib.script.errors import LongshipError
from lib.script.render import render
from lib.script.secrets import has_secret, mask

ROOT = Path(__file__).resolve().parents[2]


def test_forms_are_many():
    assert len(set(FORMS)) > 27


@pytest.mark.parametrize("text", [*FORMS, *SHORT])
def test_no_text_shows_a_secret(text):
    secret = secret_of(text)
    for shown in (mask(text), mask(f"x {text} y")):
        assert secret not in shown and "***" in shown
    assert secret not in as_toml(text) and secret not in as_toml([text]), text


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_are_shown_as_they_are(text):
    assert mask(text) == text


def test_patch_of_a_run_leaves_out_each_form(tmp_path, clean_environment):
    repository = make_upstream(tmp_path / "code", clean_environment)
    for number, text in enumerate(TEXTS):
        repository.write(f"file-{number}", f"{text}\n")
    WorkingTree(repository.folder).describe(tmp_path / "record")
    patch = (tmp_path / "record.patch").read_text()
    assert sorted(re.findall(r"^diff --git a/(\S+)", patch, re.MULTILINE)) == sorted(WITHOUT)
    left = (tmp_path / "record.commit").read_text()
    assert sorted(re.findall("contains a password: (.*)", left)) == sorted(WITH)


@pytest.mark.parametrize("text", TEXTS)
def test_configuration_stores_no_form(text):
    environment = schema.EnvironmentKeys(set={"NOTE": text})
    found = snapshot.refused_secrets(environment, {"environment.set": "configuration.toml"})
    assert bool(found) == (text in FORMS)


@pytest.mark.parametrize("text", URLS)
def test_no_url_keeps_a_login(text, run, clean_environment):
    command = ["bash", "-c", render("a test", ["strip_passwords"])]
    stripped = run(command, env=clean_environment, input=f"{text}\n").stdout
    assert V not in stripped and "://example.org" in stripped
    assert V not in without_login(text)
    with pytest.raises(LongshipError, match="url of repository x contains a password"):
        _repository({"name": "x", "url": text}, "configuration.toml")


@pytest.mark.parametrize(
    "part",
    ["a", "-", "=", " ", "token:", "token=", "--token", "password='", "://u:p", "https://u", "eyJ"]
    + ["BEGIN ", "END ", "wandb login --x ", "login x password ", "Bearer ", "authorization:"],
)
def test_no_text_takes_long(part):
    text = part * ((1 << 18) // len(part))
    before = time.process_time()
    mask(text), has_secret(text.encode())
    assert time.process_time() - before < 10
