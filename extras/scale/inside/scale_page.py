"""Write the page of a scaling study: a table, a chart, and what was run.

Runs inside the environment, with its matplotlib.

Usage: python scale_page.py DIRECTORY <DATA, the JSON of extras/scale/scale_report.py
"""

import io
import json
import os
import sys
from html import escape
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[3]))
if __name__ == "__main__":
    sys.pycache_prefix = os.devnull
    import lib

    lib.use_own_bytecode()

from lib.script.execute import write_file  # noqa: E402
from lib.script.secrets import mask  # noqa: E402

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } td, th { padding: 0.2em 0.7em; text-align: right; }
pre { background: #f4f5f6; padding: 1em; overflow-x: auto; } svg { max-width: 100%; height: auto; }
"""


def shown(text):
    """Return a text without markup and secrets."""
    return escape(mask(str(text)))


def draw(rows):
    """Return the chart of the speed, with the line of an ideal speed-up, as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    nodes, speeds = [each["nodes"] for each in rows], [each["tokens_per_s"] for each in rows]
    ideal = [speeds[0] * count / nodes[0] for count in nodes]
    spread = [[each[name] for each in rows] for name in ("lower_quartile", "upper_quartile")]
    axes.fill_between(nodes, *spread, alpha=0.2, label="middle half of the steps")
    axes.plot(nodes, speeds, marker="o", label="median of the steps")
    axes.plot(nodes, ideal, linestyle="--", color="grey", label="ideal")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(nodes, labels=list(map(str, nodes)))
    axes.set_yticks(ideal, labels=[f"{each:,.0f}" for each in ideal])
    axes.minorticks_off()
    axes.set_xlabel("nodes")
    axes.set_ylabel("tokens/s")
    axes.legend(frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()


def page(data, svg):
    """Return the page, which requests nothing."""
    study = data["study"]
    kind = "weak" if study["weak"] else "strong"
    grows = f"on {study['nodes'][0]} nodes, in proportion to the nodes" if study["weak"] else ""
    about = (
        f"{kind.capitalize()} scaling of the stack {study['stack']} on {study['machine']}: "
        f"{study['steps']} steps, of which the first {study['steps'] // 5} do not count; "
        f"{study['batch']} sequences per step {grows}; {study['trials']} jobs for each number of "
        "nodes. The speed is the median of the steps of all jobs; efficiency is relative to the "
        "fewest nodes."
    )
    heading, *rows = data["cells"]
    table = "".join(f"<tr>{''.join(f'<td>{shown(x)}</td>' for x in row)}</tr>" for row in rows)
    facts = [f"{name}: {value}" for name, value in data["input"].items() if value]
    facts += [f"arguments: {' '.join(study['arguments'])}"] if study["arguments"] else []
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{shown(study["name"])}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{STYLE}</style></head><body>
<h1>{shown(study["name"])}</h1>
<p>{shown(about)}</p>
<table><tr>{"".join(f"<th>{shown(each)}</th>" for each in heading)}</tr>{table}</table>
{"".join(f"<p>{shown(each)}</p>" for each in data["problems"])}
{svg[svg.index("<svg") :] if svg else "<p>No trial has completed.</p>"}
<h2>Input</h2>
<pre>{shown(chr(10).join(facts + data["commits"]))}</pre>
<h2>Job script</h2>
<pre>{shown(data["job"] or "not recorded")}</pre>
</body></html>
"""


def main():
    """Write scaling.csv, scaling.svg and scaling.html."""
    data, directory = json.load(sys.stdin), Path(sys.argv[1])
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit(
            "error: matplotlib not found inside the environment; the chart requires it\n"
            f"hint: add matplotlib to the requirements, then run: {data['install']}"
        )
    write_file(directory / "scaling.csv", data["csv"])
    rows, chart = [each for each in data["rows"] if each.get("speed_up")], ""
    if rows:
        chart = draw(rows)
        write_file(directory / "scaling.svg", chart)
    write_file(directory / "scaling.html", page(data, chart))
    print(directory / "scaling.html")


if __name__ == "__main__":
    main()
