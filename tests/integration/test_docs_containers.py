"""What docs/how-to/containers.md shows, command by command, with a real image and no network."""

import json
import re
import shlex
import sys

import pytest
from support import processes
from support.lab import Lab
from support.repository import toml

from lib.configuration.sites import own_arch

pytestmark = [
    pytest.mark.slow,  # the commands have tests of their own: test_build_container.py, ...
    pytest.mark.needs("apptainer", "registry", "skopeo", "rsync"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the example is for amd64"),
]


def commands(root, heading):
    """Give the commands of a section, or of what stands before the first one, as lists of words."""
    text = (root / "docs/how-to/containers.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2] if heading else text
    found = re.findall(r"```bash\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert found
    lines = "".join(found).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def configure(clone, image, far):
    (clone.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
    clone.configure(
        f'[container]\nruntime = "apptainer"\nimage = {toml(image)}\n'
        '[packages]\nrequirements = ""\n[machines.jwb]\n'
        f"paths.project_dir = {toml(far / 'project')}\n"
        f"paths.scratch_dir = {toml(far / 'my-account/me/longship')}\n"
    )


def test_each_command_of_the_page(
    root, base_tar, tiny, registry, container_settings, clean_environment, airgapped, tmp_path
):
    """The image that travels is a real one; a build of the others takes one second, not twenty."""
    registry.put("lab/base:1", ("amd64", base_tar))
    registry.put("lab/small:1", ("amd64", tiny(python="echo Python 3.x")))
    container_settings(tmp_path / "home")
    environment = {**clean_environment, "HOME": str(tmp_path / "home")}
    laptop = Lab(root, tmp_path / "laptop", environment)
    jwb = Lab(root, tmp_path / "jwb", {**environment, "SYSTEMNAME": "juwelsbooster"})
    far = tmp_path / "p/scratch"
    (far / "my-account/me/longship/offline/containers").mkdir(parents=True)

    def run(clone, words, without_network=False):
        words = [each.replace("jwb:/p/scratch", str(far)) for each in words]
        words = [each.replace("~", environment["HOME"], 1) for each in words]
        if words[0] == "python3":
            words = [sys.executable, *words[1:]]
        command = airgapped(words) if without_network else words
        return processes.run(command, env=clone.environment, cwd=clone.root)

    first, again = commands(root, ""), commands(root, "Change the image")
    across = commands(root, "On a machine without network")
    configure(laptop, registry.name("lab/small:1"), far)
    for words in first:
        done = run(laptop, words)
    assert done.stdout == "Python 3.x\n"
    listed, back, locked, pruned = [run(laptop, words) for words in again][2:]
    assert listed.stdout.count("lab/small:1") == 2 and "active since" in listed.stdout
    assert "active image: small_1_amd64_" in back.stderr
    assert "[3/3]" in locked.stderr
    assert "deleted: small_1_amd64_" in pruned.stderr

    for clone in (laptop, jwb):
        configure(clone, registry.name("lab/base:1"), far)
    download, copy, *offline = across
    run(laptop, download)
    run(laptop, copy)
    for words in offline:
        run(jwb, words, without_network=True)
    jwb.scratch = far / "my-account/me/longship"
    record = json.loads(next((jwb.scratch / "containers/versions").glob("*.json")).read_text())
    assert record["source"] == registry.name("lab/base:1") and record["digest"]
    jwb.container_run("python3", "-c", "import yaml")
