"""The pages of the documentation, and what stands in them: blocks, commands, links, headings."""

import re
import shlex
import textwrap
from pathlib import Path

import conf  # docs/conf.py: which files are pages

ROOT = Path(__file__).resolve().parents[2]
# A fence closes with as many backticks as it opened with: a page can be shown in a page.
_FENCE = re.compile(r"^( *)(`{3,})(\w*)[^\n]*\n(.*?)^\1\2$", re.DOTALL | re.MULTILINE)
_SEPARATORS = {"&&", "||", "|", ";", "&", "(", ")"}


def page_paths():
    """Give all pages, relative to the repository."""
    patterns = [each.replace("**.md", "**/*.md") for each in conf.include_patterns]
    found = {path.relative_to(ROOT) for each in patterns for path in ROOT.glob(each)}
    return sorted(path for path in found if not path.parts[0].startswith("."))


def read(page):
    """Give the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def all_blocks(text):
    """Give the fenced blocks, each with its language."""
    return [(each[3], textwrap.dedent(each[4])) for each in _FENCE.finditer(text)]


def blocks(text, language):
    """Give the fenced blocks of a language."""
    return [body for each, body in all_blocks(text) if each == language]


def inline_code(text):
    """Give what stands between backticks in running text."""
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", _FENCE.sub("", text))]


def links(text):
    """Give the targets of all links and pictures."""
    running = re.sub(r"`[^`]*`", "", _FENCE.sub("", text))
    return re.findall(r"\]\(([^)\s]+)\)", running)


def anchors(text):
    """Give what GitHub calls the headings of a page."""
    found = []
    for heading in re.findall(r"^#{1,6} +(.+?) *$", _FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        count = sum(each == slug or each.startswith(f"{slug}-") for each in found)
        found.append(f"{slug}-{count}" if slug in found else slug)
    return found


def simple_commands(block):
    """Give the words of each command of a block of bash, without redirections and comments."""
    commands, begun = [], ""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(begun + line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True  # a colon is no punctuation
        try:
            words = list(lexer)
            begun = ""
        except ValueError:  # a quotation goes on in the next line
            begun += f"{line}\n"
            continue
        commands.append([])
        for before, word in zip(["", *words], words):
            if word in _SEPARATORS:
                commands.append([])
            elif not {"<", ">"} & {*before[:1], *word[:1]}:
                commands[-1].append(word)
    quoted = [each for words in commands for each in re.findall(r"\$\((.+)\)", " ".join(words))]
    return [*filter(None, commands), *(words for each in quoted for words in simple_commands(each))]


def script_calls(commands):
    """Give the words of each call of a script of this repository: its name, and its arguments."""
    for call in _python_calls(commands, {"python3"}, r"(~/longship/)?\w+\.py"):
        yield [call[0].rpartition("/")[2], *call[1:]]


def file_calls(commands):
    """Give the words of each call of a Python file in a folder: its path, and its arguments."""
    return _python_calls(commands, {"python", "python3"}, r"([\w-]+/)+\w+\.py")


def _python_calls(commands, programs, path):
    for words in commands:
        for number, word in enumerate(words[:-1]):
            if word.rpartition("/")[2] in programs and re.fullmatch(path, words[number + 1]):
                yield words[number + 1 :]
                break
