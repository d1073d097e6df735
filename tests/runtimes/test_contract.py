"""The contract, run by a real POSIX sh: what the program finds."""

import os
import secrets
import subprocess
from pathlib import Path

import pytest
from support import processes
from support.repository import toml

from lib.configuration.snapshot import resolved
from lib.configuration.training import Training
from lib.runtimes import contract
from lib.runtimes.contract import Bind, environment_script, forget_lines, patched_files
from lib.runtimes.environment import Environment
from lib.runtimes.launch import run_lines
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

VENV = Path("/a venv/it's")


@pytest.fixture(params=["dash", "bash --posix"])
def shell(request):
    """Give each of the shells that images have as /bin/sh."""
    return request.param.split()


def inside(shell, text, names, env=None):
    """Give the values of variables as a program inside finds them; None for what is not set."""
    env = {"PATH": processes.PATH, **(env or {})}
    done = processes.run([*shell, "-c", text, "longship", "env", "-0"], env=env, cwd="/")
    assert done.stderr == ""
    found = dict(each.split("=", 1) for each in done.stdout.split("\0")[:-1])
    return {name: found.get(name) for name in names}


def text_for(repository, configuration="", *, environ=None, online=False, venv=None):
    repository.write("configuration.toml", configuration)
    settings, paths = repository.settings_and_paths(environ)
    training = Training.read(settings, paths)
    folders = [str(venv)] if venv else []
    return environment_script(settings, paths, training, online=online, directories=folders)


def binds_of(repository, environ=None):
    """Give the binds that a launch requires, and those of paths that need not exist."""
    env = Environment(*repository.settings_and_paths(environ), "host")
    return env.binds, env.site_binds


def test_packages_come_before_what_the_image_has_on_pythonpath(shell, repository, tmp_path):
    venv = tmp_path / "a venv"
    packages = venv / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    text = text_for(repository, venv=venv)
    found = inside(shell, text, ["PYTHONPATH"], {"PYTHONPATH": "/opt/NeMo:/opt/Megatron-LM"})
    assert found["PYTHONPATH"] == f"{packages}:/opt/NeMo:/opt/Megatron-LM"
    assert inside(shell, text, ["PYTHONPATH"]) == {"PYTHONPATH": None}


def test_program_knows_where_it_is(shell, repository):
    found = inside(
        shell,
        text_for(
            repository,
            '[paths]\nscratch_dir = "/s $x"\nproject_dir = "/p \'q\'"\n',
            environ={"x": "y"},
        ),
        [
            "LONGSHIP_ROOT",
            "LONGSHIP_MACHINE",
            "LONGSHIP_STACK",
            "LONGSHIP_SCRATCH_DIR",
            "LONGSHIP_PROJECT_DIR",
        ],
    )
    assert found == {
        "LONGSHIP_ROOT": str(repository.root),
        "LONGSHIP_MACHINE": "local",
        "LONGSHIP_STACK": "pytorch",
        "LONGSHIP_SCRATCH_DIR": "/s y",
        "LONGSHIP_PROJECT_DIR": "/p 'q'",
    }


def launch(repository, scratch, more="", *, env=None, online=False):
    """Give what a program finds that a launch without a container starts, and the messages."""
    text = f'packages.requirements = ""\npaths.scratch_dir = "{scratch}"\n'
    text += f'paths.project_dir = "{scratch}/project"\n{more}\n'
    repository.write("configuration.toml", text)
    here = Environment(*repository.settings_and_paths(), "host")
    command = ["bash", "-c", render("a test", run_lines(here, online=online)), "x", "env", "-0"]
    done = processes.run(command, env={"PATH": processes.PATH, "HOME": "/home", **(env or {})})
    return dict(each.split("=", 1) for each in done.stdout.split("\0")[:-1]), done.stderr


OWN = [name for name, _ in (*contract.CACHES, *contract.COMPILED)]


