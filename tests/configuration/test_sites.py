"""A site is a folder with a site.toml; its machines are recognised by their marks."""

import re
import subprocess
from pathlib import Path

import pytest
from support.repository import shared_configuration

from lib.configuration.layers import load_settings
from lib.configuration.sites import load_machines, own_arch, read_sites, recognise
from lib.script.errors import LongshipError

ROOT = Path(__file__).resolve().parents[2]


def test_new_site_needs_no_python(repository):
    repository.write(
        "aurora/site.toml",
        '[machines.aurora]\ndescription = "Aurora"\narch = "arm64"\ngpu = "rocm"\n'
        'runtime = "singularity"\nmodules = ["load x"]\nbinds = ["/data"]\n'
        'runtime_options = ["--userns"]\nconfiguration.container.image = "/an/image.sif"\n',
    )
    machine = load_machines(repository.root)["aurora"]
    assert machine.name == "aurora"
    assert machine.site_file == "aurora/site.toml"
    assert (machine.arch, machine.gpu, machine.runtime) == ("arm64", "rocm", "singularity")
    assert (machine.modules, machine.binds) == (("load x",), ("/data",))
    assert machine.runtime_options == ("--userns",)
    assert machine.configuration.values == {"container.image": "/an/image.sif"}


def test_what_machines_have_in_common_is_said_once(repository):
    repository.write(
        "site/site.toml",
        '[common]\narch = "arm64"\ngpu = "cuda"\nbinds = ["/a"]\n'
        'configuration.paths.scratch_dir = "/common"\nconfiguration.project.name = "p"\n'
        "[machines.one]\n"
        '[machines.two]\ngpu = "cpu"\nbinds = []\nconfiguration.paths.scratch_dir = "/two"\n',
    )
    machines = load_machines(repository.root)
    one, two = machines["one"], machines["two"]
    assert (one.arch, one.gpu, one.binds) == ("arm64", "cuda", ("/a",))
    assert (two.arch, two.gpu, two.binds) == ("arm64", "cpu", ())
    assert one.configuration.values["paths.scratch_dir"] == "/common"
    assert two.configuration.values["paths.scratch_dir"] == "/two"
    assert two.configuration.values["project.name"] == "p"


def test_architecture_is_this_machines_own_unless_said(repository):
    assert load_machines(repository.root)["local"].arch == own_arch()
    assert own_arch() in ("amd64", "arm64")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[machine.x]\n", 'site/site.toml: unknown table "machine"', '"machines"'),
        ('[common]\narhc = "arm64"\n', 'unknown key "common.arhc"', '"arch"'),
        ('[machines.x]\n\ngpuu = "cuda"\n', 'unknown key "machines.x.gpuu"', '"gpu"'),
        (
            '[machines.x]\ngpu = "nvidia"\n',
            'unknown value of machines.x.gpu: "nvidia"',
            "valid values: cuda",
        ),
        (
            '[machines.x]\narch = "x86_64"\n',
            'unknown value of machines.x.arch: "x86_64"',
            "amd64, arm64",
        ),
        ('[machines.x]\nrecognise.hots = "x*"\n', "hots", '"host"'),
        ('[machines.x]\nmodules = "load GCC"\n', "modules: expected a list", "write modules = ["),
        ('[machines.x]\nbinds = "/data"\n', "binds: expected a list", "write binds = ["),
        ("[machines.x]\ngpu = 3\n", "gpu", ""),
        (
            "[machines.x.expected]\nbus_bandwith = 1\n",
            'unknown key "machines.x.expected.bus_bandwith"',
            '"bus_bandwidth"',
        ),
        (
            "[machines.x]\nco2 = { kg_per_kwh = 0.3 }\n",
            "site/site.toml: machines.x.co2 has no source",
            "co2 = { kg_per_kwh = ",
        ),
        (
            '[machines.x.co2]\nsource = "https://example.org"\n',
            "machines.x.co2 has no kg_per_kwh",
            "write both: ",
        ),
        ("machines = 3\n", "site/site.toml", ""),
        ("common = 3\n", "site/site.toml", ""),
        ("[machines]\nx = 3\n", "site/site.toml", ""),
        (
            '[machines.x.configuration.paths]\nscrach_dir = "/x"\n',
            'unknown key "paths.scrach_dir"',
            '"scratch_dir"',
        ),
    ],
)
def test_mistake_in_a_site_is_told(text, message, hint, repository):
    repository.write("site/site.toml", text)
    with pytest.raises(LongshipError) as error:
        load_machines(repository.root)
    assert message in str(error.value)
    assert "site/site.toml" in str(error.value)
    assert hint in error.value.hint


def test_mistake_in_a_site_stops_the_commands_on_its_machines(repository):
    repository.write("site/site.toml", '[machines.x]\n[machines.y]\ngpu = "nvidia"\n')
    for name in ("x", "y"):
        with pytest.raises(LongshipError, match="unknown value of machines.y.gpu"):
            repository.settings(machine=name)
    assert repository.settings().machine.name == "local"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "invalid TOML in site/site.toml"),
        ("[machine.x]\n", 'site/site.toml: unknown table "machine"'),
        ('[machines.x]\nrecognize.host = "x"\n', 'unknown table "machines.x.recognize"'),
        ('[machines.x]\nrecognise.hots = "x*"\n', 'unknown key "machines.x.recognise.hots"'),
        ("[common]\nrecognise.host = 3\n", "common.recognise.host: expected a string, got 3"),
    ],
)
def test_mistake_that_can_hide_a_machine_stops_every_command(text, message, repository):
    repository.write("site/site.toml", text)
    with pytest.raises(LongshipError, match=re.escape(message)):
        repository.settings()


