"""Write the report page of runs: one HTML file with charts, which requests nothing.

Runs inside the environment, with its matplotlib, and its tensorboard if a stack writes event files.
The charts are SVG of 10 to 20 kB in the colours of the page; Plotly's JavaScript would be 4 MB. And
a page without scripts can forbid those in the text of logs and arguments.

Usage: python report_page.py PAGE <DATA, the JSON of extras/reports/report_page.py
"""

import io
import json
import math
import os
import re
import sys
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

sys.path.insert(1, str(Path(__file__).parents[3]))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from training_curves import NOT_MEASURED, Training  # noqa: E402

from lib.script.errors import LongshipError  # noqa: E402
from lib.script.execute import write_file  # noqa: E402
from lib.script.secrets import mask  # noqa: E402

POINTS = 300  # of a line; means of neighbours, if there are more
COLOURS = 6  # --line-0 to --line-5 of report_page.css
SOFT, RULE, LINE = "#fe02fe", "#fe03fe", "#fe01"  # in an SVG, until they become the page's colours
CURVES = {  # by quantity and horizontal axis: heading and unit
    ("loss", "step"): ("Loss", "by step"),
    ("loss", "time"): ("Loss", "by wall time"),
    ("speed", "step"): ("Speed", "{}, by step"),
    ("speed", "time"): ("Speed", "{}, by wall time"),
}
ON_GPUS = {
    ("utilisation", "time"): ("GPU utilisation", "percent, mean of each node"),
    ("power", "time"): ("GPU power", "watts, sum of each node"),
    ("memory", "time"): ("GPU memory", "GiB, the fullest GPU of each node"),
}
ON_CPUS = {
    ("utilisation", "time"): ("CPU load", "busy cores of each node"),
    ("memory", "time"): ("Memory", "GiB, processes of each node"),
}
ON_NODES = [name for name, _ in ON_GPUS]
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
NOTE = (
    "Thin lines are what was measured, thick lines their moving average, points the validation. "
    "Dotted lines mark the start of each job but the first; wall time does not include the time "
    "between jobs."
)


class Html(str):
    """Text that is markup already."""


def shown(text):
    """Return a text with nothing in it that is markup or a secret."""
    return escape(mask(str(text)))


def element(name, *content, **attributes):
    """Return an element; whatever in it is not an element itself is escaped."""
    more = "".join(f' {key.strip("_")}="{shown(each)}"' for key, each in attributes.items())
    inside = "".join(each if isinstance(each, Html) else shown(each) for each in content)
    return Html(f"<{name}{more}>{inside}</{name}>")


def link(path, text):
    """Return a link to a file of this machine; no path can become another kind of address."""
    return element("a", text, href=f"file://{quote(os.path.abspath(path))}")


def swatch(index):
    """Return a sample of a line's colour."""
    return element("i", style=f"background: var(--line-{index % COLOURS})")


def table(heading, rows):
    """Return a table, which scrolls where the page is too narrow."""
    head = element("thead", element("tr", *(element("th", each) for each in heading)))
    body = [element("tr", *(element("td", each) for each in row)) for row in rows]
    return element("div", element("table", head, element("tbody", *body)), class_="wide")


def pairs(values, **attributes):
    """Return names and values as a list, in which values that were not measured are marked."""
    rows = []
    for name, value in values:
        gap = {"class_": "gap"} if value == NOT_MEASURED else {}
        rows.append(element("div", element("dt", name), element("dd", value, **gap)))
    return element("dl", *rows, **attributes)


def thinned(points, scale):
    """Return x and y of at most POINTS points."""
    size = math.ceil(len(points) / POINTS)
    parts = [points[first : first + size] for first in range(0, len(points), size)]
    xs, ys = zip(*((fmean(each) for each in zip(*part)) for part in parts))
    return [x / scale for x in xs], ys


