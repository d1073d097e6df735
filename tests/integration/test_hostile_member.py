"""A second member of the group attacks: what he changes must neither run as the victim nor be read.

He is a user of his own in the group that owns the parent of all directories. He can read what a
member has opened, and write to what the group shares.
"""

import os
import re
import shlex
import shutil
import textwrap
from pathlib import Path

import pytest
from support.members import effective, set_default_acl, writable
from support.processes import finish, wait_until
from support.tiers import slow

pytestmark = [pytest.mark.root, pytest.mark.only_root]

PRINT = 'srun "$LAUNCHER" sh -c "echo mine: \\$0" "${JOB_ARGUMENTS[@]}"'
# What a refused command says to type.
_HINT = r"(?m)^hint: (?:delete what others may have changed in it, and )?run: (.*?)(?:; if .*)?$"


def told(done):
    """Check that a command was refused, with an error and a hint, and return both."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert re.search(r"^error: .+\nhint: .+$", done.stderr, re.MULTILINE), done.stderr
    return done.stderr


def is_harmless(village, done):
    """Run the job of a submission that was not refused; nothing of mallory's may run in it."""
    if done.returncode:
        told(done)
    else:
        code, log = village.victim.run_job(done.stdout.split()[0])
        assert village.stolen() == []
        assert village.mallory.name not in log
        assert code == 0 and "mine: once more" in log, log


def ended_run(village, loose):
    """Give a run that has ended, with changes of the clone in its record."""
    victim = village.victim
    (victim.root / "train.py").write_text("# changed by the victim\n")
    run, log = victim.finish(victim.job("first", PRINT), "--", "once more")
    assert "mine: once more" in log
    victim.open_runs()
    if loose:  # a run of before, or one that was copied
        victim.run(["chmod", "-R", "g+w", *run.iterdir()])
    return run


# What mallory has: an archive of the code whose scripts start his command, named by its checksum.
EVIL_CODE = """
mkdir -p evil/code && cp -r clone evil/code/longship && cd evil/code/longship && rm -rf .git
printf '%s\\n' "$1" | cat - lib/shell/job.bash >new && mv new lib/shell/job.bash
cd ../.. && tar -cf archive code && sum=$(sha256sum <archive) && name=code-${sum:0:12}.tar
cp archive "$2/$name" || cp archive "$2"/code-*.tar || :
chmod -R a+rwX ~/evil && mv archive "$name" && echo "$name"
"""
# By a new file, where he can write to the directory.
REPLACE = 'printf "%s" "$1" >"$2.new" && mv -f -- "$2.new" "$2" || printf "%s" "$1" >"$2"'


@pytest.mark.parametrize("loose", [slow(False), True])
def test_code_of_a_record_is_not_that_of_another(make_village, loose):
    village = make_village()
    run = ended_run(village, loose)
    mallory = village.mallory.clone()
    name = mallory.bash(EVIL_CODE, village.payload, run).stdout.strip()
    path = os.path.relpath(mallory.home / "evil" / name, run)
    text = re.sub(r'"code": ".*"', f'"code": "{path}"', (run / "record.json").read_text())
    mallory.bash(REPLACE, text, run / "record.json", check=False)
    is_harmless(village, village.victim.type("submit.py", "rerun", run.name, check=False))


EVIL_VENV = """
mkdir -p evil/bin && echo host >evil/longship-base && touch evil/pyvenv.cfg
printf '#!/bin/bash\\n%s\\necho mallory\\n' "$1" | tee evil/bin/sh evil/bin/python3 >/dev/null
chmod -R a+rX evil && chmod a+x evil/bin/*
"""


@pytest.mark.parametrize("loose", [slow(False), True])
def test_venv_of_a_record_is_not_that_of_another(make_village, loose):
    village = make_village()
    run = ended_run(village, loose)
    mallory = village.mallory
    mallory.bash(EVIL_VENV, village.payload)
    text = (run / "record.json").read_text()
    text = re.sub(r'"code": ".*"', '"code": "other"', text)  # so that its launcher is written anew
    text = text.replace("{", f'{{\n  "venv": "{mallory.home}/evil",', 1)
    mallory.bash(REPLACE, text, run / "record.json", check=False)
    done = village.victim.type("submit.py", "rerun", run.name, check=False)
    is_harmless(village, done)


