"""The settings of a stack: from [training] to what its scripts find, and what is refused before."""

import subprocess

import pytest
from support.repository import toml
from support.requests import lines_for

from lib.configuration.training import Training, hub_cache
from lib.jobs.job_files import read_job_file
from lib.runtimes.contract import environment_script
from lib.runtimes.environment import Environment
from lib.runtimes.image import image_source
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

STACK = """
[images]
cpu = "docker://example.org/lab/base:1"
[training]
model = { default = "tiny", about = "size of the model" }
steps = { kind = "integer", default = 10 }
rate = { kind = "number", default = "3e-4" }
tokenizer = { kind = "path", default = "lab/tokenizer" }
data = { kind = "paths", default = ["{scratch_dir}/data/text"] }
tensor_parallel = { kind = "parallel", default = 1 }
pipeline_parallel = { kind = "parallel", default = 1 }
gpus_per_replica = { kind = "parallel" }
"""
JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --time=1:00:00
start_job local
srun "$LAUNCHER" bash "$STACK_DIR/run_training.sh"
"""


@pytest.fixture
def stack(repository, tmp_path):
    """Give a repository whose stack has settings of all kinds; `configure` writes a group's."""
    repository.write("stacks/mine/stack.toml", STACK)
    for script in ("run_training.sh", "preprocess_data.sh"):
        repository.write(f"stacks/mine/{script}", "")
    repository.write("local/train.sbatch", JOB)
    repository.write("local/preprocess.sbatch", JOB.replace("run_training", "preprocess_data"))
    repository.scratch = tmp_path / "it's scratch"

    def configure(text):
        first = 'stack = "mine"\npackages.requirements = ""\ncontainer.runtime = "host"\n'
        scratch = f"paths.scratch_dir = {toml(repository.scratch)}\n"
        repository.write("configuration.toml", first + scratch + text)
        return repository

    repository.configure = configure
    return configure("")


def submit(repository, *words, job="local/train.sbatch", runtime="host", **given):
    """Give the lines of submit.py."""
    settings, paths = repository.settings_and_paths()
    env = Environment(settings, paths, runtime, "job")
    return lines_for(env, read_job_file(repository.root, job), *words, **given)


def test_defaults_are_those_of_the_stack(stack):
    assert Training.read(*stack.settings_and_paths()).values == {
        "model": "tiny",
        "steps": 10,
        "rate": "3e-4",
        "tokenizer": "lab/tokenizer",
        "data": (f"{stack.scratch}/data/text",),
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "gpus_per_replica": 0,
    }


def test_group_changes_them_for_all_for_a_stack_and_for_a_machine(stack):
    repository = stack.configure(
        '[training]\nsteps = 1\nmodel = "a"\ntokenizer = "~/{user}/tokenizer"\n'
        "[stacks.mine.training]\nsteps = 2\n[machines.local.training]\nsteps = 3\n"
        "[stacks.pytorch.training]\nnot_ours = 4\n"
    )
    found = Training.read(*repository.settings_and_paths()).values
    assert (found["steps"], found["model"]) == (3, "a")
    assert found["tokenizer"] == "/home/me/me/tokenizer"


def test_table_of_a_stack_holds_any_key(stack):
    repository = stack.configure('[stacks.mine]\npackages.overlay = "mine"\n')
    assert repository.settings().configuration.packages.overlay == "mine"
    assert repository.settings(stack="pytorch").configuration.packages.overlay == ""


