"""A server on loopback that stands for the Hugging Face hub.

It answers what the real huggingface_hub asks for: what a repository holds at a revision, and its
files with their checksums, in parts too. It can refuse, be gated, and end a connection midway.
"""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 1 << 16  # bytes; from here on the hub keeps a file by its SHA-256, as LFS does


class Repo:
    """A repository of the hub: its commits with their files, and its branches."""

    def __init__(self, gated=False):
        self.commits = {}
        self.refs = {}
        self.gated = gated  # its files are for TOKEN alone

    def commit(self, files, ref="main"):
        """Add a commit with these files; return what names it."""
        sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[sha] = files
        self.refs[ref] = sha
        return sha


TOKEN = "hf_the_right_one"


class Hub(ThreadingHTTPServer):
    """It runs until the block ends."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos = {}  # by path: openai-community/gpt2, datasets/lab/text
        self.asked = []  # (method, path, range)
        self.cut = 0  # the next large file ends after so many bytes
        self.hold = threading.Event()  # it is answered no further until this is set
        self.hold.set()
        self.held = threading.Event()  # and somebody waits for it

    @property
    def environment(self):
        """The variables by which huggingface_hub finds it."""
        address = f"http://127.0.0.1:{self.server_address[1]}"
        # 10 seconds unless told: who asks again would be counted twice
        patience = {"HF_HUB_DOWNLOAD_TIMEOUT": "300", "HF_HUB_ETAG_TIMEOUT": "300"}
        return {
            "HF_ENDPOINT": address,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            **patience,
        }

    def sent(self):
        """Name the files whose content was asked for."""
        found = [path for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]
        return [path.split("/resolve/")[1].partition("/")[2] for path in found]


def entity_tag(content):
    """Give what the hub calls a file: its SHA-256, or what git calls it."""
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Say nothing."""

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers.get("Range")))
        asked = re.fullmatch(
            r"/(?P<api>api/)?(?P<repo>(?:models/|datasets/|spaces/)?[^/]+/[^/]+)"
            r"/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+)(?:/(?P<file>.+))?",
            path,
        )
        repo = asked and self.server.repos.get(asked["repo"].removeprefix("models/"))
        if not repo:
            return self._refuse(404, "RepoNotFound")
        commit = repo.refs.get(asked["revision"], asked["revision"])
        if commit not in repo.commits:
            return self._refuse(404, "RevisionNotFound")
        files = repo.commits[commit]
        if asked["what"] == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self._json({"id": asked["repo"], "sha": commit, "siblings": siblings})
        if asked["what"] == "tree":
            return self._json([_tree_entry(*each) for each in files.items()])
        if repo.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if asked["file"] not in files:
            return self._refuse(404, "EntryNotFound")
        return self._file(commit, files[asked["file"]])

    def _refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, commit, content):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(wanted[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{entity_tag(content)}"')
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        if not self.server.hold.is_set():
            self.wfile.write(content[start : start + 1])
            self.server.held.set()
            self.server.hold.wait()
            start += 1
        if self.server.cut and len(content) >= LARGE:
            content, self.server.cut = content[: self.server.cut], 0
            self.close_connection = True
        self.wfile.write(content[start:])


def _tree_entry(path, content):
    entry = {"type": "file", "path": path, "size": len(content), "oid": entity_tag(content)}
    if len(content) >= LARGE:
        entry["lfs"] = {"oid": entity_tag(content), "size": len(content), "pointerSize": 130}
    return entry


@contextlib.contextmanager
def running_hub():
    """Give a hub for the block."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
