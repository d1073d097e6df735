"""Which parts a bundle has, and which names and texts are let into it."""

import hashlib
import os
from argparse import Namespace
from pathlib import Path

import pytest
from support.git import make_upstream
from support.secret_forms import TEXTS, WITH, WITHOUT
from support.tree import own_files

from extras.bundle import pack, tree, unpack
from extras.bundle.plan import pack_lines, unpack_lines
from lib import ROOT
from lib.configuration.sites import own_arch
from lib.doctor.report import Diagnosis, problem
from lib.repositories.git import Git
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render
from lib.script.secrets import SECRET


def packing(repository, folder="/b", configuration="", **options):
    repository.write("configuration.toml", configuration)
    settings, paths = repository.settings_and_paths()
    return pack_lines(settings, paths, folder, typed="t", **options)


def parts(lines):
    """Give the options that say what belongs to a bundle, one each."""
    (text,) = (line for line in lines if line.startswith("parts="))
    return [line.strip().rstrip(")") for line in text.splitlines()[1:]]


def test_image_packages_and_repositories_are_needed(repository):
    lines = packing(
        repository,
        configuration='[packages]\nrequirements = "r.txt"\n[[repositories]]\nurl = "https://e.org/x.git"\n',
    )
    assert [each.split(" 'python3 ")[0] for each in parts(lines)[-4:]] == [
        f"--need 'containers/base_1_{own_arch()}.???.json' ''",
        f"--need pip/pytorch_{own_arch()}.lock docker://example.org/lab/base:1",
        f"--need pip/pytorch_{own_arch()}.sha256 ''",
        "--need repos/x.bundle ''",
    ]


BUILD = ["build_container.py offline", "move_built_container_to_active.py"]


@pytest.mark.parametrize(
    ("image", "exists", "packed", "steps"),
    [
        ("mine.sif", True, True, BUILD),
        ("mine.sif", False, False, []),  # of the target's site
        ("mine.sqsh", True, False, []),
        ("docker-archive:mine.tar", True, True, BUILD),
        ("oci-archive:mine.tar", True, False, ["build_container.py", BUILD[1]]),
        ("mine.def", True, True, BUILD),
        ("docker://example.org/mine:1", False, True, BUILD),
        ("", False, None, []),
    ],
)
def test_image_of_each_kind_is_packed_or_named(image, exists, packed, steps, repository, tmp_path):
    if exists:
        repository.write(image.rpartition(":")[2], "")
    runtime = "apptainer" if image else "host"
    repository.write("stacks/pytorch/stack.toml", 'description = "no image"')
    configuration = f'[container]\nruntime = "{runtime}"\nimage = "{image}"\n'
    lines = packing(repository, "/b", configuration)
    (need,) = [each for each in parts(lines) if "containers/" in each] or [""]
    assert bool(need) == bool(packed)
    named = [each for each in lines if each.startswith("note 'not packed: the image ")]
    assert len(named) == (packed is False)
    if packed:
        archive = tmp_path / "offline/containers" / need.split("'")[1][11:].replace("???", "sif")
        archive.parent.mkdir(parents=True)
        archive.touch()
    settings, paths = repository.settings_and_paths()
    after = unpack_lines(settings, paths, str(tmp_path), typed="t")
    expected = [f"next_step 'python3 {each}'" for each in (*steps, "set_up.py offline")]
    assert [each for each in after if each.startswith("next_step 'python3")] == expected


@pytest.mark.parametrize(
    ("files", "is_one"),
    [
        ({"SHA256SUMS": "0  ubuntu.iso\n", "ubuntu.iso": ""}, False),
        ({"unpack.sh": "#!/bin/sh\n# mine\n"}, False),
        ({".partial/half.iso": ""}, False),
        ({"offline/pip/x": "", ".partial/140": ""}, True),  # interrupted
        ({"SHA256SUMS": "# 0 files in all\n"}, True),
        ({"unpack.sh": Path(ROOT, "extras/bundle/unpack.sh").read_text()}, True),
    ],
)
def test_foreign_directory_is_no_bundle_to_pack_into(files, is_one, tmp_path):
    for name, text in files.items():
        (tmp_path / "to" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "to" / name).write_text(text)
    options = Namespace(bundle=str(tmp_path / "to"), offline="/x")
    if is_one:
        pack._check_directory(options)
    else:
        with pytest.raises(LongshipError, match="contains no bundle"):
            pack._check_directory(options)


def test_what_is_copied_has_no_slash_at_its_end(repository):
    text = "\n".join(packing(repository, "/media/stick/longship/"))
    assert "copy /media/stick/longship to the target machine; then run there" in text


def test_folders_in_the_repository_are_left_out(repository):
    inside = repository.root / "it's inside"
    configuration = f'[paths]\nscratch_dir = "{repository.root}/scratch"\n'
    options = parts(packing(repository, str(inside), configuration))
    assert [each for each in options if "--leave-out" in each] == [
        *(f"--leave-out={each}" for each in (".git", ".venv", ".cache")),
        "--leave-out=configuration.local.toml",
        "'--leave-out=it'\"'\"'s inside'",
        "--leave-out=scratch",
    ]


