"""Files of ours in place of the image's own, in every runtime; and originals that have changed."""

import shlex

import pytest
from support.lab import is_told
from support.repository import toml

from lib.configuration.sites import own_arch

TARGET = "/usr/lib/python3/dist-packages/yaml/__init__.py"  # of the small Debian
OURS = "patches/files/it's: yaml,.py"
SHOW = ("python3", "-c", "import yaml; print(getattr(yaml, 'MARK', None))")


def patch(clone, text='MARK = "ours"\n', target=TARGET, ours=OURS):
    """Put a file of ours in place of one of the image's; without a text the file is missing."""
    if text is not None:
        file = clone.root / ours
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    configuration = (clone.root / "configuration.toml").read_text()
    line = f"patched_files = {{ {toml(target)} = {toml(ours)} }}\n"
    clone.configure(configuration.replace("[container]\n", f"[container]\n{line}"))
    return clone


def original(clone):
    return clone.root / f"{OURS}.original"


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman"])
def test_file_of_ours_is_seen_inside_and_read_only(runtime, make_clone, tmp_path, run):
    clone = make_clone(tmp_path, runtime)
    before = (clone.root / "configuration.toml").read_text()
    assert clone.container_run(*SHOW).stdout == "None\n"
    patch(clone)
    assert clone.container_run(*SHOW).stdout == "ours\n"
    write = clone.container_run("sh", "-c", f"echo >>{TARGET}", check=False)
    assert write.returncode != 0 and "ead-only" in write.stderr
    launcher = tmp_path / "launcher"
    clone.container_run("--launcher", launcher)
    (clone.root / OURS).write_text('MARK = "edited"\n')  # the bind shows the file as it is now
    assert run([launcher, *SHOW], env=clone.environment, cwd=clone.root).stdout == "edited\n"
    clone.configure(before)
    assert clone.container_run(*SHOW).stdout == "None\n"


@pytest.mark.parametrize("script", ["container_run.py", "set_up.py"])
def test_missing_file_of_ours_is_told(script, make_clone, tmp_path):
    clone = patch(make_clone(tmp_path, "apptainer", ["longship_tiny"]), None)
    run = {"container_run.py": clone.container_run, "set_up.py": clone.set_up}[script]
    done = run(*(["true"] if script == "container_run.py" else []), check=False)
    message = f"file not found: {clone.root}/{OURS}, which replaces {TARGET} of the image"
    is_told(done, message, "or remove it from container.patched_files in configuration.toml")


@pytest.fixture
def find(wheels):
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}


def test_changed_original_is_noticed_and_can_be_merged(make_clone, tmp_path, find, run):
    clone = make_clone(tmp_path, "apptainer", ["longship_tiny"])
    clone.set_up("install", env=find)
    own = clone.container_run("cat", TARGET).stdout
    patch(clone, own.replace("safe_load", "safe_load_of_ours"))
    done = clone.set_up("install", env=find)
    assert "saved the image's own" in done.stderr and "warning" not in done.stderr
    assert original(clone).read_text() == own
    assert "saved the image's own" not in clone.set_up("install", env=find).stderr
    # now ours was made from an older original, of which the image's one is another version
    for file in (original(clone), clone.root / OURS):
        file.write_text(file.read_text().replace("__version__", "__older_version__"))
    done = clone.set_up("install", env=find)
    warning, hint = (line for line in done.stderr.splitlines() if line[:5] in ("warni", "hint:"))
    assert TARGET in warning and str(clone.root / OURS) in warning
    assert str(clone.image) in warning
    command = hint.split("to merge: ")[1]
    run(["bash", "-c", command], env=clone.environment)
    assert (clone.root / OURS).read_text() == own.replace("safe_load", "safe_load_of_ours")
    done = clone.set_up("install", env=find)
    assert "warning" not in done.stderr and not list(clone.root.glob("patches/files/*.new"))
    assert shlex.split(command)[:2] == ["git", "merge-file"]


@pytest.mark.slow  # tests/images/test_patched_files.py
def test_file_that_the_image_does_not_have_is_told(make_clone, tmp_path, find):
    clone = make_clone(tmp_path, "apptainer", ["longship_tiny"])
    patch(clone, target="/usr/lib/python3/no such.py")
    done = clone.set_up("install", env=find)
    assert "has no file /usr/lib/python3/no such.py, which" in done.stderr
    assert "correct the path, or remove it" in done.stderr
    assert clone.container_run("cat", "/usr/lib/python3/no such.py").stdout == 'MARK = "ours"\n'


@pytest.mark.slow  # it says so, and is used as ever
def test_runtime_without_an_image_says_that_it_has_no_effect(make_clone, tmp_path, find):
    clone = patch(make_clone(tmp_path, "host", ["longship_tiny"]))
    done = clone.set_up("install", env=find)
    assert "container.patched_files has no effect with the runtime host" in done.stderr
    clone.container_run("true")


@pytest.mark.needs("registry", "skopeo")
@pytest.mark.skipif(own_arch() != "amd64", reason="the tiny images run on amd64 only")
@pytest.mark.parametrize("runtime", ["apptainer", "podman"])
def test_new_image_with_another_original_is_told_when_it_is_put_in_use(
    runtime, lab, registry, tiny
):
    name = f"lab/patched-{runtime}:1"
    registry.put(name, ("amd64", tiny(mark="one")))
    clone = patch(lab(registry.name(name), runtime), "ours\n", "/etc/mark")
    clone.build()
    done = clone.move()
    assert f"saved the image's own /etc/mark as {original(clone)}" in done.stderr
    assert original(clone).read_text() == "one\n"
    assert clone.container_run("cat", "/etc/mark").stdout == "ours\n"
    registry.put(name, ("amd64", tiny(mark="two")))
    clone.build("--force")
    done = clone.move()
    assert " has another /etc/mark than the one" in done.stderr
    assert done.stderr.endswith("next: python3 set_up.py install\n")
    assert original(clone).read_text() == "one\n"
    assert (clone.root / f"{OURS}.new").read_text() == "two\n"


def test_configured_path_that_is_none_is_told(make_clone, tmp_path):
    clone = patch(make_clone(tmp_path, "host"), target="etc/mark")
    is_told(clone.container_run("true", check=False), '"etc/mark" = ', "/path/in/the/image")