@pytest.mark.parametrize("loose", [slow(False), True])
def test_image_of_a_record_is_not_that_of_another(make_village, loose):
    village = make_village()
    image = village.share_image()
    run = ended_run(village, loose)
    mallory = village.mallory
    evil = mallory.home / "mallory.sif"
    shutil.copy(image, evil)
    mallory.own(evil)
    text = (run / "record.json").read_text()
    text = re.sub(r'"image": ".*?"', f'"image": "{evil}"', text)
    text = re.sub(r'"code": ".*?"', '"code": "other"', text)
    mallory.bash(REPLACE, text, run / "record.json", check=False)
    done = village.victim.type("submit.py", "rerun", run.name, check=False)
    is_harmless(village, done)


def test_image_that_others_can_change_is_not_started(make_village):
    village = make_village()
    image = village.share_image()
    started = village.victim.type("container_run.py", "true")
    assert f"started in {image}" in started.stderr
    changes = (
        f"chmod g+w {shlex.quote(str(image))}",
        f"chmod g+w {shlex.quote(str(image.parent))}",
        f"chmod g+w {shlex.quote(str(village.shared))}",
    )
    for each in changes:
        village.victim.bash(each)
        assert "started in" not in told(
            village.victim.type("container_run.py", "true", check=False)
        )
        village.victim.bash(f"cd {shlex.quote(str(village.shared))}; chmod -R go-w .")


def test_shared_directory_of_another_is_refused(make_village):
    """He can make it first, as he can write to the directory above it."""
    village = make_village()
    village.mallory.run(["mkdir", "-m", "750", village.shared])
    village.mallory.bash('mkdir -p "$1"/containers/versions', village.shared)
    file = village.victim.root / "configuration.toml"
    image = 'image = "docker://longship.example/lab/base:1"'
    file.write_text(file.read_text().replace('"host"', f'"apptainer"\n{image}'))
    (village.folder / "slurm/apptainer").write_text("#!/bin/bash\nexit 1\n")
    (village.folder / "slurm/apptainer").chmod(0o755)
    for words in (["build_container.py"], ["build_overlay.py"], ["container_run.py", "true"]):
        told(village.victim.type(*words, check=False))


# A run of mallory's whose every file leads to the victim's.
EVIL_RUN = """
mkdir -p "$1" && cd "$1" || exit
printf '{\n  "job": "30",\n  "stack": "pytorch",\n  "log": "%s"\n}\n' "$2.log" >record.json
ln -s "$2/repositories" "$2/usage" "$2/packages.txt" "$2/options" . && ln -s "$3" outputs
chmod -R a+rX "${1%/*/*}"
"""
# What a run has that only the victim may read: each file names itself.
PRIVATE = """
cd "$1" && mkdir -p usage repositories "$2" && ln -s "$2" outputs
echo 'RuntimeError: CUDA out of memory. Tried to allocate private.' >"$1.log"
echo private==1 >packages.txt; echo private >options
echo 'commit private' >repositories/x.commit; echo 'diff --git private' >repositories/x.patch
printf 'time,device,utilisation,power,memory\n1767322800,0,1,1,1\n' >usage/node1.csv
echo '{"step": 1, "time": 1767322800, "loss": 0.4242}' >"$2/metrics.jsonl"
chmod -R go= . "$1.log" "$2"
"""
# What the page draws of its data.
DRAWN = """
import json, sys
from training_curves import Training
for each in json.load(sys.stdin)["trainings"]:
    training = Training(each, "")
    print(training.curves["loss"], training.nodes, each["about"], each["jobs"])
"""