def test_names_that_begin_with_a_hyphen_are_no_options(repository):
    assert "--allow=-x" in parts(packing(repository, allowed=["-x"]))


def bash(run, *lines):
    return run(["bash", "-c", render("a test", lines)], check=False)


@pytest.mark.parametrize("name", ["a", "a b/c", "-x", ".hidden/..x", "ü/$(x)/*", "it's"])
def test_name_below_the_folder_is_let_in(name):
    assert tree.is_inside(name)


@pytest.mark.parametrize(
    "name",
    ["", "/", "/a", "..", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "a\nb", "a\\b", "\x7f"],
)
def test_name_that_leaves_the_folder_is_not(name):
    assert not tree.is_inside(name)


def test_damaged_download_on_the_target_is_replaced(tmp_path):
    """Or to copy the bundle again, as the hint of set_up.py offline says, would not help."""
    bundle, target = tmp_path / "bundle", tmp_path / "target"
    for folder, text in ((bundle / "offline", "right"), (target, "wrong")):
        folder.mkdir(parents=True)
        (folder / "a.whl").write_text(text)
    line = f"{hashlib.sha256(b'right').hexdigest()}  offline/a.whl\n"
    (bundle / "SHA256SUMS").write_text(f"{line}# 1 files in all\n")
    options = Namespace(bundle=str(bundle), directory=str(target), step=str)
    unpack.unpack_offline(options)
    assert (target / "a.whl").read_text() == "right"
    # a file of the bundle that has been damaged since is not taken
    (target / "a.whl").unlink()
    (bundle / "offline/a.whl").write_text("wrong")
    with pytest.raises(LongshipError, match="offline/a.whl is corrupt") as error:
        unpack.unpack_offline(options)
    assert "copy the bundle again" in error.value.hint
    assert not (target / "a.whl").exists()


@pytest.fixture
def collect(monkeypatch, tmp_path):
    """Give a function that collects the files of a repository."""

    def collect(directory, named=()):
        for part in ("_packages", "_history"):
            monkeypatch.setattr(pack, part, lambda _: {})
        options = {"directory": str(directory), "offline": str(tmp_path / "offline")}
        return pack._collect(Namespace(**options, leave_out=[], need=[], named=named))

    return collect


def test_file_that_is_not_regular_is_not_left_out(collect, tmp_path, clean_environment):
    code = make_upstream(tmp_path / "code", clean_environment).folder
    (code / "data.py").unlink()
    os.mkfifo(code / "data.py")
    with pytest.raises(LongshipError, match="data.py: it is not a regular file"):
        collect(code)


def test_file_of_the_configuration_that_is_not_packed_is_named(collect, repository, capfd):
    """Each key of the configuration that takes a file of the clone."""
    upstream = make_upstream(repository.root / "clone", dict(os.environ))
    packed = upstream.folder / "data.py"
    (upstream.folder / ".git/info/exclude").write_text("*.txt\n")
    ignored = upstream.folder / "ignored.txt"
    ignored.touch()
    configuration = f"""
[packages]
requirements = "{packed}"
venv_requirements = "{ignored}"
[container]
patched_files = {{ "/etc/motd" = "../elsewhere/motd", "/etc/issue" = "~/issue" }}
[[repositories]]
url = "https://example.org/x"
script = "gone.sh"
"""
    named = [each for each in parts(packing(repository, "/b", configuration)) if "--named" in each]
    outside = repository.root.parent / "elsewhere/motd"
    names = [packed, ignored, outside, repository.root / "gone.sh"]
    assert named == [f"--named={each}" for each in names]
    collect(upstream.folder, named=[str(each) for each in names])
    notes = capfd.readouterr().err
    for each in names[1:]:
        assert f"note: not packed: {each}, which the configuration names: git ignores" in notes
    assert notes.count("note: ") == 3


def test_secret_in_a_file_with_an_odd_name_is_told(tmp_path):
    """Python ends a line at U+2028, and grep does not."""
    file = tmp_path / "a\u2028b"
    file.write_text("hf_" + "a" * 34 + "\n")
    name = f"repository/{file.name}"
    with pytest.raises(LongshipError, match="looks like a token or key"):
        pack._check_secrets({name: str(file)}, [name], Namespace(allow=[]))


def test_history_without_a_branch_is_brought_up_to_date(tmp_path, clean_environment):
    """As of a clone that a group keeps at a tag."""
    packed = make_upstream(tmp_path / "packed", clean_environment)
    packed.git("checkout", "-q", "--detach")
    bundle, target = tmp_path / "longship.bundle", tmp_path / "target"
    target.mkdir()
    for _ in range(2):
        commit = packed.commit()
        packed.git("bundle", "create", "-q", bundle, "HEAD")
        unpack._restore_history(str(bundle), str(target))
        assert packed.git("-C", target, "rev-parse", "HEAD").strip() == commit