@pytest.mark.parametrize("name", OWN)
def test_cache_of_the_caller_is_kept_and_the_others_are_in_scratch_dir(name, repository, tmp_path):
    scratch = tmp_path / "my scratch"
    found, said = launch(repository, scratch, env={name: "/of the caller/$x"})
    caches = dict((*contract.CACHES, *contract.COMPILED))
    places = {each: f"{scratch}/cache/{folder}" for each, folder in caches.items()}
    assert {each: found[each] for each in OWN} == {**places, name: "/of the caller/$x"}
    assert said == "" and "LONGSHIP_CALLERS" not in found
    # those of an image are replaced, and so is what the configuration unsets
    unset = f'[environment]\nunset = ["{name}"]\n'
    assert launch(repository, scratch, unset, env={name: "/x"})[0][name] == places[name]
    text = text_for(repository, f'paths.scratch_dir = "{scratch}"\n')
    assert inside(["sh"], text, OWN, env={name: "/of the image"}) == places


def test_what_a_job_compiles_stays_on_its_node(repository, tmp_path):
    scratch = tmp_path / "scratch"
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    linked = tmp_path / "linked"
    linked.symlink_to(open_to_all)
    number = str(os.getpid() + (1 << 40))
    job = {"SLURM_JOB_ID": number, "SLURMD_NODENAME": "n1"}
    name = f"longship-{os.getuid()}-{number}-n1"
    exchangeable = (open_to_all, linked, "/none")
    cases = [(tmp_path, tmp_path / name), *((each, Path("/tmp", name)) for each in exchangeable)]
    for folder, expected in [*cases, ("", Path("/tmp", name))]:
        found, said = launch(repository, scratch, env={**job, "TMPDIR": str(folder)})
        assert found["LONGSHIP_NODE_CACHE"] == str(expected)
        assert ("other users can exchange your files in it" in said) == (folder in exchangeable)
        assert expected.stat().st_mode & 0o7777 == 0o700
        for variable, directory in contract.COMPILED:
            assert found[variable] == f"{expected}/{directory}"
        assert found["HF_HOME"] == f"{scratch}/cache/huggingface"
        # a job that is submitted inside takes none of them for its caller's
        later = {**job, "SLURM_JOB_ID": f"{number}9", "TMPDIR": str(tmp_path)}
        names = [*dict(contract.COMPILED), "HF_HOME", "LONGSHIP_SCRATCH_DIR", "LONGSHIP_NODE_CACHE"]
        again, _ = launch(
            repository, scratch, env={**{each: found[each] for each in names}, **later}
        )
        assert (
            again["TRITON_CACHE_DIR"] == f"{tmp_path}/{name.replace(number, number + '9')}/triton"
        )
        remove = render("a test", ["node_caches_remove"])
        env = {**job, "PATH": processes.PATH, "TMPDIR": str(folder), "SLURM_JOB_NUM_NODES": "1"}
        processes.run(["bash", "-c", remove], env=env)
        assert not expected.exists()
    # not through what another one has made there
    (tmp_path / name).symlink_to(open_to_all)
    found, said = launch(repository, scratch, env={**job, "TMPDIR": str(tmp_path)})
    assert found["TRITON_CACHE_DIR"] == f"{scratch}/cache/triton"
    assert said.startswith(f"note: cannot create {tmp_path / name}, so compilers use")


