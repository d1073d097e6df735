"""Files of ours in place of the image's own, in every runtime."""

import pytest
from support.lab import is_told
from support.repository import toml

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


def test_configured_path_that_is_none_is_told(make_clone, tmp_path):
    clone = patch(make_clone(tmp_path, "host"), target="etc/mark")
    is_told(clone.container_run("true", check=False), '"etc/mark" = ', "/path/in/the/image")
