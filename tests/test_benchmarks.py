"""The parts of benchmarks/ that compute: what strace says, the model, and the tables."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib import ROOT

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = tuple(each.stem for each in BENCHMARKS.glob("*.py"))

# Of `strace -ff -y`, shortened: the launcher of a rank, Apptainer's FUSE process, and the command
# inside with a child. Process 10 starts 11 and 12, which starts 13.
TRACES = {
    10: """\
execve("/shared/it's a launcher", ["launcher", "python"], 0x7ffd652f /* 57 vars */) = 0
execve("/opt/bin/bash", ["bash", "launcher"], 0x7ffd652f /* 57 vars */) = -1 ENOENT (No such file)
openat(AT_FDCWD</shared>, "image.sif", O_RDONLY) = 3</shared/image.sif>
read(3</shared/image.sif>, "SIF_MAGIC\\00001"..., 4096) = 4096
newfstatat(3</shared/image.sif>, "", {st_mode=S_IFREG|0755, st_size=9377, ...}, AT_EMPTY_PATH) = 0
execve("/usr/bin/apptainer", ["apptainer", "exec"], 0x343701 /* 3 vars */) = 0
clone(child_stack=0x55f9b6128fd0, flags=CLONE_FS|SIGCHLD) = 11
clone3({flags=CLONE_VM|CLONE_FS, child_tid=0x7fcf, exit_signal=0} => {parent_tid=[12]}, 88) = 12
""",
    11: """\
execve("/usr/bin/squashfuse_ll", ["squashfuse_ll", "-f"], 0x3f2fb9 /* 2 vars */) = 0
openat(AT_FDCWD</>, "/proc/self/fd/3", O_RDONLY) = 4</shared/image.sif>
pread64(4</shared/image.sif>, "\\6\\0\\0\\0\\4\\0"..., 1000, 4096) = 1000
pread64(4</shared/image.sif>, "\\6\\0\\0\\0\\4\\0"..., 1000, 4596) = 1000
""",
    12: """\
openat(AT_FDCWD</>, "/usr/lib/libc.so.6", O_RDONLY|O_CLOEXEC) = 3</usr/lib/libc.so.6>
execve("/bin/sh", ["/bin/sh", "-c", "export A=1"..., "longship"], 0x3f2fd1 /* 78 vars */) = 0
openat(AT_FDCWD</shared>, "/usr/lib/libc.so.6", O_RDONLY|O_CLOEXEC) = 3</usr/lib/libc.so.6>
mmap(0x7ff97c7a1000, 24576, PROT_READ, MAP_PRIVATE|MAP_FIXED, 3</shared/venv/torch.so>, 0) = 0x7ff9
mmap(NULL, 12288, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7ff9
vfork()                                 = 13
""",
    13: """\
execve("/user-software/bin/python3", ["python3"], 0x557de1 /* 103 vars */) = 0
newfstatat(AT_FDCWD</shared>, "/user-software/torch", {st_mode=S_IFDIR|0755}, 0) = 0
openat(AT_FDCWD</shared>, "venv/../venv/torch.so", O_RDONLY) = 3</shared/venv/torch.so>
getdents64(3</shared/venv>, 0x556ac75fe430 /* 5 entries */, 32768) = 120
openat(AT_FDCWD</shared>, "/proc/self/maps", O_RDONLY) = 3</proc/13/maps>
readlink("/shared/missing", 0x7ffc, 128) = -1 ENOENT (No such file)
+++ exited with 0 +++
""",
}


@pytest.fixture(scope="module")
def benchmarks():
    """Give a function that imports a module of benchmarks/, whose names are no one else's here."""
    kept = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(BENCHMARKS))
    yield __import__
    sys.path.remove(str(BENCHMARKS))
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.fixture
def traced(tmp_path):
    for process, text in TRACES.items():
        (tmp_path / f"process.{process}").write_text(text)
    return tmp_path


def test_calls_of_the_container_are_told_from_the_hosts(benchmarks, traced):
    found = list(benchmarks("traces").calls(traced))
    opened = [each for each in found if "/usr/lib/libc.so.6" in each.paths]
    assert [each.inside for each in opened] == [False, True]
    (child,) = (each for each in found if "/user-software/torch" in each.paths)
    assert child.inside


def test_requests_to_a_mount_are_read_from_a_trace(benchmarks):
    parse = benchmarks("traces").parse
    found = parse(r'read(6</dev/fuse>, "h\0\0\0\32\0\0\0"..., 1052672) = 104')
    assert found == ("read", ("/dev/fuse",), 104, -1, False, False)