@pytest.mark.parametrize(
    ("given", "configuration", "online", "told"),
    [
        ({"HF_HUB_OFFLINE": "0"}, "", False, "HF_HUB_OFFLINE (--online, environment.set)"),
        ({"HF_HUB_OFFLINE": "1"}, "", False, ""),
        ({"HF_HUB_OFFLINE": "1"}, "", True, "HF_HUB_OFFLINE (--online, environment.set)"),
        ({"HF_HUB_OFFLINE": "0"}, 'HF_HUB_OFFLINE = "0"', False, ""),
        ({"HF_HUB_CACHE": "/x"}, "", False, "HF_HUB_CACHE (HF_HOME)"),
        ({"UV_LINK_MODE": "symlink"}, "", False, "UV_LINK_MODE (environment.set)"),
        ({"HF_HOME": "/x", "A": "$1"}, 'A = "$1"', False, ""),
        (
            {"HF_HOME": "/x", "A": "2\n", "command": "x"},
            'A = "1"\ncommand = "y"\nHF_HOME = "/hf"',
            False,
            "HF_HOME (environment.set), A (environment.set), command (environment.set)",
        ),
    ],
)
def test_replaced_variable_is_told_once_with_its_setting(
    given, configuration, online, told, repository, tmp_path
):
    configuration = f"[environment.set]\n{configuration}"
    _, said = launch(repository, tmp_path, configuration, env=given, online=online)
    note = "note: replaced inside the environment, by these settings: "
    assert said == (f"{note}{told}\n" if told else "")
    env = {**given, "SLURM_PROCID": "10"}
    assert launch(repository, tmp_path, configuration, env=env, online=online)[1] == ""


def test_login_is_in_the_home_folder_whatever_cache_is_used(shell, repository):
    text = text_for(repository, '[environment]\nset = { HF_HOME = "/group/hf" }\n')
    found = inside(shell, text, ["HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"], {"HOME": "/my home"})
    assert list(found.values()) == [
        "/my home/.cache/huggingface/token",
        "/my home/.cache/huggingface/stored_tokens",
    ]


@pytest.mark.parametrize(
    ("more", "hub"),
    [
        ("", None),
        ('shared_dir = "/the group"\n', "/the group/cache/huggingface/hub"),
        ('shared_dir = "/the group"\n[environment]\nset = { HF_HOME = "/own" }\n', None),
    ],
)
def test_models_are_those_of_the_group(more, hub, shell, repository):
    text = text_for(repository, f'[paths]\nscratch_dir = "/s"\n{more}')
    assert inside(shell, text, ["HF_HUB_CACHE"]) == {"HF_HUB_CACHE": hub}
    names = ("HF_HOME", "UV_CACHE_DIR", "UV_LINK_MODE")
    home, cache, mode = inside(shell, text, names).values()
    assert home in ("/s/cache/huggingface", "/own")
    assert (cache, mode) == ("/s/cache/uv", "copy")


def test_hugging_face_is_offline_unless_online(shell, repository):
    names = list(contract.OFFLINE)
    assert set(inside(shell, text_for(repository), names).values()) == {"1"}
    text = text_for(repository, online=True)
    found = inside(shell, text, names, env=dict.fromkeys(names, "1"))
    assert set(found.values()) == {None}


def test_values_arrive_as_they_are(shell, repository, hostile_arguments):
    values = [each for each in hostile_arguments if each.isascii() and each.isprintable()]
    values += ["a\nb", "ends in a newline\n", "\t", "Grüße, 世界 🚢"]
    table = "".join(f"V{number} = {toml(value)}\n" for number, value in enumerate(values))
    text = text_for(repository, f"[environment.set]\n{table}")
    found = inside(shell, text, [f"V{number}" for number in range(len(values))])
    assert list(found.values()) == values


def test_configured_value_wins_over_hosts_and_built_in_ones(shell, repository):
    text = text_for(repository, '[environment]\nset = { A = "1", HF_HOME = "/hf" }\n')
    found = inside(shell, text, ["A", "HF_HOME"], env={"A": "host"})
    assert found == {"A": "1", "HF_HOME": "/hf"}


def test_host_variable_that_is_not_named_arrives(shell, repository):
    value = 'a,b "c" $d \\e\n`f`\n'
    assert inside(shell, text_for(repository), ["MINE"], env={"MINE": value}) == {"MINE": value}


def test_venv_comes_first_on_path(shell, repository):
    text = text_for(repository, venv=VENV)
    found = inside(shell, text, ["PATH", "VIRTUAL_ENV", "PYTHONNOUSERSITE"])
    assert found["PATH"] == f"{VENV}/bin:{processes.PATH}"
    assert found["VIRTUAL_ENV"] == str(VENV)
    assert found["PYTHONNOUSERSITE"] == "1"


