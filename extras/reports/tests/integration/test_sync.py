"""Offline runs of a real wandb are uploaded from the login node, while a job writes and afterwards.

The server is a stand-in on loopback, which keeps what it is sent.
"""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from integration.test_jobs import write_job

TRAIN = """
import itertools, pathlib, sys, time
import wandb
with wandb.init(project="toy") as run:
    for step in itertools.count():
        run.log({"loss": 1 / (step + 1)})
        time.sleep(0.1)
        if pathlib.Path(sys.argv[1]).exists():
            break
"""
BUCKET = {
    **{"id": "1", "name": "n", "displayName": "n", "config": "{}", "historyLineCount": 0},
    "project": {"id": "2", "name": "toy", "entity": {"id": "3", "name": "me"}},
}
ANSWERS = {
    "upsertBucket": {"upsertBucket": {"bucket": BUCKET, "inserted": True}},
    "createRunFiles": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}},
    "viewer": {"viewer": {"id": "4", "entity": "me", "flags": "{}", "teams": {"edges": []}}},
}


class _Server(BaseHTTPRequestHandler):
    """Answers what wandb asks of its server, and keeps the lines of metrics."""

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.keys.add(self.headers.get("Authorization"))
        answer = {}
        if self.path.startswith("/graphql"):
            query = json.loads(body)["query"]
            found = next((ANSWERS[name] for name in ANSWERS if name in query), {})
            answer = {"data": found}
        elif self.path.endswith("file_stream"):
            files = json.loads(body).get("files") or {}
            history = files.get("wandb-history.jsonl", {"content": []})["content"]
            self.server.lines += map(json.loads, history)
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def server():
    """Give the stand-in; `lines` and `keys` are what it was sent."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    made.lines, made.keys = [], set()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_run_is_uploaded_while_the_job_writes_and_afterwards(
    make_job_clone, install_once, server, slurm, tmp_path
):
    packages = install_once("wandb", [], "wandb==0.31.0\n")
    clone = make_job_clone(tmp_path, packages=packages)
    program, stop = clone.scratch / "train.py", clone.scratch / "stop"
    program.write_text(TRAIN)
    start = f'source lib/jobs/inside/ranks.bash; ranks_set_wandb; exec python "{program}" "{stop}"'
    job = write_job(clone, "wandb", f"srun \"$LAUNCHER\" bash -c '{start}'")
    number = clone.job(job)
    clone.wait_until(number, lambda: list(clone.runs.glob(f"{number}-*/wandb/*/run-*.wandb")))
    key = "0123456789" * 4
    address = f"http://127.0.0.1:{server.server_address[1]}"
    keys = {"WANDB_BASE_URL": address, "WANDB_API_KEY": key}

    def upload(*words, **options):
        done = clone.submit("sync", *words, env=keys, timeout=300, **options)
        assert key not in done.stdout + done.stderr
        return len({line["_step"] for line in server.lines})

    clone.wait_until(number, lambda: upload() > 0)
    assert slurm.facts(number)["JobState"] == "RUNNING"
    before = len(server.lines)
    following = threading.Thread(target=upload, args=(number, "--follow"))
    following.start()
    stop.touch()
    assert slurm.wait(number) == "COMPLETED", slurm.log(number)
    following.join(300)
    assert len(server.lines) > before
    steps = sorted({line["_step"] for line in server.lines})
    assert steps == list(range(len(steps)))
    assert len(server.keys - {None}) == 1
    done = clone.submit("sync", env=keys)
    assert "note: W&B: nothing to upload" in done.stderr
    assert not list((tmp_path / "it's a clone").glob("wandb"))
    told = clone.submit("sync", number, env={**keys, "WANDB_API_KEY": ""}, check=False)
    assert told.returncode == 0  # nothing to upload
