"""Where an image comes from, what it is called, and which file or tag is started."""

import pytest

from lib.configuration.runtimes import find_runtimes
from lib.images.build import image_build_lines
from lib.images.versions import image_prune_lines, move_lines
from lib.runtimes.environment import Environment
from lib.runtimes.image import (
    active_image,
    can_use,
    check_usable,
    image_name,
    image_source,
    image_tag,
)
from lib.script.errors import LongshipError


def source_of(repository, text):
    repository.write("configuration.toml", f"[container]\nimage = '''{text}'''\n")
    return image_source(repository.settings())


def test_image_of_the_configuration_wins_over_the_stacks(repository):
    assert image_source(repository.settings()).address == "docker://example.org/lab/base:1"
    repository.write("configuration.toml", '[container]\nimage = "docker://x/y:2"\n')
    assert image_source(repository.settings()).address == "docker://x/y:2"


@pytest.mark.parametrize("gpu", ["cuda", "rocm", "cpu"])
def test_image_of_the_stack_is_the_one_for_the_gpu(gpu, repository):
    images = "".join(f'{each} = "docker://x/{each}:1"\n' for each in ("cuda", "rocm", "cpu"))
    repository.write("stacks/pytorch/stack.toml", f"[images]\n{images}")
    repository.write("local/site.toml", f'[machines.local]\ngpu = "{gpu}"\n')
    assert image_source(repository.settings()).address == f"docker://x/{gpu}:1"


def test_stack_without_an_image_for_the_gpu_is_told(repository):
    repository.write("local/site.toml", '[machines.local]\ngpu = "rocm"\n')
    with pytest.raises(LongshipError, match="stack pytorch has no image for rocm") as error:
        image_source(repository.settings())
    assert "container.image" in error.value.hint


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", "docker", None),
        ("oras://x/y:1", "oras", None),
        ("library://user/collection/image:1", "library", None),
        ("docker-daemon:mine:1", "docker-daemon", None),
        ("docker-archive:/a/it's a.tar", "docker-archive", None),
        ("docker-archive:images/x.tar", "docker-archive", "docker-archive:{root}/images/x.tar"),
        ("oci-archive:~/x.tar", "oci-archive", "oci-archive:/home/me/x.tar"),
        ("/site/latest.sif", "sif", None),
        ("images/x.sif", "sif", "{root}/images/x.sif"),
        ("$HOME/x.sqsh", "sqsh", "/home/me/x.sqsh"),
        ("stacks/pytorch/my.def", "definition", "{root}/stacks/pytorch/my.def"),
        ("stacks/nemo/Dockerfile", "dockerfile", "{root}/stacks/nemo/Dockerfile"),
        ("/x/Containerfile", "dockerfile", None),
        ("/x/efa.Dockerfile", "dockerfile", None),
        ("/x/Dockerfile.efa", "dockerfile", None),
    ],
)
def test_source_is_recognised(text, kind, address, repository):
    source = source_of(repository, text)
    assert source.kind == kind
    assert source.address == (address or text).format(root=repository.root)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("pytorch", "valid values: docker://"),
        ("dokcer://x/y:1", "docker://"),
        ("https://x/y.sif", "valid values"),
        ("shub://x/y", "valid values"),
        ("image.siff", "FILE.sif"),
        ("ubuntu:22.04", 'did you mean "docker://ubuntu:22.04"? valid values: docker://'),
        ("nvcr.io/nvidia/pytorch:25.06-py3", '"docker://nvcr.io/nvidia/pytorch:25.06-py3"?'),
        ("nvcr.io#nvidia/nemo:26", "docker://"),
        ("dockerd://lab/base:1", "docker-daemon:"),
        ("images/Singularity", "FILE.def"),
    ],
)
def test_source_that_is_none_is_told_with_what_there_is(text, hint, repository):
    with pytest.raises(LongshipError, match="unknown image source") as error:
        source_of(repository, text)
    assert text in str(error.value) and "configuration.toml" in str(error.value)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", "pytorch_25.06-py3"),
        ("docker://localhost:5000/Lab/Base", "base"),
        ("docker://x/base:1.SIF", "base_1"),
        ("/images/lumi-multitorch-latest.sif", "lumi-multitorch-latest"),
        ('/images/it\'s "mine".sif', "it_s_mine"),
        ("docker://x/base@sha256:0123abc", "base_sha256_0123abc"),
        ("docker-archive:/x/base 1.tar", "base_1"),
        ("docker-daemon:lab/base:1", "base_1"),
        ("stacks/nemo/Dockerfile", "nemo"),
        ("/x/efa.Dockerfile", "efa"),
        ("/x/my.def", "my"),
    ],
)
def test_image_is_named_after_its_source(text, name, repository):
    source = source_of(repository, text)
    assert image_name(source) == name
    assert image_tag(source, "arm64") == f"longship/{name}:arm64"


@pytest.mark.parametrize(("runtime", "each"), find_runtimes())
def test_file_is_named_after_source_architecture_and_runtime(runtime, each, repository):
    source = source_of(repository, "docker://x/base:1")
    _, paths = repository.settings_and_paths(arch="arm64")
    assert active_image(runtime, source, paths).name == f"base_1_arm64.{each.ending}"


