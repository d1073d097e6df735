"""The launch of last time is run again only as long as it is still right."""

import marshal
import os
import sys

import pytest
from support.repository import Clone, toml

# Without the site-packages: click cannot be imported, so only a remembered launch can work.
WITHOUT_PACKAGES = [sys.executable, "-S"]


@pytest.fixture
def clone(root, tmp_path, clean_environment):
    """Give a clone whose launches need no container and no packages."""
    clone = Clone(root, tmp_path / "it's a clone", clean_environment, compiled=True)
    configure(clone)
    return clone


def configure(clone, greeting="hello", more=""):
    clone.configure(
        'machine = "local"\n'
        f"[paths]\nproject_dir = {toml(clone.root.parent / 'project')}\n"
        f"scratch_dir = {toml(clone.root.parent / 'scratch')}\n"
        '[container]\nruntime = "host"\n[packages]\nrequirements = ""\n'
        f"[environment]\nset = {{ GREETING = {toml(greeting)} }}\n{more}"
    )


SAY = ["sh", "-c", 'printf "%s\\n" "$GREETING" "$LONGSHIP_MACHINE" "$LONGSHIP_STACK" "$@"', "say"]


def say(clone, *arguments, env=None):
    return clone.container_run(*SAY, *arguments, env=env).stdout.splitlines()


def is_remembered(clone, run, env=None, cwd=None):
    """Tell whether the next launch is the remembered one."""
    environment = {**clone.environment, **(env or {})}
    command = [*WITHOUT_PACKAGES, clone.root / "container_run.py", "true"]
    done = run(command, env=environment, cwd=cwd or clone.root, check=False)
    assert done.returncode == 0 or "has no package click" in done.stderr
    return done.returncode == 0


@pytest.fixture
def warm(clone, run):
    """Give a clone with a remembered launch."""
    say(clone)
    say(clone)  # the folder of the record itself is new after the first call
    assert is_remembered(clone, run)
    return clone


def test_nothing_is_remembered_at_first(clone, run):
    assert not is_remembered(clone, run)


def test_remembered_launch_does_the_same(warm, hostile_arguments):
    arguments = [each for each in hostile_arguments if "\n" not in each and "\r" not in each]
    arguments = [each for each in arguments if each.isprintable()]
    assert say(warm, *arguments) == ["hello", "local", "pytorch", *arguments]


def test_remembered_launch_holds_from_any_folder(warm, run, tmp_path):
    assert is_remembered(warm, run, cwd=tmp_path)


@pytest.mark.needs("strace")
def test_remembered_launch_reads_no_configuration(warm, run, tmp_path):
    log = tmp_path / "opened"
    strace = ["strace", "-f", "-e", "trace=open,openat", "-o", log]
    run([*strace, *warm.command("container_run.py", "true")], env=warm.environment)
    opened = log.read_text()
    assert "launch-" in opened
    for name in ("configuration.toml", "site.toml", "stack.toml", "/click/"):
        assert name not in opened


def change_configuration(clone):
    configure(clone, "changed")
    return {}, ["changed", "local", "pytorch"]


def add_local_configuration(clone):
    (clone.root / "configuration.local.toml").write_text('[environment.set]\nGREETING = "mine"\n')
    return {}, ["mine", "local", "pytorch"]


def change_site(clone):
    site = clone.root / "local/site.toml"
    site.write_text(site.read_text() + 'configuration.environment.set = { GREETING = "site" }\n')
    configure(clone)  # the same as before, but for the line that would win over the site's
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace("GREETING", "OTHER"))
    return {}, ["site", "local", "pytorch"]


def change_stack(clone):
    stack = clone.root / "stacks/pytorch/stack.toml"
    stack.write_text('[configuration.environment]\nset = { GREETING = "stack", OTHER = "x" }\n')
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace("GREETING", "OTHER"))
    return {}, ["stack", "local", "pytorch"]


def name_another_stack(clone):
    (clone.root / "stacks/mine").mkdir()
    (clone.root / "stacks/mine/stack.toml").write_text("")
    return {"LONGSHIP_STACK": "mine"}, ["hello", "local", "mine"]


def name_another_machine(clone):
    return {"LONGSHIP_MACHINE": "berzelius", "USER": "me"}, None


def name_another_configuration(clone):
    other = clone.root.parent / "other.toml"
    other.write_text((clone.root / "configuration.toml").read_text().replace("hello", "other"))
    return {"LONGSHIP_CONFIGURATION": str(other)}, ["other", "local", "pytorch"]


def change_code(clone):
    code = clone.root / "lib/environment.py"
    code.write_text(code.read_text().replace('"LONGSHIP_STACK", ', '"LONGSHIP_STACK", "my-" + '))
    return {}, ["hello", "local", "my-pytorch"]