def test_scripts_find_any_text_as_it_is(stack, hostile_arguments, clean_environment):
    texts = [each for each in hostile_arguments if each.isprintable()]
    for text in texts:
        repository = stack.configure(f"[training]\nmodel = {toml(text)}\ndata = [{toml(text)}]\n")
        try:
            settings, paths = repository.settings_and_paths()
            training = Training.read(settings, paths)
        except LongshipError:  # one that begins like a path and is none
            assert text.startswith(("~", "$", "{"))
            continue
        command = [
            "/bin/sh",
            "-c",
            environment_script(settings, paths, training, online=False),
            "x",
            "env",
            "-0",
        ]
        done = subprocess.run(command, env=clean_environment, stdout=subprocess.PIPE, check=True)
        found = dict(each.split("=", 1) for each in done.stdout.decode().split("\0")[:-1])
        wanted = training.variables()
        assert wanted["TRAINING_MODEL"] == text
        assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [("", "3e-4"), ("rate = 0.1\n", "0.1"), ("rate = 1\n", "1"), ('rate = "2e-5"\n', "2e-5")],
)
def test_number_can_be_written_as_one(text, value, stack):
    repository = stack.configure(f"[training]\n{text}")
    training = Training.read(*repository.settings_and_paths())
    assert training.variables()["TRAINING_RATE"] == value


def test_entries_of_a_list_stand_on_a_line_each(stack):
    repository = stack.configure('[training]\ndata = ["/a b", "/c*"]\n')
    training = Training.read(*repository.settings_and_paths())
    assert training.variables()["TRAINING_DATA"] == "/a b\n/c*"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[training]\nstep = 1\n", 'stack mine has no setting "training.step"', '"steps"'),
        ('[training]\nsteps = "1"\n', "training.steps: expected an integer", "write steps = N"),
        ("[training]\nmodel = 1\n", "training.model: expected", "size of the model"),
        (
            '[training]\ndata = "/a"\n',
            "training.data: expected a list of strings",
            "write data = [",
        ),
        ("[training]\ntokenizer = 1.5\n", "training.tokenizer: expected a string, got 1.5", "="),
        ("[training]\nrate = true\n", "training.rate: expected a string, a number", "="),
        ('[training]\nrate = "fast"\n', "training.rate: expected a number, got 'fast'", "= N"),
        ('[training]\ntokenizer = "{scrach_dir}/t"\n', "{scrach_dir} is unknown", "{scratch_dir}"),
        ("[stacks.min.training]\nsteps = 1\n", 'unknown stack: "min"', '"mine"'),
        ("[stacks.mine]\nstep = 1\n", 'unknown key "step"', "valid values"),
        ('[stacks.mine]\nstack = "a"\n', "[stacks.mine] cannot set the stack", "top"),
        ('[stacks.mine]\nmachine = "a"\n', "cannot set the machine", "top level of the file"),
        ('[machines.local]\nmachine = "a"\n', "cannot set the machine", "top level of the file"),
    ],
)
def test_mistake_in_the_settings_is_told(text, message, hint, stack):
    with pytest.raises(LongshipError) as error:
        Training.read(*stack.configure(text).settings_and_paths())
    assert message in str(error.value)
    assert hint in error.value.hint


def test_setting_for_another_stack_is_told_where_to_stand(stack):
    repository = stack.configure("[training]\nsteps = 1\n")
    with pytest.raises(LongshipError, match="stack pytorch has no setting") as error:
        repository.settings(stack="pytorch")
    assert "[stacks.NAME.training]" in error.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nSteps = {}\n", '"training.Steps" cannot name a setting'),
        ('[training]\nsteps = { kind = "numbr" }\n', 'training.steps.kind: "numbr"'),
        ("[training]\nsteps = 3\n", "training.steps: expected"),
        ('[training.steps]\nkind = "integer"\ndefault = "x"\n', "training.steps.default: expected"),
        ("[training.steps]\ndefult = 1\n", 'unknown key "training.steps.defult"'),
        ("[images]\ncuda = 3\n", "images.cuda: expected"),
        ('[images]\ncuda = { x86 = "docker://a/b:1" }\n', "images.cuda: expected"),
    ],
)
def test_mistake_in_the_stack_is_told(text, message, stack):
    stack.write("stacks/mine/stack.toml", text)
    with pytest.raises(LongshipError) as error:
        stack.settings()
    assert message in str(error.value) and "stacks/mine/stack.toml: " in str(error.value)


