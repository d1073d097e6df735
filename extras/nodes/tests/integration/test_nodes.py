"""A faulty node on a real cluster: the watcher blames it, and the next submission excludes it."""

from integration.test_jobs import write_job

BODY = (
    'srun "$LAUNCHER" sh -c \'echo "on $SLURMD_NODENAME"; if [ "$1" != broken ]; then exit; fi\n'
    'echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"; exit 1\' '
    'sh "${JOB_ARGUMENTS[@]}"'
)


def test_node_that_the_watcher_blames_is_excluded_until_it_is_removed(
    make_job_clone, slurm, tmp_path
):
    clone = make_job_clone(tmp_path, '[jobs]\nsilence = "00:05:00"\n')
    job = write_job(clone, "one", BODY)
    broken = clone.finish(job, "--", "broken", state="FAILED")
    node = slurm.facts(broken.job)["NodeList"]
    said = f"longship: {node} will be excluded from submissions (GPU broken): python3 doctor.py nod"
    assert broken.log.count(said) == 1 and not (broken.folder / "faulty_nodes").exists()

    done = clone.submit(job, "--exclude=node3", "--chain=2", "--", "whole")
    assert (
        f"excluded: {node} (GPU broken, " in done.stderr
        and f", run {broken.job} of " in done.stderr
    )
    for each in done.stdout.split():
        assert slurm.wait(each) == "COMPLETED", slurm.log(each)
        (other,) = {"node1", "node2", "node3"} - {node, "node3"}
        assert f"on {other}\n" in clone.run(each).log
    again = clone.submit("rerun", done.stdout.split()[0], "--dry-run").stdout
    assert again.count(f"--exclude=node3,{node}") == 1 and "--exclude=node3 " in again

    listed = clone.type("doctor.py", "nodes").stdout
    assert listed.startswith(f"{node}  GPU broken, ") and listed.count("\n") == 1
    assert clone.type("doctor.py", "nodes", "--remove", node).stderr.endswith(" excluded\n")
    assert node not in clone.submit(job, "--dry-run", "--nodes=1").stdout
