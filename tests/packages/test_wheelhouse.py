"""What is computed for packages on their way: the lines, and what the programs inside work out."""

import io
import json
import os
import sys
import tarfile

import pytest

from lib import ROOT
from lib.configuration.sites import own_arch
from lib.packages.install import update_lock_lines
from lib.packages.set_up import download_lines, install_lines
from lib.runtimes.environment import Environment
from lib.script.errors import LongshipError

REPOSITORIES = """
[[repositories]]
url = "https://example.org/one.git"
extras = ["a", "b"]

[[repositories]]
url = "https://example.org/two.git"
install = "plain"
script = "requirements/two.sh"

[[repositories]]
url = "https://example.org/three.git"
install = "requirements"

[[repositories]]
url = "https://example.org/four.git"
install = "none"
"""


@pytest.fixture
def inside(monkeypatch):
    """Give a function that imports a program of lib/packages/inside."""
    monkeypatch.syspath_prepend(os.path.join(ROOT, "lib/packages/inside"))

    def program(name):
        module = __import__(name)
        monkeypatch.delitem(sys.modules, name)
        return module

    return program


def test_repositories_are_installed_as_each_says(repository):
    repository.write("configuration.toml", REPOSITORIES)
    settings, paths = repository.settings_and_paths()
    lines = install_lines(Environment(settings, paths, "host"), "x")
    assert [each for each in lines if each.startswith("requirements_add ")] == [
        "requirements_add one '' -e './one[a,b]'",
        f"requirements_add two {paths.root}/requirements/two.sh ./two",
        f"requirements_add three '' -r {paths.repositories}/three/requirements.txt",
    ]


def test_repositories_alone_want_a_venv(repository):
    repository.write("configuration.toml", f'packages.requirements = ""\n{REPOSITORIES}')
    settings, paths = repository.settings_and_paths()
    assert "requirements_begin" in "\n".join(
        install_lines(Environment(settings, paths, "host"), "x")
    )


def test_only_offline_knows_the_wheelhouse(repository):
    settings, paths = repository.settings_and_paths()
    for offline, source in ((False, "''"), (True, f"{paths.offline}/pip")):
        lines = install_lines(Environment(settings, paths, "host"), "x", offline=offline)
        begin = [each for each in lines if "requirements_begin" in each]
        assert f" {source} 'python3 set_up.py offline'" in begin[0].replace(" \\\n   ", "")


def test_lock_is_of_the_stack_and_the_architecture(repository):
    settings, paths = repository.settings_and_paths(arch="arm64")
    for lines in (lambda env: install_lines(env, "x"), update_lock_lines):
        begin = f"lockfile_begin {paths.root}/requirements/pytorch_arm64.lock host"
        text = "\n".join(lines(Environment(settings, paths, "host")))
        assert begin in text.replace(" \\\n   ", "")


def test_download_is_for_the_target_and_goes_to_the_folders_of_this_machine(repository, tmp_path):
    site = '[machines.far]\narch = "arm64"\nruntime = "apptainer"\ngpu = "cpu"\n'
    configuration = '[machines.far.paths]\nscratch_dir = "$ONLY_THERE/x"\n'
    repository.write("far/site.toml", site)
    repository.write("configuration.toml", configuration)
    _, here = repository.settings_and_paths(machine="local")
    settings = repository.settings(machine="far")
    env = Environment(settings, here, "apptainer")
    lines = download_lines(env, "python3 set_up.py download --machine far")
    assert "machine=far arch=arm64 gpu=cpu" in lines
    (begin,) = [each for each in lines if "wheelhouse_download" in each]
    assert f"wheelhouse_download {here.offline}/pip " in begin.replace(" \\\n   ", "")
    assert f" {here.archives}/base_1_arm64.tar '' \"$@\"" in begin
    assert "SCRATCH_DIR/offline/; then, on far: python3 set_up.py offline" in lines[-1]


