"""Which runtime starts which image, and the lines that do it."""

import pytest

from lib.container import (
    base_of,
    choose_runtime,
    describe_launch,
    image_source,
    inside_lines,
    run_lines,
)
from lib.errors import LongshipError

ALL = ("apptainer", "singularity", "docker", "podman")


@pytest.fixture
def install(tmp_path, repository):
    """Give a function that puts programs of these names on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    repository.environ["PATH"] = str(folder)

    def put(*names):
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)

    return put


def choose(repository, working=()):
    """Choose where only the `working` runtimes can start the image; give the commands tried too."""
    tried = []

    def succeeds(command):
        tried.append(command)
        return command[0] in working

    return choose_runtime(*repository.settings_and_paths(arch="amd64"), succeeds), tried


@pytest.mark.parametrize("runtime", [*ALL, "host"])
def test_configured_runtime_is_taken_without_a_question(runtime, repository, install):
    install(*ALL)
    repository.write("configuration.toml", f'[container]\nruntime = "{runtime}"\n')
    choice, tried = choose(repository)
    assert (choice.runtime, choice.why, choice.lasting, tried) == (runtime, "", True, [])


def test_runtime_of_the_site_is_taken(repository, install):
    install(*ALL)
    repository.write("local/site.toml", '[machines.local]\nruntime = "singularity"\n')
    assert choose(repository)[0].runtime == "singularity"
    repository.write("configuration.toml", '[container]\nruntime = "podman"\n')
    assert choose(repository)[0].runtime == "podman"


@pytest.mark.parametrize("runtime", ALL)
def test_first_runtime_that_works_is_taken(runtime, repository, install):
    install(*ALL)
    working = ALL[ALL.index(runtime) :]
    choice, tried = choose(repository, working)
    assert choice.runtime == runtime
    assert runtime in choice.why
    assert [command[0] for command in tried] == list(ALL[: ALL.index(runtime) + 1])
    assert choice.lasting == (runtime == "apptainer")


def test_runtime_that_is_not_installed_is_not_tried(repository, install):
    install("podman")
    choice, tried = choose(repository, ALL)
    assert choice.runtime == "podman" and choice.lasting
    assert [command[0] for command in tried] == ["podman"]


def test_host_is_what_is_left(repository, install):
    choice, tried = choose(repository, ALL)
    assert (choice.runtime, choice.lasting, tried) == ("host", True, [])
    assert "no other is installed" in choice.why
    install("docker")
    choice, _ = choose(repository)
    assert (choice.runtime, choice.lasting) == ("host", False)  # its daemon may start later
    assert "docker" in choice.why


def test_what_is_tried_is_this_image(repository, install):
    install(*ALL)
    _, tried = choose(repository)
    image = "/home/me/longship/scratch/containers/base_1_amd64.sif"
    assert ["apptainer", "--quiet", "exec", image, "/bin/true"] in tried
    assert ["docker", "image", "inspect", "longship/base_1:amd64"] in tried


def test_image_of_the_configuration_wins_over_the_stacks(repository):
    assert image_source(repository.settings()) == "docker://example.org/lab/base:1"
    repository.write("configuration.toml", '[container]\nimage = "docker://x/y:2"\n')
    assert image_source(repository.settings()) == "docker://x/y:2"


@pytest.mark.parametrize("gpu", ["cuda", "rocm", "cpu"])
def test_image_of_the_stack_is_the_one_for_the_gpu(gpu, repository):
    images = "".join(f'{each} = "docker://x/{each}:1"\n' for each in ("cuda", "rocm", "cpu"))
    repository.write("stacks/pytorch/stack.toml", f"[images]\n{images}")
    repository.write("local/site.toml", f'[machines.local]\ngpu = "{gpu}"\n')
    assert image_source(repository.settings()) == f"docker://x/{gpu}:1"


def test_stack_without_an_image_for_the_gpu_is_told(repository):
    repository.write("local/site.toml", '[machines.local]\ngpu = "rocm"\n')
    with pytest.raises(LongshipError, match="stack pytorch has no image for rocm") as error:
        image_source(repository.settings())
    assert "container.image" in error.value.hint


def describe(repository, runtime):
    return describe_launch(*repository.settings_and_paths(arch="arm64"), runtime)


def test_image_that_is_a_file_is_taken_where_it_lies(repository, tmp_path):
    (tmp_path / "latest.sif").symlink_to("image 2.sif")
    repository.write("configuration.toml", f'[container]\nimage = "{tmp_path}/latest.sif"\n')
    launch = describe(repository, "apptainer")
    assert launch.image == str(tmp_path / "image 2.sif")  # a later swap does not reach this launch
    assert "ask the site" in launch.image_hint
    assert base_of(launch) == launch.image


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_hint_pulls_the_missing_image_for_the_right_architecture(runtime, repository):
    repository.write("local/site.toml", '[machines.local]\narch = "arm64"\n')
    hint = describe(repository, runtime).image_hint
    file = "/home/me/longship/scratch/containers/base_1_arm64.sif"
    assert hint == f"{runtime} pull --arch arm64 {file} docker://example.org/lab/base:1"


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_hint_pulls_and_tags_the_missing_image(runtime, repository):
    assert describe(repository, runtime).image_hint == (
        f"{runtime} pull example.org/lab/base:1 && "
        f"{runtime} tag example.org/lab/base:1 longship/base_1:arm64"
    )


def test_host_needs_no_image(repository):
    repository.write("stacks/pytorch/stack.toml", "")
    launch = describe(repository, "host")
    assert (launch.image, launch.image_hint) == ("", "")
    assert base_of(launch) == "host"


def lines(repository, runtime, **options):
    settings, paths = repository.settings_and_paths(arch="amd64")
    return run_lines(settings, paths, runtime, **{"online": False, "venv": None, **options})


@pytest.mark.parametrize("runtime", [*ALL, "host"])
def test_last_line_becomes_the_command(runtime, repository):
    last = lines(repository, runtime)[-1]
    assert last.startswith(f"exec {'/bin/sh' if runtime == 'host' else runtime} ")
    assert last.endswith(' longship "${command[@]}"')


def test_modules_are_loaded_before_the_variables_are_taken_out(repository):
    repository.write(
        "local/site.toml", '[machines.local]\nruntime = "apptainer"\nmodules = ["load GCC/13 x"]\n'
    )
    found = lines(repository, "apptainer")
    load = found.index("load_modules apptainer 'load GCC/13 x'")
    assert load < next(number for number, line in enumerate(found) if line.startswith("unset "))


def test_options_of_the_site_reach_the_runtime(repository):
    repository.write("local/site.toml", '[machines.local]\nruntime_options = ["--x", "a b"]\n')
    assert "options=(--x 'a b')" in lines(repository, "apptainer")


@pytest.mark.parametrize(
    ("gpu", "nvidia", "amd"),
    [("cuda", True, False), ("rocm", False, False), ("cpu", False, False), ("auto", True, True)],
)
def test_gpus_are_looked_for_where_there_can_be_some(gpu, nvidia, amd, repository):
    repository.write("stacks/pytorch/stack.toml", '[configuration.container]\nimage = "/x.sif"\n')
    repository.write("local/site.toml", f'[machines.local]\ngpu = "{gpu}"\n')
    found = lines(repository, "apptainer")
    assert ("add_nvidia_gpus" in found, "add_amd_gpus" in found) == (nvidia, amd)


def test_venv_in_use_is_pinned(repository, tmp_path):
    (tmp_path / "venv_amd64").symlink_to(tmp_path / "venvs/1")
    found = lines(repository, "host", venv=tmp_path / "venv_amd64")
    assert f"check_venv {tmp_path}/venvs/1 host" in found
    assert any(f"VIRTUAL_ENV={tmp_path}/venvs/1" in line for line in found)


def test_setting_up_is_online_and_outside_of_the_venv(repository):
    settings, paths = repository.settings_and_paths()
    text = "\n".join(inside_lines(settings, paths, "host"))
    assert "VIRTUAL_ENV=" not in text
    assert "unset HF_HUB_OFFLINE" in text