def test_data_are_seen_inside(stack):
    repository = stack.configure(
        'container.binds = ["/bound"]\n[training]\ntokenizer = "/t/tokenizer"\n'
        'data = ["/d/a/text", "/d/b*/x.jsonl", "/bound/c", "hub/name", "{scratch_dir}/e", "/f"]\n'
    )
    settings, paths = repository.settings_and_paths()
    env = Environment(settings, paths, "host", "set_up")
    roots = [str(each) for each in paths.roots]
    assert [each.source for each in env.site_binds] == [*roots, "/t/tokenizer", "/d/a", "/d", "/f"]


def test_each_job_looks_for_what_its_own_step_needs(stack):
    stack.write(
        "stacks/mine/stack.toml",
        "[training]\n"
        'text = { kind = "path", step = "data", default = "/d/text" }\n'
        'tokens = { kind = "path", default = "/d/tokens" }\n'
        'tokenizer = { kind = "path", step = "both", default = "/d/tokenizer" }\n'
        'seen = { kind = "path", step = "data", default = "lab/text" }\n',
    )
    data = "\n".join(submit(stack, job="local/preprocess.sbatch"))
    training = "\n".join(submit(stack))
    assert "/d/text" in data and "/d/tokenizer" in data and "lab/text" in data
    assert "/d/tokens" not in data
    assert "/d/tokens" in training and "/d/tokenizer" in training
    assert "/d/text" not in training and "lab/text" not in training
    stack.write("local/other.sbatch", JOB.replace("run_training.sh", "other.sh"))
    assert "/d/" not in "\n".join(submit(stack, job="local/other.sbatch"))


CHECK = """
source "$LONGSHIP_ROOT/lib/script/messages.bash"
fail "$NUM_NODES nodes of $GPUS_PER_NODE, $TRAINING_MODEL:$(printf ' <%s>' "$@")" 'ask for less'
"""


@pytest.mark.parametrize(
    ("job", "step"),
    [
        ("local/train.sbatch", "training"),
        ("local/preprocess.sbatch", "all"),
        ("local/shards.sbatch", "shard"),
    ],
)
def test_stack_refuses_a_job_before_it_is_priced(job, step, root, stack):
    shards = '\nsrun "${preprocess[@]}" shard "${JOB_ARGUMENTS[@]}"\n'
    stack.write(
        "local/shards.sbatch", JOB.replace("run_training.sh", "preprocess_data.sh") + shards
    )
    repository = stack.configure('[training]\nmodel = "it\'s $1"\n')
    assert not any("check_job.sh" in line for line in submit(repository, job=job))
    stack.write("stacks/mine/check_job.sh", CHECK)
    (stack.root / "lib").symlink_to(root / "lib")
    check, *rest = submit(repository, "--", "an argument", "$2", job=job)
    assert any(line.startswith("note ") for line in rest)
    done = subprocess.run(["bash", "-c", check], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: 2 nodes of 4, it's $1: <{step}> <an argument> <$2>\nhint: ask for less\n"
    )


def test_what_is_not_there_is_told_before_submission(stack, run, tmp_path):
    (tmp_path / "text.bin").touch()
    (tmp_path / "tokenizer").touch()
    repository = stack.configure(
        f"[training]\ntokenizer = {toml(tmp_path / 'tokenizer')}\n"
        f"data = [{toml(tmp_path / 'text')}, {toml(tmp_path / '*.bin')}]\n"
    )
    lines = [line for line in submit(repository) if line.startswith("setting_check_path")]
    assert len(lines) == 3
    run(["bash", "-c", render("x", lines)])
    (tmp_path / "tokenizer").rename(tmp_path / "tokenizer2")  # begins alike, and is another
    done = run(["bash", "-c", render("x", lines)], check=False)
    assert done.returncode == 1
    assert "error: training.tokenizer points to a missing" in done.stderr
    (tmp_path / "tokenizer2").rename(tmp_path / "tokenizer")
    (tmp_path / "text.bin").unlink()
    done = run(["bash", "-c", render("x", lines)], check=False)
    assert "error: training.data points to a missing" in done.stderr
    assert "--after JOB" in done.stderr


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("--dependency=afterok:1",), {}),
        ((), {"after": "1"}),
        ((), {"job": "local/preprocess.sbatch"}),
    ],
)
def test_what_another_job_makes_is_not_looked_for(words, given, stack):
    assert any("setting_check_path" in line for line in submit(stack))
    assert not any("setting_check_path" in line for line in submit(stack, *words, **given))


