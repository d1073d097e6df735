"""What a launcher names is pinned before it is written, and stays with its run."""

import json
import os
import shlex

import pytest
from support.emitted import FACTS

from lib.jobs import launcher as launchers
from lib.jobs.launcher import job_launcher, write_launcher
from lib.jobs.size import slurm_facts
from lib.jobs.start import start_of
from lib.runtimes import environment
from lib.runtimes.environment import Environment
from lib.script.errors import LongshipError

OVERLAY = '[packages]\noverlay = "myenv"\nrequirements = "r.txt"\n'


class Lab:
    """A repository with images and overlays in use: empty files, as nothing is started here."""

    def __init__(self, repository, folder):
        self.repository, self.scratch = repository, folder
        repository.write("r.txt", "trl\n")
        self.configure()

    def configure(self, more='[packages]\nrequirements = ""\n'):
        text = f'{more}\n[paths]\nscratch_dir = "{self.scratch}"\n'
        self.repository.write("configuration.toml", text)

    def given(self, **environ):
        settings, paths = self.repository.settings_and_paths(environ, arch="amd64")
        return Environment(settings, paths, "apptainer", "job")

    def put_in_use(self, version):
        """Make a version of the image, with its record, and link it as the one in use."""
        folder = self.scratch / "containers"
        (folder / "versions").mkdir(parents=True, exist_ok=True)
        file = folder / f"versions/{version}.sif"
        file.write_text(version)
        (folder / f"versions/{version}.sif.json").write_text(f'{{"sha256": "of {version}"}}')
        new = folder / "new"
        new.symlink_to(f"versions/{version}.sif")
        new.replace(folder / "base_1_amd64.sif")
        return str(file)

    def put_overlay_in_use(self):
        """Build an overlay, as an empty file."""
        link = self.given().overlay
        file = self.scratch / "overlays/versions/myenv.sqsh"
        file.parent.mkdir(parents=True)
        file.touch()
        os.symlink("versions/myenv.sqsh", link)
        return str(file)

    def pins(self, kind="containers"):
        """Give what is pinned: what it is, by whom."""
        files = sorted((self.scratch / kind / "pins").glob("*"))
        return [tuple(each.read_text().splitlines()) for each in files]


@pytest.fixture
def lab(repository, tmp_path):
    """Give a repository with an image in use."""
    return Lab(repository, tmp_path / "s")


@pytest.fixture
def run_folder(tmp_path):
    """Give the folder of a run."""
    folder = tmp_path / "s/runs/7-train"
    folder.mkdir(parents=True)
    return folder


def begin(lab, run, job="7", **environ):
    """Start a run as `submit.py begin` does, and write what the record says of it."""
    (run / "configuration.json").touch()
    start = start_of(lab.given(**environ), run, {**slurm_facts(FACTS), "JobId": job})
    named = job_launcher(start, restarted=True, title="a test")
    (run / "record.json").write_text(json.dumps(named))
    return named


def test_launcher_is_written_to_run_what_is_in_use(lab, tmp_path, run):
    image = lab.put_in_use("one")
    file = tmp_path / "launcher"
    named = write_launcher(lab.given(), file, online=False, job="", title="a test")
    assert named == {"image": image, "overlay": "", "venv": ""}
    assert lab.pins() == [(image, "", str(file))]
    assert os.access(file, os.X_OK)
    assert f"  image={shlex.quote(image)}" in file.read_text().splitlines()
    run(["bash", "-n", file])


def test_image_is_pinned_before_it_is_named(lab, tmp_path, monkeypatch):
    lab.put_in_use("one")
    pinned_then, write_file = [], launchers.write_file

    def write(file, text, mode=0o644):
        if file.parent.name == "pins":
            write_file(file, text, mode)
        else:
            pinned_then.extend(lab.pins())
            assert not file.exists()

    monkeypatch.setattr(launchers, "write_file", write)
    named = write_launcher(lab.given(), tmp_path / "l", online=False, job="7", title="a test")
    assert pinned_then == [(named["image"], "7", f"{tmp_path}/l")]


def test_swap_between_pin_and_launcher_is_noticed(lab, tmp_path, monkeypatch):
    lab.put_in_use("one")
    real, asked = environment.image_to_start, []

    def swap_once(*arguments):
        found = real(*arguments)
        if not asked:
            lab.put_in_use("two")
        asked.append(found)
        return found

    monkeypatch.setattr(environment, "image_to_start", swap_once)
    file = tmp_path / "launcher"
    named = write_launcher(lab.given(), file, online=False, job="7", title="a test")
    assert [os.path.basename(each) for each in asked] == [f"{n}.sif" for n in ("one", "two", "two")]
    assert named["image"].endswith("/two.sif")
    assert lab.pins() == [(named["image"], "7", str(file))]
    assert "/one.sif" not in file.read_text()