def test_every_file_is_copied_with_its_checksum(tmp_path):
    sources = {}
    for number in range(300):
        source = tmp_path / f"a {number % 3}" / str(number)
        source.parent.mkdir(exist_ok=True)
        source.write_bytes(os.urandom(number))
        sources[f"{number}"] = str(source)
    with open(tmp_path / "big", "wb") as file:
        file.truncate(5 << 20)
    os.chmod(tmp_path / "big", 0o555)
    os.utime(tmp_path / "big", ns=(1, 2))
    sources["a folder/big"] = str(tmp_path / "big")
    to = tmp_path / "to"
    sums = tree.copy_files(str(to), sources)
    assert sums == tree.hash_files(str(to), sources)
    for name, source in sources.items():
        content = Path(source).read_bytes()
        assert (to / name).read_bytes() == content
        assert sums[name] == hashlib.sha256(content).hexdigest()
    copy = os.stat(to / "a folder/big")
    assert copy.st_mtime_ns == 2 and copy.st_mode & 0o100
    assert sorted(path.name for path in to.iterdir()) == sorted([*map(str, range(300)), "a folder"])


def test_file_that_cannot_be_copied_is_named(tmp_path):
    with pytest.raises(LongshipError, match="cannot copy /missing to .*: No such file"):
        tree.copy_files(str(tmp_path / "to"), {"a": "/missing"})
    assert not list(tmp_path.glob("to/.partial/*"))


def test_this_repository_holds_nothing_that_looks_like_a_secret(run):
    """Or nobody could pack it."""
    own = own_files(Path(ROOT))
    assert own
    done = run(["grep", "-lIE", "-e", SECRET, "--", *own], check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_history_of_this_repository_can_be_packed(run, tmp_path):
    own = tmp_path / "a clone"
    if (Path(ROOT) / ".git").exists():
        run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, own])
    else:
        run(["git", "init", "--quiet", own])  # an unpacked archive has none
        run(
            ["git", "-C", own, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q"]
            + ["--allow-empty", "-m", "x"]
        )
    pack._check_history(Git(own), Namespace(allow=[]))


HINTS = {
    "python3 set_up.py install": "python3 set_up.py offline",
    "run: python3 build_overlay.py": "run: python3 build_overlay.py offline",
    "python3 build_container.py --force; a": "python3 build_container.py offline --force; a",
    "python3 build_overlay.py --list": "python3 build_overlay.py --list",
    "python3 build_container.py download -x": "python3 build_container.py download -x",
    "python3 set_up.py offline": "python3 set_up.py offline",
}


@pytest.mark.parametrize("unpacked", [False, True])
def test_hints_name_the_offline_modes_where_a_bundle_was_unpacked(
    unpacked, run, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("lib.script.errors.ROOT", str(tmp_path))
    if unpacked:
        (tmp_path / ".cache/bundle").mkdir(parents=True)
        (tmp_path / ".cache/bundle/unpacked").touch()
    for hint, offline in HINTS.items():
        expected = f"error: python3 set_up.py install\nhint: {offline if unpacked else hint}\n"
        done = bash(run, call("fail", "python3 set_up.py install", hint))
        assert done.stderr == expected
        Diagnosis(as_json=False).add(problem("packages", "text", hint))
        assert capfd.readouterr().out.endswith(f"fix: {offline if unpacked else hint}\n")
        LongshipError("python3 set_up.py install", hint).print()
        assert capfd.readouterr().err == expected


@pytest.fixture
def forms(tmp_path, clean_environment):
    """Give a repository with a commit for each form and each other text, which it names."""
    upstream = make_upstream(tmp_path / "packed", clean_environment)
    for number, text in enumerate(TEXTS):
        upstream.write(f"file-{number}", f"{text}\n")
        upstream.commit(f"file-{number}")
    return upstream


def test_bundle_refuses_each_form_in_a_file_and_in_the_history(forms):
    allowed, git = Namespace(allow=[]), Git(forms.folder)
    names = {f"repository/{name}": str(forms.folder / name) for name in WITHOUT}
    pack._check_secrets(names, [*names], allowed)
    for each in WITH:
        name = f"repository/{each}"
        with pytest.raises(LongshipError, match="looks like a token or key"):
            pack._check_secrets({name: str(forms.folder / each)}, [name], allowed)
    log = forms.git("log", "--format=%s", f"-G{SECRET}").split()
    assert sorted(log) == sorted(WITH)
    with pytest.raises(LongshipError, match="history contains what looks like a token"):
        pack._check_history(git, allowed)
    pack._check_history(git, Namespace(allow=WITH))


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("", "missing argument: MODE", "one of: pack, verify, unpack"),
        ("pack", "missing argument: DIR", "run: python3 bundle.py --help"),
        ("pack a b", "got unexpected extra argument (b)", "run: python3 bundle.py --help"),
    ],
)
def test_wrong_call_is_two_lines(words, error, hint, script):
    done = script("bundle.py", *words.split(), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first == f"error: {error}" and second.startswith(f"hint: {hint}")