@pytest.mark.parametrize(
    "change",
    [
        change_configuration,
        add_local_configuration,
        change_site,
        change_stack,
        name_another_stack,
        name_another_configuration,
        change_code,
    ],
    ids=lambda change: change.__name__,
)
def test_launch_is_computed_anew_after(change, warm):
    environ, expected = change(warm)
    assert say(warm, env=environ) == expected
    assert say(warm, env=environ) == expected


def recognise_by_itself(clone):
    text = (clone.root / "configuration.toml").read_text()
    clone.configure(text.replace('machine = "local"', 'machine = "auto"'))
    assert say(clone)[1] == "local"
    assert say(clone)[1] == "local"


NEW_SITE = '[machines.here]\nrecognise.path = "/"\nruntime = "host"\n'


def test_new_site_is_noticed(clone):
    recognise_by_itself(clone)
    (clone.root / "new").mkdir()
    (clone.root / "new/site.toml").write_text(NEW_SITE)
    assert say(clone)[1] == "here"


def test_new_site_in_a_folder_that_is_there_already_is_noticed(clone):
    (clone.root / "new").mkdir()
    recognise_by_itself(clone)
    (clone.root / "new/site.toml").write_text(NEW_SITE)
    assert say(clone)[1] == "here"


def test_marks_of_a_site_in_the_environment_are_noticed(clone):
    (clone.root / "new").mkdir()
    text = '[machines.here]\nrecognise.environment = { SYSTEMNAME = "here" }\nruntime = "host"\n'
    (clone.root / "new/site.toml").write_text(text)
    recognise_by_itself(clone)
    assert say(clone, env={"SYSTEMNAME": "here"})[1] == "here"
    assert say(clone)[1] == "local"


def test_folder_that_marks_a_site_is_noticed(clone, tmp_path):
    (clone.root / "new").mkdir()
    mark = tmp_path / "only here"
    (clone.root / "new/site.toml").write_text(NEW_SITE.replace('"/"', toml(mark)))
    recognise_by_itself(clone)
    mark.mkdir()
    assert say(clone)[1] == "here"
    mark.rmdir()
    assert say(clone)[1] == "local"


@pytest.mark.parametrize("option", ["--stack", "--configuration"])
def test_what_an_option_says_holds_for_one_call(option, warm, tmp_path):
    (warm.root / "stacks/mine").mkdir()
    (warm.root / "stacks/mine/stack.toml").write_text("")
    other = tmp_path / "other.toml"
    other.write_text((warm.root / "configuration.toml").read_text().replace("hello", "other") + "")
    value = "mine" if option == "--stack" else other
    expected = ["hello", "local", "mine"] if option == "--stack" else ["other", "local", "pytorch"]
    assert warm.container_run(option, value, *SAY).stdout.splitlines() == expected
    assert say(warm) == ["hello", "local", "pytorch"]


def test_online_holds_for_one_call(warm):
    show = ["sh", "-c", "echo ${HF_HUB_OFFLINE-online}"]
    assert warm.container_run("--online", *show).stdout == "online\n"
    assert warm.container_run(*show).stdout == "1\n"


def test_dry_run_keeps_nothing(clone):
    clone.container_run("--dry-run", "true")
    assert not (clone.root / ".cache").exists()


def record_of(clone):
    return clone.root / f".cache/launch-{os.getuid()}"


@pytest.mark.parametrize("content", [b"", b"garbage", marshal.dumps((1, 2)), marshal.dumps(None)])
def test_damaged_record_is_computed_anew(content, warm, run):
    record_of(warm).write_bytes(content)
    assert say(warm) == ["hello", "local", "pytorch"]
    assert is_remembered(warm, run)


def test_record_of_another_host_does_not_count(warm, run):
    host, *rest = marshal.loads(record_of(warm).read_bytes())
    record_of(warm).write_bytes(marshal.dumps((f"not-{host}", *rest), 2))
    assert not is_remembered(warm, run)


def test_record_holds_no_secret(clone):
    environ = {"HF_TOKEN": "hf_secret", "WANDB_API_KEY": "hf_secret", "MINE": "hf_secret"}
    say(clone, env=environ)
    assert b"hf_secret" not in record_of(clone).read_bytes()


def test_clone_that_cannot_be_written_to_works(clone):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    clone.root.chmod(0o555)
    try:
        assert say(clone) == ["hello", "local", "pytorch"]
        assert say(clone) == ["hello", "local", "pytorch"]
    finally:
        clone.root.chmod(0o755)


def test_bash_that_is_gone_is_told_each_time(clone):
    for _ in range(3):
        done = clone.container_run("true", env={"PATH": "/no such folder"}, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("error: cannot start bash"), done.stderr
        assert "Traceback" not in done.stderr
