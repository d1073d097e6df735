"""Docker and podman: which sources they take, what a build runs, and what a launch adds."""

import os

import pytest
from support.builds import GIVEN, configure
from support.repository import toml

from lib.images.build import image_download_lines
from lib.runtimes.choice import choose_runtime
from lib.runtimes.environment import Environment
from lib.runtimes.image import check_usable, image_source
from lib.script.errors import LongshipError
from lib.script.render import render

BOTH = pytest.mark.parametrize("runtime", ["docker", "podman"])


@pytest.fixture
def bash(run, clean_environment):
    """Give a function that runs lines as a script, with added variables."""

    def run_script(*lines, env=None, **options):
        command = ["bash", "-c", render("a test", lines)]
        return run(command, env={**clean_environment, **(env or {})}, **options)

    return run_script


@BOTH
def test_source_that_only_apptainer_can_use_is_refused(runtime, repository):
    repository.write("configuration.toml", 'container.image = "oras://x/y:1"\n')
    with pytest.raises(LongshipError, match=f"{runtime} cannot build from") as error:
        check_usable(runtime, image_source(repository.settings()))
    assert 'container.runtime = "apptainer"' in error.value.hint


@pytest.mark.parametrize(
    ("runtime", "image", "line"),
    [
        ("docker", "docker://x/y:1", "docker pull --platform linux/amd64 x/y:1"),
        ("podman", "{file}.Dockerfile", "podman build --platform linux/amd64 --file {file}"),
        ("docker", "docker-archive:{file}.tar", "engine_load docker longship/x:amd64-partial"),
        ("podman", "docker-daemon:y:1", "podman pull docker-daemon:y:1"),
    ],
)
def test_image_is_made_by(runtime, image, line, built_by):
    found = built_by(runtime, image)
    assert any(each.startswith(line) for each in found), found


def test_required_digest_is_what_is_fetched(built_by):
    digest = f"sha256:{'1' * 64}"
    found = built_by("docker", f"docker://x/base:1@{digest}")
    tag = f"docker tag x/base@{digest} longship/base_1"
    assert any(each.startswith(tag) for each in found), found


def test_archive_in_apptainers_form_is_of_no_use(repository):
    settings, here = configure(repository, "docker://x/base:1")
    found = image_download_lines(Environment(settings, here, "docker"), **GIVEN)
    assert not any(line.endswith(" singularity") for line in found)


@BOTH
@pytest.mark.parametrize(
    "line",
    [
        "if engine_image PROGRAM exists FILE; then :; fi",
        "build_address=docker-daemon:mine:1; build_run() { :; }; engine_import PROGRAM mine:1-x",
    ],
)
def test_image_is_not_missing_where_nothing_answers(line, runtime, bash, tmp_path):
    program = tmp_path / runtime
    program.write_text('#!/bin/sh\n[ "$1" = version ] && [ -e "$0.works" ]\n')
    program.chmod(0o755)
    (tmp_path / f"x.{runtime}").write_text("x:1\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    line = line.replace("PROGRAM", runtime).replace("FILE", f"{tmp_path}/x.{runtime}")
    done = bash(line, env=env, check=False)
    assert f"error: {runtime} is installed but does not work\n" in done.stderr
    (tmp_path / f"{runtime}.works").touch()
    done = bash(line, env=env, check=False)
    assert "does not work" not in done.stderr


def test_image_of_the_store_is_looked_for(repository, tmp_path):
    repository.environ["PATH"] = str(tmp_path)
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    tried = []
    choose_runtime(*repository.settings_and_paths(arch="amd64"), tried.append)
    assert tried == [["docker", "image", "inspect", "longship/base_1:amd64"]]


def start(repository, runtime, scratch):
    repository.write(
        "configuration.toml",
        f'paths.scratch_dir = {toml(scratch)}\ncontainer.image = "docker://x/base:1"\n',
    )
    return Environment(*repository.settings_and_paths(arch="amd64"), runtime).image


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_tag_in_use_is_the_one_that_the_file_names(runtime, repository, tmp_path):
    assert start(repository, runtime, tmp_path) == "longship/base_1:amd64"  # which is not there
    (tmp_path / "containers/versions").mkdir(parents=True)
    file = f"base_1_amd64_2_b.{runtime}"
    (tmp_path / "containers/versions" / file).write_text("longship/base_1:amd64_2_b\n")
    (tmp_path / f"containers/base_1_amd64.{runtime}").symlink_to(f"versions/{file}")
    assert start(repository, runtime, tmp_path) == "longship/base_1:amd64_2_b"


def test_tag_in_a_folder_that_cannot_be_looked_into_is_not_in_use(repository, unseen):
    assert start(repository, "docker", unseen) == "longship/base_1:amd64"


# --- a launch


@pytest.mark.parametrize(
    ("program", "runtime", "added"),
    [
        ("docker", "", ["--group-add", "70", "--group-add", "80"]),
        ("podman", "crun", ["--group-add=keep-groups"]),
        ("podman", "runc", []),
    ],
)
def test_groups_of_the_caller_are_kept(program, runtime, added, bash, tmp_path):
    if os.geteuid() == 0 and program == "podman":
        pytest.skip("root's podman is like docker")
    for name, text in (("id", f"{os.getgid()} 70 80"), ("podman", runtime)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = bash(
        "options=()", f"engine_add_groups {program}", "printf '%s\n' \"${options[@]}\"", env=env
    )
    assert done.stdout.split() == added


@pytest.mark.parametrize(
    ("folder", "bound", "there"),
    [
        ("/var/home/me/clone", "/var/home/me", "/var/home/me/clone"),  # Fedora Silverblue
        ("/opt/clone", "/opt/clone", "/opt/clone"),
        ("/var/home/me", "/var/home/m", "/"),
        ("/usr/lib", "", "/"),
        ("/", "", "/"),
    ],
)
def test_engine_keeps_a_working_directory_that_is_visible_inside(folder, bound, there, bash):
    bind = f"bound[{bound}]={bound}" if bound else ":"
    show = 'printf "%s\n" "${options[@]}"'
    done = bash("options=()", bind, f"PWD={folder}", "engine_add_working_directory", show)
    assert "".join(done.stdout.split()).replace("=", "") == f"--workdir{there}"


def test_secret_that_cannot_be_written_starts_nothing(bash):
    """On a full /dev/shm; the text for the shell inside then ends it."""
    done = bash(
        "longship_secrets=(A B) A=1 B=2",
        'printf() { [[ ${2-} != A ]] && builtin printf "$@"; }',
        "engine_secrets_text",
        check=False,
    )
    assert done.returncode == 1 and done.stdout == "exit 1; "
    assert "error: cannot write to /dev/shm" in done.stderr


def test_secrets_that_cannot_be_read_inside_are_told(bash):
    """As with a daemon on another host, or of other user ids."""
    lines = [
        "longship_secrets=(A) A=1",
        "text=$(engine_secrets_text)",
        "rm /dev/shm/longship-secrets-$$.*",
        'sh -c "${text}echo started"',
    ]
    done = bash(*lines, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: cannot read /dev/shm/") and "environment.token_files" in hint