def test_new_run_takes_what_is_in_use(lab, run_folder):
    image = lab.put_in_use("one")
    lab.configure(OVERLAY)
    overlay = lab.put_overlay_in_use()
    named = begin(lab, run_folder)
    assert (named["image"], named["image_sha256"], named["image_state"]) == (image, "of one", "")
    assert (named["overlay"], named["venv"]) == (overlay, "")
    assert lab.pins("overlays") == [(overlay, "7", f"{run_folder}/launcher")]


def test_venv_in_use_is_named_and_not_the_link_to_it(lab, run_folder):
    lab.put_in_use("one")
    lab.configure('[packages]\nrequirements = "r.txt"\n')
    (lab.scratch / "venv_pytorch_amd64").symlink_to("venvs/a")
    assert begin(lab, run_folder)["venv"] == f"{lab.scratch}/venvs/a"


def test_image_of_the_site_is_told_apart_by_size_and_time(lab, run_folder, tmp_path):
    (tmp_path / "site.sif").write_text("12345")
    os.utime(tmp_path / "site.sif", ns=(0, 1_500_000_000))
    lab.configure(f'[container]\nimage = "{tmp_path}/site.sif"\n')
    named = begin(lab, run_folder)
    assert (named["image"], named["image_sha256"]) == (f"{tmp_path}/site.sif", "")
    assert named["image_state"] == "5 bytes, written at 1.500000000"


def test_requeued_run_keeps_its_launcher(lab, run_folder):
    lab.put_in_use("one")
    first = begin(lab, run_folder)
    text = (run_folder / "launcher").read_text()
    lab.put_in_use("two")
    assert begin(lab, run_folder) == first
    assert (run_folder / "launcher").read_text() == text
    assert lab.pins() == [(first["image"], "7", f"{run_folder}/launcher")]


@pytest.mark.extras("rerun")
def test_run_that_is_started_again_takes_the_old_launcher(lab, run_folder):
    lab.put_in_use("one")
    first = begin(lab, run_folder)
    lab.put_in_use("two")
    again = run_folder.with_name("8-train")
    again.mkdir()
    assert begin(lab, again, "8", LONGSHIP_JOB_RERUN=str(run_folder)) == first
    assert (again / "launcher").read_bytes() == (run_folder / "launcher").read_bytes()
    assert os.access(again / "launcher", os.X_OK)
    pins = [
        (first["image"], job, f"{folder}/launcher")
        for job, folder in (("7", run_folder), ("8", again))
    ]
    assert lab.pins() == pins
    # when that one is requeued it is its own launcher that counts
    (run_folder / "launcher").unlink()
    assert begin(lab, again, "8", LONGSHIP_JOB_RERUN=str(run_folder)) == first


def test_run_that_was_stopped_before_its_record_begins_anew(lab, run_folder):
    lab.put_in_use("one")
    begin(lab, run_folder)
    (run_folder / "record.json").unlink()
    image = lab.put_in_use("two")
    assert begin(lab, run_folder)["image"] == image
    assert f"image={image}" in (run_folder / "launcher").read_text()


def test_missing_image_is_left_to_the_launcher_to_tell(lab, run_folder):
    named = begin(lab, run_folder)
    assert named["image"] == f"{lab.scratch}/containers/base_1_amd64.sif"
    assert (named["image_sha256"], named["image_state"]) == ("", "")
    assert "sif_check" in (run_folder / "launcher").read_text()


@pytest.mark.extras("rerun")
def test_old_launcher_that_is_gone_is_told(lab, run_folder):
    lab.put_in_use("one")
    begin(lab, run_folder)
    (run_folder / "launcher").unlink()
    again = run_folder.with_name("8-train")
    again.mkdir()
    with pytest.raises(LongshipError, match="the launcher of run 7-train no longer exists: /"):
        begin(lab, again, "8", LONGSHIP_JOB_RERUN=str(run_folder))


@pytest.mark.extras("rerun")
@pytest.mark.parametrize("name", ["image", "overlay", "venv"])
def test_what_is_gone_since_is_told(name, lab, run_folder):
    lab.put_in_use("one")
    begin(lab, run_folder)
    record = json.loads((run_folder / "record.json").read_text())
    record[name] = str(lab.scratch / "no longer here")
    (run_folder / "record.json").write_text(json.dumps(record))
    again = run_folder.with_name("8-train")
    again.mkdir()
    with pytest.raises(LongshipError) as error:
        begin(lab, again, "8", LONGSHIP_JOB_RERUN=str(run_folder))
    assert str(error.value) == f"the {name} of run 7-train no longer exists: {record[name]}"
    assert "submit.py" in error.value.hint
    assert [each.name for each in again.iterdir()] == ["configuration.json"]


def test_without_a_container_nothing_is_pinned(lab, run_folder):
    env = lab.given()._replace(runtime="host")
    start = start_of(env, run_folder, {**slurm_facts(FACTS), "JobId": "7"})
    named = job_launcher(start, restarted=True, title="a test")
    assert (named["image"], named["overlay"]) == ("", "")
    assert lab.pins() == []
