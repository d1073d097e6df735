"""site_toml.md: every key of a site's file."""

from __future__ import annotations

from lib.configuration.partitions import LIMITS_OF, PRICE
from lib.configuration.sites import EXPECTED, FACTS, MARKS
from writers.markdown import keys_table, page

_INTRO = """\
This page lists the keys of `site.toml` in a site's directory. `[machines.NAME]` describes a
machine, and `[common]` all machines of the site. `newer_python`, above these tables, is the command
that provides a newer Python than the login nodes have. All keys are optional. Unknown keys and
wrong types are errors. `python3 doctor.py --site` compares the file with the machine
([Check a site's description](../how-to/diagnose.md#check-a-sites-description))."""

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
        "## `configuration`",
        "Any table of [configuration.toml](configuration.md); a group can override its values.",
    )