def test_patterns_are_for_several_paths_alone(stack):
    repository = stack.configure('[training]\ntokenizer = "/t"\ndata = ["/d"]\n')
    found = list(Training.read(*repository.settings_and_paths()).patterns())
    assert found == [("training.tokenizer", "/t"), ("training.data", "/d", "/d*")]


def test_letters_of_a_pattern_can_stand_in_a_name(stack, run, tmp_path):
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]/text.bin").touch()
    (tmp_path / "q.jsonl.gz").touch()
    wanted = [tmp_path / "a[1]/text", tmp_path / "a[1]/*.bin", tmp_path / "*.jsonl"]
    told = []
    for path in wanted:
        repository = stack.configure(f"[training]\ndata = [{toml(path)}]\n")
        lines = [line for line in submit(repository) if line.startswith("setting_check_path")]
        told.append(run(["bash", "-c", render("x", lines)], check=False).returncode)
    assert told == [0, 1, 1]  # in a pattern [1] is a pattern too


def test_what_the_cache_of_the_hub_lacks_is_warned_of(stack, run):
    repository = stack.configure('[training]\ntokenizer = "lab/tokenizer:train"\n')
    lines = [line for line in submit(repository) if line.startswith("setting_check_cache")]
    done = run(["bash", "-c", render("x", lines)])
    assert "training.tokenizer is not in the Hugging Face cache" in done.stderr
    assert "[[assets]]" in done.stderr
    (repository.scratch / "cache/huggingface/hub/models--lab--tokenizer").mkdir(parents=True)
    assert run(["bash", "-c", render("x", lines)]).stderr == ""


def test_own_cache_of_the_environment_is_looked_into(stack):
    text = '[training]\ntokenizer = "lab/tokenizer"\n[environment.set]\nHF_HOME = "/group/hf"\n'
    env = Environment(*stack.configure(text).settings_and_paths(), "host")
    cache = hub_cache(env.settings.configuration.environment, env.paths)
    ((*_, model, dataset),) = env.training.repos(cache)
    assert str(model) == "/group/hf/hub/models--lab--tokenizer"
    assert str(dataset) == "/group/hf/hub/datasets--lab--tokenizer"


@pytest.mark.parametrize("text", ["~/hf", "$SCRATCH/hf", "hf"])
def test_own_cache_that_the_scripts_cannot_find_is_refused(text, stack):
    given = stack.configure(f'[environment.set]\nHF_HOME = "{text}"\n').settings_and_paths()
    with pytest.raises(LongshipError, match="not an absolute path"):
        hub_cache(given[0].configuration.environment, given[1])


def test_cache_that_the_downloads_do_not_know_is_refused(stack):
    text = '[environment.set]\nHF_HUB_CACHE = "/group/hub"\n'
    given = stack.configure(text).settings_and_paths()
    with pytest.raises(LongshipError, match="has HF_HUB_CACHE") as error:
        hub_cache(given[0].configuration.environment, given[1])
    assert error.value.hint.startswith("set HF_HOME")


@pytest.mark.parametrize("text", ["", "a/b/c", "configs/a.yaml", "/a/b", "word"])
def test_what_is_no_name_of_the_hub_is_not_looked_for(text, stack):
    repository = stack.configure(f"[training]\ntokenizer = {toml(text)}\n")
    assert not any("setting_check_cache" in line for line in submit(repository))


