"""Lock the build requirements of repositories: an installation without network builds them too."""

import os
import shutil
import subprocess
import sys
import tempfile

import install_packages
import resolve_packages
from pip._vendor import pyproject_hooks

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

UV_REQUIREMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "uv.txt")
# the backend of what names none, and what a script of the user's may need
ALWAYS = ("setuptools", "wheel", "pip", "-r", UV_REQUIREMENTS)
# https://peps.python.org/pep-0517/#build-system-table says this of a repository that says nothing
DEFAULT = {
    "requires": ["setuptools>=40.8.0", "wheel"],
    "build-backend": "setuptools.build_meta:__legacy__",
}


def uv():
    """Return the uv beside this Python."""
    return os.path.join(os.path.dirname(sys.executable), "uv")


def wanted_by(repository, editable):
    """Ask a repository what its build needs, and its backend what it needs besides.

    Parameters
    ----------
    repository : str
        Its folder.
    editable : bool
        Whether it is installed so; some backends then need more.

    Returns
    -------
    list of str
        Requirements.
    """
    path = os.path.join(repository, "pyproject.toml")
    system = {}
    if os.path.exists(path):
        with open(path, "rb") as file:
            system = tomllib.load(file).get("build-system", {})
    system = {**DEFAULT, **system}
    requires = system["requires"]
    with tempfile.TemporaryDirectory() as folder:
        configuration = install_packages.pip_configuration()
        environment = {**os.environ, **install_packages.uv_environment(configuration)}
        install = [uv(), "pip", "install", "--quiet", "--python", sys.executable]
        install += [*install_packages.uv_options(configuration), "--target", folder, *requires]
        # the file of the lock that the caller holds stays open
        subprocess.run(install, env=environment, check=True, close_fds=False)

        def run(command, cwd=None, extra_environ=None):
            # quiet: a backend tells much that is of no use here
            subprocess.run(
                command,
                cwd=cwd,
                env={**environment, "PYTHONPATH": folder, **(extra_environ or {})},
                stdout=subprocess.DEVNULL,
                check=True,
                close_fds=False,
            )

        backend = pyproject_hooks.BuildBackendHookCaller(
            repository, system["build-backend"], system.get("backend-path"), run
        )
        if editable:
            return [*requires, *backend.get_requires_for_build_editable()]
        return [*requires, *backend.get_requires_for_build_wheel()]


def pin(work, arch, repositories, sources):
    """Write one file of pins for each repository, as two may need other versions, and for us all.

    Parameters
    ----------
    work : str
        Where they are written, as ``build_NAME``.
    arch : str
        The target's.
    repositories : str
        The folder that the sources are relative to.
    sources : sequence of str
        ``./NAME[EXTRA]``, with ``-e`` in front where it is editable.
    """
    wanted = {"": list(ALWAYS)}
    words = iter(sources)
    for word in words:
        editable = word == "-e"
        name = (next(words) if editable else word)[len("./") :].partition("[")[0]
        try:
            wanted[name] = wanted_by(os.path.join(repositories, name), editable)
        except subprocess.CalledProcessError:  # it has said why; its arguments are ours
            sys.exit(f"cannot list the build requirements of repository {name}")
        except (
            ValueError,  # no TOML, or no UTF-8
            KeyError,
            pyproject_hooks.BackendUnavailable,
            pyproject_hooks.BackendInvalid,
        ) as error:
            sys.exit(f"cannot list the build requirements of repository {name}: {error}")
    for name, requirements in wanted.items():
        target = _empty_target(work)  # the image's packages are not seen by a build
        out = os.path.join(work, f"build_{name}")
        resolve_packages.main(uv(), target, arch, "", "", repositories, out, *requirements)


def _empty_target(work):
    target = os.path.join(work, "build target")
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(os.path.join(target, "wheels"))
    for name in ("python", "glibc"):
        shutil.copy(os.path.join(work, "target", name), target)
    with open(os.path.join(target, "packages.txt"), "w", encoding="utf-8"):
        return target
