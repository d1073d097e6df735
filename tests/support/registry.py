"""A registry on loopback, and images small enough to be built hundreds of times."""

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import urllib.request

import pytest

from support import processes

OCI = "application/vnd.oci.image"
MACHINE_CODES = {"amd64": 62, "arm64": 183}  # e_machine of an ELF file
PASSWORD = "a registry's secret"
# bcrypt of it, the only form that docker-registry reads
HTPASSWD = "lab:$2b$05$longshiptestsregistryeuKDISURVYgulwJW0zNWts0XXAt66ssa\n"


def tiny_tar(path, arch="amd64", mark="1", python="exit 0"):
    """Write the root file system of a tiny image as a tar file.

    It has this machine's sh and cat with their libraries, and in place of Python a script: a swap
    only asks whether `python3` starts. For the other architecture the programs say so in their
    headers, which is what Apptainer goes by; they cannot be started.
    """
    shell = os.path.realpath("/bin/sh")
    found = subprocess.run(["ldd", shell], stdout=subprocess.PIPE, text=True, check=True).stdout
    libraries = [word for line in found.splitlines() for word in line.split() if word[0] == "/"]
    with tarfile.open(path, "w") as tar:
        for folder in ("bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var"):
            _add(tar, folder)
        for library in libraries:
            _add(tar, library.lstrip("/"), _read(library), mode=0o755)
        _add(tar, "bin/sh", _for_machine(_read(shell), arch), mode=0o755)
        _add(tar, "bin/python3", f"#!/bin/sh\n{python}\n".encode(), mode=0o755)
        _add(tar, "bin/cat", _for_machine(_read("/bin/cat"), arch), mode=0o755)
        _add(tar, "bin/true", b"#!/bin/sh\nexit 0\n", mode=0o755)
        _add(tar, "etc/mark", f"{mark}\n".encode())
    return path


def _read(path):
    with open(path, "rb") as file:
        return file.read()


def _for_machine(program, arch):
    return program[:18] + MACHINE_CODES[arch].to_bytes(2, "little") + program[20:]