def test_without_a_venv_path_stays(shell, repository):
    assert inside(shell, text_for(repository), ["PATH"]) == {"PATH": processes.PATH}


@pytest.mark.parametrize("ending", ["\n", "", "\nsecond line\n"])
def test_token_is_read_from_its_file(shell, ending, repository, tmp_path):
    file = tmp_path / "it's a token"
    file.write_text(f"hf_secret{ending}")
    text = text_for(repository, f'[environment]\ntoken_files = {{ HF_TOKEN = "{file}" }}\n')
    assert "hf_secret" not in text
    assert inside(shell, text, ["HF_TOKEN"]) == {"HF_TOKEN": "hf_secret"}


def test_token_of_the_environment_wins_over_the_file(shell, repository, tmp_path):
    (tmp_path / "token").write_text("of the file")
    text = text_for(repository, f'[environment]\ntoken_files = {{ T = "{tmp_path}/token" }}\n')
    assert inside(shell, text, ["T"], env={"T": "of the caller"}) == {"T": "of the caller"}
    assert inside(shell, text, ["T"], env={"T": ""}) == {"T": "of the file"}


def test_missing_token_file_is_no_error(shell, repository):
    text = text_for(repository, '[environment]\ntoken_files = { T = "/none" }\n')
    assert inside(shell, text, ["T"]) == {"T": None}


def test_token_of_hugging_face_is_looked_for_in_the_home_folder(shell, repository, tmp_path):
    token = tmp_path / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_secret\n")
    text = text_for(repository, environ={"HOME": str(tmp_path)})
    assert inside(shell, text, ["HF_TOKEN"]) == {"HF_TOKEN": "hf_secret"}


def test_secret_in_the_configuration_is_refused(repository):
    with pytest.raises(LongshipError, match="environment.set in configuration.toml sets HF_TOKEN"):
        text_for(repository, '[environment]\nset = { HF_TOKEN = "hf_secret" }\n')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("https_proxy", "http://me:{}@proxy:3128"),
        ("no_scheme_proxy", "me:a/{}@proxy:3128"),
        ("PIP_INDEX_URL", "https://me:{}@example.org/simple"),
        ("MY_API_KEY", "{}"),
    ],
)
def test_what_looks_like_a_secret_is_refused_and_not_told(name, value, repository):
    canary = f"k{secrets.token_hex(8)}"  # digits alone would be a number
    value = value.format(canary)
    text = f'[environment]\nset = {{ {name} = "{value}" }}\n'
    with pytest.raises(LongshipError, match=f"sets {name}, which looks like") as error:
        text_for(repository, text)
    assert canary not in str(error.value) + error.value.hint
    with pytest.raises(LongshipError, match=f"sets {name}"):  # nor is it kept for a job
        resolved(repository.settings())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("https_proxy", "http://proxy:3128/"),
        ("MAX_TOKENS", "4096000000"),
        ("SSH_AUTH_SOCK", "/run/user/1/agent"),
        ("TOKENIZERS_PARALLELISM", "something"),
        ("USE_AUTH", "yes"),
        ("URL", "https://example.org:8080/a@b"),
    ],
)
def test_what_only_sounds_like_a_secret_is_taken(name, value, repository):
    assert value in text_for(repository, f'[environment]\nset = {{ {name} = "{value}" }}\n')


@pytest.mark.parametrize("table", ["set", "token_files"])
def test_name_that_is_no_variable_is_refused(table, repository):
    with pytest.raises(LongshipError, match="is not a valid name of an environment variable"):
        text_for(repository, f'[environment]\n{table} = {{ "A;touch x" = "/x" }}\n')


def test_file_that_cannot_be_executed_is_told(shell, repository, tmp_path):
    file = tmp_path / "train.py"
    file.write_text("print(1)\n")
    command = [*shell, "-c", text_for(repository), "longship", file]
    done = processes.run(command, env={"PATH": processes.PATH}, check=False)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, error) == (126, f"error: cannot run {file}: not executable")
    assert hint == f"hint: run: chmod +x {file}; or: python {file}"


