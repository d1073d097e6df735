"""The hooks before a commit, by the real pre-commit."""

import shutil
import sys

import pytest
from support import cache

GOOD = (
    "lib/configuration/paths.py",
    "lib/script/messages.bash",
    "jsc/run_training_jwb.sbatch",
    ".ci/run",
)


@pytest.fixture
def contributed(root, clean_environment, run, tmp_path):
    """Give a copy of this repository, and a function that runs the hooks over some files."""
    folder = tmp_path / "it's a clone"
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)
    run(["git", "init", "--quiet"], cwd=folder)
    home = cache.cache_folder() / "pre-commit"

    def hooks(*files):
        # not the program: pip writes its first line wrong where the path holds a quotation mark
        command = [sys.executable, "-m", "pre_commit", "run", "--files", *files]
        environment = {**clean_environment, "PRE_COMMIT_HOME": str(home)}
        run(["git", "add", "--all"], cwd=folder)  # as before a commit
        with cache.locked("pre-commit"):
            return run(command, cwd=folder, env=environment, check=False)

    return folder, hooks


def test_hooks_are_content_with_what_is_here(contributed):
    _, hooks = contributed
    done = hooks(*GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == 4 and "Skipped" not in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "hook"),
    [
        ("lib/new.py", '"""New."""\n\nimport os\n', "ruff"),
        ("lib/new.py", '"""New."""\n\nX  = 1\n', "ruff format"),
        ("tests/new.sh", "#!/bin/bash\necho $1\n", "shellcheck"),
        ("docs/reference/exit_codes.md", "By hand.\n", "docs/reference is what the code says"),
    ],
)
def test_hook_stops_what_is_wrong(name, text, hook, contributed):
    folder, hooks = contributed
    (folder / name).write_text(text)
    done = hooks(name)
    failed = [line for line in done.stdout.splitlines() if line.endswith("Failed")]
    assert done.returncode == 1 and [each.partition("...")[0] for each in failed] == [hook]