@pytest.mark.parametrize("launches", [1, 3])
def test_ranks_that_start_at_once_are_split(launches, benchmarks, tmp_path):
    """The launcher here only starts its command, and the interpreter is this one."""
    ranks = benchmarks("ranks")
    started = tmp_path / "started"
    (tmp_path / "launcher").write_text(f'echo "$MARK" >>{started}\n"$@"\n')
    case = ranks.Case("x", tmp_path / "launcher", {"MARK": "1"})

    def command(code, number):
        found = case.command(code, number)
        return [sys.executable if each.endswith("/bin/python") else each for each in found]

    here = SimpleNamespace(name="x", variables=case.variables, command=command)
    rank = ranks.start(here, 3, launches, "import os")
    assert 0 < rank.container < rank.whole and rank.python > rank.imported >= 0
    assert started.read_text() == "1\n" * launches
    with pytest.raises(RuntimeError, match="x: 0 of 3 ranks succeeded"):
        ranks.start(here, 3, launches, "raise SystemExit(1)")


def test_a_rank_is_counted_by_where_its_files_lie(benchmarks, traced):
    counting, traces = benchmarks("counting"), benchmarks("traces")
    counts = counting.counts(list(traces.calls(traced)), ["/shared"], ["/shared/image.sif"])
    # launcher, image twice, a link that is not there, the venv's file and folder
    assert counts.shared == 6
    assert counts.opens == 2
    # /bin/sh, libc.so.6, python3, torch
    assert counts.mounted == 4
    # a failed bash, apptainer, squashfuse_ll, libc.so.6, /proc/self/maps
    assert counts.own == 5
    assert counts.reads == 3
    assert counts.mapped == 1


def test_a_node_fetches_each_byte_once(benchmarks, traced, tmp_path_factory):
    counting = benchmarks("counting")
    node = tmp_path_factory.mktemp("node")
    for rank in ("0", "1"):
        (node / rank).mkdir()
        for file in traced.iterdir():
            (node / rank / file.name).write_bytes(file.read_bytes())
    counted = counting.node(node, ["/shared"], [Path("/shared/image.sif")])
    assert len(counted.ranks) == 2
    # two reads of a thousand bytes that overlap by half, and what is mapped of the venv's file
    assert counted.fetched == 1500 + 24576
    assert counted.programs == ("apptainer", "it's a launcher", "squashfuse_ll")


def test_a_python_of_the_host_is_seen(benchmarks, traced):
    counting = benchmarks("counting")
    (traced / "process.14").write_text(
        'execve("/usr/bin/python3.11", ["x"], 0x1 /* 2 vars */) = 0\n'
    )
    rank = traced.parent / "node" / "0"
    rank.parent.mkdir()
    traced.rename(rank)
    # the one inside does not count, though it is one too
    assert counting.node(rank.parent, ["/shared"], []).pythons == 1


def test_a_call_about_no_file_is_none(benchmarks):
    parse = benchmarks("traces").parse
    assert parse("mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7ff9") is None
    assert parse("+++ exited with 0 +++") is None
    assert parse("clone(child_stack=0x55f9, flags=SIGCHLD) = 11") is None


def test_the_model_is_bound_by_a_rank_and_then_by_the_server(benchmarks):
    model = benchmarks("model")
    demand = model.Demand(path_operations=34_000, read_bytes=0, seconds=1, waits=0)
    # one after the other: 12 threads do 34,000 in a second
    assert model.first_import(demand, 1, 1) == pytest.approx(13)
    # 4,096 ranks x 34,000 by 544,000 a second
    assert model.first_import(demand, 4096, 1) == pytest.approx(1 + 256)
    # reading: a client's 1.5 GB/s on one node, a share of 18.5 GB/s on many
    reading = model.Demand(path_operations=0, read_bytes=1.5e9, seconds=0, waits=300)
    assert model.first_import(reading, 1, 4) == pytest.approx(1)
    assert model.first_import(reading, 1, 4, latency=10) == pytest.approx(4)
    assert model.first_import(reading, 37, 4) == pytest.approx(3)