def test_missing_command_ends_with_127_and_a_hint(shell, repository):
    command = [*shell, "-c", text_for(repository), "longship", "no such command"]
    env = {"PATH": processes.PATH}
    done = processes.run(command, env=env, cwd="/", check=False)
    assert done.returncode == 127
    error, hint = done.stderr.splitlines()
    assert error == 'error: command not found inside the environment: "no such command"'
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("name", ["a program", "--", "\\n", "umask", "", "a\nb", "*"])
def test_command_of_any_name_is_looked_for_as_it_is(shell, name, repository, tmp_path):
    path = tmp_path / name if name not in ("", "--") else tmp_path / "other"
    path.write_text('#!/bin/sh\necho "ran $1"\n')
    path.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{processes.PATH}"}
    command = [*shell, "-c", text_for(repository), "longship", name, "x"]
    done = processes.run(command, env=env, cwd="/", check=False)
    if name in ("", "--"):
        assert done.returncode == 127 and f'environment: "{name}"\n' in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "ran x\n"), done.stderr


def test_program_replaces_the_shell(shell, repository):
    command = [*shell, "-c", text_for(repository), "longship", "sh", "-c", "echo $$"]
    process = processes.start(command, env={"PATH": processes.PATH}, cwd="/")
    output, _ = process.communicate(timeout=processes.PATIENCE)
    assert output == f"{process.pid}\n"


def variables_left(line, env):
    """Give the names that a program finds which a script with a line starts."""
    script = render("a test", [line, "env -0"])
    done = subprocess.run(["bash", "-c", script], env=env, stdout=subprocess.PIPE, check=True)
    names = {each.split(b"=")[0].decode() for each in done.stdout.split(b"\0")[:-1]}
    return names & set(env)


def test_what_leaks_from_the_host_is_taken_out(repository):
    repository.write("configuration.toml", '[environment]\nunset = ["MINE", "OURS_*", "CC"]\n')
    (line,) = forget_lines(repository.settings().configuration.environment)
    leaking = ["CC", "CFLAGS", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "UV_PYTHON"]
    leaking += ["LD_PRELOAD", "BASH_ENV", "ENV", "CMAKE_PREFIX_PATH"]
    leaking += ["CONDA_PREFIX", "CONDA_SHLVL", "_CE_CONDA", "MINE", "OURS_1", "OURS_"]
    kept = {"PATH", "MINE_TOO", "OUR", "CONDA", "CCC", "HF_TOKEN"}
    env = {**dict.fromkeys([*leaking, *kept], "x"), "PATH": os.environ["PATH"], "BASH_ENV": ""}
    env = {**env, "LD_PRELOAD": "", "ENV": ""}
    assert variables_left(line, env) == kept
    assert variables_left(line, {"PATH": os.environ["PATH"]}) == {"PATH"}


def test_what_is_taken_out_is_not_handed_over_either(repository, run):
    text = '[environment]\nunset = ["command", "opt*"]\n'
    repository.write("configuration.toml", text)
    lines = forget_lines(repository.settings().configuration.environment)
    lines += ["command=x options=y image=z", call("command_exec", "env")]
    canaries = dict.fromkeys(["command", "options", "image"], "the user's")
    done = run(["bash", "-c", render("x", lines)], env={**canaries, "PATH": os.environ["PATH"]})
    seen = [line for line in done.stdout.splitlines() if line.partition("=")[0] in canaries]
    assert seen == ["image=the user's"]


def test_names_that_no_posix_shell_has_are_known():
    names = ["A", "_", "a.b", "x-y", "9", "BASH_FUNC_module%%", "\udcff"]
    assert contract.lost_names(dict.fromkeys(names, "x")) == ["a.b", "x-y", "9", "\udcff"]


