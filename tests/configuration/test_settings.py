"""Later layers win over earlier ones, and every file that was looked at is known."""

import pytest
from support.repository import shared_configuration

from lib.configuration.layers import load_settings
from lib.script.errors import LongshipError

TWO_MACHINES = "[machines.one]\n[machines.two]\n"


def test_repository_without_any_configuration_works(repository):
    settings = repository.settings()
    assert settings.machine.name == "local"
    assert settings.stack.name == "pytorch"
    assert set(settings.origins.values()) == {"default"}


def test_empty_configuration_works(repository):
    repository.write("configuration.toml", "")
    assert repository.settings().configuration == repository.settings().configuration


# Each one wins over those before it.
LAYERS = [
    ("stacks/pytorch/stack.toml", '[configuration.container]\nimage = "{}"\n'),
    ("site/site.toml", '[machines.one.configuration.container]\nimage = "{}"\n'),
    ("configuration.toml", '[container]\nimage = "{}"\n'),
    ("configuration.toml", '[machines.one.container]\nimage = "{}"\n'),
    ("configuration.local.toml", '[container]\nimage = "{}"\n'),
    ("configuration.local.toml", '[machines.one.container]\nimage = "{}"\n'),
]


@pytest.mark.parametrize("count", range(1, len(LAYERS) + 1))
def test_later_layer_wins(count, repository):
    texts = {"site/site.toml": "[machines.one]\n"}
    for number, (file, text) in enumerate(LAYERS[:count]):
        texts[file] = texts.get(file, "") + text.format(f"image {number}")
    for file, text in texts.items():
        repository.write(file, text)
    settings = repository.settings(machine="one")
    assert settings.configuration.container.image == f"image {count - 1}"
    assert settings.origins["container.image"].startswith(LAYERS[count - 1][0])


def test_table_is_from_each_layer_that_fills_it(repository):
    repository.write(
        "site/site.toml", '[machines.one.configuration.environment]\nset = { A = "1" }\n'
    )
    repository.write("configuration.toml", "[environment]\nset = {}\n")
    assert repository.settings(machine="one").origins["environment.set"] == "site/site.toml"
    repository.write("configuration.toml", '[environment]\nset = { B = "2" }\n')
    settings = repository.settings(machine="one")
    assert settings.configuration.environment.set == {"A": "1", "B": "2"}
    assert settings.origins["environment.set"] == "site/site.toml, configuration.toml"


def test_table_of_another_machine_does_not_count(repository):
    repository.write("site/site.toml", TWO_MACHINES)
    repository.write("configuration.toml", '[machines.two.container]\nimage = "two"\n')
    assert repository.settings(machine="one").configuration.container.image == ""
    assert repository.settings(machine="two").configuration.container.image == "two"


@pytest.mark.parametrize("key", ["machine", "stack"])
def test_variable_wins_over_files_and_command_line_over_both(key, repository):
    repository.write("site/site.toml", "".join(f"[machines.{each}]\n" for each in "abc"))
    for each in "abc":
        repository.write(f"stacks/{each}/stack.toml", "")
    repository.write("configuration.toml", f'{key} = "a"\n')

    def chosen(environ=None, **options):
        return getattr(repository.settings(environ, **options), key).name

    variable = {f"LONGSHIP_{key.upper()}": "b"}
    assert chosen() == "a"
    assert chosen(variable) == "b"
    assert chosen(variable, **{key: "c"}) == "c"
    assert chosen({f"LONGSHIP_{key.upper()}": ""}) == "a"


def test_configuration_can_be_another_file(repository, tmp_path):
    repository.write("configuration.toml", '[project]\nname = "not this"\n')
    other = tmp_path / "my own.toml"
    other.write_text('[project]\nname = "this"\naccount = "a"\n')
    (tmp_path / "my own.local.toml").write_text('[project]\naccount = "b"\n')
    for settings in (
        repository.settings(configuration=str(other)),
        repository.settings({"LONGSHIP_CONFIGURATION": str(other)}),
    ):
        project = settings.configuration.project
        assert (project.name, project.account) == ("this", "b")
        assert settings.origins["project.name"] == str(other)


def test_option_wins_over_the_variable_for_the_file(repository, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f'[project]\nname = "{name}"\n')
    settings = repository.settings(
        {"LONGSHIP_CONFIGURATION": str(tmp_path / "a.toml")}, configuration=str(tmp_path / "b.toml")
    )
    assert settings.configuration.project.name == "b"


def test_missing_configuration_file_is_told(repository, tmp_path):
    with pytest.raises(LongshipError, match="configuration file not found: .*/none.toml"):
        repository.settings(configuration=str(tmp_path / "none.toml"))


