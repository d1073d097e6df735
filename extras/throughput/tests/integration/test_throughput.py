"""The end of a job on a real cluster says how fast it was, compared with an earlier one."""

from integration.test_jobs import write_job

WRITE = """
import json, os, sys, time
with open(os.path.join(sys.argv[1], "metrics.jsonl"), "w") as file:
    for step in range(1, 21):
        values = {"step": step, "time": time.time(), "tokens_per_s": float(os.environ["SPEED"])}
        print(json.dumps(values), file=file)
"""


def test_second_run_is_compared_with_the_first(make_job_clone, slurm, tmp_path):
    clone = make_job_clone(tmp_path)
    (clone.root / "write.py").write_text(WRITE)
    body = (
        'mkdir "$RUN_DIR/results" && ln -s "$RUN_DIR/results" "$RUN_DIR/outputs"\n'
        'srun "$LAUNCHER" python3 "$LONGSHIP_ROOT/write.py" "$RUN_DIR/results"'
    )
    job = write_job(clone, "fast", body)
    first = clone.finish(job, "--nodelist=node1", env={"SPEED": "100"})
    assert first.record["tokens_per_s"] == "100" and "throughput" not in first.record
    second = clone.finish(job, "--nodelist=node2", env={"SPEED": "88"})
    line = f"12 % slower than run {first.job}: other nodes"
    assert second.record["throughput"] == line
    assert second.log.count(f"longship: {line}\n") == 1
    clone.submit("report", second.job)
    page = second.folder / f"report-{second.folder.name}.html"
    assert line in page.read_text(encoding="utf-8")
