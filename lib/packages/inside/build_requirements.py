"""Lock the build requirements of repositories: an installation without network builds them too."""

import os
import subprocess
import sys

import build
import build.env
import describe_image
import pyproject_hooks
import resolve_packages

UV = os.path.join(os.path.dirname(sys.executable), "uv")
# the backend of repositories that name none, and what a script of the user may need
ALWAYS = ("setuptools", "wheel", "pip", "-r", os.path.join(os.path.dirname(__file__), "uv.txt"))


def resolve(work, arch, repositories, sources):
    """Resolve the build requirements, one file ``build_NAME`` for each repository.

    Two repositories may need different versions; ``build_`` is for all of them. The sources are
    ``./NAME[EXTRA]``, after ``-e`` if they are editable.
    """
    wanted = {"": ALWAYS}
    words = iter(sources)
    for word in words:
        name = (next(words) if word == "-e" else word)[len("./") :].partition("[")[0]
        kind = "editable" if word == "-e" else "wheel"
        try:
            wanted[name] = required_by(os.path.join(repositories, name), kind)
        except subprocess.CalledProcessError as error:
            sys.stderr.buffer.write(error.stdout or b"")
            sys.stderr.buffer.write(error.stderr or b"")
            sys.exit(f"cannot list the build requirements of repository {name}")
        except (build.BuildException, build.BuildBackendException) as error:
            sys.exit(f"cannot list the build requirements of repository {name}: {error}")
    own = os.path.join(work, "target")
    described = [resolve_packages.read(own, each) for each in ("python", "glibc")]
    target = os.path.join(work, "build target")  # a build does not see the image's packages
    describe_image.write_description(target, *described)
    for name, requirements in wanted.items():
        out = os.path.join(work, f"build_{name}")
        resolve_packages.resolve(UV, target, arch, "", "", repositories, out, *requirements)


def required_by(repository, kind):
    """Return what the build of a repository requires: what it lists, and what its backend adds."""
    with build.env.DefaultIsolatedEnv() as environment:
        run = pyproject_hooks.quiet_subprocess_runner
        builder = build.ProjectBuilder.from_isolated_env(environment, repository, run)
        environment.install(builder.build_system_requires)
        return sorted(builder.build_system_requires | builder.get_requires_for_build(kind))