@pytest.mark.parametrize(
    ("runtime", "texts"),
    [
        ("apptainer", ["oras://x/y:1", "library://x/y:1", "/x.sif", "/x.def", "/Dockerfile"]),
        ("singularity", ["docker://x", "docker-archive:/x.tar", "oci-archive:/x.tar", "/x.def"]),
    ],
)
def test_runtime_can_use(runtime, texts, repository):
    assert all(can_use(runtime, source_of(repository, text)) for text in texts)


def test_runtime_that_cannot_use_a_source_is_told_with_one_that_can(repository):
    with pytest.raises(LongshipError, match="host cannot build from") as error:
        check_usable("host", source_of(repository, "oras://x/y:1"))
    assert 'container.runtime = "apptainer"' in error.value.hint


def environment(repository, runtime, tmp_path, image="docker://x/base:1"):
    repository.write(
        "configuration.toml",
        f'[paths]\nscratch_dir = "{tmp_path}"\n[container]\nimage = "{image}"\n',
    )
    return Environment(*repository.settings_and_paths(arch="amd64"), runtime)


def start(*given):
    return environment(*given).image


def test_image_in_use_is_pinned(repository, tmp_path):
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers/base_1_amd64.sif").symlink_to("versions/base_1_amd64_2_b.sif")
    found = start(repository, "apptainer", tmp_path)
    assert found == f"{tmp_path}/containers/versions/base_1_amd64_2_b.sif"


def test_image_of_the_same_name_from_elsewhere_is_not_started(repository, tmp_path):
    file = tmp_path / "containers/versions/base_1_amd64_2_b.sif"
    file.parent.mkdir(parents=True)
    (tmp_path / "containers/base_1_amd64.sif").symlink_to(f"versions/{file.name}")
    record = file.with_name(f"{file.name}.json")
    record.write_text('{"source": "docker://x/base:1"}')
    assert start(repository, "apptainer", tmp_path) == str(file)
    with pytest.raises(LongshipError, match="was built from docker://x/base:1, not from") as error:
        start(repository, "apptainer", tmp_path, "docker://other/base:1")
    assert error.value.hint.startswith("run: python3 build_container.py && python3 move_")
    record.write_text('{"source": "/a/clone/base_1.def"}')  # of another member's clone
    assert start(repository, "apptainer", tmp_path) == str(file)


def test_image_in_a_folder_that_cannot_be_looked_into_is_not_in_use(repository, unseen):
    file = f"{unseen}/containers/base_1_amd64.sif"
    assert start(repository, "apptainer", unseen) == file


def test_image_of_the_site_is_started_until_a_copy_is_in_use(repository, tmp_path):
    assert start(repository, "apptainer", tmp_path, "/site/x.sif") == "/site/x.sif"
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers/x_amd64.sif").symlink_to("versions/x_amd64_1_a.sif")
    found = start(repository, "apptainer", tmp_path, "/site/x.sif")
    assert found == f"{tmp_path}/containers/versions/x_amd64_1_a.sif"


def test_image_of_a_site_that_starts_those_of_one_directory_must_be_there(repository, tmp_path):
    repository.write(
        "local/site.toml",
        '[machines.local]\ndescription = "L"\n'
        'image_directory = "$IMAGES"\nimage_copy = ["cp", "-f"]\n',
    )
    built = f"{tmp_path}/containers/build/base_1_amd64.sif"
    inside = 'container.image = "$IMAGES/base_1_amd64.sif"'
    for image in ("docker://x/base:1", f"{tmp_path}/base_1.sif"):
        with pytest.raises(LongshipError, match=r"^L starts only images in \$IMAGES$") as error:
            start(repository, "apptainer", tmp_path, image)
        hint = f"run: python3 build_container.py; then: cp -f {built}; then set {inside} in "
        assert error.value.hint == f"{hint}configuration.toml"
    repository.environ["IMAGES"] = "/allowed"
    env = environment(repository, "apptainer", tmp_path, "$IMAGES/base_1_amd64.sif")
    assert env.image == "/allowed/base_1_amd64.sif"
    assert env.image_hint == "run: cp -f FILE; or set container.image"
    with pytest.raises(LongshipError, match="starts only images in"):  # a copy elsewhere
        move_lines(env, "x", [])
    assert image_prune_lines(env) and image_build_lines(env, force=False, command_line="")


def test_host_starts_no_image(repository, tmp_path):
    assert start(repository, "host", tmp_path, "nonsense") == ""


@pytest.mark.parametrize(
    "opened", ["containers", "containers/versions", "containers/versions/x.sif"]
)
def test_image_that_somebody_else_can_change_is_not_started(opened, repository, tmp_path):
    version = tmp_path / "containers/versions/x.sif"
    version.parent.mkdir(parents=True)
    version.touch()
    version.parents[1].joinpath("base_1_amd64.sif").symlink_to("versions/x.sif")
    text = f'[paths]\nscratch_dir = "{tmp_path}/s"\nshared_dir = "{tmp_path}"\n'
    repository.write("configuration.toml", f'{text}[container]\nimage = "docker://x/base:1"\n')
    for each in (tmp_path, *tmp_path.rglob("*")):
        each.chmod(0o755)
    env = Environment(*repository.settings_and_paths(), "apptainer")
    assert env.image == str(version)
    (tmp_path / opened).chmod(0o775)
    with pytest.raises(LongshipError, match=f"other users can write to {tmp_path / opened}, "):
        _ = env._replace().image
