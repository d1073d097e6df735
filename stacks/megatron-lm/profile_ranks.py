"""Become the training script, in the ranks to be profiled under Nsight Systems.

    python profile_ranks.py SCRIPT [ARGUMENT...]

A rank is profiled where TRAINING_PROFILE lists it; its report is `profile_rank<N>.nsys-rep` in the
run's folder, or outside of a job in `profiles` of the scratch folder.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Replace this process."""
    rank = os.environ["RANK"]
    command = [sys.executable, *sys.argv[1:]]
    if rank in os.environ["TRAINING_PROFILE"].split():
        scratch = os.environ["LONGSHIP_SCRATCH_DIR"]
        folder = Path(os.environ.get("RUN_DIR") or Path(scratch, "profiles"))
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *("nsys", "profile", "--trace=cuda,nvtx", "--sample=none"),
            # Megatron starts and stops the recording; what follows must not end the training.
            *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            *("--force-overwrite=true", f"--output={folder}/profile_rank{rank}"),
            *command,
        ]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