def test_page_of_another_members_run_has_nothing_of_its_reader(make_village):
    """The reader sends it on; and a name is never that of another member's run."""
    village = make_village()
    victim, mallory = village.victim, village.mallory
    run, _ = victim.finish(victim.job("train", PRINT), "--", "once more")
    results = victim.home / "results"
    victim.bash(PRIVATE, run, results)
    theirs = mallory.runs / run.name
    mallory.bash(EVIL_RUN, theirs, run, results)

    def drawn(name):
        words = ["python3", victim.root / "submit.py", "report", name, "--dry-run"]
        script = victim.run(words, cwd=mallory.runs).stdout
        (line,) = re.findall("(?m)^report_data=.*", script)
        path = f"{victim.root}:{victim.root}/extras/reports/inside"
        given = shlex.split(line)[0].partition("=")[2]
        return victim.run(["python3", "-c", DRAWN], env={"PYTHONPATH": path}, input=given).stdout

    own = drawn(run.name)
    seen = ("private==1", "allocate private", "'private ", "0.4242", "1767322800", str(run))
    assert all(each in own for each in ("victim · ", *seen)), own
    page = drawn(f"./{run.name}")
    assert "mallory · " in page and str(theirs) in page, page
    assert not any(each in page for each in ("private", *seen)), page
    command = ["python3", victim.root / "submit.py", "card", f"./{run.name}"]
    error = told(victim.run(command, cwd=mallory.runs, check=False))
    assert "belongs to mallory" in error and "ask its owner" in error
    link = 'mv -- "$1" "$2" && ln -sf "$3/record.json" "$2"'
    mallory.bash(link, theirs, mallory.runs / "30-train", run)
    sums = victim.type("submit.py", "report", "--csv", "--runs", mallory.runs)
    assert "victim," in sums.stdout and "mallory," not in sums.stdout
    assert f"cannot read {mallory.runs}/30-train/record.json: it is left out" in sums.stderr
    for verb in ("report", "card", "sync", "rerun"):
        done = victim.run([*command[:2], verb, "30-train"], cwd=mallory.runs, check=False)
        assert f'no run "30-train" in {victim.runs}' in told(done), verb


# It opens every file that appears below a directory, as soon as it is there, and writes to those of
# these names when they have their final one.
WATCHER = textwrap.dedent("""
    import ctypes, os, struct, sys

    top, payload, names = sys.argv[1], sys.argv[2], sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    notify, folders, caught = libc.inotify_init(), {}, {}

    def watch(folder):
        # made, moved, changed, permissions
        number = libc.inotify_add_watch(notify, os.fsencode(folder), 0x100 | 0x80 | 0x2 | 0x4)
        if number < 0 or number in folders:
            return
        folders[number] = folder
        try:
            for each in os.scandir(folder):
                seen(each.path)
        except OSError:
            pass

    def seen(path):
        if os.path.isdir(path) and not os.path.islink(path):
            return watch(path)
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                found = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError:
                continue
            key = os.fstat(found).st_ino
            if flags == os.O_RDWR:
                print("writable", path, flush=True)
            elif ".patch" in path:
                print("readable", path, flush=True)
            if flags == os.O_RDONLY or caught.setdefault(key, found) != found:
                os.close(found)
            break
        try:
            key = os.stat(path, follow_symlinks=False).st_ino
        except OSError:
            return
        if os.path.basename(path) in names and key in caught:
            text = os.pread(caught[key], 1 << 20, 0)
            if payload.encode() not in text and text:
                os.pwrite(caught[key], payload.encode() + b"\\n" + text, 0)
                os.close(caught.pop(key))  # a program that is open for writing cannot be started

    watch(top)
    print("ready", flush=True)
    while True:
        data, place = os.read(notify, 1 << 16), 0
        while place < len(data):
            number, mask, cookie, length = struct.unpack_from("iIII", data, place)
            name = data[place + 16 : place + 16 + length].rstrip(b"\\0")
            place += 16 + length
            if number in folders:
                seen(os.path.join(folders[number], os.fsdecode(name)))
""")


