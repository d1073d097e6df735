"""lib/images/image.bash and its neighbours: records as JSON, sizes, architectures of archives."""

import json
import os
import re
import stat
import tarfile

import pytest
from support.terminal import Terminal

from lib.script.command import call
from lib.script.render import render


@pytest.fixture
def bash(run):
    """Give a function that runs lines as a script and returns its CompletedProcess."""

    def run_lines(*lines, **options):
        return run(["bash", "-c", render("a test", lines)], **options)

    return run_lines


def test_every_text_survives_a_record(bash, hostile_arguments):
    for text in hostile_arguments:
        found = bash(call("json_text", text), 'printf %s "$REPLY"').stdout
        assert json.loads(f'"{found}"') == text


def test_value_of_a_record(bash, tmp_path):
    record = tmp_path / "record.json"
    record.write_text('{\n  "source": "a \\"b\\"",\n  "digest": "",\n  "script": "x"\n}\n')
    lines = [
        f'record_value {call(record)} {name}; echo "<$REPLY>"'
        for name in ("source", "digest", "script", "none")
    ]
    assert bash(*lines).stdout.splitlines() == ['<a \\"b\\">', "<>", "<x>", "<>"]
    assert bash('record_value /none x; echo "<$REPLY>"').stdout == "<>\n"


def test_build_that_another_image_is_in_is_left_alone(bash, tmp_path):
    """The name of one can end in the name of the other."""
    others = ["partial-98-my-x_amd64.sif", "partial-98-my-x_amd64.sif.json"]
    dead = ["partial-7-x_amd64.sif", "partial-7-x_amd64.sif.json", "partial-8-x_amd64.sif.json"]
    build = tmp_path / "build"
    build.mkdir()
    for each in (*others, *dead):
        (build / each).touch()
    given = f"build_image={call(build / 'x_amd64.sif')} build_work=/none"
    bash('image_ask() { rm -- "$2"; }', given, "build_remove_dead")
    assert sorted(each.name for each in build.iterdir()) == others


def test_build_that_cannot_be_deleted_keeps_no_lock(bash, tmp_path):
    """As without docker's daemon, at which a runtime's answer stops."""
    lines = [
        'image_ask() { fail "it does not work" "start it"; }',
        call("at_exit", "touch", tmp_path / "released"),
        f"build_partial={call(tmp_path / 'x')} build_tmp=/none",
        "at_exit build_discard",
        "exit 3",
    ]
    assert bash(*lines, check=False).returncode == 3
    assert (tmp_path / "released").exists()


def test_group_can_read_what_a_member_with_a_narrow_umask_activates(bash, tmp_path):
    active, image = tmp_path / "base_amd64.sif", tmp_path / "build/base_amd64.sif"
    image.parent.mkdir()
    image.write_text("an image")
    image.with_name("base_amd64.sif.json").write_text("{}\n")
    version = tmp_path / "versions/base_amd64_1_2.sif"
    version.parent.mkdir()
    bash("umask 077", call("version_make", active, image, version))
    history = version.with_name("base_amd64.sif.history")
    for path in (version.with_name(f"{version.name}.json"), history):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (69_685_248, "69.7 MB"),
        (205_285_888, "205 MB"),
        (9_400_000_000, "9.4 GB"),
        (20_000_000_000, "20.0 GB"),
    ],
)
def test_size_in_words(size, text, bash):
    assert bash(f'bytes_format {size}; echo "$REPLY"').stdout == f"{text}\n"


