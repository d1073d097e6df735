"""Lock the build requirements of repositories: an installation without network builds them too."""

import os
import shutil
import subprocess
import sys
import tempfile

import describe_image
import install_packages
import resolve_packages
from pip._vendor import pyproject_hooks

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

UV = os.path.join(os.path.dirname(sys.executable), "uv")
# the backend of repositories that name none, and what a script of the user may need
ALWAYS = ("setuptools", "wheel", "pip", "-r", os.path.join(os.path.dirname(__file__), "uv.txt"))
# for a repository without the table: https://peps.python.org/pep-0517/#build-system-table
DEFAULT = {
    "requires": ["setuptools>=40.8.0", "wheel"],
    "build-backend": "setuptools.build_meta:__legacy__",
}


def resolve(work, arch, repositories, sources):
    """Resolve the build requirements, one file ``build_NAME`` for each repository.

    Two repositories may need different versions; ``build_`` is for all of them. The sources are
    ``./NAME[EXTRA]``, after ``-e`` if they are editable.
    """
    wanted = {"": ALWAYS}
    words = iter(sources)
    for word in words:
        name = (next(words) if word == "-e" else word)[len("./") :].partition("[")[0]
        try:
            wanted[name] = required_by(os.path.join(repositories, name), editable=word == "-e")
        except subprocess.CalledProcessError:  # its output has the reason
            sys.exit(f"cannot list the build requirements of repository {name}")
        except (
            ValueError,  # no TOML, or no UTF-8
            KeyError,
            pyproject_hooks.BackendUnavailable,
            pyproject_hooks.BackendInvalid,
        ) as error:
            sys.exit(f"cannot list the build requirements of repository {name}: {error}")
    own = os.path.join(work, "target")
    described = [resolve_packages.read(own, each) for each in ("python", "glibc")]
    for name, requirements in wanted.items():
        target = os.path.join(work, "build target")  # a build does not see the image's packages
        shutil.rmtree(target, ignore_errors=True)
        describe_image.write_description(target, *described)
        out = os.path.join(work, f"build_{name}")
        resolve_packages.resolve(UV, target, arch, "", "", repositories, out, *requirements)


def required_by(repository, editable):
    """Return what the build of a repository requires: what it lists, and what its backend adds."""
    path = os.path.join(repository, "pyproject.toml")
    system = dict(DEFAULT)
    if os.path.exists(path):
        with open(path, "rb") as file:
            system.update(tomllib.load(file).get("build-system", {}))
    requires = system["requires"]
    with tempfile.TemporaryDirectory() as folder:
        configuration = install_packages.pip_configuration()
        environment = {**os.environ, **install_packages.uv_environment(configuration)}
        install = [UV, "pip", "install", "--quiet", "--python", sys.executable]
        install += [*install_packages.uv_options(configuration), "--target", folder, *requires]
        # the file of the lock that the caller holds stays open
        subprocess.run(install, env=environment, check=True, close_fds=False)

        def run(command, cwd=None, extra_environ=None):
            # quiet: the output of a backend is of no use here
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
        kind = "editable" if editable else "wheel"
        return [*requires, *getattr(backend, f"get_requires_for_build_{kind}")()]
