"""Locks without flock: one does it, the others wait, the dead are buried."""

import contextlib
import os
import shutil
import signal
import sys
import time

import pytest
from support import processes
from support.processes import finish, wait_until
from support.terminal import Terminal

from lib.script.command import call
from lib.script.render import render

SECONDS = 300  # what a test waits for at most


@pytest.fixture
def start(tmp_path, clean_environment):
    """Give a function that starts lines as a script; what still runs at the end is killed."""
    started = []

    def start_script(*lines, env=None):
        script = render("a test", lines)
        command = ["bash", "-c", script]
        environment = {**clean_environment, **(env or {})}
        process = processes.start(command, env=environment, cwd=tmp_path)
        started.append(process)
        return process

    yield start_script
    for process in started:
        processes.end_group(process)
        process.communicate()


def hold(lock, stop):
    """Lines that hold a lock until the file `stop` is there."""
    return [
        f"hold() {{ : >{call(stop)}.held; until [[ -e {call(stop)} ]]; do sleep 0.05; done; }}",
        call("lock_run", lock, "hold"),
    ]


def abandon(lock, host, process, start="0"):
    """Make a lock as another process would have left it."""
    folder = lock.with_name(lock.name + ".lock")
    folder.mkdir()
    (folder / "owner").write_text(f"{host} {process} {start}\n")
    return folder


def make_old(folder):
    for path in (folder / "owner", folder):
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, (time.time() - 3600,) * 2)


# The sign of life, which comes every five seconds, without the waiting.
QUICK = 'sleep() { command sleep "${1/#5/0.07}"; }'
TAKEN = ["work() { echo done >>result; }"]


def test_only_one_works_at_a_time(start, tmp_path):
    count = 4
    (tmp_path / "counter").write_text("0\n")
    work = "work() { local -i n; n=$(<counter); sleep 0.02; echo $((n + 1)) >counter; }"
    scripts = [
        start(work, call("lock_run", tmp_path / "it's a lock", "work")) for _ in range(count)
    ]
    for script in scripts:
        code, errors = finish(script)
        assert code == 0, errors
    assert (tmp_path / "counter").read_text() == f"{count}\n"
    assert list(tmp_path.glob("*lock*")) == []


def test_waiting_is_told_once_with_the_owner(start, tmp_path):
    lock, stop = tmp_path / "lock", tmp_path / "stop"
    first = start(*hold(lock, stop))
    wait_until((tmp_path / "stop.held").exists)
    second = start(*TAKEN, call("lock_run", lock, "work"))
    note = second.stderr.readline()
    assert f"waiting for the lock held by process {first.pid} on {os.uname().nodename}" in note
    assert not (tmp_path / "result").exists()
    stop.touch()
    assert finish(first) == (0, "")
    assert finish(second) == (0, "")
    assert (tmp_path / "result").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="mv asks root nothing")
def test_lock_of_another_user_is_waited_for_on_a_terminal(clean_environment, tmp_path):
    """There mv asks before it replaces what the user cannot write to, as with umask 022."""
    held = abandon(tmp_path / "lock", "another-host", 1)
    held.chmod(0o555)
    script = render("a test", [*TAKEN, call("lock_run", tmp_path / "lock", "work")])
    with Terminal(["bash", "-c", script], env=clean_environment, cwd=tmp_path) as second:
        second.expect("waiting for the lock held by process 1 on another-host")
        second.type("\n")
        assert not (tmp_path / "result").exists()
        held.chmod(0o755)
        shutil.rmtree(held)
        assert second.end() == 0
    assert (tmp_path / "result").exists()


def test_arguments_reach_the_function(run, tmp_path, hostile_arguments):
    show = "show() { printf '%s\\0' \"$@\"; }"
    lines = [show, call("lock_run", tmp_path / "lock", "show", *hostile_arguments)]
    output = run(["bash", "-c", render("a test", lines)]).stdout
    assert output.split("\0")[:-1] == hostile_arguments