@pytest.mark.parametrize("name", ["A;touch x", "*", "", "A B", "A**", "$(x)*"])
def test_bad_name_to_take_out_is_refused(name, repository):
    repository.write("configuration.toml", f'[environment]\nunset = ["{name}"]\n')
    with pytest.raises(LongshipError, match="is not a valid name of an environment variable"):
        forget_lines(repository.settings().configuration.environment)


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("/data", Bind("/data", "/data")),
        ("/data:/inside", Bind("/data", "/inside")),
        ("/data:/inside:ro", Bind("/data", "/inside", True)),
        ("/data:/inside:rw", Bind("/data", "/inside")),
        ("/data::ro", Bind("/data", "/data", True)),
        ("~/data", Bind("/home/me/data", "/home/me/data")),
        ("$DATA/x:/x", Bind("/my data/x", "/x")),
        ("/p/{account}", Bind("/p/acc", "/p/acc")),
        ('/it\'s, "a" folder', Bind('/it\'s, "a" folder', '/it\'s, "a" folder')),
    ],
)
def test_configured_bind_is_understood(text, bind, repository):
    configuration = f'project.account = "acc"\n[container]\nbinds = {toml([text])}\n'
    repository.write("configuration.toml", configuration)
    binds, site = binds_of(repository, {"DATA": "/my data"})
    assert binds[-1] == bind
    assert not any(each.source == "/my data" for each in site)


@pytest.mark.parametrize(
    "text", ["/data:ro", "/data:/x:r", "/data:inside", "/a:/b:ro:x", "data", "/a /b"]
)
def test_entry_that_is_no_bind_is_told(text, repository):
    repository.write("configuration.toml", f'[container]\nbinds = ["{text}"]\n')
    with pytest.raises(LongshipError, match=r"container.binds in configuration.toml"):
        binds_of(repository)


def test_repository_and_roots_are_bound_once_and_the_sites_where_they_exist(repository):
    repository.write("configuration.toml", '[paths]\nproject_dir = "/x"\nscratch_dir = "/x"\n')
    repository.write("local/site.toml", '[machines.local]\nbinds = ["/appl"]\n')
    binds, site = binds_of(repository)
    assert [each.source for each in binds] == [str(repository.root)]
    assert site == (Bind("/appl", "/appl"), Bind("/x", "/x"))  # doctor.py makes no directory


def test_users_bind_of_a_target_wins_over_that_of_the_site(repository):
    text = (
        '[paths]\nproject_dir = "/x"\nscratch_dir = "/x"\n[container]\nbinds = ["/appl:/appl:ro"]\n'
    )
    repository.write("configuration.toml", text)
    repository.write("local/site.toml", '[machines.local]\nbinds = ["/appl", "/opt/site"]\n')
    binds, site = binds_of(repository)
    assert binds[1:] == (Bind("/appl", "/appl", True),)
    assert site == (Bind("/opt/site", "/opt/site"), Bind("/x", "/x"))


def patched(repository, line):
    repository.write("configuration.toml", f"[container.patched_files]\n{line}\n")
    return patched_files(*repository.settings_and_paths())


def test_patched_file_is_in_the_repository_unless_its_path_is_absolute(repository):
    text = '"/usr/lib/a.py" = "patches/files/a.py"\n"/usr/lib/b c.py" = "~/b.py"'
    first, second = patched(repository, text)
    assert first == (f"{repository.root}/patches/files/a.py", "/usr/lib/a.py", True)
    assert second == ("/home/me/b.py", "/usr/lib/b c.py", True)


@pytest.mark.parametrize(
    "line", ['"a.py" = "a.py"', '"/usr/lib/" = "a.py"', '"/a.py" = ""', '"/a\\nb" = "a.py"']
)
def test_what_cannot_be_a_patched_file_is_refused(line, repository):
    with pytest.raises(LongshipError, match="container.patched_files in configuration.toml") as e:
        patched(repository, line)
    assert "patches/files/file.py" in e.value.hint
