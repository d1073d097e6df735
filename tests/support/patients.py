"""What doctor.py is tried on: a clone in which all is well, and what it finds there."""

import json
import os
import shutil
import sys
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.configuration.sites import own_arch
from support import processes
from support.git import IDENTITY, Repository, Workplace
from support.overlays import TINY
from support.repository import Clone, toml

ARCH = own_arch()
TOKEN = "hf_nobody_may_see_this"


class Report:
    """What a call of doctor.py with --json has found."""

    def __init__(self, done):
        self.done = done
        self.text = done.stdout + done.stderr
        self.json = json.loads(done.stdout)
        self.findings = self.json["findings"]

    def of(self, topic):
        """Give what it says of a topic."""
        return [each for each in self.findings if each["topic"] == topic]

    def states(self, topic):
        """Give the states of a topic."""
        return {each["state"] for each in self.of(topic)}


class Patient(Clone):
    """A clone with image, overlay, venv, repository and token, for one test to spoil.

    They are copies of those of the model.
    """

    def __init__(self, root, folder, model):
        home = folder / "home"
        environment = processes.make_environment(home)
        environment["PATH"] = f"{folder / 'bin'}:{Path(sys.executable).parent}:{processes.PATH}"
        super().__init__(root, folder / "it's a clone", {**environment, **model.slurm, **IDENTITY})
        self.folder, self.home, self.model = folder, home, model
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.project, self.scratch = folder / "the project", folder / "it's a scratch"
        self.prepare_software()
        repositories = self.project / "repos"
        shutil.copytree(model.work.mine.folder, repositories / "torchtitan", symlinks=True)
        self.mine = Repository(repositories / "torchtitan", environment)
        self.token = home / ".cache/huggingface/token"
        self.write(self.token, f"{TOKEN}\n", 0o600)
        (self.root / "stacks/pytorch/stack.toml").write_text('description = "no torch"\n')
        self.change(
            'arch = "auto"', 'arch = "auto"\ncompute_directories = ["/"]', "local/site.toml"
        )
        (self.root / "requirements/tiny.txt").write_text(f"{TINY}\n")
        self.settings = (
            f'machine = "auto"\n[paths]\nproject_dir = {toml(self.project)}\n'
            f"scratch_dir = {toml(self.scratch)}\n"
            f'[container]\nruntime = "apptainer"\nimage = {toml(model.image)}\nbinds = []\n'
            '[packages]\noverlay = "myenv"\nrequirements = "requirements/tiny.txt"\n'
            'compression = "zstd"\n[environment]\nset = {}\n[[repositories]]\n'
            f'name = "torchtitan"\nurl = {toml(model.work.url)}\nref = "v1"\n'
        )
        self.configure(self.settings)

    def prepare_software(self):
        """Put copies of image and overlay in use, and what tells a venv from a folder."""
        containers = self.scratch / "containers"
        self.active = containers / f"{self.model.image.stem}_{ARCH}.sif"
        self.image = containers / f"versions/{self.active.stem}_1_a.sif"
        self.image.parent.mkdir(parents=True)
        shutil.copy(self.model.image, self.image)
        self.active.symlink_to(f"versions/{self.image.name}")
        found = self.image.stat()
        seconds, nanoseconds = divmod(found.st_mtime_ns, 10**9)
        mark = f"{found.st_size} {seconds}.{nanoseconds:09}"
        text = f'{{\n  "bytes": "{found.st_size}",\n  "modified": "{mark}"\n}}\n'
        self.write(Path(f"{self.image}.json"), text)
        overlays = self.scratch / "overlays"
        shutil.copytree(self.model.overlay.folder, overlays, symlinks=True)
        (self.link,) = (each for each in overlays.glob("*.sqsh") if each.is_symlink())
        self.overlay = self.link.parent / os.readlink(self.link)
        self.record = Path(f"{self.overlay}.json")
        self.record_base(self.image)
        self.venv = self.scratch / f"venv_pytorch_{ARCH}"
        self.write(self.venv / "longship-base", f"{self.overlay}\n")
        self.write(self.venv / "longship-files", "complete\n")
        (self.venv / "bin").mkdir()
        (self.venv / "bin/python").symlink_to("/usr/bin/python3")  # the image's

    def record_base(self, image):
        """Say which image the overlay belongs to."""
        lines = self.record.read_text().splitlines()
        lines = [f'  "base": {json.dumps(str(image))},' if '"base"' in x else x for x in lines]
        self.record.write_text("\n".join(lines) + "\n")

    def write(self, path, text, mode=0o644):
        """Write a file with its folders."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def use_no_container(self):
        """Choose the runtime `host`."""
        self.change('runtime = "apptainer"', 'runtime = "host"')

    def program(self, name, script):
        """Put a program in front of all others."""
        self.write(self.bin / name, f"#!/bin/bash\n{script}\n", 0o755)

    doctor = partialmethod(Clone.type, "doctor.py", check=False)

    def report(self, *arguments, **options):
        """Return what it finds."""
        __tracebackhide__ = True
        return Report(self.doctor("--json", *arguments, **options))


@pytest.fixture(scope="session")
def make_patient(
    root, base_image, with_overlay, slurm_cluster, session_environment, tmp_path_factory
):
    """Give a function that makes a patient in a folder."""
    work = Workplace(root, tmp_path_factory.mktemp("work"), session_environment)
    work.install()
    slurm = {"SLURM_CONF": slurm_cluster.environment["SLURM_CONF"]}
    model = SimpleNamespace(image=base_image, overlay=with_overlay(), work=work, slurm=slurm)
    return lambda folder: Patient(root, folder, model)


@pytest.fixture
def patient(make_patient, tmp_path):
    """Give a clone in which all is well; a test may spoil it."""
    return make_patient(tmp_path)


@pytest.fixture
def without_container(patient):
    """Let the test's patient start no containers."""
    patient.use_no_container()


@pytest.fixture(scope="session")
def healthy(make_patient, tmp_path_factory):
    """Give what doctor.py finds where all is well."""
    return make_patient(tmp_path_factory.mktemp("healthy")).report()