@pytest.mark.parametrize(
    ("image", "label", "archive"),
    [
        ("mine.sif", "sif:mine", "''"),  # a download would not make its packages known
        ("oci-archive:mine.tar", "oci-archive:mine", "''"),
        ("mine.def", "definition:mine", "''"),
        ("docker-archive:mine.tar", "docker-archive:mine", "/mine.tar"),
        *(
            [("mine/Dockerfile", "dockerfile:mine", f"/mine_{own_arch()}.tar")]
            if os.path.isdir(f"{ROOT}/extras/docker")
            else []
        ),
    ],
)
def test_lock_of_an_image_that_is_a_file_is_for_each_clone(image, label, archive, repository):
    """Or the target, where the clone is elsewhere, would refuse what was downloaded for it."""
    repository.write("configuration.toml", f'[container]\nimage = "{image}"\n')
    settings, paths = repository.settings_and_paths()
    env = Environment(settings, paths, "docker" if "Dockerfile" in image else "apptainer")
    lines = [each.replace(" \\\n   ", "") for each in download_lines(env, "x")]
    (begin,) = [each for each in lines if each.startswith("lockfile_begin ")]
    assert begin.endswith(f".lock {label}")
    (fetch,) = [each for each in lines if "wheelhouse_download" in each]
    assert fetch.split()[-3].endswith(archive)


@pytest.mark.parametrize("python", ["3.12.4", "312", "python3.12", "3"])
def test_python_that_no_target_matches_is_refused(python, repository):
    repository.write("configuration.toml", f'[packages]\npython = "{python}"\n')
    with pytest.raises(LongshipError, match=f'cannot read packages.python = "{python}"') as error:
        repository.settings_and_paths()
    assert "such as 3.12" in error.value.hint


def test_pins_are_read_with_their_hashes(inside):
    read = inside("resolve_packages").read_pins
    first = "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
    second = "b==2+cpu \\\n    --hash=sha256:3\n"
    assert read(f"# head\n# more\n{first}{second}") == {"a==1": first, "b==2+cpu": second}
    assert read("# nothing\n") == {}


def test_hashes_that_requirements_ask_for_are_the_only_ones(inside, tmp_path):
    program = inside("resolve_packages")
    (tmp_path / "more.txt").write_text("B_b==2 --hash=sha256:bb\n")
    (tmp_path / "all.txt").write_text(
        "# a comment --hash=sha256:00\n-r more.txt\nnone>=1\n"
        "a.a[x]==1 \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"
    )
    asked = program.asked_hashes([str(tmp_path / "all.txt")])
    assert asked == {"b-b": {"sha256:bb"}, "a-a": {"sha256:01", "sha256:02"}}
    text = "a-a==1 \\\n    --hash=sha256:02 \\\n    --hash=sha256:03\n"
    kept = "a-a==1 \\\n    --hash=sha256:02\n"
    assert program.keep_hashes("a-a==1", text, asked["a-a"]) == kept
    with pytest.raises(SystemExit, match="a-a==1: none of its files has a hash"):
        program.keep_hashes("a-a==1", text, {"sha256:04"})


def test_sources_that_requirements_name_are_kept_with_the_versions(inside, tmp_path):
    program = inside("resolve_packages")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "more.txt").write_text("--find-links=wheels\n--no-index # for now\n")
    (tmp_path / "all.txt").write_text(
        "-c more.txt\n-c https://example.org/constraints.txt\n"
        "--extra-index-url \\\n  https://x/simple # a comment\n-i https://y\n-fhttps://z\na\n"
        "# --extra-index-url https://none\n--trusted-host x\n"
    )
    lines = program.asked_sources(str(tmp_path / "all.txt"))
    assert lines == [
        f"--find-links {(tmp_path / 'wheels').as_uri()}\n",
        "--no-index\n",
        "--extra-index-url https://x/simple\n",
        "--index-url https://y\n",
        "--find-links https://z\n",
        "--trusted-host x\n",
    ]
    pins = "a==1 \\\n    --hash=sha256:1\n"
    assert program.index_options("# head\n" + "".join(lines) + pins) == lines
    assert program.read_pins("# head\n" + "".join(lines) + pins) == {"a==1": pins}


def test_changes_are_told(inside):
    told = inside("resolve_packages").format_changes
    assert told(["a==1", "b==1", "c==1"], ["a==1", "b==2", "d==1"]) == [
        "b 1 -> 2",
        "c 1 removed",
        "d 1 added",
    ]


@pytest.mark.parametrize(
    ("arch", "glibc", "expected"),
    [
        ("amd64", "2.39", "x86_64-manylinux_2_39"),
        ("arm64", "", "aarch64-manylinux_2_28"),
        ("amd64", "2.30", "x86_64-manylinux_2_28"),
        ("amd64", "2.12", "x86_64-manylinux_2_17"),
        ("amd64", "2.99", "x86_64-manylinux_2_40"),
    ],
)
def test_platform_is_one_that_uv_knows(arch, glibc, expected, inside):
    assert inside("resolve_packages").platform(arch, glibc) == expected