def test_the_models_table_says_that_it_is_one(benchmarks):
    model, tables = benchmarks("model"), benchmarks("tables")
    venv = model.Demand(path_operations=14_833, read_bytes=4e8, seconds=2, waits=2600)
    overlay = model.Demand(path_operations=54, read_bytes=8e7, seconds=3, waits=100)
    table = model.model_table({"venv": venv, "overlay": overlay}, 4)
    written = tables.markdown(table)
    assert "A model, not a measurement" in written
    assert "4,096 nodes" in written
    assert len(table.figures["venv"]) == len(model.NODES)


def test_tables_are_markdown(benchmarks):
    tables, compare = benchmarks("tables"), benchmarks("side_by_side")
    ours = compare.Result("`ours`", (1.0, 3.0, 2.0), ())
    other = compare.Result("`other`", (0.5, 1.0, 1.0), ())
    table = compare.compare([other, ours], "what", {"a thing": 1})
    assert tables.markdown(table).splitlines() == [
        "| what | median | ratio | quartiles of the ratio |",
        "|---|---|---|---|",
        "| `other` | 1.0 s | 1.00 | 1.00 to 1.00 |",
        "| `ours` | 2.0 s | 2.00 | 2.00 to 2.50 |",
    ]
    assert tables.markdown(tables.summary(tables.combined([table]))).splitlines()[2:] == [
        "| a thing | 2.0 s | 1.0 s, `other` | 2.00 | 2.00 to 2.50 |"
    ]


def test_what_was_measured_once_has_no_spread(benchmarks):
    tables = benchmarks("tables")
    once = tables.Compared("a thing", "1 s", "2 s", 0.00364)
    summary = tables.markdown(tables.summary([once]))
    assert summary.endswith("| a thing | 1 s | 2 s | 0.004 | measured once |")
    assert tables.quartiles([1.0]) == ()


def test_several_runs_have_the_range_of_the_ratio(benchmarks):
    tables = benchmarks("tables")
    ratios = (1.10, 1.03, 1.06)
    several = [tables.Compared("a launch", f"{each} s", "1 s", each, (1, 2)) for each in ratios]
    once = tables.Compared("a build", "1 s", "2 s", 0.5, (0.4, 0.6))  # the other runs failed
    runs = [tables.Table((), (), "", [each]) for each in (*several, once)]
    assert tables.markdown(tables.summary(tables.combined(runs, 3), 3)).splitlines() == [
        "|  | Longship | alternative | ratio | range of the ratio in 3 runs |",
        "|---|---|---|---|---|",
        "| a launch | 1.06 s | 1 s | 1.06 | 1.03 to 1.10 |",
        "| a build | 1 s | 2 s | 0.50 | measured once |",
    ]


def test_training_has_wall_time_and_cpu_time(benchmarks):
    training = benchmarks("training")
    speeds, own = iter((100.0, 90.0, 110.0)), iter((100.0, 120.0, 110.0))
    ways = {"`plain`": lambda: next(speeds), "`train.py`": lambda: next(own)}
    table = training.speeds(training.in_turn(ways, 3), "training", "")
    assert table.columns == (
        "training",
        "tokens/s by wall time",
        "ratio",
        "quartiles of the ratio",
        "CPU time, whole program",
    )
    assert table.rows[1][:4] == ("`train.py`", "110", "1.00", "1.00 to 1.17")
    assert re.fullmatch(r"\d+ ms, \d+ ms to \d+ ms", table.rows[1][4])
    assert [each.name for each in table.summary] == ["training, tokens/s by wall time: `train.py`"]
    rounds = [training.Round(1, each) for each in (21.0, 18.2, 22.6)]
    assert training.cpu_text(rounds) == "21.0 s, 18.2 s to 22.6 s"


@pytest.fixture
def measure(benchmarks, monkeypatch, tmp_path):
    """Give a function that runs benchmarks/run.py with these topics; it returns results.md."""

    def draw(runs, folder):
        raise OSError("No space left on device")

    def measure(topics, *options):
        monkeypatch.setitem(
            sys.modules, "plots", SimpleNamespace(draw=draw)
        )  # matplotlib is not here
        run = benchmarks("run")
        monkeypatch.setattr(run, "TOPICS", {name: (name, each) for name, each in topics.items()})
        monkeypatch.setattr(sys, "argv", ["run.py", "--output", str(tmp_path), *options])
        with pytest.raises(OSError, match="No space left"):
            run.main()
        return (tmp_path / "results.md").read_text(encoding="utf-8")

    return measure