def _add(tar, name, content=None, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    entry.mode = 0o755 if content is None else mode
    entry.size = len(content or b"")
    tar.addfile(entry, io.BytesIO(content or b""))


class Registry:
    """A registry that runs; tests put images into it."""

    def __init__(self, address, folder, environment):
        self.address = address
        self.folder = folder
        self.environment = environment

    def name(self, repository):
        """Give what a configuration calls an image: ``docker://ADDRESS/lab/tiny:1``."""
        return f"docker://{self.address}/{repository}"

    def put(self, repository, *tars):
        """Put one image for each (architecture, tar file) under a name; return its digest.

        Several make one name for several architectures.
        """
        manifests = [self._put_one(repository, *each) for each in tars]
        if len(manifests) == 1:
            digest = self._write_manifest(repository, *manifests[0][:2])
            return digest
        described = [
            {
                "mediaType": kind,
                "digest": _digest(text),
                "size": len(text),
                "platform": {"architecture": arch, "os": "linux"},
            }
            for kind, text, arch in manifests
        ]
        for kind, text, _ in manifests:
            self._write_manifest(f"{repository.rpartition(':')[0]}:{_digest(text)}", kind, text)
        index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": described}
        return self._write_manifest(repository, f"{OCI}.index.v1+json", json.dumps(index).encode())

    def _put_one(self, repository, arch, tar):
        layer = _read(tar)
        config = {
            "architecture": arch,
            "os": "linux",
            "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        config = json.dumps(config).encode()
        for blob in (layer, config):
            self._write_blob(repository.rpartition(":")[0], blob)
        kind = f"{OCI}.manifest.v1+json"
        manifest = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": _described(f"{OCI}.config.v1+json", config),
            "layers": [_described(f"{OCI}.layer.v1.tar", layer)],
        }
        return kind, json.dumps(manifest).encode(), arch

    def _write_blob(self, repository, blob):
        where = self._ask("POST", f"{repository}/blobs/uploads/").headers["Location"]
        joint = "&" if "?" in where else "?"
        self._ask("PUT", f"{where}{joint}digest={_digest(blob)}", blob, "application/octet-stream")

    def _write_manifest(self, name, kind, text):
        repository, _, reference = name.partition(":")
        self._ask("PUT", f"{repository}/manifests/{reference}", text, kind)
        return _digest(text)

    def _ask(self, method, path, data=None, kind=""):
        address = path if path.startswith("http") else f"http://{self.address}/v2/{path}"
        request = urllib.request.Request(address, data, {"Content-Type": kind}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(request, timeout=30)


def _described(kind, blob):
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _digest(blob):
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


@contextlib.contextmanager
def running(folder, environment, login=False):
    """Run a registry with its images in a folder; with `login`, only for who knows PASSWORD."""
    (port,) = processes.free_ports(1)
    address = f"127.0.0.1:{port}"
    folder.mkdir()
    lines = [
        "version: 0.1",
        "log: {level: warn}",
        f"storage: {{filesystem: {{rootdirectory: {json.dumps(str(folder / 'images'))}}}}}",
        f"http: {{addr: '{address}'}}",
    ]
    if login:
        (folder / "htpasswd").write_text(HTPASSWD)
        path = json.dumps(str(folder / "htpasswd"))
        lines.append(f"auth: {{htpasswd: {{realm: lab, path: {path}}}}}")
    (folder / "config.yml").write_text("\n".join(lines) + "\n")
    with open(folder / "log", "wb") as log:
        command = ["docker-registry", "serve", folder / "config.yml"]
        server = processes.start(command, env=environment, stdout=log, stderr=log)
    try:
        processes.wait_until(lambda: server.poll() is not None or _answers(address))
        assert server.poll() is None, (folder / "log").read_text()
        yield Registry(address, folder, environment)
    finally:
        processes.end_group(server)
        server.wait()


def _answers(address):
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host, int(port)), timeout=1).close()
        return True


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Give ``tiny(arch="amd64", mark="1", python="exit 0")``, the tar file of a tiny image."""
    folder = tmp_path_factory.mktemp("tiny")

    @functools.cache
    def make(arch="amd64", mark="1", python="exit 0"):
        name = hashlib.sha256(f"{arch} {mark} {python}".encode()).hexdigest()[:12]
        return tiny_tar(folder / f"{name}.tar", arch, mark, python)

    return make


@pytest.fixture(scope="session")
def registry(require, session_environment, tmp_path_factory, tiny):
    """Give a registry with lab/tiny:1 and :2 for two architectures, and lab/arm:1 for one."""
    require("registry")
    with running(tmp_path_factory.mktemp("registry") / "r", session_environment) as started:
        for mark in ("1", "2"):
            both = [(arch, tiny(arch, mark)) for arch in ("amd64", "arm64")]
            started.put(f"lab/tiny:{mark}", *both)
        started.put("lab/arm:1", ("arm64", tiny("arm64")))
        started.put("lab/nopython:1", ("amd64", tiny(python="echo broken >&2; exit 3")))
        yield started


@pytest.fixture(scope="session")
def closed_registry(require, session_environment, tmp_path_factory):
    """Give a registry that asks for a login."""
    require("registry")
    folder = tmp_path_factory.mktemp("closed registry") / "r"
    with running(folder, session_environment, login=True) as started:
        yield started


@pytest.fixture(scope="session")
def container_settings(registry, closed_registry):
    """Give a function that lets skopeo and podman of a home folder use both without TLS."""

    def write(home):
        text = "".join(
            f'[[registry]]\nlocation = "{each.address}"\ninsecure = true\n'
            for each in (registry, closed_registry)
        )
        folder = home / ".config/containers"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "registries.conf").write_text(text)
        return home

    return write


def without(environment, folder, *names):
    """Give the environment with a PATH on which programs of these names are missing."""
    folder.mkdir()
    for place in reversed(environment["PATH"].split(":")):
        for program in os.scandir(place) if os.path.isdir(place) else ():
            if program.name not in names:
                with contextlib.suppress(FileExistsError):
                    os.symlink(program.path, folder / program.name)
    assert not any(shutil.which(name, path=str(folder)) for name in names)
    return {**environment, "PATH": str(folder)}
