"""Two real users in one directory of a group, who are started by root."""

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest
from support import processes
from support.lab import Lab
from support.processes import finish, wait_until

from lib.script.command import call
from lib.script.render import render

pytestmark = [pytest.mark.root, pytest.mark.only_root]

GROUP = 61000
FIRST, SECOND = 61001, 61002  # no names: neither user is made, so neither has to be removed
SECONDS = 300
QUICK = 'sleep() { command sleep "${1/#5/0.07}"; }'  # the sign of life comes every five seconds
# Each look takes 10 seconds of bash's clock, and a lock that is not taken over in 80 is alive.
LOOK = "sleep() { SECONDS=$((SECONDS + 10)); ((SECONDS < 80)) || exit 7; }"
# The same for a lock that is alive: between two looks comes a sign of life.
ALIVE = (
    "sign() { stat -c %Y lock.lock/owner; }; "
    "sleep() { SECONDS=$((SECONDS + 10)); ((SECONDS < 80)) || exit 7; "
    "while [[ $(sign) == ${seen-} ]]; do command sleep 0.05; done; seen=$(sign); }"
)
HOLD = "hold() { : >held.$1; until [[ -e stop ]]; do command sleep 0.05; done; }"
WORK = "work() { : >worked; }"


@pytest.fixture
def shared():
    """Give a directory as share_in_a_group.md says, that both can reach."""
    folder = Path(tempfile.mkdtemp(prefix="longship-group-", dir="/var/tmp"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(shared, clean_environment):
    """Give a function that starts lines as a user of the group, with a umask of 077."""
    started = []

    def start_script(user, *lines, hidepid=0):
        script = render("a test", ["umask 077", *lines])
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={GROUP}"]
        mount = f'mount -t proc -o hidepid={hidepid} proc /proc && exec "$@"'
        hidden = ["unshare", "--mount", "bash", "-c", mount, "mount"] if hidepid else []
        command = [*hidden, *become, "bash", "-c", script]
        started.append(processes.start(command, env=clean_environment, cwd=shared))
        return started[-1]

    yield start_script
    for process in started:
        processes.end_session(process)
        process.communicate()


@pytest.mark.parametrize("hidepid", [0, 1])
def test_living_lock_of_another_user_is_waited_for(hidepid, start, shared):
    """Its files are readable whatever the umask, and so is its owner's sign of life.

    With hidepid, which some sites mount /proc with, no user sees the processes of others.
    """
    first = start(FIRST, QUICK, HOLD, call("lock_run", shared / "lock", "hold", "first"))
    wait_until((shared / "held.first").exists)
    lines = [ALIVE, WORK, call("lock_run", shared / "lock", "work")]
    code, errors = finish(start(SECOND, *lines, hidepid=hidepid))
    assert code == 7 and f"waiting for the lock held by process {first.pid} on " in errors
    assert not (shared / "worked").exists()
    (shared / "stop").touch()
    assert finish(first) == (0, "")
    assert finish(start(SECOND, WORK, call("lock_run", shared / "lock", "work"))) == (0, "")


def test_dead_lock_of_another_user_is_taken_over_at_once(start, shared):
    first = start(FIRST, HOLD, call("lock_run", shared / "lock", "hold", "first"))
    wait_until((shared / "lock.lock/heart").exists)
    processes.end_session(first)
    slow = "sleep() { exit 7; }"
    code, errors = finish(start(SECOND, slow, WORK, call("lock_run", shared / "lock", "work")))
    assert code == 0 and f"taking over the lock of process {first.pid} on " in errors
    assert (shared / "worked").exists() and not (shared / "lock.lock").exists()


def test_lock_lasts_as_long_as_the_workers_of_another_user(start, shared):
    """Which process holds it is hidden from others, but its owner's sign of life is not."""
    work = "work() { set -m; (set +m && hold 1) & set +m; wait; }"
    first = start(FIRST, QUICK, HOLD, work, call("lock_run", shared / "lock", "work"))
    wait_until((shared / "held.1").exists)
    first.kill()
    first.wait(timeout=SECONDS)
    code, errors = finish(start(SECOND, ALIVE, WORK, call("lock_run", shared / "lock", "work")))
    assert code == 7 and "waiting for " in errors and "taking over" not in errors
    (shared / "stop").touch()
    assert finish(start(SECOND, WORK, call("lock_run", shared / "lock", "work")))[0] == 0


def test_dead_lock_that_may_not_be_removed_is_told_once(start, shared):
    """As in a directory with the sticky bit."""
    shared.chmod(0o3770)
    first = start(FIRST, HOLD, call("lock_run", shared / "lock", "hold", "first"))
    wait_until((shared / "lock.lock/heart").exists)
    processes.end_session(first)
    code, errors = finish(start(SECOND, LOOK, WORK, call("lock_run", shared / "lock", "work")))
    assert code == 7, errors
    assert errors.count("\n") == 1 and f"run: rm -r {shared}/lock.lock\n" in errors


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