class Watch:
    """Mallory's watcher of a directory; what it could open is in its output."""

    def __init__(self, village, folder, *names):
        self.output = village.mallory.home / "output"
        program = village.mallory.home / "watcher.py"
        program.write_text(WATCHER)
        script = 'exec python3 "$@" >output'
        words = [program, folder, village.payload, *names]
        self.process = village.mallory.start(["bash", "-c", script, "bash", *words])
        wait_until(lambda: self.output.exists() and "ready\n" in self.output.read_text())

    @property
    def caught(self):
        assert self.process.poll() is None, self.process.communicate()
        return sorted(set(self.output.read_text().partition("ready\n")[2].splitlines()))


@pytest.mark.parametrize(
    ("parent", "umask"),
    [("setgid", "002"), ("acl", "007"), slow("setgid", "007"), slow("acl", "002")],
)
def test_watcher_gets_no_file_that_a_job_sources(make_village, parent, umask):
    village = make_village(parent, umask)
    victim = village.victim
    (victim.root / "train.py").write_text("# changed by the victim\n")
    job = victim.job("train", PRINT)
    victim.finish(job, "--", "once more")
    victim.open_runs()
    watch = Watch(village, victim.runs, "start.bash", "launcher", "sampler")
    for _ in range(3):
        _, log = victim.finish(job, "--", "once more")
        assert "mine: once more" in log
    caught = watch.caught
    assert village.stolen() == []
    assert [each for each in caught if not each.endswith(".log")] == []


def set_parents_up(village):
    """Make the scratch directory as the victim who does not know of the default ACL."""
    scratch = village.scratch(village.victim)
    village.victim.run(["mkdir", "-p", scratch])


@pytest.mark.parametrize("parent", [slow("setgid"), "acl"])
def test_watcher_gets_no_launcher(make_village, parent):
    village = make_village(parent, "002")
    watch = Watch(village, village.parent, "launcher")
    launcher = village.parent / "launcher"
    for _ in range(3):
        village.victim.type("container_run.py", "--launcher", launcher)
        done = village.victim.run([launcher, "echo", "mine"])
        assert done.stdout == "mine\n"
    assert village.stolen() == []
    assert [each for each in watch.caught if "launcher" in each] == []


HOLD = 'echo $$ >"$1/pid"; until [[ -e $1/go ]]; do sleep 0.01; done; cd clone; exec "${@:2}"'


@pytest.mark.parametrize("parent", [slow("setgid"), "acl"])
def test_links_at_temporary_names_are_not_followed(make_village, parent):
    """The number of the process is known here; a real attacker makes links for many."""
    village = make_village(parent)
    village.share_image()
    victim, mallory = village.victim, village.mallory
    secret = victim.home / "secret"
    victim.bash("umask 077; echo mine >secret; mkdir -m 755 hold")
    launcher, pins = village.parent / "launcher", village.shared / "containers/pins"
    victim.type("container_run.py", "--launcher", village.parent / "other")
    mallory.bash('touch "$1/mine"', pins)  # he can write there
    words = ["python3", "container_run.py", "--launcher", launcher]
    held = victim.start(["bash", "-c", HOLD, "bash", victim.home / "hold", *words])
    number = victim.home / "hold/pid"
    wait_until(lambda: number.exists() and number.read_text())
    link = (
        "import hashlib, os, sys\n"
        "launcher, pins, pid, secret = sys.argv[1:]\n"
        "own = hashlib.sha256(os.fsencode(launcher)).hexdigest()[:12]\n"
        "for name in (launcher, f'{pins}/launcher-{own}'):\n"
        "    for end in (f'.partial.{pid}', '.partial', f'.{pid}', '.tmp', '.new'):\n"
        "        try: os.symlink(secret, name + end)\n"
        "        except OSError as error: print(error)\n"
    )
    mallory.run(["python3", "-c", link, launcher, pins, number.read_text().strip(), secret])
    assert any(each.is_symlink() for each in village.parent.iterdir())
    (victim.home / "hold/go").touch()
    code, errors = finish(held)
    assert secret.read_text() == "mine\n", errors
    assert secret.stat().st_mode & 0o777 == 0o600
    assert code == 0 and launcher.is_file() and not launcher.is_symlink(), errors


