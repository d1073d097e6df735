"""A commit is more than its diff: message, encoding and author come through, byte for byte."""

import random
import subprocess

import pytest
from support.lab import is_told

ZONES = ("+0000", "+0545", "-0800")
AUTHORS = (
    b"A. Nordic <a@example.org>",
    "Jørgen 北京 <j@example.org>".encode(),
    b".dots. and, commas <x@y>",
    b"nobody <>",
)
DIFF = b"diff --git a/model.py b/model.py\n--- a/model.py\n+++ b/model.py\n@@ -1 +1 @@\n-x\n+y\n"
MAIL = b"From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nFrom: X <y@z>\n"
MESSAGES = (
    b"mine\n",
    b"[WIP] mine\n\nwith a body\n",
    b"#42 is mine\n\n# not a comment\n",
    b"with a diff\n\n" + DIFF,
    b"with a mail\n\n" + MAIL + b"\n---\n\nafter three dashes\n-- \nafter a signature\n",
    b"From: X <y@z>\nSubject: no mail\n",
    b"no newline at the end",
    b"no newline at the end of the message\nauthor x <y> 1 +0000\n",
    b"\n\n  blanks before, and after  \n\n\n",
    b"carriage returns\r\n\r\nof another system\r\n",
    b"",
    b"tabs\tand \x1b[31mcolours\x1b[0m\n",
)
WORDS = (
    *MESSAGES,
    b"---\n",
    b"    four blanks\n",
    b"#\n",
    b"\n",
    b"x" * 3000,
    b"\t\n",
    b">From y\n",
)


def put_commit(repository, author, message, encoding=b"", date=b"1700000000"):
    """Make a commit of what is staged, of any bytes; return what it is to keep."""
    tree, parent = (
        repository.git(*words).strip() for words in (["write-tree"], ["rev-parse", "HEAD"])
    )
    header = b"encoding " + encoding + b"\n" if encoding else b""
    text = f"tree {tree}\nparent {parent}\n".encode() + b"author " + author
    text += b"\ncommitter A. Nordic <a@example.org> " + date + b" +0000\n" + header
    text += b"\n" + message
    command = ["git", "-C", repository.folder, "hash-object", "-t", "commit", "-w", "--stdin"]
    done = subprocess.run([*command, "--literally"], input=text, stdout=subprocess.PIPE, check=True)
    repository.git("update-ref", "HEAD", done.stdout.decode().strip())
    return author, message


def kept(repository, base):
    """Give author and message of the commits on top of another, the oldest first."""
    found = []
    for commit in repository.git("rev-list", "--reverse", f"{base}..HEAD").split():
        command = ["git", "-C", repository.folder, "cat-file", "commit", commit]
        text = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        header, _, message = text.partition(b"\n\n")
        lines = header.split(b"\n")
        author = next(line for line in lines if line.startswith(b"author ")).partition(b" ")[2]
        found.append((author, message))
    return found


def draw_commits(mine, seed):
    """Make random commits, some of which change nothing; return what they are to keep."""
    draw = random.Random(seed)
    expected = []
    for number in range(draw.randint(1, 6)):
        if draw.random() < 0.8:
            mine.write(f"new{number}.py", draw.randbytes(draw.randint(0, 99)))
            mine.git("add", "--all")
        message = b"".join(draw.choices(WORDS, k=draw.randint(0, 5)))
        author = draw.choice(AUTHORS) + f" {draw.randint(1, 2**31)} {draw.choice(ZONES)}".encode()
        expected.append(put_commit(mine, author, message))
    return expected


def come_through(work, mine, expected):
    """Update with the commits, save them, and install the patches elsewhere."""
    files = mine.files()
    work.release(theirs__py="2\n")
    work.update()
    base = work.upstream.head("v2")
    assert kept(mine, base) == expected
    work.set_up("save-patches")
    patches = {path.name: path.read_bytes() for path in work.patches.iterdir()}
    assert len(patches) == len(expected)
    other = work.elsewhere()
    assert kept(other, base) == expected
    assert other.files() == {**files, "theirs.py": ("file", b"2\n")}
    work.set_up("save-patches")
    assert {path.name: path.read_bytes() for path in work.patches.iterdir()} == patches
    work.release("v3", theirs__py="3\n")
    work.update()
    assert kept(other, work.upstream.head("v3")) == expected


def test_commits_come_through(work, clean_environment):
    """With a user's settings of git that would clean messages."""
    home = work.folder / "home"
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text("[commit]\ncleanup = strip\n[core]\ncommentChar = m\n")
    work.environment["HOME"] = str(home)
    mine = work.install()
    expected = []
    for number, message in enumerate(MESSAGES):
        if number != 1:  # a commit that changes nothing
            mine.write(f"new{number}.py", f"{number}\n")
            mine.git("add", "--all")
        author = AUTHORS[number % len(AUTHORS)] + b" 1700000000 +0100"
        expected.append(put_commit(mine, author, message))
    come_through(work, mine, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_any_commits_come_through(seed, work):
    mine = work.install()
    come_through(work, mine, draw_commits(mine, seed))


@pytest.mark.parametrize(
    ("message", "encoding", "date"),
    [
        ("æøå\n".encode("iso-8859-1"), b"ISO-8859-1", b"1700000000"),
        ("æøå\n".encode("iso-8859-1"), b"", b"1700000000"),
        (b"before Unix\n", b"", b"-86400"),
    ],
)
def test_commit_that_git_cannot_replay_is_refused(message, encoding, date, work):
    mine = work.install()
    mine.write("new.py", "new\n")
    mine.git("add", "new.py")
    put_commit(mine, AUTHORS[0] + b" " + date + b" +0000", message, encoding, date)
    before = mine.state()
    work.release(theirs__py="2\n")
    reason = "has a date before 1970" if date[:1] == b"-" else "has a message that is not UTF-8"
    is_told(work.update(check=False), reason, "git commit --amend")
    assert mine.state() == before
    work.use("v1")
    is_told(work.set_up("save-patches", check=False), reason, "git commit --amend")
    assert not work.patches.exists()
    mine.git("commit", "--quiet", "--amend", "--reset-author", "--message=readable")
    work.use("v2")
    work.update()
    assert mine.git("log", "--format=%s") == "readable\nv2\nfirst\n"


def test_message_stays_where_a_conflict_is_resolved(work):
    mine = work.install()
    mine.replace("model.py", "line 5\n", "mine\n")
    mine.git("add", "--all")
    author = AUTHORS[1] + b" 1700000000 +0100"
    expected = [put_commit(mine, author, b"#42\n\n# my line\n")]
    work.release(model__py=("line 5\n", "theirs\n"))
    work.update(check=False)
    work.second.git("add", "model.py")  # with the marks of the conflict
    done = work.update("--continue", check=False)
    assert done.returncode == 1 and "conflict markers left in model.py" in done.stderr
    work.second.write("model.py", "resolved\n")
    work.second.git("add", "model.py")
    work.update("--continue")
    assert kept(mine, work.upstream.head("v2")) == expected


def test_patches_of_the_former_form_still_apply(work):
    mine = work.install()
    mine.commit("mine", mine__py="x\n")
    work.patches.mkdir(parents=True)
    mine.git("format-patch", "--quiet", "-k", "--full-index", "-o", work.patches, "v1")
    mine.git("reset", "--quiet", "--hard", "v1")
    other = work.elsewhere()
    assert other.git("log", "-1", "--format=%s|%an") == "mine|A. Nordic\n"
    assert other.files()["mine.py"] == ("file", b"x\n")