def test_options_of_pip_become_variables(inside, monkeypatch, tmp_path):
    folder = tmp_path / "a b,c"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", "/before")
    options = ["--find-links", str(folder), "-i", "https://x", "--progress-bar", "off", "--pre"]
    found = inside("install_packages").variables(options)
    assert found == {
        "PIP_FIND_LINKS": f"/before {tmp_path.as_uri()}/a%20b%2Cc",
        "PIP_INDEX_URL": "https://x",
    }


# The archive of an image


def layer(files):
    """Make a layer: text by path, None for a folder, ("link", target) for a link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            content = b""
            if isinstance(text, tuple):
                member.type, member.linkname = tarfile.SYMTYPE, text[1]
            else:
                content = text.encode()
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def archive(path, layers, search="/opt/own/bin:/usr/bin"):
    files = {f"{number}/layer.tar": data for number, data in enumerate(layers)}
    config = {"config": {"Env": ["LANG=C", f"PATH={search}"]}}
    manifest = [{"Config": "config.json", "Layers": list(files)}]
    files = {"manifest.json": json.dumps(manifest), "config.json": json.dumps(config), **files}
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            content = data.encode() if isinstance(data, str) else data
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def metadata(name, version):
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: x\n\nBody\n"


def describe(inside, folder, *arguments, **options):
    inside("describe_image").describe_archive(str(folder), str(archive(*arguments, **options)))
    return {each: (folder / each).read_text() for each in ("python", "glibc", "packages.txt")}


def test_archive_tells_what_the_first_python_of_path_has(inside, tmp_path):
    own, system = "opt/own/lib/python3.12/site-packages", "usr/lib/python3/dist-packages"
    first = {
        "usr/bin/python3": ("link", "python3.11"),
        "usr/bin/python3.11": "",
        f"{system}/other-9.dist-info/METADATA": metadata("other", "9"),
        "opt/own/bin/python3": ("link", "/opt/own/bin/python3.12"),
        "opt/own/bin/python3.12": "",
        f"{own}/torch-2.8.0a0+x.dist-info/METADATA": metadata("torch", "2.8.0a0+x"),
        f"{own}/Old_Name-1.dist-info/METADATA": metadata("Old_Name", "1"),
        f"{own}/gone-1.dist-info/METADATA": metadata("gone", "1"),
        f"{own}/pip-1.dist-info/METADATA": metadata("pip", "1"),
        "lib/x86_64-linux-gnu/libc.so.6": "GNU C Library (Ubuntu) stable release version 2.39.\n",
    }
    second = {
        f"{own}/.wh.Old_Name-1.dist-info": "",
        f"{own}/Old_Name-2.dist-info/METADATA": metadata("Old_Name", "2"),
        f"{own}/gone-1.dist-info/.wh..wh..opq": "",
    }
    layers = [layer(first), layer(second)]
    found = describe(inside, tmp_path / "out", tmp_path / "image.tar", layers)
    assert found == {
        "python": "3.12",
        "glibc": "2.39",
        "packages.txt": "old-name==2\ntorch==2.8.0a0+x\n",
    }
    assert sorted(path.name for path in (tmp_path / "out/wheels").iterdir()) == [
        "old_name-2-py3-none-any.whl",
        "torch-2.8.0a0+x-py3-none-any.whl",
    ]


def test_archive_of_debian_is_read(inside, tmp_path):
    files = {
        "./usr/bin/python3": ("link", "python3.11"),
        "./usr/bin/python3.11": "",
        "./usr/lib/python3/dist-packages/PyYAML-6.0.egg-info/PKG-INFO": metadata("PyYAML", "6.0"),
        "./usr/local/lib/python3.11/dist-packages/a-1.dist-info/METADATA": metadata("a", "1"),
        "./usr/local/lib/python3.9/dist-packages/b-1.dist-info/METADATA": metadata("b", "1"),
    }
    found = describe(inside, tmp_path / "out", tmp_path / "image.tar", [layer(files)])
    assert found["python"] == "3.11" and found["packages.txt"] == "a==1\npyyaml==6.0\n"


def test_archive_that_is_none_or_has_no_python_is_told(inside, tmp_path):
    with pytest.raises(SystemExit, match="python3 not found on the PATH"):
        describe(inside, tmp_path / "out", tmp_path / "image.tar", [layer({"etc/x": ""})])
    (tmp_path / "image.tar").write_bytes(b"x" * 2000)
    with pytest.raises(SystemExit, match="not a docker archive"):
        inside("describe_image").describe_archive("out", str(tmp_path / "image.tar"))