SECRETS = re.compile(r"token|key$|pem$|config$|accepted_keys|known_hosts")
JUPYTER = "#!/bin/bash\necho is running\nsleep 600\n"


@pytest.mark.parametrize("kind", ["jupyter", "ssh"])
def test_secrets_of_a_served_job_are_closed_by_mode(make_village, kind):
    """The directory of runs gets its default ACL late: when the jobs of a group wait."""
    village = make_village()
    victim, mallory = village.victim, village.mallory
    for name in ("jupyter", "sshd"):
        (village.folder / "slurm" / name).write_text(JUPYTER)
        (village.folder / "slurm" / name).chmod(0o755)
    number = victim.submit(f"local/{kind}.sbatch")
    victim.open_runs()
    set_default_acl(victim.runs)
    process, log = victim.start_job(number)
    last = {"jupyter": "is running", "ssh": "its editor or shell"}[kind]
    wait_until(lambda: log.exists() and (last in log.read_text() or process.poll() is not None))
    assert process.poll() is None, log.read_text()
    (run,) = victim.runs.glob(f"{number}-*/")
    # so is what is in it; a job for ssh works in the clone
    assert kind == "ssh" or (run / "code").stat().st_mode & 0o077 == 0
    made = [each for each in run.rglob("*") if run / "code" not in each.parents]
    found = [each for each in made if each.is_file() and SECRETS.search(each.name)]
    assert len(found) >= {"jupyter": 3, "ssh": 6}[kind], found
    read = 'for each; do if cat "$each" || echo x >>"$each"; then echo "$each"; fi; done'
    assert mallory.bash(read, *found, check=False).stdout == ""
    for each in found:
        is_key = each.name in ("token", "key", "host_key")  # ssh uses none that others can read
        assert each.stat().st_mode & 0o077 == 0 or not is_key, each
        assert each.parent.stat().st_mode & 0o077 == 0, each.parent


def test_jobs_are_submitted_below_a_default_acl(make_village):
    village = make_village("acl")
    run, log = village.victim.finish(village.victim.job("train", PRINT), "--", "once more")
    assert "mine: once more" in log
    assert not effective(run / "code") & 0o077  # nobody comes to what is in it
    made = [each for each in run.rglob("*") if run / "code" not in each.parents]
    for each in (run, *made):
        assert each.is_symlink() or not effective(each) & 0o022, each


def test_hint_of_an_open_directory_mends_it(make_village):
    """One that the victim has made with an ACL, or with the umask of the group."""
    for parent in ("setgid", "acl"):
        village = make_village(parent)
        set_parents_up(village)
        job = village.victim.job("train", PRINT)
        for _ in range(3):  # each of the directories above it can be open
            done = village.victim.type("submit.py", job, "--", "once more", check=False)
            if not done.returncode:
                break
            (command,) = re.findall(_HINT, told(done))
            village.victim.bash(command)
        code, log = village.victim.run_job(done.stdout.split()[0])
        assert code == 0 and "mine: once more" in log, log
        made = [village.scratch(village.victim), *village.scratch(village.victim).iterdir()]
        assert [each for each in made if effective(each) & 0o022] == []


def follow(victim, *words):
    """Type a command, and what its hints say, until it is not refused; return how it ended."""
    for _ in range(20):
        done = victim.type(*words, check=False)
        hint = re.findall(_HINT, done.stderr)
        if not done.returncode or not hint:
            break
        victim.bash(hint[0])
    return done


