"""build_container.py with real Apptainer, docker, podman, skopeo and a registry."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from support import processes
from support.lab import fill, is_told
from support.registry import PASSWORD, without
from support.tiers import slow

from lib.configuration.runtimes import known_runtime
from lib.configuration.sites import own_arch

pytestmark = [
    pytest.mark.needs("registry", "skopeo"),
    pytest.mark.skipif(own_arch() != "amd64", reason="the tiny images run on amd64 only"),
]
RUNTIMES = ("apptainer", "docker", "podman")
OFFLINE = "python3 build_container.py offline"
MOVE = "python3 move_built_container_to_active.py"


def sha256(path):
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


# Online


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_image_is_built_recorded_and_named_at_last(runtime, lab, registry):
    clone = lab(registry.name("lab/tiny:1"), runtime)
    done = clone.build()
    record = clone.record()
    assert record["source"] == registry.name("lab/tiny:1")
    assert record["digest"].startswith("sha256:") and record["architecture"] == "amd64"
    assert record["tools"].startswith({"docker": "Docker"}.get(runtime, runtime))
    assert record["script"].startswith("#!/usr/bin/env bash\n# Longship: build_container.py online")
    assert "\n  build_end\n" in record["script"] and record["date"] and record["host"]
    image = clone.containers / f"build/tiny_1_amd64.{known_runtime(runtime).ending}"
    if runtime == "apptainer":
        assert record["sha256"] == sha256(image)
        assert record["bytes"] == str(image.stat().st_size)
    assert "[3/3]" in done.stderr
    assert done.stderr.endswith(f"next: {MOVE}\n")
    assert not clone.left()


def test_singularity_is_told_in_its_own_words(lab, registry):
    """Apptainer answers to the name too; SingularityCE itself is not in any package source here."""
    clone = lab(registry.name("lab/tiny:1"), "singularity")
    clone.build_and_move()
    clone.container_run("true")
    plan = clone.dry_run("build_container.py").partition("\n# ---------- ")[0]
    assert "\n  sif_build singularity " in plan and "apptainer" not in plan


def test_nothing_is_written_to_the_home_folder_or_the_temporary_one(lab, registry, tmp_path):
    clone = lab(registry.name("lab/tiny:1"))
    home = tmp_path / "an empty home"
    temporary = tmp_path / "no room here"
    for folder in (home, temporary):
        folder.mkdir()
    temporary.chmod(0o500)
    clone.build(env={"HOME": str(home), "TMPDIR": str(temporary)})
    temporary.chmod(0o700)
    files = [path for path in home.rglob("*") if path.is_file() and path.stat().st_size]
    assert not files and not list(temporary.iterdir())


def test_second_call_finds_it_and_force_makes_it_again(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    first = clone.record()
    again = clone.build()
    assert "was already built on" in again.stderr and "--force" in again.stderr
    assert again.stderr.endswith(f"next: {MOVE}\n")
    assert clone.record() == first
    clone.build("--force")
    assert clone.record()["modified"] != first["modified"]
    clone.move()
    in_use = clone.build()
    assert "was already built on" in in_use.stderr and "next:" not in in_use.stderr


def test_recorded_script_builds_the_same_again(lab, registry, run):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    record = clone.record()
    before, begin, rest = record["script"].partition("build_begin")
    script = before + begin + rest.replace(" ''", " 1", 1)  # as with --force
    assert script != record["script"]
    run(["bash", "-c", script])
    assert clone.record()["digest"] == record["digest"]
    assert clone.record()["script"] == script


@pytest.mark.parametrize("runtime", ["apptainer", slow("docker"), "podman"])
def test_locked_builds_the_recorded_digest_again(runtime, lab, registry, tiny):
    name = f"lab/moving-{runtime}:1"
    registry.put(name, ("amd64", tiny(mark="old")))
    clone = lab(registry.name(name), runtime)
    clone.build_and_move()
    old = clone.record("containers/versions")
    registry.put(name, ("amd64", tiny(mark="new")))
    clone.build("--locked", "--force")
    assert clone.record()["digest"] == old["digest"]
    assert clone.record()["source"] == old["source"]
    clone.build("--force")
    assert clone.record()["digest"] != old["digest"]


@pytest.mark.slow  # tests/images/test_locked_digest.py
def test_locked_without_a_record_is_told(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    done = clone.build("--locked", check=False)
    is_told(done, "no digest of", "python3 build_container.py")
    clone.build()
    clone.use(registry.name("lab/tiny:2"))
    is_told(clone.build("--locked", check=False), "lab/tiny:2 was recorded", "build_container.py")


@pytest.mark.slow  # the builds record one
def test_digest_of_an_index_is_that_of_the_architecture_alone(lab, registry, run):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    name = registry.name("lab/tiny").removeprefix("docker://")
    inspect = ["skopeo", "inspect", "--tls-verify=false", "--raw"]
    raw = run([*inspect, f"docker://{name}@{clone.record()['digest']}"]).stdout
    index = json.loads(run([*inspect, f"docker://{name}:1"]).stdout)
    (own,) = (e for e in index["manifests"] if e["platform"]["architecture"] == "amd64")
    assert own["digest"] == clone.record()["digest"]
    assert f"sha256:{hashlib.sha256(raw.encode()).hexdigest()}" == clone.record()["digest"]


def test_damaged_cache_is_not_built_from(lab, registry, tmp_path):
    clone = lab(registry.name("lab/tiny:1"))
    environment = without(clone.environment, tmp_path / "bin", "sha256sum")
    assert clone.build(env=environment, check=False).returncode  # the fetched layers stay
    (layout,) = clone.scratch.rglob("cache/blob")
    (layout / "index.json").write_text("")
    for blob in (layout / "blobs/sha256").iterdir():
        blob.chmod(0o644)
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.write_bytes(content)
    clone.build_and_move()
    assert clone.container_run("true").returncode == 0


# Other sources


def push_sif(clone, registry, run):
    (image,) = (clone.containers / "build").glob("*.sif")
    address = f"oras://{registry.address}/lab/sif:1"
    run(["apptainer", "push", "--no-https", image, address])
    return address


def test_sif_of_a_registry_arrives_as_it_is(lab, registry, run):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    built = clone.record()
    clone.use(push_sif(clone, registry, run))
    clone.build()
    found = json.loads((clone.containers / "build/sif_1_amd64.sif.json").read_text())
    assert found["sha256"] == found["digest"] == built["sha256"]
    clone.build("--locked", "--force")


def make_archive(run, registry, path, kind="docker-archive", arch="amd64", image="lab/tiny:1"):
    copy = ["skopeo", "copy", "--src-tls-verify=false", f"--override-arch={arch}"]
    target = f"{kind}:{path}" + (":lab/mine:1" if kind == "docker-archive" else "")
    run([*copy, registry.name(image), target])
    return path


@pytest.mark.parametrize(
    ("runtime", "kind"),
    [
        slow("apptainer", "docker-archive"),
        ("apptainer", "oci-archive"),
        slow("docker", "docker-archive"),
        ("podman", "docker-archive"),
        ("podman", "oci-archive"),
    ],
)
def test_archive_is_a_source(runtime, kind, lab, registry, run, tmp_path):
    archive = make_archive(run, registry, tmp_path / "mine.tar", kind)
    clone = lab(f"{kind}:{archive}", runtime)
    clone.build()
    assert clone.record()["digest"] == sha256(archive)
    clone.move()
    assert clone.active().startswith("mine_amd64_")


def test_image_in_dockers_store_is_a_source(lab, registry, docker_environment, run):
    clone = lab("docker-daemon:longship-tests/daemon:1", "docker")
    name = registry.name("lab/tiny:1").removeprefix("docker://")
    run(["docker", "pull", name], env=docker_environment)
    run(["docker", "tag", name, "longship-tests/daemon:1"], env=docker_environment)
    clone.build()
    identity = run(["docker", "image", "inspect", "--format={{.Id}}", name], env=docker_environment)
    assert clone.record()["digest"] == identity.stdout.strip()
    clone.move()
    clone.use("docker-daemon:longship-tests/daemon:1", "apptainer")
    clone.build()
    assert (clone.containers / "build/daemon_1_amd64.sif").exists()


def test_sif_of_the_site_is_used_where_it_lies_until_a_copy_is_in_use(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    clone.build()
    image = clone.root.parent / "site's latest.sif"
    (clone.containers / "build/tiny_1_amd64.sif").replace(image)
    clone.use(image)
    show = ["sh", "-c", "echo $APPTAINER_CONTAINER"]
    assert clone.container_run(*show).stdout == f"{image}\n"
    version = clone.build_and_move()
    assert clone.container_run(*show).stdout == f"{clone.containers}/versions/{version}\n"
    image.write_text("the site has replaced it")
    clone.container_run("true")


def test_definition_file_is_built_here(lab, registry):
    clone = lab("images/my.def")
    definition = clone.root / "images/my.def"
    definition.parent.mkdir()
    address = registry.name("lab/tiny:1").removeprefix("docker://")
    (definition.parent / "mark").write_text("beside it\n")  # paths are relative to the file
    files = "%files\n  mark /etc/beside\n"
    post = "%post\n  echo mine >/etc/mark\n"
    definition.write_text(f"Bootstrap: docker\nFrom: {address}\n{files}{post}")
    clone.build_and_move()
    show = "read m </etc/mark; read b </etc/beside; echo $m, $b"
    assert clone.container_run("sh", "-c", show).stdout == "mine, beside it\n"
    old = clone.record("containers/versions")
    assert old["digest"] == sha256(definition)
    definition.write_text(definition.read_text().replace("mine", "other"))
    assert "was already built on" not in clone.build().stderr  # it has changed
    done = clone.build("--locked", "--force", check=False)
    is_told(done, "has changed: now sha256:", "without --locked")


@pytest.mark.parametrize("runtime", ["docker", "podman", slow("apptainer")])
def test_dockerfile_is_built_here(runtime, lab, registry, docker_environment):
    clone = lab("images/mine/Dockerfile", runtime)
    if runtime == "apptainer":
        clone.environment = {**clone.environment, "DOCKER_HOST": docker_environment["DOCKER_HOST"]}
    file = clone.root / "images/mine/Dockerfile"
    file.parent.mkdir(parents=True)
    (file.parent / "mark").write_text("mine\n")
    address = registry.name("lab/tiny:1").removeprefix("docker://")
    file.write_text(f"FROM {address}\nCOPY mark /etc/mark\n")
    clone.build_and_move()
    assert clone.active().startswith("mine_amd64_")
    assert clone.container_run("sh", "-c", "read m </etc/mark; echo $m").stdout == "mine\n"


# Download and offline


FETCHERS = ("skopeo", "docker", "podman", "apptainer")


@pytest.mark.parametrize(
    ("fetcher", "arch"),
    [
        *(("skopeo", "amd64"), ("apptainer", "arm64"), slow("skopeo", "arm64")),
        *(slow("apptainer", "amd64"), slow("docker", "amd64"), slow("docker", "arm64")),
        *(slow("podman", "amd64"), slow("podman", "arm64")),
    ],
)
def test_archive_is_fetched_by_whatever_is_there(
    fetcher, arch, request, lab, registry, container_settings, tmp_path
):
    clone = lab(registry.name("lab/tiny:1"))
    environment = dict(clone.environment)
    if fetcher in ("docker", "podman"):
        environment = request.getfixturevalue(f"{fetcher}_environment")
        container_settings(Path(environment["HOME"]))
    others = [each for each in FETCHERS[:-1] if each != fetcher]
    environment = without(environment, tmp_path / "bin", *others)
    (clone.root / "local/site.toml").write_text(f'[machines.local]\narch = "{arch}"\n')
    done = clone.build("download", env=environment)
    record = clone.record("offline/containers")
    ending = "sif" if fetcher == "apptainer" else "tar"
    archive = clone.scratch / f"offline/containers/tiny_1_{arch}.{ending}"
    assert record["architecture"] == arch
    assert record["sha256"] == sha256(archive)
    assert archive.stat().st_mode & 0o044 == 0o044  # the group reads it, whoever saved it
    assert record["digest"].startswith("sha256:")
    assert done.stderr.endswith(f"next: {OFFLINE}\n")
    assert not clone.left()
    clone.build("offline")
    assert clone.record()["source"] == registry.name("lab/tiny:1")
    assert clone.record()["digest"] == record["digest"]


@pytest.mark.parametrize("runtime", ["apptainer", slow("docker"), "podman"])
def test_offline_needs_no_network(runtime, lab, registry, airgapped, run):
    clone = lab(registry.name("lab/tiny:1"), runtime)
    clone.build("download")
    command = clone.command("build_container.py", "offline")
    if runtime == "apptainer":  # docker's daemon and rootless podman do not work in there
        command = airgapped(command)
    run(command, env=clone.environment, cwd=clone.root)
    clone.move()
    assert "was already built on" in clone.build("offline").stderr


def test_download_is_for_the_target_and_lies_on_this_machine(lab, registry):
    site = '[machines.far]\ndescription = "Far"\narch = "arm64"\nruntime = "apptainer"\n'
    clone = lab(registry.name("lab/tiny:1"))
    (clone.root / "far").mkdir()
    (clone.root / "far/site.toml").write_text(site)
    text = (clone.root / "configuration.toml").read_text().replace('machine = "local"\n', "")
    clone.configure(f'{text}[machines.far]\npaths.scratch_dir = "/far/scratch"\n')
    done = clone.build("download", "--machine", "far")
    assert clone.record("offline/containers")["architecture"] == "arm64"
    here = clone.scratch / "offline/containers"
    assert (here / "tiny_1_arm64.tar").exists()
    make = "ssh far 'umask 077 && mkdir -p /far/scratch/offline'"
    copy = f"{make} && rsync -a '{here}/' far:/far/scratch/offline/containers/"
    assert done.stderr.endswith(f"next: {copy}; then, on far: {OFFLINE} --machine=far\n")


def test_image_of_another_architecture_is_built_without_running_it(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    clone.configure((clone.root / "configuration.toml").read_text())
    (clone.root / "local/site.toml").write_text('[machines.local]\narch = "arm64"\n')
    clone.build()
    assert clone.record()["architecture"] == "arm64"
    done = clone.move()
    assert "python3 was not tested" in done.stderr
    clone.build("download")
    clone.build("offline", "--force")
    assert clone.record()["architecture"] == "arm64"


# Bad input


@pytest.mark.parametrize("runtime", ["apptainer", slow("docker"), "podman"])
@pytest.mark.parametrize("name", ["lab/tiny:none", slow("lab/nothing:1")])
def test_unknown_image_is_told(runtime, name, lab, registry):
    clone = lab(registry.name(name), runtime)
    is_told(
        clone.build(check=False),
        f"cannot build an image from {registry.name(name)}",
        "check container.image in configuration.toml",
    )
    assert not clone.left()


def test_unknown_tag_is_told_by_a_download(lab, registry):
    clone = lab(registry.name("lab/tiny:none"))
    is_told(clone.build("download", check=False), "cannot build an image", "check container.image")
    assert not clone.left()


@pytest.mark.parametrize(
    ("runtime", "login"),
    [
        ("apptainer", "apptainer registry login --username NAME docker://127.0.0.1"),
        ("docker", "docker login 127.0.0.1"),
        ("podman", "podman login 127.0.0.1"),
    ],
)
def test_registry_that_asks_for_a_login_is_told(runtime, login, lab, closed_registry):
    clone = lab(closed_registry.name("lab/tiny:1"), runtime)
    is_told(clone.build(check=False), "cannot build an image from", login)
    assert not clone.left()


def test_login_of_the_runtime_opens_the_registry(lab, closed_registry, run, tiny, tmp_path):
    clone = lab(closed_registry.name("lab/tiny:1"))
    layout = tmp_path / "oci"
    for words in (
        ["init", "--layout", layout],
        ["new", "--image", f"{layout}:1"],
        ["raw", "add-layer", "--image", f"{layout}:1", tiny()],
    ):
        run(["umoci", *words])
    push = ["skopeo", "copy", "--dest-tls-verify=false", f"--dest-creds=lab:{PASSWORD}"]
    run([*push, f"oci:{layout}:1", closed_registry.name("lab/tiny:1")])
    login = ["apptainer", "registry", "login", "--username", "lab", "--password-stdin"]
    run([*login, f"docker://{closed_registry.address}"], input=PASSWORD, env=clone.environment)
    clone.build()
    everything = [path for path in clone.scratch.rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in path.read_bytes() for path in everything)


def test_machine_without_network_is_told_the_way_round(lab, registry, airgapped, run):
    clone = lab(registry.name("lab/tiny:1"))
    command = airgapped(clone.command("build_container.py"))
    done = run(command, env=clone.environment, cwd=clone.root, check=False)
    is_told(done, "cannot build an image from", "build_container.py download --machine local")
    assert not clone.left()


def test_archive_that_is_missing_is_told(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    done = clone.build("offline", check=False)
    is_told(done, "archive not found: ", "build_container.py download --machine local")


@pytest.mark.parametrize(
    ("damage", "message", "hint"),
    [
        slow(
            lambda tar: os.truncate(tar, 100_000),
            "is truncated: 100000 of",
            "copy the archive again",
        ),
        (
            lambda tar: tar.write_bytes(tar.read_bytes().replace(b"exit 0", b"exit 9")),
            "is damaged: checksum sha256:",
            "copy the archive again",
        ),
        slow(
            lambda tar: tar.with_name(f"{tar.name}.json").unlink(),
            "record of the archive not found",
            "copy this file too",
        ),
        slow(
            lambda tar: tar.write_bytes(bytes(tar.stat().st_size)),
            "not a complete image archive",
            "download",
        ),
    ],
)
def test_damaged_archive_is_told(damage, message, hint, lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    version = clone.build_and_move()
    clone.build("download")
    damage(clone.scratch / "offline/containers/tiny_1_amd64.tar")
    done = clone.build("offline", "--force", check=False)
    is_told(done, message, hint)
    assert clone.active() == version and not clone.left()


@pytest.mark.slow  # of an image: the next one
def test_archive_of_another_architecture_is_told(lab, registry, run, tmp_path):
    archive = make_archive(run, registry, tmp_path / "mine.tar", arch="arm64")
    clone = lab(f"docker-archive:{archive}")
    done = clone.build(check=False)
    is_told(done, "arm64, expected amd64", "an image for amd64")
    assert not clone.left()


def test_download_of_an_image_without_the_architecture_is_told(lab, registry):
    clone = lab(registry.name("lab/arm:1"))
    is_told(clone.build("download", check=False), "amd64", "to an image for amd64")
    is_told(clone.build(check=False), "arm64, expected amd64", "an image for amd64")
    assert not clone.left()


@pytest.mark.slow  # a downloaded one: test_damaged_archive...
def test_archive_cut_short_as_a_source_is_told(lab, registry, run, tmp_path):
    archive = make_archive(run, registry, tmp_path / "mine.tar")
    os.truncate(archive, 200_000)
    clone = lab(f"docker-archive:{archive}")
    is_told(clone.build(check=False), "cannot build an image from", "check container.image")
    assert not clone.left()


def test_file_that_is_no_sif_is_told(lab, tmp_path):
    image = tmp_path / "mine.sif"
    image.write_text("no image")
    clone = lab(image)
    is_told(clone.build(check=False), "SIF image", "to an image for amd64")
    assert not clone.left()


@pytest.mark.parametrize("name", ["x.sif", "x.def", "Dockerfile"])
def test_source_that_is_missing_is_told(name, lab, tmp_path):
    clone = lab(tmp_path / name)
    is_told(clone.build(check=False), str(tmp_path / name), "container.image")
    assert not clone.left()


def test_definition_file_for_another_architecture_is_refused_before_it_starts(lab):
    clone = lab("images/my.def")
    (clone.root / "images").mkdir()
    (clone.root / "images/my.def").write_text("Bootstrap: docker\nFrom: nowhere.invalid/x\n")
    site = '[machines.local]\narch = "arm64"\nbuild_hint = "in a job on a GPU node"\n'
    (clone.root / "local/site.toml").write_text(site)
    done = clone.build(check=False)
    is_told(done, "on this amd64 machine", "in a job on a GPU node")
    assert "[1/3]" not in done.stderr


def test_site_that_forbids_definition_files_says_what_works(lab):
    clone = lab("images/my.def")
    site = '[machines.local]\ndescription = "The site"\ndefinition_builds = "forbidden"\n'
    (clone.root / "local/site.toml").write_text(f'{site}build_hint = "use cotainr"\n')
    is_told(clone.build(check=False), "is not allowed on The site", "cotainr")


@pytest.mark.slow  # in test_container_kills.py, for swap and build
def test_disk_that_fills_up_is_told(lab, registry, small_disk, tiny, tmp_path):
    disk = small_disk(24, "disk")  # Apptainer finds no mount point with a space in its path
    clone = lab(registry.name("lab/tiny:1"), scratch=disk / "a scratch")
    version = clone.build_and_move()
    ballast = fill(disk, leave=1 << 20)
    done = clone.build("--force", check=False)
    is_told(done, "No space left on device", "free some space")
    assert clone.active() == version and not clone.left()
    ballast.unlink()
    clone.build("--force")


# Two at once


def test_second_build_waits_and_uses_the_first(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    both = [clone.start("build_container.py", cwd=clone.root) for _ in range(2)]
    told = [process.communicate(timeout=processes.PATIENCE)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    built = ["[1/3]" in text for text in told]
    assert sorted(built) == [False, True]
    # waiting itself: tests/script/test_lock.py; the second can also come when the first has ended
    assert "was already built on" in told[built.index(False)]
    assert not clone.left()


@pytest.mark.slow  # tests/script/test_lock.py
def test_lock_of_a_dead_build_on_another_host_is_taken_over(lab, registry):
    clone = lab(registry.name("lab/tiny:1"))
    lock = clone.containers / "build/tiny_1_amd64.sif.json.lock"
    lock.mkdir(parents=True)
    (lock / "owner").write_text("login07 4711 12345\n")
    for path in (lock / "owner", lock):
        os.utime(path, (1, 1))
    done = clone.build()
    assert "taking over the lock of process 4711 on login07" in done.stderr
    assert clone.record()["digest"] and not clone.left()
