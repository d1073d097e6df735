"""Offline runs of W&B are found and uploaded, each as often as a job has written more."""

import os
import sys

import pytest

# Like wandb, it refuses unknown options and marks what it has uploaded; it needs a key.
WANDB = """#!/usr/bin/env bash
[[ $1 == sync && $2 == --include-synced && ${3:-} == /* ]] || exit 2
[[ ${WANDB_API_KEY:-} ]] || { echo "Error: No API key configured." >&2; exit 1; }
for file in "${@:3}"; do
  [[ $file == *.wandb && -f $file ]] || exit 2
  printf '%s\\n' "${file##*/}" >>"$UPLOADED"
  touch "$file.synced"
done
"""


@pytest.fixture
def jobs(tmp_path, root, run, clean_environment):
    """Give a function that runs the program, and `jobs.run(...)`, which makes a run directory."""
    programs, uploaded = tmp_path / "programs", tmp_path / "uploaded"
    programs.mkdir()
    (programs / "wandb").write_text(WANDB)
    (programs / "wandb").chmod(0o755)
    more = {"LONGSHIP_ROOT": str(root), "LONGSHIP_SCRATCH_DIR": str(tmp_path / "scratch")}
    more.update(WANDB_API_KEY="k", UPLOADED=str(uploaded))
    more["PATH"] = f"{programs}:{clean_environment['PATH']}"

    def sync(mode, *folders, check=True, **changed):
        uploaded.write_text("")
        program = root / "extras/reports/inside/sync_wandb.bash"
        command = ["bash", program, mode, "python3 set_up.py install", *folders]
        env = {**clean_environment, **more, **changed}
        done = run(command, env=env, check=check)
        return done, sorted(uploaded.read_text().split())

    def make(name, *places, ended=True):
        folder = tmp_path / "a scratch/runs" / name
        folder.mkdir(parents=True)
        end = ',\n  "ended": "2026-01-02T03:04:05Z"' if ended else ""
        (folder / "record.json").write_text(f'{{\n  "job": "1"{end}\n}}\n')
        for number, place in enumerate(places):
            written = folder / place / f"wandb/offline-run-2026-{name}{number}"
            written.mkdir(parents=True)
            (written / f"run-{name}{number}.wandb").write_text("x")
            os.utime(written / f"run-{name}{number}.wandb", (1, 1))
        return folder

    sync.make, sync.programs = make, programs
    return sync


def test_runs_are_found_where_frameworks_write_them(jobs, tmp_path):
    results = tmp_path / "results"
    for place in ("wandb", "tb/2026"):
        written = results / place / "wandb/offline-run-2026-x"
        written.mkdir(parents=True)
        (written / f"run-{place[:2]}.wandb").write_text("x")
    first, second = jobs.make("a", "."), jobs.make("b")
    for each in (first, second):  # a chain
        (each / "outputs").symlink_to(results)
    assert jobs("once", first, second)[1] == ["run-a0.wandb", "run-tb.wandb", "run-wa.wandb"]


def test_only_what_a_job_has_written_since_is_uploaded_again(jobs):
    folder = jobs.make("a", ".", "sub")
    (folder / "outputs").symlink_to(folder / "sub")
    assert jobs("once", folder)[1] == ["run-a0.wandb", "run-a1.wandb"]
    done, uploaded = jobs("once", folder)
    assert uploaded == [] and "note: W&B: nothing to upload" in done.stderr
    next(folder.glob("wandb/*/run-a0.wandb")).write_text("more")
    assert jobs("once", folder)[1] == ["run-a0.wandb"]


def test_no_link_out_of_a_run_is_followed(jobs, tmp_path):
    other = jobs.make("b", ".")
    folder = jobs.make("a", ".", "sub")
    (folder / "outputs").symlink_to(folder / "sub")
    (folder / "sub/deeper").symlink_to(other)
    (folder / "wandb/offline-run-x").symlink_to(next(other.glob("wandb/*")))
    for kind in (os.mkfifo, lambda file: file.symlink_to(next(other.glob("wandb/*/*.wandb")))):
        place = folder / f"sub/wandb/offline-run-{len(os.listdir(folder / 'sub/wandb'))}"
        place.mkdir()
        kind(place / "run-c.wandb")
    assert jobs("once", folder)[1] == ["run-a0.wandb", "run-a1.wandb"]
    assert not [*other.glob("wandb/*/*.synced")]


def test_missing_key_is_told(jobs):
    done, _ = jobs("once", jobs.make("a", "."), check=False, WANDB_API_KEY="")
    assert done.returncode == 1
    said, error, hint = done.stderr.splitlines()
    assert "No API key configured" in said
    assert error == "error: wandb cannot upload all runs"
    assert hint.endswith("for a missing key, run: export WANDB_API_KEY=...")


def test_missing_wandb_is_told(jobs):
    (jobs.programs / "wandb").unlink()
    done, _ = jobs("once", jobs.make("a", "."), check=False)
    error, hint = done.stderr.splitlines()
    assert done.returncode == 1 and error == "error: wandb not found inside the environment"
    assert hint == "hint: add wandb to the requirements, then run: python3 set_up.py install"
    assert jobs("once", jobs.make("b"))[0].returncode == 0  # nothing to upload


def test_following_ends_with_the_jobs(jobs):
    assert jobs("follow", jobs.make("a", "."), jobs.make("b", "."))[1] == [
        "run-a0.wandb",
        "run-b0.wandb",
    ]


def test_following_requires_a_run(run, root):
    done = run([sys.executable, root / "submit.py", "sync", "--follow"], check=False)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        ["error: missing argument: RUN", "hint: python3 submit.py sync RUN --follow"],
    )