@pytest.fixture
def with_packages(make_village, wheels, uv):
    """Give a village whose victim has installed a package with uv."""

    def make(parent="setgid", umask="007"):
        village = make_village(parent, umask)
        victim = village.victim
        shutil.copy(uv, village.folder / "slurm/uv")
        (village.folder / "slurm/uv").chmod(0o755)
        shutil.copytree(wheels, village.folder / "wheels")
        processes_can_read(village.folder / "wheels")
        file = victim.root / "configuration.toml"
        text = file.read_text().replace('= ""\n', '= "requirements/tiny.txt"\ninstaller = "uv"\n')
        text = text.replace(
            'checkpoint_dir = "requirements/tiny.txt"\ninstaller = "uv"', 'checkpoint_dir = ""'
        )
        file.write_text(text)
        (victim.root / "requirements/tiny.txt").write_text("longship_tiny==1.0\n")
        victim.environment.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(village.folder / "wheels"))
        return village

    return make


def processes_can_read(folder):
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


def test_cache_of_the_installer_is_no_part_of_a_venv(with_packages):
    village = with_packages()
    victim = village.victim
    victim.type("set_up.py", "install")
    scratch = village.scratch(victim)
    show = ("python", "-c", "import longship_tiny; print(longship_tiny.VERSION)")
    assert victim.type("container_run.py", *show).stdout == "1.0\n"
    victim.run(["chmod", "g+rx", scratch.parent, scratch])
    # the compiled module must not hide the change
    attack = (
        'shopt -s globstar; for each in "$1"/cache/uv/**/longship_tiny.py; do '
        'printf \'\\nimport os; os.system("""%s""")\\n\' "$2" >>"$each"; done'
    )
    village.mallory.bash(attack, scratch, village.payload, check=False)
    assert follow(victim, "container_run.py", *show).stdout == "1.0\n"
    assert village.stolen() == []
    follow(victim, "set_up.py", "install", "--force")
    assert follow(victim, "container_run.py", *show).stdout == "1.0\n"
    assert village.stolen() == []
    files = [each for each in scratch.glob("venvs/*/lib/**/*") if each.is_file()]
    linked = [each for each in files if not each.is_symlink() and each.stat().st_nlink > 1]
    assert linked == []


def test_caches_of_code_are_closed(make_village):
    """What programs put there: kernels, extensions, settings with a login."""
    village = make_village()
    victim = village.victim
    write = (
        "for each in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH "
        "NUMBA_CACHE_DIR WANDB_CONFIG_DIR MPLCONFIGDIR XDG_CACHE_HOME; do "
        'mkdir -p "${!each}"; echo true >"${!each}/code"; echo "${!each}"; done'
    )
    folders = victim.type("container_run.py", "bash", "-c", write).stdout.splitlines()
    scratch = village.scratch(victim)
    victim.run(["chmod", "g+rx", scratch.parent, scratch])
    attack = 'for each; do printf "%s\\n" "$0" >"$each/code" && echo "$each"; done'
    done = village.mallory.run(["bash", "-c", attack, village.payload, *folders], check=False)
    run = 'for each; do bash "$each/code"; done'
    follow(victim, "container_run.py", "bash", "-c", run, "bash", *folders)
    assert village.stolen() == []
    assert done.stdout == ""


def test_job_compiles_in_no_directory_that_another_made_or_can_exchange(make_village):
    village = make_village()
    victim, parent = village.victim, village.parent
    node = {"SLURM_JOB_ID": f"{os.getpid()}", "SLURMD_NODENAME": "node1", "TMPDIR": str(parent)}
    name = f"longship-{victim.uid}-{os.getpid()}-node1"
    show = ("container_run.py", "sh", "-c", 'echo "$TRITON_CACHE_DIR"')
    assert victim.type(*show, env=node).stdout == f"/tmp/{name}/triton\n"
    victim.bash('rm -r "$1"', f"/tmp/{name}")
    village.mallory.bash('mkdir -m 777 "$1"', f"/tmp/{name}")
    done = victim.type(*show, env=node)
    village.mallory.bash('rm -r "$1"', f"/tmp/{name}")
    assert done.stdout == f"{village.scratch(victim)}/cache/triton\n"
    assert f"note: cannot create /tmp/{name}, " in done.stderr


