"""What the pages say: commands and configuration are taken, links lead somewhere."""

import re
import subprocess
from pathlib import Path

import click
import pytest
from support.documentation import (
    anchors,
    blocks,
    file_calls,
    inline_code,
    links,
    page_paths,
    read,
    script_calls,
    simple_commands,
)
from writers.commands import click_commands, payload_parser

from lib import VERSION
from lib.configuration.layers import load_settings
from lib.configuration.sites import load_machines
from lib.configuration.stacks import load_stack, stack_names
from lib.configuration.tables import read_toml

pytestmark = pytest.mark.extras

ROOT = Path(__file__).resolve().parents[1]
PAGES = [str(each) for each in page_paths()]
COMMANDS = click_commands()
PAYLOAD = ("train.py", "preprocess_data.py")


@pytest.fixture
def described(tmp_path):
    """Give a function that makes a repository of all sites and stacks, and of those on a page."""

    def make(text):
        for path in (*ROOT.glob("*/site.toml"), *ROOT.glob("stacks/*/stack.toml")):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
        for block in blocks(text, "toml"):
            name = file_of(block)
            if name.endswith(("site.toml", "stack.toml")):
                write_file(tmp_path / name, block)
        for words in (each for block in blocks(text, "bash") for each in simple_commands(block)):
            if words[0] == "cp" and (ROOT / words[1]).is_file():
                write_file(tmp_path / words[2], (ROOT / words[1]).read_text())
        return tmp_path

    return make


def write_file(path, text):
    """Write a file in the place of one that may be a link into this repository."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def file_of(block):
    """Name the file that a block of TOML is of: its first line, or else the configuration."""
    first = block.partition("\n")[0]
    is_name = first.startswith("# ") and first.endswith(".toml") and " " not in first[2:]
    return first[2:] if is_name else "configuration.toml"


def test_pages_are_found():
    assert {"README.md", "docs/index.md", "jsc/README.md", "stacks/trl/README.md"} <= {*PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_bash_are_bash(page):
    for block in blocks(read(page), "bash"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr}\n{block}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_fit_the_page(page):
    """GitHub and the site cut a line after 86 characters: comments belong above commands.

    What a program prints stays as it is, and a value of TOML cannot be broken.
    """
    lines = [
        line
        for language in ("bash", "toml", "markdown", "")
        for block in blocks(read(page), language)
        for line in block.splitlines()
    ]
    wide = [each for each in lines if len(each) > 86]
    assert [each for each in wide if not re.fullmatch(r'[\w.]+ = "(\\.|[^"\\])*"', each)] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_taken_by_the_scripts(page, described):
    text = read(page)
    repository = described(text)
    code = [*blocks(text, "bash"), *(each for each in inline_code(text) if "python3 " in each)]
    for block in code:
        for script, *arguments in script_calls(simple_commands(block)):
            try:
                check_call(repository, script, arguments)
            except (click.ClickException, AssertionError, SystemExit) as error:
                pytest.fail(f"python3 {script} {' '.join(arguments)}: {error}")


def check_call(repository, script, arguments):
    """Let the script's own command read the words, without doing anything."""
    assert script in COMMANDS, "there is no such script"
    try:
        given = COMMANDS[script].make_context(script, list(arguments)).params
    except click.exceptions.Exit:  # --help
        return
    if given.get("machine"):
        assert given["machine"] in load_machines(repository), "there is no such machine"
    assert given.get("stack", "") in ("", *stack_names(repository)), "there is no such stack"
    if script == "submit.py" and "job" in given:
        check_job(repository, given["job"])
    if script == "container_run.py":
        python, *words = (*given["command"], "", "")
        if python in ("python", "python3") and words[0] in PAYLOAD and "--help" not in words:
            payload_parser(words[0]).parse_args(words[1:-2])


def check_job(repository, job):
    made_up = (repository / job).parent != repository and (repository / job).parent.is_dir()
    shipped = (ROOT / job).parent.is_dir()
    placeholder = job.replace("/", "").partition(".")[0].isupper()
    known = job in ("status", "report", "rerun", "sync") or placeholder
    assert known or (ROOT / job).is_file() or (made_up and not shipped), "there is no such job file"


@pytest.mark.parametrize("page", PAGES)
def test_scripts_that_are_named_are_there(page):
    for words in (each for block in blocks(read(page), "bash") for each in simple_commands(block)):
        script = words[0]
        if script.startswith("./"):
            assert (ROOT / script).is_file(), script
        if script == "./run_tests.sh":
            files = [each.rpartition("=")[2].partition("::")[0] for each in words[1:]]
            assert all((ROOT / each).exists() for each in files if each.startswith("tests/")), words


