"""Two members of a group: what one finds, the other one leaves out, and says is in order again."""

import pytest

pytestmark = [pytest.mark.root, pytest.mark.only_root]

FINDS = r'printf "n1\t%(%Y-%m-%dT%H:%M:%SZ)T\tGPU broken\n" -1 >"$RUN_DIR/faulty_nodes"'


def test_members_tell_each_other_and_change_nothing_of_the_other(make_village):
    village = make_village()
    victim, mallory = village.victim, village.mallory
    mallory.clone(village.configuration(mallory))
    victim.bash('mkdir -m 750 "$1"; chgrp lab "$1"; chmod 750 "$1"', village.shared)
    job = victim.job("finds", FINDS)
    victim.finish(job)
    (file,) = village.shared.glob("nodes/*/n1.json")
    assert file.parent.name == f"local.{victim.uid}" and file.lstat().st_uid == victim.uid

    said = mallory.type("submit.py", mallory.job("other", "true"))
    assert "excluded: n1 (GPU broken, " in said.stderr and " of victim)\n" in said.stderr
    for change in ('rm -f -- "$1"', 'printf "{}" >"$1"', 'mv -- "${1%/*}" "${1%/*}.old"'):
        assert mallory.bash(change, file, check=False).returncode
    assert mallory.type("doctor.py", "nodes", "--remove", "n1").stderr.endswith(" excluded\n")
    assert victim.type("doctor.py", "nodes").stdout == "no node of local is excluded\n"
    assert "n1" not in victim.type("submit.py", job, "--dry-run").stdout

    theirs = village.shared / f"nodes/local.{mallory.uid}/n2.json"
    mallory.bash('printf "{" >"$1"', theirs)
    warned = victim.type("submit.py", job).stderr
    assert f"warning: cannot read {theirs}, which excludes no node: " in warned
    assert "\nhint: ask mallory to run: rm " in warned