@pytest.mark.parametrize("ending", ["exit 3", "false", "fail x y"])
def test_failing_owner_lets_go(ending, start, tmp_path):
    code, _ = finish(start(f"work() {{ {ending}; }}", call("lock_run", tmp_path / "lock", "work")))
    assert code == {"exit 3": 3}.get(ending, 1)
    assert list(tmp_path.glob("lock*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_owner_lets_go(number, start, tmp_path):
    """By a trap of each: without one, bash sometimes ends at a SIGHUP without its EXIT trap."""
    script = start(call("on_interrupt", "again"), *hold(tmp_path / "lock", tmp_path / "stop"))
    wait_until((tmp_path / "stop.held").exists)
    os.killpg(script.pid, number)
    code, errors = finish(script)
    assert code == 130 and "hint: no work is lost; resume with: again\n" in errors
    assert list(tmp_path.glob("lock*")) == []


@pytest.mark.needs("namespaces")
def test_machine_without_proc_is_refused(run, as_root, tmp_path):
    """Nothing there could tell which processes hold a lock."""
    script = render("a test", [*TAKEN, call("lock_run", tmp_path / "lock", "work")])
    without = ["bash", "-c", 'mount -t tmpfs none /proc && exec bash -c "$1"', "bash", script]
    done = run([*as_root(["unshare", "--mount", *without])], cwd=tmp_path, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: /proc not found: ")
    assert not (tmp_path / "result").exists()


def test_lock_of_a_killed_process_is_taken_over(start, tmp_path):
    lock = tmp_path / "lock"
    script = start(*hold(lock, tmp_path / "stop"))
    wait_until((tmp_path / "stop.held").exists)
    processes.end_group(script)
    script.communicate()
    assert (tmp_path / "lock.lock").exists()
    code, errors = finish(start(*TAKEN, call("lock_run", lock, "work")))
    assert code == 0
    assert f"taking over the lock of process {script.pid}" in errors
    assert (tmp_path / "result").exists()


def test_lock_of_an_earlier_process_with_the_same_number_is_taken_over(start, tmp_path):
    abandon(tmp_path / "lock", os.uname().nodename, os.getpid(), start="1")
    code, errors = finish(start(*TAKEN, call("lock_run", tmp_path / "lock", "work")))
    assert code == 0 and "taking over" in errors


def test_lock_of_another_host_with_this_name_may_be_alive(start, tmp_path):
    """As of two clusters that share a file system: the host shows nothing of its processes."""
    lock = abandon(tmp_path / "lock", os.uname().nodename, 1, "0 another-boot")
    assert finish(start(call("lock_is_stale", lock)))[0] == 1
    make_old(lock)
    assert finish(start(call("lock_is_stale", lock)))[0] == 0


def test_old_lock_of_another_host_is_taken_over(start, tmp_path):
    make_old(abandon(tmp_path / "lock", "another-host", 1))
    code, errors = finish(start(*TAKEN, call("lock_run", tmp_path / "lock", "work")))
    assert code == 0
    assert "taking over the lock of process 1 on another-host" in errors


def test_folder_without_an_owner_is_nobodys_lock(start, tmp_path):
    (tmp_path / "lock.lock").mkdir()
    assert finish(start(*TAKEN, call("lock_run", tmp_path / "lock", "work")))[0] == 0


def test_lock_that_may_be_alive_is_waited_for(start, tmp_path):
    folder = tmp_path / "lock.lock"
    folder.mkdir()
    (folder / "owner").write_text("another-host 1 0\n")
    script = start(*TAKEN, call("lock_run", tmp_path / "lock", "work"))
    assert "waiting for " in script.stderr.readline()
    assert script.poll() is None and not (tmp_path / "result").exists()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert finish(script)[0] == 0
    assert (tmp_path / "result").exists()


def test_name_of_the_host_is_the_systems_whatever_the_environment_says(start, tmp_path):
    """Slurm hands the HOSTNAME of the login node on to every node of a job."""
    lock, stop = tmp_path / "lock", tmp_path / "stop"
    start(*hold(lock, stop), env={"HOSTNAME": "the-login-node"})
    wait_until((tmp_path / "stop.held").exists)
    owner = (tmp_path / "lock.lock/owner").read_text()
    assert owner.split()[0] == os.uname().nodename


def test_owner_shows_that_it_lives(start, tmp_path):
    script = start(QUICK, *hold(tmp_path / "lock", tmp_path / "stop"))
    wait_until((tmp_path / "stop.held").exists)
    owner = tmp_path / "lock.lock/owner"
    make_old(owner.parent)
    wait_until(lambda: owner.stat().st_mtime > time.time() - 600)
    (tmp_path / "stop").touch()
    assert finish(script) == (0, "")


def test_sign_of_life_ends_with_the_owner(start, tmp_path):
    script = start(QUICK, *hold(tmp_path / "lock", tmp_path / "stop"))
    wait_until((tmp_path / "stop.held").exists)
    wait_until(lambda: "sleep 0.07" in processes.session(script.pid))
    os.kill(script.pid, signal.SIGKILL)  # the shell alone: its children are not told
    script.wait(timeout=SECONDS)
    wait_until(lambda: not any(processes.session(script.pid)))
    assert (tmp_path / "lock.lock/owner").exists()


def test_many_find_a_dead_lock_at_once(start, tmp_path):
    """Only one may take it over, and none the new lock of another."""
    count = 4
    (tmp_path / "counter").write_text("0\n")
    make_old(abandon(tmp_path / "lock", "another-host", 1))
    work = "work() { local -i n; n=$(<counter); sleep 0.02; echo $((n + 1)) >counter; }"
    scripts = [start(work, call("lock_run", tmp_path / "lock", "work")) for _ in range(count)]
    for script in scripts:
        code, errors = finish(script)
        assert code == 0, errors
    assert (tmp_path / "counter").read_text() == f"{count}\n"
    assert list(tmp_path.glob("lock*")) == []


def test_removal_that_was_killed_half_way_is_mended(start, tmp_path):
    make_old(abandon(tmp_path / "lock", "another-host", 1))
    (tmp_path / "lock.lock.removal").mkdir()
    make_old(tmp_path / "lock.lock.removal")
    assert finish(start(*TAKEN, call("lock_run", tmp_path / "lock", "work")))[0] == 0
    assert (tmp_path / "result").exists()
    assert list(tmp_path.glob("lock*")) == []


def test_folder_that_cannot_be_written_to_is_told(start, read_only_folder):
    code, errors = finish(start(*TAKEN, call("lock_run", read_only_folder / "lock", "work")))
    assert code == 1
    assert errors.startswith(f"error: cannot create the lock {read_only_folder}/lock.lock: ")
    assert "hint: " in errors


def test_lock_that_others_give_back_again_and_again_is_waited_for(start, tmp_path):
    """That others were quicker, one after the other, does not mean that no lock can be made."""
    quicker = (
        'lock_make() { local -i n; n=$(($(<"$1.tries") + 1)); echo "$n" >"$1.tries"; '
        'case $((n % 2)) in 1) rm -rf -- "$2" ;; 0) mkdir -p -- "$2" ;; esac; '
        '((n > 20)) && mkdir -- "$2" && : >"$2/owner"; }'
    )
    lines = [quicker, "sleep() { :; }", "lock_is_stale() { return 1; }"]
    first = 'echo 0 >"lock.lock.new.$(host_name).$$.tries"'
    code, errors = finish(start(*lines, *TAKEN, first, call("lock_run", "lock", "work")))
    assert code == 0, errors


@pytest.mark.skipif(os.geteuid() == 0, reason="root may empty any folder")
def test_dead_lock_that_cannot_be_emptied_is_moved_away(start, tmp_path):
    """As in a group's folder, where a member with umask 022 has left it."""
    left = abandon(tmp_path / "lock", os.uname().nodename, 1)
    left.chmod(0o555)
    for _ in range(2):
        code, errors = finish(start(*TAKEN, call("lock_run", tmp_path / "lock", "work")))
        assert code == 0, errors
    assert not (tmp_path / "lock.lock").exists()
    for each in tmp_path.glob("lock.lock.*"):
        each.chmod(0o755)


# A signal that comes before the script knows the number of the worker.
EARLY = """\
early() {
  if [[ $1 != worker_process=\\$* ]]; then return; fi
  until [[ -e started ]]; do :; done
  trap - DEBUG
  kill -s TERM $$
}
set -T
trap 'early "$BASH_COMMAND"' DEBUG"""


@pytest.mark.parametrize("before", [":", EARLY], ids=["", "early"])
def test_worker_ends_with_the_script_and_the_lock_is_released(before, start, tmp_path):
    worker = "import os, time; os.system(': >started; exec sleep 300')"
    script = start(
        before,
        call("on_interrupt", "again"),
        f"work() {{ {call('worker_run', sys.executable, '-c', worker)}; }}",
        call("lock_run", tmp_path / "lock", "work"),
    )
    wait_until((tmp_path / "started").exists)
    if before != EARLY:
        script.send_signal(signal.SIGTERM)
    assert finish(script, 200)[0] == 130
    wait_until(lambda: "sleep 300" not in processes.session(script.pid))
    assert not (tmp_path / "lock.lock").exists()


# As a worker does that is in a process group of its own.
IN_A_GROUP = "work() { set -m; for i in 1 2; do (set +m && each $i) & done; set +m; wait; }"


def test_lock_of_a_killed_shell_lasts_until_what_it_started_is_gone(start, tmp_path):
    """Also what is in a process group of its own, and refuses to end when asked."""
    lock = tmp_path / "lock"
    first = start(
        "each() { trap : TERM; : >started.$1; while :; do sleep 0.05; : >alive.$1; done; }",
        IN_A_GROUP,
        call("lock_run", lock, "work"),
    )
    wait_until(lambda: all((tmp_path / f"alive.{each}").exists() for each in (1, 2)))
    os.kill(first.pid, signal.SIGKILL)
    code, errors = finish(
        start("work() { rm alive.*; sleep 0.3; }", call("lock_run", lock, "work"))
    )
    assert code == 0, errors
    assert "ending its remaining processes: " in errors
    assert list(tmp_path.glob("alive.*")) == []
    assert list(tmp_path.glob("lock*")) == []


@pytest.mark.parametrize("whole_group", [True, False])
def test_sign_of_life_lasts_as_long_as_the_last_worker(whole_group, start, tmp_path):
    lock = tmp_path / "lock.lock"
    script = start(
        QUICK,
        "each() { : >started; until [[ -e stop ]]; do command sleep 0.02; done; }",
        IN_A_GROUP,
        call("lock_run", tmp_path / "lock", "work"),
    )
    wait_until((tmp_path / "started").exists)
    (os.killpg if whole_group else os.kill)(script.pid, signal.SIGKILL)
    script.wait(timeout=SECONDS)
    make_old(lock)
    wait_until(lambda: lock.stat().st_mtime > time.time() - 600)
    (tmp_path / "stop").touch()
    wait_until(lambda: "sleep 0.07" not in processes.session(script.pid))


def test_lock_is_readable_whatever_the_umask(start, tmp_path):
    start("umask 077", *hold(tmp_path / "lock", tmp_path / "stop"))
    wait_until((tmp_path / "stop.held").exists)
    lock = tmp_path / "lock.lock"
    assert (lock.stat().st_mode & 0o777, (lock / "owner").stat().st_mode & 0o777) == (0o755, 0o644)


def test_sign_of_life_is_also_the_folders(start, tmp_path):
    start(QUICK, *hold(tmp_path / "lock", tmp_path / "stop"))
    wait_until((tmp_path / "stop.held").exists)
    lock = tmp_path / "lock.lock"
    make_old(lock)
    wait_until(lambda: lock.stat().st_mtime > time.time() - 600)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("closed", ["owner", "."])
def test_owner_that_cannot_be_read_is_alive(closed, start, tmp_path):
    lock = abandon(tmp_path / "lock", "another-host", 1)
    make_old(lock)
    (lock / closed).chmod(0)
    script = start(*TAKEN, call("lock_run", tmp_path / "lock", "work"))
    assert f"if that process no longer exists, run: rm -r {lock}\n" in script.stderr.readline()
    lock.chmod(0o755)
    (lock / "owner").chmod(0o644)
    assert finish(script)[0] == 0


@pytest.mark.parametrize("alive", [True, False])
def test_lock_that_lies_in_the_future_is_judged_by_its_changes(alive, start, tmp_path):
    """SECONDS of bash, 30 of which go by at each look."""
    lock = abandon(tmp_path / "lock", "another-host", 1)
    future = time.time() + 1e6
    for path in (lock / "owner", lock):
        os.utime(path, (future, future))
    beat = f"touch -d @$(({int(future)} + SECONDS)) lock.lock/owner" if alive else ":"
    end = "if ((SECONDS > 300)); then exit 7; fi"
    look = f"sleep() {{ SECONDS=$((SECONDS + 30)); {beat}; {end}; }}"
    code, errors = finish(start(look, *TAKEN, call("lock_run", tmp_path / "lock", "work")))
    assert code == (7 if alive else 0)
    assert ("taking over" in errors) != alive


def test_left_over_removal_is_no_reason_to_wait(start, tmp_path):
    """One that was killed while it took over a lock."""
    dead = os.uname().nodename, 1 << 22
    abandon(tmp_path / "lock", *dead)
    (tmp_path / "lock.lock.removal").mkdir()
    (tmp_path / "lock.lock.removal/owner").write_text("{} {} 1\n".format(*dead))
    slow = "sleep() { exit 7; }"
    assert finish(start(slow, *TAKEN, call("lock_run", tmp_path / "lock", "work")))[0] == 0
    assert list(tmp_path.glob("lock*")) == []


def test_lock_whose_refreshing_process_ends_at_once_is_held(start, tmp_path):
    """As where the machine has no more processes, or is suspended in between."""
    ended = "sleep() { exit 7; }; disown() { wait $! || :; builtin disown; }"
    assert finish(start(ended, *TAKEN, call("lock_run", tmp_path / "lock", "work"))) == (0, "")
    assert list(tmp_path.glob("lock*")) == []


def test_removal_of_another_host_is_waited_for_with_a_message(start, tmp_path):
    abandon(tmp_path / "lock", os.uname().nodename, 1 << 22)
    removal = abandon(tmp_path / "lock.lock", "another-host", 1).parent / "lock.lock.lock"
    removal.rename(tmp_path / "lock.lock.removal")
    script = start(*TAKEN, call("lock_run", tmp_path / "lock", "work"))
    assert "waiting for " in script.stderr.readline()
    make_old(tmp_path / "lock.lock.removal")
    assert finish(script)[0] == 0
