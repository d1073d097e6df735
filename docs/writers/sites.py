"""site_toml.md: every key of a site's file."""

from __future__ import annotations

from lib.partitions import LIMITS_OF, PRICE, Limits, Price
from lib.sites import FACTS, MARKS, Machine
from writers.markdown import keys_table, page

_INTRO = """\
What the `site.toml` of a site's folder can say. `[machines.NAME]` has the facts of a machine,
`[common]` those of all machines of the site, and `newer_python`, above them, the command that
gives a newer Python than a login node has. All keys can be left out. Unknown keys and wrong
types are errors."""

_MACHINE = """\
`[common]` and each `[machines.NAME]` take the same keys; a machine's own win."""


def site_page() -> str:
    """Return the page."""
    return page(
        "site.toml",
        _INTRO,
        "## A machine",
        _MACHINE,
        keys_table(FACTS, Machine),
        "## `recognise`",
        "The marks by which a machine is recognised; all that are given must fit.",
        keys_table(MARKS, prefix="recognise."),
        "## `partitions`",
        "A table for each partition.",
        keys_table(LIMITS_OF["partitions"], Limits, "partitions.NAME."),
        "## `qos`",
        "A table for each quality of service.",
        keys_table(LIMITS_OF["qos"], Limits, "qos.NAME."),
        "## `price`",
        "What an hour costs, in the site's own unit: the sum of all that is given.",
        keys_table(PRICE, Price, "price."),
        "## `configuration`",
        "Any table of [configuration.toml](configuration.md): what a group can say otherwise.",
    )
