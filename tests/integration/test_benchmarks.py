"""benchmarks/run.py measures for real, and its counts are what is said of a rank."""

import json
import re
import shutil
import sys

import pytest
from support import cache, processes

pytestmark = [
    pytest.mark.slow,  # tests/test_benchmarks.py holds tables, plots and the model
    pytest.mark.needs("apptainer", "fuse", "slurm", "strace", "mksquashfs"),
]
CASES = (
    "a venv on the shared file system",
    "the image, packages in it",
    "the overlay",
)


@pytest.fixture(scope="module")
def python(root, session_environment):
    """Give a Python with what the plots need."""
    files = [root / "requirements/host.txt", root / "benchmarks/requirements.txt"]

    def build(partial):
        processes.run([sys.executable, "-m", "venv", partial], env=session_environment)
        options = [word for file in files for word in ("-r", file)]
        install = [partial / "bin/python", "-m", "pip", "install", "--quiet", *options]
        processes.run(install, env=session_environment, timeout=600)

    return cache.cached(f"benchmarks-{cache.fingerprint(*files)}", build) / "bin/python"


SLOW = ("the directory", "the overlay, not read ahead", "the overlay")


@pytest.fixture(scope="module")
def results(root, python, make_clone, wheels, base_image, slurm_cluster, tmp_path_factory):
    """Run two topics with a package of one module; give the folder with what came of it."""
    folder = tmp_path_factory.mktemp("benchmarks")
    clone = make_clone(folder, "apptainer", ["longship_tiny==1.0"])
    shutil.copytree(root / "benchmarks", clone.root / "benchmarks")
    # Apptainer builds no image below a folder with a quote in its path.
    output, scratch = folder / "the results", folder / "a shared folder"
    scratch.mkdir()
    command = [python, clone.root / "benchmarks/run.py", "--quick", "--only", "launch", "scale"]
    packages = ["--requirements", clone.root / "requirements/tiny.txt", "--module", "longship_tiny"]
    places = ["--image", base_image, "--output", output, "--scratch", scratch]
    environment = {**slurm_cluster.environment, "PIP_FIND_LINKS": str(wheels)}
    processes.run([*command, *packages, *places], env=environment, timeout=600)
    ranks = [
        python,
        clone.root / "benchmarks/ranks.py",
        base_image,
        "--scratch",
        scratch,
        *packages,
    ]
    numbers = ["--rounds", "1", "--ranks", "1", "2", "--delays", "0", "5"]
    done = processes.run([*ranks, *numbers], env=environment, timeout=600)
    (output / "ranks.md").write_text(done.stdout)
    assert not list(scratch.iterdir())
    return output


def rows(results, head, file="results.md"):
    """Give the cells of the table whose first column has this head, by line."""
    text = (results / file).read_text()
    table = next(each for each in text.split("\n\n") if each.startswith(f"| {head}"))
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().split("\n")
    ][2:]


def test_plots_and_tables_are_written(results):
    text = (results / "results.md").read_text()
    assert re.search(
        r"^A quick run.* apptainer version \d.* strace -- version \d", text, re.MULTILINE
    )
    for name in ("launch", "operations", "model"):
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"]({name}.png)" in text
    assert "failed" not in text


def test_summary_has_both_topics(results):
    names = [row[0] for row in rows(results, " |")]
    assert "launch through a job's launcher" in names
    assert any("path operations" in name and "overlay" in name for name in names)


def test_every_rank_asks_the_shared_file_system_the_same(results):
    """Except the first of a node, which reads ahead: it opens both files for each part."""
    counted = {row[0]: row[1:] for row in rows(results, "one rank")}
    assert tuple(counted) == CASES
    for name, (shared, opens, *_) in counted.items():
        if name != "the overlay":
            assert shared.isdigit(), "other counts for other ranks"
            assert opens.isdigit()
    least, most = map(int, counted["the overlay"][1].split(" to "))
    assert 0 < most - least <= 2 * 32


def test_a_mounted_overlay_is_asked_for_two_files_whatever_is_imported(results):
    counted = {row[0]: row[1:] for row in rows(results, "one rank")}
    shared, opens = (int(cell.split(" to ")[0]) for cell in counted["the overlay"][:2])
    # By the launcher, by Apptainer's looks at what they are, and by its FUSE processes: 10 and 6
    # with Apptainer 1.4.
    assert int(counted["the image, packages in it"][1]) < opens <= 12
    # besides those, what the launcher binds; PyTorch alone asks for fourteen thousand in a venv
    assert shared < 60


def test_no_python_of_the_host_is_started(results):
    assert "A Python of the host was started 0 times" in (results / "results.md").read_text()


def test_what_is_missing_is_told(python, root, run, clean_environment, tmp_path):
    script = root / "benchmarks/run.py"
    programs = tmp_path / "bin"
    programs.mkdir()
    environment = {**clean_environment, "PATH": str(programs)}
    command = [python, script, "--only", "launch", "scale", "--image", tmp_path / "image.sif"]
    run([*command, "--output", tmp_path], env=environment)
    text = (tmp_path / "results.md").read_text()
    assert "Not measured: launching needs apptainer, which this machine does not have." in text
    needed = "apptainer, mksquashfs, unsquashfs, strace, fusermount3"
    assert f"Not measured: counting needs {needed}, which" in text
    assert "no apptainer; no sbatch" in text


def test_ranks_are_timed_in_one_launch_and_in_several(results):
    cases = ["a local directory", "the overlay, without its index", "the overlay"]
    for head in ("1 rank, one launch", "2 ranks, one launch", "2 ranks, a launch for each"):
        assert [row[0] for row in rows(results, head, "ranks.md")] == cases


def test_memory_of_further_ranks_is_measured(results):
    directory, overlay = rows(results, "memory after", "ranks.md")
    assert all(
        cell.endswith(" MB") for row in (directory, overlay) for cell in (row[1], row[2], row[4])
    )
    assert directory[3] == directory[5] == "1.00" and float(overlay[3]) > 0


def test_overlay_needs_few_operations_of_a_file_system_that_answers_late(results):
    table = rows(results, "1 rank with empty caches", "ranks.md")
    assert [row[:2] for row in table] == [
        ["a local directory", ""],
        *([each, f"{delay} ms"] for delay in (0, 5) for each in SLOW),
    ]
    counts = [[int(cell.replace(",", "")) for cell in row[-3:-1]] for row in table]
    assert counts[0] == [0, 0]
    for (paths, reads), (overlay_paths, overlay_reads) in zip(counts[1::3], counts[2::3]):
        assert paths > overlay_paths > 0 and reads > 0 and overlay_reads > 0


def test_benchmark_of_a_gpu_measures_its_test_sizes_without_one(inside, root, tmp_path):
    program, figures = root / "benchmarks/gpu.py", tmp_path / "gpu.json"
    done = inside("python", program, "--quick", "--scratch", tmp_path, "--json", figures)
    found = json.loads(figures.read_text())
    assert [row["size"] for row in found["rows"]] == ["small", "large"]
    assert all(row["tokens_per_s"] > 0 for row in found["rows"])
    assert "12 losses, which differ by at most 0 from" in found["resumption"]
    assert found["preprocessing"].endswith(" tokens/s")
    assert found["sampler"].startswith("not measured: no sample")
    assert done.stdout.startswith("No GPU, PyTorch ")
    without = inside("python", program, check=False)
    assert without.stderr.splitlines()[-2] == "error: PyTorch finds no GPU"