@pytest.mark.parametrize("page", PAGES)
def test_python_files_in_folders_are_there_and_know_their_options(page):
    text = read(page)
    code = [*blocks(text, "bash"), *(each for each in inline_code(text) if ".py" in each)]
    for path, *arguments in (call for each in code for call in file_calls(simple_commands(each))):
        folder = path.partition("/")[0]
        if folder in ("benchmarks", "docs", "stacks", "tests"):
            source = (ROOT / path).read_text(encoding="utf-8")
            options = [each for each in arguments if each[:2] == "--" and folder == "benchmarks"]
            assert all(f'"{each}"' in source for each in options)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_toml_are_taken(page, described):
    text = read(page)
    repository = described(text)
    own = Path(page).parent.name if page.startswith("stacks/") else ""
    for block in blocks(text, "toml"):
        name = file_of(block)
        write_file(repository / name, block)
        if name.endswith("site.toml"):
            assert load_machines(repository)
        elif name.endswith("stack.toml"):
            load_stack(repository, Path(name).parent.name)
        elif not name.startswith("configuration"):
            assert read_toml(repository / name, name)
        else:
            options = {"configuration": str(repository / name), "stack": own}
            load_settings(repository, options, {"HOME": "/home/me", "USER": "me"})


@pytest.mark.parametrize("page", [*PAGES, "AGENTS.md"])
def test_links_lead_somewhere(page):
    """Sphinx warns of a link to a Markdown file that is no page of the site."""
    for target in links(read(page)):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name if name else ROOT / page).resolve()
        assert path.is_file() and ROOT in path.parents, f"there is no {target}"
        assert path.suffix != ".md" or str(path.relative_to(ROOT)) in PAGES, target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("python3 build_container.py --forse", "No such option"),
        ("python3 build_container.py offlin", "offlin"),
        ("python3 builder.py", "no such script"),
        ("python3 set_up.py install --machine jwx", "no such machine"),
        ("python3 set_up.py install --stack pytorsh", "no such stack"),
        ("python3 submit.py jsc/no_such.sbatch", "no such job file"),
        ("x | python3 container_run.py python train.py --stepps 3 >log  # it's wrong", "2"),
    ],
)
def test_wrong_call_is_seen(call, reason, described):
    ((script, *arguments),) = script_calls(simple_commands(call))
    with pytest.raises((click.ClickException, AssertionError, SystemExit), match=reason):
        check_call(described(""), script, arguments)


def test_page_is_taken_apart():
    block = "# no [link](x)\na 'b\nc' d $(python3 ~/longship/completion.py bash)\npython a/b.py --c"
    text = f"# A `b`, (c)\n\n## A b c\n[x](y.md#z) `[no](link)`\n```bash\n{block}\n```\n"
    assert anchors(text) == ["a-b-c", "a-b-c-1"]
    assert links(text) == ["y.md#z"]
    commands = [words for each in blocks(text, "bash") for words in simple_commands(each)]
    assert commands[0][:3] == ["a", "b\nc", "d"]
    assert list(script_calls(commands)) == [["completion.py", "bash"]]
    assert list(file_calls(commands)) == [["a/b.py", "--c"]]


def test_how_tos_are_listed_in_the_order_of_use():
    listed = re.findall(r"^how-to/(\w+)$", read("docs/index.md"), re.MULTILINE)
    assert sorted(listed) == sorted(each.stem for each in ROOT.glob("docs/how-to/*.md"))
    steps = ["configure", "containers", "packages", "jobs", "diagnose", "repositories"]
    assert [each for each in listed if each in steps] == steps


def test_every_picture_is_shown():
    shown = {
        ((ROOT / page).parent / target).resolve() for page in PAGES for target in links(read(page))
    }
    assert {*ROOT.glob("docs/**/*.png"), *ROOT.glob("docs/**/*.svg")} <= shown


@pytest.mark.parametrize("path", ROOT.glob("docs/*.svg"), ids=lambda path: path.name)
def test_drawing_can_be_read_on_a_telephone(path):
    """A page is 400 pixels wide there, and text is legible from 11 pixels on."""
    text = path.read_text(encoding="utf-8")
    width = int(re.search(r'width="(\d+)"', text)[1])
    sizes = re.findall(r'font-size(?:="|: )(\d+)', text)
    assert len(sizes) > 1 and min(map(int, sizes)) * min(1, 400 / width) > 11


def test_site_is_not_wider_than_the_window():
    """Furo has 15em on each side of the content and its padding of 6em.

    The em of a media query is 16 pixels; from 97em on, furo's own is 17.6. A scroll bar takes 15.
    """
    css = re.sub(r"/\*.*?\*/", "", read("docs/static/longship.css"), flags=re.DOTALL)
    at = 0
    for least, width in re.findall(
        r"@media \(min-width: (\d+)em\)|\.content \{ width: (\d+)em", css
    ):
        if least:
            at = int(least)
        else:
            em = 17.6 if at >= 97 else 16
            assert (15 + 6 + int(width) + 15) * em <= at * 16 - 15, f"{width}em from {at}em on"


def test_version_is_the_date_of_the_newest_changes():
    dates = re.findall(r"^## (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert dates[0] == VERSION
    assert dates == sorted(dates, reverse=True)
    assert [each for each in dates if not re.fullmatch(r"20\d\d\.\d\d\.\d\d", each)] == []


def test_tutorial_repeats_a_job_under_a_name_that_has_not_trained():
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    *before, last = [each for each in blocks(text, "bash") if "--run-name" in each]
    assert "rerun" in last
    name = re.search(r"--run-name (\S+)", last)[1]
    assert not any(f"--run-name {name}" in each for each in before)
    assert "~/longship-data" in text  # what the quickstart leaves there