def archive(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            file = path.with_name("member")
            file.write_text(content if isinstance(content, str) else json.dumps(content))
            tar.add(file, name)
    return path


def test_architecture_of_both_layouts(bash, tmp_path):
    docker = {
        "abc.json": {"os": "linux", "architecture": "arm64"},
        "manifest.json": [{"Config": "abc.json", "Layers": []}],
    }
    oci = {
        "index.json": {"manifests": [{"digest": "sha256:12"}]},
        "blobs/sha256/12": {"config": {"digest": "sha256:34"}, "layers": [{"digest": "sha256:5"}]},
        "blobs/sha256/34": {"architecture": "amd64"},
    }
    assert bash(call("archive_arch", archive(tmp_path / "d.tar", docker))).stdout == "arm64\n"
    assert bash(call("archive_arch", archive(tmp_path / "o.tar", oci))).stdout == "amd64\n"
    dotted = {f"./{name}": content for name, content in oci.items()}
    assert bash(call("archive_arch", archive(tmp_path / "p.tar", dotted))).stdout == "amd64\n"


def test_what_is_no_archive_has_no_architecture(bash, tmp_path):
    other = archive(tmp_path / "x.tar", {"x": "y"})
    zeros = tmp_path / "zeros.tar"
    zeros.write_bytes(bytes(10_000))
    for path in (other, zeros, tmp_path / "none.tar"):
        assert bash(call("archive_arch", path)).stdout == ""


@pytest.mark.parametrize(
    ("name", "untagged"),
    [
        ("x/y:1", "x/y"),
        ("localhost:5000/y", "localhost:5000/y"),
        ("localhost:5000/y:1", "localhost:5000/y"),
        ("localhost:5000#y:1", "localhost:5000#y"),
        ("x/y@sha256:12", "x/y"),
        ("docker://x/y", "docker://x/y"),
        ("docker://localhost:5000/lab/y:1@sha256:34", "docker://localhost:5000/lab/y"),
        ("y", "y"),
    ],
)
def test_name_without_its_tag(name, untagged, bash):
    assert bash(call("address_strip_tag", name)).stdout == untagged


def step(goes_on, *paths):
    """Give lines that show the progress of a program for as long as a command goes on."""
    program = f"echo 'INFO:    Starting'; echo Fetching; {goes_on}"
    return f"{{ {program}; }} | {call('progress_show', *paths)}"


def test_log_has_the_steps_of_apptainer_and_no_other_progress(bash):
    assert bash(step("sleep 1.5", "/none")).stderr == "      Starting\n"


def test_progress_on_a_terminal_is_one_line_with_time_and_bytes(clean_environment, tmp_path):
    (tmp_path / "work/cache").mkdir(parents=True)
    (tmp_path / "work/cache/blob").write_bytes(bytes(3_000_000))
    os.mkfifo(tmp_path / "fifo")
    lines = [step("cat fifo", "/none", tmp_path / "work/cache")]
    (tmp_path / "step.sh").write_text(render("x", lines))
    with Terminal(["bash", "step.sh"], env=clean_environment, cwd=tmp_path) as terminal:
        terminal.expect(" s, 3.0 MB")
        terminal.expect(" s, 3.0 MB")  # a second later
        (tmp_path / "fifo").write_text("")
        assert terminal.end() == 0, terminal.said
    shown = terminal.said
    assert re.search(r"\r\x1b\[K      Fetching  [1-9]\d* s, 3\.0 MB", shown)
    assert shown.endswith("\r\x1b[K") and "\n" not in shown


HINTS = {
    "GET http://x/v2/lab/y/manifests/1: MANIFEST_UNKNOWN": "check container.image",
    "no match for platform in manifest": "check container.image",
    "pull access denied for y, repository does not exist": "apptainer registry login",
    "toomanyrequests: You have reached your pull rate limit": "docker://x.org",
    "UNAUTHORIZED: authentication required": "apptainer registry login",
    "dial tcp: lookup x on 1.2.3.4:53: no such host": "build_container.py download",
    "curl: (6) Could not resolve host: x": "build_container.py download",
    "permission denied while trying to connect to the Docker daemon socket": "docker version",
    "write /x: no space left on device": "free some space",
    "write /x: disk quota exceeded": "free some space",
}


@pytest.mark.parametrize("text", HINTS)
def test_failure_is_that_of_the_program_with_what_to_type(text, bash, tmp_path):
    (tmp_path / "log").write_text(f"INFO: before\n{text}\n")
    line = call("build_fail", tmp_path / "log", "apptainer", "docker://x.org/lab/y:1", "", "")
    login = "build_login='run: apptainer registry login docker://HOST'"
    done = bash("arch=amd64 machine=local", login, line, check=False)
    said, error, hint = done.stderr.splitlines()[1:]
    assert (done.returncode, said) == (1, text)
    assert error == "error: apptainer cannot build an image from docker://x.org/lab/y:1"
    assert hint.startswith("hint: ") and HINTS[text] in hint
