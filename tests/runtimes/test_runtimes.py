"""Which runtime starts and makes the image."""

import inspect
import sys
from pathlib import Path

import pytest
from support.repository import toml

from lib.commands import Invocation
from lib.configuration.runtimes import runtime_names
from lib.runtimes.choice import (
    choose_builder,
    choose_runtime,
    choose_target_runtime,
    configured_runtime,
    names_with_images,
)
from lib.runtimes.runtime import Runtime, runtime_of
from lib.script.errors import LongshipError

ROOT = Path(__file__).resolve().parents[2]
ALL = tuple(names_with_images())


def program_of(command):
    """Name the runtime that a command starts, which variables may stand before."""
    return next(word for word in command if word in ALL)


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
        return program_of(command) in working

    return choose_runtime(*repository.settings_and_paths(arch="amd64"), succeeds), tried


@pytest.mark.parametrize("runtime", [*ALL, "host"])
def test_configured_runtime_is_taken_without_a_question(runtime, repository, install):
    install(*ALL)
    repository.write("configuration.toml", f'[container]\nruntime = "{runtime}"\n')
    choice, tried = choose(repository)
    assert (choice.runtime, choice.why, tried) == (runtime, "", [])


def test_runtime_of_the_site_is_taken(repository, install):
    install(*ALL)
    repository.write("local/site.toml", '[machines.local]\nruntime = "singularity"\n')
    assert choose(repository)[0].runtime == "singularity"
    repository.write("configuration.toml", '[container]\nruntime = "apptainer"\n')
    assert choose(repository)[0].runtime == "apptainer"


@pytest.mark.parametrize("ending", ["tar", "sif"])
def test_image_that_was_downloaded_will_be_run(ending, repository, install):
    """On the machine that downloads, no runtime has an image."""
    install("singularity")
    scratch = f"[paths]\nscratch_dir = {toml(repository.root / 'scratch')}\n"
    repository.write("configuration.toml", scratch)
    settings, paths = repository.settings_and_paths(arch="amd64")
    assert choose_target_runtime(settings, paths, lambda command: False).runtime == "host"
    paths.archives.mkdir(parents=True)
    (paths.archives / f"base_1_{settings.machine.arch}.{ending}").touch()
    choice = choose_target_runtime(settings, paths, lambda command: False)
    assert choice == ("apptainer", "its image was downloaded")
    repository.write("configuration.toml", scratch + '[container]\nruntime = "host"\n')
    given = repository.settings_and_paths(arch="amd64")
    assert choose_target_runtime(*given, lambda command: False).runtime == "host"


@pytest.mark.parametrize("runtime", ALL)
def test_first_runtime_that_works_is_taken(runtime, repository, install):
    install(*ALL)
    working = ALL[ALL.index(runtime) :]
    choice, tried = choose(repository, working)
    assert choice.runtime == runtime
    assert choice.why == "the first that works on this machine"
    assert [program_of(command) for command in tried] == list(ALL[: ALL.index(runtime) + 1])


def test_runtime_that_is_not_installed_is_not_tried(repository, install):
    install("singularity")
    choice, tried = choose(repository, ALL)
    assert choice.runtime == "singularity"
    assert [command[0] for command in tried] == ["singularity"]


def test_host_is_what_is_left(repository, install):
    choice, tried = choose(repository, ALL)
    assert (choice.runtime, tried) == ("host", [])
    assert choice.why == "no container runtime found"
    install("apptainer")
    choice, _ = choose(repository)
    assert choice.runtime == "host"
    assert choice.why == "found apptainer, but no image"


def test_choice_and_reason_are_told(repository, install, capfd):
    settings, paths = repository.settings_and_paths()
    Invocation(settings, False, {}, {}).environment(paths=paths)
    told = "running directly on this machine, without a container (no container runtime found)"
    assert capfd.readouterr().err == f"note: {told}\n"


def test_what_is_tried_is_this_image(repository, install):
    install(*ALL)
    _, tried = choose(repository)
    image = "/home/me/longship-data/scratch/containers/base_1_amd64.sif"
    assert ["apptainer", "--quiet", "exec", image, "/bin/true"] in tried


def build_with(repository, working=()):
    tried = []

    def succeeds(command):
        tried.append(command)
        return command[0] in working

    return choose_builder(repository.settings(), succeeds), tried


@pytest.mark.parametrize("runtime", ALL)
def test_first_runtime_that_answers_makes_the_image(runtime, repository, install):
    install(*ALL)
    choice, _ = build_with(repository, ALL[ALL.index(runtime) :])
    assert (choice.runtime, choice.why) == (runtime, "the first that works on this machine")


def test_configured_runtime_makes_the_image_without_a_question(repository):
    repository.write("configuration.toml", '[container]\nruntime = "singularity"\n')
    choice, tried = build_with(repository)
    assert (choice.runtime, tried) == ("singularity", [])


def test_nothing_that_makes_an_image_is_told(repository, install):
    with pytest.raises(LongshipError, match="no installed runtime can build from"):
        build_with(repository)
    repository.write("configuration.toml", '[container]\nruntime = "host"\n')
    with pytest.raises(LongshipError, match="host uses no image") as error:
        build_with(repository)
    assert "container.runtime" in error.value.hint


@pytest.mark.parametrize("runtime", runtime_names())
def test_each_runtime_implements_the_whole_protocol(runtime):
    module = runtime_of(runtime)
    wanted = {
        name: each
        for name, each in vars(Runtime).items()
        if inspect.isfunction(each) and not name.startswith("_")
    }
    assert len(wanted) >= 6
    assert all(hasattr(module, name) for name in Runtime.__annotations__)
    for name in wanted:
        own = inspect.signature(getattr(module, name)).parameters
        assert ["self", *own] == list(inspect.signature(wanted[name]).parameters), name


@pytest.mark.parametrize("layer", ["configuration.toml", "local/site.toml"])
def test_runtime_that_does_not_exist_is_told_with_those_that_do(layer, repository):
    """Such as one whose extra was deleted; of other sites it is no mistake."""
    table = "container" if layer == "configuration.toml" else "machines.local"
    repository.write(layer, f'[{table}]\nruntime = "aptainer"\n')
    with pytest.raises(LongshipError, match=layer) as error:
        configured_runtime(repository.settings())
    assert "aptainer" in str(error.value)
    assert error.value.hint.startswith('did you mean "apptainer"? valid values: ')
    assert error.value.hint.endswith(", ".join(runtime_names()))


def test_launch_imports_its_own_runtime_alone(repository, run):
    """The others would take a millisecond each."""
    repository.write("configuration.toml", '[container]\nruntime = "apptainer"\n')
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; sys.path[0] = sys.argv[1]\n"
        "sys.argv.pop(1)\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    options = [f"--configuration={repository.root}/configuration.toml", "--dry-run", "true"]
    done = run([sys.executable, "-c", code, ROOT / "container_run.py", ROOT, *options])
    runtimes = {runtime_of(each).__name__ for each in runtime_names()}
    assert runtimes & {*done.stderr.split()} == {"lib.runtimes.apptainer"}