def test_configuration_file_that_cannot_be_looked_at_is_told(repository, unseen):
    with pytest.raises(LongshipError, match="configuration file not found: /x"):
        repository.settings(configuration=unseen)


@pytest.mark.parametrize("name", ["configuration.toml", "configuration.local.toml"])
def test_configuration_that_leads_where_nobody_can_look_is_told(name, repository, unseen):
    (repository.root / name).unlink(missing_ok=True)
    (repository.root / name).symlink_to(unseen)
    with pytest.raises(LongshipError, match=f"cannot read {name}: File name too long") as error:
        repository.settings()
    assert error.value.hint == f"look at: ls -l {repository.root}/{name}"


def test_link_beside_the_scripts_that_leads_where_nobody_can_look_is_no_site(repository, unseen):
    (repository.root / "data").symlink_to(unseen)
    repository.write("other/site.toml", "[machines.other]\n")
    settings = repository.settings(machine="other")
    assert f"{repository.root}/data/site.toml" not in settings.files


def test_machine_is_recognised_unless_named(repository):
    text = '[machines.one]\nrecognise.environment = { SYSTEMNAME = "one" }\n'
    repository.write("site/site.toml", text)
    assert repository.settings({"SYSTEMNAME": "one"}).machine.name == "one"
    assert repository.settings({"SYSTEMNAME": "one"}, machine="local").machine.name == "local"
    assert repository.settings({"SYSTEMNAME": "one"}, machine="auto").machine.name == "one"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"machine": "loacl"}, 'unknown machine: "loacl"', 'did you mean "local"?'),
        ({"machine": "JUWELS"}, 'unknown machine: "JUWELS"', "full names: docs/sites.md"),
        ({"stack": "pytroch"}, 'unknown stack: "pytroch"', 'did you mean "pytorch"?'),
    ],
)
def test_unknown_machine_or_stack_has_a_near_miss(options, message, hint, repository):
    with pytest.raises(LongshipError, match=message) as error:
        repository.settings(**options)
    assert hint in error.value.hint


@pytest.mark.parametrize(("key", "name"), [("machine", "loacl"), ("stack", "pytroch")])
def test_unknown_machine_or_stack_of_a_file_is_told_with_its_line(key, name, repository):
    repository.write("configuration.toml", f'# ours\n{key} = "{name}"\n')
    with pytest.raises(LongshipError) as error:
        repository.settings()
    assert str(error.value) == f'configuration.toml: unknown {key}: "{name}"'


def test_table_of_an_unknown_machine_is_told_with_its_line(repository):
    repository.write("configuration.toml", '\n[machines.loacl.container]\nimage = "x"\n')
    with pytest.raises(LongshipError) as error:
        repository.settings()
    assert 'configuration.toml: unknown machine: "loacl"' in str(error.value)
    assert 'did you mean "local"?' in error.value.hint


def test_mistake_in_the_table_of_a_machine_not_in_use_is_told(repository):
    repository.write("site/site.toml", "[machines.one]\n")
    repository.write("configuration.toml", '[machines.one]\ncontainer.imge = "x"\n')
    with pytest.raises(LongshipError, match="unknown key"):
        repository.settings(machine="local")


@pytest.mark.parametrize("text", ["machines = 3", 'machines = "x"', "[machines]\nlocal = 3"])
def test_machines_that_are_no_tables_are_told(text, repository):
    repository.write("configuration.toml", text)
    with pytest.raises(LongshipError, match="configuration.toml"):
        repository.settings()


def test_local_file_is_named_when_the_mistake_is_there(repository):
    repository.write("configuration.local.toml", "x = 1\n")
    with pytest.raises(LongshipError, match="configuration.local.toml"):
        repository.settings()


def test_site_can_choose_the_stack(repository):
    repository.write("site/site.toml", '[machines.one]\nconfiguration.stack = "own"\n')
    repository.write("stacks/own/stack.toml", "")
    assert repository.settings(machine="one").stack.name == "own"


def test_every_file_looked_at_is_known_there_or_not(repository):
    files = set(repository.settings().files)
    stack = "stacks/pytorch/stack.toml"
    for name in ("configuration.toml", "configuration.local.toml", "local/site.toml", stack):
        assert str(repository.root / name) in files


def test_checked_in_repository_loads_for_every_machine(root, tmp_path):
    from lib.configuration.sites import load_machines

    for name in load_machines(root):
        options = {"machine": name, "configuration": shared_configuration(tmp_path)}
        assert load_settings(root, options, {}).machine.name == name