def smoothed(values):
    """Return for each value the mean of those around it, a 25th of all."""
    reach = len(values) // 50
    return [fmean(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]


def draw(trainings, name, axis, unit):
    """Return a chart as SVG, with no text but numbers; None if nothing was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 2.4) if name in ON_NODES else (6, 2.5), dpi=72)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    scale = unit[0] if axis == "time" else 1
    for index, training in enumerate(trainings):
        lines = training.lines(name, axis)
        alone = name in ON_NODES and len(trainings) == 1 and len(lines) <= COLOURS
        for line, points in enumerate(lines):
            xs, ys = thinned(points, scale)
            style = {"color": f"{LINE}{(line if alone else index) % COLOURS:02x}", "linewidth": 1}
            axes.plot(xs, ys, **style, alpha=0.3)
            axes.plot(xs, smoothed(ys), **{**style, "linewidth": 1.8})
        style = {"color": f"{LINE}{index % COLOURS:02x}", "linewidth": 1}
        for points in training.lines("validation_loss", axis) if name == "loss" else ():
            axes.plot(*thinned(points, scale), **style, linestyle="", marker="o", markersize=3.5)
        for x in training.restarts(axis) if lines else ():
            axes.axvline(x / scale, **style, linestyle=(0, (2, 3)))
    if not axes.lines:
        return None
    if name != "loss":
        axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel(unit[1] if axis == "time" else "steps", color=SOFT)
    axes.tick_params(colors=SOFT, length=0, pad=5)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.spines[:].set_visible(False)
    for each in figure.findobj():
        each.set_clip_on(False)  # a clip path would be a url()
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True)
    return Html(in_page(text.getvalue()))


def in_page(svg):
    """Return an SVG file as part of a page, in its colours and its font."""
    svg = svg[svg.index("<svg") :].replace("\n", "")
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg)
    svg = re.sub(r'(?<=<g) id="[^"]*"| xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(LINE + r"(\w\w)", lambda found: f"var(--line-{int(found[1], 16)})", svg)
    return svg.replace(SOFT, "var(--soft)").replace(RULE, "var(--rule)")


def charts(trainings, texts, class_):
    """Return charts with their headings; or what is missing."""
    longest = max(sum(end - start for start, end in each.segments) for each in trainings)
    unit = (1, "seconds") if longest < 180 else (60, "minutes")
    unit = unit if longest < 7200 else (3600, "hours")
    found = []
    for (name, axis), (heading, about) in texts.items():
        about = about.format(" and ".join(sorted({each.unit for each in trainings})))
        caption = element("figcaption", element("b", heading), f" {about}")
        svg = draw(trainings, name, axis, unit)
        found.append(element("figure", caption, svg or element("p", NOT_MEASURED, class_="gap")))
    return element("div", *found, class_=f"charts {class_}")


def summary(trainings):
    """Return the figures of one training; or a line for each of several."""
    if len(trainings) == 1:
        return pairs(trainings[0].figures(), class_="tiles")
    figures = [dict(each.figures()) for each in trainings]
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows = [
        [Html(swatch(index) + shown(each.data["name"])), *(found.get(name, "") for name in names)]
        for index, (each, found) in enumerate(zip(trainings, figures))
    ]
    return table(["", *names], rows)


def nodes(training):
    """Return the names of the nodes by the colours of their lines."""
    found = list(training.nodes) if len(training.nodes) <= COLOURS else []
    names = [element("span", swatch(index), name) for index, name in enumerate(found)]
    return element("p", *names, class_="key")


def section(training):
    """Return what a training ran, how its jobs ended, and what their logs contain."""
    jobs, last = training.data["jobs"], training.data["jobs"][-1]
    rows = [
        [link(each["directory"], each["name"]), *each["cells"]]
        + [link(each["log"], "log") if each["log"] else "none"]
        for each in jobs
    ]
    code = [
        [name, element("code", commit), link(patch, changed) if patch else changed]
        for name, commit, changed, patch in last["code"]
    ]
    packages = element("summary", f"{len(last['packages'])} Python packages")
    found = [finding(job, each) for job in jobs for each in job["findings"]]
    gaps = [
        element("li", text, element("br"), element("code", hint)) for text, hint in training.gaps
    ]
    return element(
        "section",
        element("h2", training.data["name"]),
        table([*training.data["headings"], "log"], rows),
        *(element("p", line, class_="gap") for each in jobs for line in each["remarks"]),
        element("h3", "Input"),
        pairs(last["facts"]),
        table(["repository", "commit", "local changes"], code) if code else "",
        element("details", packages, element("code", "  ".join(last["packages"]))),
        element("h3", "Findings in the logs"),
        *(found or [element("p", "no known message", class_="gap")]),
        *([element("h3", "Missing on this page"), element("ul", *gaps)] if gaps else []),
    )


def finding(job, found):
    """Return what doctor.py explain knows about a line of a log."""
    return element(
        "div",
        element("b", found["topic"]),
        element("small", f" {job['name']}, line {found['line']}"),
        element("pre", found["said"]),
        element("p", found["text"]),
        element("p", element("b", "fix: "), found["fix"]),
        class_="finding",
    )


def page(trainings):
    """Return the HTML of the page, with its style in it: it requests nothing."""
    title = ", ".join(each.data["name"] for each in trainings)
    usage = ON_GPUS if any(each.has_gpus for each in trainings) else ON_CPUS
    css = Html(Path(__file__).with_suffix(".css").read_text("utf-8"))
    made = datetime.now(timezone.utc).strftime("%d %B %Y, %H:%M UTC").lstrip("0")
    body = element(
        "body",
        element("header", element("h1", title), element("p", trainings[0].data["about"])),
        summary(trainings),
        charts(trainings, CURVES, "curves"),
        charts(trainings, usage, "usage"),
        nodes(trainings[0]) if len(trainings) == 1 else "",
        element("p", NOTE, class_="gap"),
        *map(section, trainings),
        element("footer", f"Written by Longship on {made}"),
    )
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    head = element("head", Html(head), element("title", title), element("style", css))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def main():
    """Write the page; what is missing on it is reported on standard error too."""
    data = json.load(sys.stdin)
    try:
        import matplotlib
    except ImportError:
        message = "matplotlib not found inside the environment; the charts of a page require it"
        hint = f"add matplotlib to the requirements, then run: {data['install']}"
        sys.exit(f"error: {message}\nhint: {hint}")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "page", "font.size": 11})
    trainings = [Training(each, data["install"]) for each in data["trainings"]]
    file = Path(sys.argv[1])
    try:
        write_file(file, page(trainings).encode("utf-8", "replace").decode())
    except LongshipError as error:
        sys.exit(f"error: {error}\nhint: give another --output FILE")
    for message, hint in [each for training in trainings for each in training.gaps]:
        print(f"warning: {message}\nhint: {hint}", file=sys.stderr)
    print(file)


if __name__ == "__main__":
    main()