def test_login_inside_is_kept_in_the_home_directory(make_village):
    """As huggingface_hub does it: the file that a variable names, or one in HF_HOME."""
    village = make_village()
    victim = village.victim
    login = (
        'umask 022; for each in "${HF_TOKEN_PATH:-$HF_HOME/token}" '
        '"${HF_STORED_TOKENS_PATH:-$HF_HOME/stored_tokens}"; do mkdir -p "$(dirname "$each")"; '
        'echo secret >"$each"; echo "$each"; done'
    )
    files = victim.type("container_run.py", "bash", "-c", login).stdout.splitlines()
    scratch = village.scratch(victim)
    victim.run(["chmod", "g+rx", scratch.parent, scratch])
    assert len(files) == 2
    for each in files:
        assert Path(each).is_relative_to(victim.home), each
    read = 'for each; do if [[ $each != "$0"/* ]]; then cat "$each"; fi; done'
    assert village.mallory.run(["bash", "-c", read, victim.home, *files], check=False).stdout == ""


def test_scratch_directory_of_a_group_is_refused(make_village):
    """As groups have shared theirs: whoever can write there decides what everybody runs."""
    village = make_village()
    victim = village.victim
    file = victim.root / "configuration.toml"
    text = file.read_text()
    scratch = village.scratch(victim)
    file.write_text(
        text.replace(str(scratch), str(village.parent)).replace(
            str(scratch.parent), str(victim.home)
        )
    )
    for words in (["submit.py", victim.job("train", PRINT)], ["container_run.py", "true"]):
        error = told(victim.type(*words, check=False))
        assert str(village.parent) in error and "paths.shared_dir" in error


@pytest.mark.parametrize(
    "words",
    [
        ["set_up.py", "install"],
        ["set_up.py", "update"],
        ["set_up.py", "download"],
        ["build_container.py"],
        ["move_built_container_to_active.py", "--rollback"],
        ["build_overlay.py"],
        ["container_run.py", "true"],
        ["container_run.py", "--launcher", "launcher"],
        ["submit.py", "rerun", "1"],
        ["doctor.py"],
    ],
    ids=" ".join,
)
def test_scratch_directory_of_another_is_used_by_no_command(make_village, words):
    """Mallory has made the directory first, as he can write to the one above it."""
    village = make_village()
    scratch = village.scratch(village.victim)
    village.mallory.bash(
        'umask 0; mkdir -p "$1/runs/1-x"; echo "{}" >"$1/runs/1-x/record.json"', scratch
    )
    configure_all(village)
    done = village.victim.type(*words, check=False)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert str(scratch) in done.stdout + done.stderr
    # a name is a run of the victim's own
    said = 'no run "1" in' if "rerun" in words else "belongs to mallory"
    assert said in done.stdout + done.stderr, (done.stdout, done.stderr)


def configure_all(village):
    """Configure an image and packages, so that there is something to build."""
    file = village.victim.root / "configuration.toml"
    image = '"apptainer"\nimage = "docker://longship.example/lab/base:1"'
    text = file.read_text().replace('"host"', image).replace('shared_owner = "victim"', "")
    text = re.sub("shared_dir = .*", "", text)
    requirements = 'requirements = "requirements/environment.txt"\noverlay = "ours"'
    file.write_text(text.replace('requirements = ""', requirements))
    (village.folder / "slurm/apptainer").write_text("#!/bin/bash\nexit 0\n")
    (village.folder / "slurm/apptainer").chmod(0o755)


def test_hints_of_a_changed_run_do_not_run_it(make_village):
    """A run of before is writable. What others have written stays when the mode is mended."""
    village = make_village()
    run = ended_run(village, loose=True)
    mallory = village.mallory
    mallory.bash(EVIL_VENV, village.payload)
    text = (run / "record.json").read_text()
    text = re.sub(r'"code": ".*"', '"code": "other"', text)
    text = text.replace("{", f'{{\n  "venv": "{mallory.home}/evil",', 1)
    mallory.bash('printf "%s" "$1" >"$2"', text, run / "record.json", check=False)
    done = follow(village.victim, "submit.py", "rerun", run.name)
    is_harmless(village, done)