@pytest.mark.parametrize(
    ("sizes", "words", "message"),
    [
        ("tensor_parallel = 3", (), "8 GPUs cannot be divided into groups of 3"),
        ("tensor_parallel = 4\npipeline_parallel = 4", (), "groups of 16"),
        ("gpus_per_replica = 5", (), "training.gpus_per_replica = 5"),
        ("tensor_parallel = 4\npipeline_parallel = 2", (), ""),
        ("tensor_parallel = 4\npipeline_parallel = 2", ("--nodes=3",), "12 GPUs"),
        ("tensor_parallel = 0\ngpus_per_replica = 0", (), ""),
        # an argument may replace a size: the stack judges then
        ("tensor_parallel = 3", ("--", "--tensor-model-parallel-size", "2"), ""),
    ],
)
def test_parallel_size_that_does_not_divide_the_gpus_is_told(sizes, words, message, stack):
    repository = stack.configure(f"[training]\n{sizes}\n")
    submit(repository, job="local/preprocess.sbatch")
    if not message:
        submit(repository, *words)
        return
    with pytest.raises(LongshipError) as error:
        submit(repository, *words)
    assert message in str(error.value)
    assert "--nodes" in error.value.hint


def test_size_within_another_divides_that(stack):
    text = STACK.replace(
        "gpus_per_replica =",
        'within_it = { kind = "parallel", within = "gpus_per_replica" }\ngpus_per_replica =',
    )
    stack.write("stacks/mine/stack.toml", text)
    for sizes, told in (
        ("gpus_per_replica = 8\nwithin_it = 4", ""),
        (
            "gpus_per_replica = 8\nwithin_it = 3",
            "within_it = 3 does not divide gpus_per_replica = 8",
        ),
        ("within_it = 4", ""),
        ("within_it = 8", "within_it = 8 does not divide gpus_per_replica = 4"),  # a node's
    ):
        repository = stack.configure(f"[training]\n{sizes}\n")
        if not told:
            submit(repository)
            continue
        with pytest.raises(LongshipError, match=told):
            submit(repository)
    stack.write("stacks/mine/stack.toml", text.replace('within = "gpus', 'within = "gpu'))
    with pytest.raises(LongshipError, match='unknown setting "gpu_per_replica"'):
        stack.settings()


@pytest.mark.parametrize("path", ["/tmp/tokenizer", "/dev/shm/a", "~/../../var/tmp/b"])
def test_data_on_the_login_node_alone_are_told(path, stack):
    stack.write("site/site.toml", "[machines.m]\n")
    stack.write("site/train.sbatch", JOB.replace("start_job local", "start_job m"))
    repository = stack.configure(f'machine = "m"\n[training]\ntokenizer = "{path}"\n')
    with pytest.raises(LongshipError, match="is on node-local storage"):
        submit(repository, job="site/train.sbatch")


