"""The lines that start a program inside."""

import pytest
from support.repository import toml

from lib.images.build import image_build_lines
from lib.runtimes.environment import Environment
from lib.runtimes.launch import inside_lines, run_lines
from lib.script.command import call

ALL = ("apptainer", "singularity")


def describe(repository, runtime):
    return Environment(*repository.settings_and_paths(arch="arm64"), runtime)


def test_image_that_is_a_file_is_taken_where_it_lies(repository, tmp_path):
    (tmp_path / "latest.sif").symlink_to("image 2.sif")
    repository.write("configuration.toml", f'[container]\nimage = "{tmp_path}/latest.sif"\n')
    launch = describe(repository, "apptainer")
    assert launch.image == str(tmp_path / "image 2.sif")  # a later swap does not reach this launch
    assert "ask the site" in launch.image_hint
    assert launch.base == launch.image


@pytest.mark.parametrize("runtime", ALL)
def test_hint_names_what_makes_the_missing_image(runtime, repository):
    assert "python3 build_container.py" in describe(repository, runtime).image_hint


def test_hints_have_the_options_of_the_command_line(repository):
    """Else they would build and install what the configured stack needs, again and again."""
    repository.write("my.toml", "")
    typed = {"machine": "local", "stack": "pytorch", "configuration": f"{repository.root}/my.toml"}
    env = Environment(*repository.settings_and_paths(**typed), "apptainer")
    options = " ".join(f"--{key}={value}" for key, value in typed.items())
    build = f"python3 build_container.py {options}"
    move = f"python3 move_built_container_to_active.py {options}"
    assert env.image_hint == f"run: {build} && {move}"
    assert call(move) in "\n".join(image_build_lines(env, force=False, command_line=""))
    assert env.packages.steps == [f"python3 set_up.py install {options}"]


def test_host_needs_no_image(repository):
    repository.write("stacks/pytorch/stack.toml", "")
    launch = describe(repository, "host")
    assert (launch.image, launch.image_hint) == ("", "")
    assert launch.base == "host"


def lines(repository, runtime, venv=""):
    settings, paths = repository.settings_and_paths(arch="amd64")
    return run_lines(Environment(settings, paths, runtime, held={"venv": str(venv)}))


@pytest.mark.parametrize("runtime", [*ALL, "host"])
def test_last_line_becomes_the_command(runtime, repository):
    last = lines(repository, runtime)[-1]
    first = "/bin/sh" if runtime == "host" else runtime
    assert last.startswith(f"command_exec {first} ")
    assert last.endswith(' longship "${command[@]}"')


def test_modules_are_loaded_before_the_variables_are_taken_out(repository):
    repository.write(
        "local/site.toml", '[machines.local]\nruntime = "apptainer"\nmodules = ["load GCC/13 x"]\n'
    )
    found = lines(repository, "apptainer")
    load = found.index("modules_load apptainer 'load GCC/13 x'")
    assert load < next(number for number, line in enumerate(found) if line == "host_forget")


def test_options_of_the_site_reach_the_runtime(repository):
    repository.write("local/site.toml", '[machines.local]\nruntime_options = ["--x", "a b"]\n')
    assert "options=(--x 'a b')" in lines(repository, "apptainer")


@pytest.mark.parametrize(
    ("gpu", "looked_for"),
    [("cuda", True), ("rocm", False), ("cpu", False), ("auto", True)],
)
def test_gpus_are_looked_for_where_there_can_be_some(gpu, looked_for, repository):
    repository.write("stacks/pytorch/stack.toml", '[configuration.container]\nimage = "/x.sif"\n')
    repository.write("local/site.toml", f'[machines.local]\ngpu = "{gpu}"\n')
    found = lines(repository, "apptainer")
    assert ("sif_add_options gpus" in found) == looked_for


def test_active_version_of_the_venv_is_started(repository, tmp_path):
    repository.write("configuration.toml", f"paths.scratch_dir = {toml(tmp_path)}\n")
    settings, paths = repository.settings_and_paths()
    paths.venv.parent.mkdir(parents=True, exist_ok=True)
    paths.venv.symlink_to("venvs/1")
    found = run_lines(Environment(settings, paths, "host"))
    venv = paths.venv.parent / "venvs/1"
    assert f"venv_check {venv} host" in found
    assert any(f"VIRTUAL_ENV={venv}" in line for line in found)


def test_venv_of_elsewhere_is_shown_inside(repository, tmp_path):
    """One that was there before Longship; those of its own lie in the scratch folder."""
    own, foreign = (
        lines(repository, "apptainer", venv=venv)
        for venv in ("/home/me/longship-data/scratch/venvs/a", tmp_path / "old project/env_x86_64")
    )
    bind = f"bind_add_if_exists '{tmp_path}/old project/env_x86_64'"
    assert bind in foreign
    assert not [line for line in own if line.startswith("bind_add_if_exists") and "venv" in line]


def test_setting_up_is_online_and_outside_of_the_venv(repository):
    settings, paths = repository.settings_and_paths()
    text = "\n".join(inside_lines(Environment(settings, paths, "host")))
    assert "VIRTUAL_ENV=" not in text
    assert "unset HF_HUB_OFFLINE" in text
