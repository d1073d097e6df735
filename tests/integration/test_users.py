"""A build in the directory of a group, as a real user who is started by root."""

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest
from support.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.only_root]

GROUP = 61000


@pytest.fixture
def shared():
    """Give a directory as sites make them for a project: its files get the group."""
    folder = Path(tempfile.mkdtemp(prefix="longship-group-", dir="/var/tmp"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.needs("apptainer")
def test_image_is_built_in_the_directory_of_a_group(root, run, shared, tiny, clean_environment):
    """Its files get a group which is not among those that Apptainer's build can give to files."""
    names = [line.split(":")[0] for line in Path("/etc/subuid").read_text().splitlines()]
    user = next(pwd.getpwnam(name) for name in names if name != "root")
    clone = Lab(root, shared / "a clone", {**clean_environment, "HOME": str(shared / "home")})
    clone.use("images/my.def", scratch=shared / "a scratch")
    shutil.copy(tiny(), shared / "tiny.tar")
    definition = clone.root / "images/my.def"
    definition.parent.mkdir()
    definition.write_text(
        f'Bootstrap: scratch\n%setup\n  tar -x -C "$APPTAINER_ROOTFS" -f {shared}/tiny.tar\n'
        "%post\n  echo mine >/etc/mark\n"
    )
    script = shared / "build.sh"
    script.write_text(f"umask 007\n{clone.dry_run('build_container.py')}")
    (shared / "home").mkdir()
    for folder in (shared, *shared.rglob("*")):
        os.chown(folder, user.pw_uid, GROUP)
    shared.chmod(0o2770)
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", f"--groups={GROUP}"]
    run([*become, "bash", script], env=clone.environment, cwd=shared)
    (image,) = clone.containers.glob("build/*.sif")
    assert image.stat().st_gid == GROUP and not clone.left()
