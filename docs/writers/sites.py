"""site_toml.md: every key of a site's file; machines.md: the machines that have one."""

from __future__ import annotations

from pathlib import Path

from lib import ROOT
from lib.configuration.partitions import LIMITS_OF, PRICE
from lib.configuration.sites import CO2, EXPECTED, FACTS, MARKS, load_machines
from writers.markdown import keys_table, page, table

_INTRO = """\
This page lists the keys of `site.toml` in a site's directory. `[machines.NAME]` describes a
machine, and `[common]` all machines of the site. `newer_python`, above these tables, is the command
that provides a newer Python than the login nodes have. All keys are optional. Unknown keys and
wrong types are errors. `python3 doctor.py --site` compares the file with the machine
([Check a site's description](../how-to/diagnose.md#check-a-sites-description))."""

_MACHINES = """\
This page lists the machines that have a description, and who has found it correct: date, Slurm's
version and run of a user. To confirm yours, run this on a login node; it ends with what to attach
to an issue, and with the line for `site.toml`:

```bash
python3 doctor.py --site
```"""

_MACHINE = """\
`[common]` and each `[machines.NAME]` accept the same keys; `[machines.NAME]` overrides
`[common]`."""


def site_page() -> str:
    """Return the page."""
    return page(
        "site.toml",
        _INTRO,
        "## A machine",
        _MACHINE,
        keys_table(FACTS),
        "## `recognise`",
        "Rules that detect the machine; all of them must match.",
        keys_table(MARKS, prefix="recognise."),
        "## `partitions`",
        "One table per partition.",
        keys_table(LIMITS_OF["partitions"], "partitions.NAME."),
        "## `qos`",
        "One table per quality of service.",
        keys_table(LIMITS_OF["qos"], "qos.NAME."),
        "## `price`",
        "Price of an hour, in the site's own unit: the sum of the keys that are set.",
        keys_table(PRICE, "price."),
        "## `expected`",
        "What a job of this size should measure with [`doctor.py --job`]"
        "(../how-to/diagnose.md#check-a-slow-or-hanging-job).",
        keys_table(EXPECTED, "expected."),
        "## `co2`",
        "For `submit.py card`. A figure without its source is an error.",
        keys_table(CO2, "co2."),
        "## `configuration`",
        "Any table of [configuration.toml](configuration.md); a group can override its values.",
    )


def machines_page() -> str:
    """Return the page of machines."""
    rows = [
        (
            f"`{name}`",
            f"[{each.description}](../../{Path(each.site_file).parent}/README.md)",
            each.arch if each.recognise else "",
            str(each.gpus_per_node or "") if each.recognise else "",
            each.confirmed or "not yet" if each.recognise else "in the tests",
        )
        for name, each in sorted(load_machines(Path(ROOT)).items())
    ]
    return page(
        "Machines",
        _MACHINES,
        table(("`--machine`", "machine", "architecture", "GPUs per node", "confirmed"), rows),
    )