def test_what_was_measured_is_kept_whatever_fails(benchmarks, measure, monkeypatch, tmp_path):
    """An sbatch without a configuration prints no version; a topic fails; so do the plots."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'fatal: no configuration' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tables = benchmarks("tables")
    ratios = iter((1.03, 1.10))

    def launch(given):
        ratio = next(ratios)
        told = [tables.Compared("a launch", f"{ratio} s", "1 s", ratio)]
        return [tables.Table(("launch",), [(f"{ratio} s",)], "", told)]

    def broken(given):
        return [][0]

    text = measure({"launch": launch, "broken": broken}, "--runs", "2")
    assert "; sbatch of unknown version; " in text
    assert "| a launch | 1.03 s | 1 s | 1.03 | 1.03 to 1.10 |" in text
    assert "## launch\n\n| launch |\n|---|\n| 1.1 s |" in text
    assert "Not measured: failed: IndexError: list index out of range." in text
    assert "2 runs took 0 minutes. The summary has" in text


def test_slurm_without_an_answer_is_no_slurm(benchmarks, monkeypatch, tmp_path):
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # no sinfo
    assert not benchmarks("workplace").has_slurm()


def test_figures_have_units(benchmarks):
    tables = benchmarks("tables")
    written = [tables.seconds(each) for each in (0.1234, 2.34, 123.4, 1234)]
    assert written == ["123 ms", "2.3 s", "123 s", "1,234 s"]
    assert [tables.plural(each, "rank") for each in (1, 2)] == ["1 rank", "2 ranks"]


def test_a_missing_program_is_named(benchmarks):
    workplace, tables = benchmarks("workplace"), benchmarks("tables")
    with pytest.raises(tables.MissingError, match="a topic needs no-such-program, which"):
        workplace.need("a topic", ("bash", "no-such-program"))


def test_root_is_asked_for_the_mount_that_is_compared(benchmarks, tmp_path, capsys):
    ranks = benchmarks("ranks")
    directory = ranks.Case("directory", tmp_path / "plain", {"LONGSHIP_MODULE_INDEX": "0"})
    overlay = ranks.Case("overlay", tmp_path / "with overlay", {}, tmp_path / "my overlay.sqsh")
    found = ranks.mounted_by_root([directory, overlay], Path("/proc"))  # which is a mount
    assert found.launcher == directory.launcher, "a rank would mount the overlay itself too"
    assert found.environ == {"APPTAINER_BIND": f"/proc:{ranks.MOUNTED_AT}:ro"}
    told = capsys.readouterr().err
    assert told == f"as root, run: mount -t squashfs -o loop,ro '{overlay.file}' /proc\n"


@pytest.mark.parametrize("page", ["one_script", "parallel_file_systems", "squashfs"])
def test_figures_of_the_explanations_are_those_of_the_run(page):
    files = ("results", "ranks", "launch", "overlays")
    results = "\n".join(Path(ROOT, f"benchmarks/results/{each}.md").read_text() for each in files)
    text = Path(ROOT, f"docs/explanation/{page}.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    figures = {
        *re.findall(r"(?<![\d.,])\d[\d,]*(?:\.\d+)? (?:ms|s|MB)\b", text),
        *re.findall(r"(?<![\d.,])\d+,\d{3}(?![\d,])", text),
        *(each for row in rows for each in re.findall(r"(?<=\| )[\d.,]+(?= \|)", row)),
    }
    measured = figures - {"1 MB", "8 MB", "100,000"}  # a block, a kernel's setting, LUMI's quota
    assert len(measured) > 3
    known = {each for each in measured if re.search(rf"(?<![\d.,]){each}(?!\d)", results)}
    assert measured - known == set()


def test_figures_of_the_readme_are_those_of_the_run():
    results = Path(ROOT, "benchmarks/results/results.md").read_text()
    summary = results[results.index("|  | Longship |") :].partition("\n\n")[0].splitlines()
    readme = Path(ROOT, "README.md").read_text()
    head, rule, *shown = readme[readme.index(summary[0]) :].partition("\n\n")[0].splitlines()
    assert [head, rule] == summary[:2]
    assert len(shown) == 3 and set(shown) <= set(summary[2:])
    ratios = [float(row.split("|")[4]) for row in shown]
    assert max(ratios) > 1, "a figure must say what Longship costs"
    section = " ".join(readme.partition("\n## Performance\n")[2].split())
    for fact in re.search(r"(\S+), (\d+ cores of [^,]+),", results).groups():
        assert fact in section, "the README does not say where and when"
    assert "(benchmarks/results/results.md)" in section
