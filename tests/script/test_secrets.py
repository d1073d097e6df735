"""One list of the forms of secrets, and each place that finds or hides them."""

import re
import time
from argparse import Namespace
from html import unescape
from pathlib import Path

import pytest
from support.git import make_upstream

from lib.bundle import pack
from lib.configuration import schema, snapshot
from lib.configuration.repositories import _repository
from lib.doctor.checks import as_toml
from lib.doctor.network import without_login
from lib.jobs.working_tree import WorkingTree
from lib.script.errors import LongshipError
from lib.script.render import render
from lib.script.secrets import SECRET, has_secret, mask

ROOT = Path(__file__).resolve().parents[2]
# Not in one piece: nobody could pack this repository.
V, HEX = "q7Zk8" + "bW2" * 8, "0a1b2c3d" * 5
URLS = [
    f"https://{V}@example.org/simple",
    f"https://me:{V}@example.org/x",
    f"git+https://me:{V}@example.org/x.git@v1",
    f"simple+https://me:p@{V}@example.org/x",
    f"postgres://me:{V}@example.org/db",
    f"http://:{V}@example.org:3128",
]
FORMS = [
    *URLS,
    f"Authorization: Bearer {V}",
    f"-H 'authorization: bearer {V}'",
    f'"Authorization": "Basic {V}"',
    f"X-Api-Key: {V}",
    f"password: {V}",
    f"DB_PASSWORD={V}",
    f"PGPASSWORD='{V}'",
    f'passphrase = "{V}"',
    f'{{"token": "{V}"}}',
    f'{{\\"token\\": \\"{V}\\"}}',
    f"{{'auth_token': '{V}'}}",
    f"accessToken: '{V}'",
    f"client_secret={V}",
    f"https://example.org/x?token={V}&page=2",
    f"--hub-token {V} --steps 3",
    f"'--api-key' '{V}'",
    f"--api-key={V}",
    f"export WANDB_API_KEY={HEX}",
    f"wandb login {HEX}",
    f"wandb login --relogin {HEX}",
    f'os.environ.setdefault("WANDB_API_KEY", "{HEX}")',
    f"machine api.wandb.ai login user password {HEX}",
    f"machine example.org login me password {V}",
    f"aws_secret_access_key = {V}",
    f"AccountKey={V};EndpointSuffix=core.windows.net",
    "AKIA" + "Q7Z2" * 4,
    "hf_" + "aB3" * 12,
    "ghp_" + "aB3" * 12,
    "github_pat_" + "aB3" * 12,
    "glpat-" + "aB3" * 8,
    "nvapi-" + "aB3" * 12,
    "sk-" + "proj-" + "aB3" * 12,
    "xoxb-" + "12345-" * 4,
    f"eyJ{V}.eyJ{V}.{V}",
    f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{V}\n-----END RSA PRIVATE {'KEY'}-----",
]
SHORT = [
    "password: xy1",
    "'password': 'my horse'",
    "docker login -u me -p xy1 example.org",
    "curl -u me:xy1 https://example.org",
    "Authorization: Bearer xy1",
    "--password xy1",
    "'--api-key' 'abcdxy1x'",
    "https://me:a/xy1@c@proxy:3128/",
]
HARMLESS = [
    "token: 512 tokens/s",
    "tokens: 1.5e9, tokens_per_second=51234.5, max_tokens=40960000, --max-tokens 4096",
    "password-protected",
    "Support for password authentication was removed",
    "No API key configured; run wandb login first, or wandb login --relogin",
    "learning_rate=0.1",
    "commit 201e683c64050cacc5150f059582746b27e2ce54",
    "image_sha256=" + "0123456789abcdef" * 4,
    "--tokenizer-type GPT2BPETokenizer --tokenizer-model meta-llama/Llama-3.1-8B",
    "eos_token='</s>' pad_token=None --pad-token '<pad>' \"bos_token\": \"<|begin_of_text|>\"",
    "invalid token: unexpected end of file",
    "https://pypi.org/simple http://localhost:8080/user@x ssh://git@github.com/x/y.git",
    "git@github.com:x/y.git me@example.org pip install x@https://example.org/x.whl",
    "docker://nvcr.io/nvidia/pytorch:25.01@sha256:0123456789abcdef",
    "WANDB_API_KEY and HF_TOKEN are not set",
    "TOKENIZERS_PARALLELISM=false",
    "global-batch-size-and-micro-batch-size, disk-or-memory-with-large-pages",
    "token = get_token()",
    "srun --user 1000:1000 --task-disk-mask 1",
]


TEXTS = [*FORMS, *HARMLESS]
WITH = [f"file-{number}" for number, text in enumerate(TEXTS) if text in FORMS]
WITHOUT = [f"file-{number}" for number, text in enumerate(TEXTS) if text in HARMLESS]


def secret_of(text):
    return next((each for each in (V, HEX, "xy1", "horse") if each in text), text)


def test_forms_are_many():
    assert len(set(FORMS)) > 27


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "lib/jobs/inside")
    import report_page

    return report_page


@pytest.mark.parametrize("text", [*FORMS, *SHORT])
def test_no_text_shows_a_secret(text, page):
    secret = secret_of(text)
    for shown in (mask(text), mask(f"x {text} y"), unescape(page.shown(text))):
        assert secret not in shown and "***" in shown
    assert secret not in as_toml(text) and secret not in as_toml([text]), text


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_are_shown_as_they_are(text, page):
    assert mask(text) == unescape(page.shown(text)) == text


@pytest.fixture
def files(tmp_path, clean_environment):
    """Give a repository with a commit for each form and each other text, which it names."""
    upstream = make_upstream(tmp_path / "packed", clean_environment)
    for number, text in enumerate(TEXTS):
        upstream.write(f"file-{number}", f"{text}\n")
        upstream.commit(f"file-{number}")
    return upstream


def test_bundle_refuses_each_form_in_a_file_and_in_the_history(files):
    allowed = Namespace(repository=str(files.folder), allow=[])
    names = {f"repository/{name}": str(files.folder / name) for name in WITHOUT}
    pack._check_secrets(names, [*names], allowed)
    for each in WITH:
        name = f"repository/{each}"
        with pytest.raises(LongshipError, match="looks like a token or key"):
            pack._check_secrets({name: str(files.folder / each)}, [name], allowed)
    log = files.git("log", "--format=%s", f"-G{SECRET}").split()
    assert sorted(log) == sorted(WITH)
    with pytest.raises(LongshipError, match="history contains what looks like a token"):
        pack._check_history(allowed)
    pack._check_history(Namespace(repository=str(files.folder), allow=WITH))


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
    environment = schema.Environment(set={"NOTE": text})
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