def test_hostile_pins_stall_and_end_nothing(make_village):
    village = make_village()
    image = village.share_image()
    pins = village.shared / "containers/pins"
    attack = (
        'cd "$1"; mkfifo a; ln -s /dev/zero b; ln -s /dev/tty c; mkdir d; truncate -s 4G e; '
        'yes "$2" | head -c 300M >f; ln -s "$3" g; printf "\\n\\n/etc/passwd\\n" >h; '
        'printf "%s\\n%s\\n%s\\n" "$4" "1 longship" "$5/x/launcher" >i; chmod 644 *'
    )
    secret = village.victim.home / "secret"
    village.victim.bash("echo 'image' >secret; chmod 600 secret")
    launcher = village.mallory.home
    village.mallory.bash(attack, pins, village.payload, secret, image, launcher, check=False)
    for words in (["--prune"], ["--list"]):
        done = village.victim.type(
            "move_built_container_to_active.py", *words, check=False, timeout=60
        )
        assert image.exists() and "secret" not in done.stderr
    done = village.victim.type("container_run.py", "--launcher", village.victim.home / "launcher")
    assert village.stolen() == [] and done.returncode == 0


def test_repositories_of_an_opened_project_are_closed(make_village):
    """Others can enter project_dir, as on sites that make it."""
    village = make_village(umask="002")
    victim = village.victim
    project = village.scratch(victim).parent / "project"
    victim.bash('umask 022; mkdir -p "$1"; cd "$1/.."; chmod 755 . project', project)
    victim.bash("git init -q up && cd up && echo 1 >code.py && git add . && git commit -qm 1")
    file = victim.root / "configuration.toml"
    more = f'[[repositories]]\nurl = "{victim.home}/up"\ninstall = "none"\n'
    file.write_text(file.read_text() + more)
    victim.type("set_up.py", "install")
    (code,) = project.glob("repos/*/code.py")
    village.mallory.bash('echo "$1" >>"$2"; echo x >"$2.new"', village.payload, code, check=False)
    assert code.read_text() == "1\n" and not code.with_name("code.py.new").exists()


def test_locks_are_not_taken_from_their_owner(make_village):
    village = make_village(umask="002")
    victim = village.victim
    scratch = village.scratch(victim)
    victim.type("container_run.py", "true")
    victim.run(["chmod", "g+rx", scratch.parent, scratch])
    from lib.script.command import call
    from lib.script.render import render

    hold = "hold() { : >held; until [[ -e stop ]]; do command sleep 0.05; done; }"
    script = render("a test", ["umask 002", hold, call("lock_run", scratch / "lock", "hold")])
    held = victim.start(["bash", "-c", script])
    wait_until((victim.home / "held").exists)
    attack = 'for each in owner heart; do echo x >>"$1.lock/$each"; done; mv "$1.lock" "$1.gone"'
    before = (scratch / "lock.lock/owner").read_text()
    village.mallory.bash(attack, scratch / "lock", check=False)
    assert (scratch / "lock.lock/owner").read_text() == before
    (victim.home / "stop").touch()
    assert finish(held)[0] == 0


@pytest.mark.parametrize("umask", ["002", slow("077")])
def test_watcher_changes_nothing_that_is_built_for_the_group(with_packages, umask):
    village = with_packages("setgid", umask)
    victim = village.victim
    victim.bash('mkdir -m 750 "$1"; chgrp lab "$1"; chmod 750 "$1"', village.shared)
    file = victim.root / "configuration.toml"
    file.write_text(
        file.read_text().replace('installer = "uv"', 'installer = "uv"\noverlay = "ours"')
    )
    watch = Watch(village, village.shared, "longship_tiny.py")
    victim.type("build_overlay.py")
    show = ("python", "-c", "import longship_tiny; print(longship_tiny.VERSION)")
    assert victim.type("container_run.py", *show).stdout == "1.0\n"
    assert watch.caught == [] and village.stolen() == []
    assert [each for each in writable(village.shared) if "pins" not in each] == []