def test_two_sites_with_the_same_machine_are_refused(repository):
    repository.write("a/site.toml", "[machines.x]\n")
    repository.write("b/site.toml", "[machines.x]\n")
    with pytest.raises(LongshipError, match="b/site.toml and a/site.toml both have a machine x"):
        load_machines(repository.root)


@pytest.mark.parametrize(
    ("marks", "environ", "host", "fits"),
    [
        ('recognise.host = "login*"', {}, "login3", True),
        ('recognise.host = "login*"', {}, "my-login3", False),
        ('recognise.environment = { S = "one" }', {"S": "one"}, "h", True),
        ('recognise.environment = { S = "one" }', {"S": "onetwo"}, "h", False),
        ('recognise.environment = { S = "one" }', {}, "h", False),
        ('recognise.cluster = "c"', {"SLURM_CLUSTER_NAME": "c"}, "h", True),
        ('recognise.cluster = "c"', {}, "h", False),
        ('recognise.path = "/"', {}, "h", True),
        ('recognise.path = "/no such folder"', {}, "h", False),
        ('recognise = { host = "h", cluster = "c" }', {"SLURM_CLUSTER_NAME": "c"}, "h", True),
        ('recognise = { host = "h", cluster = "c" }', {}, "h", False),
        ("", {}, "h", False),
    ],
)
def test_machine_is_recognised_by_all_of_its_marks(marks, environ, host, fits, repository):
    repository.write("site/site.toml", f"[machines.one]\n{marks}\n")
    name = recognise(read_sites(repository.root), environ, host)
    assert name == ("one" if fits else "local")


@pytest.mark.parametrize(
    ("name", "environ", "host"),
    [
        ("jwb", {"SYSTEMNAME": "juwelsbooster"}, "jwlogin21.juwels"),
        ("jwc", {"SYSTEMNAME": "juwels"}, "jwlogin01.juwels"),
        ("jrc", {"SYSTEMNAME": "jurecadc"}, "jrlogin01"),
        ("jpb", {"SYSTEMNAME": "jupiter"}, "jpbl-s01-01"),
        ("berzelius", {}, "berzelius1.nsc.liu.se"),
        ("marenostrum", {"BSC_MACHINE": "mn5"}, "alogin1"),
        ("local", {"BSC_MACHINE": "nord4"}, "a-laptop"),
        ("alps", {"CLUSTER_NAME": "clariden"}, "clariden-ln001"),
        ("local", {"CLUSTER_NAME": "daint"}, "daint-ln001"),
        ("frontier", {"LMOD_SYSTEM_NAME": "frontier"}, "login01"),
        ("local", {"LMOD_SYSTEM_NAME": "andes"}, "andes-login1"),
        ("roihu", {}, "roihu-gpu-login1"),
        ("snellius", {}, "int6.local.snellius.surf.nl"),
        ("local", {}, "a-laptop"),
        ("local", {"SYSTEMNAME": "something else"}, "a-laptop"),
    ],
)
def test_real_machines_are_recognised(name, environ, host, root):
    assert recognise(read_sites(root), environ, host) == name


@pytest.mark.parametrize("name", load_machines(ROOT))
def test_what_a_site_sets_counts_until_a_group_says_otherwise(name, tmp_path):
    """The configuration.toml of a fresh clone says nothing that a site says."""
    options = {"machine": name, "configuration": shared_configuration(tmp_path)}
    settings = load_settings(ROOT, options, {"HOME": "/home/me", "USER": "me"})
    for key, value in settings.machine.configuration.values.items():
        if not isinstance(value, dict):  # those are merged
            assert settings.origins[key] == settings.machine.site_file, key


def test_bandwidth_is_expected_only_where_a_source_tells_it():
    expected = {name: machine.expected for name, machine in load_machines(ROOT).items()}
    given = {"alps": (122, 2, 8), "isambard": (163, 2, 8), "olivia": (101, 2, 8)}
    assert {name: each for name, each in expected.items() if each} == given


def test_factor_of_co2_has_its_source(repository):
    text = '[common]\nco2 = { kg_per_kwh = 0, source = "https://example.org/2026" }\n[machines.x]\n'
    repository.write("site/site.toml", text)
    assert load_machines(repository.root)["x"].co2 == (0, "https://example.org/2026")


def test_proxy_of_olivia_is_the_same_inside_and_outside():
    names = ("http_proxy", "https_proxy", "no_proxy")
    show = 'source olivia/proxy.bash; printf \'%s\\n\' "$http_proxy" "$https_proxy" "$no_proxy"'
    command = ["bash", "-euc", show]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    inside = load_machines(ROOT)["olivia"].configuration.values["environment.set"]
    assert done.stdout.splitlines() == [inside[each] for each in names]


@pytest.mark.parametrize("name", ["../../x", "a b", "-x", ".", "a\\nb"])
def test_name_of_a_machine_names_files(name, repository):
    repository.write("site/site.toml", f'[machines."{name}"]\n')
    with pytest.raises(LongshipError, match="cannot name a machine"):
        load_machines(repository.root)
