"""How Sphinx makes a site of the Markdown pages, which read well on GitHub without it.

The repository is the source folder, so that the READMEs are pages and links between them and the
pages in docs/ are the same as on GitHub.
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
]
# Folders that have no page, or may hold terabytes: they are not walked.
exclude_patterns = [".*", "lib", "tests", "project", "scratch"]
highlight_language = "text"  # what names no language
smartquotes = False  # -- is the beginning of an option
myst_heading_anchors = 4  # as on GitHub

html_theme = "furo"
html_title = "Longship"
html_static_path = ["static"]
html_css_files = ["longship.css"]
html_copy_source = False
html_show_copyright = False


def fill_in_pages(app, docname, source):
    """Put the pages that there are into the first one: adding a site is adding its folder.

    `@docs/explanation/*.md@` stands for pages, `@*/site.toml@` for the READMEs beside such files.
    """

    def pages(match):
        found = sorted(path.relative_to(ROOT) for path in ROOT.glob(match[1]))
        found = [each if each.suffix == ".md" else each.with_name("README.md") for each in found]
        there = (each.with_suffix("") for each in found if (ROOT / each).is_file())
        return "\n".join(f"/{each}" for each in there)

    if docname == root_doc:
        source[0] = re.sub(r"^@(.+)@$", pages, source[0], flags=re.MULTILINE)


def setup(app):
    """Let Sphinx call what is defined here."""
    app.connect("source-read", fill_in_pages)
