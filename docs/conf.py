"""Configuration of Sphinx, which makes a site of the Markdown pages.

The repository is the source directory, so that the READMEs are pages, and links work as on GitHub.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "Longship"
extensions = ["myst_parser", "sphinx_copybutton"]
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # output is not copied
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**.md",
    "*/README.md",
    "stacks/*/README.md",
    "benchmarks/results/results.md",
    "benchmarks/results/launch.md",
    "benchmarks/results/overlays.md",
    "benchmarks/results/gpu.md",
    "benchmarks/results/ranks.md",
]
# Directories without pages, or with terabytes of data, are not searched.
exclude_patterns = [".*", "lib", "tests", "project", "scratch"]
highlight_language = "text"  # for blocks without a language
smartquotes = False  # keep the -- of options
myst_heading_anchors = 4  # as on GitHub

html_theme = "furo"
html_title = "Longship"
html_static_path = ["static"]
html_css_files = ["longship.css"]
html_copy_source = False
html_show_copyright = False


def fill_in_pages(app, docname, source):
    """List all pages in the table of contents, so that a new site needs only its directory.

    `@docs/explanation/*.md@` stands for pages, `@*/site.toml@` for the READMEs next to such files.
    """

    def pages(match):
        found = sorted(path.relative_to(ROOT) for path in ROOT.glob(match[1]))
        found = [each if each.suffix == ".md" else each.with_name("README.md") for each in found]
        existing = (each.with_suffix("") for each in found if (ROOT / each).is_file())
        return "\n".join(f"/{each}" for each in existing)

    if docname == root_doc:
        source[0] = re.sub(r"^@(.+)@$", pages, source[0], flags=re.MULTILINE)


def setup(app):
    """Register the function above."""
    app.connect("source-read", fill_in_pages)