def test_data_that_compute_nodes_do_not_see_are_told(stack, tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    seen = [str(stack.root), str(stack.scratch), "/home/me/longship-data"]
    stack.write("local/site.toml", f"[machines.local]\ncompute_directories = {toml(seen)}\n")
    submit(stack, "--", "--data=/not/there/x.jsonl")
    repository = stack.configure(f"[training]\ntokenizer = {toml(hidden)}\n")
    with pytest.raises(LongshipError) as error:
        submit(repository)
    assert f"is not visible to compute nodes of local: {hidden}" in str(error.value)


def test_image_is_that_of_the_architecture(stack):
    text = STACK.replace(
        'cpu = "docker://example.org/lab/base:1"', 'cpu = { arm64 = "docker://a/b:1" }'
    )
    stack.write("stacks/mine/stack.toml", text)
    for arch, told in (
        ("arm64", ""),
        ("amd64", "no image for cpu on amd64, which machine local needs"),
    ):
        stack.write("local/site.toml", f'[machines.local]\ngpu = "cpu"\narch = "{arch}"\n')
        if not told:
            submit(stack, runtime="apptainer")
            continue
        with pytest.raises(LongshipError) as error:
            submit(stack, runtime="apptainer")
        assert told in str(error.value)
        assert error.value.hint.startswith("see [images] in stacks/mine/stack.toml; or set ")


def test_image_of_the_site_is_for_stacks_that_have_one_for_its_gpus(stack):
    stack.write(
        "local/site.toml",
        '[machines.local]\ngpu = "rocm"\nconfiguration.container.image = "/s.sif"\n',
    )
    with pytest.raises(LongshipError, match="stack mine has no image for rocm"):
        submit(stack, runtime="apptainer")
    stack.write("stacks/mine/stack.toml", STACK.replace("cpu =", "rocm ="))
    settings = stack.settings()
    assert image_source(settings).address == "/s.sif"
    stack.write("stacks/mine/stack.toml", STACK)
    configured = stack.configure('container.image = "/ours.sif"\n').settings()
    assert image_source(configured).address == "/ours.sif"


def fill(root, run, template, folder, **variables):
    """Fill in a template; return how it ended, and the file."""
    (folder / "from").write_text(template)
    filled = call("fill_template", folder / "from", folder / "to")
    script = f'source "$LONGSHIP_ROOT/lib/jobs/inside/template.bash"; {filled}'
    environment = {"LONGSHIP_ROOT": str(root), "PATH": "/usr/bin:/bin", **variables}
    return run(["bash", "-euc", script], env=environment, check=False), folder / "to"


def test_template_is_filled_in_with_any_text(root, run, tmp_path, hostile_arguments):
    for text in (each for each in hostile_arguments if each.isprintable()):
        done, file = fill(root, run, "a: @A@ @A@x\n${b} $C @ a@b.c @A", tmp_path, A=text)
        assert done.returncode == 0, done.stderr
        assert file.read_text() == f"a: {text} {text}x\n${{b}} $C @ a@b.c @A\n"


def test_value_that_looks_like_a_placeholder_is_left_alone(root, run, tmp_path):
    _, file = fill(root, run, "@A@@B@\n", tmp_path, A="@B@", B="b")
    assert file.read_text() == "@B@b\n"


def test_left_over_placeholder_stops_it(root, run, tmp_path):
    done, file = fill(root, run, "x\n@A@ @NOT_THERE@\n", tmp_path, A="1")
    assert done.returncode == 1
    assert "from, line 2: unknown variable in @NOT_THERE@" in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir() if each != tmp_path / "home") == ["from"]


def test_series_of_patches_lies_in_one_place(stack):
    from lib.repositories.repositories import repository_lines

    stack.configure('[[repositories]]\nurl = "https://example.org/one.git"\n')

    def folders():
        settings, paths = stack.settings_and_paths()
        return repository_lines(settings, paths, "install")[0].rpartition(" ")[2].rstrip(")")

    assert folders() == f"{stack.root}/patches/one"
    stack.write("stacks/mine/patches/one/0001-a.patch", "")
    assert folders() == f"{stack.root}/stacks/mine/patches/one"
    stack.write("patches/one/0001-b.patch", "")
    with pytest.raises(LongshipError, match="are in both stacks/mine/patches/one and patches/one"):
        folders()


def test_checkpoints_may_lie_elsewhere(stack):
    settings, paths = stack.settings_and_paths()
    assert paths.checkpoint_dir == stack.scratch / "checkpoints"
    assert paths.roots == (paths.project_dir, paths.scratch_dir)
    stack.configure('paths.checkpoint_dir = "/flash/{user}"\n')
    settings, paths = stack.settings_and_paths()
    assert str(paths.checkpoint_dir) == "/flash/me"
    assert paths.checkpoint_dir in paths.roots
    text = environment_script(settings, paths, Training.read(settings, paths), online=False)
    assert "export LONGSHIP_CHECKPOINT_DIR=/flash/me" in text
